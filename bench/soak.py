"""Does a scheduler that runs for long grow? python bench/soak.py [--minutes N] [--sessions N] [--rate R]

A real `run_scheduler` sends at full rate through the sandbox, which fails 30 % of the calls in every way it knows, on a PostgreSQL of its
own. An operator resumes what pauses and starts a new campaign where one is done. Each five seconds: memory, threads, open files and
connections of the scheduler. Exit code 1 when it grew. Linux only: it reads /proc. docs/reliability.md quotes what it printed.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

BASE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BASE))

from config.embedded_postgres import server  # noqa: E402

if TYPE_CHECKING:
    from campaigns.models import Campaign

EVERY = 5.0  # seconds between two samples
PEOPLE = 1000
HANGS = 2.0  # seconds, of a fault that hangs
STOPPING = ("400", "401", "403", "404", "422-session", "422-engine", "429", "429-retry-after", "500-463", "500-rate-overlimit", "redirect")
SELDOM = 0.0005  # of those that pause a campaign or cool it down: at 30 % there would be no full rate
DEADLINE = 1  # seconds, so that what hangs ends by the deadline


@dataclass(frozen=True)
class Sample:
    second: float
    rss: int  # KiB
    threads: int
    files: int
    connections: int
    accepted: int


@contextmanager
def database(folder: Path) -> Iterator[str]:
    data = folder / "postgres"
    server.start(data)
    try:
        yield f"postgres://{quote(server.role())}@:{server.PORT}/postgres?{urlencode({'host': str(server.socket_folder(data))})}"
    finally:
        server.let_go(data)
        server.stop(data)


@contextmanager
def command(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, "manage.py", *words], cwd=BASE, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def url_of(log: Path) -> str:
    end = time.monotonic() + 30
    while " at http" not in log.read_text() and time.monotonic() < end:
        time.sleep(0.05)
    return log.read_text().partition(" at ")[2].split()[0]


def ask(url: str, body: object = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


class Operator:
    """Keeps every session busy, as a person would from the admin."""

    def __init__(self, url: str, sessions: int, rate: float) -> None:
        from sessions_app.models import Session

        where = {"base_url": url, "engine": "NOWEB", "rate": rate}
        self._sessions = [
            Session.objects.create(name=f"soak {n}", channel="sandbox", settings={**where, "session": f"s{n}"}, time_zone="UTC")
            for n in range(sessions)
        ]
        self._made = 0

    def work(self) -> None:
        from campaigns import transitions
        from campaigns.models import Campaign
        from campaigns.transitions import Refused
        from sessions_app.checking import check_session
        from sessions_app.models import Session

        for session in Session.objects.exclude(status=Session.Status.CONNECTED):
            check_session(session)
        busy = {}
        for campaign in Campaign.objects.exclude(status__in=["COMPLETED", "FAILED"]).order_by("pk"):
            busy[campaign.session_id] = campaign
        for session in self._sessions:
            campaign = busy.get(session.pk) or self._new(session.pk)
            if campaign.status in (Campaign.Status.DRAFT, Campaign.Status.PAUSED):
                try:
                    transitions.start(campaign.pk, by="soak")
                except Refused:
                    pass  # the session did not answer: once more at the next look

    def _new(self, session_id: int) -> "Campaign":
        from campaigns.models import Campaign, CampaignStep, Recipient

        self._made += 1
        campaign = Campaign.objects.create(name=f"soak {self._made}", session_id=session_id, safe_hours="OFF", time_zone="UTC")
        CampaignStep.objects.create(campaign=campaign, order=1, text="Hello {{ name }}, this is a message of an ordinary length.")
        people = [
            Recipient(campaign=campaign, address=f"{12025550000 + n}@c.us", name=f"Person {n}", order=n, metadata={"n": str(n)})
            for n in range(PEOPLE)
        ]
        Recipient.objects.bulk_create(people)
        return campaign


def sample(pid: int, began: float, sandbox: str) -> Sample:
    from django.db import connection

    proc = Path(f"/proc/{pid}")
    rss = next(line.split()[1] for line in (proc / "status").read_text().splitlines() if line.startswith("VmRSS:"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
        connections = cursor.fetchone()[0]
    totals = ask(f"{sandbox}/_sandbox/totals")
    assert isinstance(totals, dict)
    return Sample(
        second=time.monotonic() - began,
        rss=int(rss),
        threads=len(list((proc / "task").iterdir())),
        files=len(list((proc / "fd").iterdir())),
        connections=connections,
        accepted=totals["accepted"],
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def show(one: Sample, before: Sample | None) -> None:
    rate = (one.accepted - before.accepted) / (one.second - before.second) if before else 0.0
    say(f"{one.second:6.0f} {one.rss / 1024:9.1f} {one.threads:8} {one.files:6} {one.connections:12} {one.accepted:9} {rate:7.1f}")


def verdict(samples: list[Sample], warm_up: float, growth: float) -> list[str]:
    """What is wrong, in sentences. Medians of a quarter, so that one sample in the middle of a call decides nothing."""
    from dispatch.engine import THREADS

    later = [one for one in samples if one.second >= warm_up]
    quarter = max(1, len(later) // 4)
    first, last = later[:quarter], later[-quarter:]
    problems = []
    begins, ends = (statistics.median(one.rss for one in part) for part in (first, last))
    say(f"\nRSS {begins / 1024:.1f} MiB after {warm_up:.0f} s, {ends / 1024:.1f} MiB at the end: {(ends / begins - 1) * 100:+.1f} %")
    if ends > begins * (1 + growth):
        problems.append(f"the memory grew by more than {growth:.0%}")
    whole_pool = THREADS + 1  # its threads are made when they are needed first; and the one that owns the connection
    for name, expected, slack in (("threads", whole_pool, 0), ("connections", 1, 0), ("files", 0, 4)):
        begins, ends = (statistics.median(getattr(one, name) for one in part) for part in (first, last))
        say(f"{name} {begins:.0f} after {warm_up:.0f} s, {ends:.0f} at the end, {max(getattr(one, name) for one in later)} at most")
        if ends > max(begins, expected) + slack:
            problems.append(f"there are more {name} than before")
    return problems


def outcomes() -> dict[str, int]:
    from django.db.models import Count

    from dispatch.models import DispatchLog

    counts = DispatchLog.objects.exclude(status="PENDING").order_by().values_list("status").annotate(n=Count("pk"))
    return dict(sorted(counts))


def run(options: argparse.Namespace, folder: Path) -> int:
    import django

    django.setup()
    from django.core.management import call_command

    from sessions_app.sandbox.faults import KINDS

    call_command("migrate", verbosity=0)
    samples: list[Sample] = []
    with command(folder / "sandbox.log", "run_sandbox", "--port", "0"):
        url = url_of(folder / "sandbox.log")
        for seed, probability, kinds in ((1, options.faults, KINDS - set(STOPPING)), (2, SELDOM, STOPPING)):
            ask(f"{url}/_sandbox/faults", {"probability": probability, "kinds": sorted(kinds), "seed": seed, "seconds": HANGS})
        operator = Operator(url, options.sessions, options.rate)
        operator.work()
        with command(folder / "scheduler.log", "run_scheduler") as scheduler:
            say(f"{'second':>6} {'RSS MiB':>9} {'threads':>8} {'files':>6} {'connections':>12} {'accepted':>9} {'per s':>7}")
            began = time.monotonic()
            due = began + EVERY
            while time.monotonic() - began < options.minutes * 60:
                operator.work()
                if time.monotonic() >= due:
                    samples.append(sample(scheduler.pid, began, url))
                    show(samples[-1], samples[-2] if len(samples) > 1 else None)
                    due += EVERY
                time.sleep(0.5)
            is_alive = scheduler.poll() is None
        totals = ask(f"{url}/_sandbox/totals")
    said = (folder / "scheduler.log").read_text()
    problems = verdict(samples, options.warm_up, options.growth)
    problems += [] if is_alive else ["the scheduler ended"]
    problems += ["the log has a traceback"] if "Traceback" in said else []
    say(f"sandbox {totals}; ledger {outcomes()}")
    say("verdict: " + ("; ".join(problems) if problems else "it does not grow"))
    return 1 if problems else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Does a scheduler that runs for long grow?")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=60.0, metavar="SECONDS", help="what the end is compared with (default 60)")
    parser.add_argument("--growth", type=float, default=0.10, help="how much more memory is too much (default 0.10)")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--rate", type=float, default=50.0, help="messages per second and session that are asked for (default 50)")
    parser.add_argument("--faults", type=float, default=0.3, help="the share of calls that fail (default 0.3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name, database(Path(name)) as url:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": url,
            "SEND_DEADLINE_SECONDS": str(DEADLINE),
            "LOG_LEVEL": "INFO",
        }
        sys.exit(run(options, Path(name)))


if __name__ == "__main__":
    main()

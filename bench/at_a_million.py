"""What a look at the health, a scrape and an idle pass cost when the ledger is large: python bench/at_a_million.py [--campaigns N]

On a PostgreSQL of its own: campaigns of a thousand messages each, a hundred of them RUNNING, a week of heartbeats of background tasks, an
hour of webhook events. Exit code 1 when the median of the look is above 50 ms. docs/operations.md quotes what it printed.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlencode

BASE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BASE))

from config.embedded_postgres import server  # noqa: E402

EACH = 1000  # messages of a campaign
HEARTBEATS = 10_000
EVENTS = 20_000
LIMIT_MS = 50.0

# Of each campaign: most are SENT, a few FAILED or UNCONFIRMED; of one that runs, half are PENDING. Tests, since nobody is imported: a
# message without a person would be swept.
MESSAGES = """
INSERT INTO dispatch_dispatchlog (campaign_id, session_id, step_id, run_id, kind, address, client_ref, status, reason, available_at,
  attempt, token, provider_message_id, error_code, error_text, claimed_at, sent_at, unconfirmed_at, decided_by, body, verifications)
SELECT x.campaign_id, x.session_id, x.step_id, x.run_id, 'TEST', x.n || '@lid', gen_random_uuid(), x.status, '',
  now() - interval '1 day', 1, 1, CASE WHEN x.status = 'SENT' THEN 'true_' || x.run_id || '_' || x.n ELSE '' END, '', '',
  now() - interval '1 hour',
  CASE WHEN x.status = 'SENT' THEN now() END, CASE WHEN x.status = 'UNCONFIRMED' THEN now() END, '',
  repeat('A message of an ordinary length. ', 4), 0
FROM (SELECT r.campaign_id, c.session_id, r.step_id, r.id AS run_id, n,
        CASE WHEN c.status = 'RUNNING' AND n > %(each)s / 2 THEN 'PENDING' WHEN n %% 100 = 0 THEN 'UNCONFIRMED'
             WHEN n %% 50 = 1 THEN 'FAILED' ELSE 'SENT' END AS status
      FROM dispatch_run r JOIN campaigns_campaign c ON c.id = r.campaign_id, generate_series(1, %(each)s) n) x
"""
COUNTED = """
UPDATE dispatch_run r SET planned = g.planned, sent = g.sent, failed = g.failed, unconfirmed = g.unconfirmed, rows_complete = true
FROM (SELECT run_id, count(*) AS planned, count(*) FILTER (WHERE status = 'SENT') AS sent,
             count(*) FILTER (WHERE status = 'FAILED') AS failed, count(*) FILTER (WHERE status = 'UNCONFIRMED') AS unconfirmed
      FROM dispatch_dispatchlog GROUP BY 1) g
WHERE r.id = g.run_id
"""


@contextmanager
def database(folder: Path) -> Iterator[str]:
    data = folder / "postgres"
    server.start(data)
    try:
        yield f"postgres://{quote(server.role())}@:{server.PORT}/postgres?{urlencode({'host': str(server.socket_folder(data))})}"
    finally:
        server.let_go(data)
        server.stop(data)


def fill(campaigns: int, *, each: int = EACH, running: int, heartbeats: int = HEARTBEATS, events: int = EVENTS) -> None:
    """Every tenth session is away; the running campaigns are due at their next message, one of them for an hour."""
    from django.db import connection
    from django.utils import timezone

    from campaigns.models import Campaign, CampaignStep
    from dispatch import measures
    from dispatch.models import Heartbeat, Lane, Run, WebhookEvent
    from sessions_app.models import Session

    now = timezone.now()
    states = ["DISCONNECTED" if n % 10 == 9 else "CONNECTED" for n in range(campaigns)]
    sessions = Session.objects.bulk_create(Session(name=f"s{n}", channel="mock", status=state) for n, state in enumerate(states))
    at_work = ["RUNNING" if n < running else "COMPLETED" for n in range(campaigns)]
    made = Campaign.objects.bulk_create(Campaign(name=f"c{n}", session=session, status=at_work[n]) for n, session in enumerate(sessions))
    steps = CampaignStep.objects.bulk_create(CampaignStep(campaign=campaign, text="Hello") for campaign in made)
    Run.objects.bulk_create(Run(campaign=c, step=s, number=1, status=c.status) for c, s in zip(made, steps, strict=True))
    lanes = [Lane(session=c.session, campaign=c, is_open=True, next_send_at=now + timedelta(seconds=9)) for c in made[:running]]
    lanes[0].next_send_at = now - timedelta(hours=1)
    Lane.objects.bulk_create(lanes)
    Campaign.objects.filter(pk=made[0].pk).update(updated_at=now - timedelta(days=1))
    measures.settled([("mock", "ACCEPTED"), ("mock", "TRANSIENT")])
    measures.began("mock", after=timedelta(milliseconds=20))
    beat = {"host": "host", "host_identity": "elsewhere", "version": "1", "interval": timedelta(minutes=1), "measures": measures.snapshot()}
    Heartbeat.objects.bulk_create(
        Heartbeat(kind="SCHEDULE", pid=1000 + n % 2, beat_at=now - timedelta(minutes=n), stopped_at=now - timedelta(minutes=n), **beat)
        for n in range(heartbeats)
    )
    event_states = ["FAILED", *["APPLIED"] * 99]
    ages = [timedelta(seconds=n * 3500 / events) for n in range(events)]
    WebhookEvent.objects.bulk_create(
        WebhookEvent(session=sessions[0], event_id=str(n), state=event_states[n % 100], received_at=now - age) for n, age in enumerate(ages)
    )
    with connection.cursor() as cursor:
        cursor.execute(MESSAGES, {"each": each})
        cursor.execute(COUNTED)
        cursor.execute("ANALYZE")


def measured(name: str, act: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        took.append((time.perf_counter() - began) * 1000)
    took.sort()
    median = statistics.median(took)
    say(
        f"{name:<14} median {median:6.1f} ms, 95 % within {took[int(len(took) * 0.95)]:6.1f} ms, longest {took[-1]:6.1f} ms ({times} times)"
    )
    return median


def measure_idle_passes(times: int) -> None:
    """Everything runs and waits for its next message: what planning costs then, and what it costs when every step looks for itself."""
    from uuid import uuid4

    from dispatch.engine import Engine
    from dispatch.scheduler import PassReport, plan, plan_each_step
    from sessions_app.clock import database_now

    engine = Engine(owner=uuid4())
    for _ in range(20):  # what is on sessions that are away is paused, the other lanes are opened
        plan(engine, PassReport())

    def each_step() -> None:
        plan_each_step(engine, database_now(), PassReport())
        engine.ask_about_unconfirmed()

    idle = measured("idle planning", lambda: plan(engine, PassReport()), times)
    looking = measured("each step", each_step, times)
    say(f"an idle pass plans in {idle / looking:.2f} of the time that its steps take to look for themselves")
    engine.close()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(options: argparse.Namespace) -> int:
    import django

    django.setup()
    from django.core.management import call_command

    from dispatch.health import examine
    from dispatch.metrics import exposition
    from dispatch.models import DispatchLog

    call_command("migrate", verbosity=0)
    began = time.monotonic()
    fill(options.campaigns, running=min(options.running, options.campaigns))
    rows = DispatchLog.objects.count()
    say(f"{rows} messages of {options.campaigns} campaigns, {options.running} running; made in {time.monotonic() - began:.0f} s")
    began = time.perf_counter()
    found = examine()
    say(f"first look {(time.perf_counter() - began) * 1000:.1f} ms, which loads the migrations once; status {found.status}")
    for component in found.components:
        say(f"  {component.status:<9} {component.name}: {component.detail}")
    median = measured("examine()", examine, options.times)
    measured("exposition()", exposition, options.times)
    say(f"exposition: {len(exposition())} bytes")
    measure_idle_passes(options.times)
    return 1 if median > LIMIT_MS or found.of("unconfirmed") is None else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="What a look at the health, a scrape and an idle pass cost when the ledger is large.")
    parser.add_argument("--campaigns", type=int, default=1000, help="of a thousand messages each (default 1000)")
    parser.add_argument("--running", type=int, default=100)
    parser.add_argument("--times", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="health-") as name:
        Path(name).chmod(0o711)  # the server's user passes through it
        with database(Path(name)) as url:
            os.environ |= {"DJANGO_SETTINGS_MODULE": "config.settings", "DATABASE_URL": url, "LOG_LEVEL": "ERROR"}
            code = run(options)
    sys.exit(code)


if __name__ == "__main__":
    main()

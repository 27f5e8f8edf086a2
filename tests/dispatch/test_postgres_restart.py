"""A real PostgreSQL of its own is restarted, crashes, stays away and turns read-only under running schedulers in mid-campaign.

The outage lasts PACELINE_OUTAGE_SECONDS (5): `make bench` repeats it with 60.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode

import psycopg
import pytest

from config.embedded_postgres import server
from sessions_app.sandbox import Sandbox
from tests import processes

pytestmark = pytest.mark.slow
OUTAGE = float(os.environ.get("PACELINE_OUTAGE_SECONDS", "5"))
LEASE = 4  # seconds, of most schedulers here: an outage is longer
A_LONG_LEASE = 60  # of one that is to give the others time; so long that a slow machine shows the same
IS_BACK_WITHIN = 10.0

SET_UP = """
from campaigns import transitions
from campaigns.models import Campaign, CampaignStep, Recipient
from sessions_app.models import Session
for number in range({sessions}):
    where = {{"base_url": "{url}", "session": f"s{{number}}", "engine": "NOWEB", "rate": {rate}}}
    session = Session.objects.create(name=f"{name} {{number}}", channel="sandbox", settings=where)
    campaign = Campaign.objects.create(name=f"{name} {{number}}", session=session, safe_hours="OFF")
    CampaignStep.objects.create(campaign=campaign, text="Hello {{{{ name }}}}")
    Recipient.objects.bulk_create(
        Recipient(campaign=campaign, address=f"{{12025550100 + n}}@c.us", name=f"Person {{n}}", order=n) for n in range({people})
    )
    transitions.start(campaign.pk, by="ana")
"""
SCHEDULER = """
from datetime import timedelta
from dispatch.engine import Engine
from dispatch.loop import run_scheduler
from dispatch.stopping import StopFlag
stop = StopFlag()
stop.install()
times = {{"deadline": timedelta(seconds=2), "lease": timedelta(seconds={lease})}}
raise SystemExit(run_scheduler(stop, interval=0.2, make_engine=lambda owner: Engine(owner=owner, **times)))
"""
RECOVER_ON_SCHEDULE = """
from dispatch import tasks
assert not any(tasks.recover().values())
"""


class Place:
    """One server with the tables in it, for all tests of this module; each makes campaigns of its own name."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.url = f"postgres://{quote(server.role())}@:{server.PORT}/postgres?{urlencode({'host': str(server.socket_folder(data))})}"

    def manage(self, *words: str) -> str:
        code, said, complaint = processes.manage(*words, DATABASE_URL=self.url)
        assert code == 0, complaint
        return said

    def shell(self, code: str) -> str:
        return self.manage("shell", "--no-imports", "-c", code)

    def run(self, *statements: str) -> list[tuple]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursors = [connection.execute(statement) for statement in statements]
            return cursors[-1].fetchall() if cursors[-1].description else []

    def reasons(self, name: str) -> list[str]:
        return [row[0] for row in self.run(f"SELECT status_reason FROM campaigns_campaign WHERE name LIKE '{name} %' ORDER BY name")]

    def down(self, how: signal.Signals) -> None:
        """SIGINT ends it cleanly at once, SIGQUIT as a crash would."""
        os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), how)
        processes.until(lambda: not server.is_running(self.data), "the end of the database")

    def up(self) -> None:
        server.start(self.data)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    data = tmp_path_factory.mktemp("place") / "postgres"
    server.start(data)
    place = Place(data)
    with psycopg.connect(place.url):
        pass
    yield place
    server.let_go(data)
    server.stop(data)


@pytest.fixture
def start(place, tmp_path) -> Iterator[Callable[..., processes.Process]]:
    """A scheduler: as it is run, or with leases that an outage outlasts."""
    place.manage("migrate", "--verbosity", "0")
    with processes.processes(tmp_path) as run:

        def scheduler(lease: int | None = None) -> processes.Process:
            words = ("shell", "--no-imports", "-c", SCHEDULER.format(lease=lease)) if lease else ("run_scheduler",)
            process = run(*words, DATABASE_URL=place.url)
            process.until_says("scheduler started")
            return process

        yield scheduler
    place.manage("doctor", "--all")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def assert_everybody_once(
    place: Place, sandbox: Sandbox, name: str, *, sessions: int = 1, people: int, by: list[processes.Process]
) -> None:
    """And nobody was paused, or in doubt, or taken for dead: the processes lived, and settled when they could."""
    done = [f"completed: {people} sent"] * sessions
    processes.until(lambda: place.reasons(name) == done, f"{done}")
    received = [(message["session"], message["chatId"]) for message in sandbox.messages()]
    assert len(set(received)) == len(received) == sessions * people
    assert not place.run("SELECT 1 FROM dispatch_attempt WHERE outcome IN ('LOST', 'UNCONFIRMED')")
    for process in by:
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "campaign paused" not in process.said
        assert "Traceback" not in process.said


def test_restarted_under_it_nothing_is_lost_or_doubled_and_it_goes_on_by_itself(place, start, sandbox):
    place_of = {"name": "restart", "sessions": 1, "people": 60, "rate": 15, "url": sandbox.url}
    scheduler = start()
    place.shell(SET_UP.format(**place_of))
    for share, how in ((0.25, signal.SIGQUIT), (0.6, signal.SIGINT)):  # as a crash, then cleanly
        processes.until(partial(lambda least: len(sandbox.messages()) >= least, 60 * share), "messages under way")
        place.down(how)
        place.up()
    assert_everybody_once(place, sandbox, "restart", people=60, by=[scheduler])


def test_away_for_longer_than_a_lease_no_answer_is_lost_and_sending_is_back_in_seconds(place, start, sandbox):
    name = "outage"
    both = [start(LEASE), start(LEASE)]
    place.shell(SET_UP.format(name=name, sessions=3, people=40, rate=8, url=sandbox.url))
    processes.until(lambda: len(sandbox.messages()) >= 24, "messages under way")
    sandbox.script({"kind": "slow", "seconds": 1, "count": 6})
    before = len(sandbox.messages())
    processes.until(lambda: len(sandbox.messages()) >= before + 6, "calls that are answered when the database is away")
    place.down(signal.SIGQUIT)
    time.sleep(OUTAGE / 2)
    at_first = len(sandbox.messages())
    time.sleep(OUTAGE / 2)
    assert len(sandbox.messages()) == at_first < 120  # nothing leaves that cannot be claimed
    place.up()
    began = time.monotonic()
    processes.until(lambda: len(sandbox.messages()) > at_first, "the next message")
    assert time.monotonic() - began < IS_BACK_WITHIN
    assert_everybody_once(place, sandbox, name, sessions=3, people=40, by=both)


def held_answer(place: Place, sandbox: Sandbox, frozen: processes.Process, go_away: Callable[[], object], name: str) -> None:
    """The scheduler has an answer that it could not write down, and is frozen with it for longer than its lease."""
    place.shell(SET_UP.format(name=name, sessions=1, people=2, rate=0.25, url=sandbox.url))  # four seconds until the next one
    sandbox.script({"kind": "slow", "seconds": 0.7})
    processes.until(lambda: sandbox.messages(), "the call")
    go_away()
    time.sleep(1.5)  # the answer comes meanwhile
    frozen.signal(signal.SIGSTOP)
    time.sleep(LEASE)
    assert len(sandbox.messages()) == 1


def test_after_an_outage_nobody_takes_the_slower_ones_for_dead(place, start, sandbox):
    """Neither a scheduler that starts now, nor the recovery that runs on schedule: one lease after its start the database is believed."""
    frozen = start(LEASE)
    place.run("UPDATE dispatch_heartbeat SET interval = '1 second'")
    held_answer(place, sandbox, frozen, lambda: place.down(signal.SIGQUIT), "slower")
    place.up()
    place.shell(RECOVER_ON_SCHEDULE)
    later = start(A_LONG_LEASE)
    time.sleep(0.5)  # two of its plans
    frozen.signal(signal.SIGCONT)
    assert_everybody_once(place, sandbox, "slower", people=2, by=[frozen, later])


def test_back_from_read_only_a_scheduler_that_lived_through_it_gives_the_others_a_lease(place, start, sandbox):
    """The server was not restarted, so its start says nothing: who saw it away knows."""
    frozen, other = start(LEASE), start(A_LONG_LEASE)
    other.signal(signal.SIGSTOP)  # so that it is the first one who has the call

    def read_only() -> None:
        place.run("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        other.signal(signal.SIGCONT)

    held_answer(place, sandbox, frozen, read_only, "read-only")
    place.run("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
    other.until_says("database back")
    time.sleep(0.5)  # two of its plans
    frozen.signal(signal.SIGCONT)
    assert_everybody_once(place, sandbox, "read-only", people=2, by=[frozen, other])

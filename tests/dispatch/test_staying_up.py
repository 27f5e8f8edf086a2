"""What must cost one row or one campaign and never the loop; a provider that hangs; a database that takes no writes; no growth."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.conf import settings as project
from django.db import connection
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign, Recipient
from dispatch import runs
from dispatch.engine import Engine
from dispatch.lanes import Claimed
from dispatch.loop import Loop, start_heart
from dispatch.models import DispatchLog, Heartbeat, Run
from dispatch.stopping import StopFlag
from sessions_app.models import Session
from sessions_app.pacing import Metered, human_of
from sessions_app.providers.base import ErrorCode, Presence, SendResult, SessionCheck, SessionState, Verification
from sessions_app.sandbox import Sandbox
from tests.dispatch.conftest import START, Drive, make_ready, statuses
from tests.dispatch.invariants import assert_sum_rule, broken
from tests.factories import make_session
from tests.fakes import FakeMetered, FakeProvider
from tests.processes import processes, until

S = Campaign.Status

# -- poison: on a clock of its own ---------------------------------------------------------------------------------------------


class Unmakeable(FakeMetered):
    def __init__(self, config: Any) -> None:
        raise ZeroDivisionError


class LosesItsOrigin(FakeMetered):
    """It has one when the lane is opened, and none when the first message is due."""

    asked: ClassVar[int] = 0

    @property
    def origin(self) -> str:
        LosesItsOrigin.asked += 1
        if LosesItsOrigin.asked > 1:
            raise ZeroDivisionError
        return ""


class Rateless(FakeMetered):
    @property
    def metered(self) -> Metered:
        return Metered(rate=0, burst=8)


@pytest.fixture
def odd(fake, settings) -> None:
    kinds = {"unmakeable": "Unmakeable", "loses_its_origin": "LosesItsOrigin", "rateless": "Rateless"}
    settings.CHANNELS = {**settings.CHANNELS, **{key: f"{__name__}.{name}" for key, name in kinds.items()}}
    LosesItsOrigin.asked = 0


@pytest.fixture
def poor(db, odd) -> Campaign:
    return started(make_ready(people=2))


def started(campaign: Campaign) -> Campaign:
    return transitions.start(campaign.pk, by="ana", now=START)


def assert_another_goes_out(drive: Drive) -> None:
    """Beside the poisoned one, to the end of both."""
    well = make_ready(channel="fake_metered", people=2, session=make_session(channel="fake_metered", checked_at=drive.now))
    transitions.start(well.pk, by="ana", now=drive.now)
    drive.until_done()
    well.refresh_from_db()
    assert (well.status, statuses(well)) == (S.COMPLETED, ["SENT", "SENT"])
    assert_sum_rule(well)


def outside_a_transaction(names: Iterable[str], *those: str) -> list[Any]:
    """As in production, where a statement that PostgreSQL refuses does not end the transaction of a whole test."""
    return [pytest.param(name, marks=[pytest.mark.django_db(transaction=True)] if name in those else []) for name in names]


def exit_in_a_thread(*_: object) -> SendResult:
    raise SystemExit(3)


NONSENSE: dict[str, tuple[Any, str]] = {
    "nothing": (lambda *_: None, "UNCONFIRMED"),
    "another type": (lambda *_: "ok", "UNCONFIRMED"),
    "an exception": (ZeroDivisionError(), "UNCONFIRMED"),
    "the end of the process": (exit_in_a_thread, "UNCONFIRMED"),
    "a number as id": (SendResult.accepted(77), "SENT"),  # type: ignore[arg-type]
    "no id": (SendResult.accepted(None), "SENT"),  # type: ignore[arg-type]
    "an id with a NUL": (SendResult.accepted("a\0b"), "SENT"),
    "half a surrogate": (SendResult.accepted("\ud800"), "SENT"),
    "an impossible status": (SendResult.accepted("id", http_status=10**12), "SENT"),
    "no detail": (SendResult.refused(ErrorCode.FATAL, None), "FAILED"),  # type: ignore[arg-type]
    "a wait beyond time": (SendResult.refused(ErrorCode.RATE_LIMIT, "", retry_after=timedelta.max), "SENT"),
    "a wait that is none": (SendResult.refused(ErrorCode.RATE_LIMIT, "", retry_after="soon"), "SENT"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", outside_a_transaction(NONSENSE, "an impossible status", "a wait beyond time"))
def test_whatever_a_provider_answers_costs_its_own_row_and_is_reported(poor, drive, caplog, name):
    answer, ends_as = NONSENSE[name]
    FakeProvider.answers(answer)
    drive.once()
    assert any(record.levelname == "ERROR" for record in caplog.records)
    assert_another_goes_out(drive)
    assert statuses(poor) == [ends_as, "SENT"]
    assert_sum_rule(poor)


def no_type(poor: Campaign) -> None:
    Run.objects.filter(campaign=poor).update(message={"type": "PIGEON", "template_components": []})


def values_that_are_a_list(poor: Campaign) -> None:
    Recipient.objects.filter(pk=poor.recipients.earliest("order").pk).update(metadata=["a"])


@pytest.mark.parametrize(("poison", "ends_as"), [(no_type, ["FAILED", "FAILED"]), (values_that_are_a_list, ["FAILED", "SENT"])])
def test_what_cannot_be_rendered_fails_unsent_and_is_reported(poor, drive, caplog, poison, ends_as):
    runs.advance(poor.pk, START)
    poison(poor)
    drive.until_done()
    assert statuses(poor) == ends_as
    assert "a message could not be prepared" in caplog.text
    assert len(FakeProvider.calls) == ends_as.count("SENT")
    assert_another_goes_out(drive)


def a_campaign_on_mars(poor: Campaign) -> None:
    Campaign.objects.filter(pk=poor.pk).update(time_zone="Mars/Olympus", safe_hours=Campaign.SafeHours.BLOCK)


def a_zone_that_python_alone_knows(poor: Campaign) -> None:
    Session.objects.filter(pk=poor.session_id).update(time_zone="localtime")


def on_channel(key: str) -> Callable[[Campaign], None]:
    return lambda poor: Session.objects.filter(pk=poor.session_id).update(channel=key)  # type: ignore[return-value]


def sealed_with_another_key(poor: Campaign) -> None:
    Session.objects.filter(pk=poor.session_id).update(sealed_credentials="not by us")


UNPLANNABLE: dict[str, tuple[Callable[[Campaign], None], str]] = {
    "zone of the campaign": (a_campaign_on_mars, "an error inside Paceline (ZoneInfoNotFoundError)"),
    "zone of the session": (a_zone_that_python_alone_knows, 'time zone "localtime" not recognized'),
    "rate of the lane": (on_channel("rateless"), "division by zero"),
    "its provider": (on_channel("unmakeable"), "its provider cannot be made (ZeroDivisionError)"),
    "its credentials": (sealed_with_another_key, "credentials"),
    "its channel": (on_channel("pigeon"), "pigeon"),
}


@pytest.mark.parametrize("name", outside_a_transaction(UNPLANNABLE, "zone of the session", "rate of the lane"))
def test_what_cannot_be_planned_or_claimed_pauses_its_campaign_with_the_reason(poor, drive, caplog, name):
    poison, words = UNPLANNABLE[name]
    poison(poor)
    assert_another_goes_out(drive)
    poor.refresh_from_db()
    assert poor.status == S.PAUSED
    assert words in poor.status_reason
    assert FakeProvider.texts() == ["Hello Person 1", "Hello Person 2"]  # the other's
    assert set(statuses(poor)) <= {"PENDING"}
    assert "campaign paused" in caplog.text


def test_an_origin_that_is_lost_between_planning_and_sending_fails_the_rows(poor, drive, caplog):
    on_channel("loses_its_origin")(poor)
    drive.until_done()
    assert statuses(poor) == ["FAILED", "FAILED"]
    assert "a message could not be prepared" in caplog.text
    assert FakeProvider.calls == []
    assert_another_goes_out(drive)


def test_an_answer_that_cannot_be_written_at_all_becomes_unconfirmed_when_its_lease_is_over(poor, drive, caplog):
    def human(values):
        if isinstance(values, Claimed) and values.campaign_id == poor.pk:
            raise ZeroDivisionError
        return human_of(values)

    drive.engine.human = human
    drive.once()
    assert statuses(poor)[0] == "SENDING"
    assert "an answer is lost" in caplog.text
    drive.forward(60)
    assert_another_goes_out(drive)
    poor.refresh_from_db()
    assert poor.status == S.PAUSED
    assert statuses(poor) == ["UNCONFIRMED", "PENDING"]
    assert_sum_rule(poor)


@pytest.mark.parametrize("message_id", ["a\0b", "x" * 500, 77])
def test_a_verification_that_cannot_be_written_down_leaves_the_row_for_a_person(poor, drive, caplog, message_id):
    FakeProvider.answers(ZeroDivisionError())
    drive.once()
    FakeProvider.presence = Verification(Presence.PRESENT, message_id)
    drive.forward(60)
    drive.once()
    assert statuses(poor)[0] in {"UNCONFIRMED", "SENT"}
    assert_another_goes_out(drive)
    assert statuses(poor)[1] == "SENT"


def test_a_row_that_cannot_be_asked_about_any_more_leaves_the_others_to_be_asked(poor, drive, caplog):
    FakeProvider.answers(ZeroDivisionError())
    drive.once()
    no_type(poor)
    drive.forward(60)
    drive.once()
    assert "a message could not be asked about" in caplog.text
    assert statuses(poor)[0] == "UNCONFIRMED"
    assert_another_goes_out(drive)


@pytest.mark.django_db(transaction=True)
def test_a_check_that_cannot_be_written_down_reads_as_disconnected(db, odd, drive, caplog):
    FakeProvider.state = SessionCheck(SessionState.CONNECTED, "a\0b")
    later = make_ready(session=make_session(channel="fake", checked_at=None), scheduled_at=START)
    transitions.schedule(later.pk, by="ana", now=START - timedelta(minutes=1))
    drive.until_done()
    assert_another_goes_out(drive)
    later.refresh_from_db()
    assert later.status == S.PAUSED
    assert "could not be stored" in later.status_reason
    assert "a check could not be written down" in caplog.text


class FailsAtFirst(Engine):
    failures = 2

    def claim(self) -> int:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError
        return super().claim()


class UntilCompleted(StopFlag):
    def sleep(self, seconds: float) -> None:
        self.requested = Campaign.objects.filter(status=S.COMPLETED).exists()


@pytest.mark.django_db
def test_a_bug_in_a_pass_is_reported_and_does_not_end_the_loop(fake, caplog):
    campaign = make_ready(channel="fake_metered", people=2)
    transitions.start(campaign.pk, by="ana")
    heart = start_heart(Heartbeat.Kind.SCHEDULER)
    assert Loop(heart=heart, engine=FailsAtFirst(owner=heart.pk), stop=UntilCompleted(), interval=0.0).run() == 0
    assert statuses(campaign) == ["SENT", "SENT"]
    assert [record.message for record in caplog.records if record.levelname == "ERROR"].count("a pass failed") == 4  # the error, the alert


@pytest.mark.django_db(transaction=True)
def test_statements_are_not_kept_from_pass_to_pass(fake, settings):
    """With DEBUG, Django keeps them for a page that shows them; here nobody ever would, and they hold everybody's text."""
    settings.DEBUG = True
    transitions.start(make_ready(channel="fake_metered", people=2).pk, by="ana")
    heart = start_heart(Heartbeat.Kind.SCHEDULER)
    assert Loop(heart=heart, engine=Engine(owner=heart.pk), stop=UntilCompleted(), interval=0.0).run() == 0
    assert not any("Hello Person" in query["sql"] for query in connection.queries)


# -- real processes, the real clock --------------------------------------------------------------------------------------------

real = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def marked(test: Callable[..., None]) -> Callable[..., None]:
    for mark in real:
        test = mark(test)
    return test


@pytest.fixture
def start(tmp_path):
    with processes(tmp_path) as run:
        yield lambda **variables: run("run_scheduler", "--interval", "0.2", **variables)
    assert broken() == []


def on(sandbox: Sandbox, name: str, *, people: int, channel: str = "sandbox", rate: float | None = None) -> Campaign:
    config = {"base_url": sandbox.url, "session": name, "engine": "NOWEB", "rate": rate, "check_numbers": False}
    return make_ready(people=people, session=make_session(channel=channel, settings=config, checked_at=timezone.now()))


def accepted_within(sandbox: Sandbox, seconds: float) -> int:
    """From now on."""
    began = time.time()
    time.sleep(seconds)
    return sum(began <= message["time"] < began + seconds for message in sandbox.messages())


@marked
def test_a_provider_that_hangs_on_every_call_slows_nobody_else_down(start):
    """20 numbers behind a gateway that hangs, three quick ones elsewhere: these keep nine tenths of their rate, in one and the same run."""
    with Sandbox() as hung, Sandbox() as well:
        hung.script({"probability": 1.0, "kinds": ["timeout-before-accept"], "seconds": 600})
        quick = [on(well, f"quick {n}", people=400, rate=10) for n in range(3)]
        stuck = [on(hung, f"stuck {n}", people=2, channel="waha") for n in range(20)]
        for campaign in quick:
            transitions.start(campaign.pk, by="ana")
        start(SEND_DEADLINE_SECONDS="60")
        until(lambda: len(well.messages()) > 30, "the quick ones under way")
        alone = accepted_within(well, 3)
        for campaign in stuck:
            transitions.start(campaign.pk, by="ana")
        in_flight = DispatchLog.objects.in_flight().filter(campaign__in=stuck)
        until(lambda: in_flight.count() >= 12, "three quarters of the threads to hang")
        # A machine that is busy otherwise slows some looks; threads that hang would slow each of them.
        assert any(accepted_within(well, 3) >= 0.9 * alone for _ in range(4))
        assert in_flight.count() == 12  # and no more: the rest of the threads is for the others
    assert alone > 60  # of 90 at their rate


def connections_are_cut() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def run_sql(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def read_only() -> Iterator[None]:
    """For everybody who connects from now on: a failover to a standby, or a host that was told to."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    run_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    connections_are_cut()
    try:
        yield
    finally:
        run_sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        connections_are_cut()


@contextmanager
def disk_full() -> Iterator[None]:
    """As PostgreSQL says it when it cannot extend a file; every write of the ledger and of the lanes meets it."""
    tables = ("dispatch_lane", "dispatch_dispatchlog", "dispatch_attempt", "dispatch_heartbeat")
    refuse = "BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END"
    run_sql(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${refuse}$$")
    for table in tables:
        run_sql(f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION refuse()")
    try:
        yield
    finally:
        run_sql("DROP FUNCTION refuse CASCADE")


@marked
@pytest.mark.parametrize(("takes_no_writes", "words"), [(read_only, "it is read-only"), (disk_full, "its disk is full")])
def test_a_database_that_takes_no_writes_stops_the_claims_says_so_once_and_loses_nothing(start, takes_no_writes, words):
    with Sandbox() as sandbox:
        campaign = on(sandbox, "s", people=40, rate=20)
        transitions.start(campaign.pk, by="ana")
        process = start()
        until(lambda: len(sandbox.messages()) >= 8, "some messages")
        sandbox.script({"kind": "slow", "seconds": 0.5, "count": 2})  # answered while nothing can be written
        with takes_no_writes():
            process.until_says(words)
            at_first = len(sandbox.messages())
            time.sleep(1.5)  # thirty messages' worth
            assert len(sandbox.messages()) - at_first <= 2  # at most what had been claimed
            assert process.runs
        until(lambda: Campaign.objects.get().status == S.COMPLETED, "completion")
        chats = [message["chatId"] for message in sandbox.messages()]
    assert sorted(chats) == sorted(campaign.recipients.values_list("address", flat=True))
    assert statuses(campaign) == ["SENT"] * 40
    assert_sum_rule(campaign)
    assert process.said.count(words) == 1
    assert process.said.count("database back") == 1
    assert "Traceback" not in process.said


@pytest.mark.slow
def test_it_does_not_grow():
    """The short form of `python bench/soak.py`, which judges by itself. Ten minutes of it: docs/reliability.md."""
    soak = [sys.executable, "bench/soak.py", "--minutes", "0.3", "--warm-up", "8", "--growth", "0.15"]
    done = subprocess.run(soak, cwd=project.BASE_DIR, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: it does not grow" in done.stdout

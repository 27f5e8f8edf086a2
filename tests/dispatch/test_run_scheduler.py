"""manage.py run_scheduler as operators run it: real processes on the test database, and a stand-in of WAHA that counts what arrives."""

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign
from dispatch import loop, recovery, runs
from dispatch.engine import Engine
from dispatch.models import DispatchLog, Heartbeat
from dispatch.scheduler import run_pass
from dispatch.stopping import StopFlag
from sessions_app.models import Session
from sessions_app.sandbox import Sandbox
from tests.dispatch.invariants import assert_sum_rule, broken
from tests.factories import make_campaign, make_lane, make_recipients, make_session, make_step
from tests.processes import A_BUSY_MACHINE, manage, processes, until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
S = Campaign.Status
STARTED = "scheduler started"


@pytest.fixture
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def start(tmp_path):
    with processes(tmp_path) as run:

        def scheduler(*arguments: str, **variables: str):
            process = run("run_scheduler", *(arguments or ("--interval", "0.1")), **variables)
            if "--once" not in arguments:
                process.until_says(STARTED)
            return process

        yield scheduler
    assert broken() == []


def make_ready(
    sandbox: Sandbox, people: int, *, channel: str = "sandbox", rate: float | None = 50, session: Session | None = None
) -> Campaign:
    if session is None:
        config = {"base_url": sandbox.url, "session": f"s{uuid4().hex[:8]}", "engine": "NOWEB", "rate": rate, "check_numbers": False}
        session = make_session(channel=channel, settings=config, checked_at=timezone.now())
    campaign = make_campaign(session=session, safe_hours=Campaign.SafeHours.OFF)
    make_step(campaign, text="Hello {{ name }}")
    make_recipients(people, campaign)
    return campaign


def go(campaign: Campaign) -> Campaign:
    return transitions.start(campaign.pk, by="ana")


def status(campaign: Campaign) -> str:
    return Campaign.objects.values_list("status", flat=True).get(pk=campaign.pk)


def is_done(*campaigns: Campaign) -> bool:
    return {status(campaign) for campaign in campaigns} == {S.COMPLETED}


def statuses() -> Counter[str]:
    return Counter(DispatchLog.objects.values_list("status", flat=True))


def received(sandbox: Sandbox) -> Counter[tuple[str, str]]:
    return Counter((message["session"], message["chatId"]) for message in sandbox.messages())


def accepted(sandbox: Sandbox) -> int:
    return len(sandbox.messages())


def assert_everybody_once(sandbox: Sandbox, *campaigns: Campaign) -> None:
    expected = {(campaign.session.settings["session"], person.address) for campaign in campaigns for person in campaign.recipients.all()}
    assert received(sandbox) == Counter(expected)
    assert set(DispatchLog.objects.values_list("status", flat=True)) == {"SENT"}
    assert_sum_rule(*campaigns)


def test_started_in_the_admin_it_sends_within_two_seconds_and_completes(sandbox, start):
    start()
    campaign = make_ready(sandbox, 5)
    go(campaign)
    began = time.monotonic()
    until(lambda: accepted(sandbox), "the first message")
    assert time.monotonic() - began < 2 + A_BUSY_MACHINE
    until(lambda: is_done(campaign), "completion")
    assert_everybody_once(sandbox, campaign)


def test_killed_in_mid_send_nothing_is_lost_and_nothing_doubled(sandbox, start):
    campaign = make_ready(sandbox, 25)
    sandbox.script(*[{"kind": "timeout-before-accept", "seconds": 60, "chat": person.address} for person in campaign.recipients.all()[6:8]])
    sandbox.script(*[{"kind": "timeout-after-accept", "seconds": 60, "chat": person.address} for person in campaign.recipients.all()[3:5]])
    go(campaign)
    process = start()
    until(lambda: statuses() == {"SENT": 21, "SENDING": 4} and accepted(sandbox) == 23, "calls that hang")
    process.kill()
    sandbox.faults.clear()
    in_flight = set(DispatchLog.objects.in_flight().values_list("pk", flat=True))
    code, answer, _log = manage("recover_stuck", "--json")
    assert code == 0
    assert json.loads(answer) == {
        "campaigns_paused": 1, "steps_paused": 1, "logs_verified": 2, "logs_unconfirmed": 4, "logs_requeued": 0,
    }  # fmt: skip
    assert status(campaign) == S.PAUSED
    rows = DispatchLog.objects.filter(pk__in=in_flight)
    assert sorted(rows.values_list("status", flat=True)) == ["SENT", "SENT", "UNCONFIRMED", "UNCONFIRMED"]
    # What never arrived may be sent again only when the grace is over: here it began an hour ago.
    DispatchLog.objects.unconfirmed().update(unconfirmed_at=timezone.now() - timedelta(hours=1), verify_at=timezone.now())
    go(campaign)
    start()
    until(lambda: is_done(campaign) and not DispatchLog.objects.exclude(status="SENT").exists(), "completion")
    assert_everybody_once(sandbox, campaign)


def test_a_new_scheduler_frees_at_once_what_a_killed_one_of_this_host_held(sandbox, start):
    campaign = make_ready(sandbox, 3)
    sandbox.script({"kind": "timeout-after-accept", "seconds": 60})
    go(campaign)
    process = start()
    until(lambda: accepted(sandbox) == 3, "three messages")
    process.kill()
    start()
    until(lambda: not DispatchLog.objects.in_flight().exists(), "recovery")
    until(lambda: status(campaign) == S.PAUSED, "the pause")
    assert "a process died" in Campaign.objects.get().status_reason
    assert accepted(sandbox) == 3


def test_two_schedulers_share_four_sessions_and_double_nothing(sandbox, start):
    campaigns = [make_ready(sandbox, 40) for _ in range(4)]
    for campaign in campaigns:
        go(campaign)
    processes = [start(), start()]
    until(lambda: is_done(*campaigns), "completion")
    assert_everybody_once(sandbox, *campaigns)
    for process in processes:
        process.signal(signal.SIGTERM)
    assert [process.wait() for process in processes] == [0, 0]


def test_two_schedulers_on_one_number_keep_the_floor_over_campaigns_that_follow_each_other(sandbox, start):
    first = make_ready(sandbox, 1, channel="waha", rate=None)
    second = make_ready(sandbox, 1, session=first.session)
    second.recipients.update(address="12025550177@c.us")
    go(first)
    runs.advance(first.pk, timezone.now())
    make_lane(
        first.session, campaign=first, epoch=1, attempts_in_run=6, configured_from=timezone.now()
    )  # warm: it may use the shortest wait
    Campaign.objects.filter(pk=first.pk).update(min_interval=1, max_interval=1)
    Campaign.objects.filter(pk=second.pk).update(status=S.SCHEDULED, due_at=timezone.now(), due_seen_at=timezone.now())
    start()
    start()
    until(lambda: accepted(sandbox) == 2 or status(second) == S.PAUSED, "two messages", seconds=50)
    assert status(second) != S.PAUSED, Campaign.objects.get(pk=second.pk).status_reason
    times = [message["time"] for message in sandbox.messages()]
    assert 8 <= times[1] - times[0] <= 15
    assert set(received(sandbox).values()) == {1}
    until(lambda: is_done(first, second), "completion")
    assert_sum_rule(first, second)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_asked_to_stop_when_idle_it_ends_within_a_second(start, number):
    process = start()
    process.signal(number)
    began = time.monotonic()
    assert process.wait() == 0
    assert time.monotonic() - began < 1 + A_BUSY_MACHINE
    heart = Heartbeat.objects.get(pid=process.pid)
    assert heart.stopped_at is not None
    assert "Traceback" not in process.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_asked_to_stop_in_mid_call_it_finishes_and_settles_that_call_and_leaves_the_rest(sandbox, start, number):
    campaign = make_ready(sandbox, 5, rate=0.5)
    sandbox.script({"kind": "slow", "seconds": 1})
    go(campaign)
    process = start()
    until(lambda: accepted(sandbox), "the call")
    process.signal(number)
    assert process.wait() == 0
    assert accepted(sandbox) == 1
    assert statuses() == {"SENT": 1, "PENDING": 4}
    assert Heartbeat.objects.get().stopped_at is not None
    assert_sum_rule(campaign)
    code, answer, _log = manage("recover_stuck", "--json")
    assert (code, set(json.loads(answer).values())) == (0, {0})  # after a clean stop nothing is orphaned
    assert status(campaign) == S.RUNNING


def test_a_second_signal_leaves_at_once(sandbox, start):
    campaign = make_ready(sandbox, 1)
    sandbox.script({"kind": "slow", "seconds": 20})
    go(campaign)
    process = start()
    until(lambda: accepted(sandbox), "the call")
    process.signal(signal.SIGTERM)
    process.until_says("stopping")
    process.signal(signal.SIGTERM)
    began = time.monotonic()
    assert process.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - began < 1 + A_BUSY_MACHINE
    assert recovery.recover_stuck().logs_verified == 1
    assert DispatchLog.objects.get().status == "SENT"


def test_a_pause_takes_effect_at_the_next_message(sandbox, start):
    campaign = make_ready(sandbox, 200, rate=20)
    go(campaign)
    start()
    until(lambda: accepted(sandbox) >= 5, "some messages")
    transitions.pause(campaign.pk, reason="paused by ana")
    claimed = DispatchLog.objects.exclude(status="PENDING").count()
    until(lambda: not DispatchLog.objects.in_flight().exists(), "what was on its way")
    time.sleep(0.5)  # ten messages' worth
    assert accepted(sandbox) == claimed < 200
    assert DispatchLog.objects.exclude(status="PENDING").count() == claimed
    assert_sum_rule(campaign)


def test_every_connection_cut_by_the_database_costs_nothing(sandbox, start):
    campaign = make_ready(sandbox, 60, rate=30)
    go(campaign)
    process = start()
    for target in (5, 20, 35):
        until(lambda n=target: accepted(sandbox) >= n, f"{target} messages")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            assert cursor.fetchone()[0] >= 1
    until(lambda: is_done(campaign), "completion")
    assert_everybody_once(sandbox, campaign)
    assert process.runs
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.said


def test_a_database_that_is_away_for_a_while_costs_nothing(sandbox, start):
    """As over a restart: every connection is cut, and for a while there is no other. What was on its way is answered meanwhile."""
    campaign = make_ready(sandbox, 40, rate=30)
    go(campaign)
    process = start()
    until(lambda: accepted(sandbox) >= 8, "some messages")
    sandbox.script({"kind": "slow", "seconds": 0.5, "count": 2})
    with nobody_may_connect():
        process.until_says("database away")
        stopped_at = accepted(sandbox)
        time.sleep(1)
        assert accepted(sandbox) - stopped_at <= 4  # nothing leaves that could not be claimed
    until(lambda: is_done(campaign), "completion")
    assert_everybody_once(sandbox, campaign)
    process.until_says("database back")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.said


def test_a_database_that_stays_away_at_the_end_is_exit_code_1_and_the_unsaved_answers_are_listed(sandbox, monkeypatch, caplog):
    monkeypatch.setattr(loop, "LAST_SETTLE_TAKES_AT_MOST", timedelta(seconds=1))
    campaign = make_ready(sandbox, 1)
    sandbox.script({"kind": "slow", "seconds": 0.3})
    go(campaign)
    heart = loop.start_heart(Heartbeat.Kind.SCHEDULER)
    engine = Engine(owner=heart.pk, deadline=timedelta(seconds=1))
    until(lambda: run_pass(engine).claimed, "the claim")
    stop = StopFlag()
    stop.requested = True
    with nobody_may_connect():
        assert loop.Loop(heart=heart, engine=engine, stop=stop).run() == 1
    assert "this answer could not be saved" in caplog.text
    assert [answer.result.answer for answer in engine.unsettled] == ["ACCEPTED"]
    assert engine.settle() == set()  # it is still there for whoever can
    assert DispatchLog.objects.get().status == "SENT"
    assert_sum_rule(campaign)


@contextmanager
def nobody_may_connect() -> Iterator[None]:
    """To the test database; its connections are cut. Said from the database beside it, since nobody can shut the one he is in."""
    name = connection.settings_dict["NAME"]
    connection.close()
    with connection._nodb_cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    try:
        yield
    finally:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_once_does_what_is_due_and_ends(sandbox, start):
    campaign = make_ready(sandbox, 3, rate=0.5)
    go(campaign)
    process = start("--once")
    assert process.wait() == 0
    assert accepted(sandbox) == 1
    assert Heartbeat.objects.get().stopped_at is not None
    assert status(campaign) == S.RUNNING
    assert not DispatchLog.objects.in_flight().exists()


@pytest.mark.parametrize("interval", ["abc", "0", "-1", "nan", "99999"])
def test_an_interval_that_cannot_be_meant_is_wrong_usage(interval):
    code, answer, said = manage("run_scheduler", f"--interval={interval}")
    assert (code, answer) == (2, "")
    assert "--interval" in said

"""Each error code from the wire to the ledger: real engine, real WAHA client, real HTTP to the stand-in. The waits alone are ours."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from campaigns import transitions
from campaigns.models import Campaign
from dispatch.models import Attempt, DispatchLog, Lane
from dispatch.scheduler import run_until_idle
from sessions_app.models import Session
from sessions_app.sandbox import Sandbox
from tests.dispatch.conftest import START, make_ready
from tests.dispatch.invariants import assert_sum_rule
from tests.factories import make_session

pytestmark = pytest.mark.django_db
S = Campaign.Status
CALL_TAKES_AT_MOST = timedelta(seconds=0.4)


@pytest.fixture
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def campaign(db, sandbox) -> Campaign:
    """Three people on the sandbox channel, started."""
    config = {"base_url": sandbox.url, "session": "demo", "engine": "NOWEB"}
    campaign = make_ready(session=make_session(channel="sandbox", settings=config, checked_at=START))
    return transitions.start(campaign.pk, by="ana", now=START)


def accepted(sandbox: Sandbox) -> list[str]:
    """By address: a burst is on its way at once, and then nobody can say who arrives first."""
    return sorted(message["chatId"] for message in sandbox.messages())


def everybody(campaign: Campaign) -> list[str]:
    return sorted(campaign.recipients.values_list("address", flat=True))


def rows(campaign: Campaign) -> list[str]:
    return list(DispatchLog.objects.filter(campaign=campaign).order_by("pk").values_list("status", flat=True))


def first(campaign: Campaign) -> DispatchLog:
    return DispatchLog.objects.filter(campaign=campaign).earliest("pk")


def outcomes() -> list[str]:
    return list(Attempt.objects.order_by("pk").values_list("outcome", flat=True))


def until_nothing_moves(drive, forward: float = 0) -> None:
    drive.engine.deadline = CALL_TAKES_AT_MOST
    drive.forward(forward)
    drive.until_done()


def assert_paused(campaign: Campaign, words: str) -> None:
    campaign.refresh_from_db()
    assert campaign.status == S.PAUSED
    assert words in campaign.status_reason
    lane = Lane.objects.get()
    assert (lane.is_open, lane.trouble) == (False, "")
    assert_sum_rule(campaign)


def test_accepted(campaign, sandbox, drive):
    until_nothing_moves(drive)
    assert accepted(sandbox) == everybody(campaign)
    assert rows(campaign) == ["SENT"] * 3
    ids = {message["chatId"]: message["id"].split("_")[2] for message in sandbox.messages()}
    assert dict(DispatchLog.objects.values_list("address", "provider_message_id")) == ids
    assert Campaign.objects.get().status == S.COMPLETED
    assert outcomes() == []


@pytest.mark.parametrize(
    ("fault", "wait"),
    [("429", 5), ("500-rate-overlimit", 5), ({"kind": "429-retry-after", "retry_after": "90"}, 90)],
    ids=["429", "rate-overlimit", "Retry-After"],
)
def test_rate_limit_cools_down_and_the_same_message_is_next(campaign, sandbox, drive, fault, wait):
    sandbox.script(fault)
    drive.engine.deadline = CALL_TAKES_AT_MOST
    drive.once()
    assert accepted(sandbox) == []
    log, lane = first(campaign), Lane.objects.get()
    assert (log.status, log.error_code, log.attempt) == ("PENDING", "RATE_LIMIT", 1)
    assert lane.next_send_at == START + timedelta(seconds=wait)
    assert (lane.is_open, lane.consecutive_rate_limits, lane.consecutive_failures) == (True, 1, 0)
    assert Campaign.objects.get().status == S.RUNNING
    until_nothing_moves(drive)
    assert accepted(sandbox) == everybody(campaign)
    assert outcomes() == ["RATE_LIMIT", "ACCEPTED"]
    assert_sum_rule(campaign)


@pytest.mark.parametrize("fault", ["401", "403", "404", "422-session", "500-463"])
def test_disconnected_leaves_the_message_waiting_pauses_and_marks_the_session(campaign, sandbox, drive, fault):
    sandbox.script(fault)
    until_nothing_moves(drive)
    assert accepted(sandbox) == []
    assert rows(campaign) == ["PENDING"] * 3
    assert first(campaign).error_code == "DISCONNECTED"
    assert_paused(campaign, "paused: ")
    session = Session.objects.get()
    assert session.status == (Session.Status.RESTRICTED if fault == "500-463" else Session.Status.DISCONNECTED)
    assert session.status_detail in campaign.status_reason
    until_nothing_moves(drive, forward=3600)
    assert accepted(sandbox) == []
    drive.forward(3600)  # asked again, it is well
    Session.objects.update(checked_at=None)
    transitions.resume(campaign.pk, by="ana", now=drive.now)
    Session.objects.update(checked_at=drive.now)
    until_nothing_moves(drive)
    assert accepted(sandbox) == everybody(campaign)


@pytest.mark.parametrize("fault", ["400", "422-engine", "redirect"])
def test_misconfigured_leaves_the_message_waiting_and_pauses_but_the_session_is_well(campaign, sandbox, drive, fault):
    sandbox.script(fault)
    until_nothing_moves(drive)
    assert accepted(sandbox) == []
    assert rows(campaign) == ["PENDING"] * 3
    assert first(campaign).error_code == "MISCONFIGURED"
    assert_paused(campaign, "paused: ")
    assert Session.objects.get().status == Session.Status.CONNECTED
    transitions.resume(campaign.pk, by="ana", now=START)
    until_nothing_moves(drive, forward=60)
    assert accepted(sandbox) == everybody(campaign)
    assert outcomes() == ["MISCONFIGURED", "ACCEPTED"]


def test_invalid_recipient_fails_that_person_and_goes_on(campaign, sandbox, drive):
    sandbox.script("500-no-lid")
    until_nothing_moves(drive)
    assert accepted(sandbox) == everybody(campaign)[1:]
    assert rows(campaign) == ["FAILED", "SENT", "SENT"]
    assert first(campaign).error_code == "INVALID_RECIPIENT"
    assert Campaign.objects.get().status_reason == "completed: 2 sent, 1 failed"
    assert_sum_rule(campaign)


def test_fatal_fails_that_message_and_goes_on(campaign, sandbox, drive):
    campaign.steps.update(text='{{ greeting|default:" " }}')  # blank for whoever has none, which only the sending can know
    others = campaign.recipients.order_by("order")[1:]
    campaign.recipients.filter(pk__in=[person.pk for person in others]).update(metadata={"greeting": "Good day"})
    until_nothing_moves(drive)
    assert accepted(sandbox) == everybody(campaign)[1:]
    assert rows(campaign) == ["FAILED", "SENT", "SENT"]
    assert first(campaign).error_code == "FATAL"
    assert_sum_rule(campaign)


def test_transient_is_provably_not_accepted_and_five_in_a_row_pause(campaign, sandbox, drive):
    more = make_ready(people=8, session=make_session(channel="sandbox", settings=campaign.session.settings, checked_at=START))
    transitions.stop(campaign.pk, by="ana")
    transitions.start(more.pk, by="ana", now=START)
    sandbox.stop()  # nobody listens there any more: the connection is refused
    until_nothing_moves(drive)
    assert Counter(rows(more)) == {"FAILED": 5, "PENDING": 3}
    assert set(DispatchLog.objects.filter(status="FAILED").values_list("error_code", flat=True)) == {"TRANSIENT"}
    more.refresh_from_db()
    assert more.status == S.PAUSED
    assert "5 failures in a row" in more.status_reason
    assert "Connection refused" in more.status_reason
    assert accepted(sandbox) == []
    assert_sum_rule(more)


UNKNOWN: list[tuple[Any, bool]] = [
    ("500", False),
    ("502", False),
    ("503", False),
    ("504", False),
    ("html-200", False),
    ("drop-before-accept", False),
    ({"kind": "timeout-before-accept", "seconds": 5}, False),
    ("500-after-accept", True),
    ("drop-after-accept", True),
    ({"kind": "timeout-after-accept", "seconds": 5}, True),
    ({"kind": "slow", "seconds": 5}, True),
]


@pytest.mark.parametrize(("fault", "arrived"), UNKNOWN, ids=lambda value: value["kind"] if isinstance(value, dict) else str(value))
def test_unconfirmed_is_never_sent_again_before_the_provider_has_said_what_became_of_it(campaign, sandbox, drive, fault, arrived):
    sandbox.script(fault)
    sandbox.script({"kind": "500", "on": "lookup", "count": 2})  # it cannot be asked at first
    drive.engine.deadline = CALL_TAKES_AT_MOST
    drive.until_done()
    people = everybody(campaign)
    assert accepted(sandbox) == (people if arrived else people[1:])
    assert rows(campaign) == ["UNCONFIRMED", "SENT", "SENT"]
    log = first(campaign)
    assert (log.error_code, log.attempt) == ("UNCONFIRMED", 1)
    assert Campaign.objects.get().status_reason == "completed: 2 sent, 1 unconfirmed"
    assert Session.objects.get().status == Session.Status.CONNECTED
    assert_sum_rule(campaign)
    for _ in range(6):  # a minute, five minutes ... past the grace
        drive.to(max(DispatchLog.objects.get(pk=log.pk).verify_at or drive.now, drive.now))
        Session.objects.update(checked_at=drive.now)
        drive.until_done()
    assert rows(campaign) == ["SENT"] * 3
    assert accepted(sandbox) == people
    assert Campaign.objects.get().status == S.COMPLETED
    assert outcomes() == (["UNCONFIRMED", "VERIFIED_PRESENT"] if arrived else ["UNCONFIRMED", "VERIFIED_ABSENT", "ACCEPTED"])
    assert DispatchLog.objects.get(pk=log.pk).client_ref == log.client_ref
    assert_sum_rule(campaign)


def test_201_without_a_body_is_accepted_as_waha_was_seen_to_answer(campaign, sandbox, drive):
    sandbox.script("empty-201")
    until_nothing_moves(drive)
    assert accepted(sandbox) == everybody(campaign)
    assert rows(campaign) == ["SENT"] * 3


@pytest.mark.parametrize("channel", ["sandbox", "fake"])
def test_past_the_deadline_nothing_leaves_and_the_row_is_as_if_it_had_not_been_claimed(campaign, sandbox, drive, fake, channel):
    """On the fake channel it is the engine alone that looks; the clients of real channels look once more before the first byte."""
    transitions.stop(campaign.pk, by="ana")
    session = make_session(channel=channel, settings=campaign.session.settings, checked_at=START, daily_limit=3)
    late = transitions.start(make_ready(session=session).pk, by="ana", now=START)
    drive.engine.deadline = timedelta(0)
    run_until_idle(drive.engine, most_passes=5)
    drive.engine.wait(5)
    drive.engine.collect()
    drive.engine.settle()
    assert (accepted(sandbox), fake.calls) == ([], [])
    assert rows(late) == ["PENDING"] * 3
    assert set(outcomes()) == {"UNSENT"}
    lane = Lane.objects.get(session=session)
    assert (lane.day_count, lane.attempts_in_run, lane.in_flight) == (0, 0, 0)
    drive.engine.deadline = CALL_TAKES_AT_MOST * 5
    drive.until_done()
    assert rows(late) == ["SENT"] * 3
    assert_sum_rule(late)

"""The whole table: every status with every verb is legal, with its result, or refused with a sentence, and then nothing has changed."""

import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep
from campaigns.transitions import ALLOWED, BY_HAND, Refused, SessionBusy
from sessions_app.models import Session
from sessions_app.providers.base import SessionCheck, SessionState
from tests.factories import make_campaign, make_recipients, make_session, make_step
from tests.fakes import FakeProvider

pytestmark = pytest.mark.django_db
S = Campaign.Status
NOW = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(days=1)
NO = None

# verb -> how it is called with a campaign whose row is locked by the caller where the verb asks for that
VERBS: dict[str, Any] = {
    "schedule": lambda c: transitions.schedule(c.pk, by="ana", now=NOW),
    "start": lambda c: transitions.start(c.pk, by="ana", now=NOW),
    "resume": lambda c: transitions.resume(c.pk, by="ana", now=NOW),
    "begin": lambda c: transitions.begin(c.pk, now=NOW),
    "pause": lambda c: transitions.pause(c.pk, reason="paused by ana"),
    "miss": lambda c: transitions.miss(c.pk, now=NOW),
    "wait": lambda c: transitions.wait(c, until=LATER, reason="waits for step 2"),
    "complete": lambda c: transitions.complete(c, now=NOW),
    "requeue": lambda c: transitions.requeue(c, now=NOW, reason="a message came back"),
    "stop": lambda c: transitions.stop(c.pk, by="ana"),
    "move": lambda c: transitions.move(c.pk, session_id=make_session(channel="fake").pk, by="ana"),
}
# verb -> where it leads from DRAFT, SCHEDULED, RUNNING, PAUSED, COMPLETED, FAILED, in this order; NO is a refusal
TABLE: dict[str, list[Campaign.Status | None]] = {
    "schedule": [S.SCHEDULED, NO, NO, S.SCHEDULED, NO, NO],
    "start": [S.RUNNING, S.RUNNING, NO, S.RUNNING, NO, NO],
    "resume": [NO, NO, NO, S.RUNNING, NO, NO],
    "begin": [NO, S.RUNNING, NO, NO, NO, NO],
    "pause": [NO, S.PAUSED, S.PAUSED, NO, NO, NO],
    "miss": [NO, S.PAUSED, NO, NO, NO, NO],
    "wait": [NO, NO, S.SCHEDULED, NO, NO, NO],
    "complete": [NO, NO, S.COMPLETED, NO, NO, NO],
    "requeue": [NO, S.SCHEDULED, NO, NO, S.SCHEDULED, NO],
    "stop": [NO, S.FAILED, S.FAILED, S.FAILED, NO, NO],
    "move": [S.DRAFT, S.SCHEDULED, NO, S.PAUSED, S.COMPLETED, NO],
}
COLUMNS = [S.DRAFT, S.SCHEDULED, S.RUNNING, S.PAUSED, S.COMPLETED, S.FAILED]
REASONS = {
    "schedule": "scheduled by ana",
    "start": "started by ana",
    "resume": "resumed by ana",
    "begin": "started at its time",
    "pause": "paused by ana",
    "miss": "missed its start by 5 min; resume to send now",
    "wait": "waits for step 2",
    "complete": "completed: 0 sent",
    "requeue": "a message came back",
    "stop": "stopped by ana",
}
CASES = [(verb, origin, target) for verb, row in TABLE.items() for origin, target in zip(COLUMNS, row, strict=True)]


@pytest.fixture(autouse=True)
def fake(settings):
    settings.CHANNELS = {**settings.CHANNELS, "fake": "tests.fakes.FakeProvider"}
    FakeProvider.reset()
    yield FakeProvider
    FakeProvider.reset()


def make_ready(status: Campaign.Status = S.DRAFT, **fields: Any) -> Campaign:
    """With two steps, the first where the campaign's status has it, and everything a start asks for."""
    values = {"scheduled_at": LATER, "safe_hours": Campaign.SafeHours.OFF, "status_reason": "as it was", **fields}
    session = values.pop("session", None) or make_session(channel="fake", checked_at=NOW)
    if status == S.SCHEDULED:
        values["due_at"] = NOW - timedelta(minutes=5)
    campaign = make_campaign(session=session, status=status, **values)
    first = {S.RUNNING: "RUNNING", S.PAUSED: "PAUSED", S.COMPLETED: "COMPLETED", S.FAILED: "FAILED"}.get(status, "PENDING")
    make_step(campaign, status=first)
    make_step(campaign, delay_after_previous=timedelta(hours=1))
    make_recipients(2, campaign)
    return campaign


def facts(campaign: Campaign) -> tuple[Any, ...]:
    return (Campaign.objects.filter(pk=campaign.pk).values().get(), list(campaign.steps.order_by("order").values()))


def steps(campaign: Campaign) -> list[str]:
    return list(campaign.steps.order_by("order").values_list("status", flat=True))


def test_the_table_names_every_status_and_every_verb():
    assert set(COLUMNS) == set(Campaign.Status)
    assert set(TABLE) == set(VERBS) == set(ALLOWED) | {"move"}
    assert set(BY_HAND) <= set(TABLE)
    for verb, (origins, target) in ALLOWED.items():
        assert {origin for origin, result in zip(COLUMNS, TABLE[verb], strict=True) if result} == origins
        assert set(TABLE[verb]) - {NO} == {target}


@pytest.mark.parametrize(("verb", "origin", "target"), CASES, ids=lambda value: str(value or "refused"))
def test_every_status_with_every_verb(verb, origin, target):
    campaign = make_ready(origin)
    before = facts(campaign)
    if target is NO:
        with pytest.raises(Refused) as refusal:
            VERBS[verb](campaign)
        sentence = str(refusal.value)
        assert origin.label in sentence
        assert verb == "move" or ALLOWED[verb][1].label in sentence
        assert re.search(r"[.;!?]$|\.", sentence)
        assert campaign.name in sentence
        assert facts(campaign) == before
        return
    VERBS[verb](campaign)
    campaign = Campaign.objects.get(pk=campaign.pk)
    assert campaign.status == target
    assert campaign.status_reason == REASONS.get(verb, campaign.status_reason)
    assert campaign.epoch == before[0]["epoch"] + (target == S.RUNNING)


def test_what_each_verb_does_to_the_steps():
    campaign = make_ready()
    transitions.start(campaign.pk, by="ana", now=NOW)
    assert steps(campaign) == ["SCHEDULED", "PENDING"]
    assert campaign.steps.get(order=1).next_run_at == NOW
    transitions.begin_step(campaign.steps.get(order=1))
    transitions.pause(campaign.pk, reason="paused by ana")
    assert steps(campaign) == ["PAUSED", "PENDING"]
    transitions.resume(campaign.pk, by="ana", now=NOW)
    assert steps(campaign) == ["RUNNING", "PENDING"]
    assert transitions.finish_step(campaign.steps.get(order=1), scheduled_for=NOW, now=LATER) == []
    transitions.reach_next_step(Campaign.objects.get(pk=campaign.pk), LATER)
    assert steps(campaign) == ["COMPLETED", "SCHEDULED"]
    assert campaign.steps.get(order=2).next_run_at == LATER + timedelta(hours=1)
    transitions.stop(campaign.pk, by="ana")
    assert steps(campaign) == ["COMPLETED", "FAILED"]
    assert campaign.steps.get(order=2).next_run_at is None


def test_a_start_forgets_when_it_was_due_and_keeps_when_it_first_began():
    campaign = make_ready(S.SCHEDULED)
    transitions.note_due(campaign.pk, now=NOW, reason="waits for its turn")
    started = transitions.start(campaign.pk, by="ana", now=NOW)
    assert (started.due_at, started.due_seen_at, started.started_at) == (None, None, NOW)
    transitions.pause(campaign.pk, reason="paused by ana")
    assert transitions.resume(campaign.pk, by="ben", now=LATER - timedelta(days=1)).started_at == NOW


def test_waiting_is_due_at_its_time_and_may_be_missed_and_a_requeue_cannot():
    campaign = make_ready(S.RUNNING)
    waits = transitions.wait(campaign, until=LATER, reason="waits")
    assert (waits.due_at, waits.due_seen_at) == (LATER, None)
    again = transitions.requeue(make_ready(S.COMPLETED), now=NOW, reason="again")
    assert (again.due_at, again.due_seen_at) == (NOW, NOW)


# -- refusals of a start -------------------------------------------------------------------------------------------------------


def refused(campaign: Campaign, verb=transitions.start, *, words: str, kind: type[Refused] = Refused) -> None:
    before = facts(campaign)
    with pytest.raises(kind, match=words):
        verb(campaign.pk, by="ana", now=NOW)
    assert facts(campaign) == before


@pytest.mark.parametrize(("verb", "origin"), [(transitions.start, S.DRAFT), (transitions.resume, S.PAUSED)], ids=["start", "resume"])
def test_what_cannot_go_out_is_refused(verb, origin):
    campaign = make_ready(origin)
    campaign.recipients.all().delete()
    refused(campaign, verb, words="no recipients")
    make_recipients(1, campaign)
    campaign.steps.all().delete()
    refused(campaign, verb, words="no steps")


def test_every_problem_is_said_at_once():
    campaign = make_ready()
    campaign.recipients.all().delete()
    campaign.steps.all().delete()
    refused(campaign, words="no recipients.*no steps|no steps.*no recipients")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scheduled_at": None}, "no start time"),
        ({"scheduled_at": NOW}, "in the past"),
        ({"scheduled_at": NOW - timedelta(days=1)}, "in the past"),
    ],
    ids=str,
)
def test_a_schedule_needs_a_time_that_is_still_to_come(changes, words):
    refused(make_ready(**changes), transitions.schedule, words=words)


def test_a_schedule_needs_what_a_start_needs_but_not_a_session_that_is_connected_now():
    campaign = make_ready()
    Session.objects.update(status=Session.Status.DISCONNECTED)
    assert transitions.schedule(campaign.pk, by="ana", now=NOW).due_at == LATER
    other = make_ready()
    other.recipients.all().delete()
    refused(other, transitions.schedule, words="no recipients")


@pytest.mark.parametrize("status", [status for status in Session.Status if status != Session.Status.CONNECTED])
def test_a_session_that_is_not_connected_is_named_with_its_state_and_what_to_do(status):
    campaign = make_ready()
    Session.objects.update(status=status, status_detail="scan the QR code")
    with pytest.raises(Refused) as refusal:
        transitions.start(campaign.pk, by="ana", now=NOW)
    for words in (campaign.session.name, status.label.lower(), "scan the QR code", "Connect it"):
        assert words in str(refusal.value)
    with pytest.raises(Refused, match="Connect it"):
        transitions.begin(make_ready(S.SCHEDULED, session=campaign.session).pk, now=NOW)


@pytest.mark.parametrize("age", [None, timedelta(seconds=60), timedelta(days=1)], ids=str)
def test_a_stale_session_is_asked_before_the_start(fake, age):
    campaign = make_ready()
    Session.objects.update(checked_at=NOW - age if age else None, status=Session.Status.DISCONNECTED)
    assert transitions.start(campaign.pk, by="ana", now=NOW).status == S.RUNNING
    assert fake.checks == ["check"]
    assert Session.objects.get().status == Session.Status.CONNECTED


def test_what_the_provider_says_keeps_it_from_starting(fake):
    campaign = make_ready()
    Session.objects.update(checked_at=None)
    fake.state = SessionCheck(SessionState.NEEDS_PAIRING, "scan the QR code")
    refused(campaign, words="scan the QR code")
    assert Session.objects.get().status == Session.Status.NEEDS_PAIRING


def test_an_answer_under_a_minute_old_will_do(fake):
    campaign = make_ready()
    Session.objects.update(checked_at=NOW - timedelta(seconds=59))
    transitions.start(campaign.pk, by="ana", now=NOW)
    assert fake.checks == []


def test_nobody_is_asked_about_a_campaign_that_cannot_start_anyway(fake):
    running = make_ready(S.RUNNING)
    Session.objects.update(checked_at=None)
    refused(make_ready(session=running.session), words="busy", kind=SessionBusy)
    refused(make_ready(S.COMPLETED), words="Completed")
    assert fake.checks == []


def test_a_busy_session_is_refused_by_the_name_of_what_runs_on_it():
    running = make_ready(S.RUNNING, name="Spring letter")
    campaign = make_ready(session=running.session)
    refused(campaign, words='busy with "Spring letter"', kind=SessionBusy)
    scheduled = make_ready(S.SCHEDULED, session=running.session)
    with pytest.raises(SessionBusy, match="Spring letter"):
        transitions.begin(scheduled.pk, now=NOW)
    transitions.pause(running.pk, reason="paused by ana")
    assert transitions.start(campaign.pk, by="ana", now=NOW).status == S.RUNNING


@pytest.mark.parametrize("verb", [verb for verb in TABLE if verb not in {"wait", "complete", "requeue"}])
def test_a_campaign_that_is_not_there(verb):
    gone = make_ready()
    pk = gone.pk
    Campaign.objects.all().delete()
    gone.pk = pk
    with pytest.raises(Refused, match=f"no campaign {pk}"):
        VERBS[verb](gone)


def test_a_move_keeps_to_the_channel_and_says_where_it_came_from():
    campaign = make_ready(S.PAUSED)
    with pytest.raises(Refused, match="no session 999999"):
        transitions.move(campaign.pk, session_id=999999, by="ana")
    with pytest.raises(Refused, match="same channel"):
        transitions.move(campaign.pk, session_id=make_session(channel="mock").pk, by="ana")
    target = make_session(channel="fake")
    moved = transitions.move(campaign.pk, session_id=target.pk, by="ana")
    assert moved.session == target
    assert moved.status_reason == f"moved from {campaign.session} to {target} by ana; as it was"


def test_noting_that_it_is_due_leaves_every_other_status_alone():
    for status in S:
        campaign = make_ready(status)
        transitions.note_due(campaign.pk, now=NOW, reason="waits for its turn")
        campaign.refresh_from_db()
        assert (campaign.due_seen_at is not None) == (status == S.SCHEDULED)
    first_seen = Campaign.objects.get(status=S.SCHEDULED)
    transitions.note_due(first_seen.pk, now=LATER, reason="waits for its turn")
    assert Campaign.objects.get(pk=first_seen.pk).due_seen_at == NOW


def test_a_step_status_without_a_place_in_the_verbs_is_noticed():
    assert set(CampaignStep.Status) == {"PENDING", "SCHEDULED", "RUNNING", "PAUSED", "COMPLETED", "FAILED"}


@pytest.mark.django_db(transaction=True)
def test_ten_at_once_start_two_campaigns_on_one_session_and_one_wins():
    for _ in range(3):
        session = make_session(channel="fake", checked_at=NOW)
        rivals = [make_ready(session=session, name=f"rival {n}") for n in range(2)]
        barrier = threading.Barrier(10)
        outcomes: list[Any] = []

        def start(campaign_id, barrier=barrier, outcomes=outcomes):
            try:
                connection.ensure_connection()
                barrier.wait(timeout=30)
                transitions.start(campaign_id, by="ana", now=NOW)
                outcomes.append("won")
            except Refused as refusal:
                outcomes.append(refusal)
            finally:
                connection.close()

        threads = [threading.Thread(target=start, args=(rivals[n % 2].pk,)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 10
        assert outcomes.count("won") == 1
        winner = Campaign.objects.running().get(session=session)
        busy = [outcome for outcome in outcomes if isinstance(outcome, SessionBusy)]
        assert len(busy) == 5  # everybody who wanted the other one
        assert all(winner.name in str(outcome) for outcome in busy)
        assert winner.epoch == 1

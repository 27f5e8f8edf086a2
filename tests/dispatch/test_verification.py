"""A message whose outcome nobody knows leaves that state by evidence or by a person, never by guessing."""

from datetime import timedelta

import pytest

from campaigns import transitions
from campaigns.models import Campaign
from campaigns.transitions import Refused
from dispatch import transitions as log_transitions
from dispatch.models import Attempt, DispatchLog, Run
from dispatch.verification import VerifyPolicy
from sessions_app.providers.base import ErrorCode, Presence, Verification
from tests.dispatch.conftest import START, make_ready, statuses
from tests.dispatch.invariants import assert_sum_rule
from tests.fakes import FakeProvider, refused

pytestmark = pytest.mark.django_db
S = Campaign.Status
DOUBT = refused(ErrorCode.UNCONFIRMED, "no answer in time")
PRESENT = Verification(Presence.PRESENT, "found-1")
ABSENT = Verification(Presence.ABSENT)
UNKNOWN = Verification(Presence.UNKNOWN)
GRACE = timedelta(seconds=600)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Every question to the fake, in order; the answer is FakeProvider.presence."""
    questions: list[str] = []

    def verify(self, sent, deadline):
        questions.append(sent.message.text)
        if isinstance(FakeProvider.presence, Exception):
            raise FakeProvider.presence
        return FakeProvider.presence

    monkeypatch.setattr(FakeProvider, "verify", verify)
    return questions


@pytest.fixture
def doubtful(campaign, drive) -> DispatchLog:
    """The first of three is in doubt, nothing is known yet, and the clock stands where that happened."""
    FakeProvider.presence = UNKNOWN
    FakeProvider.answers(DOUBT)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.once()
    log = DispatchLog.objects.earliest("pk")
    assert (log.status, log.error_code, log.unconfirmed_at) == ("UNCONFIRMED", "UNCONFIRMED", START)
    return log


def status_of(log: DispatchLog) -> str:
    return DispatchLog.objects.values_list("status", flat=True).get(pk=log.pk)


def only_ask(drive, moment) -> None:
    """The clock goes to that moment and only verification does its work."""
    drive.to(moment)
    drive.engine.ask_about_unconfirmed()
    drive.engine.wait(5)
    drive.engine.collect()


def test_it_is_asked_about_with_longer_and_longer_pauses_and_then_no_more(doubtful, drive, asked):
    moments: list[timedelta] = []
    previous = START
    while (due := DispatchLog.objects.get(pk=doubtful.pk).verify_at) is not None:
        only_ask(drive, due - timedelta(milliseconds=1))
        assert len(asked) == len(moments)
        only_ask(drive, due)
        moments.append(due - previous)
        previous = due
        assert len(asked) == len(moments)
    assert moments == list(VerifyPolicy().backoff)
    assert DispatchLog.objects.get(pk=doubtful.pk).verifications == len(moments) == 7
    assert status_of(doubtful) == "UNCONFIRMED"
    assert set(asked) == {FakeProvider.texts()[0]}  # about the very bytes that were sent


def test_present_is_believed_at_any_time(doubtful, drive, campaign):
    FakeProvider.presence = PRESENT
    only_ask(drive, START + timedelta(seconds=15))
    log = DispatchLog.objects.get(pk=doubtful.pk)
    assert (log.status, log.provider_message_id, log.sent_at, log.error_code) == ("SENT", "found-1", log.claimed_at, "")
    assert (log.verify_at, log.unconfirmed_at) == (None, None)
    assert Attempt.objects.filter(log=log, outcome="VERIFIED_PRESENT").count() == 1
    assert_sum_rule(campaign)


@pytest.mark.parametrize(("after", "proof", "status"), [
    (GRACE - timedelta(milliseconds=1), True, "UNCONFIRMED"),
    (GRACE, True, "PENDING"),
    (GRACE, False, "UNCONFIRMED"),
    (30 * GRACE, False, "UNCONFIRMED"),
])  # fmt: skip
def test_absent_is_believed_past_the_grace_and_only_where_absence_is_proof(doubtful, drive, campaign, monkeypatch, after, proof, status):
    monkeypatch.setattr(FakeProvider, "absence_is_proof", proof)
    FakeProvider.presence = ABSENT
    only_ask(drive, START + after)
    log = DispatchLog.objects.get(pk=doubtful.pk)
    assert log.status == status
    assert (log.client_ref, log.attempt) == (doubtful.client_ref, 1)
    assert_sum_rule(campaign)


def test_what_never_arrived_is_sent_again_by_a_campaign_that_was_completed_already(doubtful, drive, campaign):
    while Campaign.objects.get().status != S.COMPLETED:
        drive.once()
        drive.to(drive.next_moment() or drive.now)
    assert Campaign.objects.get().status_reason == "completed: 2 sent, 1 unconfirmed"
    FakeProvider.presence = ABSENT
    only_ask(drive, START + timedelta(hours=1))
    campaign.refresh_from_db()
    assert (campaign.status, campaign.due_at) == (S.SCHEDULED, drive.now)
    assert Run.objects.get().status == Run.Status.RUNNING
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 3
    assert Campaign.objects.get().status_reason == "completed: 3 sent"
    calls = [call for call in FakeProvider.calls if call.address == doubtful.address]
    assert len(calls) == 2
    assert len({(call.text, call.client_ref) for call in calls}) == 1  # the same bytes under the same reference
    assert_sum_rule(campaign)


def test_a_provider_that_raises_proves_nothing_and_costs_nothing_else(doubtful, drive, campaign, asked):
    FakeProvider.presence = ValueError("a bug")
    only_ask(drive, START + timedelta(seconds=15))
    assert len(asked) == 1
    assert status_of(doubtful) == "UNCONFIRMED"
    drive.until_done()
    assert sorted(statuses(campaign)) == ["SENT", "SENT", "UNCONFIRMED"]


def test_a_provider_that_cannot_be_asked_leaves_it_to_a_person(doubtful, drive, asked, monkeypatch):
    monkeypatch.setattr(FakeProvider, "can_verify", False)
    only_ask(drive, START + timedelta(seconds=15))
    assert asked == []
    log = DispatchLog.objects.get(pk=doubtful.pk)
    assert (log.status, log.verify_at) == ("UNCONFIRMED", None)


def test_an_answer_about_an_attempt_that_is_over_is_not_believed(doubtful, drive, campaign):
    log_transitions.send_again(doubtful.pk, by="ana", now=drive.now)
    assert not log_transitions.verified_present(doubtful.pk, attempt=1, message_id="x")
    assert not log_transitions.verified_absent(doubtful.pk, attempt=1, now=drive.now)
    assert status_of(doubtful) == "PENDING"
    FakeProvider.answers(DOUBT)
    drive.forward(100)
    drive.once()
    log = DispatchLog.objects.get(pk=doubtful.pk)
    assert (log.status, log.attempt) == ("UNCONFIRMED", 2)
    assert not log_transitions.verified_present(doubtful.pk, attempt=1, message_id="x")
    assert not log_transitions.verified_absent(doubtful.pk, attempt=1, now=drive.now)
    assert status_of(doubtful) == "UNCONFIRMED"
    assert_sum_rule(campaign)


# -- by hand -------------------------------------------------------------------------------------------------------------------

DECISIONS = {"SENT": log_transitions.mark_sent, "PENDING": log_transitions.send_again, "FAILED": log_transitions.give_up}


@pytest.mark.parametrize("target", DECISIONS)
def test_an_operator_decides_and_is_written_down(doubtful, campaign, target):
    DECISIONS[target](doubtful.pk, by="ana")
    log = DispatchLog.objects.get(pk=doubtful.pk)
    assert (log.status, log.decided_by) == (target, "ana")
    assert "ana" in log.reason
    assert (log.verify_at, log.unconfirmed_at) == (None, None)
    assert_sum_rule(campaign)


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
@pytest.mark.parametrize("meanwhile", ["PENDING", "SENDING", "SENT", "FAILED", "SKIPPED"])
def test_what_was_decided_meanwhile_is_left_as_it_is(doubtful, campaign, decide, meanwhile):
    DispatchLog.objects.filter(pk=doubtful.pk).update(status=meanwhile)
    before = list(DispatchLog.objects.values()), list(Run.objects.values()), list(Campaign.objects.values())
    with pytest.raises(Refused) as refusal:
        decide(doubtful.pk, by="ben")
    assert meanwhile.capitalize() in str(refusal.value)
    assert "Unconfirmed" in str(refusal.value)
    assert (list(DispatchLog.objects.values()), list(Run.objects.values()), list(Campaign.objects.values())) == before
    DispatchLog.objects.filter(pk=doubtful.pk).update(status="UNCONFIRMED")  # as it really was: the doctor looks at the end


def test_sent_again_by_hand_it_leaves_with_the_next_turn(doubtful, drive, campaign):
    log_transitions.send_again(doubtful.pk, by="ana", now=drive.now)
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 3
    assert len(FakeProvider.calls) == 4
    assert DispatchLog.objects.get(pk=doubtful.pk).decided_by == "ana"
    assert_sum_rule(campaign)


def test_sent_again_in_a_campaign_that_was_completed_it_takes_its_turn(doubtful, drive, campaign):
    while Campaign.objects.get().status != S.COMPLETED:
        drive.once()
        drive.to(drive.next_moment() or drive.now)
    busy = make_ready(people=2, session=campaign.session)
    transitions.start(busy.pk, by="ana", now=drive.now)
    log_transitions.send_again(doubtful.pk, by="ana", now=drive.now)
    drive.once()
    assert Campaign.objects.get(pk=campaign.pk).status == S.SCHEDULED
    drive.until_done()
    assert {row.status for row in Campaign.objects.all()} == {S.COMPLETED}
    assert statuses(campaign) == ["SENT"] * 3
    assert_sum_rule(campaign, busy)


@pytest.mark.parametrize(("target", "ends_as"), [("SENT", "SENT"), ("PENDING", "SKIPPED"), ("FAILED", "FAILED")])
def test_decisions_in_a_campaign_that_was_stopped(doubtful, drive, campaign, target, ends_as):
    transitions.stop(campaign.pk, by="ana")
    drive.once()
    DECISIONS[target](doubtful.pk, by="ben")
    drive.forward(3600)
    drive.once()
    assert statuses(campaign) == [ends_as, "SKIPPED", "SKIPPED"]
    assert len(FakeProvider.calls) == 1
    assert Run.objects.get().status == Run.Status.STOPPED
    assert Campaign.objects.get().status_reason == "stopped by ana"
    assert_sum_rule(campaign)


def test_sent_again_in_a_campaign_that_is_paused_it_waits_for_the_resume(doubtful, drive, campaign):
    transitions.pause(campaign.pk, reason="paused by ana")
    log_transitions.send_again(doubtful.pk, by="ana", now=drive.now)
    drive.forward(3600)
    drive.once()
    assert len(FakeProvider.calls) == 1
    transitions.resume(campaign.pk, by="ana", now=drive.now)
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 3


def test_a_message_that_is_not_there():
    with pytest.raises(Refused, match="no message 999999"):
        log_transitions.mark_sent(999999, by="ana")

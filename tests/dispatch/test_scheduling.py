"""What is due becomes RUNNING in its turn, what nobody saw in time is never sent late unasked, what recurs keeps its own wall clock."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep
from campaigns.transitions import Refused
from dispatch import transitions as log_transitions
from dispatch.models import DispatchLog, Run
from sessions_app.models import Session
from sessions_app.providers.base import ErrorCode, SessionCheck, SessionState
from tests.dispatch.conftest import START, make_ready, statuses
from tests.factories import make_step
from tests.fakes import FakeProvider, refused

pytestmark = pytest.mark.django_db
S = Campaign.Status
NINE = datetime(2026, 6, 11, 9, 0, tzinfo=UTC)


def scheduled(at: datetime = NINE, **changes) -> Campaign:
    campaign = make_ready(scheduled_at=at, **changes)
    return transitions.schedule(campaign.pk, by="ana", now=START)


def test_a_scheduled_campaign_starts_at_its_time_and_not_before(fake, drive):
    campaign = scheduled()
    drive.to(NINE - timedelta(seconds=1))
    drive.once()
    assert FakeProvider.calls == []
    drive.until_done()
    assert drive.sent_at[0] == NINE
    assert Campaign.objects.get(pk=campaign.pk).status == S.COMPLETED


def test_the_provider_is_asked_before_a_scheduled_start(fake, drive):
    scheduled()
    drive.to(NINE)
    drive.once()
    assert len(FakeProvider.checks) == 1


def test_due_but_not_connected_is_paused_with_the_reason_and_not_tried_at_each_tick(fake, drive):
    campaign = scheduled()
    FakeProvider.state = SessionCheck(SessionState.NEEDS_PAIRING, "scan the QR code")
    drive.to(NINE)
    for _ in range(5):
        drive.once()
        drive.forward(1)
    campaign.refresh_from_db()
    assert campaign.status == S.PAUSED
    assert "scan the QR code" in campaign.status_reason
    assert len(FakeProvider.checks) == 1
    assert FakeProvider.calls == []


@pytest.mark.parametrize("hours", [1, -1])
def test_a_scheduled_start_waits_for_no_end_of_a_restriction_that_the_gateway_does_not_know(fake, drive, hours):
    """Asked, it says that all is well, as it did before the account was refused."""
    campaign = scheduled()
    Session.objects.update(status="RESTRICTED", status_detail="463", restricted_until=timezone.now() + timedelta(hours=hours))
    drive.to(NINE)
    drive.once()
    campaign.refresh_from_db()
    if hours > 0:
        assert (campaign.status, FakeProvider.calls) == (S.PAUSED, [])
        assert "463" in campaign.status_reason
        assert Session.objects.get().status == "RESTRICTED"
    else:
        assert (campaign.status, Session.objects.get().status) == (S.RUNNING, "CONNECTED")


@pytest.mark.parametrize(("late", "missed"), [(119, False), (121, True), (3600 * 24 * 3, True)])
def test_nobody_saw_it_within_the_grace(fake, drive, late, missed):
    campaign = scheduled()
    drive.to(NINE + timedelta(seconds=late))
    drive.once()
    campaign.refresh_from_db()
    assert campaign.status == (S.PAUSED if missed else S.RUNNING)
    assert len(FakeProvider.calls) == (0 if missed else 1)
    if missed:
        assert campaign.status_reason.startswith("missed its start by ")
        assert campaign.status_reason.endswith("; resume to send now")
        transitions.resume(campaign.pk, by="ana", now=drive.now)
        drive.until_done()
        assert statuses(campaign) == ["SENT"] * 3


def test_a_campaign_may_have_a_grace_of_its_own(fake, drive):
    campaign = scheduled(grace_seconds=3600)
    drive.to(NINE + timedelta(minutes=59))
    drive.once()
    assert Campaign.objects.get(pk=campaign.pk).status == S.RUNNING


def test_a_busy_session_makes_it_wait_its_turn_and_it_is_not_missed(fake, drive):
    first = make_ready(people=400, min_interval=20, max_interval=25)
    transitions.start(first.pk, by="ana", now=NINE - timedelta(seconds=30))
    second = make_ready(people=1, session=first.session, scheduled_at=NINE)
    transitions.schedule(second.pk, by="ana", now=START)
    drive.to(NINE)
    drive.once()
    second.refresh_from_db()
    assert second.status == S.SCHEDULED
    assert "waits for its turn" in second.status_reason
    drive.forward(timedelta(hours=1))
    drive.once()
    assert Campaign.objects.get(pk=second.pk).status == S.SCHEDULED
    transitions.stop(first.pk, by="ana")
    drive.until_done()
    assert Campaign.objects.get(pk=second.pk).status == S.COMPLETED


def test_waiting_campaigns_take_turns_by_their_time_and_starve_nobody_elsewhere(fake, drive):
    busy = make_ready(people=100)
    transitions.start(busy.pk, by="ana", now=START)
    waiting = [
        transitions.schedule(make_ready(people=1, session=busy.session, scheduled_at=NINE + timedelta(seconds=n)).pk, by="ana", now=START)
        for n in range(7, 0, -1)
    ]
    free = scheduled(at=NINE + timedelta(seconds=30), people=1)
    drive.to(NINE + timedelta(seconds=31))
    drive.once()
    assert Campaign.objects.get(pk=free.pk).status == S.COMPLETED
    transitions.stop(busy.pk, by="ana")
    drive.until_done()
    order = Campaign.objects.filter(pk__in=[campaign.pk for campaign in waiting]).order_by("started_at")
    assert [campaign.pk for campaign in order] == [campaign.pk for campaign in reversed(waiting)]


def test_a_campaign_that_cannot_go_out_at_its_time_is_paused_with_the_reason(fake, drive):
    campaign = scheduled()
    campaign.recipients.all().delete()
    drive.to(NINE)
    drive.once()
    campaign.refresh_from_db()
    assert campaign.status == S.PAUSED
    assert campaign.status_reason.startswith("could not start: ")


# -- recurrence ----------------------------------------------------------------------------------------------------------------


def recurring(kind: str = "daily", *, zone: str = "America/New_York", at: datetime, people: int = 1, **step) -> Campaign:
    campaign = make_ready(people=people, time_zone=zone, grace_seconds=86400 * 60)
    campaign.steps.update(scheduled_at=at, recurrence_type=kind, **step)
    transitions.start(campaign.pk, by="ana", now=at)
    return campaign


def run_times() -> list[datetime]:
    return list(Run.objects.exclude(status=Run.Status.SKIPPED).order_by("number").values_list("scheduled_for", flat=True))


def test_nine_o_clock_stays_nine_o_clock_across_a_clock_change(fake, drive):
    at = datetime(2026, 10, 30, 13, 0, tzinfo=UTC)  # 09:00 in New York, summer time until 1 November
    drive.to(at)
    recurring(at=at, recurrence_count=4)
    drive.until_done()
    assert run_times() == [at, at + timedelta(days=1), datetime(2026, 11, 1, 14, 0, tzinfo=UTC), datetime(2026, 11, 2, 14, 0, tzinfo=UTC)]
    assert Campaign.objects.get().status == S.COMPLETED


def test_a_recurrence_ends_with_its_date(fake, drive):
    at = datetime(2026, 6, 10, 13, 0, tzinfo=UTC)
    drive.to(at)
    recurring(at=at, recurrence_until=date(2026, 6, 12))
    drive.until_done()
    assert [moment.day for moment in run_times()] == [10, 11, 12]


def test_without_a_time_of_its_own_it_counts_from_the_moment_it_was_done(campaign, drive):
    campaign.steps.update(recurrence_type="every_3d", recurrence_count=2)
    Campaign.objects.update(grace_seconds=86400)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.until_done()
    first, second = Run.objects.order_by("number")
    assert second.scheduled_for == first.completed_at + timedelta(days=3)


def test_occurrences_that_went_by_are_kept_as_passed_over_and_not_caught_up(fake, drive):
    at = datetime(2026, 6, 10, 13, 0, tzinfo=UTC)
    drive.to(at)
    campaign = recurring(at=at, people=2, recurrence_count=3)
    drive.once()
    transitions.pause(campaign.pk, reason="paused by ana")
    drive.to(at + timedelta(days=3, hours=1))
    transitions.resume(campaign.pk, by="ana", now=drive.now)
    drive.until_done()
    passed = Run.objects.filter(status=Run.Status.SKIPPED).order_by("scheduled_for")
    assert [run.scheduled_for.day for run in passed] == [11, 12, 13]
    assert "passed over" in passed[0].reason
    assert [moment.day for moment in run_times()] == [10, 14, 15]
    assert DispatchLog.objects.count() == 6


def test_a_recurring_step_starts_its_successor_after_its_first_run_only(campaign, drive):
    campaign.steps.update(recurrence_type="daily", recurrence_count=3)
    CampaignStep.objects.create(campaign=campaign, order=2, text="Once, {{ name }}")
    Campaign.objects.update(grace_seconds=86400)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.until_done()
    assert [text.split()[0] for text in FakeProvider.texts()] == ["Hello"] * 3 + ["Once,"] * 3 + ["Hello"] * 6


def test_a_stopped_campaign_does_not_come_back_when_its_next_time_comes(fake, drive):
    at = datetime(2026, 6, 10, 13, 0, tzinfo=UTC)
    drive.to(at)
    campaign = recurring(at=at)
    drive.once()
    drive.once()
    assert Campaign.objects.get().status == S.SCHEDULED
    transitions.stop(campaign.pk, by="ana")
    drive.to(at + timedelta(days=2))
    drive.until_done()
    assert len(FakeProvider.calls) == 1
    assert Campaign.objects.get().status == S.FAILED


def test_a_paused_campaign_does_not_run_its_next_occurrence(fake, drive):
    at = datetime(2026, 6, 10, 13, 0, tzinfo=UTC)
    drive.to(at)
    campaign = recurring(at=at)
    drive.once()
    drive.once()
    transitions.pause(campaign.pk, reason="paused by ana")
    drive.to(at + timedelta(days=2))
    drive.until_done()
    assert len(FakeProvider.calls) == 1


# -- moving --------------------------------------------------------------------------------------------------------------------


def test_a_campaign_that_does_not_run_can_move_to_another_session_of_its_channel(fake, drive):
    campaign, other = make_ready(people=3), make_ready(people=1)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.once()
    with pytest.raises(Refused, match="Pause it first"):
        transitions.move(campaign.pk, session_id=other.session_id, by="ana")
    transitions.pause(campaign.pk, reason="paused by ana")
    transitions.move(campaign.pk, session_id=other.session_id, by="ana")
    transitions.resume(campaign.pk, by="ana", now=drive.now)
    drive.until_done()
    used = DispatchLog.objects.filter(campaign=campaign).order_by("pk").values_list("session_id", flat=True)
    assert list(used) == [campaign.session_id, other.session_id, other.session_id]
    metered = make_ready(channel="fake_metered").session
    transitions_refused = pytest.raises(Refused, match="same channel")
    with transitions_refused:
        transitions.move(other.pk, session_id=metered.pk, by="ana")


def test_a_session_with_campaigns_cannot_be_deleted(campaign):
    from django.db.models import ProtectedError

    with pytest.raises(ProtectedError):
        Session.objects.all().delete()


def test_the_time_of_a_scheduled_campaign_changes_by_pausing_it_and_scheduling_it_anew(fake, drive):
    campaign = scheduled()
    transitions.pause(campaign.pk, reason="paused by ana")
    Campaign.objects.filter(pk=campaign.pk).update(scheduled_at=NINE + timedelta(days=1))
    transitions.schedule(campaign.pk, by="ana", now=START)
    drive.to(NINE)
    drive.once()
    assert FakeProvider.calls == []
    drive.until_done()
    assert drive.sent_at[0] == NINE + timedelta(days=1)


def test_a_campaign_paused_in_the_middle_can_be_given_a_time_to_go_on(fake, drive):
    campaign = make_ready(people=3)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.once()
    transitions.pause(campaign.pk, reason="paused by ana")
    Campaign.objects.filter(pk=campaign.pk).update(scheduled_at=NINE)
    transitions.schedule(campaign.pk, by="ana", now=START)
    drive.until_done()
    assert drive.sent_at[1] == NINE
    assert statuses(campaign) == ["SENT"] * 3


def test_hours_that_only_warn_are_told_in_the_log_and_do_not_stop(fake, drive, caplog):
    campaign = make_ready(people=2, safe_hours=Campaign.SafeHours.WARN, safe_from="13:00", safe_until="14:00")
    transitions.start(campaign.pk, by="ana", now=START)
    drive.until_done()
    assert statuses(campaign) == ["SENT", "SENT"]
    assert drive.sent_at[0] == START
    assert [record.message for record in caplog.records].count("sending outside the safe hours") == 1


def test_a_message_to_be_sent_again_does_not_wait_for_the_next_step(campaign, drive):
    make_step(campaign, order=2, delay_after_previous=timedelta(days=7))
    FakeProvider.answers(refused(ErrorCode.UNCONFIRMED))
    transitions.start(campaign.pk, by="ana", now=START)
    while Campaign.objects.get().status == S.RUNNING:
        drive.once()
        drive.to(drive.next_moment() or drive.now)
    drive.to(START + timedelta(hours=1))
    log_transitions.send_again(DispatchLog.objects.unconfirmed().get().pk, by="ana", now=drive.now)
    drive.once()
    assert len(FakeProvider.calls) == 4
    drive.once()
    campaign.refresh_from_db()
    assert campaign.status == S.SCHEDULED
    assert campaign.due_at > START + timedelta(days=6)


def test_a_message_to_be_sent_again_does_not_start_what_a_person_gave_a_later_time(campaign, drive):
    FakeProvider.answers(refused(ErrorCode.UNCONFIRMED))
    transitions.start(campaign.pk, by="ana", now=START)
    drive.once()
    transitions.pause(campaign.pk, reason="paused by ana")
    Campaign.objects.update(scheduled_at=NINE)
    transitions.schedule(campaign.pk, by="ana", now=START)
    log_transitions.send_again(DispatchLog.objects.unconfirmed().get().pk, by="ana", now=drive.now)
    drive.forward(timedelta(hours=1))
    drive.once()
    assert len(FakeProvider.calls) == 1
    drive.until_done()
    assert drive.sent_at[1] == NINE
    assert statuses(campaign) == ["SENT"] * 3


@pytest.mark.parametrize(("decide", "summary"), [("mark_sent", "completed: 3 sent"), ("give_up", "completed: 2 sent, 1 failed")])
def test_a_completed_campaign_says_what_was_decided_later(campaign, drive, decide, summary):
    FakeProvider.answers(refused(ErrorCode.UNCONFIRMED))
    transitions.start(campaign.pk, by="ana", now=START)
    while Campaign.objects.get().status == S.RUNNING:
        drive.once()
        drive.to(drive.next_moment() or drive.now)
    assert Campaign.objects.get().status_reason == "completed: 2 sent, 1 unconfirmed"
    getattr(log_transitions, decide)(DispatchLog.objects.unconfirmed().get().pk, by="ana")
    assert Campaign.objects.get().status_reason == summary

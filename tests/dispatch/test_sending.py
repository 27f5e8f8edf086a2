"""The engine on a clock of its own, against a provider with scripted answers: what each answer does to message, lane and campaign."""

from datetime import timedelta

import pytest
from django.db import connection

from campaigns import transitions
from campaigns.models import Campaign, Recipient
from dispatch import transitions as log_transitions
from dispatch.models import Attempt, DispatchLog, Lane, Run
from sessions_app import transitions as session_transitions
from sessions_app.models import Session
from sessions_app.providers.base import ErrorCode, SendResult
from tests.dispatch.conftest import START, make_ready, statuses
from tests.factories import make_step
from tests.fakes import FakeProvider, refused, repeat

pytestmark = pytest.mark.django_db
S = Campaign.Status


def start(campaign: Campaign) -> Campaign:
    return transitions.start(campaign.pk, by="ana", now=START)


def test_a_started_campaign_goes_out_to_everybody_once_and_is_completed(campaign, drive):
    start(campaign)
    drive.until_done()
    campaign.refresh_from_db()
    assert campaign.status == S.COMPLETED
    assert campaign.status_reason == "completed: 3 sent"
    assert [call.address for call in FakeProvider.calls] == list(Recipient.objects.order_by("order").values_list("address", flat=True))
    names = Recipient.objects.order_by("order").values_list("name", flat=True)
    assert FakeProvider.texts() == [f"Hello {name}" for name in names]
    assert list(DispatchLog.objects.order_by("pk").values_list("body", flat=True)) == FakeProvider.texts()
    run = Run.objects.get()
    assert (run.planned, run.sent, run.waiting, run.status) == (3, 3, 0, Run.Status.COMPLETED)
    assert not Attempt.objects.exists()  # clean first tries live on the row


def test_the_floor_holds_between_any_two_messages(fake, drive):
    campaign = make_ready(people=30, min_interval=1, max_interval=2, batch_size=500, batch_pause=1)
    start(campaign)
    drive.until_done()
    gaps = [(b - a).total_seconds() for a, b in zip(drive.sent_at, drive.sent_at[1:], strict=False)]
    assert len(gaps) == 29
    assert min(gaps) >= 8
    assert all(8 * 2.5 <= gap <= 13 * 2.5 for gap in gaps[:5])  # warm-up
    assert 60 <= gaps[19] <= 75  # after twenty, the most a batch may hold
    assert all(8 <= gap <= 13 for gap in gaps[5:19])


def test_warm_up_begins_again_after_a_resume(fake, drive):
    campaign = make_ready(people=12, batch_size=20)
    start(campaign)
    while len(FakeProvider.calls) < 7:
        drive.once()
        drive.to(drive.next_moment() or drive.now)
    transitions.pause(campaign.pk, reason="paused by ana")
    drive.forward(3600)
    drive.once()
    assert len(FakeProvider.calls) == 7
    transitions.resume(campaign.pk, by="ana", now=drive.now)
    Session.objects.update(checked_at=drive.now)
    drive.until_done()
    gaps = [(b - a).total_seconds() for a, b in zip(drive.sent_at[7:], drive.sent_at[8:], strict=False)]
    assert min(gaps) >= 8 * 2.5


def test_the_next_campaign_on_the_number_waits_out_the_gap(fake, drive):
    first = make_ready(people=1)
    second = make_ready(people=1, session=first.session)
    start(first)
    drive.once()
    drive.once()
    assert Campaign.objects.get(pk=first.pk).status == S.COMPLETED
    transitions.start(second.pk, by="ana", now=drive.now)
    drive.once()
    assert len(FakeProvider.calls) == 1  # the lane remembers
    drive.until_done()
    assert (drive.sent_at[1] - drive.sent_at[0]).total_seconds() >= 8


@pytest.mark.parametrize(
    ("code", "status", "campaign_status"),
    [
        (ErrorCode.RATE_LIMIT, "PENDING", S.RUNNING),
        (ErrorCode.DISCONNECTED, "PENDING", S.PAUSED),
        (ErrorCode.MISCONFIGURED, "PENDING", S.PAUSED),
        (ErrorCode.INVALID_RECIPIENT, "FAILED", S.RUNNING),
        (ErrorCode.FATAL, "FAILED", S.RUNNING),
        (ErrorCode.TRANSIENT, "FAILED", S.RUNNING),
        (ErrorCode.UNCONFIRMED, "UNCONFIRMED", S.RUNNING),
    ],
)
def test_each_code_once(campaign, drive, code, status, campaign_status):
    FakeProvider.answers(refused(code))
    start(campaign)
    drive.once()
    campaign.refresh_from_db()
    log = DispatchLog.objects.order_by("pk").first()
    assert (log.status, campaign.status) == (status, campaign_status)
    assert (log.error_code, log.error_text) == (code, "said the provider")
    assert Attempt.objects.get().outcome == code
    assert len(FakeProvider.calls) == 1
    if campaign_status == S.PAUSED:
        assert campaign.status_reason == "paused: said the provider"
    session = Session.objects.get()
    assert session.status == ("DISCONNECTED" if code == ErrorCode.DISCONNECTED else "CONNECTED")


def test_a_rate_limit_cools_down_doubles_and_repeats_the_same_message(campaign, drive):
    FakeProvider.answers(*repeat(refused(ErrorCode.RATE_LIMIT), 5))
    start(campaign)
    drive.until_done()
    waits = [(b - a).total_seconds() for a, b in zip(drive.sent_at[:6], drive.sent_at[1:6], strict=False)]
    assert waits == [300, 600, 1200, 2400, 3600]
    assert len({call.address for call in FakeProvider.calls[:6]}) == 1
    assert len({call.client_ref for call in FakeProvider.calls[:6]}) == 1
    assert statuses(campaign) == ["SENT"] * 3


def test_the_provider_may_ask_for_a_longer_cool_down_never_for_a_shorter_one(campaign, drive):
    answers = [refused(ErrorCode.RATE_LIMIT, retry_after=timedelta(seconds=seconds)) for seconds in (1, 2282)]
    FakeProvider.answers(*answers)
    start(campaign)
    drive.until_done()
    assert [(b - a).total_seconds() for a, b in zip(drive.sent_at[:3], drive.sent_at[1:3], strict=False)] == [300, 2282]


def test_a_limit_of_one_recipient_lets_the_others_pass_and_nobody_is_forgotten(campaign, drive):
    FakeProvider.answers(SendResult.deferred("six seconds apart", retry_after=timedelta(minutes=30)))
    start(campaign)
    drive.once()
    first = DispatchLog.objects.get(attempt=1)
    assert (first.status, first.available_at) == ("PENDING", START + timedelta(minutes=30))
    assert Lane.objects.get().next_send_at < START + timedelta(minutes=2)  # no cool-down
    for _ in range(40):  # the lane rests once the others are through: nothing says when the deferred one is due but the row
        drive.once()
        drive.to(drive.next_moment() or drive.now + timedelta(minutes=2))
    assert [call.address for call in FakeProvider.calls].count(first.address) == 2
    assert FakeProvider.calls[-1].address == first.address
    assert statuses(campaign) == ["SENT"] * 3


def test_a_retry_fills_everything_but_the_text_anew(campaign, drive, monkeypatch):
    """The text was stored with the first try and leaves as it was; no hole of another field may reach anybody."""
    monkeypatch.setattr(FakeProvider, "takes", frozenset({"subject", "html"}))
    step = campaign.steps.get()
    step.subject, step.html = "For {{ name }}", "<b>{{ name }}</b>"
    step.save()
    sent = []
    FakeProvider.answers(refused(ErrorCode.RATE_LIMIT), lambda address, message: sent.append(message) or SendResult.accepted("x"))
    start(campaign)
    drive.once()
    campaign.recipients.update(name="Somebody else")
    drive.until_done()
    assert sent[0].text.startswith("Hello ") and "Somebody else" not in sent[0].text
    assert (sent[0].subject, sent[0].html) == ("For Somebody else", "<b>Somebody else</b>")


def test_a_cool_down_outlives_pause_and_resume(campaign, drive):
    FakeProvider.answers(refused(ErrorCode.RATE_LIMIT))
    start(campaign)
    drive.once()
    transitions.pause(campaign.pk, reason="paused by ana")
    drive.forward(10)
    drive.once()
    transitions.resume(campaign.pk, by="ana", now=drive.now)
    drive.once()
    assert len(FakeProvider.calls) == 1
    drive.until_done()
    assert (drive.sent_at[1] - drive.sent_at[0]).total_seconds() == 300


@pytest.mark.parametrize("code", [ErrorCode.TRANSIENT, ErrorCode.FATAL, ErrorCode.UNCONFIRMED])
def test_an_acceptance_between_failures_ends_the_streak(fake, drive, code):
    campaign = make_ready(people=10)
    FakeProvider.answers(*repeat(refused(code), 4), None, *repeat(refused(code), 4))
    start(campaign)
    drive.until_done()
    assert Campaign.objects.get().status == S.COMPLETED
    assert len(FakeProvider.calls) == 10


def test_five_failures_in_a_row_leave_the_rest_unsent(fake, drive):
    campaign = make_ready(people=12)
    codes = [ErrorCode.TRANSIENT, ErrorCode.FATAL, ErrorCode.UNCONFIRMED, ErrorCode.TRANSIENT, ErrorCode.TRANSIENT]
    FakeProvider.answers(None, *[refused(code, f"word {n}") for n, code in enumerate(codes)])
    start(campaign)
    drive.until_done()
    campaign.refresh_from_db()
    assert campaign.status == S.PAUSED
    assert campaign.status_reason == "paused: 5 failures in a row; last: word 4"
    assert len(FakeProvider.calls) == 6
    assert statuses(campaign).count("PENDING") == 6
    transitions.resume(campaign.pk, by="ana", now=drive.now)  # a resume forgets the streak
    drive.until_done()
    assert statuses(campaign).count("SENT") == 7


def test_rate_limits_and_invalid_recipients_do_not_count_to_the_five(fake, drive):
    campaign = make_ready(people=20)
    mixed = [ErrorCode.TRANSIENT, ErrorCode.INVALID_RECIPIENT, ErrorCode.RATE_LIMIT] * 4
    FakeProvider.answers(*[refused(code) for code in mixed])
    start(campaign)
    drive.until_done()
    assert Campaign.objects.get().status == S.COMPLETED
    assert statuses(campaign).count("FAILED") == 8


def test_a_rate_limit_does_not_end_the_streak_either(fake, drive):
    campaign = make_ready(people=20)
    FakeProvider.answers(*[refused(code) for code in [ErrorCode.TRANSIENT, ErrorCode.RATE_LIMIT] * 5])
    start(campaign)
    drive.until_done()
    assert Campaign.objects.get().status == S.PAUSED
    assert statuses(campaign).count("FAILED") == 5


def test_twenty_invalid_recipients_in_a_row_say_that_the_list_looks_wrong(fake, drive):
    campaign = make_ready(people=30)
    FakeProvider.answers(*repeat(refused(ErrorCode.INVALID_RECIPIENT, "no such number"), 30))
    start(campaign)
    drive.until_done()
    campaign.refresh_from_db()
    assert campaign.status == S.PAUSED
    assert campaign.status_reason == "paused: 20 invalid recipients in a row, the list looks wrong; last: no such number"
    assert len(FakeProvider.calls) == 20


def test_a_provider_that_raises_costs_one_unconfirmed_row_and_never_the_loop(campaign, drive):
    FakeProvider.answers(ValueError("secret-token in the text of an exception"))
    start(campaign)
    drive.until_done()
    assert statuses(campaign) == ["UNCONFIRMED", "SENT", "SENT"]
    assert DispatchLog.objects.order_by("pk").first().error_text == "the provider raised ValueError"
    assert Campaign.objects.get().status_reason == "completed: 2 sent, 1 unconfirmed"


def test_what_is_given_back_unsent_counts_for_nothing(campaign, drive):
    Session.objects.update(daily_limit=3)
    FakeProvider.answers(*repeat(SendResult.unsent("its time was up"), 4))
    start(campaign)
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 3
    lane = Lane.objects.get()
    assert (lane.day_count, lane.attempts_in_run) == (3, 3)
    assert DispatchLog.objects.order_by("pk").first().attempt == 5  # the fence never goes back


def test_a_text_that_cannot_be_filled_any_more_fails_that_row_only(campaign, drive):
    start(campaign)
    drive.engine.now = START
    second = Recipient.objects.order_by("order")[1]
    Recipient.objects.filter(pk=second.pk).update(name="")
    drive.until_done()
    assert statuses(campaign) == ["SENT", "FAILED", "SENT"]
    assert "name" in DispatchLog.objects.get(recipient=second).error_text
    assert len(FakeProvider.calls) == 2


def test_words_that_cannot_be_stored_cost_their_own_row_only(campaign, drive):
    FakeProvider.answers(refused(ErrorCode.FATAL, "nul \x00 in the middle"))
    start(campaign)
    drive.until_done()
    assert statuses(campaign) == ["FAILED", "SENT", "SENT"]


def test_no_transaction_is_open_while_the_provider_is_called(fake, drive, transactional_db):
    campaign = make_ready(people=1)
    seen = []

    def answer(address, message):
        seen.append(connection.in_atomic_block)
        with connection.cursor() as cursor:  # another connection, in the thread of the pool
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'")
            seen.append(cursor.fetchone()[0])
            cursor.execute("SELECT status FROM dispatch_dispatchlog")
            seen.append(cursor.fetchone()[0])
        connection.close()
        return SendResult.accepted("x")

    FakeProvider.answers(answer)
    start(campaign)
    drive.until_done()
    assert seen == [False, 0, "SENDING"]  # committed before the first byte, and nothing open


def test_a_pause_takes_effect_at_the_next_claim_and_resume_goes_on_with_the_next_row(fake, drive):
    campaign = make_ready(people=5)
    start(campaign)
    drive.once()
    drive.to(drive.next_moment())
    transitions.pause(campaign.pk, reason="paused by ana")
    drive.once()
    drive.forward(3600)
    drive.once()
    assert len(FakeProvider.calls) == 1
    transitions.resume(campaign.pk, by="ana", now=drive.now)
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 5
    assert len({call.address for call in FakeProvider.calls}) == 5


def test_stop_skips_what_waits_and_says_so(fake, drive):
    campaign = make_ready(people=4)
    start(campaign)
    drive.once()
    transitions.stop(campaign.pk, by="ana")
    drive.forward(3600)
    drive.once()
    assert statuses(campaign) == ["SENT", "SKIPPED", "SKIPPED", "SKIPPED"]
    assert set(DispatchLog.objects.filter(status="SKIPPED").values_list("reason", flat=True)) == {"campaign stopped"}
    run = Run.objects.get()
    assert (run.status, run.planned, run.sent, run.skipped, run.waiting) == (Run.Status.STOPPED, 4, 1, 3, 0)
    assert Campaign.objects.get().status_reason == "stopped by ana"


def test_a_deleted_recipient_is_skipped_and_the_others_go_on(fake, drive):
    campaign = make_ready(people=4)
    start(campaign)
    drive.once()
    Recipient.objects.order_by("order")[2].delete()
    drive.until_done()
    assert statuses(campaign) == ["SENT", "SENT", "SKIPPED", "SENT"]
    assert DispatchLog.objects.get(status="SKIPPED").reason == "recipient deleted"
    assert Campaign.objects.get().status_reason == "completed: 3 sent, 1 skipped"


def test_a_waiting_message_can_be_removed_by_hand(fake, drive):
    campaign = make_ready(people=3)
    start(campaign)
    drive.once()
    waiting = DispatchLog.objects.pending().order_by("pk").first()
    log_transitions.remove(waiting.pk, by="ana")
    drive.until_done()
    assert statuses(campaign) == ["SENT", "SKIPPED", "SENT"]
    with pytest.raises(transitions.Refused, match="Skipped"):
        log_transitions.remove(waiting.pk, by="ana")


def test_the_daily_limit_is_counted_in_the_claim_and_ends_at_the_sessions_midnight(fake, drive):
    campaign = make_ready(people=5)
    Session.objects.update(daily_limit=2, time_zone="America/Sao_Paulo")
    start(campaign)
    drive.until_done()
    assert len(FakeProvider.calls) == 2
    drive.to(START.replace(hour=23, minute=59))  # still the same day in Sao Paulo
    drive.once()
    assert len(FakeProvider.calls) == 2
    drive.to(START.replace(day=11, hour=3, minute=1))
    drive.until_done()
    assert len(FakeProvider.calls) == 4


def test_blocked_hours_wait_for_the_window_and_keep_their_place(fake, drive):
    campaign = make_ready(
        people=2, safe_hours=Campaign.SafeHours.BLOCK, time_zone="America/Sao_Paulo", safe_from="10:00", safe_until="11:00"
    )
    start(campaign)  # 12:00 UTC is 09:00 there
    drive.once()
    assert FakeProvider.calls == []
    assert Lane.objects.get().next_send_at == START.replace(hour=13)
    drive.until_done()
    assert drive.sent_at[0] == START.replace(hour=13)
    assert statuses(campaign) == ["SENT", "SENT"]


def test_hours_edited_while_running_apply_at_once(fake, drive):
    campaign = make_ready(people=3)
    start(campaign)
    drive.once()
    campaign.refresh_from_db()
    campaign.safe_hours, campaign.safe_from, campaign.safe_until = Campaign.SafeHours.BLOCK, "20:00", "21:00"
    campaign.save()
    drive.until_done()
    assert drive.sent_at[1].hour == 20


def test_a_metered_lane_sends_at_its_rate_and_several_at_once(fake, drive):
    campaign = make_ready(people=30, channel="fake_metered")
    start(campaign)
    drive.once()
    assert len(FakeProvider.calls) == 1  # a lane that begins has saved up nothing
    drive.forward(60)
    drive.once()
    assert len(FakeProvider.calls) == 1 + 8  # however long it rested: the burst
    drive.forward(0.004)
    drive.once()
    assert len(FakeProvider.calls) == 1 + 8 + 4
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 30
    assert Lane.objects.get().in_flight == 0


def test_steps_follow_each_other_and_a_delay_frees_the_session_meanwhile(campaign, drive):
    make_step(campaign, order=2, text="And again, {{ name }}", delay_after_previous=timedelta(hours=2))
    start(campaign)
    while Campaign.objects.get().status == S.RUNNING:
        drive.once()
        drive.to(drive.next_moment() or drive.now)
    campaign.refresh_from_db()
    assert campaign.status == S.SCHEDULED
    assert campaign.status_reason.startswith("waits for ")
    other = make_ready(people=1, session=campaign.session)
    transitions.start(other.pk, by="ana", now=drive.now)
    drive.until_done()
    assert Campaign.objects.get(pk=other.pk).status == S.COMPLETED
    assert Campaign.objects.get(pk=campaign.pk).status == S.COMPLETED
    assert [text.split(",")[0] for text in FakeProvider.texts()].count("And again") == 3


def test_text_is_frozen_for_a_run_that_has_rows(campaign, drive):
    start(campaign)
    drive.once()
    campaign.steps.update(text="Something else")
    drive.until_done()
    assert all(text.startswith("Hello") for text in FakeProvider.texts())


def test_a_session_that_was_found_away_pauses_what_runs_on_it(campaign, drive):
    start(campaign)
    drive.once()
    session_transitions.disconnect(campaign.session_id, "logged out on the phone")
    drive.forward(100)
    drive.once()
    campaign.refresh_from_db()
    assert campaign.status == S.PAUSED
    assert campaign.status_reason.endswith("is disconnected: logged out on the phone")
    assert len(FakeProvider.calls) == 1

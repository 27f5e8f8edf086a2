"""Defects that engines of this kind are known for, as stories. docs/reliability.md has the whole list, and where the others are caught."""

import logging
import threading
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from django.db import OperationalError, connection

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep
from campaigns.transitions import Refused, SessionBusy
from dispatch import runs
from dispatch.models import DispatchLog, Run
from dispatch.scheduler import run_pass
from sessions_app import transitions as session_transitions
from sessions_app.models import Session
from sessions_app.providers.base import ErrorCode
from tests.dispatch.conftest import START, make_engine, make_ready, statuses
from tests.dispatch.invariants import assert_sum_rule
from tests.factories import make_step
from tests.fakes import FakeProvider, refused

pytestmark = pytest.mark.django_db
S = Campaign.Status
PEOPLE = 5


def start(campaign: Campaign) -> Campaign:
    return transitions.start(campaign.pk, by="ana", now=START)


def resume(campaign: Campaign, now: datetime) -> Campaign:
    session_transitions.connect(campaign.session_id)
    Session.objects.update(checked_at=now)
    return transitions.resume(campaign.pk, by="ana", now=now)


def addresses(campaign: Campaign) -> list[str]:
    return list(campaign.recipients.order_by("order").values_list("address", flat=True))


def called() -> list[str]:
    return [call.address for call in FakeProvider.calls]


# -- nobody is forgotten -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(PEOPLE))
def test_a_disconnect_at_any_message_forgets_and_doubles_nobody(fake, drive, position):
    campaign = make_ready(people=PEOPLE)
    FakeProvider.answers(*[None] * position, refused(ErrorCode.DISCONNECTED))
    start(campaign)
    drive.until_done()
    campaign.refresh_from_db()
    assert (campaign.status, len(FakeProvider.calls)) == (S.PAUSED, position + 1)
    resume(campaign, drive.now)
    drive.until_done()
    expected = addresses(campaign)
    assert called() == [*expected[: position + 1], *expected[position:]]  # the refused one again, then the rest
    assert statuses(campaign) == ["SENT"] * PEOPLE
    assert Campaign.objects.get().status == S.COMPLETED


@pytest.mark.parametrize("after", range(1, PEOPLE))
def test_a_pause_after_any_message_goes_on_with_the_next_one(fake, drive, after):
    campaign = make_ready(people=PEOPLE)
    start(campaign)
    while len(FakeProvider.calls) < after:
        drive.once()
        drive.to(drive.next_moment() or drive.now)
    transitions.pause(campaign.pk, reason="paused by ana")
    drive.forward(3600)
    drive.once()
    assert len(FakeProvider.calls) == after
    resume(campaign, drive.now)
    drive.until_done()
    assert called() == addresses(campaign)
    assert Campaign.objects.get().status_reason == f"completed: {PEOPLE} sent"


@pytest.mark.parametrize("position", [0, 2, PEOPLE - 1])
def test_a_campaign_is_not_completed_while_a_message_cools_down(fake, drive, position):
    campaign = make_ready(people=PEOPLE)
    FakeProvider.answers(*[None] * position, refused(ErrorCode.RATE_LIMIT))
    start(campaign)
    while len(FakeProvider.calls) < position + 1:
        drive.once()
        drive.to(drive.next_moment() or drive.now)
    assert Campaign.objects.get().status == S.RUNNING
    drive.until_done()
    expected = addresses(campaign)
    assert called() == [*expected[: position + 1], *expected[position:]]
    assert Campaign.objects.get().status == S.COMPLETED


def test_a_step_that_recurs_survives_a_crash_at_any_statement_of_its_end(campaign, drive):
    """The end of a run and the time of the next one are one transaction: cut off anywhere, the next pass does all of it."""
    campaign.steps.update(recurrence_type="daily", recurrence_count=2)
    Campaign.objects.update(grace_seconds=86400)
    start(campaign)
    while statuses(campaign) != ["SENT"] * 3:
        run_pass(drive.engine, planning=len(FakeProvider.calls) < 3)  # the last answer is settled, and nothing is planned after it
        drive.engine.wait(5)
        drive.to(drive.next_moment() or drive.now)
    run = Run.objects.get()
    for dies_at in range(1, 100):
        count = 0

        def dies(execute, sql, params, many, context, dies_at=dies_at):
            nonlocal count
            count += 1
            if count == dies_at:
                raise OperationalError("the connection was lost")
            return execute(sql, params, many, context)

        try:
            with connection.execute_wrapper(dies):
                runs.finish(run.pk, drive.now)
        except OperationalError:
            step = CampaignStep.objects.get()
            assert (Run.objects.get().status, step.status, step.next_run_at) == ("RUNNING", "RUNNING", None)
        else:
            break
    assert dies_at > 4
    assert CampaignStep.objects.get().status == "SCHEDULED"
    drive.until_done()
    assert Run.objects.count() == 2
    assert Campaign.objects.get().status == S.COMPLETED


def test_a_long_list_gets_its_rows_in_chunks_and_sending_begins_with_the_first(fake, drive, monkeypatch):
    monkeypatch.setattr(runs, "ROWS_AT_ONCE", 2)
    campaign = make_ready(people=PEOPLE)
    start(campaign)
    while not FakeProvider.calls:
        run_pass(drive.engine)
        drive.engine.wait(5)
    assert not Run.objects.get().rows_complete
    drive.until_done()
    assert called() == addresses(campaign)
    assert Run.objects.get().planned == PEOPLE
    assert_sum_rule(campaign)


# -- nobody gets two -----------------------------------------------------------------------------------------------------------


def test_storms_of_pause_resume_and_start_over_two_engines_send_each_row_once(fake):
    campaign = make_ready(people=8, channel="fake_metered")
    engines = [make_engine(), make_engine()]
    start(campaign)
    random, now = Random(3), START
    verbs = [
        lambda: transitions.pause(campaign.pk, reason="paused by ana"),
        lambda: resume(campaign, now),
        lambda: transitions.start(campaign.pk, by="ben", now=now),
    ]
    for _ in range(300):
        now += timedelta(seconds=random.choice([0, 1, 30]))
        try:
            random.choice(verbs)()
        except Refused:
            pass
        for engine in random.sample(engines, 2):
            engine.now = now
            run_pass(engine)
            engine.wait(5)
        assert_sum_rule(campaign)
        if Campaign.objects.get().status == S.COMPLETED:
            break
    for engine in engines:
        engine.close()
    assert sorted(called()) == sorted(addresses(campaign))
    assert Campaign.objects.get().status == S.COMPLETED


def test_what_was_refused_is_not_tried_again_by_a_resume(fake, drive):
    campaign = make_ready(people=PEOPLE)
    codes = [ErrorCode.INVALID_RECIPIENT, ErrorCode.FATAL, ErrorCode.UNCONFIRMED, ErrorCode.DISCONNECTED]
    FakeProvider.answers(*[refused(code) for code in codes])
    start(campaign)
    drive.until_done()
    assert Campaign.objects.get().status == S.PAUSED
    resume(campaign, drive.now)
    drive.until_done()
    expected = addresses(campaign)
    assert called() == [*expected[:4], *expected[3:]]
    assert statuses(campaign) == ["FAILED", "FAILED", "UNCONFIRMED", "SENT", "SENT"]
    assert_sum_rule(campaign)


def test_a_daily_step_of_a_campaign_with_a_start_time_in_the_past_runs_once_a_day(fake, drive):
    at = datetime(2026, 6, 11, 9, 0, tzinfo=UTC)
    campaign = make_ready(people=2, scheduled_at=at)
    campaign.steps.update(recurrence_type="daily")
    transitions.schedule(campaign.pk, by="ana", now=START)
    drive.to(at)
    for _ in range(20):
        drive.once()
        drive.forward(60)
    assert len(FakeProvider.calls) == 2
    campaign.refresh_from_db()
    assert (campaign.status, campaign.due_at) == (S.SCHEDULED, Run.objects.get().completed_at + timedelta(days=1))


# -- one sender per number, in the state that people see -----------------------------------------------------------------------


def test_the_second_step_keeps_the_number_as_the_first_did(campaign, drive):
    make_step(campaign, order=2, text="And again, {{ name }}")
    other = make_ready(people=1, session=campaign.session)
    start(campaign)
    while not any(text.startswith("And again") for text in FakeProvider.texts()):
        drive.once()
        with pytest.raises(SessionBusy):
            transitions.start(other.pk, by="ana", now=drive.now)
        drive.to(drive.next_moment() or drive.now)
    drive.until_done()
    transitions.start(other.pk, by="ana", now=drive.now)


def test_the_late_answer_of_a_stopped_campaign_neither_frees_the_number_nor_revives_it(fake, drive):
    """A is stopped in mid-send, B takes the number, and then A's send says that the session is disconnected."""
    stopped = make_ready(people=3)
    follower = make_ready(people=3, session=stopped.session)
    released = threading.Event()

    def answer(address, message):
        released.wait(10)
        return refused(ErrorCode.DISCONNECTED, "logged out")

    FakeProvider.answers(answer)
    start(stopped)
    run_pass(drive.engine)
    transitions.stop(stopped.pk, by="ana")
    transitions.start(follower.pk, by="ben", now=START)
    elsewhere = make_engine()
    for _ in range(3):
        run_pass(elsewhere)
    assert len(FakeProvider.calls) == 1  # nobody else sends while it is on its way
    released.set()
    drive.engine.wait(5)
    for _ in range(3):
        run_pass(drive.engine)
        run_pass(elsewhere)
    elsewhere.close()
    assert statuses(stopped) == ["SKIPPED"] * 3
    assert Campaign.objects.get(pk=stopped.pk).status == S.FAILED
    assert Session.objects.get().status == Session.Status.DISCONNECTED
    assert len(FakeProvider.calls) == 1  # the number is disconnected: the follower waits, too
    session_transitions.connect(stopped.session_id)
    if Campaign.objects.get(pk=follower.pk).status == S.PAUSED:
        resume(follower, drive.now)
    drive.until_done()
    assert statuses(follower) == ["SENT"] * 3


def test_a_pause_in_the_last_wait_holds_the_next_step_back(campaign, drive):
    make_step(campaign, order=2, text="And again, {{ name }}")
    start(campaign)
    while len(FakeProvider.calls) < 3:
        run_pass(drive.engine)
        drive.engine.wait(5)
        drive.to(drive.next_moment() or drive.now)
    transitions.pause(campaign.pk, reason="paused by ana")
    for _ in range(10):
        drive.once()
        drive.forward(60)
    assert (len(FakeProvider.calls), Run.objects.count()) == (3, 1)
    assert Campaign.objects.get().status == S.PAUSED
    resume(campaign, drive.now)
    drive.until_done()
    assert len(FakeProvider.calls) == 6
    assert Campaign.objects.get().status == S.COMPLETED


# -- what is said about it -----------------------------------------------------------------------------------------------------


def test_a_message_is_sent_when_it_was_sent_and_its_text_and_number_are_in_no_log(fake, drive, caplog):
    caplog.set_level(logging.DEBUG)
    campaign = make_ready(people=3)
    FakeProvider.answers(None, refused(ErrorCode.FATAL, "no"))
    start(campaign)
    drive.until_done()
    sent = DispatchLog.objects.filter(status="SENT").order_by("pk").values_list("sent_at", flat=True)
    assert list(sent) == [drive.sent_at[0], drive.sent_at[2]]
    lines = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records if record.name.startswith("paceline"))
    assert "sent" in lines
    assert "Hello" not in lines
    for address in addresses(campaign):
        assert address not in lines
        assert address.partition("@")[0] not in lines


def test_what_stops_by_itself_is_alerted(fake, drive, caplog):
    campaign = make_ready(people=3)
    FakeProvider.answers(refused(ErrorCode.DISCONNECTED, "logged out"))
    start(campaign)
    drive.until_done()
    alerts = [record for record in caplog.records if record.name == "paceline.alerts"]
    assert [record.getMessage() for record in alerts] == ["session disconnected", "campaign paused"]
    assert all(record.levelno >= logging.WARNING for record in alerts)

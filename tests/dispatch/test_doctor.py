"""Each thing that must never be false is made false by hand, and found; a healthy ledger is left in peace."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command

from campaigns.models import Campaign
from dispatch.doctor import CHECKS, examine
from dispatch.models import Attempt, DispatchLog, Heartbeat, Lane, Run
from tests.dispatch.conftest import START, make_ready
from tests.factories import make_lane, make_log, make_run

pytestmark = pytest.mark.django_db
S = DispatchLog.Status
NOW = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)


def found(**options) -> dict[str, tuple[str, ...]]:
    return {finding.check.key: finding.examples for finding in examine(now=NOW, **options) if finding.is_broken}


@pytest.fixture
def run(fake) -> Run:
    """Three people: one sent, two that wait. Nothing wrong with it."""
    campaign = make_ready(people=3)
    Campaign.objects.update(status=Campaign.Status.RUNNING)
    run = make_run(campaign.steps.get(), rows_complete=True)
    for position, person in enumerate(campaign.recipients.order_by("order")):
        state = {"status": S.PENDING} if position else {"status": S.SENT, "attempt": 1}
        make_log(run=run, recipient=person, available_at=NOW, token=1, **state)
    make_lane(campaign.session, campaign=campaign, next_send_at=NOW + timedelta(seconds=5))
    return run


def first(run: Run) -> DispatchLog:
    return run.logs.order_by("pk").first()


def tried(log: DispatchLog, **fields) -> Attempt:
    return Attempt.objects.create(log=log, session_id=log.session_id, **{"attempt": 1, "token": 1, "outcome": "ACCEPTED"} | fields)


def test_a_healthy_ledger_is_left_in_peace(run):
    assert found() == {}


def test_a_second_acceptance(run):
    log = first(run)
    DispatchLog.objects.filter(pk=log.pk).update(attempt=2)
    tried(log, attempt=1)
    assert set(found()) == {"accepted-once"}
    DispatchLog.objects.filter(pk=log.pk).update(decided_by="ana")  # who chose "send again" knew it
    assert found() == {}


def test_a_lane_that_miscounts(run):
    DispatchLog.objects.filter(pk=first(run).pk).update(status=S.SENDING, claimed_at=NOW)
    Run.objects.update(sent=0)
    assert set(found()) == {"in-flight"}
    assert "1 on their way, 0 on the lane" in found()["in-flight"][0]


def test_a_message_that_is_on_its_way_for_ever(run):
    DispatchLog.objects.filter(pk=first(run).pk).update(status=S.SENDING, claimed_at=NOW - timedelta(hours=1))
    Run.objects.update(sent=0)
    Lane.objects.update(in_flight=1)
    assert set(found()) == {"sending-ends"}


@pytest.mark.parametrize("wrong", [{"sent": 2}, {"failed": 1}, {"unconfirmed": 1}, {"skipped": 1}, {"planned": 4}])
def test_counts_that_are_not_those_of_the_rows(run, wrong):
    Run.objects.update(**wrong)
    assert set(found()) == {"sum-rule"}


def test_a_completed_campaign_with_somebody_left(run):
    Run.objects.update(status=Run.Status.COMPLETED, completed_at=NOW)
    Campaign.objects.update(status=Campaign.Status.COMPLETED)
    assert set(found()) == {"completed-is-done"}


def test_fences_that_go_backwards(run):
    log = first(run)
    tried(log, attempt=2, outcome="TRANSIENT")
    assert set(found()) == {"fences"}
    DispatchLog.objects.filter(pk=log.pk).update(attempt=2)
    tried(log, attempt=1, token=9, outcome="TRANSIENT")
    assert set(found()) == {"fences"}


def test_something_due_that_nobody_takes(run):
    Lane.objects.update(next_send_at=NOW - timedelta(minutes=5))
    DispatchLog.objects.update(available_at=NOW - timedelta(minutes=5))
    assert found()["taken-when-due"][0].endswith("no scheduler is alive")
    common = {"kind": Heartbeat.Kind.SCHEDULER, "host": "a", "host_identity": "a", "pid": 1, "version": "1"}
    Heartbeat.objects.create(beat_at=NOW, interval=timedelta(seconds=10), **common)
    assert not found()["taken-when-due"][0].endswith("no scheduler is alive")


@pytest.mark.parametrize("reason", ["daily limit", "safe hours", "paused"])
def test_what_is_held_back_for_a_reason_is_no_fault(run, reason):
    Lane.objects.update(next_send_at=NOW - timedelta(minutes=5), day=NOW.date(), day_count=7)
    DispatchLog.objects.update(available_at=NOW - timedelta(minutes=5))
    if reason == "daily limit":
        run.campaign.session.daily_limit = 7
        run.campaign.session.save()
    elif reason == "safe hours":
        Campaign.objects.update(safe_hours=Campaign.SafeHours.BLOCK, safe_from="20:00", safe_until="21:00")
    else:
        Campaign.objects.update(status=Campaign.Status.PAUSED)
    assert found() == {}


def test_a_run_number_that_is_missing(run):
    make_run(run.step, number=3, status=Run.Status.SKIPPED, rows_complete=True)
    assert set(found()) == {"every-occurrence"}


def test_an_occurrence_of_which_nothing_is_said(run):
    step = run.step
    step.scheduled_at, step.recurrence_type = START, "daily"
    step.save()
    Run.objects.update(scheduled_for=START)
    make_run(step, number=2, scheduled_for=START + timedelta(days=2), status=Run.Status.SKIPPED, rows_complete=True)
    assert "2026-06-11 12:00" in found()["every-occurrence"][0]


def test_two_messages_of_one_number_too_close_together(run):
    one, other = run.logs.order_by("pk")[:2]
    DispatchLog.objects.filter(pk=one.pk).update(claimed_at=NOW - timedelta(seconds=20))
    DispatchLog.objects.filter(pk=other.pk).update(status=S.SENT, claimed_at=NOW - timedelta(seconds=12.5))
    Run.objects.update(sent=2)
    assert found()["floor"] == (f"message {other.pk} on session {other.session_id}, 7.5 s after another",)
    DispatchLog.objects.filter(pk=other.pk).update(claimed_at=NOW - timedelta(seconds=12))
    assert found() == {}


def test_what_was_completed_long_ago_is_looked_at_on_request(run):
    Run.objects.update(status=Run.Status.COMPLETED, completed_at=NOW - timedelta(days=30), sent=3)
    DispatchLog.objects.update(status=S.FAILED, claimed_at=None)
    Campaign.objects.update(status=Campaign.Status.COMPLETED)
    assert found() == {}
    assert set(found(everything=True)) == {"sum-rule"}


def test_the_command_says_what_is_broken_what_it_means_and_what_to_do(run, capsys):
    Lane.objects.update(next_send_at=datetime.now(UTC))
    with pytest.raises(SystemExit) as healthy:
        call_command("doctor")
    assert healthy.value.code == 0
    assert capsys.readouterr().out.count("ok ") == len(CHECKS)
    Run.objects.update(sent=2)
    with pytest.raises(SystemExit) as broken:
        call_command("doctor")
    assert broken.value.code == 1
    said = capsys.readouterr().out
    assert "BROKEN  sum-rule" in said
    assert "It means: " in said
    assert "What to do: " in said
    with pytest.raises(SystemExit):
        call_command("doctor", "--json")
    answers = json.loads(capsys.readouterr().out)
    assert [answer["check"] for answer in answers if answer["broken"]] == ["sum-rule"]
    assert len(answers) == len(CHECKS)

"""Processes that are lent to the engine for a while: what one pass does, when it ends, and that it does no harm beside a scheduler."""

import threading
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign
from dispatch import driving, jobs, loop
from dispatch.models import DispatchLog, Heartbeat, Job, Lane
from sessions_app.providers.base import SendResult
from sessions_app.sandbox import Sandbox
from tests.dispatch.conftest import make_ready, statuses
from tests.dispatch.invariants import broken
from tests.dispatch.test_run_scheduler import accepted, assert_everybody_once, is_done
from tests.dispatch.test_run_scheduler import make_ready as make_ready_in_sandbox
from tests.factories import make_session
from tests.processes import processes, until

pytestmark = pytest.mark.django_db
IN_NO_TIME = 8.0  # seconds on a busy machine; far below the twenty that one pass may take


def start(people: int, channel: str = "fake_metered") -> Campaign:
    campaign = make_ready(people=people, session=make_session(channel=channel))
    return transitions.start(campaign.pk, by="ana")


def timed(seconds: float = driving.ONE_PASS_LOOKS_AHEAD) -> tuple[dict, float]:
    began = time.monotonic()
    return driving.drive_once(seconds=seconds), time.monotonic() - began


def test_a_process_is_lent_for_a_while(fake):
    campaign = start(2)
    began = time.monotonic()
    assert driving.lend(Heartbeat.Kind.SCHEDULE, interval=timedelta(minutes=1), seconds=1) == "driven"
    assert 1 <= time.monotonic() - began < IN_NO_TIME
    assert statuses(campaign) == ["SENT", "SENT"]
    heart = Heartbeat.objects.get()
    assert (heart.kind, heart.interval, heart.stopped_at is not None) == (Heartbeat.Kind.SCHEDULE, timedelta(minutes=1), True)


def test_one_pass_sends_what_is_due_says_so_and_ends(fake):
    campaign = start(5)
    counts, took = timed()
    assert took < IN_NO_TIME
    assert (counts["claimed"], counts["sent"], counts["settled"], counts["completed"]) == (5, 5, 5, 1)
    assert statuses(campaign) == ["SENT"] * 5
    heart = Heartbeat.objects.get()
    assert (heart.kind, heart.stopped_at is not None, heart.last_pass_at is not None) == (Heartbeat.Kind.JOB, True, True)
    state = driving.state()
    assert (state["running"], state["last_counts"], state["last_error"]) == (False, counts, "")
    assert state["last_succeeded_at"] is not None


def test_with_nothing_to_do_it_does_not_wait(fake):
    counts, took = timed()
    assert took < IN_NO_TIME
    assert set(counts.values()) == {0}


def test_a_human_pause_is_kept_and_not_waited_for_when_it_is_longer(fake):
    campaign = start(3, channel="fake")
    counts, took = timed(seconds=2)
    assert (counts["sent"], took < IN_NO_TIME) == (1, True)
    assert statuses(campaign) == ["SENT", "PENDING", "PENDING"]
    assert Lane.objects.get().next_send_at > timezone.now() + timedelta(seconds=2)
    assert timed(seconds=2)[0]["claimed"] == 0


def test_what_becomes_due_meanwhile_is_waited_for(fake):
    due = timezone.now() + timedelta(seconds=1)
    make_ready(people=1, session=make_session(channel="fake_metered"), status=Campaign.Status.SCHEDULED, due_at=due)
    counts, took = timed()
    assert (counts["started"], counts["sent"]) == (1, 1)
    assert took < IN_NO_TIME


def test_a_session_that_has_to_be_asked_first_is_waited_for(fake, monkeypatch):
    long_ago, asked = timezone.now() - timedelta(hours=1), threading.Event()
    session = make_session(channel="fake_metered", checked_at=long_ago)
    make_ready(people=1, session=session, status=Campaign.Status.SCHEDULED, due_at=timezone.now())
    monkeypatch.setattr(fake, "check_session", lambda self, deadline: asked.wait(0.3) or fake.state)
    counts, _took = timed()
    assert (counts["started"], counts["sent"]) == (1, 1)


def test_an_answer_that_comes_after_the_last_pass_is_waited_for_and_counted(fake):
    campaign = start(1)
    fake.answers(lambda address, message: threading.Event().wait(1.2) or SendResult.accepted("id-1"))
    counts, took = timed(seconds=0.6)
    assert (counts["claimed"], counts["sent"], counts["settled"]) == (1, 1, 1)
    assert took > 1.2
    assert statuses(campaign) == ["SENT"]
    assert Heartbeat.objects.get().stopped_at is not None


def test_one_at_a_time(fake):
    with jobs.running(jobs.SCHEDULER, ttl=timedelta(minutes=1)), pytest.raises(jobs.Busy):
        driving.drive_once()
    assert not Heartbeat.objects.exists()


def test_while_it_runs_its_state_says_so(fake):
    seen = []
    start(1)
    with jobs.running(jobs.SCHEDULER, ttl=timedelta(minutes=1)):
        seen.append(driving.state())
    assert (seen[0]["running"], seen[0]["running_since"]) == (True, seen[0]["last_started_at"])
    assert seen[0]["holder"]
    Job.objects.update(holder_label="gone", locked_until=timezone.now() - timedelta(seconds=1))
    assert driving.state()["running"] is False


def test_a_pass_that_fails_is_told_and_ends_cleanly(fake, monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("row 12025550100 is bad")

    monkeypatch.setattr(loop, "run_pass", fail)
    with pytest.raises(driving.Unfinished, match=r"^a pass failed: RuntimeError$"):
        driving.drive_once(seconds=0.5)
    job = Job.objects.get(pk=jobs.SCHEDULER)
    assert (job.failures, job.error) == (1, "Unfinished: a pass failed: RuntimeError")
    assert Heartbeat.objects.get().stopped_at is not None


def test_its_last_answers_are_waited_for_before_anybody_takes_it_for_dead(settings):
    silent_for = timedelta(seconds=settings.SEND_DEADLINE_SECONDS) + loop.LAST_SETTLE_TAKES_AT_MOST
    assert silent_for < 3 * driving.ONE_PASS_BEATS_EVERY
    assert driving.lock_time() > timedelta(seconds=driving.ONE_PASS_LOOKS_AHEAD) + silent_for


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_beside_a_living_scheduler_it_does_no_harm(tmp_path):
    with Sandbox() as sandbox, processes(tmp_path) as run:
        process = run("run_scheduler", "--interval", "0.1")
        process.until_says("scheduler started")
        campaigns = [make_ready_in_sandbox(sandbox, 15, rate=20) for _ in range(3)]
        for campaign in campaigns:
            transitions.start(campaign.pk, by="ana")
        until(lambda: accepted(sandbox), "the first message")
        driven = [driving.drive_once(seconds=1) for _ in range(2)]
        until(lambda: is_done(*campaigns), "completion")
        assert process.runs
        assert_everybody_once(sandbox, *campaigns)
        assert all(counts["recovered"] == counts["paused"] == counts["unconfirmed"] == 0 for counts in driven)
        assert not DispatchLog.objects.filter(attempt__gt=1).exists()
        assert broken() == []

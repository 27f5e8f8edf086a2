"""The q-cluster's side: recovery, housekeeping, and driving the engine where no service runs."""

from datetime import timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.utils import timezone
from django_q.models import Schedule

from campaigns import transitions
from campaigns.models import Campaign
from dispatch import jobs, tasks
from dispatch.models import Alert, DispatchLog, Heartbeat, Job, JobAnswer, WebhookEvent
from tests.dispatch.conftest import make_ready
from tests.factories import make_campaign, make_log, make_run, make_session, make_step
from tests.fakes import FakeProvider

pytestmark = pytest.mark.django_db


def test_the_schedules_are_there_and_name_functions_that_exist():
    for migration in ("0002_schedules", "0005_schedules_of_retries_and_watching", "0007_schedules_of_receipts_and_sessions"):
        schedules = import_module(f"dispatch.migrations.{migration}")
        schedules.make(apps, None)  # a test before this one may have emptied the tables
        schedules.make(apps, None)  # and twice makes none twice
    found = {(schedule.func, schedule.minutes) for schedule in Schedule.objects.all()}
    names = {"recover": 5, "drive": 1, "keep_house": None, "retry_campaigns": 5, "watch": 1}
    names |= {"apply_webhooks": 1, "find_silence": 1, "poll_sessions": 5, "sync_templates": None}
    assert found == {(f"dispatch.tasks.{name}", minutes) for name, minutes in names.items()}
    assert Schedule.objects.count() == len(names)
    assert all(callable(getattr(tasks, name)) for name in names)


@pytest.fixture
def ready(fake, settings) -> Campaign:
    campaign = make_ready(people=1)
    transitions.start(campaign.pk, by="ana")
    return campaign


def test_driving_is_left_to_the_service_unless_the_host_says_otherwise(ready, settings, monkeypatch):
    monkeypatch.setattr(tasks, "DRIVES_FOR", timedelta(seconds=0.5))
    assert tasks.drive() == "left to run_scheduler (ENGINE_DRIVER=service)"
    assert FakeProvider.calls == []
    assert not Heartbeat.objects.exists()


def test_a_host_without_a_service_drives_the_engine_by_schedule(ready, settings, monkeypatch):
    settings.ENGINE_DRIVER = "schedule"
    monkeypatch.setattr(tasks, "DRIVES_FOR", timedelta(seconds=2))
    assert tasks.drive() == "driven"
    assert DispatchLog.objects.get().status == "SENT"
    heart = Heartbeat.objects.get()
    assert heart.kind == Heartbeat.Kind.SCHEDULE
    assert heart.stopped_at is not None
    assert heart.last_pass_at is not None


def test_recover_answers_with_the_counts_of_the_command():
    assert set(tasks.recover()) == {"campaigns_paused", "steps_paused", "logs_verified", "logs_unconfirmed", "logs_requeued"}


def test_the_retry_job_runs_with_the_settings_of_the_installation(settings, db):
    settings.CAMPAIGN_RETRY_TENANT_ID = "nobody"
    run = make_run(make_step(make_campaign(status=Campaign.Status.PAUSED)), rows_complete=True)
    make_log(run, status=DispatchLog.Status.FAILED, error_code="TRANSIENT", retry_at=timezone.now() - timedelta(minutes=1))
    assert tasks.retry_campaigns()["queued"] == 0
    settings.CAMPAIGN_RETRY_TENANT_ID = ""
    assert tasks.retry_campaigns()["queued"] == 1
    assert Job.objects.get(pk=jobs.RETRY).runs == 2


def test_a_retry_job_that_runs_elsewhere_is_no_error(db):
    with jobs.running(jobs.RETRY, ttl=timedelta(minutes=1)):
        assert tasks.retry_campaigns()["busy"].startswith("already running: process ")


def test_the_watch_leaves_its_sign_of_life(db):
    assert tasks.watch()["told"] == 0
    assert Job.objects.get(pk=jobs.WATCH).succeeded_at is not None


def test_housekeeping_removes_only_heartbeats_that_are_long_gone_and_seen_to():
    old, now = timezone.now() - timedelta(days=8), timezone.now()
    common = {
        "kind": Heartbeat.Kind.SCHEDULER,
        "host": "a",
        "host_identity": "a",
        "pid": 1,
        "version": "1",
        "interval": timedelta(seconds=10),
    }
    Heartbeat.objects.create(beat_at=old, stopped_at=old, **common)
    died = Heartbeat.objects.create(beat_at=old, **common)
    recent = Heartbeat.objects.create(beat_at=now, stopped_at=now, **common)
    assert tasks.keep_house()["heartbeats"] == 1
    assert set(Heartbeat.objects.all()) == {died, recent}


def test_housekeeping_removes_old_alerts_answers_and_applied_events_in_chunks(monkeypatch):
    monkeypatch.setattr(tasks, "ROWS_AT_ONCE", 2)
    session, now = make_session(), timezone.now()
    states = WebhookEvent.State
    for number in range(5):
        Alert.objects.create(kind="old", subject=f"campaign {number}", last_at=now - timedelta(days=91))
        JobAnswer.objects.create(job="old", key=str(number), created_at=now - timedelta(days=3))
        event = {"session": session, "event_id": f"old {number}", "received_at": now - timedelta(days=31)}
        WebhookEvent.objects.create(state=[states.APPLIED, states.IGNORED][number % 2], **event)
    Alert.objects.create(kind="new", last_at=now - timedelta(days=89))
    WebhookEvent.objects.create(session=session, event_id="very old", state=states.FAILED, received_at=now - timedelta(days=91))
    JobAnswer.objects.create(job="new", key="a", created_at=now - timedelta(days=1))
    WebhookEvent.objects.create(session=session, event_id="new", state=states.APPLIED, received_at=now - timedelta(days=29))
    for state in (states.FAILED, states.RECEIVED):
        WebhookEvent.objects.create(session=session, event_id=state, state=state, received_at=now - timedelta(days=31))
    assert tasks.keep_house() == {
        "heartbeats": 0,
        "alerts": 5,
        "job_answers": 5,
        "webhook_events": 5,
        "uploaded_files": 0,
        "failed_events": 1,
    }
    assert [alert.kind for alert in Alert.objects.all()] == ["new"]
    assert [answer.job for answer in JobAnswer.objects.all()] == ["new"]
    assert {event.event_id for event in WebhookEvent.objects.all()} == {"new", "FAILED", "RECEIVED"}


def test_one_task_removes_no_more_than_it_has_time_for(monkeypatch):
    monkeypatch.setattr(tasks, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(tasks, "MOST_CHUNKS", 2)
    for number in range(3):
        Alert.objects.create(kind="old", subject=str(number), last_at=timezone.now() - timedelta(days=91))
    assert tasks.keep_house()["alerts"] == 2


def test_a_session_found_away_is_told(monkeypatch, django_capture_on_commit_callbacks):
    session = make_session(name="Sales", status="DISCONNECTED", status_detail="logged out")
    make_session(name="Other", status="RESTRICTED")
    changed = [
        {"session": "Sales", "was": "CONNECTED", "now": "DISCONNECTED"},
        {"session": "Other", "was": "DISCONNECTED", "now": "RESTRICTED"},
        {"session": "Deleted", "was": "CONNECTED", "now": "DISCONNECTED"},
    ]
    monkeypatch.setattr(tasks.polling, "poll", lambda: {"changed": changed})
    with django_capture_on_commit_callbacks(execute=True):
        tasks.poll_sessions()
    assert list(Alert.objects.values_list("kind", "subject", "detail")) == [("session disconnected", f"session {session.pk}", "logged out")]

"""The q-cluster's side: recovery, housekeeping, and driving the engine where no service runs."""

from datetime import timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.utils import timezone
from django_q.models import Schedule

from campaigns import transitions
from campaigns.models import Campaign
from dispatch import tasks
from dispatch.models import DispatchLog, Heartbeat
from tests.dispatch.conftest import make_ready
from tests.fakes import FakeProvider

pytestmark = pytest.mark.django_db


def test_the_schedules_are_there_and_name_functions_that_exist():
    schedules = import_module("dispatch.migrations.0002_schedules")
    schedules.make(apps, None)  # a test before this one may have emptied the tables
    schedules.make(apps, None)  # and twice makes none twice
    assert Schedule.objects.count() == 3
    functions = set(Schedule.objects.values_list("func", flat=True))
    assert functions == {"dispatch.tasks.recover", "dispatch.tasks.drive", "dispatch.tasks.keep_house"}
    assert all(callable(getattr(tasks, function.rpartition(".")[2])) for function in functions)


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
    stopped = Heartbeat.objects.create(beat_at=old, stopped_at=old, **common)
    died = Heartbeat.objects.create(beat_at=old, **common)
    recent = Heartbeat.objects.create(beat_at=now, stopped_at=now, **common)
    assert tasks.keep_house() == 1
    assert set(Heartbeat.objects.all()) == {died, recent}
    assert stopped not in Heartbeat.objects.all()

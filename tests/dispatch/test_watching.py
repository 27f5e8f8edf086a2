"""Whoever is dead is seen by the other, and whoever is busy, restarted or not needed is left in peace."""

import logging
import os
import signal
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from campaigns.models import Campaign
from dispatch import jobs, loop, tasks, watching
from dispatch.engine import Engine
from dispatch.models import Alert, Heartbeat, Job
from dispatch.recovery import host_identity
from dispatch.stopping import StopAfter
from tests.factories import make_campaign
from tests.processes import processes, until

pytestmark = pytest.mark.django_db

NOBODY = 2**22 + 1  # no process of this host has this pid


@pytest.fixture
def alerted(caplog):
    """The kinds that were alerted since the last look."""

    def look() -> list[str]:
        kinds = [record.message for record in caplog.records if record.name == "paceline.alerts"]
        caplog.clear()
        return kinds

    caplog.set_level(logging.INFO)
    return look


def from_now(fields: dict[str, Any]) -> dict[str, Any]:
    """A distance becomes a moment. Parameters of tests are distances: they are made long before a late test of the suite begins."""
    return {name: timezone.now() + value if isinstance(value, timedelta) else value for name, value in fields.items()}


def beat(*, ago: timedelta = timedelta(0), pid: int | None = None, host: str | None = None, **fields) -> Heartbeat:
    return Heartbeat.objects.create(
        kind=Heartbeat.Kind.SCHEDULER,
        host="here",
        host_identity=host or host_identity(),
        pid=pid or os.getpid(),
        version="1",
        interval=timedelta(seconds=10),
        **from_now({"beat_at": -ago, **fields}),
    )


def ended(name: str, ago: timedelta, **fields) -> None:
    Job.objects.update_or_create(pk=name, defaults=from_now({"finished_at": -ago, **fields}))


def watch_twice() -> None:
    for _ in range(2):
        watching.watch_from_tasks()


# -- the scheduler, seen by the tasks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "heart",
    [
        None,
        {"ago": timedelta(seconds=31)},
        {"pid": NOBODY},
        {"ago": timedelta(minutes=3), "stopped_at": timedelta(minutes=-3)},
    ],
    ids=["never one", "silent", "its process is gone", "stopped and not started again"],
)
def test_a_scheduler_that_is_needed_and_not_alive_is_alerted_at_the_second_look(alerted, heart):
    make_campaign(status=Campaign.Status.RUNNING)
    if heart is not None:
        beat(**heart)
    watching.watch_from_tasks()
    assert alerted() == []
    found = watching.watch_from_tasks()
    assert alerted() == ["scheduler dead"]
    assert found["without_scheduler"] == 2


@pytest.mark.parametrize(
    "heart",
    [{}, {"ago": timedelta(seconds=20)}, {"pid": NOBODY, "host": "another"}, {"stopped_at": timedelta(minutes=1)}],
    ids=["alive", "busy", "alive on another host", "being restarted"],
)
def test_a_scheduler_that_is_alive_busy_or_restarted_is_not(alerted, heart):
    make_campaign(status=Campaign.Status.RUNNING)
    beat(**heart)
    watch_twice()
    assert alerted() == []


@pytest.mark.parametrize(
    ("status", "due", "driver", "expected"),
    [
        (Campaign.Status.RUNNING, None, "service", ["scheduler dead"]),
        (Campaign.Status.SCHEDULED, timedelta(minutes=-1), "service", ["scheduler dead"]),
        (Campaign.Status.SCHEDULED, timedelta(hours=1), "service", []),
        (Campaign.Status.PAUSED, None, "service", []),
        (Campaign.Status.RUNNING, None, "schedule", []),
    ],
    ids=["running", "due", "later", "paused", "driven by the tasks"],
)
def test_only_a_scheduler_that_something_waits_for_is_missed(alerted, settings, status, due, driver, expected):
    settings.ENGINE_DRIVER = driver
    make_campaign(status=status, **({"due_at": timezone.now() + due} if due else {}))
    watch_twice()
    assert alerted() == expected


def test_one_look_after_an_outage_of_the_database_blames_nobody(alerted):
    make_campaign(status=Campaign.Status.RUNNING)
    heart = beat(ago=timedelta(minutes=5))
    watching.watch_from_tasks()
    Heartbeat.objects.filter(pk=heart.pk).update(beat_at=timezone.now())
    watch_twice()
    Heartbeat.objects.filter(pk=heart.pk).update(beat_at=timezone.now() - timedelta(minutes=5))
    watching.watch_from_tasks()
    assert alerted() == []


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_scheduler_that_is_killed_is_seen_and_one_that_runs_again_ends_it(tmp_path):
    make_campaign(status=Campaign.Status.RUNNING)
    with processes(tmp_path) as start:
        scheduler = start("run_scheduler")
        until(lambda: Heartbeat.objects.filter(last_pass_at__isnull=False).exists(), "the first beat")
        watch_twice()
        assert not Alert.objects.exists()
        scheduler.kill()
        Campaign.objects.update(status=Campaign.Status.RUNNING)  # it had nothing to send, and was completed
        watch_twice()
        row = Alert.objects.get(kind="scheduler dead")
        assert (row.times, row.facts["running"]) == (1, 1)
        again = start("run_scheduler")
        until(lambda: Heartbeat.objects.filter(pid=again.pid).exists(), "the next start")
        watch_twice()
        assert Alert.objects.get(kind="scheduler dead").times == 1
        again.signal(signal.SIGTERM)
        assert again.wait() == 0


# -- the retry job, seen by the tasks ------------------------------------------------------------------------------------------


def watched_since(ago: timedelta) -> None:
    ended(jobs.WATCH, timedelta(minutes=1), counts={"since": (timezone.now() - ago).isoformat(), "without_scheduler": 0})


@pytest.mark.parametrize(
    ("watched", "last", "expected"),
    [
        (timedelta(hours=2), timedelta(minutes=31), ["retry worker stale"]),
        (timedelta(hours=2), None, ["retry worker stale"]),
        (timedelta(hours=2), timedelta(minutes=29), []),
        (timedelta(minutes=29), None, []),
        (timedelta(minutes=29), timedelta(days=1), []),
    ],
    ids=["silent", "never ran", "just ended", "young installation", "all were off for a day"],
)
def test_a_retry_job_that_does_not_end_any_more_is_alerted(alerted, watched, last, expected):
    watched_since(watched)
    if last is not None:
        ended(jobs.RETRY, last)
    watching.watch_from_tasks()
    assert alerted() == expected


def test_a_retry_job_that_is_at_it_is_not_stale_and_the_minutes_are_a_setting(alerted, settings):
    watched_since(timedelta(hours=2))
    ended(jobs.RETRY, timedelta(minutes=31), locked_until=timezone.now() + timedelta(minutes=1))
    watching.watch_from_tasks()
    assert alerted() == []
    settings.RETRY_WORKER_STALE_MINUTES = 5
    ended(jobs.RETRY, timedelta(minutes=6), locked_until=None)
    watching.watch_from_tasks()
    assert alerted() == ["retry worker stale"]


def test_after_a_gap_in_the_watching_the_time_counts_anew(alerted):
    ended(jobs.WATCH, timedelta(minutes=11), counts={"since": (timezone.now() - timedelta(days=1)).isoformat(), "without_scheduler": 5})
    make_campaign(status=Campaign.Status.RUNNING)
    found = watching.watch_from_tasks()
    assert alerted() == []
    assert timezone.now() - datetime.fromisoformat(found["since"]) < timedelta(minutes=1)


# -- the tasks, seen by the scheduler ------------------------------------------------------------------------------------------

LONG = timedelta(minutes=10)


@pytest.mark.parametrize(
    ("last", "fields", "watched_for", "expected"),
    [
        (timedelta(minutes=11), {}, LONG, ["background tasks dead"]),
        (timedelta(minutes=11), {"locked_until": timedelta(minutes=-1)}, LONG, ["background tasks dead"]),
        (timedelta(minutes=9), {}, LONG, []),
        (timedelta(minutes=11), {"locked_until": timedelta(minutes=5)}, LONG, []),
        (timedelta(days=1), {}, timedelta(minutes=9), []),
        (None, {}, LONG, []),
    ],
    ids=["silent", "died at it", "busy", "at it", "this scheduler has just started", "never ran"],
)
def test_background_tasks_that_fell_silent_are_alerted(alerted, last, fields, watched_for, expected):
    if last is not None:
        ended(jobs.WATCH, last, **fields)
    watching.watch_from_scheduler(watched_for=watched_for)
    assert alerted() == expected


@pytest.mark.django_db(transaction=True)
def test_the_loop_looks_at_the_tasks(monkeypatch):
    """They ran once, and were killed."""
    tasks.watch()
    Job.objects.update(finished_at=timezone.now() - timedelta(minutes=11))
    monkeypatch.setattr(watching, "TASKS_ARE_SILENT_AFTER", timedelta(seconds=0.1))
    monkeypatch.setattr(loop, "WATCHED_EVERY", 0.1)
    heart = loop.start_heart(Heartbeat.Kind.SCHEDULER)
    assert loop.Loop(heart=heart, engine=Engine(owner=heart.pk), stop=StopAfter(0.6), interval=0.1).run() == 0
    row = Alert.objects.get()
    assert row.kind == "background tasks dead"
    assert row.detail.startswith("manage.py worker has given no sign of life for 11 min")


def test_a_look_that_fails_ends_nothing(monkeypatch, caplog):
    monkeypatch.setattr(watching, "database_now", lambda: None)
    watching.watch_from_scheduler(watched_for=LONG)
    assert caplog.messages == ["the background tasks could not be looked at"]


def test_two_watches_at_once_are_one(alerted):
    with jobs.running(jobs.WATCH, ttl=timedelta(minutes=1)):
        assert watching.watch_from_tasks() == {"busy": True, "told": 0}
    assert watching.watch_from_tasks()["without_scheduler"] == 0
    assert Job.objects.get(pk=jobs.WATCH).runs == 2

"""Each side sees to it that the other lives: the background tasks look at the scheduler and the retry job, the scheduler at the tasks.

What is wrong is alerted each minute for as long as it lasts, and so told once an hour.
"""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Max

from campaigns.models import Campaign
from dispatch import alerts, jobs, recovery
from dispatch.alerts import alert
from dispatch.models import Heartbeat, Job
from sessions_app.clock import database_now, spoken

logger = logging.getLogger("paceline.watching")

A_WATCH_TAKES_AT_MOST = timedelta(minutes=5)
TASKS_ARE_SILENT_AFTER = timedelta(minutes=10)  # both workers may be busy with tasks of a minute or two
A_GAP = TASKS_ARE_SILENT_AFTER  # after one, nobody is blamed for what happened in it
IN_A_ROW = ("without_scheduler", "without_driver")  # looks: no scheduler though there was work for one; nobody at all that drives
A_LOOK_COUNTS_FOR = timedelta(minutes=3)
A_STOP_IS_NO_DEATH_FOR = timedelta(minutes=2)  # a restart; or hosts whose cron lends a process each minute


def watch_from_tasks(*, now: datetime | None = None) -> dict[str, Any]:
    """Each minute, from the q-cluster: its own sign of life, a look at the others, and word to people. Returns what was found."""
    found: dict[str, Any] = {"busy": True}
    try:
        with jobs.running(jobs.WATCH, ttl=A_WATCH_TAKES_AT_MOST) as turn:
            turn.counts = found = _found_before(now or database_now())
            _look(found, now or database_now())
    except jobs.Busy:
        pass
    return found | {"told": alerts.tell_waiting()}


def _found_before(now: datetime) -> dict[str, Any]:
    """What one watch leaves to the next, in the record of the job: since when there was no gap, and what it saw how often in a row."""
    before = Job.objects.get(pk=jobs.WATCH)
    if before.finished_at is None or now - before.finished_at > A_GAP or "since" not in before.counts:
        return {"since": now.isoformat(), **dict.fromkeys(IN_A_ROW, 0)}
    return {"since": before.counts["since"], **{name: before.counts.get(name, 0) for name in IN_A_ROW}}


def _look(found: dict[str, Any], now: datetime) -> None:
    found["without_driver"] = 0 if recovery.somebody_lives(now) else found["without_driver"] + 1
    found["without_scheduler"] = found["without_scheduler"] + 1 if _scheduler_is_missing(now) else 0
    if found["without_scheduler"] > 1:  # twice: after an outage of the database its first beat may come after our first look
        _tell_of_scheduler(now)
    since = datetime.fromisoformat(found["since"])
    job = Job.objects.filter(pk=jobs.RETRY).first() or Job()
    silent_since = max(job.finished_at or since, since)
    if not job.runs_at(now) and now - silent_since > timedelta(minutes=settings.RETRY_WORKER_STALE_MINUTES):
        what = f"no batch of retries has ended since {silent_since:%Y-%m-%d %H:%M} UTC; "
        alert("retry worker stale", detail=f"{what}look at the schedule 'paceline: retry campaigns', or at campaign_retry --daemon")


def _scheduler_is_missing(now: datetime) -> bool:
    if settings.ENGINE_DRIVER != "service":
        return False
    if not (Campaign.objects.running().exists() or Campaign.objects.due(now).exists()):
        return False
    stopped_just_now = Heartbeat.objects.filter(stopped_at__gte=now - A_STOP_IS_NO_DEATH_FOR).exists()
    return not stopped_just_now and not recovery.somebody_lives(now)


def nobody_was_seen_twice(*, now: datetime | None = None) -> bool:
    """At the last two looks, a minute apart. One look is no proof: after an outage of the database everybody was silent."""
    job = Job.objects.filter(pk=jobs.WATCH, finished_at__gt=(now or database_now()) - A_LOOK_COUNTS_FOR).first()
    return job is not None and job.counts.get("without_driver", 0) > 1


def _tell_of_scheduler(now: datetime) -> None:
    last = Heartbeat.objects.aggregate(last=Max("beat_at"))["last"]
    running, due = Campaign.objects.running().count(), Campaign.objects.due(now).count()
    seen = f"the last sign of life was at {last:%Y-%m-%d %H:%M:%S} UTC" if last else "there never was one"
    what = f"campaigns running: {running}, due: {due}, and no scheduler is alive; {seen}"
    alert("scheduler dead", detail=f"{what}. Start manage.py run_scheduler", running=running, due=due)


def watch_from_scheduler(*, watched_for: timedelta, now: datetime | None = None) -> None:
    """Each minute, from the loop, which has watched without a gap for so long. Never raises.

    An installation whose background tasks never ran is told by the health page, not by an alert each hour.
    """
    try:
        now = now or database_now()
        job = Job.objects.filter(pk=jobs.WATCH, finished_at__lt=now - TASKS_ARE_SILENT_AFTER).first()
        if job is not None and job.finished_at is not None and watched_for >= TASKS_ARE_SILENT_AFTER and not job.runs_at(now):
            silent = spoken(now - job.finished_at)
            alert("background tasks dead", detail=f"manage.py worker has given no sign of life for {silent}. Start it, or look at its log")
    except Exception as error:
        logger.warning("the background tasks could not be looked at", extra={"error": type(error).__name__})

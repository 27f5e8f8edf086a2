"""Whether messages can go out now, and what is not as it should be. Read-only, cheap at any size, and answered while the database hangs.

Down: nothing can be sent though something should be. Degraded: anything else that is not as it should be. Nothing to do is fine.
"""

import logging
import threading
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import Error, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Greatest

from campaigns.models import Campaign
from dispatch import jobs
from dispatch.models import DispatchLog, Heartbeat, Job, WebhookEvent
from dispatch.recovery import is_gone
from sessions_app.clock import database_now, spoken
from sessions_app.models import Session

logger = logging.getLogger("paceline.health")

ANSWERS_WITHIN = timedelta(seconds=2)
TASKS_ARE_STALE_AFTER = timedelta(minutes=5)
LENT_AT_LEAST_EVERY = timedelta(minutes=5)  # by background tasks and HTTP calls, which drive the engine for a while and end
LATE_AFTER = timedelta(minutes=5)  # a due message with nothing in its way; longer than a lease and the recovery after it
A_PAUSE_IS_NEWS_FOR = timedelta(days=1)  # of a campaign on a session that is not connected
COUNTED_UP_TO = 1000
HEARTBEATS = 20  # the latest; the living are among them
ENDED = 3  # of the latest that ended cleanly


class Status(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True)
class Component:
    name: str
    status: Status
    detail: str  # a sentence; no names, no addresses, nothing secret
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Health:
    components: list[Component]

    @property
    def status(self) -> Status:
        """The worst there is."""
        found = {component.status for component in self.components}
        return next((status for status in (Status.DOWN, Status.DEGRADED) if status in found), Status.OK)

    def of(self, name: str) -> Component | None:
        return next((component for component in self.components if component.name == name), None)

    @property
    def cannot_be_read(self) -> str:
        """Why there is no point in asking the database for more; "" when it answers and has its tables."""
        ground = [component for component in (self.of("database"), self.of("migrations")) if component is not None]
        return next((f"{part.name}: {part.detail}" for part in ground if part.status == Status.DOWN), "")

    def as_dict(self, details: bool) -> dict[str, Any]:
        """Ready for JSON. Without details it is the status alone, for everybody."""
        words: dict[str, Any] = {"status": str(self.status)}
        return words | {"components": [asdict(component) for component in self.components]} if details else words


# -- looking, in a thread that may hang ----------------------------------------------------------------------------------------


class _Look(threading.Thread):
    """A connection of its own, so that it also finds out whether new ones are let in. A daemon: one that hangs keeps no process alive."""

    def __init__(self, within: timedelta) -> None:
        super().__init__(name="health", daemon=True)
        self._within = within
        self.health: Health | None = None

    def run(self) -> None:
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    milliseconds = max(1, round(self._within.total_seconds() * 1000))
                    cursor.execute(f"SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = {milliseconds}")
                components = look()
            self.health = Health(components)
        except Error as error:
            logger.warning("the database did not answer a look at the health", extra={"error": type(error).__name__})
            self.health = _no_database(f"it does not answer ({type(error).__name__}): is PostgreSQL running, and is DATABASE_URL right?")
        except Exception as error:
            logger.exception("a look at the health failed")
            self.health = _no_database(f"the look at it failed ({type(error).__name__}); see the log")
        finally:
            connection.close()


_one_at_a_time = threading.Lock()
_latest: _Look | None = None


def examine(*, within: timedelta = ANSWERS_WITHIN) -> Health:
    """Everything, or a database that is down once `within` is over.

    Its own connection sees what is committed. While one look hangs, nobody begins another: whoever asks waits for that one.
    """
    global _latest
    with _one_at_a_time:
        if _latest is None or not _latest.is_alive():
            _latest = _Look(within)
            _latest.start()
        current = _latest
    current.join(within.total_seconds())
    return current.health or _no_database(f"it did not answer within {spoken(within)}")


def _no_database(detail: str) -> Health:
    return Health([Component("database", Status.DOWN, detail)])


def look() -> list[Component]:
    """All components, on the connection of the caller. Without the tables there is nothing more to look at."""
    began = time.monotonic()
    now = database_now()
    took = round((time.monotonic() - began) * 1000, 1)
    database = Component("database", Status.OK, "it answers", {"latency_ms": took})
    migrations = _migrations()
    if migrations.status != Status.OK:
        return [database, migrations]
    jobs_by_name = {job.name: job for job in Job.objects.all()}
    return [
        database,
        migrations,
        _scheduler(now),
        _background_tasks(jobs_by_name.get(jobs.WATCH), now),
        _retry_worker(jobs_by_name.get(jobs.RETRY), now),
        _sessions(now),
        _webhooks(now),
        _oldest_due(now),
        _unconfirmed(),
    ]


# -- the components ------------------------------------------------------------------------------------------------------------

_all_applied = False  # once they are, they stay: the next release is another process


def _migrations() -> Component:
    global _all_applied
    if not _all_applied:
        executor = MigrationExecutor(connection)
        missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
        if missing:
            return Component("migrations", Status.DOWN, f"{missing} are not applied: run manage.py migrate", {"missing": missing})
        _all_applied = True
    return Component("migrations", Status.OK, "all are applied", {"missing": 0})


def _scheduler(now: datetime) -> Component:
    """Without one nothing goes out; that is grave only while something should."""
    beats = Heartbeat.objects.order_by("-beat_at")  # two questions: the one that there may be thousands of keeps only a few
    latest = [*beats.filter(stopped_at__isnull=True)[:HEARTBEATS], *beats.filter(stopped_at__isnull=False)[:ENDED]]
    alive = [beat for beat in latest if _drives(beat, now)]
    newest = max((beat.beat_at for beat in alive or latest), default=None)
    sends = (value for beat in latest for _, value in beat.measures.get("paceline_last_send_timestamp_seconds", []) if value)
    last_send = max(sends, default=None)
    facts = {
        "alive": len({(beat.host_identity, beat.pid) for beat in alive}),  # one that drives in turns has a heartbeat for each
        "heartbeat_age_seconds": _seconds(now, newest),
        "last_pass_at": _iso(max((beat.last_pass_at for beat in latest if beat.last_pass_at), default=None)),
        "last_send_at": _iso(datetime.fromtimestamp(last_send, now.tzinfo) if last_send else None),
    }
    if alive:
        return Component("scheduler", Status.OK, f"{facts['alive']} alive", facts)
    is_lent = settings.ENGINE_DRIVER == "schedule"
    remedy = "start manage.py worker, which drives the engine here" if is_lent else "start manage.py run_scheduler"
    if Campaign.objects.running().exists() or Campaign.objects.due(now).exists():
        return Component("scheduler", Status.DOWN, f"none is alive, and campaigns are running or due: {remedy}", facts)
    return Component("scheduler", Status.DEGRADED, f"none is alive; nothing is running or due now: {remedy}", facts)


def _drives(beat: Heartbeat, now: datetime) -> bool:
    """A scheduler lives between its beats. What is lent for a while is no less alive between two turns that ended well."""
    is_silent_for = now - beat.beat_at
    if beat.stopped_at is not None:
        return beat.kind != Heartbeat.Kind.SCHEDULER and is_silent_for <= LENT_AT_LEAST_EVERY
    return is_silent_for <= 3 * beat.interval and not is_gone(beat)


def _background_tasks(job: Job | None, now: datetime) -> Component:
    last = _last_sign(job, now)
    facts = {"age_seconds": _seconds(now, last)}
    if last is None:
        detail = "they have never run: start manage.py worker, and look for 'paceline: watch' among the scheduled tasks"
        return Component("background_tasks", Status.DEGRADED, detail, facts)
    if now - last > TASKS_ARE_STALE_AFTER:
        detail = f"silent for {spoken(now - last)}: start manage.py worker"
        return Component("background_tasks", Status.DEGRADED, detail, facts)
    return Component("background_tasks", Status.OK, f"last run {spoken(now - last)} ago", facts)


def _retry_worker(job: Job | None, now: datetime) -> Component:
    last = _last_sign(job, now)
    facts = {
        "age_seconds": _seconds(now, last),
        "last_succeeded_at": _iso(job.succeeded_at if job else None),
        "runs": job.runs if job else 0,
        "failures": job.failures if job else 0,
    }
    stale_after = timedelta(minutes=settings.RETRY_WORKER_STALE_MINUTES)
    remedy = "start manage.py worker, or manage.py campaign_retry --daemon, or call the job from a cron"
    if job is None or last is None:
        return Component("retry_worker", Status.DEGRADED, f"it has never run: {remedy}", facts)
    if now - last > stale_after:
        return Component("retry_worker", Status.DEGRADED, f"silent for {spoken(now - last)}: {remedy}", facts)
    if job.error:  # its kind alone: the text may hold names
        return Component("retry_worker", Status.DEGRADED, f"its last run failed ({job.error.partition(':')[0]}); see the log", facts)
    return Component("retry_worker", Status.OK, f"last run {spoken(now - last)} ago", facts)


def _last_sign(job: Job | None, now: datetime) -> datetime | None:
    """The end of the last run; the start of one that holds the lock, which is not stale for being busy."""
    if job is None:
        return None
    return job.started_at if job.runs_at(now) and job.started_at else job.finished_at


def _sessions(now: datetime) -> Component:
    """One that is not connected matters when something should go out on it; its campaign is paused within a second, so that counts too."""
    at_work = Q(status__in=[Campaign.Status.RUNNING, Campaign.Status.SCHEDULED])
    paused_lately = Q(status=Campaign.Status.PAUSED, updated_at__gt=now - A_PAUSE_IS_NEWS_FOR)
    wanted = Campaign.objects.filter(at_work | paused_lately, session=OuterRef("pk"))
    away = Session.objects.exclude(status=Session.Status.CONNECTED)
    needed = _counted(away.filter(Exists(wanted)))
    facts = {"not_connected": _counted(away), "needed": needed}
    if needed:
        detail = f"{needed} not connected, with campaigns that should go out: pair or check them on the page Sessions"
        return Component("sessions", Status.DEGRADED, detail, facts)
    return Component("sessions", Status.OK, f"{facts['not_connected']} not connected, none with a campaign that should go out", facts)


def _webhooks(now: datetime) -> Component:
    threshold = settings.WEBHOOK_FAILURE_RATE_THRESHOLD_PER_HOUR
    number = WebhookEvent.objects.failures_since(now - timedelta(hours=1), at_most=max(COUNTED_UP_TO, threshold))
    facts = {"failed_in_the_last_hour": number, "threshold": threshold}
    if number >= threshold:
        return Component("webhooks", Status.DEGRADED, f"{number} failed in the last hour: each row of Webhook events says why", facts)
    return Component("webhooks", Status.OK, f"{number} failed in the last hour", facts)


def _oldest_due(now: datetime) -> Component:
    """Due for long, with nothing in its way, and not taken: nothing goes out, and no page says why."""
    since = min((moment for campaign in _maybe_late(now) if (moment := _due_since(campaign, now))), default=None)
    if since is None or now - since <= LATE_AFTER:
        return Component("oldest_due", Status.OK, "nothing waits for longer than it must", {"age_seconds": None})
    detail = f"a message has been due for {spoken(now - since)} and was not taken: see the log of the scheduler, and run manage.py doctor"
    return Component("oldest_due", Status.DEGRADED, detail, {"age_seconds": _seconds(now, since)})


def _maybe_late(now: datetime) -> QuerySet[Campaign]:
    """RUNNING on a connected session whose lane nobody holds, with `since`: nothing was due before the start or the last edit of it."""
    waiting = DispatchLog.objects.pending().filter(campaign=OuterRef("pk")).order_by("available_at", "pk")
    is_free = Q(session__lane__isnull=True) | Q(session__lane__owner__isnull=True, session__lane__trouble="")
    running = Campaign.objects.running().filter(is_free, session__status=Session.Status.CONNECTED)
    late = running.annotate(
        first_at=Subquery(waiting.values("available_at")[:1]), since=Greatest("first_at", "updated_at", "session__lane__next_send_at")
    )
    return late.filter(first_at__isnull=False, since__lte=now - LATE_AFTER).select_related("session__lane").order_by()


def _due_since(campaign: Campaign, now: datetime) -> datetime | None:
    """Since when nothing has held it back, or from when on; None: its day is used up."""
    since: datetime = campaign.since  # type: ignore[attr-defined]
    session, lane = campaign.session, getattr(campaign.session, "lane", None)
    today = now.astimezone(ZoneInfo(session.time_zone))
    if session.daily_limit is not None and lane is not None and lane.day is not None and lane.day_count >= session.daily_limit:
        if lane.day >= today.date():
            return None
        since = max(since, today.replace(hour=0, minute=0, second=0, microsecond=0))
    if campaign.safe_hours == Campaign.SafeHours.BLOCK and (window := campaign.safe_window(now)) is not None:
        since = max(since, window.opens_at)
    return since


def _unconfirmed() -> Component:
    number = _counted(DispatchLog.objects.unconfirmed())
    facts = {"count": number, "counted_up_to": COUNTED_UP_TO}
    if number >= COUNTED_UP_TO:
        detail = f"{number} or more messages of which nobody knows whether they arrived: decide them on the page Messages"
        return Component("unconfirmed", Status.DEGRADED, detail, facts)
    return Component("unconfirmed", Status.OK, f"{number} messages of which nobody knows whether they arrived", facts)


def _counted(rows: QuerySet[Any], up_to: int = COUNTED_UP_TO) -> int:
    return rows.order_by()[:up_to].count()


def _seconds(now: datetime, moment: datetime | None) -> float | None:
    return round((now - moment).total_seconds(), 1) if moment else None


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None

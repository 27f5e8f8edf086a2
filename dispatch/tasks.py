"""What the q-cluster does on schedule. A host without a long-running service can drive the engine here: ENGINE_DRIVER=schedule."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast, Now
from django.utils import timezone

from campaigns.models import UploadedFile
from dispatch import delivery, driving, jobs, recovery, retry, watching
from dispatch.alerts import alert
from dispatch.models import Alert, Heartbeat, JobAnswer, Run, WebhookEvent
from sessions_app import polling, template_sync
from sessions_app.models import Session

DRIVE_EVERY = timedelta(minutes=1)
DRIVES_FOR = timedelta(seconds=50)  # shorter than the schedule's minute: the next drive finds this one gone
HEARTBEATS_ARE_KEPT_FOR = timedelta(days=7)
ALERTS_ARE_KEPT_FOR = timedelta(days=90)
JOB_ANSWERS_ARE_KEPT_FOR = timedelta(days=2)
WEBHOOK_EVENTS_ARE_KEPT_FOR = timedelta(days=30)
FAILED_EVENTS_ARE_KEPT_FOR = timedelta(days=90)
FILES_ARE_KEPT_FOR = timedelta(days=30)  # after the upload and after the last run with it: a message of that may be sent again
ROWS_AT_ONCE = 5000
MOST_CHUNKS = 100  # the rest tomorrow: a task has ten minutes


def recover() -> dict[str, int]:
    """Every few minutes; the same as `manage.py recover_stuck`, but silence is believed only when it was seen twice.

    Over an outage of the database every scheduler was silent; whoever looked first would take the living for dead and pause everything.
    """
    return recovery.recover_stuck(believes_silence=watching.nobody_was_seen_twice()).as_dict()


def drive() -> str:
    """One turn of the engine, through the same loop and with the same heartbeat as `manage.py run_scheduler`."""
    if settings.ENGINE_DRIVER != "schedule":
        return "left to run_scheduler (ENGINE_DRIVER=service)"
    return driving.lend(Heartbeat.Kind.SCHEDULE, interval=DRIVE_EVERY, seconds=DRIVES_FOR.total_seconds())


def retry_campaigns() -> dict[str, Any]:
    """Every few minutes; the same as `manage.py campaign_retry`. Another run that is on its way is no error."""
    try:
        return retry.run_batch(retry.Scope.from_settings())
    except jobs.Busy as busy:
        return {"busy": str(busy)}


def watch() -> dict[str, Any]:
    return watching.watch_from_tasks()


def apply_webhooks() -> dict[str, int]:
    """When something came in, and each minute for what waits. What is applied here is stored already, so nothing is lost with this task."""
    return delivery.apply_due().as_dict()


def find_silence() -> list[int]:
    """Each minute: sessions that send and are told nothing any more."""
    return delivery.find_silence()


def poll_sessions() -> dict[str, Any]:
    """Every few minutes: how the sessions in use are. What runs on one that is away is paused by the scheduler, which says why."""
    counts = polling.poll()
    for change in counts["changed"]:
        session = Session.objects.filter(name=change["session"]).first()
        if session is not None and change["was"] == Session.Status.CONNECTED:
            alert("session disconnected", session=session.pk, detail=session.status_detail or session.get_status_display().lower())
    return counts


def sync_templates() -> dict[str, int]:
    """Daily: the message templates of the channels that have them."""
    return template_sync.sync_all()


def keep_house() -> dict[str, int]:
    """Daily: what nobody will ask for again. Returns how many rows of each were removed."""
    gone = Q(stopped_at__isnull=False) | Q(recovered_at__isnull=False)
    failed = WebhookEvent.objects.filter(state=WebhookEvent.State.FAILED)
    done = WebhookEvent.objects.filter(state__in=[WebhookEvent.State.APPLIED, WebhookEvent.State.IGNORED])
    return {
        "heartbeats": _remove(Heartbeat.objects.filter(gone, beat_at__lt=Now() - HEARTBEATS_ARE_KEPT_FOR)),
        "alerts": _remove(Alert.objects.filter(last_at__lt=Now() - ALERTS_ARE_KEPT_FOR)),
        "job_answers": _remove(JobAnswer.objects.filter(created_at__lt=Now() - JOB_ANSWERS_ARE_KEPT_FOR)),
        "webhook_events": _remove(done.filter(received_at__lt=Now() - WEBHOOK_EVENTS_ARE_KEPT_FOR)),
        "uploaded_files": _remove(_files_of_nobody()),
        "failed_events": _remove(failed.filter(received_at__lt=Now() - FAILED_EVENTS_ARE_KEPT_FOR)),
    }


def _files_of_nobody() -> QuerySet[UploadedFile]:
    """Not of a step, and not of what is or was lately sent as it stood before somebody changed its step."""
    before = timezone.now() - FILES_ARE_KEPT_FOR
    sent = Run.objects.filter(Q(status=Run.Status.RUNNING) | Q(created_at__gte=before)).annotate(words=Cast("message", TextField()))
    return UploadedFile.objects.named_by_no_step(before).filter(~Exists(sent.filter(words__contains=OuterRef("token"))))


def _remove(rows: QuerySet[Any]) -> int:
    """In chunks, each its own transaction. What came back to life since it was looked up is left: the condition is asked again."""
    removed = 0
    for _ in range(MOST_CHUNKS):
        chunk = list(rows.order_by().values_list("pk", flat=True)[:ROWS_AT_ONCE])
        removed += rows.filter(pk__in=chunk).delete()[0] if chunk else 0
        if len(chunk) < ROWS_AT_ONCE:
            break
    return removed

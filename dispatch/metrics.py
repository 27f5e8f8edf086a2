"""What /metrics answers: what each process counted while it sent, as its heartbeat brought it, and what the database says now.

Everything is cheap at any size: run counters, lanes and short windows, never a count over the ledger.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Max, Q, Sum
from django.db.models.functions import Greatest
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from campaigns.models import Campaign
from dispatch import measures
from dispatch.models import Alert, Heartbeat, Job, Lane, Run, WebhookEvent
from sessions_app.clock import database_now
from sessions_app.models import Session

A_PROCESS_IS_SHOWN_FOR = timedelta(minutes=10)  # after its last beat
OUTCOMES = ("sent", "failed", "unconfirmed", "skipped")
EVENTS_LOOKED_AT = 10_000  # of the last hour; the failed are counted exactly


class _Everything(Collector):
    def collect(self) -> Iterator[Metric]:
        now = database_now()
        yield from _of_the_processes(now)
        yield from _messages()
        yield from _lanes(now)
        yield from _sessions_and_campaigns()
        yield from _schedulers(now)
        yield from _jobs_and_alerts()
        yield from _webhooks(now)


def exposition() -> bytes:
    """In Prometheus' text format, version 0.0.4."""
    return generate_latest(_Everything())


def _of_the_processes(now: datetime) -> Iterator[Metric]:
    """A process that drives in turns has many heartbeats; the last one has it all."""
    last: dict[str, Heartbeat] = {}
    for beat in Heartbeat.objects.filter(beat_at__gt=now - A_PROCESS_IS_SHOWN_FOR).order_by("beat_at"):
        last[f"{beat.host}:{beat.pid}"] = beat
    for known in measures.REGISTRY.collect():
        family = Metric(known.name, known.documentation, known.type, known.unit)
        names = {known.name, *(f"{known.name}_{suffix}" for suffix in ("total", "bucket", "count", "sum"))}
        for process, beat in sorted(last.items()):
            for name in sorted(names & beat.measures.keys()):
                for labels, value in beat.measures[name]:
                    family.add_sample(name, {**labels, "process": process, "kind": beat.kind}, value)
        yield family


def _messages() -> Iterator[Metric]:
    family = _gauge("paceline_messages", "Planned messages by what became of them; waiting: not sent yet.", "channel", "outcome")
    sums = [Sum(name) for name in ("planned", *OUTCOMES)]
    for channel, planned, *counts in Run.objects.order_by().values_list("campaign__session__channel").annotate(*sums):
        for outcome, number in zip((*OUTCOMES, "waiting"), (*counts, planned - sum(counts)), strict=True):
            family.add_metric([channel, outcome], number)
    yield family


def _lanes(now: datetime) -> Iterator[Metric]:
    """An open lane has something to send; one that used up its day is not due, and yesterday's counts may still stand on it."""
    used_up = Q(session__daily_limit__isnull=False, day_count__gte=F("session__daily_limit"), day__gte=(now - timedelta(days=1)).date())
    can_send = Q(campaign__status=Campaign.Status.RUNNING, session__status=Session.Status.CONNECTED)
    due = Q(can_send, is_open=True, next_send_at__lte=now, owner__isnull=True, trouble="")
    row = Lane.objects.filter(in_flight__gt=0).aggregate(lanes=Count("pk"), messages=Sum("in_flight", default=0))
    since = Greatest("next_send_at", "campaign__updated_at")
    waiting = Lane.objects.filter(due).exclude(used_up).annotate(since=since).order_by("since").values_list("since", flat=True)
    moments = list(waiting)
    age = max(0.0, (now - moments[0]).total_seconds()) if moments else 0.0
    yield _gauge("paceline_lanes_due", "Sessions that could send now and that no process has taken yet.", value=len(moments))
    yield _gauge("paceline_lanes_in_flight", "Sessions with a message on its way.", value=row["lanes"])
    yield _gauge("paceline_messages_in_flight", "Messages on their way.", value=row["messages"])
    yield _gauge(
        "paceline_oldest_due_age_seconds", "Since when the session that waits longest for a process has been due; 0: none.", value=age
    )


def _sessions_and_campaigns() -> Iterator[Metric]:
    sessions = _gauge("paceline_sessions", "Sessions by channel and state.", "channel", "state")
    for channel, status, number in Session.objects.order_by().values_list("channel", "status").annotate(n=Count("pk")):
        sessions.add_metric([channel, status], number)
    yield sessions
    campaigns = _gauge("paceline_campaigns", "Campaigns by status.", "status")
    found = dict(Campaign.objects.order_by().values_list("status").annotate(n=Count("pk")))
    for status in Campaign.Status.values:
        campaigns.add_metric([status], found.get(status, 0))
    yield campaigns


def _schedulers(now: datetime) -> Iterator[Metric]:
    yield _gauge("paceline_schedulers_alive", "Processes that drive the engine.", value=Heartbeat.objects.alive(now).count())
    newest = Heartbeat.objects.aggregate(newest=Max("beat_at"))["newest"]
    if newest is not None:
        age = max(0.0, (now - newest).total_seconds())
        yield _gauge("paceline_scheduler_heartbeat_age_seconds", "Since the last beat of any process that drives the engine.", value=age)


def _jobs_and_alerts() -> Iterator[Metric]:
    runs = CounterMetricFamily("paceline_job_runs", "Runs of each job that came to their end.", labels=["job"])
    failures = CounterMetricFamily("paceline_job_failures", "Runs of each job that failed.", labels=["job"])
    succeeded = _gauge("paceline_job_last_success_timestamp_seconds", "When a run of the job succeeded last.", "job")
    for job in Job.objects.all():
        runs.add_metric([job.name], job.runs)
        failures.add_metric([job.name], job.failures)
        if job.succeeded_at is not None:
            succeeded.add_metric([job.name], job.succeeded_at.timestamp())
    alerts = CounterMetricFamily("paceline_alerts", "What somebody should be told, by kind; each time that it happened.", labels=["kind"])
    for kind, number in Alert.objects.order_by().values_list("kind").annotate(n=Sum("times")):
        alerts.add_metric([kind], number)
    yield from (runs, failures, succeeded, alerts)


def _webhooks(now: datetime) -> Iterator[Metric]:
    state = WebhookEvent.State
    lately = WebhookEvent.objects.filter(received_at__gt=now - timedelta(hours=1))
    latest = lately.order_by("-received_at")[:EVENTS_LOOKED_AT]
    wanted = [state.RECEIVED, state.APPLIED, state.IGNORED]
    found: dict[str, Any] = latest.aggregate(**{str(name): Count("pk", filter=Q(state=name)) for name in wanted})
    found[str(state.FAILED)] = WebhookEvent.objects.failures_since(now - timedelta(hours=1))
    help_text = f"Events of the last hour by state; all but FAILED of the latest {EVENTS_LOOKED_AT} at most."
    family = _gauge("paceline_webhook_events_last_hour", help_text, "state")
    for name, number in found.items():
        family.add_metric([name], number)
    yield family


def _gauge(name: str, help_text: str, *labels: str, value: float | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=value) if value is not None else GaugeMetricFamily(name, help_text, labels=labels)

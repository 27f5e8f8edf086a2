"""Who drives the engine: one row per process start."""

import uuid
from datetime import datetime

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class HeartbeatQuerySet(models.QuerySet["Heartbeat"]):
    def alive(self, now: datetime) -> "HeartbeatQuerySet":
        """Not stopped, and not silent for three intervals. Whether the pid still exists is for whoever sits on that host to look."""
        return self.filter(stopped_at__isnull=True, beat_at__gte=now - 3 * F("interval"))


class Heartbeat(models.Model):
    class Kind(models.TextChoices):
        SCHEDULER = "SCHEDULER", "run_scheduler"
        SCHEDULE = "SCHEDULE", "background tasks"
        JOB = "JOB", "HTTP job"

    uuid = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)  # also the owner in Lane
    kind = models.CharField(max_length=20, choices=Kind)
    host = models.CharField(max_length=255)  # name of the host, to be read by people
    host_identity = models.CharField(max_length=255)  # this boot of this machine and pid namespace: only there does a pid mean anything
    pid = models.PositiveIntegerField()
    version = models.CharField(max_length=40)
    interval = models.DurationField()
    started_at = models.DateTimeField(db_default=Now())
    beat_at = models.DateTimeField(db_default=Now())
    last_pass_at = models.DateTimeField(null=True)
    stopped_at = models.DateTimeField(null=True)  # cleanly
    recovered_at = models.DateTimeField(null=True)  # its death was seen to
    measures = models.JSONField(default=dict)  # what this process has counted since it started, for /metrics

    objects = HeartbeatQuerySet.as_manager()

    class Meta:
        ordering = ["-beat_at"]
        indexes = [models.Index(fields=["beat_at"], condition=Q(stopped_at__isnull=True), name="heartbeat_running")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} on {self.host} ({self.pid})"

"""What somebody should be told: one row per kind and subject, so that the same trouble is told once an hour and never fills the table."""

from datetime import datetime

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class AlertQuerySet(models.QuerySet["Alert"]):
    def to_tell(self, now: datetime) -> "AlertQuerySet":
        return self.filter(times__gt=F("times_told"), tell_at__lte=now).order_by("tell_at")


class Alert(models.Model):
    kind = models.CharField(max_length=60)
    subject = models.CharField(max_length=100, blank=True, default="")  # "campaign 7", "session 3"; "" for the installation
    detail = models.CharField(max_length=500, blank=True, default="")  # of the last time
    facts = models.JSONField(default=dict)  # of the last time; no secrets, no texts, no whole phone numbers
    times = models.PositiveBigIntegerField(default=1)  # how often it happened
    times_told = models.PositiveBigIntegerField(default=0)  # `times` when it was told last
    first_at = models.DateTimeField(db_default=Now())
    last_at = models.DateTimeField(db_default=Now())
    told_at = models.DateTimeField(null=True)
    tell_at = models.DateTimeField(db_default=Now())  # not before: an hour after the last time, or later after a failed try
    failures = models.PositiveIntegerField(default=0)  # tries in a row that nobody could be told at
    error = models.CharField(max_length=500, blank=True, default="")

    objects = AlertQuerySet.as_manager()

    class Meta:
        ordering = ["-last_at"]
        constraints = [models.UniqueConstraint(fields=["kind", "subject"], name="one_alert_per_kind_and_subject")]
        indexes = [
            models.Index(fields=["tell_at"], condition=Q(times__gt=F("times_told")), name="alert_to_tell"),
            models.Index(fields=["-last_at"], name="alert_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}" if self.subject else self.kind

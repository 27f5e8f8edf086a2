"""What the providers told us on their own: receipts, replies, the state of a session. Stored once, answered at once, applied afterwards."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from sessions_app.models import Session


class WebhookEvent(models.Model):
    class State(models.TextChoices):
        RECEIVED = "RECEIVED", "Received"  # waits to be applied
        APPLIED = "APPLIED", "Applied"
        IGNORED = "IGNORED", "Ignored"  # of a kind that means nothing to us
        FAILED = "FAILED", "Failed"  # could not be applied; `error` says why

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="webhook_events")
    event_id = models.CharField(max_length=200)  # the provider's own, or a hash of the item where it has none
    kind = models.CharField(max_length=60, blank=True, default="")  # as the provider calls it
    payload = models.JSONField(default=dict)  # one item, not the request: one bad item does not lose the others
    state = models.CharField(max_length=20, choices=State, default=State.RECEIVED)
    error = models.CharField(max_length=500, blank=True, default="")
    tries = models.PositiveSmallIntegerField(default=0)
    received_at = models.DateTimeField(db_default=Now())
    apply_at = models.DateTimeField(db_default=Now())  # not before: a receipt may come before the answer that it is about
    applied_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(fields=["session", "event_id"], name="one_webhook_event_per_id"),
            models.CheckConstraint(condition=Q(state__in=["RECEIVED", "APPLIED", "IGNORED", "FAILED"]), name="webhook_state_is_known"),
        ]
        indexes = [
            models.Index(fields=["apply_at", "id"], condition=Q(state="RECEIVED"), name="webhook_to_apply"),
            models.Index(fields=["received_at"], condition=Q(state="FAILED"), name="webhook_failed"),
            models.Index(fields=["received_at"], name="webhook_age"),
        ]

    def __str__(self) -> str:
        return f"{self.kind or 'event'} of {self.session}"

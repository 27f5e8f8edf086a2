"""One going-out of one step: who was planned, and what became of them."""

from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import F, Q

from campaigns.models import Campaign, CampaignStep


class RunQuerySet(models.QuerySet["Run"]):
    def live(self) -> "RunQuerySet":
        return self.filter(status=Run.Status.RUNNING)

    def settled(self) -> "RunQuerySet":
        """Every planned row has its outcome; unconfirmed ones do not hold a run up."""
        return self.live().filter(rows_complete=True, planned=F("sent") + F("failed") + F("unconfirmed") + F("skipped"))


class Run(models.Model):
    class Status(models.TextChoices):
        RUNNING = "RUNNING", "Running"
        COMPLETED = "COMPLETED", "Completed"
        STOPPED = "STOPPED", "Stopped"
        SKIPPED = "SKIPPED", "Passed over"

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="runs")
    step = models.ForeignKey(CampaignStep, on_delete=models.CASCADE, related_name="runs")
    number = models.PositiveIntegerField()
    scheduled_for = models.DateTimeField(null=True, blank=True)
    message = models.JSONField(encoder=DjangoJSONEncoder, default=dict)  # frozen when the run was made: fields of providers.base.Message
    pacing = models.JSONField(default=dict)  # the values in force when the run was made, for whoever asks later
    status = models.CharField(max_length=20, choices=Status, default=Status.RUNNING)
    reason = models.CharField(max_length=500, blank=True, default="")

    planned = models.PositiveIntegerField(default=0)  # rows made so far; final once rows_complete
    rows_complete = models.BooleanField(default=False)
    last_order = models.PositiveIntegerField(null=True, blank=True)  # where the making of rows goes on; sending has no cursor
    last_recipient_id = models.BigIntegerField(null=True, blank=True)
    # Moved in the same statement as the rows they count; `planned` minus their sum is what is pending or sending.
    sent = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    unconfirmed = models.PositiveIntegerField(default=0)
    skipped = models.PositiveIntegerField(default=0)

    created_at = models.DateTimeField(auto_now_add=True)
    completed_at = models.DateTimeField(null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(fields=["step", "number"], name="run_number_is_unique_in_step"),
            # Two schedulers that see one occurrence due make one run of it.
            models.UniqueConstraint(fields=["step", "scheduled_for"], name="run_occurrence_is_unique_in_step"),
            models.CheckConstraint(condition=Q(status__in=["RUNNING", "COMPLETED", "STOPPED", "SKIPPED"]), name="run_status_is_known"),
            models.CheckConstraint(
                condition=Q(planned__gte=F("sent") + F("failed") + F("unconfirmed") + F("skipped")),
                name="run_counts_at_most_what_was_planned",
            ),
        ]
        indexes = [
            # each pass: whose rows are to be made, swept, or are all settled
            models.Index(fields=["campaign"], condition=Q(status="RUNNING"), name="run_live"),
        ]

    def __str__(self) -> str:
        return f"{self.step}, run {self.number}"

    @property
    def waiting(self) -> int:
        """Pending or on their way."""
        return self.planned - self.sent - self.failed - self.unconfirmed - self.skipped

    def counts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("planned", "waiting", "sent", "failed", "unconfirmed", "skipped")}

"""One message of a campaign: its text, and when it goes out."""

from datetime import datetime
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.validators import URLValidator
from django.db import models
from django.db.models import Q

from campaigns import recurrence
from campaigns.models.campaign import Campaign
from sessions_app.models import validate_time_zone
from sessions_app.providers.base import Message, MessageType


def validate_recurrence(kind: str) -> None:
    if kind not in recurrence.TYPES:
        raise ValidationError(f'"{kind}" is not a recurrence. Use one of: {", ".join(recurrence.TYPES)}.')


class CampaignStepQuerySet(models.QuerySet["CampaignStep"]):
    def waiting(self) -> "CampaignStepQuerySet":
        """Steps that have a time and have not begun it, the earliest first."""
        return self.filter(next_run_at__isnull=False).order_by("next_run_at", "order")


class CampaignStep(models.Model):
    class Status(models.TextChoices):
        PENDING = "PENDING", "Not reached"
        SCHEDULED = "SCHEDULED", "Waits for its time"
        RUNNING = "RUNNING", "Running"
        PAUSED = "PAUSED", "Paused"
        COMPLETED = "COMPLETED", "Completed"
        FAILED = "FAILED", "Stopped"

    class Type(models.TextChoices):
        TEXT = "TEXT", "Text"
        IMAGE = "IMAGE", "Image"
        VIDEO = "VIDEO", "Video"
        AUDIO = "AUDIO", "Audio"
        DOCUMENT = "DOCUMENT", "Document"
        TEMPLATE = "TEMPLATE", "Template"

    class PreviewQuality(models.TextChoices):
        LOW = "LOW", "Low"
        HIGH = "HIGH", "High"

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="steps")
    order = models.PositiveIntegerField(default=1)
    name = models.CharField(max_length=200, blank=True, default="")
    message_type = models.CharField(max_length=20, choices=Type, default=Type.TEXT)
    text = models.TextField(blank=True, default="", help_text='Variables: {{ name }} or {{ city|default:"your town" }}.')
    media_url = models.CharField("media URL", max_length=2000, blank=True, default="", validators=[URLValidator(["https", "http"])])
    caption = models.TextField(blank=True, default="")
    filename = models.CharField(
        "file name",
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="Of a document, as people see it. Empty: from its URL.",
    )
    subject = models.CharField(
        max_length=250, blank=True, default="", db_default="", help_text="E-mail, and channels that have a title. Variables as in the text."
    )
    html = models.TextField(
        "HTML",
        blank=True,
        default="",
        db_default="",
        help_text="E-mail: shown instead of the text where the reader can. What variables are filled with is escaped.",
    )
    link_preview = models.BooleanField(default=True)
    link_preview_quality = models.CharField(max_length=10, choices=PreviewQuality, default=PreviewQuality.LOW)
    template_name = models.CharField(max_length=200, blank=True, default="")
    template_language = models.CharField(max_length=20, blank=True, default="")
    template_components = models.JSONField(blank=True, default=list)

    scheduled_at = models.DateTimeField(
        "send at", null=True, blank=True, help_text="In the campaign's time zone. Empty: as soon as it is reached."
    )
    delay_after_previous = models.DurationField(
        null=True, blank=True, help_text="Days and time after the step before is done, for example 1 12:00:00."
    )
    time_zone = models.CharField(
        max_length=64, blank=True, default="", validators=[validate_time_zone], help_text="Empty: the campaign's time zone."
    )
    recurrence_type = models.CharField(max_length=20, blank=True, default="", validators=[validate_recurrence])
    recurrence_until = models.DateField("repeat until", null=True, blank=True, help_text="The last day on which it may run.")
    recurrence_count = models.PositiveIntegerField("repeat count", null=True, blank=True, help_text="How many times it runs in all.")

    status = models.CharField(max_length=20, choices=Status, default=Status.PENDING, editable=False)
    next_run_at = models.DateTimeField(null=True, blank=True, editable=False)
    runs_made = models.PositiveIntegerField(default=0, editable=False)  # runs begun, passed-over ones not counted

    objects = CampaignStepQuerySet.as_manager()

    class Meta:
        ordering = ["campaign", "order"]
        verbose_name = "step"
        constraints = [
            # deferred: a form may swap the order of two steps
            models.UniqueConstraint(
                fields=["campaign", "order"], name="step_order_is_unique_in_campaign", deferrable=models.Deferrable.DEFERRED
            ),
            models.CheckConstraint(
                condition=Q(status__in=["PENDING", "SCHEDULED", "RUNNING", "PAUSED", "COMPLETED", "FAILED"]), name="step_status_is_known"
            ),
            models.CheckConstraint(condition=Q(recurrence_type__in=["", *recurrence.TYPES]), name="step_recurrence_is_known"),
        ]

    def __str__(self) -> str:
        return self.name or f"Step {self.order}"

    def clean(self) -> None:
        if self.scheduled_at and self.delay_after_previous is not None:
            raise ValidationError("A step has a time of its own or a delay after the step before, not both.")
        if self.delay_after_previous is not None and self.delay_after_previous.total_seconds() < 0:
            raise ValidationError({"delay_after_previous": "A delay cannot be negative."})
        if not self.recurrence_type and (self.recurrence_until or self.recurrence_count):
            raise ValidationError({"recurrence_type": "Say how often it repeats, or leave the end and the count empty."})
        if self.recurrence_count == 0:
            raise ValidationError({"recurrence_count": "It must run at least once."})
        if self.message_type == self.Type.TEXT and not self.text.strip():
            raise ValidationError({"text": "Write the text of this step."})

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone) if self.time_zone else self.campaign.zone

    @property
    def message(self) -> Message:
        """As written by staff: variables are not filled yet."""
        return Message(
            type=MessageType(self.message_type),
            text=self.text,
            media_url=self.media_url,
            caption=self.caption,
            link_preview=self.link_preview,
            link_preview_high_quality=self.link_preview_quality == self.PreviewQuality.HIGH,
            template_name=self.template_name,
            template_language=self.template_language,
            template_components=tuple(self.template_components),
            subject=self.subject,
            html=self.html,
            filename=self.filename,
        )

    def first_run_at(self, reached_at: datetime) -> datetime:
        """When it is due once the step before it is done (or, for the first, the campaign started)."""
        if self.scheduled_at:
            return self.scheduled_at
        return reached_at + self.delay_after_previous if self.delay_after_previous else reached_at

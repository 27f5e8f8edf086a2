"""What is sent, by whom, and how carefully."""

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from sessions_app import pacing as rules
from sessions_app.models import Session, default_time_zone, validate_time_zone


class CampaignQuerySet(models.QuerySet["Campaign"]):
    def due(self, now: datetime) -> "CampaignQuerySet":
        """Scheduled campaigns whose moment has come, the longest due first."""
        return self.filter(status=Campaign.Status.SCHEDULED, due_at__lte=now).order_by("due_at", "pk")

    def on_free_sessions(self) -> "CampaignQuerySet":
        running = Campaign.objects.filter(status=Campaign.Status.RUNNING, session=models.OuterRef("session"))
        return self.filter(~models.Exists(running))

    def running(self) -> "CampaignQuerySet":
        return self.filter(status=Campaign.Status.RUNNING)

    def with_totals(self) -> "CampaignQuerySet":
        """Adds planned, sent, failed, unconfirmed and skipped, summed over the campaign's runs by one grouped query."""
        names = ("planned", "sent", "failed", "unconfirmed", "skipped")
        return self.annotate(**{name: models.functions.Coalesce(models.Sum(f"runs__{name}"), 0) for name in names})


class Campaign(models.Model):
    class Status(models.TextChoices):
        DRAFT = "DRAFT", "Draft"
        SCHEDULED = "SCHEDULED", "Scheduled"
        RUNNING = "RUNNING", "Running"
        PAUSED = "PAUSED", "Paused"
        COMPLETED = "COMPLETED", "Completed"
        FAILED = "FAILED", "Stopped"

    class SafeHours(models.TextChoices):
        WARN = "WARN", "Warn outside them"
        BLOCK = "BLOCK", "Wait until they begin"
        OFF = "OFF", "Off"

    class UnconfirmedDefault(models.TextChoices):
        ASK = "ASK", "Wait for a person"
        MARK_SENT = "MARK_SENT", "Mark as sent"
        GIVE_UP = "GIVE_UP", "Give up"
        SEND_AGAIN = "SEND_AGAIN", "Send again (it may double)"

    name = models.CharField(max_length=200)
    tenant = models.CharField(max_length=100, blank=True, default="", help_text="A label of your own, to tell clients or teams apart.")
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="campaigns")
    status = models.CharField(max_length=20, choices=Status, default=Status.DRAFT, editable=False)
    status_reason = models.CharField(max_length=500, blank=True, default="", editable=False)
    epoch = models.PositiveIntegerField(default=0, editable=False)  # +1 at each start and resume: the lane warms up again

    min_interval = models.PositiveIntegerField("shortest interval (s)", default=8, validators=[MinValueValidator(1)])
    max_interval = models.PositiveIntegerField("longest interval (s)", default=25, validators=[MinValueValidator(1)])
    batch_size = models.PositiveIntegerField("batch size", default=10, validators=[MinValueValidator(1)])
    batch_pause = models.PositiveIntegerField("pause after a batch (s)", default=120, validators=[MinValueValidator(1)])

    safe_hours = models.CharField(max_length=10, choices=SafeHours, default=SafeHours.WARN)
    safe_from = models.TimeField(default=time(7, 0))
    safe_until = models.TimeField(default=time(22, 0))
    time_zone = models.CharField(
        max_length=64, default=default_time_zone, validators=[validate_time_zone], help_text="Safe hours and times of this campaign."
    )
    allow_groups = models.BooleanField(
        "groups and channels allowed", default=False, help_text="Off: an address that is a group or a channel is refused at import."
    )

    unconfirmed_default = models.CharField(
        "messages that stay unconfirmed",
        max_length=20,
        choices=UnconfirmedDefault,
        default=UnconfirmedDefault.ASK,
        db_default="ASK",
        help_text="What becomes of a message of which nobody knows whether it arrived, once the channel was asked for the last time or "
        "cannot be asked; never before ten minutes. Sending again may double: who has got it gets it twice. It is done once for each "
        "message; one that was sent again already waits for a person.",
    )

    scheduled_at = models.DateTimeField("start at", null=True, blank=True, help_text="In the campaign's time zone. Empty: start by hand.")
    grace_seconds = models.PositiveIntegerField(
        "grace (s)", null=True, blank=True, help_text="Seen later than this after its time, it pauses instead of sending late."
    )
    due_at = models.DateTimeField(null=True, blank=True, editable=False)  # when SCHEDULED: the moment its next step or run is due
    due_seen_at = models.DateTimeField(null=True, blank=True, editable=False)  # a scheduler saw it due in time: it waits its turn
    started_at = models.DateTimeField(null=True, blank=True, editable=False)
    completed_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = CampaignQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = [
            # Two campaigns on one number at once is how numbers are burnt; a lock in memory does not outlive a process.
            models.UniqueConstraint(fields=["session"], condition=Q(status="RUNNING"), name="one_running_campaign_per_session"),
            models.CheckConstraint(
                condition=Q(status__in=["DRAFT", "SCHEDULED", "RUNNING", "PAUSED", "COMPLETED", "FAILED"]),
                name="campaign_status_is_known",
            ),
            models.CheckConstraint(condition=~Q(status="SCHEDULED") | Q(due_at__isnull=False), name="scheduled_campaign_has_a_time"),
            models.CheckConstraint(
                condition=Q(min_interval__gte=1, max_interval__gte=1, batch_size__gte=1, batch_pause__gte=1),
                name="campaign_pacing_is_positive",
            ),
            models.CheckConstraint(condition=Q(safe_hours__in=["WARN", "BLOCK", "OFF"]), name="campaign_safe_hours_is_known"),
            models.CheckConstraint(
                condition=Q(unconfirmed_default__in=["ASK", "MARK_SENT", "GIVE_UP", "SEND_AGAIN"]),
                name="campaign_unconfirmed_default_is_known",
            ),
        ]
        indexes = [
            # each pass: what is due, earliest first
            models.Index(fields=["due_at"], condition=Q(status="SCHEDULED"), name="campaign_due"),
            # each pass: whose unconfirmed messages are not left to a person
            models.Index(
                fields=["id"],
                condition=Q(unconfirmed_default__in=["MARK_SENT", "GIVE_UP", "SEND_AGAIN"]),
                name="campaign_decides_by_itself",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if self.min_interval and self.max_interval and self.max_interval < self.min_interval:
            sentence = f"The longest interval ({self.max_interval} s) is below the shortest ({self.min_interval} s)."
            raise ValidationError({"max_interval": sentence})

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)

    @property
    def pacing(self) -> rules.Human:
        """The values that will really be used on a human-paced channel."""
        return rules.human_of(self)

    @property
    def grace(self) -> timedelta:
        seconds = settings.SCHEDULE_GRACE_SECONDS if self.grace_seconds is None else self.grace_seconds
        return timedelta(seconds=seconds)

    def safe_window(self, now: datetime) -> rules.Window | None:
        """The window of safe hours that holds now, or the next one; None when they are off or have no length."""
        if self.safe_hours == Campaign.SafeHours.OFF:
            return None
        return rules.safe_window(now, starts=self.safe_from, ends=self.safe_until, zone=self.zone)

    def outcomes(self) -> str:
        """ "completed: 28 sent, 2 unconfirmed": from the runs, by one query."""
        names = ("sent", "failed", "unconfirmed", "skipped")
        totals = self.runs.aggregate(**{name: models.Sum(name, default=0) for name in names})
        return "completed: " + ", ".join(f"{totals[name]} {name}" for name in names if totals[name] or name == "sent")

    def is_live(self) -> bool:
        return self.status in {Campaign.Status.SCHEDULED, Campaign.Status.RUNNING, Campaign.Status.PAUSED}

"""The ledger: one row per message, audit trail and queue at once."""

import uuid
from datetime import datetime

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from campaigns.models import Campaign, CampaignStep, Recipient
from dispatch.models.run import Run
from sessions_app.models import Session


class DispatchLogQuerySet(models.QuerySet["DispatchLog"]):
    def pending(self) -> "DispatchLogQuerySet":
        return self.filter(status=DispatchLog.Status.PENDING)

    def in_flight(self) -> "DispatchLogQuerySet":
        return self.filter(status=DispatchLog.Status.SENDING)

    def unconfirmed(self) -> "DispatchLogQuerySet":
        return self.filter(status=DispatchLog.Status.UNCONFIRMED)

    def to_verify(self, now: datetime) -> "DispatchLogQuerySet":
        return self.unconfirmed().filter(verify_at__lte=now).order_by("verify_at")

    def to_retry(self, now: datetime) -> "DispatchLogQuerySet":
        """FAILED, worth another try, and waited long enough; of campaigns that can still send, to people that are still there."""
        over = [Campaign.Status.FAILED, Campaign.Status.DRAFT]
        waited = self.filter(status=DispatchLog.Status.FAILED, retry_at__lte=now, recipient__isnull=False, run__isnull=False)
        return waited.exclude(campaign__status__in=over).order_by("retry_at")

    def left_open(self, before: datetime) -> "DispatchLogQuerySet":
        """Unconfirmed since before then, never to be asked about again, in campaigns that do not leave it to a person.

        What is to be sent again must be able to go out, and only once: a second doubt is for a person.
        """
        default = Campaign.UnconfirmedDefault
        over = self.unconfirmed().filter(verify_at__isnull=True, run__isnull=False, unconfirmed_at__lte=before)
        decides = over.filter(campaign__unconfirmed_default__in=[default.MARK_SENT, default.GIVE_UP, default.SEND_AGAIN])
        can_go_out = Q(decided_by="", recipient__isnull=False) & ~Q(campaign__status=Campaign.Status.FAILED)
        return decides.filter(~Q(campaign__unconfirmed_default=default.SEND_AGAIN) | can_go_out)

    def orphaned(self) -> "DispatchLogQuerySet":
        """Waiting for a person who was deleted meanwhile."""
        return self.pending().filter(kind=DispatchLog.Kind.MESSAGE, recipient__isnull=True)


class DispatchLog(models.Model):
    class Status(models.TextChoices):
        PENDING = "PENDING", "Pending"
        SENDING = "SENDING", "Sending"
        SENT = "SENT", "Sent"
        FAILED = "FAILED", "Failed"
        UNCONFIRMED = "UNCONFIRMED", "Unconfirmed"
        SKIPPED = "SKIPPED", "Skipped"

    class Kind(models.TextChoices):
        MESSAGE = "MESSAGE", "Message"
        TEST = "TEST", "Test"
        NUMBER_CHECK = "NUMBER_CHECK", "Number check"

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="logs")
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="logs")  # the claim writes the one that sends
    step = models.ForeignKey(CampaignStep, null=True, on_delete=models.CASCADE, related_name="logs")
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="logs")
    recipient = models.ForeignKey(Recipient, null=True, on_delete=models.SET_NULL, related_name="logs")
    kind = models.CharField(max_length=20, choices=Kind, default=Kind.MESSAGE)
    address = models.CharField(max_length=320)
    body = models.TextField(null=True, blank=True)  # noqa: DJ001  null until it was rendered; "" is a caption-less image
    client_ref = models.UUIDField(default=uuid.uuid4)  # fixed when the row is made; the provider maps it to its own id form

    status = models.CharField(max_length=20, choices=Status, default=Status.PENDING)
    reason = models.CharField(max_length=500, blank=True, default="")
    available_at = models.DateTimeField(db_default=Now())  # not before; a rate limit leaves it alone, so the same row is next again
    attempt = models.PositiveIntegerField(default=0)
    token = models.BigIntegerField(null=True)  # of the claim that took it last: with `attempt` the fence for late answers
    provider_message_id = models.CharField(max_length=200, blank=True, default="")
    error_code = models.CharField(max_length=30, blank=True, default="")
    error_text = models.CharField(max_length=500, blank=True, default="")
    http_status = models.PositiveSmallIntegerField(null=True)
    verify_at = models.DateTimeField(null=True)  # UNCONFIRMED: when the provider is asked next; null: no more
    verifications = models.PositiveSmallIntegerField(default=0)
    transients = models.PositiveSmallIntegerField(default=0, db_default=0)  # how many of its attempts ended TRANSIENT
    retry_at = models.DateTimeField(null=True)  # FAILED: from when on the retry job may queue it again; null: never
    decided_by = models.CharField(
        max_length=150, blank=True, default=""
    )  # who decided an unconfirmed or waiting message: a person, or DEFAULT

    created_at = models.DateTimeField(db_default=Now())
    claimed_at = models.DateTimeField(null=True)
    unconfirmed_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)
    acked_at = models.DateTimeField(null=True)  # the channel's server told that it has it; later than its answer to the call
    delivered_at = models.DateTimeField(null=True)
    read_at = models.DateTimeField(null=True)

    objects = DispatchLogQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        verbose_name = "message"
        constraints = [
            # The one that makes a second message of the same run to the same person impossible.
            models.UniqueConstraint(fields=["run", "recipient"], name="one_row_per_run_and_recipient"),
            models.CheckConstraint(
                condition=Q(status__in=["PENDING", "SENDING", "SENT", "FAILED", "UNCONFIRMED", "SKIPPED"]), name="log_status_is_known"
            ),
            models.CheckConstraint(
                condition=~Q(kind="MESSAGE") | Q(run__isnull=False, step__isnull=False), name="log_message_belongs_to_a_run"
            ),
            models.CheckConstraint(
                condition=~Q(status="SENDING") | Q(token__isnull=False, claimed_at__isnull=False), name="log_in_flight_was_claimed"
            ),
        ]
        indexes = [
            # the claim, in order; also "is anything waiting"
            models.Index(fields=["campaign", "available_at", "id"], condition=Q(status="PENDING"), name="log_due"),
            # recovery: what a dead lane had in flight
            models.Index(fields=["session"], condition=Q(status="SENDING"), name="log_in_flight"),
            # verification, each pass
            models.Index(fields=["verify_at"], condition=Q(status="UNCONFIRMED"), name="log_to_verify"),
            # the default of the campaign, each pass
            models.Index(
                fields=["campaign", "id"],
                condition=Q(status="UNCONFIRMED", verify_at__isnull=True, run__isnull=False),
                name="log_left_open",
            ),
            # the retry job: what failed and is worth another try
            models.Index(fields=["retry_at"], condition=Q(status="FAILED", retry_at__isnull=False), name="log_to_retry"),
            # the sweep of rows whose person was deleted
            models.Index(fields=["campaign"], condition=Q(status="PENDING", kind="MESSAGE", recipient__isnull=True), name="log_orphaned"),
            # the admin: one campaign's rows by outcome, newest first
            models.Index(fields=["campaign", "status", "-id"], name="log_by_outcome"),
            # the admin: what needs a person, of all campaigns, newest first; few rows ever enter these
            models.Index(fields=["id"], condition=Q(status="UNCONFIRMED"), name="log_unconfirmed"),
            models.Index(fields=["id"], condition=Q(status="FAILED"), name="log_failed"),
            # the admin: what somebody decided, newest first
            models.Index(fields=["decided_by", "id"], condition=~Q(decided_by=""), name="log_by_decider"),
            # receipts, and an operator who looks for one id
            models.Index(fields=["provider_message_id"], condition=~Q(provider_message_id=""), name="log_by_provider_id"),
            # the admin: how many of a campaign were delivered and read, and which
            models.Index(fields=["campaign", "-id"], condition=Q(delivered_at__isnull=False), name="log_delivered"),
            models.Index(fields=["campaign", "-id"], condition=Q(read_at__isnull=False), name="log_read"),
            # receipts that repeat our own reference
            models.Index(fields=["client_ref"], name="log_by_client_ref"),
            # an operator who looks for one person, and a reply that looks for what it answers
            models.Index(fields=["address"], name="log_by_address"),
        ]

    def __str__(self) -> str:
        return f"Message {self.pk}"


class Attempt(models.Model):
    """Append-only: every try that was not a clean first success. Two accepted ones for one row mean a duplicate is suspected."""

    log = models.ForeignKey(DispatchLog, on_delete=models.CASCADE, related_name="attempts")
    attempt = models.PositiveIntegerField()
    token = models.BigIntegerField()
    session = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+")
    finished_at = models.DateTimeField(db_default=Now())
    outcome = models.CharField(max_length=30)  # ACCEPTED, UNSENT, LOST, or an error code
    http_status = models.PositiveSmallIntegerField(null=True)
    detail = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["log", "pk"]

    def __str__(self) -> str:
        return f"Attempt {self.attempt}: {self.outcome}"

"""What people wrote back."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from campaigns.models import Campaign, Recipient
from sessions_app.models import Session


class InboundMessage(models.Model):
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="inbound")
    sender = models.CharField(max_length=320)  # resolved where the channel could; in the form of the channel's addresses
    sender_id = models.CharField(max_length=320, blank=True, default="")  # as it came, where that is something else
    name = models.CharField(max_length=200, blank=True, default="")
    message_type = models.CharField(max_length=20, default="TEXT")
    text = models.TextField(blank=True, default="")
    message_id = models.CharField(max_length=200, blank=True, default="")
    sent_at = models.DateTimeField()  # the channel's clock
    received_at = models.DateTimeField(db_default=Now())
    # whom it answers: the last message that this session sent to the sender
    campaign = models.ForeignKey(Campaign, null=True, on_delete=models.SET_NULL, related_name="inbound")
    recipient = models.ForeignKey(Recipient, null=True, on_delete=models.SET_NULL, related_name="inbound")

    class Meta:
        ordering = ["-pk"]
        verbose_name = "reply"
        verbose_name_plural = "replies"
        constraints = [
            models.UniqueConstraint(fields=["session", "message_id"], condition=~Q(message_id=""), name="one_inbound_per_message_id")
        ]
        indexes = [
            models.Index(fields=["campaign", "-id"], name="inbound_by_campaign"),
            models.Index(fields=["sender", "-id"], name="inbound_by_sender"),
        ]

    def __str__(self) -> str:
        return f"Reply {self.pk}"

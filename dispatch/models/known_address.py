"""Where an address is really reached, as the channel said when it was asked. What people imported stays as it was typed."""

from django.db import models
from django.db.models import Q

from sessions_app.providers.base import Reach


class KnownAddress(models.Model):
    channel = models.CharField(max_length=40)
    address = models.CharField(max_length=320)
    reach = models.CharField(max_length=20, choices=[(reach.value, reach.value) for reach in Reach])
    reached_at = models.CharField(max_length=320, blank=True, default="")  # with FOUND: the address to send to
    checked_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["channel", "address"], name="one_known_address_per_channel"),
            models.CheckConstraint(condition=Q(reach__in=["FOUND", "NOT_FOUND", "UNKNOWN"]), name="known_reach_is_known"),
        ]
        indexes = [models.Index(fields=["channel", "reached_at"], condition=~Q(reached_at=""), name="known_by_reached_at")]

    def __str__(self) -> str:
        return f"{self.channel}: {self.reach}"

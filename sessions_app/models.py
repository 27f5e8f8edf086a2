"""The identity that sends: a WhatsApp number, a mailbox, a bot."""

import json
import uuid
import zoneinfo
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models

from sessions_app import credentials as sealing
from sessions_app.providers.base import ChannelProvider, SessionConfig
from sessions_app.providers.registry import provider_class

CHECK_IS_FRESH_FOR = timedelta(seconds=60)


def validate_time_zone(name: str) -> None:
    # by name and not by what a file can be found for: "localtime" is the server's, and PostgreSQL does not know it
    if name not in zoneinfo.available_timezones() or name in {"localtime", "Factory", "posixrules"}:
        raise ValidationError(f'"{name}" is not a time zone. Use a name such as America/Sao_Paulo or Europe/Lisbon.') from None


def default_time_zone() -> str:
    return settings.TIME_ZONE


class Session(models.Model):
    class Status(models.TextChoices):
        DISCONNECTED = "DISCONNECTED", "Disconnected"
        CONNECTING = "CONNECTING", "Connecting"
        NEEDS_PAIRING = "NEEDS_PAIRING", "Needs pairing"
        CONNECTED = "CONNECTED", "Connected"
        RESTRICTED = "RESTRICTED", "Restricted"

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=100, unique=True)
    channel = models.CharField(max_length=40, help_text="How this identity sends. It cannot be changed later.")
    settings = models.JSONField(default=dict, blank=True)
    sealed_credentials = models.TextField(blank=True, default="", editable=False)
    status = models.CharField(max_length=20, choices=Status, default=Status.DISCONNECTED, editable=False)
    status_detail = models.CharField(max_length=500, blank=True, default="", editable=False)
    checked_at = models.DateTimeField(null=True, blank=True, editable=False)
    restricted_until = models.DateTimeField(  # null: not restricted, or the vendor tells the end of it
        null=True, editable=False, help_text="Until then nothing but a check of the connection by hand ends the restriction."
    )
    time_zone = models.CharField(
        max_length=64,
        default=default_time_zone,
        validators=[validate_time_zone],
        help_text="Where this identity lives: its day for the daily limit begins at midnight there.",
    )
    daily_limit = models.PositiveIntegerField(
        null=True, blank=True, help_text="At most this many attempts per day on this identity. Empty: no limit."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=["DISCONNECTED", "CONNECTING", "NEEDS_PAIRING", "CONNECTED", "RESTRICTED"]),
                name="session_status_is_known",
            ),
            models.CheckConstraint(
                condition=models.Q(daily_limit__isnull=True) | models.Q(daily_limit__gte=1), name="session_daily_limit_is_positive"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def credentials(self) -> dict[str, str]:
        """In the clear, for the provider only. Raises CredentialsUnreadable when no key of this instance opens them."""
        if not self.sealed_credentials:
            return {}
        return json.loads(sealing.unseal(self.sealed_credentials, owner=self.uuid))

    @credentials.setter
    def credentials(self, values: Mapping[str, str]) -> None:
        self.sealed_credentials = sealing.seal(json.dumps(dict(values)), owner=self.uuid) if values else ""

    @property
    def provider_class(self) -> type[ChannelProvider]:
        return provider_class(self.channel)

    def make_provider(self) -> ChannelProvider:
        return self.provider_class(SessionConfig(credentials=self.credentials, settings=dict(self.settings)))

    def was_checked_just_before(self, now: datetime) -> bool:
        """The last answer about this session is young enough to be relied on."""
        return self.checked_at is not None and now - self.checked_at < CHECK_IS_FRESH_FOR

    def facts(self) -> dict[str, Any]:
        """For log lines."""
        return {"session": self.name, "channel": self.channel}


class MessageTemplate(models.Model):
    """A message that the vendor approves beforehand, as it was listed at the last sync. Written by template_sync only."""

    APPROVED = "APPROVED"  # the one status, in the vendor's words, in which it can be sent

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="templates")
    name = models.CharField(max_length=512)
    language = models.CharField(max_length=40)
    status = models.CharField(max_length=40)  # in the vendor's words
    category = models.CharField(max_length=40, blank=True, default="")
    components = models.JSONField(default=list)  # as the vendor lists them
    body_parameters = models.PositiveIntegerField(default=0)
    header_parameters = models.PositiveIntegerField(default=0)
    synced_at = models.DateTimeField()

    class Meta:
        ordering = ["session", "name", "language"]
        constraints = [
            models.UniqueConstraint(fields=["session", "name", "language"], name="template_is_unique_in_session"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.language})"

    @property
    def can_be_sent(self) -> bool:
        return self.status == self.APPROVED

    @property
    def spoken_status(self) -> str:
        return self.status.lower().replace("_", " ")

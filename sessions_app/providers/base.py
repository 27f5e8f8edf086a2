"""The contract between the engine and a channel.

A provider translates: our message into the vendor's call, and the vendor's answer into one of our codes. It has no ORM, does not sleep,
retry or guess. `send` returns expected failures; an exception is a bug, and the engine counts it as UNCONFIRMED.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

from django import forms

from sessions_app.pacing import Metered

# CLOCK_BOOTTIME goes on while the machine is suspended, so a frozen process finds its deadline passed. macOS: the nearest there is.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC))


class MessageType(StrEnum):
    TEXT = "TEXT"
    IMAGE = "IMAGE"
    VIDEO = "VIDEO"
    AUDIO = "AUDIO"
    DOCUMENT = "DOCUMENT"
    TEMPLATE = "TEMPLATE"


class ErrorCode(StrEnum):
    """Why a message was not accepted. The engine's reaction to each stands in dispatch/outcomes.py, and only there."""

    RATE_LIMIT = "RATE_LIMIT"  # cool down, then the same message again
    DISCONNECTED = "DISCONNECTED"  # session or credentials unhealthy; nothing wrong with the message
    MISCONFIGURED = "MISCONFIGURED"  # the message, template, sender or balance is wrong for everybody
    INVALID_RECIPIENT = "INVALID_RECIPIENT"  # this person cannot be reached on this channel
    FATAL = "FATAL"  # this message was refused for good
    TRANSIENT = "TRANSIENT"  # provably not accepted; may be tried again
    UNCONFIRMED = "UNCONFIRMED"  # nobody knows


class Answer(StrEnum):
    ACCEPTED = "ACCEPTED"
    REFUSED = "REFUSED"
    UNSENT = "UNSENT"  # not a byte left this process: the row is given back as if it had never been claimed


@dataclass(frozen=True)
class SendResult:
    """What one call of `send` found out. Build it with one of the three constructors below."""

    answer: Answer
    message_id: str = ""  # the provider's id; "" when it accepted without naming one
    code: ErrorCode | None = None  # set exactly when REFUSED
    detail: str = ""  # the vendor's words, scrubbed of secrets and of the message
    retry_after: timedelta | None = None  # what the provider asked for, with RATE_LIMIT
    http_status: int | None = None

    @classmethod
    def accepted(cls, message_id: str = "", *, http_status: int | None = None) -> "SendResult":
        return cls(Answer.ACCEPTED, message_id=message_id, http_status=http_status)

    @classmethod
    def refused(cls, code: ErrorCode, detail: str, *, retry_after: timedelta | None = None, http_status: int | None = None) -> "SendResult":
        return cls(Answer.REFUSED, code=code, detail=detail, retry_after=retry_after, http_status=http_status)

    @classmethod
    def unsent(cls, detail: str) -> "SendResult":
        return cls(Answer.UNSENT, detail=detail)


@dataclass(frozen=True)
class Message:
    """One message as it leaves, every text already filled for its recipient."""

    type: MessageType
    text: str = ""
    media_url: str = ""
    caption: str = ""
    link_preview: bool = True
    link_preview_high_quality: bool = False
    template_name: str = ""
    template_language: str = ""
    template_components: tuple[Any, ...] = ()

    @property
    def body(self) -> str:
        """The filled text that the ledger keeps: the caption where there is media, the text elsewhere."""
        return self.text if self.type in {MessageType.TEXT, MessageType.TEMPLATE} else self.caption

    def with_body(self, body: str) -> "Message":
        """The same message with the bytes of an earlier attempt."""
        if self.type in {MessageType.TEXT, MessageType.TEMPLATE}:
            return replace(self, text=body)
        return replace(self, caption=body)


@dataclass(frozen=True)
class SentMessage:
    """What `verify` gets to look for: one attempt whose outcome nobody knows."""

    address: str
    message: Message
    client_ref: uuid.UUID
    claimed_at: datetime  # the database's clock, just before the call
    provider_message_id: str = ""


class Presence(StrEnum):
    PRESENT = "PRESENT"
    ABSENT = "ABSENT"  # the provider was asked, answered, and does not have it
    UNKNOWN = "UNKNOWN"  # could not be asked, or cannot tell


@dataclass(frozen=True)
class Verification:
    presence: Presence
    message_id: str = ""
    detail: str = ""


class SessionState(StrEnum):
    """The same words as Session.Status; kept here so that providers need no ORM. A test holds the two together."""

    DISCONNECTED = "DISCONNECTED"
    CONNECTING = "CONNECTING"
    NEEDS_PAIRING = "NEEDS_PAIRING"
    CONNECTED = "CONNECTED"
    RESTRICTED = "RESTRICTED"


@dataclass(frozen=True)
class SessionCheck:
    state: SessionState
    detail: str = ""


class Deadline:
    """The moment past which no first byte of a message may leave, on a clock that a suspended machine does not stop."""

    __slots__ = ("_expires",)

    def __init__(self, total: timedelta) -> None:
        self._expires = time.clock_gettime(_CLOCK) + total.total_seconds()

    @property
    def remaining(self) -> float:
        """Seconds left; 0.0 when passed."""
        return max(0.0, self._expires - time.clock_gettime(_CLOCK))

    @property
    def passed(self) -> bool:
        return self.remaining == 0.0


class NoSettings(forms.Form):
    """For channels that need none."""


@dataclass(frozen=True)
class SessionConfig:
    """What a provider is built from. `credentials` stay out of every repr."""

    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)


class ChannelProvider(ABC):
    """One channel. Instances are made for one session, live for many messages, and are called from several threads at once."""

    key: ClassVar[str]  # also the file's name and the key in settings.CHANNELS
    label: ClassVar[str]
    address_kind: ClassVar[str]  # a key of sessions_app.addresses: "phone", "whatsapp", "email" ...
    pacing: ClassVar[Metered | None] = None  # None: human pacing, which nothing unofficial may leave
    message_types: ClassVar[frozenset[MessageType]] = frozenset({MessageType.TEXT})
    max_text_length: ClassVar[int | None] = None
    settings_form: ClassVar[type[forms.Form]] = NoSettings  # public settings of a session on this channel
    credentials_form: ClassVar[type[forms.Form]] = NoSettings  # secrets: stored encrypted, never shown again
    can_verify: ClassVar[bool] = False
    absence_is_proof: ClassVar[bool] = False  # True: `verify` answering ABSENT past the grace means it never left

    def __init__(self, config: SessionConfig) -> None:
        self.config = config

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def origin(self) -> str:
        """Where the calls go, "scheme://host:port": the engine caps how many run at once towards one origin. "" = nowhere."""
        return ""

    @property
    def metered(self) -> Metered | None:
        """The rate of this session on a metered channel; None on a human one. May narrow `pacing`, never widen it."""
        return self.pacing

    @abstractmethod
    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        """One call, one answer. Must look at `deadline` right before the first byte and return UNSENT when it has passed."""

    def check_session(self, deadline: Deadline) -> SessionCheck:
        """Whether the identity can send now. The default is for channels that have nothing to ask."""
        return SessionCheck(SessionState.CONNECTED)

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        """Whether an attempt with unknown outcome arrived. Read-only; may be asked often."""
        return Verification(Presence.UNKNOWN, detail=f"{self.label} cannot be asked")

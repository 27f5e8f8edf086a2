"""The contract between the engine and a channel.

A provider translates: our message into the vendor's call, and the vendor's answer into one of our codes. It has no ORM, does not sleep,
retry or guess. `send` returns expected failures; an exception is a bug, and the engine counts it as UNCONFIRMED.
"""

import hashlib
import json
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
    CHECKED = "CHECKED"  # the engine's own: its turn was spent on asking where the address is reached; the message itself comes next


@dataclass(frozen=True)
class SendResult:
    """What one call of `send` found out. Build it with one of the three constructors below."""

    answer: Answer
    message_id: str = ""  # the provider's id; "" when it accepted without naming one
    code: ErrorCode | None = None  # set exactly when REFUSED
    detail: str = ""  # the vendor's words, scrubbed of secrets and of the message
    retry_after: timedelta | None = None  # what the provider asked for, with RATE_LIMIT
    http_status: int | None = None
    one_recipient: bool = False  # RATE_LIMIT that is about this person alone: the message waits, the others go on
    restricted: bool = False  # with DISCONNECTED: the vendor holds the account back for a while

    @classmethod
    def accepted(cls, message_id: str = "", *, http_status: int | None = None) -> "SendResult":
        return cls(Answer.ACCEPTED, message_id=message_id, http_status=http_status)

    @classmethod
    def refused(cls, code: ErrorCode, detail: str, *, retry_after: timedelta | None = None, http_status: int | None = None) -> "SendResult":
        return cls(Answer.REFUSED, code=code, detail=detail, retry_after=retry_after, http_status=http_status)

    @classmethod
    def deferred(cls, detail: str, *, retry_after: timedelta, http_status: int | None = None) -> "SendResult":
        """The channel takes no more for this person for a while: the message goes to the back of the queue, and nothing else waits."""
        return replace(cls.refused(ErrorCode.RATE_LIMIT, detail, retry_after=retry_after, http_status=http_status), one_recipient=True)

    @classmethod
    def checked(cls, detail: str) -> "SendResult":
        return cls(Answer.CHECKED, detail=detail)

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
    subject: str = ""  # e-mail; a title where a channel has one
    html: str = ""  # e-mail: the same as `text`, for those who see it; values that were filled in are escaped
    filename: str = ""  # of a document, as the recipient sees it; "": the last part of the URL

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
    until: datetime | None = None  # RESTRICTED: its end, where a vendor names one that it will not tell again when asked


@dataclass(frozen=True)
class WebhookRequest:
    """What arrived at /api/webhooks/<session uuid>/, before anybody looked at it."""

    method: str
    url: str  # as the outside sees it, with scheme, host and query: some vendors sign it
    headers: Mapping[str, str] = field(repr=False)  # names in lower case
    query: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class WebhookItem:
    """One thing that happened. A request may carry many; each is stored, applied and, if it must be, failed on its own."""

    event_id: str  # the same for the same thing however often it is told, and at most 200 characters; `event_id_of` where there is none
    kind: str  # as the vendor calls it
    payload: Mapping[str, Any]  # JSON-ready; all that `read_event` needs


@dataclass(frozen=True)
class WebhookAnswer:
    """What the vendor is answered, with status 200."""

    items: tuple[WebhookItem, ...] = ()
    body: str = ""  # a challenge that is to be repeated
    content_type: str = "text/plain"


class WebhookRefused(Exception):
    """Not from the vendor, not for us, or not readable. `str()` is for our log: no secrets, nothing of the body. Status 401, 400 or 405."""

    def __init__(self, detail: str, *, status: int = 401) -> None:
        super().__init__(detail)
        self.status = status


class ReceiptState(StrEnum):
    ACCEPTED = "ACCEPTED"  # the channel's server has it: settles a message whose outcome is unknown
    DELIVERED = "DELIVERED"
    READ = "READ"
    FAILED = "FAILED"  # accepted first, and refused after all


@dataclass(frozen=True)
class Receipt:
    """What became of a message, named by the id that `send` returned or by our own reference where the vendor repeats it."""

    state: ReceiptState
    at: datetime
    message_id: str = ""
    client_ref: uuid.UUID | None = None
    code: ErrorCode | None = None  # with FAILED
    detail: str = ""


@dataclass(frozen=True)
class Inbound:
    """A message from a person to the session."""

    sender: str  # in the form of the channel's addresses
    at: datetime
    text: str = ""
    message_id: str = ""
    name: str = ""
    message_type: str = "TEXT"
    needs_resolving: bool = False  # `sender` is an id that hides the number: `resolve_sender` may know it


@dataclass(frozen=True)
class StateReport:
    """The session changed by itself."""

    check: SessionCheck


Event = Receipt | Inbound | StateReport


class Reach(StrEnum):
    FOUND = "FOUND"
    NOT_FOUND = "NOT_FOUND"  # the channel was asked, answered, and knows nobody there
    UNKNOWN = "UNKNOWN"  # could not be asked, or did not say: never taken for NOT_FOUND


@dataclass(frozen=True)
class Resolution:
    """Where a message for an address really has to go."""

    reach: Reach
    address: str = ""  # with FOUND: the one to send to
    detail: str = ""
    code: ErrorCode | None = None  # with UNKNOWN, where the session is the cause: RATE_LIMIT or DISCONNECTED
    retry_after: timedelta | None = None  # with RATE_LIMIT


@dataclass(frozen=True)
class Pairing:
    """What a person needs to connect the session with their phone: one of the two, or neither when `check` says why."""

    check: SessionCheck
    qr_png: bytes = field(default=b"", repr=False)
    code: str = field(default="", repr=False)


@dataclass(frozen=True)
class Chat:
    """A group or a contact that can be picked as a recipient."""

    address: str
    name: str
    is_group: bool = False
    members: int | None = None


class NotPossible(Exception):
    """The channel was asked for something and did not do it. `str()` is a sentence for the person who asked, without secrets."""


def event_id_of(*parts: Any) -> str:
    """An id for what a vendor gives none: a hash over what makes the thing itself, never over when it was told."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


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
    pass


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
    max_caption_length: ClassVar[int | None] = None  # None: as the text
    takes: ClassVar[frozenset[str]] = frozenset()  # of "subject", "html" and "filename"; what it does not take is refused in the form
    needs_subject: ClassVar[bool] = False
    uncaptioned: ClassVar[frozenset[MessageType]] = frozenset()  # media that it sends without a caption
    settings_form: ClassVar[type[forms.Form]] = NoSettings  # public settings of a session on this channel
    credentials_form: ClassVar[type[forms.Form]] = NoSettings  # secrets: stored encrypted, never shown again
    can_verify: ClassVar[bool] = False
    absence_is_proof: ClassVar[bool] = False  # True: `verify` answering ABSENT past the grace means it never left
    takes_webhooks: ClassVar[bool] = False  # `accept_webhook` and `read_event` do something
    receipts: ClassVar[frozenset[ReceiptState]] = frozenset()  # what its webhooks tell about a message
    takes_replies: ClassVar[bool] = False  # its webhooks bring what people write back
    can_pair: ClassVar[bool] = False  # a person connects it with a phone: `pair` and `manage`
    lists_chats: ClassVar[bool] = False  # `list_chats` knows groups or contacts

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

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        """Check the signature on the raw bytes, then cut the request into items. No network, no waiting. Raises WebhookRefused.
        After a good signature, an item that nobody understands is no error: it is kept with its kind, and ignored later."""
        raise WebhookRefused(f"{self.label} takes no webhooks", status=405)

    def read_event(self, item: WebhookItem) -> list[Event]:
        """What an item means; [] for nothing. Called later than `accept_webhook`, in another process; no network. May raise ValueError."""
        return []

    def set_webhook(self, url: str, deadline: Deadline) -> None:
        """Have the vendor call this address. Raises NotPossible; the default is for vendors where a person enters it."""
        raise NotPossible(f"Enter this address at {self.label} by hand: {url}")

    def needs_resolving(self, address: str) -> bool:
        """Whether `resolve_address` is to be asked before the first message to it. No network."""
        return False

    def resolve_address(self, address: str, deadline: Deadline) -> Resolution:
        """Whether the channel knows the address, and where it is reached. It leaves the session as a message does: paced as one."""
        return Resolution(Reach.FOUND, address)

    def resolve_sender(self, sender: str, deadline: Deadline) -> str:
        """The address behind an id that hides it; "" when the channel does not say."""
        return ""

    def pair(self, deadline: Deadline, *, phone: str = "") -> Pairing:
        """The QR code of this moment, or with `phone` a code to be typed in there. Asked again and again until it is connected."""
        return Pairing(self.check_session(deadline))

    def manage(self, verb: str, deadline: Deadline) -> SessionCheck:
        """One of create, start, stop, restart, logout at the vendor, and the state after it. Raises NotPossible."""
        raise NotPossible(f"{self.label} has nothing to {verb}.")

    def list_chats(self, deadline: Deadline, *, groups: bool, search: str = "", offset: int = 0, limit: int = 50) -> list[Chat]:
        """One page of groups, or of contacts. Raises NotPossible."""
        raise NotPossible(f"{self.label} has no list of chats.")

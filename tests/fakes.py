"""The one fake of the suite: a real provider whose answers a test writes down beforehand. Everything above it is the real thing."""

import hmac
import json
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from sessions_app.pacing import Metered
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Event,
    Inbound,
    Message,
    Presence,
    Receipt,
    ReceiptState,
    SendResult,
    SentMessage,
    SessionCheck,
    SessionState,
    StateReport,
    Verification,
    WebhookAnswer,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)

Scripted = SendResult | Exception | Callable[[str, Message], SendResult]


@dataclass(frozen=True)
class Call:
    address: str
    text: str
    client_ref: uuid.UUID


class FakeProvider(ChannelProvider):
    """Accepts everything that the script does not answer otherwise. Class state: a test resets it through the `fake` fixture."""

    key = "fake"
    label = "Fake"
    address_kind = "phone"
    can_verify = True
    absence_is_proof = True

    script: ClassVar[deque[Scripted]] = deque()
    calls: ClassVar[list[Call]] = []
    state: ClassVar[SessionCheck] = SessionCheck(SessionState.CONNECTED)
    presence: ClassVar[Verification] = Verification(Presence.ABSENT)
    checks: ClassVar[list[str]] = []

    @classmethod
    def reset(cls) -> None:
        for kind in (FakeProvider, FakeMetered, FakeHooks):
            kind.script, kind.calls, kind.checks = FakeProvider.script, FakeProvider.calls, FakeProvider.checks
            kind.state = SessionCheck(SessionState.CONNECTED)
            kind.presence = Verification(Presence.ABSENT)
        FakeHooks.senders, FakeHooks.asked = {}, []
        cls.script.clear()
        cls.calls.clear()
        cls.checks.clear()

    @classmethod
    def answers(cls, *script: Scripted | None) -> None:
        """One for each call, in order; None accepts."""
        cls.script.extend(SendResult.accepted(f"id-{n}") if answer is None else answer for n, answer in enumerate(script))

    @classmethod
    def texts(cls) -> list[str]:
        return [call.text for call in cls.calls]

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        answer: Scripted = self.script.popleft() if self.script else SendResult.accepted(f"id-{len(self.calls) + 1}")
        if isinstance(answer, SendResult) and answer.answer == "UNSENT":
            return answer
        self.calls.append(Call(address, message.body, client_ref))
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, SendResult) else answer(address, message)

    def check_session(self, deadline: Deadline) -> SessionCheck:
        self.checks.append("check")
        return type(self).state

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        return type(self).presence


class FakeMetered(FakeProvider):
    key = "fake_metered"
    pacing = Metered(rate=1000, burst=8)


class FakeHooks(FakeProvider):
    """Tells by itself what became of a message: a JSON list of items, each an object with an id and a kind, signed as a whole."""

    key = "fake_hooks"
    takes_webhooks = True
    receipts = frozenset(ReceiptState)
    takes_replies = True
    SECRET = "s3cret"

    senders: ClassVar[dict[str, str | Exception]] = {}  # who is behind a hidden id; "" for those that are not in it
    asked: ClassVar[list[str]] = []

    @classmethod
    def signature(cls, body: bytes, secret: str = SECRET) -> str:
        return hmac.new(secret.encode(), body, "sha256").hexdigest()

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        right = self.signature(request.body, self.config.credentials["webhook_secret"])
        if not hmac.compare_digest(request.headers.get("x-signature", "").encode(), right.encode()):
            raise WebhookRefused("the signature is missing or wrong")
        if request.method == "GET":
            return WebhookAnswer(body=request.query.get("challenge", ""))
        try:
            told = json.loads(request.body)
        except ValueError:
            raise WebhookRefused("not JSON", status=400) from None
        return WebhookAnswer(tuple(WebhookItem(one["id"], one["kind"], one) for one in told))

    def read_event(self, item: WebhookItem) -> list[Event]:
        """`kind` says which of the three it is; "several" holds a list of them."""
        return self._events(item.payload)

    def _events(self, told: Any) -> list[Event]:
        match told["kind"]:
            case "receipt":
                ref = uuid.UUID(told["client_ref"]) if "client_ref" in told else None
                code = ErrorCode(told["code"]) if "code" in told else None
                state, at = ReceiptState(told["state"]), datetime.fromisoformat(told["at"])
                return [Receipt(state, at, told.get("message_id", ""), ref, code, told.get("detail", ""))]
            case "message":
                fields = {name: told[name] for name in ("text", "message_id", "name", "needs_resolving") if name in told}
                return [Inbound(told["sender"], datetime.fromisoformat(told["at"]), **fields)]
            case "state":
                until = datetime.fromisoformat(told["until"]) if "until" in told else None
                return [StateReport(SessionCheck(SessionState(told["state"]), told.get("detail", ""), until))]
            case "several":
                return [event for one in told["events"] for event in self._events(one)]
            case _:
                return []

    def resolve_sender(self, sender: str, deadline: Deadline) -> str:
        self.asked.append(sender)
        found = type(self).senders.get(sender, "")
        if isinstance(found, Exception):
            raise found
        return found


def refused(code: ErrorCode, detail: str = "said the provider", **more: object) -> SendResult:
    return SendResult.refused(code, detail, **more)  # type: ignore[arg-type]


def repeat(answer: Scripted, times: int) -> Iterable[Scripted]:
    return [answer] * times

"""The one fake of the suite: a real provider whose answers a test writes down beforehand. Everything above it is the real thing."""

import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from sessions_app.pacing import Metered
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Message,
    Presence,
    SendResult,
    SentMessage,
    SessionCheck,
    SessionState,
    Verification,
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
        for kind in (FakeProvider, FakeMetered):
            kind.script, kind.calls, kind.checks = FakeProvider.script, FakeProvider.calls, FakeProvider.checks
            kind.state = SessionCheck(SessionState.CONNECTED)
            kind.presence = Verification(Presence.ABSENT)
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


def refused(code: ErrorCode, detail: str = "said the provider", **more: object) -> SendResult:
    return SendResult.refused(code, detail, **more)  # type: ignore[arg-type]


def repeat(answer: Scripted, times: int) -> Iterable[Scripted]:
    return [answer] * times

"""What the stand-in knows: its sessions, and every message it accepted. In memory, and no more than `capacity` messages."""

import secrets
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

ENGINES = ("WEBJS", "NOWEB", "GOWS", "WPP")
STATUSES = ("STOPPED", "STARTING", "SCAN_QR_CODE", "PASSKEY_REQUIRED", "PASSKEY_CONFIRMATION_REQUIRED", "WORKING", "FAILED")
ACK_SERVER = 1


@dataclass(frozen=True, slots=True)
class Accepted:
    n: int  # counts from 1, in the order of acceptance, over all sessions
    session: str
    chat_id: str
    text: str
    raw_id: str
    client_id: str | None
    time: float  # unix seconds
    double: bool  # this client id was accepted before; where there is none: this text in this chat

    @property
    def id(self) -> str:
        return f"true_{self.chat_id}_{self.raw_id}"

    def listed(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "session": self.session,
            "chatId": self.chat_id,
            "text": self.text,
            "id": self.id,
            "clientId": self.client_id,
            "time": round(self.time, 3),
            "double": self.double,
        }

    def as_message(self) -> dict[str, Any]:
        """In the shape of WAHA's look-ups."""
        return {
            "id": self.id,
            "timestamp": int(self.time),
            "from": "10000000000@c.us",
            "fromMe": True,
            "source": "api",
            "to": self.chat_id,
            "body": self.text,
            "hasMedia": False,
            "ack": ACK_SERVER,
            "ackName": "SERVER",
        }


def new_raw_id() -> str:
    return "3EB0" + secrets.token_hex(9).upper()


class State:
    """Safe to use from many threads."""

    def __init__(self, *, engine: str, open_sessions: bool, capacity: int) -> None:
        self.engine = engine
        self._open_sessions = open_sessions
        self._capacity = capacity
        self._lock = threading.Lock()
        self._sessions: dict[str, str] = {}
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._messages: deque[Accepted] = deque()
            self._by_chat: dict[tuple[str, str], list[Accepted]] = defaultdict(list)
            self._by_raw: dict[tuple[str, str], Accepted] = {}
            self._seen: set[tuple[str, ...]] = set()
            self._count = 0

    def status(self, session: str) -> str | None:
        """None: there is no such session."""
        with self._lock:
            if session not in self._sessions and self._open_sessions:
                self._sessions[session] = "WORKING"
            return self._sessions.get(session)

    def set_status(self, session: str, status: str) -> None:
        with self._lock:
            self._sessions[session] = status

    def sessions(self) -> dict[str, str]:
        with self._lock:
            return dict(self._sessions)

    def accept(self, session: str, chat_id: str, text: str, client_id: str | None) -> Accepted:
        with self._lock:
            fact = (session, chat_id, text) if client_id is None else (session, client_id)
            self._count += 1
            message = Accepted(
                n=self._count,
                session=session,
                chat_id=chat_id,
                text=text,
                raw_id=client_id or new_raw_id(),
                client_id=client_id,
                time=time.time(),
                double=fact in self._seen,
            )
            self._seen.add(fact)
            self._messages.append(message)
            self._by_chat[session, chat_id].append(message)
            self._by_raw[session, message.raw_id] = message
            if len(self._messages) > self._capacity:
                self._forget(self._messages.popleft())
            return message

    def _forget(self, oldest: Accepted) -> None:
        chat = self._by_chat[oldest.session, oldest.chat_id]
        chat.pop(0)
        if not chat:
            del self._by_chat[oldest.session, oldest.chat_id]
        if self._by_raw.get((oldest.session, oldest.raw_id)) is oldest:
            del self._by_raw[oldest.session, oldest.raw_id]
        if not oldest.double:
            self._seen.discard(
                (oldest.session, oldest.chat_id, oldest.text) if oldest.client_id is None else (oldest.session, oldest.client_id)
            )

    def messages(self, *, session: str | None = None, since: float | None = None) -> list[Accepted]:
        with self._lock:
            kept = list(self._messages)
        return [one for one in kept if session in (None, one.session) and (since is None or one.time >= since)]

    def totals(self) -> dict[str, int]:
        with self._lock:
            return {"accepted": self._count, "kept": len(self._messages), "doubles": sum(one.double for one in self._messages)}

    def find(self, session: str, raw_id: str) -> Accepted | None:
        with self._lock:
            return self._by_raw.get((session, raw_id))

    def chat(self, session: str, chat_id: str) -> list[Accepted]:
        """Newest first."""
        with self._lock:
            return list(reversed(self._by_chat.get((session, chat_id), ())))

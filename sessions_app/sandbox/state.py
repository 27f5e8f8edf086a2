"""Every message the stand-in accepted. In memory, and no more than `capacity` of them."""

import secrets
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import Any

from sessions_app.sandbox.accounts import ME

ENGINES = ("WEBJS", "NOWEB", "GOWS", "WPP")
ACKS = {-1: "ERROR", 0: "PENDING", 1: "SERVER", 2: "DEVICE", 3: "READ", 4: "PLAYED"}
ACK_SERVER = 1


@dataclass(frozen=True, slots=True)
class Media:
    """What came instead of a text. The file itself is neither fetched nor kept."""

    type: str  # image, file, video or voice
    mimetype: str
    url: str = ""  # empty: the file came within the request
    filename: str = ""
    caption: str = ""
    convert: bool = False


_TEXT = Media("text", "text/plain")


@dataclass(frozen=True, slots=True)
class Accepted:
    n: int  # counts from 1, in the order of acceptance, over all sessions
    session: str
    chat_id: str
    text: str  # of a text; the caption of anything else
    raw_id: str
    client_id: str | None
    time: float  # unix seconds
    double: bool  # this client id was accepted before; where there is none: this text or file in this chat
    media: Media | None = None

    @property
    def id(self) -> str:
        return f"true_{self.chat_id}_{self.raw_id}"

    @property
    def fact(self) -> tuple[Any, ...]:
        """What makes two of them the same message."""
        return (self.session, self.chat_id, self.text, self.media) if self.client_id is None else (self.session, self.client_id)

    def listed(self) -> dict[str, Any]:
        media = self.media or _TEXT
        return {
            "n": self.n,
            "session": self.session,
            "chatId": self.chat_id,
            "text": self.text,
            "id": self.id,
            "clientId": self.client_id,
            "time": round(self.time, 3),
            "double": self.double,
            "type": media.type,
            "url": media.url,
            "mimetype": media.mimetype,
            "filename": media.filename,
            "caption": media.caption,
            "convert": media.convert,
        }

    def as_message(self, ack: int) -> dict[str, Any]:
        """In the shape of WAHA's look-ups."""
        return {
            "id": self.id,
            "timestamp": int(self.time),
            "from": ME,
            "fromMe": True,
            "source": "api",
            "to": self.chat_id,
            "body": self.text,
            "hasMedia": self.media is not None,
            "media": {"url": self.media.url, "mimetype": self.media.mimetype, "filename": self.media.filename} if self.media else None,
            "ack": ack,
            "ackName": ACKS[ack],
        }


def new_raw_id() -> str:
    return "3EB0" + secrets.token_hex(9).upper()


class State:
    """Safe to use from many threads."""

    def __init__(self, *, engine: str, capacity: int) -> None:
        self.engine = engine
        self._capacity = capacity
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._messages: deque[Accepted] = deque()
            self._by_chat: dict[tuple[str, str], list[Accepted]] = defaultdict(list)
            self._by_raw: dict[tuple[str, str], Accepted] = {}
            self._seen: set[tuple[Any, ...]] = set()
            self._acks: dict[tuple[str, str], int] = {}  # of those that went past the server's, or back
            self._presence: deque[dict[str, Any]] = deque(maxlen=1000)
            self._count = 0

    def accept(self, session: str, chat_id: str, text: str, client_id: str | None, media: Media | None = None) -> Accepted:
        with self._lock:
            self._count += 1
            message = Accepted(
                n=self._count,
                session=session,
                chat_id=chat_id,
                text=text,
                raw_id=client_id or new_raw_id(),
                client_id=client_id,
                time=time.time(),
                double=False,
                media=media,
            )
            fact = message.fact
            if fact in self._seen:
                message = replace(message, double=True)
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
            self._acks.pop((oldest.session, oldest.raw_id), None)
        if not oldest.double:
            self._seen.discard(oldest.fact)

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

    def acknowledge(self, message: Accepted, ack: int) -> None:
        """Forwards only, but for -1: look-ups do not go back with acks that come out of order."""
        with self._lock:
            key = message.session, message.raw_id
            if key in self._by_raw and (ack < 0 or ack > self._acks.get(key, ACK_SERVER)):
                self._acks[key] = ack

    def ack(self, message: Accepted) -> int:
        with self._lock:
            return self._acks.get((message.session, message.raw_id), ACK_SERVER)

    def note_presence(self, act: str, session: str, chat_id: str) -> None:
        with self._lock:
            self._presence.append({"act": act, "session": session, "chatId": chat_id, "time": round(time.time(), 3)})

    def presence(self) -> list[dict[str, Any]]:
        """The last thousand of seen, typing and typing no more, in order."""
        with self._lock:
            return list(self._presence)

"""The sessions of the stand-in: their status, how they are paired, and their configuration.

What happens by itself, a start that ends or a QR code that runs out, is worked out from the clock whenever somebody looks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

STATUSES = ("STOPPED", "STARTING", "SCAN_QR_CODE", "PASSKEY_REQUIRED", "PASSKEY_CONFIRMATION_REQUIRED", "WORKING", "FAILED")
PAIRABLE = frozenset({"STARTING", "SCAN_QR_CODE", "PASSKEY_REQUIRED", "PASSKEY_CONFIRMATION_REQUIRED"})
STARTING_TAKES = 0.2  # seconds
QR_CODE_LIVES = 20.0
QR_CODES_LAST = 160.0  # all of them, then the session fails
WAITS_FOR_A_START = 5.0  # before a call to a starting session is refused
ME = "10000000000@c.us"


@dataclass(slots=True)
class Account:
    name: str
    status: str = "WORKING"
    paired: bool = True
    since: float = 0.0  # unix seconds, as are all moments here
    then: tuple[float, str] | None = None  # when it changes by itself, and to what
    config: Mapping[str, Any] = field(default_factory=dict)  # replaced, never changed
    history: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=3))
    restricted_until: float = 0.0

    def enter(self, status: str, at: float, *, stays: bool) -> None:
        self.status, self.since, self.then = status, at, None
        self.history.append((status, at))
        if stays:
            self.paired = status not in PAIRABLE and (self.paired or status == "WORKING")
        elif status == "STARTING":
            self.then = at + STARTING_TAKES, "WORKING" if self.paired else "SCAN_QR_CODE"
        elif status == "SCAN_QR_CODE":
            self.then = at + QR_CODES_LAST, "FAILED"
        elif status == "WORKING":
            self.paired = True

    def me(self, now: float) -> dict[str, Any] | None:
        if self.status != "WORKING":
            return None
        who: dict[str, Any] = {"id": ME, "pushName": self.name}
        return who | {"reachoutTimelock": self.timelock()} if self.restricted_until > now else who

    def timelock(self) -> dict[str, Any]:
        """As WhatsApp words it: this account may start no new chats."""
        until = int(self.restricted_until)
        return {"isActive": True, "timeEnforcementEnds": until, "enforcementType": "RESTRICT_ALL_COMPANIONS"}


class Accounts:
    """Safe to use from many threads. `on_change` is called under the lock, with the account as it is now and whether that is news."""

    def __init__(self, *, open_sessions: bool = True, auto_pair: float | None = None, clock: Callable[[], float] = time.time) -> None:
        self.on_change: Callable[[Account, bool], None] = lambda account, is_news: None
        self.clock = clock
        self._open_sessions = open_sessions
        self._auto_pair = auto_pair
        self._lock = threading.Lock()
        self._known: dict[str, Account] = {}
        self._deleted: set[str] = set()
        self._held_back: set[str] = set()  # restricted once: the others are not looked up with every message

    def status(self, name: str) -> str | None:
        """None: there is no such session."""
        with self._lock:
            account = self._settled(name)
            return None if account is None else account.status

    def status_after_start(self, name: str, stopping: threading.Event) -> str | None:
        account = self.get(name)
        if account is not None and account.then is not None:
            stopping.wait(min(max(account.then[0] - self.clock(), 0.0), WAITS_FOR_A_START))
        return self.status(name)

    def get(self, name: str) -> Account | None:
        """A copy."""
        with self._lock:
            account = self._settled(name)
            return None if account is None else replace(account)

    def all(self) -> list[Account]:
        with self._lock:
            return [replace(account) for name in list(self._known) if (account := self._settled(name)) is not None]

    def set_status(self, name: str, status: str) -> None:
        """It stays so until something else is said."""
        with self._lock:
            account = self._settled(name) or self._new(name)
            self._enter(account, status, self.clock(), stays=True)

    def create(self, name: str, *, start: bool, config: Mapping[str, Any]) -> bool:
        """False: there is one of this name. A new one has yet to be paired."""
        with self._lock:
            if name in self._known:
                return False
            account = self._new(name)
            account.paired, account.config = False, config
            self._enter(account, "STARTING" if start else "STOPPED", self.clock())
            return True

    def configure(self, name: str, config: Mapping[str, Any]) -> bool:
        """Replaces the whole of it, and restarts what runs, as WAHA does. False: there is none of this name."""
        with self._lock:
            account = self._settled(name)
            if account is None:
                return False
            account.config = config
            if account.status != "STOPPED":
                self._enter(account, "STARTING", self.clock())
            return True

    def act(self, name: str, verb: str) -> bool:
        """start, stop, restart or logout. False: there is none of this name."""
        with self._lock:
            account = self._settled(name)
            if account is None:
                return False
            now = self.clock()
            if verb == "logout":
                account.paired = False
            if verb == "restart" or (verb == "start" and account.status in ("STOPPED", "FAILED")):
                self._enter(account, "STARTING", now)
            elif verb == "logout" and account.status != "STOPPED":
                self._enter(account, "SCAN_QR_CODE", now)
            elif verb == "stop" and account.status != "STOPPED":
                self._enter(account, "STOPPED", now)
            return True

    def delete(self, name: str) -> None:
        with self._lock:
            account = self._known.get(name)
            if account is not None and account.status != "STOPPED":
                self._enter(account, "STOPPED", self.clock())
            self._known.pop(name, None)
            self._deleted.add(name)

    def scan(self, name: str) -> bool:
        """What the phone does. False: nobody asks for it."""
        with self._lock:
            account = self._settled(name)
            if account is None or account.paired or account.status not in PAIRABLE:
                return False
            self._enter(account, "WORKING", self.clock())
            return True

    def fetched(self, name: str) -> None:
        """Somebody looked at its QR code: from here on it may pair itself."""
        with self._lock:
            account = self._settled(name)
            if account is None or self._auto_pair is None or account.status != "SCAN_QR_CODE":
                return
            if account.then is None or account.then[1] != "WORKING":
                account.then = self.clock() + self._auto_pair, "WORKING"
                self.on_change(account, False)

    def restrict(self, name: str, until: float) -> bool:
        """It may start no new chats before `until`. False: there is none of this name."""
        with self._lock:
            account = self._settled(name)
            if account is None:
                return False
            account.restricted_until = until
            self._held_back.add(name)
            self.on_change(account, True)
            return True

    def restricted(self, name: str) -> bool:
        if name not in self._held_back:
            return False
        account = self.get(name)
        return account is not None and account.restricted_until > self.clock()

    def _new(self, name: str) -> Account:
        self._deleted.discard(name)
        account = self._known[name] = Account(name, since=self.clock())
        account.history.append(("WORKING", account.since))
        return account

    def _settled(self, name: str) -> Account | None:
        account = self._known.get(name)
        if account is None:
            return self._new(name) if self._open_sessions and name not in self._deleted else None
        while account.then is not None and account.then[0] <= self.clock():
            self._enter(account, account.then[1], account.then[0])
        return account

    def _enter(self, account: Account, status: str, at: float, *, stays: bool = False) -> None:
        account.enter(status, at, stays=stays)
        self.on_change(account, True)

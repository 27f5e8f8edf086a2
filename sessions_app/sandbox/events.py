"""What the stand-in tells by itself: acks, replies and changes of a session, as WAHA's webhooks.

Nothing is noted and no thread runs before somebody is configured to hear it.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from sessions_app.sandbox.accounts import ME, QR_CODE_LIVES, Account, Accounts
from sessions_app.sandbox.agenda import Agenda
from sessions_app.sandbox.behaviour import Behaviour, plan
from sessions_app.sandbox.faults import Faults
from sessions_app.sandbox.hooks import Hook, parse, signable, ulid
from sessions_app.sandbox.posting import Poster
from sessions_app.sandbox.state import ACKS, Accepted, State, new_raw_id

EARLY_WITHIN = 5.0  # seconds that a send waits for its own ack to be delivered
VERSION = "2026.7.1"


def environment(engine: str) -> dict[str, Any]:
    return {"version": VERSION, "engine": engine, "tier": "SANDBOX", "browser": "", "platform": "paceline", "worker": {"id": None}}


@dataclass(frozen=True)
class _Delivery:
    """One event for one hook, the same bytes at each attempt."""

    hook: Hook
    session: str
    event: str
    id: str
    body: bytes
    headers: dict[str, str]


class Events:
    """Safe to use from many threads. Everything is sent by one."""

    def __init__(self, accounts: Accounts, state: State, faults: Faults, *, capacity: int) -> None:
        self.behaviour = Behaviour()
        self.everywhere: tuple[Hook, ...] = ()  # as WHATSAPP_HOOK_URL: for every session, and shown in none
        self.counts: Counter[str] = Counter()
        self._accounts, self._state, self._faults = accounts, state, faults
        self._of_session: dict[str, tuple[Hook, ...]] = {}
        self._agenda = Agenda(capacity=capacity)
        self._poster = Poster()
        self._random = Random()
        self._log: deque[dict[str, Any]] = deque(maxlen=1000)
        self._codes: dict[str, float] = {}  # session -> since when its QR codes follow each other
        self._stopping = threading.Event()
        accounts.on_change = self.changed

    # --- who hears it

    def configure(self, session: str, config: Mapping[str, Any]) -> None:
        """Raises BadHook. Before the configuration is taken over."""
        found = parse(config.get("webhooks"))
        if found:
            self._of_session[session] = found
        else:
            self._of_session.pop(session, None)

    def listening(self, session: str) -> tuple[Hook, ...]:
        return self.everywhere + self._of_session.get(session, ())

    # --- what happened

    def sent(self, message: Accepted, *, restricted: bool) -> None:
        """Called before the send is answered. Costs two look-ups where nobody hears it."""
        if not self.everywhere and message.session not in self._of_session:
            return
        fault = self._faults.take("events", message.session, message.chat_id)
        kind = fault.kind if fault is not None else ""
        coming = plan(self.behaviour, message, fault=kind, restricted=restricted)
        copies = 2 if kind == "double-events" else 1
        early = threading.Event() if kind == "early-ack" else None
        for number, (after, ack) in enumerate(coming.acks):
            done = early if number == 0 else None
            if not self._agenda.later(after, partial(self._ack, message, ack, restricted, copies, done)) and done is not None:
                return
        if coming.reply is not None:
            after, text = coming.reply
            self._agenda.later(after, partial(self._message, message.session, message.chat_id, text, None, copies))
        if early is not None:
            until = time.monotonic() + EARLY_WITHIN
            while not early.wait(0.05) and not self._stopping.is_set() and time.monotonic() < until:
                pass

    def reply(self, session: str, sender: str, text: str, participant: str | None) -> str:
        """Somebody writes now. The id of the message."""
        raw = new_raw_id()
        self._agenda.later(0, partial(self._message, session, sender, text, participant, 1, raw))
        return f"false_{sender}_{raw}"

    def changed(self, account: Account, is_news: bool) -> None:
        """Not news: it was only planned anew when it changes by itself."""
        if not self.listening(account.name):
            return
        now = self._accounts.clock()
        if account.then is not None:  # somebody has to look for it to happen
            self._agenda.later(account.then[0] - now, partial(self._accounts.status, account.name))
        if not is_news:
            return
        self._agenda.later(0, partial(self._tell, account.name, "session.status", _status(account, now), 1))
        if account.status == "SCAN_QR_CODE" and self._codes.get(account.name) != account.since:
            self._codes[account.name] = account.since
            self._agenda.later(QR_CODE_LIVES, partial(self._next_code, account.name, account.since))

    def _next_code(self, session: str, since: float) -> None:
        """WAHA tells SCAN_QR_CODE again with each new code."""
        account = self._accounts.get(session)
        if account is None or account.status != "SCAN_QR_CODE" or account.since != since:
            return
        self._tell(session, "session.status", _status(account, self._accounts.clock()), 1)
        self._agenda.later(QR_CODE_LIVES, partial(self._next_code, session, since))

    # --- telling it, in the one thread

    def _ack(self, message: Accepted, ack: int, restricted: bool, copies: int, done: threading.Event | None) -> None:
        self._state.acknowledge(message, ack)
        from_chat = self._state.engine in ("NOWEB", "GOWS")
        sender, receiver = (message.chat_id, ME) if from_chat else (ME, message.chat_id)
        payload: dict[str, Any] = {"id": message.id, "from": sender, "to": receiver, "participant": None, "fromMe": True}
        payload |= {"ack": ack, "ackName": ACKS[ack]}
        if restricted:
            payload["error"] = {"code": "463", "blocked": True, "reason": "account_restricted", **self._until(message.session)}
        event = "message.ack"
        if message.chat_id.endswith("@g.us") and ack > 1:
            event, payload["participant"] = "message.ack.group", "12025550100@c.us"
            payload["id"] += f"_{payload['participant']}"
        if self._state.engine != "WEBJS" or self._tags_events(message.session):
            self._tell(message.session, event, payload, copies)
        if done is not None:
            done.set()

    def _tags_events(self, session: str) -> bool:
        """WEBJS knows of acks, and tells of them only where its configuration says so."""
        account = self._accounts.get(session)
        webjs = account.config.get("webjs") if account is not None else None
        return isinstance(webjs, dict) and webjs.get("tagsEventsOn") is True

    def _until(self, session: str) -> dict[str, Any]:
        account = self._accounts.get(session)
        lock = account.timelock() if account is not None else {}
        return {"until": lock.get("timeEnforcementEnds"), "enforcementType": lock.get("enforcementType")}

    def _message(self, session: str, sender: str, text: str, participant: str | None, copies: int, raw: str = "") -> None:
        payload = {"id": f"false_{sender}_{raw or new_raw_id()}", "timestamp": int(time.time()), "from": sender, "fromMe": False}
        payload |= {"to": ME, "participant": participant, "body": text, "hasMedia": False, "media": None, "ack": 2, "ackName": ACKS[2]}
        self._tell(session, "message", payload, copies)

    def _tell(self, session: str, event: str, payload: dict[str, Any], copies: int) -> None:
        hooks = [hook for hook in self.listening(session) if hook.wants(event)]
        if not hooks:
            return
        account, engine = self._accounts.get(session), self._state.engine
        body: dict[str, Any] = {"id": f"evt_{ulid()}", "timestamp": int(time.time() * 1000), "event": event, "session": session}
        if account is not None and account.config.get("metadata"):
            body["metadata"] = account.config["metadata"]
        me = account.me(self._accounts.clock()) if account is not None else None
        body |= {"me": me, "payload": payload, "engine": engine, "environment": environment(engine)}
        content = signable(body)
        for hook in hooks:
            delivery = _Delivery(hook, session, event, body["id"], content, hook.request_headers(content))
            for _ in range(copies):
                self._deliver(delivery, 1)

    def _deliver(self, one: _Delivery, attempt: int) -> None:
        status = self._poster.post(one.hook.url, one.body, one.headers)
        entry = {"id": one.id, "event": one.event, "session": one.session, "url": one.hook.url, "attempt": attempt, "status": status}
        self._log.append(entry)
        if 200 <= status < 300:
            self.counts["delivered"] += 1
        elif attempt >= one.hook.attempts:
            self.counts["given_up"] += 1
        else:
            self._agenda.later(one.hook.back_off(attempt, self._random), partial(self._deliver, one, attempt + 1))

    # --- looking at it

    def deliveries(self) -> list[dict[str, Any]]:
        """The last thousand attempts, in order; status 0 is no answer."""
        return list(self._log)

    def totals(self) -> dict[str, int]:
        counts = {name: self.counts[name] for name in ("delivered", "given_up")}
        return counts | {"waiting": self._agenda.waiting(), "refused": self._agenda.refused}

    def clear(self) -> None:
        """What waits is never told; who hears it stays."""
        self._agenda.clear()
        self._log.clear()
        self.counts.clear()

    def stop(self) -> None:
        self._stopping.set()
        self._poster.cut()
        self._agenda.stop()
        self._poster.close()


def _status(account: Account, now: float) -> dict[str, Any]:
    """What session.status says; with a restriction, the words of newer versions beside it."""
    lock = {"reachoutTimelock": account.timelock()} if account.restricted_until > now else None
    statuses = [{"status": status, "timestamp": int(at * 1000)} for status, at in account.history]
    return {"name": account.name, "status": account.status, "statuses": statuses, "data": lock}

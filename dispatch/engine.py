"""Claim -> send -> settle. The database work stays in the caller's thread; a small pool does the network calls and touches no ORM."""

import logging
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any

from django.db import DataError

from campaigns import rendering
from dispatch import lanes, measures, reaching, settling, verification
from dispatch.lanes import MOST_LANES_IN_ONE_STATEMENT, Claimed
from dispatch.models import Run
from dispatch.outcomes import outcome_of
from dispatch.providers import Providers, frozen_message
from dispatch.recovery import lease, send_deadline
from dispatch.settling import DATABASE_AWAY, Answered
from dispatch.verification import Conclusion, Question, VerifyPolicy
from sessions_app import pacing as rules
from sessions_app import transitions as session_transitions
from sessions_app.checking import ask
from sessions_app.clock import database_now
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider, Deadline, ErrorCode, Message, Reach, Resolution, SendResult, SessionCheck

logger = logging.getLogger("paceline.engine")

THREADS = 16


@dataclass(frozen=True)
class _Sending:
    claimed: Claimed
    body: str
    origin: str


@dataclass(frozen=True)
class _Resolving:
    claimed: Claimed
    channel: str
    origin: str


@dataclass(frozen=True)
class _Verifying:
    question: Question


@dataclass(frozen=True)
class _Checking:
    session_id: int


@dataclass
class Engine:
    """One process's hands. Not thread-safe: one thread calls it, and that thread owns the connection.

    `human` is for tests alone, which scale the waits down; nothing in the project or its settings can reach it.
    """

    owner: uuid.UUID
    threads: int = THREADS
    deadline: timedelta = field(default_factory=send_deadline)
    lease: timedelta = field(default_factory=lease)
    verify: VerifyPolicy = field(default_factory=VerifyPolicy)
    rng: Random = field(default_factory=Random)
    human: settling.Pacing = rules.human_of
    now: datetime | None = None  # tests set it; None is the database's clock

    def __post_init__(self) -> None:
        self.providers = Providers()
        self.unsettled: list[Answered] = []
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="send")
        self._in_flight: dict[Future[Any], _Sending | _Resolving | _Verifying | _Checking] = {}
        self._claim_is_doubtful = False
        self._leases_are_stale: Deadline | None = None
        self._messages: OrderedDict[int, Message] = OrderedDict()
        self._channels: dict[int, str] = {}  # session -> channel, for what is counted

    # -- what is going on ------------------------------------------------------------------------------------------------------

    @property
    def idle_threads(self) -> int:
        return self.threads - len(self._in_flight)

    @property
    def busy(self) -> bool:
        return bool(self._in_flight)

    @property
    def trusts_leases(self) -> bool:
        """False for a lease's time after the database was away: others may hold answers as well, and could not renew or settle anything."""
        return self._leases_are_stale is None or self._leases_are_stale.passed

    def database_was_away(self) -> None:
        self._leases_are_stale = Deadline(self.lease)

    def wait(self, seconds: float) -> None:
        """Until something came back, at most this long."""
        if self._in_flight:
            wait(self._in_flight, timeout=seconds, return_when=FIRST_COMPLETED)

    # -- claim -----------------------------------------------------------------------------------------------------------------

    def claim(self) -> int:
        """Take what is due, never more than there are idle threads, and hand it to them. Returns how many rows were taken.

        When it breaks off, nobody knows what was committed. Nothing of that has left yet, so what turns out to be ours is given back unsent
        at the next claim, or at the end.
        """
        try:
            self._give_back_strays()
            self.settle()
            return self._claim()
        except Exception:
            self._claim_is_doubtful = True
            raise

    def _claim(self) -> int:
        taken = 0
        while (idle := self.idle_threads) > 0:
            full, room = self._origin_room()
            limit = min(idle, room, MOST_LANES_IN_ONE_STATEMENT)
            deadline = Deadline(self.deadline)  # before the claim: the time it takes, and the queueing, count
            rows = self._claim_once(lanes_wanted=limit, rows=1, full=full)
            spare = limit - len(rows)
            if spare > 0 and any(row.rate is not None for row in rows):
                rows += self._claim_once(lanes_wanted=1, rows=spare, full=full)
            for row in rows:
                self._submit(row, deadline)
            taken += len(rows)
            if len(rows) < limit:
                break
        return taken

    def _claim_once(self, *, lanes_wanted: int, rows: int, full: list[str]) -> list[Claimed]:
        try:
            claimed = lanes.claim(owner=self.owner, lanes=lanes_wanted, rows=rows, lease=self.lease, full_origins=full, now=self.now)
        except DataError as error:  # one lane has a value that PostgreSQL cannot work with, and the statement is for many
            if not lanes.shut_unusable(now=self.now):
                raise
            logger.error("a lane could not be used", extra={"error": str(error).partition("\n")[0]})
            return []  # the others at the next pass
        measures.claims.inc(len(claimed))
        return claimed

    def _give_back_strays(self) -> None:
        if not self._claim_is_doubtful:
            return
        known = {job.claimed.id for job in self._in_flight.values() if isinstance(job, _Sending | _Resolving)}
        known |= {answer.claimed.id for answer in self.unsettled}
        for claimed in lanes.owned_by(self.owner):
            if claimed.id not in known:
                self.unsettled.append(Answered(claimed, None, SendResult.unsent("the claim broke off")))
        self._claim_is_doubtful = False

    def _origin_room(self) -> tuple[list[str], int]:
        """The origins that have their share of threads already, and how many more calls the others may get: one that hangs holds up
        itself alone."""
        cap = max(1, self.threads * 3 // 4)
        busy = Counter(job.origin for job in self._in_flight.values() if isinstance(job, _Sending | _Resolving) and job.origin)
        full = [origin for origin, count in busy.items() if count >= cap]
        room = min((cap - count for count in busy.values() if count < cap), default=cap)
        return full, room

    def _submit(self, claimed: Claimed, deadline: Deadline) -> None:
        """Anything that goes wrong before the call costs this row and is reported; it never costs the pass."""
        try:
            provider = self.providers.by_id(claimed.session_id, claimed.session_version)
            if provider is None:
                raise _Unusable(ErrorCode.DISCONNECTED, self.providers.why_not(claimed.session_id))
            message, origin = self._fill(claimed), provider.origin
            address = self._reached_at(claimed, provider)
        except _Unusable as error:
            self.unsettled.append(Answered(claimed, None, SendResult.refused(error.code, str(error))))
        except DATABASE_AWAY:
            raise
        except Exception as error:
            logger.exception("a message could not be prepared", extra={"log": claimed.id})
            detail = f"could not be prepared: {type(error).__name__}"
            self.unsettled.append(Answered(claimed, None, SendResult.refused(ErrorCode.FATAL, detail)))
        else:
            self._channels[claimed.session_id] = provider.key
            if address is None:
                future: Future[Any] = self._pool.submit(_resolve, provider, claimed.address, deadline)
                self._in_flight[future] = _Resolving(claimed, provider.key, origin)
            else:
                future = self._pool.submit(_send, provider, address, claimed, message, deadline, self.deadline)
                self._in_flight[future] = _Sending(claimed, message.body, origin)

    def _reached_at(self, claimed: Claimed, provider: ChannelProvider) -> str | None:
        """Where to send to; None: the channel must be asked first, which is what this turn is for."""
        if not provider.needs_resolving(claimed.address):
            return claimed.address
        known = reaching.look_up(provider.key, claimed.address, now=self.now)
        if known is None:
            return None
        refusal = reaching.refusal(provider.key, claimed, known)
        if refusal is not None and refusal.code is not None:
            raise _Unusable(refusal.code, refusal.detail)
        return known.address

    def _fill(self, claimed: Claimed) -> Message:
        assert claimed.run_id is not None
        message = self._message(claimed.run_id)
        values = {**claimed.metadata, "name": claimed.name, "address": claimed.address}
        try:
            if claimed.body is not None:  # a retry sends the same text; its subject, HTML and parameters are filled as the first time
                return rendering.render_message(message.with_body(""), values).with_body(claimed.body)
            return rendering.render_message(message, values)
        except rendering.RenderError as error:
            raise _Unusable(ErrorCode.FATAL, f"nothing was sent: {error}") from None

    def _message(self, run_id: int) -> Message:
        if run_id not in self._messages:
            self._messages[run_id] = frozen_message(Run.objects.get(pk=run_id))
            while len(self._messages) > 1000:
                self._messages.popitem(last=False)
        return self._messages[run_id]

    # -- settle ----------------------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take over what the threads brought back. What concerns messages waits in `unsettled` until the ledger has it.

        What a provider said about a session, or about a message whose outcome is unknown, may be more than can be stored: then it is
        reported and taken for not said.
        """
        for future in [future for future in self._in_flight if future.done()]:
            job = self._in_flight.pop(future)
            match job:
                case _Sending():
                    self.unsettled.append(Answered(job.claimed, job.body, _result(future)))
                case _Resolving():
                    resolution = _resolution(future)
                    self.unsettled.append(Answered(job.claimed, None, reaching.result_of(resolution)))
                    keep = partial(reaching.remember, job.channel, job.claimed.address, resolution, now=self.now)
                    _reported("what a channel said about an address could not be written down", keep)
                case _Verifying():
                    _reported("a verification could not be written down", partial(self._conclude, job.question, future))
                case _Checking():
                    _reported("a check could not be written down", partial(_record_check, job.session_id, future))

    def settle(self) -> set[int]:
        """Write every answer that is still unsettled. Returns the sessions whose lane is in trouble. Raises when the database is away."""
        troubled: set[int] = set()
        while self.unsettled:
            batch = settling.for_few_lanes(self.unsettled)
            troubled |= settling.write(batch, verify_after=self.verify.first, human=self.human, rng=self.rng, now=self.now)
            del self.unsettled[: len(batch)]
            channels = self._channels
            measures.settled((channels.get(a.claimed.session_id, measures.NOBODY), outcome_of(a.result).code) for a in batch)
        return troubled

    # -- verify and check ------------------------------------------------------------------------------------------------------

    def ask_about_unconfirmed(self) -> int:
        """Have the provider asked about messages whose outcome nobody knows; they get the threads that sending leaves idle."""
        spare = min(self.idle_threads, max(1, self.threads // 4)) if self.idle_threads else 0
        questions = verification.take_due(self.providers, self.verify, limit=spare, now=self.now) if spare else []
        for question in questions:
            self._in_flight[self._pool.submit(question.ask)] = _Verifying(question)
        return len(questions)

    def _conclude(self, question: Question, future: "Future[Any]") -> None:
        conclusion = verification.conclude(question, future.result(), self.verify, now=self.now)
        if conclusion != Conclusion.OPEN:
            logger.info("verified", extra={"log": question.log_id, "conclusion": conclusion.value})

    def check(self, session: Session) -> bool:
        """Have the provider asked whether the session can send. False: it cannot be asked now; try at the next pass."""
        if any(isinstance(job, _Checking) and job.session_id == session.pk for job in self._in_flight.values()):
            return True
        provider = self.providers.of(session)
        if provider is None or not self.idle_threads:
            return False
        future: Future[SessionCheck] = self._pool.submit(ask, provider)
        self._in_flight[future] = _Checking(session.pk)
        return True

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """What no thread has begun is given back unsent, and what a claim may have taken that broke off. Safe to repeat."""
        for future in list(self._in_flight):
            if future.cancel():
                job = self._in_flight.pop(future)
                if isinstance(job, _Sending | _Resolving):
                    self.unsettled.append(Answered(job.claimed, None, SendResult.unsent("stopped before it was sent")))
        self._give_back_strays()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _reported(what: str, act: Callable[[], object]) -> None:
    try:
        act()
    except DATABASE_AWAY:
        raise
    except Exception:
        logger.exception(what)


def _record_check(session_id: int, future: "Future[SessionCheck]") -> None:
    try:
        check, session = future.result(), Session.objects.filter(pk=session_id).first()
        if session is not None and session_transitions.is_held_back(session, check, now=database_now()):
            session_transitions.note_checked(session_id)
        else:
            session_transitions.record_check(session_id, check)
    except DATABASE_AWAY:
        raise
    except Exception:  # else it would be asked again at each pass
        session_transitions.disconnect(session_id, "What the provider said about it could not be stored.")
        raise


class _Unusable(Exception):
    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def _resolve(provider: ChannelProvider, address: str, deadline: Deadline) -> Resolution | None:
    """In a thread. None: there was no time left to ask."""
    return None if deadline.passed else provider.resolve_address(address, deadline)


def _resolution(future: "Future[Resolution | None]") -> Resolution | None:
    """A provider's bug is "could not be asked", like any other reason for it."""
    error = future.exception()
    if error is None and (future.result() is None or isinstance(future.result(), Resolution)):
        return future.result()
    logger.error("a provider failed to resolve an address", extra={"error": type(error or TypeError()).__name__})
    return Resolution(Reach.UNKNOWN)


def _send(provider: ChannelProvider, address: str, claimed: Claimed, message: Message, deadline: Deadline, whole: timedelta) -> SendResult:
    """In a thread. No transaction is open, no ORM is touched."""
    if deadline.passed:
        return SendResult.unsent("its time was up before a thread was free")
    measures.began(provider.key, after=claimed.late + whole - timedelta(seconds=deadline.remaining))
    with measures.send_seconds.labels(provider.key).time():
        return provider.send(address, message, claimed.client_ref, deadline)


def _result(future: "Future[SendResult]") -> SendResult:
    error = future.exception()
    if error is None and isinstance(future.result(), SendResult):
        return future.result()
    if error is None:
        error = TypeError()  # it returned something else
    # a bug in the provider: nobody knows how far it got. The text of the exception may hold secrets, its type does not.
    logger.error("a provider raised", extra={"error": type(error).__name__})
    return SendResult.refused(ErrorCode.UNCONFIRMED, f"the provider raised {type(error).__name__}")

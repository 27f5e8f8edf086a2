"""What the stateful test stands on: the world outside the ledger, workers whose calls are made by hand, and what must always hold."""

import os
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from campaigns.models import Campaign
from dispatch import recovery
from dispatch.engine import Engine
from dispatch.lanes import Claimed
from dispatch.loop import BEAT_INTERVAL
from dispatch.models import DispatchLog, Heartbeat, Lane, Run
from dispatch.verification import Question
from sessions_app.models import Session
from sessions_app.pacing import MIN_INTERVAL_FLOOR, Metered
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
from tests.dispatch.invariants import COUNTED

DEADLINE = timedelta(seconds=2)
LEASE = timedelta(seconds=5)
FLOOR = timedelta(seconds=MIN_INTERVAL_FLOOR)
GONE = 2**22 + 1  # no process has such a pid
S = DispatchLog.Status


class Verdict(StrEnum):
    """What the provider does with the next call. It never says "refused" about what it accepted: no ledger could outlive that."""

    ACCEPTS = "accepts"
    ACCEPTS_AND_ANSWER_IS_LOST = "accepts, and the answer is lost"
    ACCEPTS_AND_RAISES = "accepts, and raises"
    RAISES = "raises"
    UNSENT = "gives it back unsent"
    RATE_LIMIT_FOR_LONG = "rate limit for two hours"
    RATE_LIMIT = ErrorCode.RATE_LIMIT
    DISCONNECTED = ErrorCode.DISCONNECTED
    MISCONFIGURED = ErrorCode.MISCONFIGURED
    INVALID_RECIPIENT = ErrorCode.INVALID_RECIPIENT
    FATAL = ErrorCode.FATAL
    TRANSIENT = ErrorCode.TRANSIENT
    UNCONFIRMED = ErrorCode.UNCONFIRMED

    @property
    def accepts(self) -> bool:
        return self in {Verdict.ACCEPTS, Verdict.ACCEPTS_AND_ANSWER_IS_LOST, Verdict.ACCEPTS_AND_RAISES}


@dataclass
class World:
    """What is true, whatever the ledger says."""

    now: datetime
    lag: timedelta  # how long an accepted message cannot be looked up yet; shorter than the grace, or nothing could be proved
    verdict: Verdict = Verdict.ACCEPTS
    up: list[bool] = field(default_factory=lambda: [True, True])
    calls: list[list[datetime]] = field(default_factory=lambda: [[], []])  # by session: every call that left
    accepted: dict[uuid.UUID, list[datetime]] = field(default_factory=lambda: defaultdict(list))
    asked: Counter[tuple[int, int]] = field(default_factory=Counter)  # (message, attempt) -> questions
    unsent: set[tuple[int, int]] = field(default_factory=set)

    def call(self, position: int, client_ref: uuid.UUID) -> SendResult:
        verdict = self.verdict if self.up[position] else Verdict.DISCONNECTED
        if verdict == Verdict.UNSENT:
            return SendResult.unsent("no thread, no time")
        self.calls[position].append(self.now)
        if verdict.accepts:
            self.accepted[client_ref].append(self.now)
        match verdict:
            case Verdict.ACCEPTS:
                return SendResult.accepted(f"id-{client_ref}")
            case Verdict.ACCEPTS_AND_RAISES | Verdict.RAISES:
                raise RuntimeError("a bug in the provider")
            case Verdict.ACCEPTS_AND_ANSWER_IS_LOST:
                return SendResult.refused(ErrorCode.UNCONFIRMED, "no answer in time")
            case Verdict.RATE_LIMIT_FOR_LONG:
                return SendResult.refused(ErrorCode.RATE_LIMIT, "not now", retry_after=timedelta(hours=2))
            case _:
                return SendResult.refused(ErrorCode(verdict.value), "said the provider")

    def look_up(self, client_ref: uuid.UUID) -> Verification:
        if self.verdict in {Verdict.RAISES, Verdict.ACCEPTS_AND_RAISES}:
            raise RuntimeError("a bug in the provider")
        if self.verdict in {Verdict.DISCONNECTED, Verdict.RATE_LIMIT}:
            return Verification(Presence.UNKNOWN)
        visible = any(moment + self.lag <= self.now for moment in self.accepted[client_ref])
        return Verification(Presence.PRESENT if visible else Presence.ABSENT, f"id-{client_ref}" if visible else "")


class WorldProvider(ChannelProvider):
    key = "world"
    label = "World"
    address_kind = "phone"
    can_verify = True
    absence_is_proof = True
    world: ClassVar[World]

    @property
    def position(self) -> int:
        return self.config.settings["position"]

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        return WorldProvider.world.call(self.position, client_ref)

    def check_session(self, deadline: Deadline) -> SessionCheck:
        return SessionCheck(SessionState.CONNECTED if WorldProvider.world.up[self.position] else SessionState.DISCONNECTED)

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        return WorldProvider.world.look_up(sent.client_ref)


class MeteredWorldProvider(WorldProvider):
    key = "world_metered"
    pacing = Metered(rate=0.5, burst=3)


# -- workers -------------------------------------------------------------------------------------------------------------------


class OnTheWorldsClock(Deadline):
    __slots__ = ("_until", "_world")

    def __init__(self, world: World) -> None:
        super().__init__(DEADLINE)
        self._world, self._until = world, world.now + DEADLINE

    @property
    def remaining(self) -> float:
        return max(0.0, (self._until - self._world.now).total_seconds())


@dataclass
class Job:
    """One call that an engine handed to a thread. Here it is made by one rule, and its answer arrives by another, or never."""

    act: Callable[[], Any]
    future: "Future[Any]"
    claimed: Claimed | None
    world: World
    result: Any = None
    error: Exception | None = None

    @property
    def waits(self) -> bool:
        return not self.future.running() and not self.future.done()

    def call(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.result = self.act()
        except Exception as error:
            self.error = error
        if self.claimed is not None and isinstance(self.result, SendResult) and self.result.answer == "UNSENT":
            self.world.unsent.add((self.claimed.id, self.claimed.attempt))

    def answer(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Hands(ThreadPoolExecutor):
    """A pool without threads: what is submitted waits until a rule lets it happen."""

    def __init__(self, world: World) -> None:
        super().__init__(1)
        self.world = world
        self.jobs: list[Job] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        args = tuple(OnTheWorldsClock(self.world) if isinstance(arg, Deadline) else arg for arg in args)
        asking = getattr(fn, "__self__", None)
        if isinstance(asking, Question):
            self.world.asked[asking.log_id, asking.attempt] += 1
        claimed = next((arg for arg in args if isinstance(arg, Claimed)), None)
        self.jobs.append(Job(lambda: fn(*args), Future(), claimed, self.world))
        return self.jobs[-1].future

    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.waits]

    def called(self) -> list[Job]:
        return [job for job in self.jobs if job.future.running()]


class SteppedEngine(Engine):
    """The real engine with its threads taken away."""

    hands: Hands

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pool.shutdown()
        self.hands = Hands(WorldProvider.world)
        self._pool = self.hands


@dataclass
class Worker:
    heart: Heartbeat
    engine: SteppedEngine

    @classmethod
    def start(cls, now: datetime, seed: int) -> "Worker":
        """As `loop.start_heart` does it, on the world's clock."""
        heart = Heartbeat.objects.create(
            kind=Heartbeat.Kind.SCHEDULER,
            host="here",
            host_identity=recovery.host_identity(),
            pid=os.getpid(),
            version="0",
            interval=BEAT_INTERVAL,
            beat_at=now,
        )
        dead = recovery.dead_heartbeats(now)
        gone = [beat.pk for beat in dead if recovery.is_gone(beat)]
        recovery.recover_lanes(verify_after=timedelta(seconds=15), lease_time=LEASE, dead_owners=gone, now=now)
        Heartbeat.objects.filter(pk__in=[beat.pk for beat in dead]).update(recovered_at=now)
        return cls(heart, SteppedEngine(owner=heart.pk, threads=4, deadline=DEADLINE, lease=LEASE, rng=Random(seed), now=now))

    def beat(self, now: datetime) -> None:
        self.engine.now = now
        Heartbeat.objects.filter(pk=self.heart.pk).update(beat_at=now, last_pass_at=now, recovered_at=None)

    def die(self, *, seen: bool) -> None:
        """Dropped with all it had in its hands. Seen: its pid is gone from this host; else it is another host that fell silent."""
        self.heart.pid, self.heart.host_identity = (GONE, self.heart.host_identity) if seen else (1, "elsewhere")
        self.heart.save(update_fields=["pid", "host_identity"])


# -- what must hold ------------------------------------------------------------------------------------------------------------


@dataclass
class Excuses:
    """What a person decided about one message, against or without evidence."""

    repeats: int = 0  # "send again": one more acceptance is allowed
    accepted_before: int = 0  # acceptances that a person took for refused, or had sent again
    marked_sent: bool = False


@dataclass
class Ledger:
    """Compares what the database says with what is true in the world. Remembers just enough to see what went backwards."""

    world: World
    excuses: dict[int, Excuses] = field(default_factory=lambda: defaultdict(Excuses))
    attempts: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    claims: dict[tuple[int, Any], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))

    def check(self) -> None:
        lanes = {lane.pk: lane for lane in Lane.objects.select_related("session")}
        logs = list(DispatchLog.objects.order_by("pk"))
        self._adds_up(logs, lanes)
        for log in logs:
            self._is_true(log)
            if log.attempt != self.attempts[log.pk]:
                self._was_claimed(log, lanes[log.session_id])
            if log.status == S.SENDING:
                assert lanes[log.session_id].owner is not None, f"{log}: on its way, and its lane belongs to nobody"
        for lane in lanes.values():
            assert lane.token >= self.tokens[lane.pk], "a token went backwards"
            self.tokens[lane.pk] = lane.token
            if lane.rate is None:
                self._kept_its_distance(lane)
        self._nobody_got_it_twice(logs)
        running = Counter(Campaign.objects.running().values_list("session_id", flat=True))
        assert all(count == 1 for count in running.values()), "two campaigns run on one session"

    def _adds_up(self, logs: list[DispatchLog], lanes: dict[int, Lane]) -> None:
        """The sums of `assert_sum_rule`, from what was read already."""
        by_run: dict[int | None, Counter[str]] = defaultdict(Counter)
        for log in logs:
            by_run[log.run_id][log.status.lower()] += 1
        for run in Run.objects.all():
            found = by_run[run.pk]
            assert {name: getattr(run, name) for name in COUNTED} == {name: found[name] for name in COUNTED}, f"{run} counts wrongly"
            if run.rows_complete:
                assert (run.planned, run.waiting) == (found.total(), found["pending"] + found["sending"]), f"{run} counts wrongly"
        in_flight = Counter(log.session_id for log in logs if log.status == S.SENDING)
        for lane in lanes.values():
            assert lane.in_flight == in_flight[lane.pk] <= lane.burst, f"{lane}: {in_flight[lane.pk]} on their way, not {lane.in_flight}"
            assert (lane.owner is not None) == (lane.lease_expires_at is not None) == (lane.in_flight > 0)

    def _is_true(self, log: DispatchLog) -> None:
        accepted, excuse = len(self.world.accepted[log.client_ref]), self.excuses[log.pk]
        match log.status:
            case S.SENT:
                assert accepted or excuse.marked_sent, f"{log} is SENT, and nobody accepted it"
            case S.PENDING | S.FAILED | S.SKIPPED:
                assert accepted == excuse.accepted_before, f"{log} is {log.status}, and was accepted {accepted} times"

    def _was_claimed(self, log: DispatchLog, lane: Lane) -> None:
        assert log.attempt == self.attempts[log.pk] + 1, f"{log}: from attempt {self.attempts[log.pk]} to {log.attempt}"
        self.attempts[log.pk] = log.attempt
        campaign, session = log.campaign, log.campaign.session
        assert campaign.status == Campaign.Status.RUNNING, f"{log} was claimed while its campaign is {campaign.status}"
        assert session.status == Session.Status.CONNECTED, f"{log} was claimed on a session that is {session.status}"
        assert session.pk == log.session_id, f"{log} was claimed on a session that its campaign left"
        assert log.claimed_at is not None
        today = self.claims[session.pk, log.claimed_at.astimezone(ZoneInfo(session.time_zone)).date()]
        today.add((log.pk, log.attempt))
        count = len(today - self.world.unsent)
        assert session.daily_limit is None or count <= session.daily_limit, f"{count} attempts in a day of at most {session.daily_limit}"

    def _kept_its_distance(self, lane: Lane) -> None:
        calls = self.world.calls[lane.session.settings["position"]]
        if len(calls) > 1:
            assert calls[-1] - calls[-2] >= FLOOR, f"{lane}: {calls[-1] - calls[-2]} between two messages"

    def _nobody_got_it_twice(self, logs: list[DispatchLog]) -> None:
        got: Counter[tuple[int | None, str]] = Counter()
        allowed: Counter[tuple[int | None, str]] = Counter()
        for log in logs:
            key = (log.run_id, log.address)
            got[key] += len(self.world.accepted[log.client_ref])
            allowed[key] = max(allowed[key], 1) + self.excuses[log.pk].repeats
        for key, count in got.items():
            assert count <= allowed[key], f"{key} got the message {count} times, and {allowed[key]} were allowed"

    def check_after_planning(self) -> None:
        left = DispatchLog.objects.filter(campaign__status=Campaign.Status.COMPLETED, status__in=[S.PENDING, S.SENDING])
        assert not left.exists(), "a completed campaign has something left to send"

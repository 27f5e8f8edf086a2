"""How long an identity waits. Pure: the caller passes `now` and the random source, draws once, and stores what was drawn.

docs/pacing.md says for each number which problem it answers and what it costs.
"""

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from random import Random
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

MIN_INTERVAL_FLOOR = 8
INTERVAL_SPREAD_FLOOR = 5
BATCH_SIZE_CEILING = 20
BATCH_PAUSE_FLOOR = 60
WARM_UP_ATTEMPTS = 5
WARM_UP_FACTOR = 2.5
BATCH_PAUSE_SPREAD = 1.25
MAX_FAILURES_IN_A_ROW = 5
MAX_INVALID_IN_A_ROW = 20
RATE_LIMIT_WAIT = timedelta(seconds=300)
RATE_LIMIT_CEILING = timedelta(hours=1)
METERED_RATE_LIMIT_WAIT = timedelta(seconds=5)


@dataclass(frozen=True)
class Human:
    """The pacing of one careful human, in seconds. Make it with `human()`, which lifts every value to its floor."""

    min_interval: int
    max_interval: int
    batch_size: int
    batch_pause: int

    @property
    def longest_wait(self) -> timedelta:
        """No draw is longer: what a claim must keep a lane shut for, in case its worker dies."""
        interval = self.max_interval * WARM_UP_FACTOR
        return timedelta(seconds=max(interval, self.batch_pause * BATCH_PAUSE_SPREAD))


@dataclass(frozen=True)
class Metered:
    """A published rate: at most 80 % of it, the rest is left for conversations. `burst` messages may be in flight at once."""

    rate: float  # messages per second
    burst: int


class PacingValues(Protocol):
    """What people typed: a campaign, or a row that was claimed for it."""

    @property
    def min_interval(self) -> int: ...
    @property
    def max_interval(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def batch_pause(self) -> int: ...


class Wait(NamedTuple):
    duration: timedelta
    ends_batch: bool  # the batch is over: count from 0 again


def human(*, min_interval: int, max_interval: int, batch_size: int, batch_pause: int) -> Human:
    """The values that will really be used: those below a floor are raised to it, a batch above the ceiling is cut."""
    lowest = max(min_interval, MIN_INTERVAL_FLOOR)
    return Human(
        min_interval=lowest,
        max_interval=max(max_interval, lowest + INTERVAL_SPREAD_FLOOR),
        batch_size=min(max(batch_size, 1), BATCH_SIZE_CEILING),
        batch_pause=max(batch_pause, BATCH_PAUSE_FLOOR),
    )


def human_of(values: PacingValues) -> Human:
    return human(
        min_interval=values.min_interval,
        max_interval=values.max_interval,
        batch_size=values.batch_size,
        batch_pause=values.batch_pause,
    )


def wait_after(pacing: Human, *, attempts_in_run: int, attempts_in_batch: int, rng: Random) -> Wait:
    """The wait after an attempt; both counts include it."""
    if attempts_in_batch >= pacing.batch_size:
        return Wait(timedelta(seconds=pacing.batch_pause * rng.uniform(1, BATCH_PAUSE_SPREAD)), ends_batch=True)
    seconds = rng.uniform(pacing.min_interval, pacing.max_interval)
    if attempts_in_run <= WARM_UP_ATTEMPTS:
        seconds *= WARM_UP_FACTOR
    return Wait(timedelta(seconds=seconds), ends_batch=False)


def wait_after_rate_limit(*, repeats: int, retry_after: timedelta | None, first: timedelta = RATE_LIMIT_WAIT) -> timedelta:
    """After the `repeats`-th throttled answer in a row (1 = the first): doubles to an hour; the provider may ask for longer."""
    doubled = first * 2 ** min(repeats - 1, 16)
    return max(min(doubled, RATE_LIMIT_CEILING), retry_after or timedelta(0))


class Window(NamedTuple):
    """Safe hours as instants: sending is allowed from `opens_at` (may be in the past) until `closes_at`."""

    opens_at: datetime
    closes_at: datetime


def safe_window(now: datetime, *, starts: time, ends: time, zone: ZoneInfo) -> Window | None:
    """The window that holds now, or else the next one. None: starts equals ends, which means no restriction.

    Compared on the wall clock of the zone, day by day, so a clock change moves the instants and not the hours. A window may cross midnight.
    """
    if starts == ends:
        return None
    today = now.astimezone(zone).date()
    for days in (-1, 0, 1, 2):
        first = today + timedelta(days=days)
        last = first if ends > starts else first + timedelta(days=1)
        window = Window(
            datetime.combine(first, starts, tzinfo=zone).astimezone(now.tzinfo),
            datetime.combine(last, ends, tzinfo=zone).astimezone(now.tzinfo),
        )
        if window.closes_at > now and window.closes_at > window.opens_at:
            return window
    raise AssertionError("a window opens every day")

"""What a chaos run is made of. Knows no Django: the harness stays free of it, so that it can run beside any test."""

from dataclasses import dataclass
from typing import Literal

LEASE = 3.0  # seconds
GRACE = 5.0
FLOOR = 0.5  # between two messages of one human session; longer than a recovery and an operator's resume take
FREEZE = (LEASE * 1.05, LEASE * 1.4)  # longer than a lease, shorter than lease + grace
LONG_FREEZE = (LEASE + GRACE) * 1.2  # longer than both: the stated risk
KILL_EVERY = (0.3, 0.9)
AT_ONCE = 16  # calls of one process: its threads
FAULTY = 0.3  # of the calls that send

Kind = Literal["metered", "human", "gateway"]
CHANNELS: dict[Kind, str] = {"metered": "sandbox", "human": "human_sandbox", "gateway": "waha"}
FIRST_NUMBER = 12025550000


@dataclass(frozen=True)
class Lane:
    """One session, the campaigns that take turns on it, and how many people each of them has."""

    kind: Kind
    name: str
    campaigns: int
    people: int
    rate: float = 20


@dataclass(frozen=True)
class Plan:
    seed: int
    seconds: float  # of chaos, at most; it also ends when nothing waits any more
    lanes: tuple[Lane, ...]
    schedulers: int = 3
    naive: bool = False  # the negative control: recovery that returns in-flight messages to PENDING
    pooled: bool = False  # PgBouncer between the schedulers and PostgreSQL
    long_freezes: int = 0

    @property
    def messages(self) -> int:
        return sum(lane.campaigns * lane.people for lane in self.lanes)


def lanes(messages: int) -> tuple[Lane, ...]:
    """Seven eighths on metered lanes; the human ones have two campaigns each, whose messages share one floor."""
    human = max(2, min(10, messages // 60))
    metered = max(3, min(16, messages // 60))
    on_human = max(2, messages // 8 // (human + 1) // 2)
    on_metered = -(-(messages - 2 * on_human * (human + 1)) // metered)
    return (
        *(Lane("metered", f"metered-{n}", 1, on_metered) for n in range(metered)),
        *(Lane("human", f"human-{n}", 2, on_human) for n in range(human)),
        Lane("gateway", "gateway", 2, on_human),
    )

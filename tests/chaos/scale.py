"""The engine's times for the chaos runs, about thirty times shorter than in production. Only tests can hand such objects over.

Kept from production: the deadline is far below the lease, every freeze but the long ones is below lease + grace, and the grace is longer
than anything a busy machine does to a process between its last look at the deadline and the first byte.
"""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import dispatch.recovery
from dispatch.engine import Engine
from dispatch.verification import VerifyPolicy
from sessions_app import pacing
from tests.chaos.plan import FLOOR, GRACE, LEASE

DEADLINE = timedelta(seconds=1)
HUMAN = pacing.Human(min_interval=FLOOR, max_interval=1.2 * FLOOR, batch_size=20, batch_pause=2 * FLOOR)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Patient(VerifyPolicy):
    """Asks often and never gives up: at the end of a run nothing may be left that could have been found out."""

    backoff: tuple[timedelta, ...] = (timedelta(seconds=0.3), timedelta(seconds=0.7)) + (timedelta(seconds=1),) * 500
    grace: timedelta = timedelta(seconds=GRACE)


def make_engine(owner: UUID) -> Engine:
    lease = timedelta(seconds=LEASE)
    return Engine(owner=owner, deadline=DEADLINE, lease=lease, verify=Patient(), human=lambda values: HUMAN)


def scale() -> None:
    """What no constructor takes: the cool-downs, and what a new process does with the lanes of dead ones."""
    pacing.RATE_LIMIT_WAIT = timedelta(seconds=0.5)
    pacing.METERED_RATE_LIMIT_WAIT = timedelta(seconds=0.2)
    pacing.RATE_LIMIT_CEILING = timedelta(seconds=2)
    dispatch.recovery.VerifyPolicy = Patient  # type: ignore[assignment, misc]
    dispatch.recovery.lease = lambda: timedelta(seconds=LEASE)

"""Many messages decided at once: by a person, over a whole list; or by what their campaign says about those that stay unconfirmed.

In chunks, each a transaction of its own: short locks, flat memory, and what is done stays done when the rest is cut off.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from django.db.models import QuerySet

from dispatch import transitions
from dispatch.models import DispatchLog
from dispatch.transitions import Decision
from sessions_app.providers.base import Deadline

logger = logging.getLogger("paceline.deciding")

ROWS_AT_ONCE = 500
ONE_REQUEST_TAKES_AT_MOST = timedelta(seconds=20)  # web servers cut a request off at 30


@dataclass(frozen=True)
class Decided:
    """`left` were in the list and had been decided by somebody else when their turn came; `is_done` is False when the time was up."""

    decided: int
    left: int
    is_done: bool


def decide_all(
    decision: Decision, rows: QuerySet[DispatchLog], *, by: str, takes_at_most: timedelta = ONE_REQUEST_TAKES_AT_MOST
) -> Decided:
    """Every row of the list that this decides about, oldest first, for a bounded time. Safe to repeat: it goes on where it stopped."""
    deadline, last, decided, left = Deadline(takes_at_most), 0, 0, 0
    while chunk := list(eligible(decision, rows).filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:ROWS_AT_ONCE]):
        done = transitions.decide(decision, chunk, by=by)
        decided, left, last = decided + done, left + len(chunk) - done, chunk[-1]
        if deadline.passed:
            break
    is_done = not deadline.passed or not eligible(decision, rows).filter(pk__gt=last).exists()
    logger.info("decided", extra={"by": by, "target": decision.target.value, "decided": decided, "left": left})
    return Decided(decided, left, is_done)


def eligible(decision: Decision, rows: QuerySet[DispatchLog]) -> QuerySet[DispatchLog]:
    return rows.filter(status=decision.origin)


def left_to_default(now: datetime, grace: timedelta) -> Iterator[tuple[int, list[int]]]:
    """The next chunk of messages that their campaign's default decides: (campaign, messages)."""
    rows = DispatchLog.objects.left_open(now - grace).order_by("campaign_id", "pk").values_list("campaign_id", "pk")[:ROWS_AT_ONCE]
    for campaign_id, group in groupby(list(rows), key=lambda row: row[0]):
        yield campaign_id, [log_id for _, log_id in group]

"""The lock and the record of work that runs one at a time, whoever starts it: a background task, a cron over HTTP, a person at a shell.

The lock is a row with an end, on the database's clock: a holder that died blocks nobody past it, on no host.
"""

import logging
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Now

from dispatch.models import Job
from sessions_app.clock import database_now

logger = logging.getLogger("paceline.jobs")

RETRY = "campaign-retry"
SCHEDULER = "scheduler"  # one pass, over HTTP
WATCH = "watch"  # the background tasks' sign of life


class Busy(Exception):
    """Another run of the job is on its way."""

    def __init__(self, holder: str, since: datetime | None) -> None:
        super().__init__(f"already running: {holder}" + (f", since {since:%Y-%m-%d %H:%M:%S} UTC" if since else ""))
        self.holder = holder
        self.since = since


@dataclass
class Turn:
    """One run of a job. `counts` is what it leaves in the record."""

    name: str
    holder: uuid.UUID
    ttl: timedelta
    counts: dict[str, Any] = field(default_factory=dict)

    def extend(self) -> bool:
        """Between two pieces of the work: the lock holds for another TTL. False: it ran out, another run has it, and this one must end."""
        return self._mine().update(locked_until=Now() + self.ttl) == 1

    def _mine(self) -> Any:
        return Job.objects.filter(pk=self.name, holder=self.holder)

    def end(self, error: str = "") -> None:
        changes: dict[str, Any] = {"failures": F("failures") + 1} if error else {"succeeded_at": Now()}
        over = {"holder": None, "locked_until": None, "finished_at": Now(), "runs": F("runs") + 1}
        self._mine().update(counts=self.counts, error=error[:500], **over, **changes)


def state(name: str) -> dict[str, Any]:
    """JSON-ready: whether it runs now, and what its last run did."""
    job = Job.objects.filter(pk=name).first() or Job(name=name)
    runs = job.runs_at(database_now())
    return {
        "running": runs,
        "running_since": iso(job.started_at if runs else None),
        "holder": job.holder_label if runs else "",
        "last_started_at": iso(job.started_at),
        "last_finished_at": iso(job.finished_at),
        "last_succeeded_at": iso(job.succeeded_at),
        "last_error": job.error,
        "last_counts": job.counts,
    }


def iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def take(name: str, *, ttl: timedelta) -> Turn:
    """The job's lock, or Busy."""
    Job.objects.bulk_create([Job(name=name)], ignore_conflicts=True)
    turn = Turn(name, uuid.uuid4(), ttl)
    before = Job.objects.get(pk=name)
    free = Job.objects.filter(Q(locked_until__isnull=True) | Q(locked_until__lt=Now()), pk=name)
    label = f"process {os.getpid()} on {socket.gethostname()}"
    if not free.update(holder=turn.holder, holder_label=label[:300], locked_until=Now() + ttl, started_at=Now()):
        now = Job.objects.get(pk=name)
        raise Busy(now.holder_label, now.started_at)
    if before.holder is not None:
        logger.warning("a job's lock ran out and was taken over", extra={"job": name, "before": before.holder_label})
    return turn


@contextmanager
def running(name: str, *, ttl: timedelta) -> Iterator[Turn]:
    """Takes the lock, and writes down how it ended; an exception goes on to the caller. Raises Busy."""
    turn = take(name, ttl=ttl)
    try:
        yield turn
    except BaseException as error:
        turn.end(f"{type(error).__name__}: {error}")
        raise
    turn.end()

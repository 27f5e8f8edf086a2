"""Lending the engine a process for a while: a background task that has a minute, or one call over HTTP on a host without either service."""

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from django.conf import settings

from campaigns.models import Campaign
from dispatch import jobs
from dispatch.engine import Engine
from dispatch.loop import Loop, start_heart
from dispatch.models import DispatchLog, Heartbeat, Lane
from dispatch.outcomes import outcome_of
from dispatch.scheduler import PassReport
from dispatch.stopping import StopAfter
from sessions_app.clock import database_now

ONE_PASS_LOOKS_AHEAD = 20.0  # seconds: hosted crons give a call up to half a minute
ONE_PASS_BEATS_EVERY = timedelta(seconds=30)  # its last answers may take a send deadline, and nobody beats meanwhile
LOCK_OUTLIVES_THE_DEADLINE_BY = timedelta(seconds=90)


class Unfinished(Exception):
    """The pass came to its end, and not all of it worked. The log has the rest."""


def lend(kind: Heartbeat.Kind, *, interval: timedelta, seconds: float) -> str:
    """Drives for so long, through the same loop and with the same heartbeat as `manage.py run_scheduler`, and ends as cleanly."""
    heart = start_heart(kind, interval=interval)
    loop = Loop(heart=heart, engine=Engine(owner=heart.pk, rng=Random()), stop=StopAfter(seconds))
    return "driven" if loop.run() == 0 else "driven; some answers could not be saved"


def drive_once(*, seconds: float = ONE_PASS_LOOKS_AHEAD) -> dict[str, Any]:
    """What is due now and what becomes due within these seconds, with its answers; sooner back when there is nothing more to wait for.

    Harmless beside living schedulers: what they own is theirs. Raises jobs.Busy, and Unfinished. Returns the counts.
    """
    with jobs.running(jobs.SCHEDULER, ttl=lock_time()) as turn:
        heart = start_heart(Heartbeat.Kind.JOB, interval=ONE_PASS_BEATS_EVERY)
        engine = _CountingEngine(owner=heart.pk, rng=Random())
        loop = _UntilIdle(heart=heart, engine=engine, stop=StopAfter(seconds), interval=0.5, ends_at=time.monotonic() + seconds)
        code = loop.run()
        turn.counts = asdict(loop.total) | engine.counts
        if code or loop.error:
            raise Unfinished(loop.error or "some answers could not be saved")
        return turn.counts


def lock_time() -> timedelta:
    """Longer than any pass: its seconds, one send deadline, the last settle."""
    return LOCK_OUTLIVES_THE_DEADLINE_BY + timedelta(seconds=settings.SEND_DEADLINE_SECONDS)


def state() -> dict[str, Any]:
    """JSON-ready, of the job that does one pass: whether one is on its way, and what the last one did."""
    return jobs.state(jobs.SCHEDULER)


class _CountingEngine(Engine):
    """Counts what it settled, also after the last pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._outcomes: Counter[str] = Counter()

    def settle(self) -> set[int]:
        answers = list(self.unsettled)
        troubled = super().settle()
        self._outcomes.update(str(outcome_of(answer.result).status) for answer in answers)
        return troubled

    @property
    def counts(self) -> dict[str, int]:
        status = DispatchLog.Status
        told = {str(one).lower(): self._outcomes[str(one)] for one in (status.SENT, status.FAILED, status.UNCONFIRMED)}
        return {"settled": self._outcomes.total(), **told}


@dataclass
class _UntilIdle(Loop):
    """Ends as soon as nothing is due, nothing is on its way, and nothing will be due before `ends_at`."""

    ends_at: float = 0.0
    total: PassReport = field(default_factory=PassReport)
    error: str = ""

    def _pass(self) -> PassReport:
        before, planned_at = database_now(), self._planned_at
        report = super()._pass()
        for name, count in asdict(report).items():
            setattr(self.total, name, getattr(self.total, name) + count)
        looked_everywhere = self._planned_at != planned_at
        if looked_everywhere and not (report.found_work or self.engine.busy or self.engine.unsettled or self._more_is_due_after(before)):
            self.stop.requested = True
        return report

    def _more_is_due_after(self, moment: datetime) -> bool:
        """What was due by then and was not taken is somebody else's, or may not go out now: not worth waiting for."""
        end = moment + timedelta(seconds=max(0.0, self.ends_at - time.monotonic()))
        lanes = Lane.objects.filter(is_open=True, trouble="", next_send_at__gt=moment, next_send_at__lte=end)
        return lanes.exists() or Campaign.objects.filter(status=Campaign.Status.SCHEDULED, due_at__gt=moment, due_at__lte=end).exists()

    def _wait_after_error(self, error: Exception) -> None:
        self.error = f"a pass failed: {type(error).__name__}"
        super()._wait_after_error(error)

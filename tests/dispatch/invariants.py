"""What must hold at any moment, counted from the rows; and the smallest set-up of a lane with messages waiting, without an engine."""

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from django.db import connection

from campaigns.models import Campaign
from dispatch import doctor, lanes, outcomes
from dispatch.lanes import Claimed, Settlement
from dispatch.models import DispatchLog, Lane, Run
from sessions_app import pacing
from sessions_app.providers.base import SendResult
from tests.factories import make_campaign, make_lane, make_recipients, make_run, make_session, make_step

NOW = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=1)  # recovery waits one lease after a start of the database
LONGEST_WAIT = timedelta(seconds=150)
VERIFY_AFTER = timedelta(seconds=15)
OK = SendResult.accepted("id-1")
COUNTED = ("sent", "failed", "unconfirmed", "skipped")


def assert_sum_rule(*campaigns: Campaign) -> None:
    """Every run counts its rows right; in_flight is the number of SENDING rows; a lane has an owner exactly while that is above 0."""
    runs = Run.objects.filter(campaign__in=campaigns) if campaigns else Run.objects.all()
    for run in runs:
        found = Counter(status.lower() for status in DispatchLog.objects.filter(run=run).values_list("status", flat=True))
        assert {name: getattr(run, name) for name in COUNTED} == {name: found[name] for name in COUNTED}
        if run.rows_complete:
            assert run.planned == found.total()
            assert run.waiting == found["pending"] + found["sending"]
    in_flight = Counter(DispatchLog.objects.in_flight().values_list("session_id", flat=True))
    for lane in Lane.objects.all():
        assert lane.in_flight == in_flight[lane.pk]
        assert lane.in_flight <= lane.burst
        assert (lane.owner is not None) == (lane.lease_expires_at is not None) == (lane.in_flight > 0)


def broken(**scope: Any) -> list[str]:
    """What the doctor finds at the end of a test. What is due may be left untaken there: nobody is at work any more."""
    findings = doctor.examine(everything=True, **scope)
    return [f"{f.check.key}: {example}" for f in findings if f.check.key != "taken-when-due" for example in f.examples]


def ready(people: int = 3, *, rate: float | None = None, burst: int = 1, session: dict[str, Any] | None = None, **lane: Any) -> Campaign:
    """A RUNNING campaign with its rows made, on a lane that is open and due at NOW."""
    campaign = make_campaign(session=make_session(**session or {}), status=Campaign.Status.RUNNING)
    run = make_run(make_step(campaign), planned=people, rows_complete=True)
    rows = [
        DispatchLog(
            campaign=campaign, session=campaign.session, step=run.step, run=run, recipient=person, address=person.address, available_at=NOW
        )
        for person in make_recipients(people, campaign)
    ]
    DispatchLog.objects.bulk_create(rows)
    wait = timedelta(0) if rate else LONGEST_WAIT
    values = {
        "campaign": campaign,
        "next_send_at": NOW,
        "rate": rate,
        "burst": burst,
        "longest_wait": wait,
        "epoch": campaign.epoch,
        **lane,
    }
    make_lane(campaign.session, **values)
    return campaign


def take(owner: uuid.UUID, *, now: datetime | None = NOW, rows: int = 1, at_most: int = 64, full: Sequence[str] = ()) -> list[Claimed]:
    return lanes.claim(owner=owner, lanes=at_most, rows=rows, lease=LEASE, full_origins=full, now=now)


def bring_back(claimed: Sequence[Claimed], *results: SendResult, now: datetime | None = NOW) -> set[int]:
    """Settle, as the engine does it; the last result serves the rest. Returns the rows that changed."""
    answers = [results[min(n, len(results) - 1)] for n in range(len(claimed))]
    settlements, effects = [], {}
    for one, result in zip(claimed, answers, strict=True):
        outcome = outcomes.outcome_of(result)
        settlements.append(
            Settlement(one, outcome.status, str(outcome.code), result.message_id, result.detail, result.http_status, "Hello")
        )
    for session_id in {one.session_id for one in claimed}:
        mine = [(one, result) for one, result in zip(claimed, answers, strict=True) if one.session_id == session_id]
        last = mine[-1][0]
        effects[session_id] = outcomes.effect_of(
            [result for _, result in mine],
            human=None if last.rate is not None else pacing.human(min_interval=8, max_interval=13, batch_size=10, batch_pause=120),
            attempts_in_run=last.attempts_in_run,
            attempts_in_batch=last.attempts_in_batch,
            rate_limits_before=last.consecutive_rate_limits,
            rng=Random(1),
        )
    return lanes.settle(settlements, effects, verify_after=VERIFY_AFTER, now=now)[0]


def recover(*dead: uuid.UUID, now: datetime | None = NOW, lease: timedelta = LEASE) -> list[lanes.Lost]:
    return lanes.recover(lease=lease, verify_after=VERIFY_AFTER, reason="lost", dead_owners=dead, now=now)


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Each in a thread with a connection of its own, released at once. Returns what they returned; the first exception is raised."""
    barrier, results, errors = threading.Barrier(len(acts)), [None] * len(acts), []

    def run(position: int) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=30)
            results[position] = acts[position]()
        except BaseException as error:
            barrier.abort()
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(position,)) for position in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return results

"""The retry job for whoever runs it from outside: once or on a clock, in this process or at a deployment that is called over HTTP.

Server and database may be away; the daemon says so once and goes on.
"""

import json
import logging
import re
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import close_old_connections, connection, reset_queries

from campaigns.transitions import Refused
from dispatch import jobs, retry
from dispatch.settling import DATABASE_AWAY
from dispatch.stopping import StopFlag
from sessions_app.providers import http
from sessions_app.providers.base import Deadline

logger = logging.getLogger("paceline.retry")

JOB_PATH = "/api/jobs/campaign-retry"
JITTER = 0.2  # of the interval, either way: several daemons do not call at the same moment for ever
IDLE_IS_LOGGED_EVERY = timedelta(minutes=5)
WORDS_AT_MOST = 300


class Outcome(StrEnum):
    DONE = "DONE"
    BUSY = "BUSY"  # another run is on its way
    AWAY = "AWAY"  # server or database; it may come back by itself
    REFUSED = "REFUSED"  # the server does not take the call; somebody must mend the token or the address
    WRONG = "WRONG"  # the scope makes no sense
    FAILED = "FAILED"  # a bug


@dataclass(frozen=True)
class JobReply:
    """What became of one run. `sentence` is for people and holds no secret; `counts` are those of retry.run_batch."""

    outcome: Outcome
    sentence: str = ""
    counts: Mapping[str, Any] = field(default_factory=dict)
    status: int | None = None  # of the HTTP answer
    error: Exception | None = None

    @property
    def is_fine(self) -> bool:
        return self.outcome in {Outcome.DONE, Outcome.BUSY}

    @property
    def exit_code(self) -> int:
        return 0 if self.is_fine else 2 if self.outcome == Outcome.WRONG else 1

    def as_dict(self) -> dict[str, Any]:
        return {"outcome": self.outcome.value, "sentence": self.sentence, **self.counts}


@dataclass(frozen=True)
class Request:
    """What one run is asked for. What is None is left to the settings of whoever runs it."""

    scope: retry.Scope
    batch_size: int | None = None
    max_campaigns: int | None = None
    dry_run: bool = False

    def body(self) -> dict[str, Any]:
        scope = self.scope
        age = scope.max_age
        values = {
            "campaign": scope.campaign_id,
            "tenant": scope.tenant or None,
            "session": scope.session_id,
            "errorCode": scope.error_code or None,
            "maxAgeHours": int(age.total_seconds()) // 3600 if age is not None else None,
            "batchSize": self.batch_size,
            "maxCampaigns": self.max_campaigns,
            "dryRun": self.dry_run or None,
        }
        return {name: value for name, value in values.items() if value is not None}


# -- what the command line says ------------------------------------------------------------------------------------------------


def request_from(options: Mapping[str, Any]) -> Request:
    """What the command line asks for; where it is silent, campaign and tenant are those of the settings."""
    own, hours = retry.Scope.from_settings(), options["max_age_hours"]
    scope = retry.Scope(
        campaign_id=options["campaign"] or own.campaign_id,
        tenant=options["tenant"] or own.tenant,
        session_id=options["session"],
        error_code=options["error_code"] or "",
        max_age=timedelta(hours=hours) if hours else None,
    )
    return Request(scope, options["batch_size"], options["max_campaigns"], options["dry_run"])


def whole_number(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or not 1 <= int(text) <= most:
            raise ArgumentTypeError(f"it must be a whole number from 1 to {most}")
        return int(text)

    return read


def error_code(text: str) -> str:
    try:
        retry.require_retryable(text)
    except Refused as refused:
        raise ArgumentTypeError(str(refused)) from None
    return text


def job_url(text: str) -> str:
    """The address to call; a deployment's own address is enough."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ArgumentTypeError("it must be an address such as https://paceline.example.org")
    return text if parts.path.strip("/") else parts._replace(path=JOB_PATH).geturl()


def turn_for(url: str, request: Request) -> Callable[[], JobReply]:
    """One run: at the deployment, or in this process when there is no address."""
    if not url:
        return partial(run_here, request)
    timeout = timedelta(milliseconds=settings.CAMPAIGN_RETRY_DAEMON_TIMEOUT_MS)
    return partial(call_job, job_url(url), settings.CAMPAIGN_RETRY_JOB_TOKEN, timeout=timeout, body=request.body())


# -- in this process -----------------------------------------------------------------------------------------------------------


def run_here(request: Request) -> JobReply:
    """One batch on our own database; raises nothing."""
    if not connection.in_atomic_block:
        close_old_connections()
        reset_queries()
    try:
        counts = retry.run_batch(request.scope, batch_size=request.batch_size, max_campaigns=request.max_campaigns, dry_run=request.dry_run)
    except jobs.Busy as busy:
        return JobReply(Outcome.BUSY, str(busy))
    except Refused as refused:
        return JobReply(Outcome.WRONG, str(refused))
    except DATABASE_AWAY as error:
        connection.close()
        return JobReply(Outcome.AWAY, f"the database is not reachable or takes no writes: {type(error).__name__}")
    except Exception as error:
        return JobReply(Outcome.FAILED, f"the batch failed: {type(error).__name__}", error=error)
    return JobReply(Outcome.DONE, said(counts), counts)


def said(counts: Mapping[str, Any]) -> str:
    """The counts in words: the first line the numbers, then the reasons."""
    queued, campaigns, left = (counts.get(name) or 0 for name in ("queued", "campaigns", "left"))
    if counts.get("dry_run"):
        parts = [f"Would be queued again: {left} (campaigns: {campaigns}). Nothing was changed."]
    else:
        parts = [f"Queued again: {queued} (campaigns: {campaigns})."]
        if requeued := counts.get("requeued_campaigns"):
            parts.append(f"Campaigns that take their turn anew: {requeued}.")
        if left:
            parts.append(f"Still due: {left}.")
        if failed := counts.get("failed"):
            parts.append(f"Campaigns that failed: {failed}; the log of the process that ran it says why.")
        if counts.get("lock_lost"):
            parts.append("It ended early: its lock ran out, and another run has it.")
    reasons = [f"{times:>7}  {reason}" for reason, times in (counts.get("by_reason") or {}).items()]
    return "\n".join([" ".join(parts), *reasons])


# -- at a deployment -----------------------------------------------------------------------------------------------------------


def call_job(url: str, token: str, *, timeout: timedelta, body: Mapping[str, Any] | None = None) -> JobReply:
    """One run, by POST; no redirect is followed, so the token goes to this host alone. Raises nothing that the network can cause."""
    bearer = {"Authorization": f"Bearer {token}".encode().decode("latin-1")} if token else {}  # as bytes: it need not be ASCII
    try:
        answer = http.post_json(url, body or {}, deadline=Deadline(timeout), headers=bearer)
    except http.NotSent as error:
        return JobReply(Outcome.AWAY, f"the server is not reachable: {error}")
    except http.NoAnswer as error:
        return JobReply(Outcome.AWAY, f"the server did not answer, and may have run the batch: {error}")
    return _reply_of(answer.status, _object_in(answer), token)


def _object_in(answer: http.Response) -> dict[str, Any] | None:
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _reply_of(status: int, body: dict[str, Any] | None, token: str) -> JobReply:
    body = body or {}
    words = http.scrub(str(body.get("error", "")), [token])[:WORDS_AT_MOST]
    because = f": {words}" if words else ""
    match status:
        case 200 if isinstance(counts := body.get("counts"), dict):
            return JobReply(Outcome.DONE, said(counts), counts, status)
        case 200 if body.get("status") == "already running":
            return JobReply(Outcome.BUSY, f"already running there, since {body.get('since')}", status=status)
        case 200:
            outcome, sentence = Outcome.REFUSED, "the answer is not the job's: is this the address of a Paceline?"
        case 400 | 415 | 422:
            outcome, sentence = Outcome.WRONG, f"the call is refused ({status}){because}"
        case 401 | 403:
            outcome, sentence = Outcome.REFUSED, f"the token is refused ({status}): set CAMPAIGN_RETRY_JOB_TOKEN to the one of the server"
        case 404 | 405:
            outcome, sentence = Outcome.REFUSED, f"there is no such job at this address ({status}): it ends in {JOB_PATH}"
        case _ if 300 <= status < 400:
            outcome, sentence = Outcome.REFUSED, f"the server sends the call elsewhere ({status}): use the address it leads to, mind https"
        case _:
            outcome, sentence = Outcome.AWAY, f"the server could not run it ({status}){because}"
    return JobReply(outcome, sentence, status=status)


# -- the daemon ----------------------------------------------------------------------------------------------------------------


@dataclass
class _Voice:
    """Says what changed, and nothing twice."""

    trouble: Outcome | None = None
    spoke_at: float = 0.0

    def say(self, reply: JobReply) -> None:
        now = time.monotonic()
        if not reply.is_fine:
            if reply.outcome != self.trouble:
                logger.warning("the retry job cannot be run; trying again", extra={"why": reply.sentence}, exc_info=reply.error)
            self.trouble = reply.outcome
            return
        if self.trouble is not None:
            logger.info("the retry job runs again", extra={"was": self.trouble.value})
        self.trouble = None
        did_something = reply.counts.get("queued") or reply.counts.get("failed")
        if did_something or now - self.spoke_at >= IDLE_IS_LOGGED_EVERY.total_seconds():
            numbers = {name: value for name, value in reply.counts.items() if isinstance(value, int)}
            logger.info("turn" if reply.outcome == Outcome.DONE else "already running elsewhere", extra=numbers)
            self.spoke_at = now


def run_daemon(
    stop: StopFlag,
    turn: Callable[[], JobReply],
    *,
    interval: float | None = None,
    jitter: bool = True,
    report: Callable[[JobReply], None] | None = None,
    rng: Random | None = None,
) -> int:
    """A turn, a rest, until asked to stop; a rest ends at once then, a turn on its way is finished. Returns the exit code."""
    rng, voice = rng or Random(), _Voice(spoke_at=time.monotonic())
    interval = settings.CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS if interval is None else interval
    logger.info("retry daemon started", extra={"interval": interval, "jitter": jitter})
    while not stop.requested:
        reply = turn()
        voice.say(reply)
        if report is not None:
            report(reply)
        stop.sleep(interval * (rng.uniform(1 - JITTER, 1 + JITTER) if jitter else 1))
    logger.info("retry daemon stopped")
    return 0


def as_json(reply: JobReply) -> str:
    return json.dumps(reply.as_dict())

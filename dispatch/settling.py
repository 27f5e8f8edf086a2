"""Answers -> the ledger: what each means for its row, what all of them mean for their lanes, written in one statement."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from django.db import InterfaceError, InternalError, OperationalError

from dispatch import lanes, outcomes
from dispatch.alerts import alert
from dispatch.lanes import MOST_LANES_IN_ONE_STATEMENT, Claimed, Settlement
from dispatch.models import DispatchLog, Lane
from sessions_app import pacing as rules
from sessions_app.addresses import mask
from sessions_app.providers.base import Answer, SendResult

logger = logging.getLogger("paceline.engine")

DATABASE_AWAY = (OperationalError, InterfaceError, InternalError)  # InternalError: it became read-only

Pacing = Callable[[rules.PacingValues], rules.Human]
MOST_ANSWERS_IN_ONE_STATEMENT = 4 * MOST_LANES_IN_ONE_STATEMENT
RATE_LIMITS_ARE_REPEATED = 3


@dataclass(frozen=True)
class Answered:
    """An answer that the ledger does not have yet."""

    claimed: Claimed
    body: str | None
    result: SendResult


def for_few_lanes(answers: Sequence[Answered]) -> list[Answered]:
    """The longest head of the list that one statement should carry."""
    sessions: set[int] = set()
    batch: list[Answered] = []
    for answer in answers[:MOST_ANSWERS_IN_ONE_STATEMENT]:
        sessions.add(answer.claimed.session_id)
        if len(sessions) > MOST_LANES_IN_ONE_STATEMENT:
            break
        batch.append(answer)
    return batch


def write(batch: Sequence[Answered], *, verify_after: timedelta, human: Pacing, rng: Random, now: datetime | None) -> set[int]:
    """Settle them. Returns the sessions whose lane is in trouble. Safe to repeat; raises when the database is away.

    One answer that cannot be stored must not hold up the others: then they are written one by one, and that one without its texts.
    """
    try:
        return _write(batch, verify_after, human, rng, now)
    except DATABASE_AWAY:
        raise
    except Exception:
        logger.exception("a settle failed; its answers are written one by one")
    troubled: set[int] = set()
    for answer in batch:
        for kept in (answer, _without_words(answer)):
            try:
                troubled |= _write([kept], verify_after, human, rng, now)
                break
            except DATABASE_AWAY:
                raise
            except Exception:
                logger.exception("an answer could not be written", extra={"log": answer.claimed.id, "answer": answer.result.answer})
        else:  # its lease runs out, and then it is unconfirmed
            facts = {"campaign": answer.claimed.campaign_id, "log": answer.claimed.id, "answer": str(answer.result.answer)}
            alert("an answer is lost", **facts)
    return troubled


def _without_words(answer: Answered) -> Answered:
    bare = SendResult(answer.result.answer, code=answer.result.code, detail="the provider's words could not be stored")
    return Answered(answer.claimed, None, bare)


def _write(batch: Sequence[Answered], verify_after: timedelta, human: Pacing, rng: Random, now: datetime | None) -> set[int]:
    settlements = [_settlement(answer) for answer in batch]
    effects = {}
    for session_id in {answer.claimed.session_id for answer in batch}:
        mine = [answer for answer in batch if answer.claimed.session_id == session_id]
        last = max((answer.claimed for answer in mine), key=lambda claimed: (claimed.token, claimed.attempts_in_run))
        effects[session_id] = outcomes.effect_of(
            [answer.result for answer in mine],
            human=None if last.rate is not None else human(last),
            attempts_in_run=last.attempts_in_run,
            attempts_in_batch=last.attempts_in_batch,
            rate_limits_before=last.consecutive_rate_limits,
            rng=rng,
        )
    changed, troubled = lanes.settle(settlements, effects, verify_after=verify_after, now=now)
    for answer, settlement in zip(batch, settlements, strict=True):
        _log(answer, settlement, is_late=answer.claimed.id not in changed)
    _tell(batch, changed)
    return troubled


def _settlement(answer: Answered) -> Settlement:
    outcome = outcomes.outcome_of(answer.result)
    return Settlement(
        claimed=answer.claimed,
        status=outcome.status,
        code=str(outcome.code),
        message_id=answer.result.message_id[:200],
        error=answer.result.detail[:500],
        http_status=answer.result.http_status,
        body=answer.body,
        defer=answer.result.retry_after if answer.result.one_recipient else None,
    )


def _log(answer: Answered, settlement: Settlement, *, is_late: bool) -> None:
    """A line for each message, its address masked, its text never."""
    level = logging.INFO if settlement.status in {"SENT", "PENDING"} else logging.WARNING
    facts: dict[str, Any] = {
        "outcome": settlement.status,
        "address": mask(answer.claimed.address),
        "log": answer.claimed.id,
        "campaign": answer.claimed.campaign_id,
        "session": answer.claimed.session_id,
    }
    if settlement.status != "SENT":
        facts |= {"code": settlement.code, "detail": settlement.error}
    if is_late:
        facts["late"] = "changed nothing"
    logger.log(level, "sent" if settlement.status == "SENT" else "not sent", extra=facts)


# -- what somebody should know -------------------------------------------------------------------------------------------------


def _tell(batch: Sequence[Answered], changed: set[int]) -> None:
    """After the settle, which is committed: nothing that goes wrong here may look as if it were not."""
    try:
        _tell_of_rate_limits([answer.claimed for answer in batch if answer.claimed.id in changed and _is_rate_limit(answer.result)])
        _tell_of_duplicates(batch, changed)
    except Exception as error:
        logger.warning("what a settle means could not be looked up", extra={"error": type(error).__name__})


def _is_rate_limit(result: SendResult) -> bool:
    return outcomes.outcome_of(result).streak == outcomes.Streak.RATE_LIMIT


def _tell_of_rate_limits(limited: Sequence[Claimed]) -> None:
    """Once in a streak: when this settle brought it to the third or past it."""
    counts = Counter(claimed.session_id for claimed in limited)
    repeated = Lane.objects.filter(session__in=counts, consecutive_rate_limits__gte=RATE_LIMITS_ARE_REPEATED)
    for lane in repeated if counts else ():
        if lane.consecutive_rate_limits - counts[lane.session_id] < RATE_LIMITS_ARE_REPEATED:
            detail = f"{lane.consecutive_rate_limits} in a row; it cools down until {lane.next_send_at:%Y-%m-%d %H:%M:%S} UTC at least"
            alert("repeated rate limits", session=lane.session_id, detail=detail)


def _tell_of_duplicates(batch: Sequence[Answered], changed: set[int]) -> None:
    """Accepted, for an attempt that is not the row's any more: the person may have it, and get or have another one.

    The same answer written twice is none: then attempt and token are still the row's.
    """
    times = Counter(answer.claimed.id for answer in batch)
    accepted = [answer.claimed for answer in batch if answer.result.answer == Answer.ACCEPTED]
    late = [claimed for claimed in accepted if claimed.id not in changed or times[claimed.id] > 1]
    rows = DispatchLog.objects.in_bulk([claimed.id for claimed in late]) if late else {}
    for claimed in late:
        row = rows.get(claimed.id)
        if row is not None and (row.attempt, row.token) != (claimed.attempt, claimed.token):
            then = f"its attempt {row.attempt} is {row.get_status_display().lower()}"
            detail = f"message {row.pk} was accepted late, at attempt {claimed.attempt}, and {then}: the person may get it twice"
            alert("duplicate suspected", campaign=claimed.campaign_id, log=claimed.id, session=claimed.session_id, detail=detail)

"""Answers -> the ledger: what each means for its row, what all of them mean for their lanes, written in one statement."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from django.db import InterfaceError, InternalError, OperationalError

from dispatch import lanes, outcomes
from dispatch.alerts import alert
from dispatch.lanes import MOST_LANES_IN_ONE_STATEMENT, Claimed, Settlement
from sessions_app import pacing as rules
from sessions_app.addresses import mask
from sessions_app.providers.base import SendResult

logger = logging.getLogger("paceline.engine")

DATABASE_AWAY = (OperationalError, InterfaceError, InternalError)  # InternalError: it became read-only

Pacing = Callable[[rules.PacingValues], rules.Human]
MOST_ANSWERS_IN_ONE_STATEMENT = 4 * MOST_LANES_IN_ONE_STATEMENT


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
            alert("an answer is lost", log=answer.claimed.id, answer=str(answer.result.answer))
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

"""A provider's answer -> what happens to message, lane and campaign. Pure, and the only place that says so.

code                message       lane                          campaign
accepted            SENT          streaks end                   goes on
RATE_LIMIT          PENDING       cools down, same row first    goes on
 of one recipient   PENDING later goes on                       goes on
 number checked     PENDING       waits as after a message      goes on
DISCONNECTED        PENDING       shut                          PAUSED, session marked
MISCONFIGURED       PENDING       shut                          PAUSED
INVALID_RECIPIENT   FAILED        20 in a row shut it           PAUSED then: the list looks wrong
FATAL               FAILED        5 in a row shut it            PAUSED then
TRANSIENT           FAILED        5 in a row shut it            PAUSED then; the retry job may queue it again after RETRY_AFTER
UNCONFIRMED         UNCONFIRMED   5 in a row shut it            PAUSED then
(unsent)            PENDING       as if it had not been claimed goes on
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import NamedTuple, assert_never

from sessions_app import pacing as rules
from sessions_app.providers.base import Answer, ErrorCode, SendResult

# How long a TRANSIENT failure waits for its next try, by how many there were before. After the last of them it stays FAILED.
RETRY_AFTER = (timedelta(minutes=5), timedelta(minutes=30))
MOST_TRANSIENTS = len(RETRY_AFTER) + 1
UNSENT = "UNSENT"
ACCEPTED = "ACCEPTED"
CHECKED = "CHECKED"
RESTRICTED = "RESTRICTED"  # why a lane is shut: DISCONNECTED, for a while


class Streak(StrEnum):
    """What an answer does to the counts of things in a row."""

    ENDS = "ENDS"
    FAILURE = "FAILURE"  # counts to the five
    INVALID = "INVALID"  # counts to the twenty
    RATE_LIMIT = "RATE_LIMIT"  # neither counts nor ends those two; doubles the cool-down
    NONE = "NONE"


class Outcome(NamedTuple):
    status: str  # of the DispatchLog
    code: str  # of the Attempt: ACCEPTED, UNSENT or an error code
    streak: Streak
    shuts_lane: bool = False  # the campaign is to be PAUSED


def outcome_of(result: SendResult) -> Outcome:
    match result.answer:
        case Answer.ACCEPTED:
            return Outcome("SENT", ACCEPTED, Streak.ENDS)
        case Answer.UNSENT:
            return Outcome("PENDING", UNSENT, Streak.NONE)
        case Answer.CHECKED:
            return Outcome("PENDING", CHECKED, Streak.NONE)
        case Answer.REFUSED:
            assert result.code is not None
            if result.one_recipient:
                return Outcome("PENDING", result.code, Streak.NONE)
            return _refused(result.code)
        case _:
            assert_never(result.answer)


def _refused(code: ErrorCode) -> Outcome:
    match code:
        case ErrorCode.RATE_LIMIT:
            return Outcome("PENDING", code, Streak.RATE_LIMIT)
        case ErrorCode.DISCONNECTED | ErrorCode.MISCONFIGURED:
            return Outcome("PENDING", code, Streak.NONE, shuts_lane=True)
        case ErrorCode.INVALID_RECIPIENT:
            return Outcome("FAILED", code, Streak.INVALID)
        case ErrorCode.FATAL | ErrorCode.TRANSIENT:
            return Outcome("FAILED", code, Streak.FAILURE)
        case ErrorCode.UNCONFIRMED:
            return Outcome("UNCONFIRMED", code, Streak.FAILURE)
        case _:
            assert_never(code)


@dataclass(frozen=True)
class LaneEffect:
    """What a lane takes over from the answers that came back for it, in their order."""

    wait: timedelta | None  # until it may send again; None: a metered lane goes on at its rate
    ends_batch: bool
    ends_streaks: bool  # an acceptance: the counts below begin after the last one
    failures: int
    invalid: int
    ends_rate_limits: bool
    rate_limits: int
    unsent: int
    last_error: str
    trouble: str  # why it must shut at once; "": the counts decide
    trouble_code: str


def effect_of(
    results: Sequence[SendResult],
    *,
    human: rules.Human | None,
    attempts_in_run: int,
    attempts_in_batch: int,
    rate_limits_before: int,
    rng: Random,
) -> LaneEffect:
    """`human` is None on a metered lane. The two counts are those that the claim wrote; they include these attempts."""
    failures = invalid = rate_limits = unsent = 0
    ends_streaks = ends_rate_limits = False
    last_error = trouble = trouble_code = ""
    cool_down: timedelta | None = None
    for result in results:
        outcome = outcome_of(result)
        if outcome.streak in {Streak.ENDS, Streak.FAILURE, Streak.INVALID}:
            ends_rate_limits, rate_limits, cool_down = True, 0, None
        match outcome.streak:
            case Streak.ENDS:
                ends_streaks, failures, invalid = True, 0, 0
            case Streak.FAILURE:
                failures += 1
            case Streak.INVALID:
                invalid += 1
            case Streak.RATE_LIMIT:
                rate_limits += 1
                repeats = rate_limits + (0 if ends_rate_limits else rate_limits_before)
                first = rules.RATE_LIMIT_WAIT if human else rules.METERED_RATE_LIMIT_WAIT
                cool_down = rules.wait_after_rate_limit(repeats=repeats, retry_after=result.retry_after, first=first)
            case Streak.NONE:
                unsent += outcome.code == UNSENT
        if result.code is not None:
            last_error = result.detail or result.code
        if outcome.shuts_lane and not trouble:
            trouble, trouble_code = result.detail or outcome.code, RESTRICTED if result.restricted else outcome.code
    wait, ends_batch = _wait(results, human, attempts_in_run, attempts_in_batch, unsent, cool_down, rng)
    return LaneEffect(
        wait=wait,
        ends_batch=ends_batch,
        ends_streaks=ends_streaks,
        failures=failures,
        invalid=invalid,
        ends_rate_limits=ends_rate_limits,
        rate_limits=rate_limits,
        unsent=unsent,
        last_error=last_error,
        trouble=trouble,
        trouble_code=trouble_code,
    )


def _wait(
    results: Sequence[SendResult],
    human: rules.Human | None,
    attempts_in_run: int,
    attempts_in_batch: int,
    unsent: int,
    cool_down: timedelta | None,
    rng: Random,
) -> tuple[timedelta | None, bool]:
    if human is None:
        return cool_down, False
    if unsent == len(results):
        return timedelta(0), False  # nothing left this identity: it was due, and still is
    drawn = rules.wait_after(human, attempts_in_run=attempts_in_run, attempts_in_batch=attempts_in_batch, rng=rng)
    return max(drawn.duration, cool_down or timedelta(0)), drawn.ends_batch

"""Answers -> what a lane takes over from them. Pure: no database, one table."""

from datetime import timedelta
from random import Random

import pytest

from dispatch.outcomes import CHECKED, UNSENT, effect_of, outcome_of
from sessions_app.pacing import human
from sessions_app.providers.base import ErrorCode, SendResult
from tests.fakes import refused

HUMAN = human(min_interval=8, max_interval=25, batch_size=10, batch_pause=120)
OK = SendResult.accepted("id")
GIVEN_BACK = SendResult.unsent("too late")
T, F, U = refused(ErrorCode.TRANSIENT), refused(ErrorCode.FATAL), refused(ErrorCode.UNCONFIRMED)
CHECK, DEFERRED = SendResult.checked("known"), SendResult.deferred("six seconds apart", retry_after=timedelta(seconds=6))
INVALID, LIMIT = refused(ErrorCode.INVALID_RECIPIENT), refused(ErrorCode.RATE_LIMIT)


def effect(*results, pacing=HUMAN, in_run=50, in_batch=3, before=0):
    return effect_of(results, human=pacing, attempts_in_run=in_run, attempts_in_batch=in_batch, rate_limits_before=before, rng=Random(1))


def test_every_code_has_an_outcome():
    statuses = {code: outcome_of(refused(code)).status for code in ErrorCode}
    assert statuses == {
        ErrorCode.RATE_LIMIT: "PENDING",
        ErrorCode.DISCONNECTED: "PENDING",
        ErrorCode.MISCONFIGURED: "PENDING",
        ErrorCode.INVALID_RECIPIENT: "FAILED",
        ErrorCode.FATAL: "FAILED",
        ErrorCode.TRANSIENT: "FAILED",
        ErrorCode.UNCONFIRMED: "UNCONFIRMED",
    }
    assert outcome_of(OK).status == "SENT"
    assert outcome_of(GIVEN_BACK)[:2] == ("PENDING", UNSENT)
    assert outcome_of(CHECK)[:2] == ("PENDING", CHECKED)
    assert outcome_of(DEFERRED)[:2] == ("PENDING", ErrorCode.RATE_LIMIT)


@pytest.mark.parametrize("result", [CHECK, DEFERRED], ids=["check", "deferred"])
def test_what_left_the_session_is_waited_after_like_a_message_and_counts_to_no_streak(result):
    got = effect(result, before=3)
    assert timedelta(seconds=8) <= got.wait <= timedelta(seconds=25)
    assert not (got.unsent or got.failures or got.invalid or got.rate_limits or got.ends_streaks or got.ends_rate_limits or got.trouble)


@pytest.mark.parametrize(
    ("results", "ends", "failures", "invalid"),
    [
        ([OK], True, 0, 0),
        ([T], False, 1, 0),
        ([T, F, U], False, 3, 0),
        ([T, OK, F], True, 1, 0),
        ([INVALID, INVALID], False, 0, 2),
        ([T, INVALID, LIMIT, T], False, 2, 1),
        ([INVALID, OK], True, 0, 0),
        ([LIMIT], False, 0, 0),
        ([GIVEN_BACK], False, 0, 0),
    ],
)
def test_streaks_in_the_order_of_the_answers(results, ends, failures, invalid):
    got = effect(*results, pacing=None)
    assert (got.ends_streaks, got.failures, got.invalid) == (ends, failures, invalid)


@pytest.mark.parametrize(("before", "seconds"), [(0, 300), (1, 600), (2, 1200), (3, 2400), (4, 3600), (40, 3600)])
def test_the_cool_down_doubles_with_the_repeats(before, seconds):
    assert effect(LIMIT, before=before).wait == timedelta(seconds=seconds)


def test_a_rate_limit_neither_shortens_a_wait_nor_a_batch_pause():
    assert effect(LIMIT, in_batch=10).ends_batch
    assert effect(LIMIT, in_batch=10).wait == timedelta(seconds=300)


def test_a_metered_lane_waits_only_for_a_rate_limit():
    assert effect(OK, T, pacing=None).wait is None
    assert effect(LIMIT, pacing=None).wait == timedelta(seconds=5)
    assert effect(LIMIT, OK, pacing=None).wait is None
    assert effect(refused(ErrorCode.RATE_LIMIT, retry_after=timedelta(minutes=2)), pacing=None).wait == timedelta(minutes=2)


def test_what_was_given_back_unsent_leaves_a_lane_as_due_as_it_was():
    got = effect(GIVEN_BACK)
    assert (got.wait, got.unsent, got.ends_batch) == (timedelta(0), 1, False)


@pytest.mark.parametrize("code", [ErrorCode.DISCONNECTED, ErrorCode.MISCONFIGURED])
def test_what_hits_everybody_shuts_the_lane_at_once(code):
    got = effect(refused(code, "no balance"))
    assert (got.trouble, got.trouble_code) == ("no balance", code)
    assert got.wait >= timedelta(seconds=8)  # and the floor holds all the same


def test_the_first_attempts_of_a_run_wait_longer():
    assert all(timedelta(seconds=20) <= effect(OK, in_run=n, in_batch=n).wait for n in range(1, 6))
    assert effect(OK, in_run=6, in_batch=6).wait <= timedelta(seconds=25)

from datetime import UTC, datetime, time, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app import pacing
from sessions_app.pacing import Human, human, safe_window, wait_after, wait_after_rate_limit

CAREFUL = human(min_interval=8, max_interval=25, batch_size=10, batch_pause=120)


class Loaded:
    """A random source that always draws the same end of the range."""

    def __init__(self, share):
        self.share = share

    def uniform(self, low, high):
        return low + (high - low) * self.share


LOWEST, HIGHEST = Loaded(0), Loaded(1)


@pytest.mark.parametrize(
    ("typed", "used"),
    [
        ((8, 25, 10, 120), (8, 25, 10, 120)),
        ((30, 90, 20, 600), (30, 90, 20, 600)),
        ((1, 2, 1, 1), (8, 13, 1, 60)),
        ((0, 0, 0, 0), (8, 13, 1, 60)),
        ((-5, -1, -3, -60), (8, 13, 1, 60)),
        ((7, 12, 10, 59), (8, 13, 10, 60)),
        ((8, 12, 10, 60), (8, 13, 10, 60)),
        ((40, 25, 10, 120), (40, 45, 10, 120)),  # the longest is five above the shortest
        ((40, 44, 10, 120), (40, 45, 10, 120)),
        ((8, 25, 21, 120), (8, 25, 20, 120)),
        ((8, 25, 5000, 120), (8, 25, 20, 120)),
    ],
)
def test_values_beyond_a_floor_or_ceiling_are_brought_back_to_it(typed, used):
    names = ("min_interval", "max_interval", "batch_size", "batch_pause")
    assert human(**dict(zip(names, typed, strict=True))) == Human(**dict(zip(names, used, strict=True)))


@pytest.mark.parametrize(
    ("in_run", "in_batch", "lowest", "highest", "ends_batch"),
    [
        (1, 1, 20, 62.5, False),  # warm-up: x 2.5
        (5, 5, 20, 62.5, False),
        (6, 6, 8, 25, False),
        (9, 9, 8, 25, False),
        (10, 10, 120, 150, True),
        (11, 1, 8, 25, False),
        (500, 10, 120, 150, True),
        (7, 12, 120, 150, True),  # the batch was made smaller while it ran
        (3, 10, 120, 150, True),  # a resume in mid-batch: the pause is not multiplied
    ],
)
def test_the_wait_after_an_attempt(in_run, in_batch, lowest, highest, ends_batch):
    shortest = wait_after(CAREFUL, attempts_in_run=in_run, attempts_in_batch=in_batch, rng=LOWEST)
    longest = wait_after(CAREFUL, attempts_in_run=in_run, attempts_in_batch=in_batch, rng=HIGHEST)
    assert (shortest.duration, longest.duration) == (timedelta(seconds=lowest), timedelta(seconds=highest))
    assert shortest.ends_batch is longest.ends_batch is ends_batch


def test_the_draws_differ_and_fill_their_range():
    rng = Random(1)
    draws = [wait_after(CAREFUL, attempts_in_run=9, attempts_in_batch=2, rng=rng).duration.total_seconds() for _ in range(2000)]
    assert min(draws) < 8.1
    assert max(draws) > 24.9
    assert 16 < sum(draws) / len(draws) < 17
    assert len(set(draws)) > 1990


NUMBERS = st.integers(-(10**6), 10**6)


@given(
    settings=st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    in_run=st.integers(1, 10**6),
    in_batch=st.integers(1, 10**6),
    seed=st.integers(0, 2**32),
)
def test_no_draw_is_below_the_floor_or_above_the_longest_wait_whatever_was_typed(settings, in_run, in_batch, seed):
    used = human(**dict(zip(("min_interval", "max_interval", "batch_size", "batch_pause"), settings, strict=True)))
    wait = wait_after(used, attempts_in_run=in_run, attempts_in_batch=in_batch, rng=Random(seed))
    assert wait.duration >= timedelta(seconds=pacing.BATCH_PAUSE_FLOOR if wait.ends_batch else pacing.MIN_INTERVAL_FLOOR)
    if in_run <= pacing.WARM_UP_ATTEMPTS:
        assert wait.duration >= timedelta(seconds=20)
    if in_batch >= pacing.BATCH_SIZE_CEILING:
        assert wait.ends_batch
    assert wait.duration <= used.longest_wait


@pytest.mark.parametrize(
    ("repeats", "retry_after", "seconds"),
    [
        (1, None, 300),
        (2, None, 600),
        (3, None, 1200),
        (4, None, 2400),
        (5, None, 3600),
        (6, None, 3600),
        (10**6, None, 3600),
        (0, None, 150),  # never asked for: kept harmless
        (1, 30, 300),  # the provider may ask for longer, not for shorter
        (1, 900, 900),
        (3, 900, 1200),
        (1, 7200, 7200),  # and it may ask for longer than an hour
        (9, 7200, 7200),
        (1, 0, 300),
        (1, -5, 300),
    ],
)
def test_the_cool_down_doubles_to_an_hour_and_the_provider_may_ask_for_longer(repeats, retry_after, seconds):
    asked = None if retry_after is None else timedelta(seconds=retry_after)
    assert wait_after_rate_limit(repeats=repeats, retry_after=asked) == timedelta(seconds=seconds)


def test_a_metered_channel_cools_down_from_a_shorter_start():
    waits = [wait_after_rate_limit(repeats=n, retry_after=None, first=pacing.METERED_RATE_LIMIT_WAIT).total_seconds() for n in (1, 2, 11)]
    assert waits == [5, 10, 3600]


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


DAY, NIGHT = ("07:00", "22:00"), ("21:00", "06:30")


@pytest.mark.parametrize(
    ("zone", "hours", "now", "opens", "closes"),
    [
        ("UTC", DAY, "2027-06-10T12:00", "2027-06-10T07:00", "2027-06-10T22:00"),
        ("UTC", DAY, "2027-06-10T07:00", "2027-06-10T07:00", "2027-06-10T22:00"),  # the first moment is inside
        ("UTC", DAY, "2027-06-10T22:00", "2027-06-11T07:00", "2027-06-11T22:00"),  # the last one is not
        ("UTC", DAY, "2027-06-10T21:59:59.999999", "2027-06-10T07:00", "2027-06-10T22:00"),
        ("UTC", DAY, "2027-06-10T03:00", "2027-06-10T07:00", "2027-06-10T22:00"),
        # local hours, summer and winter
        ("Europe/Berlin", DAY, "2027-06-10T20:00", "2027-06-11T05:00", "2027-06-11T20:00"),
        ("Europe/Berlin", DAY, "2027-01-10T20:00", "2027-01-10T06:00", "2027-01-10T21:00"),
        ("America/New_York", ("23:00", "19:00"), "2027-07-01T23:00", "2027-07-02T03:00", "2027-07-02T23:00"),
        ("Pacific/Kiritimati", DAY, "2027-06-10T12:00", "2027-06-10T17:00", "2027-06-11T08:00"),
        ("Pacific/Pago_Pago", DAY, "2027-06-10T12:00", "2027-06-10T18:00", "2027-06-11T09:00"),
        # across midnight
        ("UTC", NIGHT, "2027-06-10T23:00", "2027-06-10T21:00", "2027-06-11T06:30"),
        ("UTC", NIGHT, "2027-06-11T03:00", "2027-06-10T21:00", "2027-06-11T06:30"),
        ("UTC", NIGHT, "2027-06-11T06:30", "2027-06-11T21:00", "2027-06-12T06:30"),
        ("UTC", ("22:00", "00:00"), "2027-06-10T23:59", "2027-06-10T22:00", "2027-06-11T00:00"),
        ("UTC", ("00:00", "07:00"), "2027-06-10T07:00", "2027-06-11T00:00", "2027-06-11T07:00"),
        # the day of a clock change has 23 or 25 hours, the hours on the clock stay
        ("Europe/Berlin", NIGHT, "2027-03-27T23:00", "2027-03-27T20:00", "2027-03-28T04:30"),
        ("Europe/Berlin", NIGHT, "2027-10-30T23:00", "2027-10-30T19:00", "2027-10-31T05:30"),
        # an end that does not exist that night moves forward by the gap
        ("Europe/Berlin", ("21:00", "02:30"), "2027-03-27T23:00", "2027-03-27T20:00", "2027-03-28T01:30"),
        # a window that lies in the gap is no window that night
        ("Europe/Berlin", ("02:00", "03:00"), "2027-03-27T23:00", "2027-03-29T00:00", "2027-03-29T01:00"),
    ],
)
def test_the_window_of_safe_hours(zone, hours, now, opens, closes):
    starts, ends = map(time.fromisoformat, hours)
    assert safe_window(at(now), starts=starts, ends=ends, zone=ZoneInfo(zone)) == (at(opens), at(closes))


def test_equal_ends_mean_no_restriction():
    assert safe_window(at("2027-06-10T01:00"), starts=time(9), ends=time(9), zone=ZoneInfo("UTC")) is None
    assert safe_window(at("2027-06-10T01:00"), starts=time(0), ends=time(0), zone=ZoneInfo("UTC")) is None


@given(
    now=st.datetimes(datetime(2000, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
    starts=st.times(),
    ends=st.times(),
    zone=st.timezone_keys(),
)
def test_there_is_always_a_window_that_has_not_closed(now, starts, ends, zone):
    window = safe_window(now, starts=starts, ends=ends, zone=ZoneInfo(zone))
    if starts == ends:
        assert window is None
        return
    assert now < window.closes_at
    assert window.opens_at < window.closes_at
    assert window.opens_at - now < timedelta(days=3)

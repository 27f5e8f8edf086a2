import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaigns import recurrence
from campaigns.models import CampaignStep
from campaigns.recurrence import UnknownRecurrence, next_occurrence, occurrences_between

ZONES = sorted(zoneinfo.available_timezones())


def moments(*texts):
    return [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in texts]


def follow(kind, anchor, zone):
    """The anchor and what comes after it, each found from the one before, as the scheduler does."""
    moment = anchor.astimezone(UTC)
    while True:
        yield moment
        moment = next_occurrence(kind, anchor=anchor, zone=zone, after=moment)


@pytest.mark.parametrize(
    ("kind", "zone", "anchor", "expected"),
    [
        # the wall clock stays, the instant moves
        ("daily", "Europe/Lisbon", "2027-03-27T09:00", ["2027-03-27T09:00", "2027-03-28T08:00", "2027-03-29T08:00"]),
        ("daily", "Europe/Lisbon", "2027-10-30T09:00", ["2027-10-30T08:00", "2027-10-31T09:00", "2027-11-01T09:00"]),
        ("weekly", "America/New_York", "2027-03-08T18:00", ["2027-03-08T23:00", "2027-03-15T22:00"]),
        # a time that does not exist moves forward by the gap, for that night only
        ("daily", "America/New_York", "2027-03-13T02:15", ["2027-03-13T07:15", "2027-03-14T07:15", "2027-03-15T06:15"]),
        ("daily", "Australia/Lord_Howe", "2026-10-03T02:10", ["2026-10-02T15:40", "2026-10-03T15:40", "2026-10-04T15:10"]),
        # a time that comes twice is taken once, the first
        ("daily", "Europe/Berlin", "2026-10-24T02:30", ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]),
        # midnight of a day of 25 hours, and one that does not exist
        ("daily", "Europe/London", "2027-10-30T00:00", ["2027-10-29T23:00", "2027-10-30T23:00", "2027-11-01T00:00"]),
        ("daily", "Africa/Cairo", "2027-04-29T00:00", ["2027-04-28T22:00", "2027-04-29T22:00", "2027-04-30T21:00"]),
        # Samoa had no 30 December 2011: that day moves onto the next, which is taken once
        ("daily", "Pacific/Apia", "2011-12-29T09:00", ["2011-12-29T19:00", "2011-12-30T19:00", "2011-12-31T19:00"]),
        # no summer time since 2019
        ("daily", "America/Sao_Paulo", "2026-11-01T09:00", ["2026-11-01T12:00", "2026-11-02T12:00"]),
        ("every_3d", "UTC", "2026-12-30T08:00", ["2026-12-30T08:00", "2027-01-02T08:00", "2027-01-05T08:00"]),
        ("every_7d", "UTC", "2026-12-30T08:00", ["2026-12-30T08:00", "2027-01-06T08:00"]),
        ("every_15d", "UTC", "2026-12-30T08:00", ["2026-12-30T08:00", "2027-01-14T08:00", "2027-01-29T08:00"]),
        ("every_30d", "UTC", "2026-12-30T08:00", ["2026-12-30T08:00", "2027-01-29T08:00", "2027-02-28T08:00"]),
        # clamped from the anchor's day each time
        ("monthly", "UTC", "2027-01-30T10:00", ["2027-01-30T10:00", "2027-02-28T10:00", "2027-03-30T10:00", "2027-04-30T10:00"]),
        (
            "monthly",
            "UTC",
            "2027-10-31T10:00",
            ["2027-10-31T10:00", "2027-11-30T10:00", "2027-12-31T10:00", "2028-01-31T10:00", "2028-02-29T10:00"],
        ),
        ("semi_annually", "UTC", "2027-08-31T10:00", ["2027-08-31T10:00", "2028-02-29T10:00", "2028-08-31T10:00", "2029-02-28T10:00"]),
        (
            "yearly",
            "UTC",
            "2028-02-29T10:00",
            ["2028-02-29T10:00", "2029-02-28T10:00", "2030-02-28T10:00", "2031-02-28T10:00", "2032-02-29T10:00"],
        ),
        ("semi_monthly", "UTC", "2027-01-01T10:00", ["2027-01-01T10:00", "2027-01-16T10:00", "2027-02-01T10:00", "2027-02-16T10:00"]),
        ("semi_monthly", "UTC", "2027-01-31T10:00", ["2027-01-31T10:00", "2027-02-16T10:00", "2027-02-28T10:00", "2027-03-16T10:00"]),
        ("semi_monthly", "UTC", "2027-01-15T10:00", ["2027-01-15T10:00", "2027-01-30T10:00", "2027-02-15T10:00", "2027-02-28T10:00"]),
        # the local date is what counts: 31 January in Sao Paulo is 1 February in UTC
        ("monthly", "America/Sao_Paulo", "2027-01-31T22:00", ["2027-02-01T01:00", "2027-03-01T01:00", "2027-04-01T01:00"]),
    ],
)
def test_each_kind_over_the_days_that_are_hard(kind, zone, anchor, expected):
    zone = ZoneInfo(zone)
    found = follow(kind, datetime.fromisoformat(anchor).replace(tzinfo=zone), zone)
    assert list(islice(found, len(expected))) == moments(*expected)


@pytest.mark.parametrize("kind", recurrence.TYPES)
def test_without_an_anchor_it_is_counted_from_the_completion(kind):
    zone, done = ZoneInfo("Europe/Lisbon"), datetime(2027, 3, 20, 9, 17, 5, 123456, tzinfo=UTC)
    found = next_occurrence(kind, anchor=None, zone=zone, after=done)
    days = {"daily": 1, "every_3d": 3, "every_7d": 7, "every_15d": 15, "every_30d": 30, "weekly": 7}
    days |= {"monthly": 31, "semi_monthly": 16, "semi_annually": 184, "yearly": 366}
    local = found.astimezone(zone)
    assert local.date() == done.date() + timedelta(days=days[kind])
    assert local.time() == done.astimezone(zone).time()


def test_a_first_time_still_ahead_is_the_next_occurrence():
    anchor = datetime(2027, 5, 1, 9, tzinfo=UTC)
    assert next_occurrence("daily", anchor=anchor, zone=ZoneInfo("UTC"), after=anchor - timedelta(days=40)) == anchor


def test_an_anchor_that_is_the_second_of_two_equal_times_is_not_followed_by_the_first():
    zone = ZoneInfo("Europe/Berlin")
    anchor = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # the second 02:30
    assert list(islice(follow("daily", anchor, zone), 2)) == moments("2026-10-25T01:30", "2026-10-26T01:30")
    a_year_on = datetime(2027, 10, 30, 12, tzinfo=UTC)
    assert next_occurrence("daily", anchor=anchor, zone=zone, after=a_year_on) == datetime(2027, 10, 31, 0, 30, tzinfo=UTC)


def test_the_occurrences_passed_over_end_where_the_next_one_begins():
    zone, anchor = ZoneInfo("America/New_York"), datetime(2027, 3, 10, 14, tzinfo=UTC)
    until = datetime(2027, 3, 15, 13, tzinfo=UTC)
    passed = occurrences_between("daily", anchor=anchor, zone=zone, after=anchor, until=until)
    assert passed == moments("2027-03-11T14:00", "2027-03-12T14:00", "2027-03-13T14:00", "2027-03-14T13:00", "2027-03-15T13:00")
    assert next_occurrence("daily", anchor=anchor, zone=zone, after=until) == datetime(2027, 3, 16, 13, tzinfo=UTC)
    assert occurrences_between("daily", anchor=None, zone=zone, after=anchor, until=until) == []
    assert occurrences_between("daily", anchor=anchor, zone=zone, after=until, until=anchor) == []


def test_the_occurrences_passed_over_are_bounded_to_the_latest():
    anchor, until = datetime(1960, 1, 1, 9, tzinfo=UTC), datetime(2027, 1, 1, 9, tzinfo=UTC)
    passed = occurrences_between("daily", anchor=anchor, zone=ZoneInfo("UTC"), after=anchor, until=until, limit=3)
    assert passed == moments("2026-12-30T09:00", "2026-12-31T09:00", "2027-01-01T09:00")


@pytest.mark.parametrize("kind", ["", "now", "Daily", "every_2d", "hourly"])
def test_an_unknown_recurrence_is_refused(kind):
    moment = datetime(2027, 1, 1, tzinfo=UTC)
    with pytest.raises(UnknownRecurrence, match="semi_annually"):
        next_occurrence(kind, anchor=None, zone=ZoneInfo("UTC"), after=moment)
    with pytest.raises(UnknownRecurrence):
        occurrences_between(kind, anchor=moment, zone=ZoneInfo("UTC"), after=moment, until=moment)


def test_a_moment_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="time zone"):
        next_occurrence("daily", anchor=None, zone=ZoneInfo("UTC"), after=datetime(2027, 1, 1))


def test_every_kind_has_a_label_and_fits_its_column():
    assert set(recurrence.LABELS) == set(recurrence.TYPES)
    assert max(map(len, recurrence.TYPES)) <= CampaignStep._meta.get_field("recurrence_type").max_length


INSTANTS = st.datetimes(datetime(1975, 1, 1), datetime(2045, 1, 1), timezones=st.just(UTC))


@given(kind=st.sampled_from(recurrence.TYPES), zone=st.sampled_from(ZONES), anchor=st.none() | INSTANTS, after=INSTANTS)
def test_the_next_one_is_always_later_and_nothing_lies_between(kind, zone, anchor, after):
    zone = ZoneInfo(zone)
    found = next_occurrence(kind, anchor=anchor, zone=zone, after=after)
    assert found > after
    assert found.tzinfo is UTC
    if anchor:
        assert found >= anchor
        assert next_occurrence(kind, anchor=anchor, zone=zone, after=found - timedelta(microseconds=1)) == found
        if anchor <= after:
            assert found - after <= timedelta(days=368)


@pytest.mark.parametrize("name", ZONES)
def test_daily_runs_once_per_local_date_on_the_same_wall_clock_in_every_zone(name):
    zone = ZoneInfo(name)
    anchor = datetime(2026, 1, 1, 0, 0, tzinfo=zone)
    offsets = {(anchor + timedelta(weeks=week)).utcoffset() for week in range(53)}
    count = 400 if len(offsets) > 1 else 10  # a zone without clock changes has nothing to show
    for clock in (anchor, anchor.replace(hour=2, minute=30)):
        days = list(islice(follow("daily", clock, zone), count))
        assert all(earlier < later for earlier, later in pairwise(days))
        for number, moment in enumerate(days):
            local = moment.astimezone(zone)
            assert local.date() == clock.date() + timedelta(days=number)
            does_exist = datetime.combine(local.date(), clock.time(), zone).astimezone(UTC).astimezone(zone).time() == clock.time()
            assert local.time() == clock.time() or not does_exist

"""Times are typed and shown on the clock of the campaign, whatever the server's is."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError

from campaigns.wall_clock import WallClockField, instant, on_the_clock, zone_named

SAO_PAULO, LISBON, NEW_YORK = ZoneInfo("America/Sao_Paulo"), ZoneInfo("Europe/Lisbon"), ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("wall", "zone", "expected"),
    [
        (datetime(2027, 3, 1, 9, 0), SAO_PAULO, datetime(2027, 3, 1, 12, 0, tzinfo=UTC)),
        (datetime(2027, 7, 1, 9, 0), LISBON, datetime(2027, 7, 1, 8, 0, tzinfo=UTC)),
        (datetime(2027, 12, 1, 9, 0), LISBON, datetime(2027, 12, 1, 9, 0, tzinfo=UTC)),
        (datetime(2027, 11, 7, 1, 30), NEW_YORK, datetime(2027, 11, 7, 5, 30, tzinfo=UTC)),  # comes twice: the first
    ],
)
def test_a_wall_clock_time_becomes_the_moment_it_means_there(wall, zone, expected):
    assert instant(wall, zone) == expected
    assert on_the_clock(expected, zone) == wall


@pytest.mark.parametrize(("wall", "zone"), [(datetime(2027, 3, 28, 1, 30), LISBON), (datetime(2027, 3, 14, 2, 0), NEW_YORK)])
def test_a_time_that_the_clocks_skip_is_refused_with_another(wall, zone):
    with pytest.raises(ValidationError, match=f"does not exist in {zone.key}.*Use {wall.hour + 1:02}:{wall.minute:02}"):
        instant(wall, zone)


@pytest.mark.parametrize(
    "typed", ["soon", "2027-13-01T09:00", "2027-03-01T09:00+02:00", "0001-01-01T00:00", "9999-12-31T23:59", "2027-03-01", "\x00"]
)
def test_what_is_no_time_is_refused(typed):
    with pytest.raises(ValidationError, match=r"Write a date and a time|cannot be right"):
        WallClockField().clean(typed)


def test_an_unreadable_zone_is_shown_as_utc():
    assert zone_named("Mars/Olympus").key == "UTC"

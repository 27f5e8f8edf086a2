"""When a step that repeats goes out again. Pure: moments come in aware and leave in UTC.

A step with a time of its own keeps its wall clock: 09:00 stays 09:00 across clock changes. Every occurrence is computed from that first
time (the anchor), never from the one before, so a month without a 31st does not move the months after it. A local time that does not
exist moves forward by the gap; one that comes twice is taken once, the first.

semi_monthly is two days a month: the anchor's day, and the day 15 days from it within the month (the 1st and the 16th, the 10th and the
25th, the 31st and the 16th). A day that a month does not have becomes its last day.
"""

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

_DAYS = {"daily": 1, "every_3d": 3, "every_7d": 7, "every_15d": 15, "every_30d": 30, "weekly": 7}
_MONTHS = {"monthly": 1, "yearly": 12, "semi_annually": 6}
MOST_PASSED_OVER = 366  # a year of days: what is kept of the occurrences that went by
TYPES = ("daily", "every_3d", "every_7d", "every_15d", "every_30d", "weekly", "monthly", "yearly", "semi_monthly", "semi_annually")
LABELS = {
    "daily": "Every day",
    "every_3d": "Every 3 days",
    "every_7d": "Every 7 days",
    "every_15d": "Every 15 days",
    "every_30d": "Every 30 days",
    "weekly": "Every week",
    "monthly": "Every month",
    "yearly": "Every year",
    "semi_monthly": "Twice a month",
    "semi_annually": "Twice a year",
}


class UnknownRecurrence(ValueError):
    def __init__(self, kind: str) -> None:
        super().__init__(f'"{kind}" is not a recurrence. Use one of: {", ".join(TYPES)}.')


def next_occurrence(kind: str, *, anchor: datetime | None, zone: ZoneInfo, after: datetime) -> datetime:
    """The first occurrence later than `after`. Without an anchor it is counted from `after`, on the zone's wall clock."""
    _check(kind, anchor, after)
    return next(moment for moment in _occurrences(kind, anchor or after, zone, after) if moment > after)


def occurrences_between(
    kind: str, *, anchor: datetime | None, zone: ZoneInfo, after: datetime, until: datetime, limit: int = MOST_PASSED_OVER
) -> list[datetime]:
    """Those passed over: later than `after`, not later than `until`, the earliest first; of more than `limit` the latest `limit`.

    Without an anchor the count begins at each completion, so none was passed over.
    """
    _check(kind, anchor, after, until)
    if anchor is None or until <= after:
        return []
    enough = timedelta(days=_longest_days(kind)) * (limit + 2)
    start = until - enough if until - after > enough else after
    found: list[datetime] = []
    for moment in _occurrences(kind, anchor, zone, start):
        if moment > until:
            break
        if moment > after and (not found or moment > found[-1]):
            found.append(moment)
    return found[-limit:]


def _check(kind: str, *moments: datetime | None) -> None:
    if kind not in TYPES:
        raise UnknownRecurrence(kind)
    if any(moment is not None and moment.tzinfo is None for moment in moments):
        raise ValueError("A moment needs a time zone.")


def _longest_days(kind: str) -> int:
    return 31 if kind == "semi_monthly" else _DAYS.get(kind) or 31 * _MONTHS[kind]


def _occurrences(kind: str, anchor: datetime, zone: ZoneInfo, start: datetime) -> Iterator[datetime]:
    """All from the anchor on, in order, beginning at or before the first that is later than `start`. Two may share an instant: where a zone
    skipped a whole day, that day's moves onto the next."""
    first = anchor.astimezone(zone)
    if start < anchor:
        yield anchor.astimezone(UTC)
    # two days cover every difference between wall clock and instant, the skipped day of a zone that crossed the date line included
    for day in _days(kind, first.date(), start.astimezone(zone).date() - timedelta(days=2)):
        # fold=0 means: the first of two, and for a time that does not exist the offset before the gap, which moves it forward by the gap
        yield datetime.combine(day, first.time().replace(fold=0), tzinfo=zone).astimezone(UTC)


def _days(kind: str, anchor: date, since: date) -> Iterator[date]:
    """The local dates later than the anchor's, in order, beginning at or before the first that is not earlier than `since`."""
    if kind in _DAYS:
        step = timedelta(days=_DAYS[kind])
        count = max(1, (since - anchor) // step)
        while True:
            yield anchor + count * step
            count += 1
    months = _MONTHS.get(kind, 1)
    days = sorted((anchor.day, anchor.day + 15 if anchor.day <= 15 else anchor.day - 15)) if kind == "semi_monthly" else [anchor.day]
    count = max(0, (since.year - anchor.year) * 12 + since.month - anchor.month - 1) // months
    while True:
        year, month = divmod(anchor.year * 12 + anchor.month - 1 + count * months, 12)
        for day in days:
            clamped = date(year, month + 1, min(day, calendar.monthrange(year, month + 1)[1]))
            if clamped > anchor:
                yield clamped
        count += 1

"""Moments typed and shown as wall-clock time of a campaign or a step, never of the server."""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django import forms
from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_datetime
from unfold.widgets import BASE_INPUT_CLASSES

EARLIEST, LATEST = 2000, 2200  # years; beyond them a zone conversion can leave what a datetime can hold


def zone_named(name: str) -> ZoneInfo:
    """UTC for a name that cannot be read: a page must not break over what an import or an old release stored."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return ZoneInfo("UTC")


def spoken_moment(moment: datetime, zone: ZoneInfo) -> str:
    return f"{moment.astimezone(zone):%d %b %Y %H:%M} ({zone.key})"


def on_the_clock(moment: datetime, zone: ZoneInfo) -> datetime:
    """The wall clock in that zone, to the minute, without zone: what a datetime-local input shows."""
    return moment.astimezone(zone).replace(tzinfo=None, second=0, microsecond=0)


def instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """The moment when a clock in that zone shows `wall`. Of two, the first; a time that a clock change skips is refused."""
    aware = wall.replace(tzinfo=zone)
    back = aware.astimezone(ZoneInfo("UTC")).astimezone(zone)
    if back.replace(tzinfo=None) != wall:
        later = (wall + timedelta(hours=1)).strftime("%H:%M")
        raise ValidationError(
            f"{wall:%d %b %Y %H:%M} does not exist in {zone.key}: the clocks go forward over it. Use {later}, or a time before the change."
        )
    return aware.astimezone(ZoneInfo("UTC"))


class WallClockField(forms.DateTimeField):
    """Gives the naive time as typed; `WallClockForm.take_wall_clock` makes a moment of it once the zone is known."""

    widget = forms.DateTimeInput(
        attrs={"type": "datetime-local", "class": " ".join([*BASE_INPUT_CLASSES, "max-w-2xl"])}, format="%Y-%m-%dT%H:%M"
    )

    def to_python(self, value: Any) -> datetime | None:
        if value in self.empty_values:
            return None
        is_date = isinstance(value, str) and len(value.strip()) <= len("2027-03-01")
        if not isinstance(value, datetime):
            try:
                value = parse_datetime(str(value).strip())
            except ValueError:
                value = None
        if value is None or value.tzinfo is not None or is_date:
            raise ValidationError("Write a date and a time, as in 2027-03-01 09:00, without a time zone.")
        if not EARLIEST <= value.year < LATEST:
            raise ValidationError(f"The year {value.year} cannot be right. Use one from {EARLIEST} to {LATEST - 1}.")
        return value


class WallClockForm(forms.ModelForm):
    """Has `scheduled_at`, a WallClockField."""

    shown_zone: ZoneInfo

    def show_wall_clock(self, zone: ZoneInfo) -> None:
        self.shown_zone = zone
        if self.instance.scheduled_at:
            self.initial["scheduled_at"] = on_the_clock(self.instance.scheduled_at, zone)

    def take_wall_clock(self, zone: ZoneInfo) -> None:
        """An untouched field keeps the stored moment to the second, also the second of a time that comes twice."""
        wall = self.cleaned_data.get("scheduled_at")
        if wall is None:
            return
        if "scheduled_at" not in self.changed_data and zone.key == self.shown_zone.key:
            self.cleaned_data["scheduled_at"] = self.instance.scheduled_at
            return
        try:
            self.cleaned_data["scheduled_at"] = instant(wall, zone)
        except ValidationError as error:
            self.add_error("scheduled_at", error)

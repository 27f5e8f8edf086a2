"""The database's clock: the only one that several processes and hosts share."""

from datetime import datetime, timedelta

from django.db import connection


def database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        return cursor.fetchone()[0]


def spoken(duration: timedelta) -> str:
    """For sentences: "45 s", "2 min 5 s", "3 h", "4 days"; the two largest units that matter."""
    seconds = max(0, round(duration.total_seconds()))
    units = [(86400, "days" if seconds >= 172800 else "day"), (3600, "h"), (60, "min"), (1, "s")]
    parts = []
    for size, name in units:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"

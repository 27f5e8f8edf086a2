"""The database: whether it answers, what it is, and whether what is stored in it can be used here."""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor

from dispatch.readiness.configuration import EXAMPLES, RESTART, is_embedded
from dispatch.readiness.findings import Check, Verdict, error, first_line, ok, warning
from sessions_app.clock import database_now, spoken
from sessions_app.credentials import CredentialsUnreadable
from sessions_app.models import Session

OLDEST_POSTGRESQL = 14
SKEW_WARNS_ABOVE = timedelta(seconds=2)
SKEW_IS_WRONG_ABOVE = timedelta(seconds=30)
GIBIBYTE = 1024**3
DISK_WARNS_BELOW = 2.0  # GiB
DISK_IS_SHORT_BELOW = 0.25


def database() -> Iterator[Verdict]:
    try:
        database_now()
    except (Error, ImproperlyConfigured) as trouble:
        where = "Is PostgreSQL running?" if not is_embedded() else "What does var/postgres/log say?"
        yield error(f"The database cannot be reached: {first_line(trouble)}.", f"{where} Check DATABASE_URL in .env. {RESTART}")
    else:
        yield ok("The database answers.")


def version() -> Iterator[Verdict]:
    major, minor = connection.get_database_version()
    if major < OLDEST_POSTGRESQL:
        yield error(f"PostgreSQL {major}.{minor} is too old: {OLDEST_POSTGRESQL} is the least.", "Upgrade the server (pg_upgrade).")
    else:
        yield ok(f"PostgreSQL {major}.{minor}.")


def migrations() -> Iterator[Verdict]:
    executor = MigrationExecutor(connection)
    missing = [str(migration) for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
    if missing:
        some = ", ".join(missing[:EXAMPLES])
        plural = "migration is" if len(missing) == 1 else "migrations are"
        yield error(f"{len(missing)} {plural} not applied: {some}{', ...' if len(missing) > EXAMPLES else ''}.", "manage.py migrate")
    else:
        yield ok("Every migration is applied.")


def clock(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Iterator[Verdict]:
    """Sending goes by the database's clock alone; people read times on this machine's."""
    before = now()
    there = database_now()
    after = now()
    half = (after - before) / 2  # when in between the database looked at its clock, nobody knows
    ahead = there - (before + half)
    skew = max(abs(ahead) - half, timedelta(0))
    which = f"The database's clock is {spoken(skew)} {'ahead of' if ahead > timedelta(0) else 'behind'} this machine's"
    if skew <= SKEW_WARNS_ABOVE:
        yield ok("The database's clock and this machine's agree.")
    else:
        say = error if skew > SKEW_IS_WRONG_ABOVE else warning
        sentence = f"{which}: campaigns start by the database's."
        yield say(sentence, "timedatectl set-ntp true, on both machines.")


def credentials() -> Iterator[Verdict]:
    unreadable = [session.name for session in Session.objects.exclude(sealed_credentials="") if not _opens(session)]
    if unreadable:
        sentence = f"No key of CREDENTIALS_KEYS opens the credentials of {', '.join(unreadable[:EXAMPLES])}"
        more = f" and {len(unreadable) - EXAMPLES} more" if len(unreadable) > EXAMPLES else ""
        yield error(
            f"{sentence}{more}.", f"Put the old key behind the new one in CREDENTIALS_KEYS, or enter the credentials again. {RESTART}"
        )
    else:
        yield ok("All stored credentials can be opened.")


def _opens(session: Session) -> bool:
    try:
        return session.credentials is not None
    except CredentialsUnreadable:
        return False


def disk() -> Iterator[Verdict]:
    if not is_embedded():
        yield ok("The database has its own disk.")
        return
    folder = settings.VAR if settings.VAR.exists() else settings.VAR.parent
    free = shutil.disk_usage(folder).free / GIBIBYTE
    sentence, remedy = f"{free:.1f} GiB are free where the embedded PostgreSQL has its data.", f"Free some space: df -h {folder.name}"
    if free < DISK_IS_SHORT_BELOW:
        yield error(sentence, remedy)
    elif free < DISK_WARNS_BELOW:
        yield warning(sentence, remedy)
    else:
        yield ok(sentence)


DATABASE = Check("database", database)
CHECKS = [
    Check("database-version", version, needs_database=True),
    Check("migrations", migrations, needs_database=True),
    Check("clock", clock, needs_database=True),
    Check("credentials", credentials, needs_database=True),
    Check("disk", disk),
]

"""Set-up for every test. Factories are in tests/factories.py, fakes in tests/fakes.py."""

import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.db.backends.postgresql.operations import DatabaseOperations

# Playwright's sync API leaves an event loop in the thread, and Django would then refuse every query.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

IN_CI = os.environ.get("CI") == "true"
NEEDS = {"browser": "chromium", "pgbouncer": "pgbouncer"}  # mark -> the program without which such a test is skipped


TRUNCATED_ABOVE = 4 * 1024 * 1024  # bytes in all tables


def empty_quickly(truncate: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """How the tables are emptied after a test with transactions of its own. To truncate them, with all their indexes, takes 150 ms, and to
    delete the few rows of a test one. What is deleted leaves its room behind, so once that is a lot they are truncated all the same.
    """

    def sql_flush(self: DatabaseOperations, style: Any, tables: list[str], **options: Any) -> list[str]:
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT relname, pg_relation_size(oid) FROM pg_class WHERE relkind = 'r' AND relname = ANY (%s)", [list(tables)])
            sizes = {name: size for name, size in cursor.fetchall() if size}
        if options.get("reset_sequences") or sum(sizes.values()) > TRUNCATED_ABOVE:
            return truncate(self, style, tables, **options)
        return [f"DELETE FROM {self.quote_name(name)}" for name in sizes]  # in any order: the foreign keys are checked at the end

    return sql_flush


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")


def pytest_configure(config: pytest.Config) -> None:
    DatabaseOperations.sql_flush = empty_quickly(DatabaseOperations.sql_flush)  # type: ignore[method-assign]
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    if name := os.environ.get("PACELINE_TEST_DB"):  # several people test in one checkout
        settings.DATABASES["default"].setdefault("TEST", {})["NAME"] = name
    if IN_CI and (missing := [name for name in NEEDS.values() if not program(name)]):
        pytest.exit(f"CI=true and there is no {' and no '.join(missing)}: the tests that need it would prove nothing", returncode=1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A machine without them still has a suite that passes; in CI it would not get here."""
    for item in items:
        for mark, name in NEEDS.items():
            if item.get_closest_marker(mark) and not program(name):
                item.add_marker(pytest.mark.skip(reason=f"{name} is not installed"))


def _skipped(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", [])) if reporter else 0


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if IN_CI and _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if IN_CI and _skipped(config):
        terminalreporter.write_line(f"CI=true: {_skipped(config)} skipped, which counts as failed", red=True)

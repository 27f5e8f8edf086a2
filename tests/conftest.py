"""Set-up for every test. Factories are in tests/factories.py, fakes in tests/fakes.py."""

import os
import shutil

import pytest
from django.conf import settings

# Playwright's sync API leaves an event loop in the thread, and Django would then refuse every query.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

IN_CI = os.environ.get("CI") == "true"
NEEDS = {"browser": "chromium", "pgbouncer": "pgbouncer"}  # mark -> the program without which such a test is skipped


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")


def pytest_configure(config: pytest.Config) -> None:
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

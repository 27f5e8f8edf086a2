"""Set-up for every test. Factories are in tests/factories.py, fakes in tests/fakes.py."""

import os
import shutil

import pytest
from django.conf import settings

# Playwright's sync API leaves an event loop in the thread, and Django would then refuse every query.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

IN_CI = os.environ.get("CI") == "true"


def pytest_configure(config: pytest.Config) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    if name := os.environ.get("PACELINE_TEST_DB"):  # several people test in one checkout
        settings.DATABASES["default"].setdefault("TEST", {})["NAME"] = name
    if IN_CI and not shutil.which("chromium"):
        pytest.exit("CI=true and there is no chromium: the browser tests would prove nothing", returncode=1)


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

"""What honcho, make and systemd call exists, and is given the time it needs."""

import re

import pytest
from django.conf import settings
from django.core.management import get_commands

FILES = [settings.BASE_DIR / "Procfile", settings.BASE_DIR / "Makefile", *sorted((settings.BASE_DIR / "deploy").glob("*.service"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_command_that_is_called_exists(file):
    called = re.findall(r"(?:manage\.py|\$\(MANAGE\)) ([a-z_]+)", file.read_text())
    assert called or "gunicorn" in file.read_text()
    assert not set(called) - set(get_commands())


def test_systemd_waits_longer_than_the_work_may_take():
    def patience(unit):
        return int(re.search(r"TimeoutStopSec=(\d+)", (settings.BASE_DIR / "deploy" / unit).read_text())[1])

    assert patience("paceline-scheduler.service") > settings.SEND_DEADLINE_SECONDS + 30
    assert patience("paceline-worker.service") > settings.Q_CLUSTER["timeout"]


@pytest.mark.parametrize("file", FILES[2:], ids=lambda file: file.name)
def test_units_signal_the_main_process_alone(file):
    assert "KillMode=mixed" in file.read_text()

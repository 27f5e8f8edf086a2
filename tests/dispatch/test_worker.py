"""The q-cluster as honcho and systemd run it: a real process in a process group of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
SECONDS_TO_END = 20


def until(true, seconds=SECONDS_TO_END):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def descendants(pid: int) -> set[int]:
    children = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return children.union(*(descendants(child) for child in children))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def worker(tmp_path):
    """manage.py worker on the test database, leader of its group, with everything below it started."""
    (tmp_path / "own_settings.py").write_text(
        f"from config.settings import *\nDATABASES['default']['NAME'] = {connection.settings_dict['NAME']!r}\n"
    )
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}:{settings.BASE_DIR}", "DJANGO_SETTINGS_MODULE": "own_settings"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "worker"], cwd=settings.BASE_DIR, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    until(lambda: "running." in (tmp_path / "log").read_text())
    yield process
    below = descendants(process.pid) if process.poll() is None else set()
    for pid in {process.pid, *below} if process.poll() is None else below:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def test_sigterm_to_the_group_ends_all_of_it_in_order(worker):
    below = descendants(worker.pid)
    assert len(below) >= 5, "sentinel, pusher, monitor and two workers"
    os.killpg(worker.pid, signal.SIGTERM)
    assert worker.wait(timeout=SECONDS_TO_END) == 0
    assert not [pid for pid in below if is_alive(pid)]


def test_kill_leaves_no_orphan(worker):
    below = descendants(worker.pid)
    assert len(below) >= 5
    worker.kill()
    worker.wait()
    until(lambda: not [pid for pid in below if is_alive(pid)])

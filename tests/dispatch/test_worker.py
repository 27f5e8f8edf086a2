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
from django_q.models import Task
from django_q.tasks import async_task

pytestmark = pytest.mark.slow
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
def worker(tmp_path, transactional_db):
    """manage.py worker on the test database, leader of its group, with everything below it started."""
    (tmp_path / "own_settings.py").write_text(
        "from config.settings import *\n"
        f"DATABASES['default']['NAME'] = {connection.settings_dict['NAME']!r}\n"
        "Q_CLUSTER['log_level'] = 'INFO'  # the test reads how far it is\n"
    )
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}:{settings.BASE_DIR}", "DJANGO_SETTINGS_MODULE": "own_settings"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "worker"], cwd=settings.BASE_DIR, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    process.log = tmp_path / "log"
    try:
        until(lambda: "running." in process.log.read_text())
        yield process
    finally:
        if process.poll() is None:
            for pid in {process.pid, *descendants(process.pid)}:
                os.kill(pid, signal.SIGKILL)
        process.wait()


def test_sigterm_to_the_group_ends_all_of_it_once_its_tasks_are_done(worker):
    task = async_task("time.sleep", 1.5)
    until(lambda: "processing" in worker.log.read_text())
    below = descendants(worker.pid)
    assert len(below) >= 5, "sentinel, pusher, monitor and two workers"
    os.killpg(worker.pid, signal.SIGTERM)
    assert worker.wait(timeout=SECONDS_TO_END) == 0
    assert not [pid for pid in below if is_alive(pid)]
    assert Task.objects.get(id=task).success


def test_kill_leaves_no_orphan(worker):
    below = descendants(worker.pid)
    assert len(below) >= 5
    worker.kill()
    worker.wait()
    until(lambda: not [pid for pid in below if is_alive(pid)])

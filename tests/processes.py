"""Real processes on the test database: started with the environment they would have, watched through their log, ended for certain."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import connection

SECONDS = 30
A_BUSY_MACHINE = 3.0  # seconds that it may add to what takes no time; what would be wrong takes far longer


def database_url() -> str:
    """Of the database this test runs on; the embedded server's is reached through its socket."""
    parameters = connection.get_connection_params()
    user, name = quote(parameters["user"], safe=""), quote(parameters["dbname"], safe="")
    password, host, port = parameters.get("password"), parameters.get("host", ""), parameters.get("port", "")
    login = f"{user}:{quote(password, safe='')}" if password else user
    if host and not host.startswith("/"):
        return f"postgres://{login}@{host}:{port or 5432}/{name}"
    return f"postgres://{login}@:{port or 5432}/{name}" + (f"?{urlencode({'host': host})}" if host else "")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    url = more.pop("DATABASE_URL", None) or database_url()
    return kept | {"DATABASE_URL": url, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(settings.BASE_DIR)} | more


def until(true: Callable[[], object], what: str = "it", seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def manage(*arguments: object, **variables: str) -> tuple[int, str, str]:
    """One command to its end: (exit code, stdout, stderr). None may ever show a traceback."""
    done = subprocess.run(
        [sys.executable, "manage.py", *map(str, arguments)],
        cwd=settings.BASE_DIR,
        env=environment(LOG_LEVEL="ERROR", **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


class Process:
    """One command of manage.py with its output in a file."""

    def __init__(self, log: Path, *arguments: str, **variables: str) -> None:
        self.log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=settings.BASE_DIR,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def until_says(self, words: str) -> None:
        until(lambda: words in self.said or not self.runs, f"{words!r}")
        assert words in self.said, self.said[-3000:]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = SECONDS) -> int:
        return self._process.wait(timeout=seconds)

    def kill(self) -> None:
        """And reaped, so that its pid is gone."""
        self._process.kill()
        self._process.wait()


@contextmanager
def processes(folder: Path) -> Iterator[Callable[..., Process]]:
    """Gives the function that starts one; at the end of the block those that still run are killed."""
    started: list[Process] = []

    def start(*arguments: str, **variables: str) -> Process:
        process = Process(folder / f"process-{len(started)}.log", *arguments, **variables)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()

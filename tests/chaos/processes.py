"""The harness's end of the zygote: children that can be started, signalled and waited for."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

BASE = Path(__file__).resolve().parent.parent.parent


class Child:
    """One forked process. `code` is None while it lives; -9 is a kill."""

    def __init__(self, pid: int, role: str, log: Path) -> None:
        self.pid = pid
        self.role = role
        self.log = log
        self.code: int | None = None
        self.told: set[str] = set()  # what was done to it
        self.blows = 0  # how often it was killed or frozen
        self.frozen_until: float | None = None

    @property
    def runs(self) -> bool:
        return self.code is None

    def signal(self, number: signal.Signals) -> None:
        if self.runs:
            self.told.add(number.name)
            self.blows += number in {signal.SIGKILL, signal.SIGSTOP}
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # it has just ended

    def wait(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while self.runs and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.code


class Zygote:
    """The process that forks. One thread starts children, another one reads what became of them."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder = folder
        self._children: dict[int, Child] = {}
        self._ended: dict[int, int] = {}
        self._pids: list[int] = []
        self._news = threading.Condition()
        self._count = 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "DATABASE_URL"))}
        environment |= {"DATABASE_URL": database_url, "PYTHONPATH": str(BASE), "LOG_LEVEL": "INFO", "RECOVERY_POLICY": "pause"}
        with (folder / "zygote.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.zygote"],
                cwd=BASE,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="zygote")
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._news:
                if "pid" in said:
                    self._pids.append(said["pid"])
                elif "exited" in said:
                    self._ended[said["exited"]] = said["code"]
                self._match()
                self._news.notify_all()

    def _match(self) -> None:
        for pid in [pid for pid in self._ended if pid in self._children]:
            self._children.pop(pid).code = self._ended.pop(pid)

    def start(self, role: str, **order: Any) -> Child:
        assert self._process.stdin is not None
        self._count += 1
        log = self._folder / f"{role}-{self._count}.log"
        log.touch()  # the child opens it in its own time; whoever reads it before finds it empty
        with self._news:
            self._process.stdin.write((json.dumps({"role": role, "log": str(log), **order}) + "\n").encode())
            self._process.stdin.flush()
            if not self._news.wait_for(lambda: self._pids, timeout=60):
                raise RuntimeError((self._folder / "zygote.log").read_text()[-2000:])
            child = Child(self._pids.pop(), role, log)
            self._children[child.pid] = child
            self._match()  # it may have ended already
        return child

    def run(self, role: str, *, seconds: float = 120, **order: Any) -> Child:
        """To its end."""
        child = self.start(role, **order)
        if child.wait(seconds) is None:
            child.signal(signal.SIGKILL)
        return child

    def logs(self, role: str) -> list[Path]:
        return sorted(self._folder.glob(f"{role}-*.log"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        for child in list(self._children.values()):
            child.signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

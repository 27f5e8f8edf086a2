"""What does an installation need? python deploy/measure.py [--seconds N]

Starts all of it as production does (gunicorn, scheduler, background tasks, retry daemon) on a PostgreSQL of its own in a folder that is
thrown away, with the local stand-in for WAHA as the channel, and prints memory and CPU of each: idle, and while it sends with somebody at
the admin. Memory is the sum of the PSS of a process and its children, so that what they share counts once. Linux only: it reads /proc.
Needs port 3900, and `manage.py collectstatic` with DEBUG=false before. docs/operations.md quotes what it printed.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

BASE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BASE))

from config.embedded_postgres import server  # noqa: E402
from config.environment import new_credentials_key, new_secret_key  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
GIVES_UP_AFTER = 600  # seconds
PYTHON = [sys.executable, "manage.py"]


@contextmanager
def database(folder: Path) -> Iterator[str]:
    data = folder / "postgres"
    server.start(data)
    try:
        yield f"postgres://{quote(server.role())}@:{server.PORT}/postgres?{urlencode({'host': str(server.socket_folder(data))})}"
    finally:
        server.let_go(data)
        server.stop(data)


@contextmanager
def process(log: Path, words: list[str], environment: dict[str, str]) -> Iterator[int]:
    with log.open("w") as output:
        started = subprocess.Popen(words, cwd=BASE, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        yield started.pid
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def parents() -> dict[int, int]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
    return found


def family(root: int) -> list[int]:
    parent, members = parents(), [root]
    for pid in members:
        members.extend(child for child, its in parent.items() if its == pid)
    return members


def memory(root: int) -> float:
    """MiB."""
    kilobytes = 0
    for pid in family(root):
        try:
            kilobytes += int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
        except (OSError, IndexError):
            continue
    return kilobytes / 1024


def cpu(root: int) -> float:
    """Seconds so far, with the children that have ended."""
    ticks = 0
    for pid in family(root):
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / TICKS


def page(url: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"X-Forwarded-Proto": "https"}), timeout=10) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)
    except OSError:
        return 0


def report(title: str, roots: dict[str, int], until: Callable[[], object]) -> float:
    """Calls `until` each second until it is true; the highest memory and the mean CPU of that time."""
    began, spent = time.monotonic(), {name: cpu(pid) for name, pid in roots.items()}
    highest = dict.fromkeys(roots, 0.0)
    while not until():
        if time.monotonic() - began > GIVES_UP_AFTER:
            sys.exit(f"{title}: no end after {GIVES_UP_AFTER} s")
        time.sleep(1)
        highest = {name: max(highest[name], memory(pid)) for name, pid in roots.items()}
    took = time.monotonic() - began
    say(f"\n{title}, {took:.0f} s")
    share = {name: (cpu(pid) - spent[name]) / took * 100 for name, pid in roots.items()}
    for name, pid in roots.items():
        say(f"{name:<12}{len(family(pid)):>3} processes{highest[name]:>8.0f} MiB{share[name]:>8.1f} % of one CPU")
    say(f"{'together':<12}{'':>13}{sum(highest.values()):>8.0f} MiB{sum(share.values()):>8.1f} %")
    return took


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run([*PYTHON, *words], cwd=BASE, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory and CPU of an installation.")
    parser.add_argument("--seconds", type=int, default=60, help="how long to look at it idle (default 60)")
    seconds = parser.parse_args().seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that what it started is ended too
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        keys = {"SECRET_KEY": new_secret_key(), "CREDENTIALS_KEYS": new_credentials_key(), "ALLOWED_HOSTS": "127.0.0.1"}
        environment = os.environ | keys | {"DEBUG": "false", "DATABASE_URL": stack.enter_context(database(folder))}
        run(environment, "migrate", "--verbosity", "0")
        port = free_port()
        gunicorn = [sys.executable, "-m", "gunicorn", "config.wsgi", "--config", "deploy/gunicorn.conf.py", "--bind", f"127.0.0.1:{port}"]
        commands = {
            "web": gunicorn,
            "scheduler": [*PYTHON, "run_scheduler"],
            "worker": [*PYTHON, "worker"],
            "retry": [*PYTHON, "campaign_retry", "--daemon"],
        }
        stack.enter_context(process(folder / "sandbox.log", [*PYTHON, "run_sandbox"], environment))
        roots = {name: stack.enter_context(process(folder / f"{name}.log", words, environment)) for name, words in commands.items()}
        roots["PostgreSQL"] = int((folder / "postgres" / "postmaster.pid").read_text().split()[0])
        login = f"http://127.0.0.1:{port}/admin/login/"
        while page(login) == 0:
            time.sleep(0.2)
        for _ in range(20):
            if (status := page(login)) != 200:
                sys.exit(f"the page for the login answers {status}: is manage.py collectstatic done?")
        time.sleep(10)  # past what every start costs
        end = time.monotonic() + seconds
        report("idle", roots, lambda: time.monotonic() > end)
        run(environment | {"DEBUG": "true"}, "demo_data")
        took = report("sending, a page of the admin each second", roots, lambda: page(login) and completed(environment))
        say(f"\n2000 messages in at most {took:.0f} s, of which 12 s wait for the start; a campaign at human pace beside it")


def completed(environment: dict[str, str]) -> bool:
    """Every few seconds, as it is a process of its own."""
    return int(time.monotonic()) % 5 == 0 and "completed: 2000 sent" in run(environment, "campaign", "list")


if __name__ == "__main__":
    main()

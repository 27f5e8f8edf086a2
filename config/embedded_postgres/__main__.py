"""python -m config.embedded_postgres start | stop | status | run | psql | reset"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from config.embedded_postgres import server

HANDOVER_SECONDS = 60  # longer than any other process of the Procfile is given to end
_END = {signal.SIGTERM, signal.SIGINT}


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    parser = argparse.ArgumentParser(prog="python -m config.embedded_postgres", description="The PostgreSQL of a development instance.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start", help="start it, and keep it up when nobody uses it")
    commands.add_parser("stop", help="stop it").add_argument("--when-unused", action="store_true", help="wait for its users to leave")
    commands.add_parser("status", help="say whether it runs; exit code 3 if not")
    commands.add_parser("run", help="keep it up until SIGTERM or Ctrl-C, for a Procfile")
    commands.add_parser("psql", help="open psql; what follows goes to psql")
    commands.add_parser("reset", help="delete its databases")
    chosen, rest = parser.parse_known_args()
    if rest and chosen.command != "psql":
        parser.error(f"unknown: {' '.join(rest)}")
    chosen.rest = rest
    try:
        database = settings.DATABASES["default"]
        data = Path(database.get("DATA_DIRECTORY", settings.VAR / "postgres")).resolve()
        if chosen.command in ("start", "psql", "run") and "DATA_DIRECTORY" not in database:
            return _not_ours(chosen.command)
        return _COMMANDS[chosen.command](data, chosen)
    except (ImproperlyConfigured, server.ServerError) as error:
        _say(f"paceline: {error}", sys.stderr)
        return 1


def _say(text: str, stream: Any = None) -> None:
    (stream or sys.stdout).write(f"{text}\n")
    (stream or sys.stdout).flush()


def _not_ours(command: str) -> int:
    if command == "run":  # a Procfile ends as a whole when one of its processes ends
        signal.pthread_sigmask(signal.SIG_BLOCK, _END)
        _say("DATABASE_URL is set: the embedded PostgreSQL is not started")
        signal.sigwait(_END)
        return 0
    _say("paceline: DATABASE_URL is set, the embedded PostgreSQL is not used", sys.stderr)
    return 1


def _start(data: Path, _chosen: argparse.Namespace) -> int:
    server.start(data)
    server.keep_mark(data).touch()
    _say(f"running, socket in {server.socket_folder(data)}; `stop` ends it")
    return 0


def _stop(data: Path, chosen: argparse.Namespace) -> int:
    if chosen.when_unused:
        return 0 if server.stop_when_unused(data, HANDOVER_SECONDS) else 1
    server.stop(data)
    return 0


def _status(data: Path, _chosen: argparse.Namespace) -> int:
    running = server.is_running(data)
    _say(f"running, socket in {server.socket_folder(data)}" if running else "stopped")
    return 0 if running else 3


def _psql(data: Path, chosen: argparse.Namespace) -> int:
    server.start(data)
    address = ["--host", str(server.socket_folder(data)), "--port", server.PORT, "--username", server.role(), "--dbname", "postgres"]
    return subprocess.run([str(server.bin_folder() / "psql"), *address, *chosen.rest], check=False).returncode


def _run(data: Path, _chosen: argparse.Namespace) -> int:
    """Ends the server after the other processes have let go of it, in a process of its own: honcho kills this one after 5 seconds."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _END)
    server.start(data)
    _say(f"running, socket in {server.socket_folder(data)}")
    signal.sigwait(_END)  # they stay blocked: a second Ctrl-C does not cut off what follows
    heir = subprocess.Popen([sys.executable, "-m", "config.embedded_postgres", "stop", "--when-unused"], start_new_session=True)
    server.let_go(data)
    return heir.wait()


def _reset(data: Path, _chosen: argparse.Namespace) -> int:
    server.reset(data)
    _say(f"deleted {data}")
    return 0


_COMMANDS = {"start": _start, "stop": _stop, "status": _status, "psql": _psql, "run": _run, "reset": _reset}

if __name__ == "__main__":
    sys.exit(main())

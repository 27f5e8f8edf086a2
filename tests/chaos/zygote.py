"""Django loaded once, forked for every process that a chaos run starts: at a kill every half second, imports would be all it does.

Reads one JSON object a line and answers one a line: {"pid": n} for a start, {"exited": pid, "code": n} when a child has ended. It reaps at
once, because a pid counts as gone only then. Its end ends the children.
"""

import json
import os
import select
import signal
import sys
from typing import Any


def main() -> None:
    import django
    from django.conf import settings

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    settings.CHANNELS["human_sandbox"] = "tests.chaos.channel.HumanSandbox"
    django.setup()
    from tests.chaos import roles

    children: set[int] = set()
    say({"ready": True})
    while True:
        if select.select([sys.stdin], [], [], 0.01)[0]:
            line = os.read(0, 65536)
            if not line:
                break
            for order in line.decode().splitlines():
                pid = start(json.loads(order), roles.ROLES)
                children.add(pid)
                say({"pid": pid})
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                children.discard(pid)
                say({"exited": pid, "code": os.waitstatus_to_exitcode(status)})
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def say(words: dict[str, Any]) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def start(order: dict[str, Any], roles: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = roles[order["role"]](order) or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

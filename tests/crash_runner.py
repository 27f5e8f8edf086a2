"""A process that forks schedulers which kill themselves at their n-th step: the other half of tests/dispatch/test_crash_points.py.

A step is whatever the world outside can notice: a statement that writes by itself, a COMMIT, a piece of a request on the wire. Between two
steps a death looks the same from everywhere, so one point between any two of them is enough. Reads are no steps, for the same reason, nor
is what stands inside a transaction: a death takes it back.

Reads one JSON object a line, forks, waits for the child, answers one JSON object a line.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.db import connection  # noqa: E402

from campaigns import transitions  # noqa: E402
from campaigns.models import Campaign  # noqa: E402
from dispatch import recovery  # noqa: E402
from dispatch import transitions as log_transitions  # noqa: E402
from dispatch.engine import Engine  # noqa: E402
from dispatch.loop import Loop, start_heart  # noqa: E402
from dispatch.models import DispatchLog, Heartbeat  # noqa: E402
from dispatch.stopping import StopFlag  # noqa: E402
from dispatch.verification import VerifyPolicy  # noqa: E402
from sessions_app.providers import http  # noqa: E402

# No grace: the test waits until the stand-in has read everything that a dead process wrote.
AT_ONCE = VerifyPolicy(backoff=(timedelta(0),) * 20, grace=timedelta(0))


class Steps:
    """Counts, and ends the process right before the n-th step, or after the last one if that is fewer."""

    def __init__(self, last: int) -> None:
        self.left = last
        self.done: list[str] = []

    def around(self, name: str, act: Callable[[], Any]) -> Any:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        self.done.append(name)
        return act()

    def watch(self) -> None:
        connection.execute_wrappers.append(self._statement)
        commit = connection._commit  # type: ignore[attr-defined]
        connection._commit = lambda: self.around("COMMIT", commit)  # type: ignore[attr-defined]
        sendall = http._Socket.sendall
        http._Socket.sendall = lambda sock, data: self.around(f"write {bytes(data[:4])!r}", lambda: sendall(sock, data))  # type: ignore

    def _statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        words = sql.split(maxsplit=1)
        if words[0] == "SELECT" or connection.in_atomic_block:
            return execute(sql, params, many, context)
        return self.around(" ".join(sql.split()[:4]), lambda: execute(sql, params, many, context))


class UntilEverybodyHasIt(StopFlag):
    def __init__(self, campaign_id: int) -> None:
        super().__init__()
        self._campaign_id = campaign_id
        self._asked = False

    @property
    def requested(self) -> bool:
        completed = Campaign.objects.filter(pk=self._campaign_id, status=Campaign.Status.COMPLETED)
        open_rows = DispatchLog.objects.filter(campaign=self._campaign_id).exclude(status=DispatchLog.Status.SENT)
        return self._asked or (not open_rows.exists() and completed.exists())

    @requested.setter
    def requested(self, value: bool) -> None:
        self._asked = value


def send(campaign_id: int, threads: int) -> int:
    """As run_scheduler does it."""
    heart = start_heart(Heartbeat.Kind.SCHEDULER)
    engine = Engine(owner=heart.pk, rng=Random(1), threads=threads, deadline=timedelta(seconds=5), verify=AT_ONCE)
    return Loop(heart=heart, engine=engine, stop=UntilEverybodyHasIt(campaign_id), interval=0.0).run()


def recover(how: str) -> None:
    if how == "verify":
        recovery.recover_stuck(policy=AT_ONCE)
        return
    recovery.take_over()
    for log_id in DispatchLog.objects.unconfirmed().values_list("pk", flat=True):
        if how == "send again":
            log_transitions.send_again(log_id, by="a recovery that does not ask")
        else:
            log_transitions.mark_sent(log_id, by="a recovery that does not ask")


def finish(campaign_id: int, how: str) -> int:
    recover(how)
    if Campaign.objects.get(pk=campaign_id).status == Campaign.Status.PAUSED:
        transitions.resume(campaign_id, by="ana")
    return send(campaign_id, threads=4)


def child(order: dict[str, Any]) -> int:
    signal.alarm(30)
    if order["do"] == "finish":
        return finish(order["campaign"], order["how"])
    steps = Steps(order["steps"])
    steps.watch()
    code = send(order["campaign"], order["threads"])
    sys.stdout.write(json.dumps({"steps": steps.done}) + "\n")
    sys.stdout.flush()
    return code


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = child(json.loads(line))
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        sys.stdout.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""manage.py worker: django-q2's cluster, safe to stop and safe to kill."""

import ctypes
import os
import signal
import sys
from typing import Any

from django_q.management.commands.qcluster import Command as ClusterCommand

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Command(ClusterCommand):
    help = "Runs the background tasks: recovery, housekeeping, and the engine itself where ENGINE_DRIVER is schedule."

    def handle(self, *args: Any, **options: Any) -> None:
        os.register_at_fork(after_in_child=_leave_the_group)
        super().handle(*args, **options)


def _leave_the_group() -> None:
    """A SIGTERM to the process group must reach the main process alone: it ends the others in order, once their tasks are done.

    Without it the cluster hangs for ever when honcho or systemd stops it. On Linux, children also die with their parent; elsewhere a
    kill -9 of the main process leaves them at work.
    """
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

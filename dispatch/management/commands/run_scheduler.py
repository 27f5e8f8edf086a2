"""manage.py run_scheduler: the service that sends."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dispatch.loop import run_scheduler
from dispatch.stopping import StopFlag


def seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise ValueError
    return value


class Command(BaseCommand):
    help = "Start what is due and send it, until told to stop (SIGTERM or Ctrl-C finishes what is on its way; a second one leaves at once)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="do everything that is due now, wait for its answers, and end")
        parser.add_argument(
            "--interval", type=seconds, default=1.0, metavar="SECONDS", help="look for what is due this often (0.1 to 3600)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        stop = StopFlag()
        stop.install()
        sys.exit(run_scheduler(stop, interval=options["interval"], once=options["once"]))

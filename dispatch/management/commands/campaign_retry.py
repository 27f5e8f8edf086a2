"""manage.py campaign_retry: queue again what failed and is worth another try, here or at a deployment."""

import sys
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from dispatch.retry_daemon import JobReply, as_json, error_code, job_url, request_from, run_daemon, turn_for, whole_number
from dispatch.stopping import StopFlag

FLAGS = {
    "daemon": "go on, a run each CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS, until told to stop",
    "once": "with --daemon: one turn of it",
    "no-jitter": "with --daemon: rest the interval exactly, not up to a fifth more or less",
    "dry-run": "only say how many are due, and why they failed",
    "json": "one JSON object for each run",
}
VALUES: dict[str, tuple[Callable[[str], Any], str]] = {
    "campaign": (whole_number(2**63 - 1), "only this campaign, by its number"),
    "tenant": (str, "only campaigns with this label"),
    "session": (whole_number(2**63 - 1), "only campaigns that send through this session, by its number"),
    "error-code": (error_code, "TRANSIENT unless you name FATAL or INVALID_RECIPIENT"),
    "max-age-hours": (whole_number(24 * 3660), "only what was tried last within so many hours"),
    "batch-size": (whole_number(10_000), "queue at most so many messages"),
    "max-campaigns": (whole_number(10_000), "of at most so many campaigns"),
    "url": (job_url, "call that deployment, with CAMPAIGN_RETRY_JOB_TOKEN, instead of using this database"),
}


class Command(BaseCommand):
    help = "Queue failed messages again that are worth another try. Sends nothing itself. Exit code 0 also while another run is on its way."

    def add_arguments(self, parser: CommandParser) -> None:
        for name, (read, meaning) in VALUES.items():
            parser.add_argument(f"--{name}", type=read, metavar="VALUE", help=meaning)
        for name, meaning in FLAGS.items():
            parser.add_argument(f"--{name}", action="store_true", help=meaning)

    def handle(self, *args: Any, **options: Any) -> None:
        turn = turn_for(options["url"] or settings.CAMPAIGN_RETRY_JOB_URL, request_from(options))
        self.is_json = options["json"]
        if options["daemon"] and not options["once"]:
            stop = StopFlag()
            stop.install()
            sys.exit(run_daemon(stop, turn, jitter=not options["no_jitter"], report=self.show if self.is_json else None))
        reply = turn()
        self.show(reply)
        sys.exit(reply.exit_code)

    def show(self, reply: JobReply) -> None:
        stream = self.stdout if self.is_json or reply.is_fine else self.stderr
        stream.write(as_json(reply) if self.is_json else reply.sentence)
        stream.flush()  # a daemon's next line may be minutes away

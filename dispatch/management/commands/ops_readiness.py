"""manage.py ops_readiness: can this installation send, and what mends it?"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.readiness.examining import examine
from dispatch.readiness.findings import Check, Finding, findings_of
from dispatch.readiness.trial import Say, send_test
from dispatch.stopping import StopFlag


class Command(BaseCommand):
    help = "Say what keeps this installation from sending, and what mends it. Changes nothing. Exit code 1 when an error is found."
    requires_system_checks = []  # they are a finding

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object for each finding, in a list")
        parser.add_argument("--send-test", metavar="ADDRESS", help="then send one real message there, in a minute, and wait for it")
        parser.add_argument("--session", default="", metavar="NAME", help="with --send-test: the session, by name or number")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["session"] and not options["send_test"]:
            raise CommandError("--session goes with --send-test.", returncode=2)
        findings = []
        say = self.stderr.write if options["json"] else self.say
        for finding in self.findings(options["send_test"], options["session"], say):
            findings.append(finding)
            if not options["json"]:
                self.show(finding)
        if options["json"]:
            self.stdout.write(json.dumps([finding.as_dict() for finding in findings]))
        sys.exit(1 if any(finding.is_error for finding in findings) else 0)

    def findings(self, address: str | None, session: str, say: Say) -> Iterator[Finding]:
        yield from examine()
        if address is not None:
            stop = StopFlag()
            stop.install()
            trial = partial(send_test, address, session=session, stop=stop, say=say)
            yield from findings_of(Check("test-message", trial))

    def say(self, sentence: str) -> None:
        self.stdout.write(f"         {sentence}")
        self.stdout.flush()

    def show(self, finding: Finding) -> None:
        verdict = finding.verdict
        self.stdout.write(f"{verdict.level.value:<8} {finding.key}: {verdict.sentence}")
        if verdict.remedy:
            self.stdout.write(f"         What to do: {verdict.remedy}\n         More: {finding.section}")

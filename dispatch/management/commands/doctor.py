"""manage.py doctor: is everything true that must be?"""

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dispatch.doctor import Finding, examine


class Command(BaseCommand):
    help = "Check what must never be false, in the data as it is. Read-only. Exit code 1 when something is broken."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object for each check, in a list")
        parser.add_argument("--all", action="store_true", help="also what was completed more than a week ago (slow on a large ledger)")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = examine(everything=options["all"])
        if options["json"]:
            self.stdout.write(json.dumps([finding.as_dict() for finding in findings]))
        else:
            for finding in findings:
                self.show(finding)
        sys.exit(1 if any(finding.is_broken for finding in findings) else 0)

    def show(self, finding: Finding) -> None:
        self.stdout.write(f"{'BROKEN' if finding.is_broken else 'ok':<7} {finding.check.key}: {finding.check.holds}")
        if finding.is_broken:
            self.stdout.write(f"        It means: {finding.check.means}\n        What to do: {finding.check.remedy}")
            for example in finding.examples:
                self.stdout.write(f"        - {example}")

"""manage.py recover_stuck: on deploy, before the services start."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dispatch.recovery import recover_stuck


class Command(BaseCommand):
    help = "See to what dead processes left: messages become UNCONFIRMED and are verified, campaigns are paused. Safe beside live ones."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="the counts as one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        counts = recover_stuck().as_dict()
        if options["json"]:
            self.stdout.write(json.dumps(counts))
        elif any(counts.values()):
            self.stdout.write(", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items()))
        else:
            self.stdout.write("Nothing was stuck.")

"""manage.py ops_healthcheck: does the site answer, is it well, does the retry job run? Over HTTP, without the database."""

import json
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from config.environment import VARIABLES
from dispatch.readiness.looking import Look, Trouble, look_at_site


class Command(BaseCommand):
    help = "Look at the site, its health and its retry job, a line each. Exit code 1 when something is wrong. Needs no database."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--base-url", metavar="URL", help="where the site is; OPS_BASE_URL otherwise")
        parser.add_argument("--strict", action="store_true", help="degraded counts as wrong")
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        base_url = options["base_url"] or settings.OPS_BASE_URL
        try:
            VARIABLES["OPS_BASE_URL"][1](base_url)
        except ValueError as error:
            raise CommandError(f"--base-url is not usable: {error}.", returncode=2) from None
        strict = options["strict"]
        looks = look_at_site(base_url)
        ok = not any(look.failed(strict=strict) for look in looks)
        if options["json"]:
            self.stdout.write(json.dumps({"ok": ok, "looks": [look.as_dict(strict=strict) for look in looks]}))
        else:
            for look in looks:
                self.show(look, strict=strict)
        sys.exit(0 if ok else 1)

    def show(self, look: Look, *, strict: bool) -> None:
        sign = "✗" if look.failed(strict=strict) else "!" if look.trouble is Trouble.DEGRADED else "✓"
        if not _is_writable(sign, getattr(self.stdout, "encoding", None)):
            sign = {"✗": "FAILED", "✓": "ok"}[sign]
        self.stdout.write(f"{sign} {look}")


def _is_writable(sign: str, encoding: str | None) -> bool:
    """A cron's terminal may be an ASCII one, and a check that dies of its own tick is no check."""
    try:
        sign.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True

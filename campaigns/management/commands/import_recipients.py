import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from campaigns.importing import ImportRefused, ImportReport, import_recipients
from campaigns.models import Campaign

ROWS_SHOWN = 50


class Command(BaseCommand):
    help = "Add the people of a CSV file to a campaign. Exit code 0: done, 1: refused with a sentence, 2: wrong usage."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("campaign", type=int, metavar="CAMPAIGN", help="the campaign's id")
        parser.add_argument("file", type=Path, metavar="FILE", help="UTF-8, with a header line; comma, semicolon or tab")
        parser.add_argument("--region", default=settings.DEFAULT_REGION, help="country of phones without a country code, such as BR")
        parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")
        parser.add_argument("--json", action="store_true", help="the whole report as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        campaign = Campaign.objects.select_related("session").filter(pk=options["campaign"]).first()
        if campaign is None:
            raise CommandError(f"There is no campaign {options['campaign']}.", returncode=1)
        try:
            with options["file"].open("rb") as file:
                report = import_recipients(campaign, file, region=options["region"], dry_run=options["dry_run"])
        except OSError as error:
            raise CommandError(f"{options['file']} cannot be read: {error.strerror}.", returncode=1) from None
        except ImportRefused as refusal:
            raise CommandError(str(refusal), returncode=1) from None
        if options["json"]:
            self.stdout.write(json.dumps(report.as_dict(), ensure_ascii=False, indent=2))
        else:
            self._tell(report)

    def _tell(self, report: ImportReport) -> None:
        verb = "would be added" if report.dry_run else "added"
        self.stdout.write(f"{report.rows} rows: {report.added} {verb}, {len(report.repeated)} repeated, {len(report.rejected)} rejected.")
        for title, notes in (("rejected", report.rejected), ("repeated", report.repeated), ("noted", report.noted)):
            for note in notes[:ROWS_SHOWN]:
                self.stdout.write(f"  line {note.line}, {title}: {note.value!r}: {note.reason}")
            if len(notes) > ROWS_SHOWN:
                self.stdout.write(f"  and {len(notes) - ROWS_SHOWN} more {title} (all of them with --json).")

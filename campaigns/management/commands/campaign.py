"""manage.py campaign: the verbs of the admin, for scripts."""

import getpass
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from campaigns.models import Campaign
from campaigns.transitions import BY_HAND, Refused


def facts(campaign: Campaign) -> dict[str, Any]:
    totals = {name: getattr(campaign, name) for name in ("planned", "sent", "failed", "unconfirmed", "skipped")}
    return {
        "id": campaign.pk,
        "name": campaign.name,
        "session": campaign.session.name,
        "status": campaign.status,
        "reason": campaign.status_reason,
        "due_at": campaign.due_at.isoformat() if campaign.due_at else None,
        **totals,
        "pending": totals["planned"] - sum(totals[name] for name in ("sent", "failed", "unconfirmed", "skipped")),
    }


class Command(BaseCommand):
    help = "List, show, start, pause, resume, stop or schedule campaigns."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("verb", choices=["list", "show", *BY_HAND])
        parser.add_argument("id", nargs="?", type=int, metavar="ID", help="the campaign's number; not with list")
        parser.add_argument("--json", action="store_true", help="as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        verb, campaign_id = options["verb"], options["id"]
        if (verb == "list") == (campaign_id is not None):
            raise CommandError(f"campaign {verb} {'takes no' if verb == 'list' else 'needs a'} campaign number.", returncode=2)
        if verb in BY_HAND:
            try:
                BY_HAND[verb](campaign_id, by=f"{getpass.getuser()} (command line)")
            except Refused as refusal:
                raise CommandError(str(refusal)) from None
        campaigns = Campaign.objects.with_totals().select_related("session").order_by("pk")
        if campaign_id is not None:
            campaigns = campaigns.filter(pk=campaign_id)
            if not campaigns:
                raise CommandError(f"There is no campaign {campaign_id}; `campaign list` names them all.")
        self.show([facts(campaign) for campaign in campaigns], as_json=options["json"], many=verb == "list")

    def show(self, rows: list[dict[str, Any]], *, as_json: bool, many: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(rows if many else rows[0]))
            return
        for row in rows:
            self.stdout.write(
                f"{row['id']:>6}  {row['status']:<10} {row['sent']:>7}/{row['planned']} sent  {row['failed']} failed  "
                f"{row['unconfirmed']} unconfirmed  {row['pending']} pending  {row['name']} ({row['session']})  {row['reason']}"
            )

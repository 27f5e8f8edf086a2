"""manage.py demo_data: what `make demo` shows. Run again, it changes nothing that is there."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from campaigns import transitions
from campaigns.importing import import_recipients
from campaigns.models import Campaign, CampaignStep
from sessions_app.clock import database_now
from sessions_app.models import Session

EXAMPLES = Path(settings.BASE_DIR) / "docs" / "examples"
LOGIN, PASSWORD = "demo", "paceline-demo"  # printed on purpose, and refused outside DEBUG
STAND_IN = {"base_url": "http://127.0.0.1:3900", "session": "default", "engine": "NOWEB"}
UNTIL_THE_STAND_IN_IS_UP = timedelta(seconds=12)


class Command(BaseCommand):
    help = "Make the sample data of `make demo`: a login, two sessions and two campaigns that start in a moment."

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("demo_data makes a login with a known password: it runs with DEBUG=true only.")
        users = get_user_model().objects
        if not users.filter(username=LOGIN).exists():
            users.create_superuser(LOGIN, password=PASSWORD)
        self.campaign(
            name="Appointments, at human pace",
            session=self.session("Demo number", "waha"),
            text="Hi {{ name }}, see you in {{ city }} at {{ appointment }}. Reply to move it.",
            people="thirty.csv",
        )
        self.campaign(
            name="Newsletter, at the speed of the sandbox",
            session=self.session("Demo sandbox", "sandbox"),
            text='Hello {{ name }}! What is new in {{ city|default:"your town" }} this week.',
            people="two_thousand.csv",
        )
        self.stdout.write(f"Login: {LOGIN}  Password: {PASSWORD}")

    def session(self, name: str, channel: str) -> Session:
        return Session.objects.get_or_create(name=name, defaults={"channel": channel, "settings": STAND_IN})[0]

    def campaign(self, *, name: str, session: Session, text: str, people: str) -> None:
        if Campaign.objects.filter(name=name).exists():
            return
        start = database_now() + UNTIL_THE_STAND_IN_IS_UP
        campaign = Campaign.objects.create(name=name, session=session, scheduled_at=start, grace_seconds=24 * 3600)
        CampaignStep.objects.create(campaign=campaign, name="First message", text=text)
        with (EXAMPLES / people).open("rb") as file:
            import_recipients(campaign, file, region="US")
        transitions.schedule(campaign.pk, by="the demo")

"""What `make demo` shows: a login, three sessions at the stand-in, two campaigns that start in a moment, and receipts that come back."""

from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django_q.tasks import async_task

from campaigns import transitions
from campaigns.importing import import_recipients
from campaigns.models import Campaign, CampaignStep
from sessions_app import pairing
from sessions_app.clock import database_now
from sessions_app.models import Session

EXAMPLES = Path(settings.BASE_DIR) / "docs" / "examples"
LOGIN, PASSWORD = "demo", "paceline-demo"  # printed on purpose, and refused outside DEBUG
STAND_IN = {"base_url": "http://127.0.0.1:3900", "engine": "NOWEB"}
NUMBER, SANDBOX, PHONE = "Demo number", "Demo sandbox", "Demo phone"
UNTIL_THE_STAND_IN_IS_UP = timedelta(seconds=12)
TRIES = 30  # the background tasks look about once a second


def make() -> None:
    """Run again, it changes nothing that is there; but the stand-in, which forgets everything when it stops, is told again."""
    users = get_user_model().objects
    if not users.filter(username=LOGIN).exists():
        users.create_superuser(LOGIN, password=PASSWORD)
    _campaign(
        name="Appointments, at human pace",
        session=_session(NUMBER, "waha", "default"),
        text="Hi {{ name }}, see you in {{ city }} at {{ appointment }}. Reply to move it.",
        people="thirty.csv",
    )
    _campaign(
        name="Newsletter, at the speed of the sandbox",
        session=_session(SANDBOX, "sandbox", "newsletter"),
        text='Hello {{ name }}! What is new in {{ city|default:"your town" }} this week.',
        people="two_thousand.csv",
    )
    _session(PHONE, "waha", "phone")
    async_task(f"{__name__}.connect", save=False)


def connect(tries: int = TRIES) -> None:
    """A background task: tell the stand-in where receipts go, and leave it one phone that is to be paired."""
    try:
        for session in Session.objects.filter(name__in=[NUMBER, SANDBOX]):
            pairing.set_up_receipts(session)
        for session in Session.objects.filter(name=PHONE).exclude(status=Session.Status.CONNECTED):
            for verb in ("create", "stop"):
                pairing.apply(session, verb)
    except pairing.Refused:  # it is not up yet
        if tries > 1:
            async_task(f"{__name__}.connect", tries - 1, save=False)


def _session(name: str, channel: str, there: str) -> Session:
    where = {**STAND_IN, "session": there}
    return Session.objects.get_or_create(name=name, defaults={"channel": channel, "settings": where})[0]


def _campaign(*, name: str, session: Session, text: str, people: str) -> None:
    if Campaign.objects.filter(name=name).exists():
        return
    start = database_now() + UNTIL_THE_STAND_IN_IS_UP
    campaign = Campaign.objects.create(name=name, session=session, scheduled_at=start, grace_seconds=24 * 3600)
    CampaignStep.objects.create(campaign=campaign, name="First message", text=text)
    with (EXAMPLES / people).open("rb") as file:
        import_recipients(campaign, file, region="US")
    transitions.schedule(campaign.pk, by="the demo")

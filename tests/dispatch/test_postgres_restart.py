"""A real PostgreSQL of its own is restarted, cleanly and like a crash, under a running scheduler in mid-campaign."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from config.embedded_postgres import server
from sessions_app.sandbox import Sandbox
from tests import processes

pytestmark = pytest.mark.slow
PEOPLE = 60
SET_UP = """
from campaigns import transitions
from campaigns.models import Campaign, CampaignStep, Recipient
from sessions_app.models import Session
where = {"base_url": "%s", "session": "default", "engine": "NOWEB", "rate": 15}
session = Session.objects.create(name="s", channel="sandbox", settings=where)
campaign = Campaign.objects.create(name="c", session=session, safe_hours="OFF")
CampaignStep.objects.create(campaign=campaign, text="Hello {{ name }}")
Recipient.objects.bulk_create(
    Recipient(campaign=campaign, address=f"{12025550100 + n}@c.us", name=f"Person {n}", order=n) for n in range(%d)
)
transitions.start(campaign.pk, by="ana")
"""


@pytest.fixture
def private_server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    data = tmp_path / "postgres"
    server.start(data)
    where = urlencode({"host": str(server.socket_folder(data))})
    yield data, f"postgres://{quote(server.role())}@:{server.PORT}/postgres?{where}"
    server.let_go(data)
    server.stop(data)


def restart(data: Path, how: signal.Signals) -> None:
    os.kill(int((data / "postmaster.pid").read_text().split()[0]), how)
    deadline = time.monotonic() + 20
    while server.is_running(data) and time.monotonic() < deadline:
        time.sleep(0.02)
    server.start(data)


def test_nothing_is_lost_or_doubled_and_it_goes_on_by_itself(private_server, tmp_path):
    data, url = private_server
    with Sandbox() as sandbox:

        def manage(*words: str) -> str:
            code, said, complaint = processes.manage(*words, DATABASE_URL=url)
            assert code == 0, complaint
            return said

        manage("migrate", "--verbosity", "0")
        manage("shell", "--no-imports", "-c", SET_UP % (sandbox.url, PEOPLE))
        scheduler = processes.Process(tmp_path / "scheduler.log", "run_scheduler", DATABASE_URL=url)
        try:
            for share, how in ((0.25, signal.SIGQUIT), (0.6, signal.SIGINT)):  # immediate, then fast
                processes.until(lambda s=share: len(sandbox.messages()) >= PEOPLE * s, "messages under way")
                restart(data, how)
            processes.until(lambda: len(sandbox.messages()) >= PEOPLE, "everybody's message")
            processes.until(lambda: "campaign completed" in scheduler.said, "the end of the campaign")
            scheduler.signal(signal.SIGTERM)
            assert scheduler.wait() == 0
        finally:
            scheduler.kill()
        campaign = json.loads(manage("campaign", "show", "1", "--json"))
    assert campaign["reason"] == f"completed: {PEOPLE} sent"  # none unconfirmed: the process lived and settled when it could
    assert len({message["chatId"] for message in sandbox.messages()}) == len(sandbox.messages()) == PEOPLE
    assert "Traceback" not in scheduler.said

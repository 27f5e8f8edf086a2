"""What the vendor lists becomes rows; what it no longer lists goes; a call that fails changes nothing."""

from collections.abc import Iterator

import pytest
from django.db import connection

from sessions_app import template_sync
from sessions_app.models import MessageTemplate, Session
from sessions_app.providers.base import Deadline, NotPossible
from sessions_app.providers.mock import MockProvider
from sessions_app.providers.whatsapp_cloud_answers import Template
from tests.factories import make_session
from tests.providers.scripted_server import RESET, ScriptedServer, reply

pytestmark = pytest.mark.django_db
TOKEN = "a-token-that-nobody-may-see"
BODY = {"type": "BODY", "text": "Dear {{1}}, parcel {{2}} is ready."}
PHOTO = {"type": "HEADER", "format": "IMAGE"}


def listed(*templates: dict) -> dict:
    return {"data": list(templates)}


def template(name: str = "parcel", language: str = "en_US", status: str = "APPROVED", **changes) -> dict:
    return {"name": name, "language": language, "status": status, "category": "UTILITY", "components": [BODY], **changes}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def session(db, server) -> Session:
    settings = {"phone_number_id": "106540352242922", "business_account_id": "102290129340398", "base_url": server.url}
    return make_session(name="Shop", channel="whatsapp_cloud", settings=settings, credentials={"access_token": TOKEN})


def rows(session: Session) -> list[tuple[str, str, str]]:
    return [(one.name, one.language, one.status) for one in session.templates.all()]


def test_what_is_listed_is_stored_changed_and_removed(session, server):
    other = make_session(channel="whatsapp_cloud")
    MessageTemplate.objects.create(session=other, name="parcel", language="en_US", status="PAUSED", synced_at="2026-01-01T00:00Z")
    server.script(
        reply(200, listed(template(), template(language="pt_BR"), template("sale", components=[PHOTO, BODY]))),
        reply(200, listed(template(status="PAUSED"), template("sale", components=[PHOTO, BODY]), template("new"))),
    )
    assert template_sync.sync(session) == {"listed": 3, "added": 3, "changed": 0, "removed": 0}
    sale = session.templates.get(name="sale")
    assert (sale.category, sale.components, sale.body_parameters, sale.header_parameters) == ("UTILITY", [PHOTO, BODY], 2, 1)
    said = template_sync.sync_and_say(session)
    assert said == '"Shop" has 3 templates, 2 of them approved (1 new, 1 changed, 1 removed).'
    assert rows(session) == [("new", "en_US", "APPROVED"), ("parcel", "en_US", "PAUSED"), ("sale", "en_US", "APPROVED")]
    again = session.templates.get(name="sale")
    assert again.pk == sale.pk and again.synced_at > sale.synced_at
    assert rows(other) == [("parcel", "en_US", "PAUSED")], "another session's are its own"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply(401, {"error": {"code": 190, "message": f"token {TOKEN}"}}), "expired"),
        (reply(500), "that can be understood"),
        (RESET, "could not be asked"),
        (reply(200, listed(template("n" * 600))), "cannot be stored"),
        (reply(200, listed(template(category="null\x00"))), "cannot be stored"),
        (reply(200, listed(template(components=[{"type": "BODY", "text": "null\x00"}]))), "cannot be stored"),
    ],
    ids=["token", "500", "cut", "long", "null", "null inside"],
)
def test_a_call_that_fails_changes_nothing_and_says_why(session, server, answer, words):
    server.script(reply(200, listed(template())), answer)
    template_sync.sync(session)
    said = template_sync.sync_and_say(session)
    assert said.startswith('The templates of "Shop" stay as they were. ') and words in said and said.endswith(".")
    assert TOKEN not in said
    assert rows(session) == [("parcel", "en_US", "APPROVED")]


def test_one_that_is_listed_twice_is_stored_once(session, server):
    server.script(reply(200, listed(template(status="PENDING"), template())))
    assert template_sync.sync(session)["listed"] == 1


def test_none_at_the_vendor_is_an_answer(session, server):
    server.script(reply(200, listed(template())), reply(200, listed()))
    template_sync.sync(session)
    assert template_sync.sync(session) == {"listed": 0, "added": 0, "changed": 0, "removed": 1}


def test_a_session_that_is_gone_meanwhile(session, server):
    server.script(reply(200, listed(template())))
    Session.objects.filter(pk=session.pk).delete()
    with pytest.raises(NotPossible, match="not there any more"):
        template_sync.sync(session)


def test_other_channels_have_none():
    with pytest.raises(NotPossible, match='Channel "mock" has no templates'):
        template_sync.sync(make_session())
    with pytest.raises(NotPossible, match='Channel "pigeon" has no templates'):
        template_sync.sync(make_session(channel="pigeon"))


class WatchingProvider(MockProvider):
    has_templates = True
    seen: list[tuple[bool, float]] = []

    def list_templates(self, deadline: Deadline) -> list[Template]:
        self.seen.append((connection.in_atomic_block, deadline.remaining))
        return [Template("parcel", "en_US", "APPROVED", "UTILITY", (), 0, 0)]


class BrokenProvider(MockProvider):
    has_templates = True

    def list_templates(self, deadline: Deadline) -> list[Template]:
        raise KeyError(TOKEN)


@pytest.fixture
def channels(settings):
    settings.CHANNELS = {
        **settings.CHANNELS,
        "watching": f"{__name__}.WatchingProvider",
        "broken": f"{__name__}.BrokenProvider",
    }


@pytest.mark.django_db(transaction=True)
def test_the_vendor_is_asked_outside_of_a_transaction_for_at_most_twenty_seconds(channels):
    template_sync.sync(make_session(channel="watching"))
    in_transaction, remaining = WatchingProvider.seen.pop()
    assert not in_transaction and 15 < remaining <= 20


def test_a_bug_of_the_provider_is_a_sentence(channels):
    said = template_sync.sync_and_say(make_session(name="Shop", channel="broken"))
    assert "The call failed inside Dry run (sends nothing): KeyError." in said and TOKEN not in said


@pytest.fixture
def order(monkeypatch) -> list[str]:
    asked: list[str] = []
    really = template_sync.sync
    monkeypatch.setattr(template_sync, "sync", lambda session: (asked.append(session.name), really(session))[1])
    return asked


def test_all_are_synced_the_one_that_waited_longest_first(channels, order):
    make_session()
    for name, moment in (("late", "2026-11-29T00:00Z"), ("early", "2026-11-01T00:00Z"), ("never", None)):
        session = make_session(name=name, channel="watching")
        if moment:
            MessageTemplate.objects.create(session=session, name="x", language="en", status="APPROVED", synced_at=moment)
    make_session(name="broken", channel="broken")
    assert template_sync.sync_all() == {"synced": 3, "failed": 1, "left": 0}
    assert order == ["never", "broken", "early", "late"]


def test_what_there_is_no_time_for_is_left_for_the_next_turn(channels, monkeypatch):
    monkeypatch.setattr(template_sync, "ALL_TAKE_AT_MOST", template_sync.timedelta(0))
    make_session(channel="watching")
    assert template_sync.sync_all() == {"synced": 0, "failed": 0, "left": 1}
    assert not MessageTemplate.objects.exists()

"""What providers call, over HTTP: who comes in, what is stored, how much is read, and that all of it is applied within seconds."""

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.conf import settings as project
from django.test import Client
from django_q.models import OrmQ
from django_q.signing import SignedPackage

from dispatch.models import DispatchLog, InboundMessage, WebhookEvent
from dispatch.views.webhooks import BODY_AT_MOST
from sessions_app.models import Session
from tests.factories import make_campaign, make_log, make_run, make_session, make_step
from tests.fakes import FakeHooks
from tests.processes import environment, processes, until

pytestmark = pytest.mark.django_db
HOOKS = {"channel": "fake_hooks", "credentials": {"webhook_secret": FakeHooks.SECRET}}
NOON = "2026-06-10T12:00:00+00:00"
E = WebhookEvent.State


@pytest.fixture(autouse=True)
def hooks(settings, fake):
    settings.CHANNELS = {**settings.CHANNELS, "fake_hooks": "tests.fakes.FakeHooks"}


@pytest.fixture
def session(db) -> Session:
    return make_session(**HOOKS)


def url_of(session: Session) -> str:
    return f"/api/webhooks/{session.uuid}/"


def told(event_id: str = "evt-1", **more) -> dict[str, object]:
    return {"id": event_id, "kind": "message", "sender": "1@c.us", "at": NOON, **more}


def post(session: Session, *items, client: Client | None = None, secret: str = FakeHooks.SECRET, body: bytes | None = None):
    body = json.dumps(items).encode() if body is None else body
    headers = {"x-signature": FakeHooks.signature(body, secret)}
    return (client or Client()).post(url_of(session), body, content_type="application/json", headers=headers)


# -- who comes in --------------------------------------------------------------------------------------------------------------


def test_a_signed_request_is_stored_and_answered(session):
    answer = post(session, told("a"), told("b"), client=Client(enforce_csrf_checks=True))
    assert (answer.status_code, answer.content, answer["Cache-Control"]) == (200, b"ok", "no-store")
    rows = WebhookEvent.objects.order_by("apply_at").values_list("event_id", "state", "payload__kind")
    assert list(rows) == [("a", E.RECEIVED, "message"), ("b", E.RECEIVED, "message")]
    assert not InboundMessage.objects.exists(), "that is for the background tasks"


def test_the_address_works_without_its_slash(session):
    body = b"[]"
    headers = {"x-signature": FakeHooks.signature(body)}
    assert Client().post(url_of(session)[:-1], body, content_type="application/json", headers=headers).status_code == 200


def test_an_address_of_nobody_and_a_wrong_signature_look_alike(session):
    wrong = post(session, told(), secret="another")
    nobody = Client().post(f"/api/webhooks/{uuid4()}/", b"[]", content_type="application/json")
    assert (wrong.status_code, wrong.content) == (nobody.status_code, nobody.content) == (401, b'{"error": "not accepted"}')


def test_the_signature_is_of_the_raw_bytes_and_comes_before_the_parsing(session):
    assert post(session, body=b"[ ]").status_code == 200
    assert post(session, body=b"nonsense").status_code == 400
    answer = Client().post(
        url_of(session), b"nonsense", content_type="application/json", headers={"x-signature": FakeHooks.signature(b"[]")}
    )
    assert answer.status_code == 401, "not even looked at"


def test_wrong_signatures_do_not_fill_the_table(session):
    for _ in range(20):
        assert post(session, told(), secret="another").status_code == 401
    row = WebhookEvent.objects.get()
    assert (row.state, row.kind, row.tries, row.error) == (E.FAILED, "refused", 20, "the signature is missing or wrong")
    assert not OrmQ.objects.exists()


def test_a_challenge_is_repeated(session):
    headers = {"x-signature": FakeHooks.signature(b"")}
    answer = Client().get(url_of(session) + "?challenge=<b>42", headers=headers)
    assert (answer.content, answer["Content-Type"]) == (b"<b>42", "text/plain")
    assert not WebhookEvent.objects.exists()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD"])
def test_other_methods_are_refused(session, method):
    answer = Client().generic(method, url_of(session))
    assert (answer.status_code, answer["Allow"]) == (405, "GET, POST")


def test_a_channel_that_takes_none_says_so(db):
    session = make_session(channel="fake")
    assert post(session, told()).status_code == 405


@pytest.mark.parametrize("broken", ["credentials", "channel", "provider"])
def test_what_is_broken_on_our_side_is_told_again_by_the_vendor(session, broken, monkeypatch, caplog):
    if broken == "credentials":
        Session.objects.update(sealed_credentials="not sealed")
    elif broken == "channel":
        Session.objects.update(channel="gone")
    else:
        monkeypatch.setattr(FakeHooks, "accept_webhook", lambda *_: {}["the secret text"])
    assert post(session, told()).status_code == 500
    assert WebhookEvent.objects.get().state == E.FAILED
    assert "the secret text" not in caplog.text


# -- how much is read ----------------------------------------------------------------------------------------------------------


def test_a_megabyte_is_taken_and_a_byte_more_is_not(session):
    padding = BODY_AT_MOST - len(json.dumps([told(text="")]))
    assert post(session, told(text="x" * padding)).status_code == 200
    assert post(session, told("evt-2", text="x" * (padding + 1))).status_code == 413
    assert WebhookEvent.objects.count() == 1


def test_chunks_that_the_server_does_not_put_together_are_refused_and_not_taken_for_empty(session):
    headers = {"x-signature": FakeHooks.signature(b""), "Transfer-Encoding": "chunked"}
    assert Client().post(url_of(session), b"", content_type="application/json", headers=headers).status_code == 411


# -- stored once, asked once ---------------------------------------------------------------------------------------------------


def test_a_replay_changes_nothing(session):
    for _ in range(3):
        assert post(session, told()).status_code == 200
    assert WebhookEvent.objects.count() == 1


def test_two_sessions_may_use_the_same_ids(session):
    other = make_session(**HOOKS)
    assert post(session, told()).status_code == post(other, told()).status_code == 200
    assert WebhookEvent.objects.count() == 2


def test_one_task_is_asked_for_however_many_requests_come(session):
    for number in range(5):
        post(session, told(f"evt-{number}"))
    assert [SignedPackage.loads(row.payload)["func"] for row in OrmQ.objects.all()] == ["dispatch.tasks.apply_webhooks"]


def test_a_queue_that_is_away_costs_a_minute_and_no_event(session, monkeypatch):
    monkeypatch.setattr("dispatch.views.webhooks.async_task", lambda *_, **__: 1 / 0)
    assert post(session, told()).status_code == 200
    assert WebhookEvent.objects.get().state == E.RECEIVED


# -- real processes ------------------------------------------------------------------------------------------------------------


@contextmanager
def gunicorn(folder: Path, **variables: str) -> Iterator[str]:
    """The web server as it runs in production, its port apart. Gives its address."""
    log = folder / "web.log"
    words = ["config.wsgi", "--config", "deploy/gunicorn.conf.py", "--bind", "127.0.0.1:0", "--workers", "1"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *words], cwd=project.BASE_DIR, env=environment(**variables), stdout=output, stderr=output
        )
    try:
        until(lambda: "Booting worker" in log.read_text(), "gunicorn")
        found = re.search(r"Listening at: http://(\S+)", log.read_text())
        assert found is not None
        yield found[1]
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def own_settings(tmp_path) -> dict[str, str]:
    """Variables of processes that know the channel of these tests."""
    lines = "from config.settings import *\nCHANNELS = {**CHANNELS, 'fake_hooks': 'tests.fakes.FakeHooks'}\n"
    (tmp_path / "own_settings.py").write_text(lines)
    return {"DJANGO_SETTINGS_MODULE": "own_settings", "PYTHONPATH": os.pathsep.join([str(tmp_path), str(project.BASE_DIR)])}


def send(address: str, path: str, body: bytes | Iterator[bytes], signed: bytes, **headers: str) -> int:
    """An iterator goes out in chunks, without a length."""
    connection = http.client.HTTPConnection(urlsplit(f"//{address}").netloc, timeout=20)
    try:
        connection.request(
            "POST", path, body, {"x-signature": FakeHooks.signature(signed), **headers}, encode_chunked=not isinstance(body, bytes)
        )
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_what_is_told_to_the_web_server_is_in_the_ledger_seconds_later(tmp_path, own_settings):
    run = make_run(make_step(make_campaign(session=make_session(**HOOKS))), rows_complete=True)
    log = make_log(run, status=DispatchLog.Status.UNCONFIRMED, provider_message_id="p-1")
    path = url_of(run.campaign.session)
    with processes(tmp_path) as start, gunicorn(tmp_path, **own_settings) as address:
        start("worker", **own_settings)
        receipt = {"id": "r", "kind": "receipt", "state": "READ", "at": NOON, "message_id": "p-1"}
        body = json.dumps([receipt, told("m", sender=log.address)]).encode()

        assert send(address, path, body, b"another") == 401
        assert send(address, path, iter([body[:9], body[9:]]), body, **{"Transfer-Encoding": "chunked"}) == 200
        until(is_read(log), "the receipt", seconds=15)
        until(lambda: InboundMessage.objects.filter(recipient=log.recipient).exists(), "the reply", seconds=5)

        large = (b"x" * 65536 for _ in range(BODY_AT_MOST // 65536 + 1))
        assert send(address, path, large, b"", **{"Transfer-Encoding": "chunked"}) == 413
        assert send(address, path, body, body) == 200, "the next one is served"
    assert WebhookEvent.objects.filter(state=E.APPLIED).count() == 2


def is_read(log: DispatchLog) -> Callable[[], bool]:
    return lambda: DispatchLog.objects.filter(pk=log.pk, status="SENT", read_at__isnull=False).exists()

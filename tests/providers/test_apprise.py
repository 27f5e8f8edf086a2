"""Through Apprise's own plugins, against a real HTTP server. A call needs 10 s of room, and takes milliseconds."""

import logging
import logging.handlers
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from sessions_app.providers.apprise import AppriseCredentials, AppriseProvider, AppriseSettings, why_not
from sessions_app.providers.base import Answer, ErrorCode, Message, MessageType, SendResult, SessionConfig, SessionState
from tests.providers.contract import REF, SECRET, TEXT, ChannelContract, soon
from tests.providers.scripted_server import CLOSE, RESET, ScriptedServer, reply
from tests.providers.scripted_server import Answer as HTTPAnswer

TOKEN = quote(SECRET, safe="")


@pytest.fixture(autouse=True)
def _registered(settings: Any) -> None:
    settings.CHANNELS = {**settings.CHANNELS, "apprise": "sessions_app.providers.apprise.AppriseProvider"}
    settings.DEBUG = True  # so that a server on this machine may be called


class TestApprise(ChannelContract):
    provider = AppriseProvider
    address = "+12025550101"

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with ScriptedServer(usual=reply(200, {})) as self.server:
            self.credentials = {"url": f"json://user:{TOKEN}@127.0.0.1:{self.server.port}/{{address}}"}  # type: ignore[misc]
            yield

    def send(self, *script: HTTPAnswer, url: str = "", seconds: float = 15, **more: Any) -> SendResult:
        self.server.script(*script)
        provider = AppriseProvider(SessionConfig(credentials={"url": url or self.credentials["url"]}))
        return provider.send(self.address, Message(**{"type": MessageType.TEXT, "text": TEXT, **more}), REF, soon(seconds))

    def test_what_arrives(self) -> None:
        result = self.send(subject="Your parcel")
        assert (result.answer, result.message_id) == (Answer.ACCEPTED, "")
        [request] = self.server.requests
        assert request.path == "/+12025550101"  # Apprise decodes what we encoded
        assert (request.json()["title"], request.json()["message"].splitlines()) == ("Your parcel", TEXT.splitlines())
        assert request.json()["attachments"] == []

    def test_html_becomes_what_the_service_takes(self) -> None:
        self.send(html="<p>Dear <b>Ana</b></p>", url=f"{self.credentials['url']}?format=text")
        assert self.server.requests[0].json()["message"].strip() == "Dear Ana"

    def test_without_the_placeholder_the_address_is_ignored(self) -> None:
        self.send(url=f"json://127.0.0.1:{self.server.port}/fixed")
        assert self.server.requests[0].path == "/fixed"

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (reply(401, {}), ErrorCode.DISCONNECTED),
            (reply(403, {}), ErrorCode.DISCONNECTED),
            (reply(429, {}, headers={"Retry-After": "5"}), ErrorCode.RATE_LIMIT),
            (reply(400, {}), ErrorCode.FATAL),
            (reply(404, {}), ErrorCode.INVALID_RECIPIENT),
            (reply(410, {}), ErrorCode.INVALID_RECIPIENT),
            (reply(418, {}), ErrorCode.UNCONFIRMED),
            (reply(500, {}), ErrorCode.UNCONFIRMED),
            (reply(503, {}), ErrorCode.UNCONFIRMED),
            (reply(302, b"", headers={"Location": "/elsewhere"}), ErrorCode.UNCONFIRMED),
            (RESET, ErrorCode.UNCONFIRMED),
            (CLOSE, ErrorCode.UNCONFIRMED),
        ],
        ids=["401", "403", "429", "400", "404", "410", "418", "500", "503", "302", "reset", "close"],
    )
    def test_each_answer(self, answer: HTTPAnswer, code: ErrorCode) -> None:
        result = self.send(answer)
        assert (result.answer, result.code) == (Answer.REFUSED, code)
        assert len(self.server.requests) == 1, "neither retried nor redirected"

    def test_an_unknown_target_that_is_the_same_for_all_is_for_a_person_to_mend(self) -> None:
        assert self.send(reply(404, {}), url=f"json://127.0.0.1:{self.server.port}/fixed").code == ErrorCode.MISCONFIGURED

    def test_a_silent_server_is_a_doubt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sessions_app.providers.apprise.SOCKET_SECONDS", 0.3)
        assert self.send(HTTPAnswer(then="hang")).code == ErrorCode.UNCONFIRMED

    def test_a_refused_connection_may_be_tried_again(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        assert self.send(url=f"json://127.0.0.1:{port}/x").code == ErrorCode.TRANSIENT

    def test_without_log_lines_nothing_is_certain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(logging.getLogger("apprise"), "setLevel", lambda level: None)
        logging.getLogger("apprise").level = logging.CRITICAL + 1
        logging.getLogger("apprise")._cache.clear()  # type: ignore[attr-defined]
        assert self.send(reply(401, {})).code == ErrorCode.UNCONFIRMED

    def test_a_part_that_was_sent_is_a_doubt(self) -> None:
        provider = self.make()
        assert provider._read(["Sent JSON POST notification.", "Failed: error=429."], []).code == ErrorCode.UNCONFIRMED  # type: ignore[attr-defined]
        assert provider._read(["Failed: error=401.", "Failed: error=404."], []).code == ErrorCode.UNCONFIRMED  # type: ignore[attr-defined]

    def test_a_call_that_could_outlast_the_deadline_is_not_begun(self) -> None:
        assert self.send(seconds=9.9).answer == Answer.UNSENT
        assert self.server.connections == 0

    def test_retries_and_long_waits_in_the_url_are_not_obeyed(self) -> None:
        assert self.send(reply(500, {}), url=f"{self.credentials['url']}?retry=3&wait=1&rto=60&redirect=yes").code == ErrorCode.UNCONFIRMED
        assert len(self.server.requests) == 1

    @pytest.mark.parametrize("type", [one for one in MessageType if one != MessageType.TEXT])
    def test_only_texts(self, type: MessageType) -> None:
        assert self.send(type=type, media_url="/etc/passwd").code == ErrorCode.MISCONFIGURED
        assert self.send(text=" ").code == ErrorCode.FATAL
        assert self.server.connections == 0

    def test_nothing_secret_in_details_or_logs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Seen at the root logger, where ours are written: pytest's own capture also listens to those that do not propagate."""
        ours = logging.handlers.BufferingHandler(10_000)
        monkeypatch.setattr(logging.getLogger(), "handlers", [ours])
        monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
        results = [self.send(reply(status, f"{SECRET} {TEXT}".encode())) for status in (400, 401, 404, 429, 500)]
        check = self.make().check_session(soon())
        assert check.state == SessionState.CONNECTED
        for text in (*(one.detail for one in results), check.detail, *(record.getMessage() for record in ours.buffer)):
            for secret in (SECRET, TOKEN, "2025550101", "Dear Ana"):
                assert secret not in text

    def test_a_name_that_apprise_does_not_know(self) -> None:
        provider = AppriseProvider(SessionConfig(credentials={"url": "nonsense://x"}))
        assert provider.check_session(soon()).state == SessionState.DISCONNECTED
        assert self.send(url="nonsense://x").code == ErrorCode.MISCONFIGURED


@pytest.mark.parametrize(
    "url",
    [
        "json://hooks.example.org/a",
        "jsons://user:pass@hooks.example.org/{address}",
        "ntfys://ntfy.example.org/{address}",
        "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
        "tgram://123456789:abcdefg_hijklmnop/{address}",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general",
    ],
)
def test_urls_that_may_be_used(url: str, settings: Any) -> None:
    settings.DEBUG = False
    assert why_not(url) == ""
    assert AppriseCredentials({"url": url}).is_valid()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "nonsense://x",
        "json://a.example.org json://b.example.org",
        "json://127.0.0.1/x",
        "json://10.0.0.1/x",
        "json://169.254.169.254/latest",
        "json://localhost/x",
        "gotify://intranet/AbCdEfGhIjKlMnO",
        "mailto://user:pass@example.org",
        "syslog://",
        "dbus://",
        "mqtt://broker.example.org/topic",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#a/#b",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#a?template=/etc/passwd",
        "fcm://project@apikey/device?keyfile=/etc/passwd",
        "json://hooks.example.org/a?keyfile=/etc/passwd",
        "json://hooks.example.org/a?overflow=split",
        "file:///etc/passwd",
    ],
)
def test_urls_that_may_not_be_used(url: str, settings: Any) -> None:
    settings.DEBUG = False
    assert why_not(url)
    assert not AppriseCredentials({"url": url}).is_valid()
    provider = AppriseProvider(SessionConfig(credentials={"url": url}))
    assert provider.send("a", Message(MessageType.TEXT, text="x"), REF, soon(15)).code == ErrorCode.MISCONFIGURED


def test_the_form_shows_nothing() -> None:
    assert SECRET not in str(AppriseCredentials({"url": f"json://a:{SECRET}@b.example.org"}))
    assert AppriseSettings({}).is_valid()
    assert not AppriseSettings({"rate": "11"}).is_valid()

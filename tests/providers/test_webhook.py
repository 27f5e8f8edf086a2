import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessions_app.pacing import Metered
from sessions_app.providers.base import (
    Answer,
    ErrorCode,
    Inbound,
    Message,
    MessageType,
    Receipt,
    ReceiptState,
    SessionConfig,
    SessionState,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)
from sessions_app.providers.webhook import WebhookCredentials, WebhookProvider, WebhookSettings
from tests.providers.contract import REF, SECRET, TEXT, HTTPChannelContract, WebhookContract, soon
from tests.providers.scripted_server import CLOSE, reply

SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # of the published example
NOW = 1796050000
CHOICES = {"on_404": "MISCONFIGURED", "on_422": "MISCONFIGURED"}


def signature(secret: str, webhook_id: str, at: int | str, body: bytes) -> str:
    """Written out once more, so that the provider is not checked with itself."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.new(key, f"{webhook_id}.{at}.".encode() + body, hashlib.sha256).digest()).decode()


class TestWebhook(HTTPChannelContract, WebhookContract):
    provider = WebhookProvider
    address = "ana-4711-at-acme"
    credentials = {"signing_secret": SIGNING, "header_value": SECRET}
    settings = {"session": "support", "header_name": "X-Api-Key"}
    accepted = reply(201, {"id": "m-77"})
    accepted_id = "m-77"

    @pytest.fixture(autouse=True)
    def _registered(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        settings.DEBUG = True  # the server of these tests is on loopback
        monkeypatch.setattr(WebhookProvider, "clock", staticmethod(lambda: NOW + 0.7))

    def make(self, **settings: Any) -> Any:
        url = settings.pop("base_url", self.server.url)
        return super().make(**{"url": f"{url}/hook" if "://" in url else url, **settings})

    # -- requests --------------------------------------------------------------------------------------------------------------

    def test_the_request_is_as_documented(self) -> None:
        self.send()
        request = self.server.requests[0]
        assert (request.method, request.path) == ("POST", "/hook")
        assert request.json() == {
            "id": str(REF),
            "to": "ana-4711-at-acme",
            "type": "TEXT",
            "session": "support",
            "text": TEXT,
            "link_preview": True,
        }
        assert request.headers["content-type"] == "application/json"
        assert request.headers["x-api-key"] == SECRET
        assert request.headers["idempotency-key"] == request.headers["webhook-id"] == str(REF)
        assert request.headers["webhook-timestamp"] == str(NOW)
        assert request.headers["webhook-signature"] == signature(SIGNING, str(REF), NOW, request.body)

    def test_the_published_example_of_a_signature(self) -> None:
        found = self.make()._signature("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
        assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    @pytest.mark.parametrize("type", [MessageType.IMAGE, MessageType.VIDEO, MessageType.AUDIO, MessageType.DOCUMENT])
    def test_a_file(self, type: MessageType) -> None:
        self.make(session="").send(self.address, replace(self.message(type), filename="a.pdf", subject="Hi"), REF, soon())
        assert self.server.requests[0].json() == {
            "id": str(REF),
            "to": "ana-4711-at-acme",
            "type": type.value,
            "media_url": "https://example.org/a.jpg",
            "caption": TEXT,
            "filename": "a.pdf",
            "subject": "Hi",
        }

    def test_a_template_and_an_email(self) -> None:
        template = Message(
            MessageType.TEMPLATE, "Hi Ana", template_name="hi", template_language="pt_BR", template_components=({"type": "body"},)
        )
        email = Message(MessageType.TEXT, "Hi Ana", subject="Hello", html="<p>Hi Ana</p>", link_preview=False)
        for message in (template, email):
            assert self.make().send(self.address, message, REF, soon()).answer == Answer.ACCEPTED
        first, second = (request.json() for request in self.server.requests)
        assert first["template"] == {"name": "hi", "language": "pt_BR", "components": [{"type": "body"}]}
        assert (first["text"], "template" in second) == ("Hi Ana", False)
        assert (second["subject"], second["html"], second["link_preview"]) == ("Hello", "<p>Hi Ana</p>", False)

    # -- answers ---------------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("path", "body", "expected"),
        [
            ("id", {"id": 77}, "77"),
            ("data.id", {"data": {"id": "a"}}, "a"),
            ("messages.0.id", {"messages": [{"id": "b"}]}, "b"),
            ("0.id", [{"id": "c"}], "c"),
            ("1.id", [{"id": "c"}], ""),
            ("-1.id", [{"id": "c"}], ""),
            ("id", {"id": {"a": 1}}, ""),
            ("id", {"id": True}, ""),
            ("id", {"id": "x" * 201}, ""),
            ("data.id", {"data": "text"}, ""),
            ("id", {}, ""),
            ("id", None, ""),
            ("id", b"OK", ""),
            ("", {"id": "a", "": "b"}, ""),
        ],
        ids=str,
    )
    def test_the_id_is_where_the_form_says(self, path: str, body: Any, expected: str) -> None:
        result = self.send(reply(200, body), message_id_path=path)
        assert (result.answer, result.message_id) == (Answer.ACCEPTED, expected)

    @pytest.mark.parametrize("status", [200, 201, 202, 204])
    def test_each_2xx_accepts(self, status: int) -> None:
        assert self.send(reply(status)).answer == Answer.ACCEPTED

    @pytest.mark.parametrize(
        ("status", "code", "honouring"),
        [
            (301, ErrorCode.MISCONFIGURED, ErrorCode.MISCONFIGURED),
            (303, ErrorCode.UNCONFIRMED, ErrorCode.UNCONFIRMED),
            (308, ErrorCode.MISCONFIGURED, ErrorCode.MISCONFIGURED),
            (400, ErrorCode.FATAL, ErrorCode.FATAL),
            (401, ErrorCode.DISCONNECTED, ErrorCode.DISCONNECTED),
            (403, ErrorCode.DISCONNECTED, ErrorCode.DISCONNECTED),
            (404, ErrorCode.MISCONFIGURED, ErrorCode.MISCONFIGURED),
            (408, ErrorCode.UNCONFIRMED, ErrorCode.TRANSIENT),
            (409, ErrorCode.FATAL, ErrorCode.FATAL),
            (410, ErrorCode.DISCONNECTED, ErrorCode.DISCONNECTED),
            (422, ErrorCode.MISCONFIGURED, ErrorCode.MISCONFIGURED),
            (425, ErrorCode.TRANSIENT, ErrorCode.TRANSIENT),
            (429, ErrorCode.RATE_LIMIT, ErrorCode.RATE_LIMIT),
            (500, ErrorCode.UNCONFIRMED, ErrorCode.TRANSIENT),
            (503, ErrorCode.UNCONFIRMED, ErrorCode.TRANSIENT),
        ],
    )
    def test_each_status(self, status: int, code: ErrorCode, honouring: ErrorCode) -> None:
        answer = reply(status, {"error": "because of it"})
        assert self.send(answer).code == code
        result = self.send(answer, honours_idempotency=True)
        assert (result.code, result.http_status) == (honouring, status)
        assert "because of it" in result.detail

    @pytest.mark.parametrize("code", [ErrorCode.MISCONFIGURED, ErrorCode.INVALID_RECIPIENT, ErrorCode.FATAL])
    def test_what_404_and_422_mean_is_a_choice(self, code: ErrorCode) -> None:
        assert self.send(reply(404), on_404=code.value).code == code
        assert self.send(reply(422), on_422=code.value).code == code
        assert self.send(reply(422), on_404=code.value).code == ErrorCode.MISCONFIGURED
        assert self.send(reply(404), on_404="ACCEPTED").code == ErrorCode.MISCONFIGURED

    def test_a_503_that_asks_to_wait_is_one_to_a_receiver_that_drops_doubles_only(self) -> None:
        answer = reply(503, {}, headers={"Retry-After": "60"})
        assert self.send(answer).code == ErrorCode.UNCONFIRMED
        result = self.send(answer, honours_idempotency=True)
        assert (result.code, result.retry_after) == (ErrorCode.RATE_LIMIT, timedelta(seconds=60))

    def test_a_lost_answer_stays_a_doubt(self) -> None:
        self.doubtful(self.send(CLOSE, honours_idempotency=True))

    def test_the_same_message_has_the_same_id_at_each_try(self) -> None:
        self.send(reply(500), honours_idempotency=True)
        self.send(honours_idempotency=True)
        assert len({request.headers["idempotency-key"] for request in self.server.requests}) == 1
        assert len({request.body for request in self.server.requests}) == 1

    # -- the session -----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:8000/x", "http://localhost:8000", "http://[::1]:8000", "http://10.0.0.1", "http://metadata.internal"]
    )
    def test_no_local_address_is_called_in_production(self, url: str, settings: Any) -> None:
        settings.DEBUG = False
        provider = WebhookProvider(SessionConfig(self.credentials, {"url": url}))
        assert provider.send(self.address, self.message(), REF, soon()).code == ErrorCode.MISCONFIGURED
        check = provider.check_session(soon())
        assert check.state == SessionState.DISCONNECTED and "address" in check.detail
        assert provider.origin == ""
        assert "url" in WebhookSettings({"url": url, **CHOICES}).errors

    def test_while_developing_this_machine_may_be_called_and_its_network_not(self) -> None:
        assert WebhookSettings({"url": "http://127.0.0.1:8000/x", **CHOICES}).is_valid()
        assert "url" in WebhookSettings({"url": "http://10.0.0.1/x", **CHOICES}).errors

    @pytest.mark.parametrize(
        ("credentials", "values", "words"),
        [
            ({}, {}, "signing secret"),
            ({"signing_secret": "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, {}, "signing secret"),
            ({"signing_secret": "whsec_###"}, {}, "signing secret"),
            ({"signing_secret": SIGNING}, {"header_name": "X-Api-Key"}, "extra header"),
            ({"signing_secret": SIGNING}, {"url": ""}, "address is empty"),
        ],
        ids=["none", "prefix", "base64", "header", "url"],
    )
    def test_what_is_missing_is_said(self, credentials: dict[str, str], values: dict[str, str], words: str) -> None:
        provider = WebhookProvider(SessionConfig(credentials, {"url": self.server.url, **values}))
        result = provider.send(self.address, self.message(), REF, soon())
        assert result.code == ErrorCode.MISCONFIGURED and words in result.detail
        assert words in provider.check_session(soon()).detail
        assert self.server.connections == 0

    def test_the_rate_is_chosen(self) -> None:
        assert self.make().metered == self.make(rate=51).metered == Metered(rate=5, burst=5)
        assert self.make(rate=50).metered == Metered(rate=50, burst=10)
        assert self.make(rate=0.5).metered == Metered(rate=0.5, burst=1)

    # -- webhooks --------------------------------------------------------------------------------------------------------------

    def told(self) -> list[dict[str, Any]]:
        return [
            {"type": "receipt", "id": "m-77", "state": "DELIVERED", "at": "2026-11-30T12:00:00Z"},
            {"type": "receipt", "ref": str(REF), "state": "read", "at": NOW},
            {"type": "message", "from": " ana-4711 ", "text": "STOP", "at": "2026-11-30T09:00:00-03:00", "id": "in-1", "name": "Ana"},
        ]

    def signed(self, body: bytes = b"", *, secret: str = SIGNING, at: int | str = NOW, **changes: Any) -> WebhookRequest:
        body = body or json.dumps(self.told()).encode()
        headers = {"webhook-id": "evt-1", "webhook-timestamp": str(at), "webhook-signature": signature(secret, "evt-1", at, body)}
        return replace(WebhookRequest("POST", "https://paceline.example/api/webhooks/x/", headers, {}, body), **changes)

    def forged(self) -> WebhookRequest:
        return self.signed(secret="whsec_" + base64.b64encode(b"x" * 24).decode())

    def unsigned(self) -> WebhookRequest:
        return self.signed(headers={"webhook-id": "evt-1", "webhook-timestamp": str(NOW)})

    def test_receipts_and_a_reply(self) -> None:
        events = [event for item in self._items(self.signed()) for event in self.make().read_event(item)]
        assert events == [
            Receipt(ReceiptState.DELIVERED, datetime(2026, 11, 30, 12, tzinfo=UTC), message_id="m-77"),
            Receipt(ReceiptState.READ, datetime.fromtimestamp(NOW, UTC), client_ref=REF),
            Inbound("ana-4711", datetime(2026, 11, 30, 12, tzinfo=UTC), "STOP", "in-1", "Ana"),
        ]

    def test_a_failure_has_a_code(self) -> None:
        base = {"type": "receipt", "id": "m-77", "state": "FAILED", "at": NOW, "detail": f"no such box {SECRET}"}
        codes = []
        for code in ({}, {"code": "INVALID_RECIPIENT"}, {"code": "UNCONFIRMED"}):
            [event] = self.make().read_event(WebhookItem("1", "receipt", base | code))
            assert isinstance(event, Receipt) and "no such box" in event.detail and SECRET not in event.detail
            codes.append(event.code)
        assert codes == [ErrorCode.FATAL, ErrorCode.INVALID_RECIPIENT, ErrorCode.FATAL]

    @pytest.mark.parametrize("at", [NOW - 301, NOW + 302, "", "soon", f"{NOW}.0"])
    def test_an_old_or_odd_time_is_refused(self, at: int | str) -> None:
        assert self._refused(self.signed(at=at)).status == 401

    @pytest.mark.parametrize("secret", ["", "whsec_", "whsec_###"])
    def test_nobody_signs_with_an_empty_secret(self, secret: str) -> None:
        bare = self.provider(SessionConfig(credentials={"signing_secret": secret}))
        with pytest.raises(WebhookRefused):
            bare.accept_webhook(self.signed(secret="whsec_"))

    def test_the_time_and_the_id_are_signed(self) -> None:
        headers = self.signed().headers
        for name, value in (("webhook-timestamp", str(NOW + 1)), ("webhook-id", "evt-2")):
            assert self._refused(self.signed(headers={**headers, name: value})).status == 401

    def test_one_of_several_signatures_is_enough(self) -> None:
        headers = self.signed().headers
        several = f"v1,AAAA v2,x {headers['webhook-signature']}"
        assert self._items(self.signed(headers={**headers, "webhook-signature": several}))

    def test_one_webhook_id_for_two_things_loses_neither(self) -> None:
        first, second = (self._items(self.signed(json.dumps(one).encode()))[0] for one in self.told()[:2])
        assert first.event_id != second.event_id

    def test_an_unknown_thing_is_kept_and_ignored(self) -> None:
        [item] = self._items(self.signed(b'{"type": "invoice", "total": 7}'))
        assert (item.kind, self.make().read_event(item)) == ("invoice", [])

    @pytest.mark.parametrize(
        "told",
        [
            {"type": "receipt", "id": "m", "state": "SEEN", "at": NOW},
            {"type": "receipt", "id": "m", "at": NOW},
            {"type": "receipt", "state": "READ", "at": NOW},
            {"type": "receipt", "ref": "7", "state": "READ", "at": NOW},
            {"type": "receipt", "id": "m", "state": "READ"},
            {"type": "receipt", "id": "m", "state": "READ", "at": "2026-11-30T12:00:00"},
            {"type": "receipt", "id": "m", "state": "READ", "at": 1e30},
            {"type": "receipt", "id": "m", "state": "READ", "at": "yesterday"},
            {"type": "message", "text": "x", "at": NOW},
            {"type": "message", "from": " ", "at": NOW},
            {"type": "message", "from": "ana"},
        ],
        ids=lambda told: "-".join(map(str, told.values())).replace(" ", "_"),
    )
    def test_half_a_thing_is_a_value_error(self, told: dict[str, Any]) -> None:
        with pytest.raises(ValueError):
            self.make().read_event(WebhookItem("1", told["type"], told))


# -- forms ---------------------------------------------------------------------------------------------------------------------


def test_the_form_is_short_to_fill_in() -> None:
    form = WebhookSettings({"url": " https://hooks.example.org/x ", **CHOICES})
    assert form.errors == {}
    assert form.cleaned_data["url"] == "https://hooks.example.org/x"
    assert form.cleaned_data["honours_idempotency"] is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", ""),
        ("url", "example.org"),
        ("url", "https://ana:secret@example.org"),
        ("url", "http://localhost:8000"),
        ("rate", "0"),
        ("rate", "51"),
        ("message_id_path", "data..id"),
        ("message_id_path", "$.id"),
        ("on_404", "UNCONFIRMED"),
        ("on_422", ""),
        ("header_name", "X Api"),
        ("header_name", "X:Y"),
        ("header_name", "Host"),
        ("header_name", "Webhook-Id"),
        ("header_name", "Content-Length"),
        ("header_name", "idempotency-key"),
    ],
)
def test_the_settings_say_what_is_wrong(field: str, value: str) -> None:
    form = WebhookSettings({"url": "https://hooks.example.org/x", **CHOICES, field: value})
    assert list(form.errors) == [field]


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"signing_secret": SIGNING}, []),
        ({"signing_secret": f" {SIGNING}\n", "header_value": "Bearer a/b+c="}, []),
        ({"signing_secret": ""}, ["signing_secret"]),
        ({"signing_secret": SIGNING.removeprefix("whsec_")}, ["signing_secret"]),
        ({"signing_secret": "whsec_c2hvcnQ="}, ["signing_secret"]),
        ({"signing_secret": "whsec_" + "A" * 88}, ["signing_secret"]),
        ({"signing_secret": SIGNING, "header_value": "a\r\nHost: b"}, ["header_value"]),
        ({"signing_secret": SIGNING, "header_value": "señor"}, ["header_value"]),
    ],
    ids=["plain", "header", "none", "prefix", "short", "long", "newline", "accent"],
)
def test_the_credentials_say_what_is_wrong(values: dict[str, str], wrong: list[str]) -> None:
    form = WebhookCredentials(values)
    assert list(form.errors) == wrong
    assert SIGNING not in str(form)

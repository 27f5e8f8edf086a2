"""What every channel must show. A channel inherits the suite, says how to build itself and what an acceptance looks like, and adds its own.

`ChannelContract` holds for every channel, `HTTPChannelContract` for those that speak HTTP.
"""

import json
import logging
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, ClassVar

import pytest

from sessions_app.providers.base import Answer as Outcome
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Inbound,
    Message,
    MessageType,
    Presence,
    Receipt,
    SendResult,
    SentMessage,
    SessionConfig,
    SessionState,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)
from sessions_app.providers.registry import choices, provider_class
from tests.providers.scripted_server import CLOSE, HANG, RESET, Answer, ScriptedServer, drip, reply

SECRET = "s3cr3t/key+of=Ana"
TEXT = "Dear Ana Müller, your parcel 4711 is ready.\r\nReply STOP to leave."
REF = uuid.UUID("6f1f4b2c-1111-4222-8333-944455566677")


def soon(seconds: float = 5.0) -> Deadline:
    return Deadline(timedelta(seconds=seconds))


class ChannelContract:
    provider: ClassVar[type[ChannelProvider]]
    address: ClassVar[str] = "12025550101@c.us"
    credentials: ClassVar[dict[str, str]] = {}
    settings: ClassVar[dict[str, Any]] = {}

    def make(self, **settings: Any) -> ChannelProvider:
        return self.provider(SessionConfig(credentials=self.credentials, settings={**self.settings, **settings}))

    def message(self, type: MessageType = MessageType.TEXT) -> Message:
        return Message(type=type, text=TEXT, media_url="https://example.org/a.jpg", caption=TEXT)

    def test_is_registered_under_its_key(self) -> None:
        assert provider_class(self.provider.key) is self.provider
        assert (self.provider.key, self.provider.label) in choices()

    def test_secrets_are_not_in_the_repr(self) -> None:
        provider = self.make()
        for value in self.credentials.values():
            assert value not in f"{provider!r} {provider.config!r} {provider}"

    def test_a_metered_rate_is_never_above_the_declared_one(self) -> None:
        for rate in (None, 0.5, 10, 10_000, -1, "fast"):
            metered = self.make(rate=rate).metered
            if self.provider.pacing is None:
                assert metered is None
            else:
                assert metered is not None
                assert 0 < metered.rate <= self.provider.pacing.rate
                assert 1 <= metered.burst <= self.provider.pacing.burst

    def test_without_a_way_to_ask_it_says_unknown(self) -> None:
        if not self.provider.can_verify:
            sent = SentMessage(self.address, self.message(), REF, datetime.now(UTC))
            assert self.make().verify(sent, soon()).presence == Presence.UNKNOWN
            assert not self.provider.absence_is_proof

    def test_a_passed_deadline_is_unsent(self) -> None:
        assert self.make().send(self.address, self.message(), REF, soon(0)).answer == Outcome.UNSENT

    def test_it_has_a_session_to_check(self) -> None:
        assert self.make().check_session(soon(0.5)).state in SessionState


class HTTPChannelContract(ChannelContract):
    accepted: ClassVar[Answer]
    accepted_id: ClassVar[str]
    credentials: ClassVar[dict[str, str]] = {"api_key": SECRET}
    throttled_status: ClassVar[int] = 429
    unauthorised: ClassVar[Answer] = reply(401, {"message": "Unauthorized", "statusCode": 401})
    takes_an_empty_body: ClassVar[bool] = True  # a 201 with nothing in it was seen to mean acceptance
    address_is_a_setting: ClassVar[bool] = True  # False: the vendor has one address, and `base_url` is for tests alone
    tells_when_to_come_back: ClassVar[bool] = True  # by the header Retry-After

    @classmethod
    def error(cls, words: Any) -> dict[str, Any]:
        """How the vendor says what is wrong; the first of `words` may be a list."""
        return {"message": words, "error": "bad\0news"}

    server: ScriptedServer

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with ScriptedServer(usual=self.accepted) as self.server:
            yield

    def make(self, **settings: Any) -> ChannelProvider:
        return super().make(**{"base_url": self.server.url, **settings})

    def send(self, *script: Answer, seconds: float = 5.0, **settings: Any) -> SendResult:
        self.server.script(*script)
        return self.make(**settings).send(self.address, self.message(), REF, soon(seconds))

    def doubtful(self, result: SendResult) -> None:
        assert result.answer == Outcome.REFUSED
        assert result.code == ErrorCode.UNCONFIRMED
        assert len(self.server.requests) == 1, "one call, one request"

    def test_accepted(self) -> None:
        result = self.send()
        assert (result.answer, result.message_id, result.code) == (Outcome.ACCEPTED, self.accepted_id, None)
        assert len(self.server.requests) == 1

    def test_accepted_without_a_body(self) -> None:
        result = self.send(reply(201))
        if self.takes_an_empty_body:
            assert (result.answer, result.message_id) == (Outcome.ACCEPTED, "")
        else:
            self.doubtful(result)

    def test_throttled(self) -> None:
        result = self.send(reply(self.throttled_status, self.error("slow down")))
        assert (result.code, result.retry_after, result.http_status) == (ErrorCode.RATE_LIMIT, None, self.throttled_status)

    def test_throttled_for_some_seconds(self) -> None:
        if not self.tells_when_to_come_back:
            return
        result = self.send(reply(self.throttled_status, {}, headers={"Retry-After": "420"}))
        assert (result.code, result.retry_after) == (ErrorCode.RATE_LIMIT, timedelta(seconds=420))

    def test_throttled_until_a_date(self) -> None:
        if not self.tells_when_to_come_back:
            return
        at = datetime.now(UTC) + timedelta(seconds=600)
        result = self.send(reply(self.throttled_status, {}, headers={"Retry-After": format_datetime(at, usegmt=True)}))
        assert result.code == ErrorCode.RATE_LIMIT
        assert result.retry_after is not None
        assert timedelta(seconds=595) < result.retry_after <= timedelta(seconds=600)

    def test_throttled_with_a_retry_after_nobody_can_read(self) -> None:
        assert self.send(reply(self.throttled_status, {}, headers={"Retry-After": "soon"})).retry_after is None

    def test_credentials_refused(self) -> None:
        assert self.send(self.unauthorised).code == ErrorCode.DISCONNECTED

    def test_a_refused_connection_may_be_tried_again(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        result = self.send(base_url=f"http://127.0.0.1:{port}")
        assert (result.answer, result.code) == (Outcome.REFUSED, ErrorCode.TRANSIENT)

    def test_a_failed_tls_handshake_may_be_tried_again(self) -> None:
        self.server.before_reading = socket.socket.close
        result = self.send(base_url=self.server.url.replace("http:", "https:"))
        assert (result.answer, result.code) == (Outcome.REFUSED, ErrorCode.TRANSIENT)

    def test_a_passed_deadline_sends_nothing(self) -> None:
        result = self.send(seconds=0)
        assert result.answer == Outcome.UNSENT
        assert self.server.connections == 0

    def test_a_read_timeout_is_a_doubt(self) -> None:
        began = time.monotonic()
        self.doubtful(self.send(HANG, seconds=0.3))
        assert time.monotonic() - began < 2

    @pytest.mark.parametrize("how", [RESET, CLOSE], ids=["reset", "close"])
    def test_a_connection_lost_after_the_body_is_a_doubt(self, how: Answer) -> None:
        self.doubtful(self.send(how))

    def test_an_answer_cut_short_is_a_doubt(self) -> None:
        head = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
        self.doubtful(self.send(Answer((head,), then="close")))

    def test_garbage_instead_of_http_is_a_doubt(self) -> None:
        self.doubtful(self.send(Answer((b"SSH-2.0-OpenSSH_9.6\r\n",), then="close")))

    @pytest.mark.parametrize("status", [500, 502, 503, 504, 520])
    def test_a_server_error_is_a_doubt(self, status: int) -> None:
        result = self.send(reply(status, b"<h1>oops</h1>"))
        self.doubtful(result)
        assert result.http_status == status

    def test_a_page_instead_of_json_is_a_doubt(self) -> None:
        self.doubtful(self.send(reply(200, b"<!doctype html><title>Log in</title>")))

    def test_a_huge_answer_is_not_read_to_its_end(self) -> None:
        self.doubtful(self.send(reply(201, b" " * (3 * 1024 * 1024), then="close")))

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_redirect_is_not_followed_and_not_an_acceptance(self, status: int) -> None:
        result = self.send(reply(status, b"", headers={"Location": f"{self.server.url}/elsewhere"}))
        assert result.answer == Outcome.REFUSED
        assert result.code in (ErrorCode.MISCONFIGURED, ErrorCode.UNCONFIRMED)
        assert len(self.server.requests) == 1

    def test_a_header_in_drips_ends_at_the_deadline(self) -> None:
        began = time.monotonic()
        self.doubtful(self.send(drip(b"HTTP/1.1 201 Created\r\nX-Slow: " + b"x" * 500), seconds=0.4))
        assert time.monotonic() - began < 2

    def test_a_body_in_drips_ends_at_the_deadline(self) -> None:
        began = time.monotonic()
        head = b"HTTP/1.1 201 Created\r\nContent-Length: 500\r\n\r\n"
        answer = drip(head + b"x" * 500)
        self.doubtful(self.send(Answer((head, *answer.pieces[len(head) :]), pause=0.05), seconds=0.4))
        assert time.monotonic() - began < 2

    def test_nothing_secret_in_details_or_logs(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        echo = self.error([f"{SECRET} {self.address} {TEXT}", "s3cr3t%2Fkey%2Bof%3DAna", TEXT[:30]])
        results = [self.send(reply(status, echo)) for status in (400, 401, 404, 409, 422, 429, 500, 503)]
        results.append(self.send(reply(500, self.error(f"to {self.address}: {TEXT!r} {SECRET}"))))
        results += [self.send(RESET), self.send(reply(400, self.error("x" * 5000)))]
        sent = SentMessage(self.address, self.message(), REF, datetime.now(UTC))
        asked = [reply(500, echo)] if self.provider.can_verify else []
        self.server.script(*asked, reply(500, self.error(f"no such key: {SECRET}")))
        details = [self.make().verify(sent, soon()).detail, self.make().check_session(soon()).detail, *(one.detail for one in results)]
        for text in (*details, caplog.text):
            for secret in (SECRET, "s3cr3t%2Fkey", self.address.partition("@")[0], "Dear Ana", "Reply STOP", *self.credentials.values()):
                assert secret not in text
        assert all(len(detail) <= 500 and "\0" not in detail for detail in details)
        assert "bad" in details[2], "what the vendor says is kept"

    @pytest.mark.parametrize("type", MessageType)
    def test_a_type_it_does_not_declare_is_refused_and_nothing_leaves(self, type: MessageType) -> None:
        if type in self.provider.message_types:
            assert self.make().send(self.address, self.message(type), REF, soon()).answer == Outcome.ACCEPTED
        else:
            assert self.make().send(self.address, self.message(type), REF, soon()).code == ErrorCode.MISCONFIGURED
            assert self.server.connections == 0

    def test_no_address_of_the_server_is_misconfigured(self) -> None:
        if not self.address_is_a_setting:
            return
        assert self.make(base_url="not an address").send(self.address, self.message(), REF, soon()).code == ErrorCode.MISCONFIGURED

    def test_a_connection_is_used_again(self) -> None:
        self.send()
        self.send()
        assert [request.connection for request in self.server.requests] == [1, 1]

    def test_the_origin_is_where_the_calls_go(self) -> None:
        assert self.make().origin == self.server.url


class WebhookContract(ChannelContract):
    """For channels that tell what became of a message. A channel says how it signs, and gives requests that it would really send."""

    signs_the_body: ClassVar[bool] = True  # False: the vendor shows a secret and signs nothing

    def signed(self, body: bytes = b"", **changes: Any) -> WebhookRequest:
        """A request that the vendor would send now: `usual` when no body is given, signed with the credentials of `self.credentials`."""
        raise NotImplementedError

    def forged(self) -> WebhookRequest:
        """The usual one, signed with another secret."""
        raise NotImplementedError

    def unsigned(self) -> WebhookRequest:
        """The usual one without its signature."""
        raise NotImplementedError

    def _items(self, request: WebhookRequest) -> tuple[WebhookItem, ...]:
        return self.make().accept_webhook(request).items

    def _refused(self, request: WebhookRequest) -> WebhookRefused:
        with pytest.raises(WebhookRefused) as refusal:
            self.make().accept_webhook(request)
        return refusal.value

    def test_it_says_that_it_takes_webhooks(self) -> None:
        assert self.provider.takes_webhooks

    def test_a_signed_request_has_items_that_can_be_stored(self) -> None:
        items = self._items(self.signed())
        assert items
        for item in items:
            assert 0 < len(item.event_id) <= 200 and len(item.kind) <= 60
            assert json.loads(json.dumps(item.payload)) == item.payload

    def test_each_item_means_something(self) -> None:
        provider = self.make()
        stored = [WebhookItem(one.event_id, one.kind, json.loads(json.dumps(one.payload))) for one in self._items(self.signed())]
        events = [event for item in stored for event in provider.read_event(item)]
        assert events
        for event in events:
            if isinstance(event, Receipt):
                assert event.state in self.provider.receipts
                assert event.message_id or event.client_ref
                assert event.at.tzinfo is not None
            elif isinstance(event, Inbound):
                assert self.provider.takes_replies and event.sender and event.at.tzinfo is not None

    def test_told_again_it_is_the_same_event(self) -> None:
        first, again = self._items(self.signed()), self._items(self.signed())
        assert [one.event_id for one in first] == [one.event_id for one in again]
        assert len({one.event_id for one in first}) == len(first)

    def test_unsigned_is_refused(self) -> None:
        assert self._refused(self.unsigned()).status == 401

    def test_forged_is_refused(self) -> None:
        assert self._refused(self.forged()).status == 401

    def test_a_changed_body_is_refused(self) -> None:
        if not self.signs_the_body:
            return
        request = self.signed()
        assert self._refused(replace(request, body=request.body + b" ")).status == 401

    def test_a_refusal_names_no_secret(self) -> None:
        for request in (self.unsigned(), self.forged()):
            for value in self.credentials.values():
                assert value not in str(self._refused(request))

    @pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b"nonsense", b"\xff\xfe", b'{"object": 7}', b"[1, 2]"])
    def test_what_cannot_be_read_is_no_error_page(self, body: bytes) -> None:
        try:
            items = self._items(self.signed(body or b" "))
        except WebhookRefused as refusal:
            assert refusal.status in {400, 401}
        else:
            for item in items:
                self.make().read_event(item)

    def test_without_its_secret_nothing_is_taken(self) -> None:
        bare = self.provider(SessionConfig(credentials={}, settings=self.make().config.settings))
        with pytest.raises(WebhookRefused):
            bare.accept_webhook(self.signed())

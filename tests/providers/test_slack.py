import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessions_app.providers.base import (
    ErrorCode,
    Inbound,
    Message,
    MessageType,
    Presence,
    SentMessage,
    SessionConfig,
    SessionState,
    StateReport,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)
from sessions_app.providers.slack import SlackCredentials, SlackProvider
from tests.providers.contract import REF, SECRET, TEXT, HTTPChannelContract, WebhookContract, soon
from tests.providers.scripted_server import HANG, Answer, reply

TOKEN = "xoxb-" + "17653672481-19874698323-not-a-real-token"  # in two parts, so that no scanner takes it for one
HOOK = "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"
NOW = 1796050000
CLAIMED = datetime.fromtimestamp(NOW, UTC)


class _Registered(HTTPChannelContract):
    provider = SlackProvider
    address = "C0123456789"
    takes_an_empty_body = False
    address_is_a_setting = False

    @pytest.fixture(autouse=True)
    def _registered(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SlackProvider, "clock", staticmethod(lambda: float(NOW)))


class TestSlackBot(_Registered, WebhookContract):
    credentials = {"bot_token": TOKEN, "signing_secret": SECRET}
    accepted = reply(200, {"ok": True, "channel": "C0123456789", "ts": "1503435956.000247", "message": {"text": "x"}})
    accepted_id = "C0123456789:1503435956.000247"
    unauthorised = reply(200, {"ok": False, "error": "invalid_auth"})

    @classmethod
    def error(cls, words: Any) -> dict[str, Any]:
        return {"ok": False, "error": f"{words} bad\0news"}

    # -- requests --------------------------------------------------------------------------------------------------------------

    def test_the_request_is_as_documented(self) -> None:
        self.send()
        request = self.server.requests[0]
        assert (request.method, request.path) == ("POST", "/api/chat.postMessage")
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        assert request.headers["content-type"] == "application/json; charset=utf-8"
        assert request.json() == {
            "channel": "C0123456789",
            "text": TEXT,
            "unfurl_links": True,
            "unfurl_media": True,
            "metadata": {"event_type": "paceline_message", "event_payload": {"client_ref": str(REF)}},
        }

    def test_a_name_cannot_ring_a_channel(self) -> None:
        self.make().send(self.address, Message(MessageType.TEXT, "Dear <!channel> & co > all", link_preview=False), REF, soon())
        sent = self.server.requests[0].json()
        assert sent["text"] == "Dear &lt;!channel&gt; &amp; co &gt; all"
        assert sent["unfurl_links"] is sent["unfurl_media"] is False

    @pytest.mark.parametrize(
        ("address", "text", "code"),
        [
            ("general", "x", ErrorCode.INVALID_RECIPIENT),
            ("#general", "x", ErrorCode.INVALID_RECIPIENT),
            ("+5511999990101", "x", ErrorCode.INVALID_RECIPIENT),
            ("C0123456789", " ", ErrorCode.FATAL),
            ("C0123456789", "&" * 8001, ErrorCode.FATAL),
        ],
        ids=["name", "hash", "phone", "empty", "cut"],
    )
    def test_what_slack_would_refuse_or_cut_does_not_leave(self, address: str, text: str, code: ErrorCode) -> None:
        assert self.make().send(address, Message(MessageType.TEXT, text), REF, soon()).code == code
        assert self.server.connections == 0

    # -- answers ---------------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("code", "names"),
        [
            (ErrorCode.RATE_LIMIT, "ratelimited rate_limited message_limit_exceeded"),
            (
                ErrorCode.DISCONNECTED,
                "invalid_auth not_authed account_inactive token_revoked token_expired missing_scope no_permission not_allowed_token_type "
                "org_login_required team_added_to_org accesslimited access_denied ekm_access_denied app_access_restricted "
                "two_factor_setup_required enterprise_is_restricted",
            ),
            (
                ErrorCode.INVALID_RECIPIENT,
                "channel_not_found not_in_channel is_archived restricted_action restricted_action_read_only_channel "
                "restricted_action_thread_only_channel cannot_reply_to_message",
            ),
            (
                ErrorCode.MISCONFIGURED,
                "messages_tab_disabled msg_blocks_too_long invalid_blocks invalid_blocks_format too_many_attachments invalid_arguments "
                "attachment_payload_limit_exceeded metadata_too_large metadata_must_be_sent_from_app markdown_text_conflict",
            ),
            (ErrorCode.FATAL, "no_text msg_too_long"),
            (ErrorCode.TRANSIENT, "request_timeout"),
            (ErrorCode.UNCONFIRMED, "internal_error fatal_error service_unavailable something_new"),
        ],
        ids=str,
    )
    def test_each_documented_error(self, code: ErrorCode, names: str) -> None:
        for name in names.split():
            result = self.send(reply(200, {"ok": False, "error": name}))
            assert (name, result.code) == (name, code)
            assert name in result.detail

    def test_a_limit_in_the_body_has_its_wait_in_the_header(self) -> None:
        result = self.send(reply(200, {"ok": False, "error": "ratelimited"}, headers={"Retry-After": "30"}))
        assert (result.code, result.retry_after) == (ErrorCode.RATE_LIMIT, timedelta(seconds=30))

    @pytest.mark.parametrize(
        "body", [{}, {"ok": True}, {"ok": True, "channel": "C1"}, {"ok": True, "channel": "C1", "ts": 7}, [], {"ok": False}], ids=str
    )
    def test_an_answer_that_says_neither_is_a_doubt(self, body: Any) -> None:
        self.doubtful(self.send(reply(200, body)))

    def test_a_server_error_with_a_name_is_a_doubt(self) -> None:
        self.doubtful(self.send(reply(503, {"ok": False, "error": "invalid_auth"})))

    # -- the session -----------------------------------------------------------------------------------------------------------

    def test_the_check_names_the_app(self) -> None:
        self.server.script(reply(200, {"ok": True, "url": "https://acme.slack.com/", "team": "Acme", "user": "paceline"}))
        check = self.make().check_session(soon())
        assert (check.state, check.detail) == (SessionState.CONNECTED, "The app is paceline in Acme.")
        assert self.server.requests[0].path == "/api/auth.test"
        assert self.server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (reply(200, {"ok": False, "error": "token_revoked"}), "enter its new token: token_revoked"),
            (reply(200, {"ok": False, "error": "fatal_error"}), "could not tell: fatal_error"),
            (reply(200, b"<html>"), "could not tell: 200"),
            (reply(502, b""), "could not tell: 502"),
        ],
        ids=["revoked", "fatal", "page", "502"],
    )
    def test_the_check_says_what_is_wrong(self, answer: Answer, words: str) -> None:
        self.server.script(answer)
        check = self.make().check_session(soon())
        assert check.state == SessionState.DISCONNECTED and words in check.detail

    def test_without_credentials_nothing_leaves(self) -> None:
        for credentials in ({}, {"webhook_url": "https://evil.example/services/T0/B0/x"}, {"webhook_url": f"{HOOK}/x"}):
            provider = SlackProvider(SessionConfig(credentials, {"base_url": self.server.url}))
            assert provider.send(self.address, self.message(), REF, soon()).code == ErrorCode.DISCONNECTED
            assert provider.check_session(soon()).state == SessionState.DISCONNECTED
        assert self.server.connections == 0

    # -- looking it up ---------------------------------------------------------------------------------------------------------

    def look_up(self, *script: Answer, address: str = "C0123456789", message_id: str = "") -> Any:
        self.server.script(*script)
        return self.make().verify(SentMessage(address, self.message(), REF, CLAIMED, message_id), soon(0.5))

    def history(self, *messages: Any, **more: Any) -> Answer:
        return reply(200, {"ok": True, "messages": list(messages), "has_more": False, **more})

    def ours(self, reference: str = str(REF)) -> dict[str, Any]:
        metadata = {"event_type": "paceline_message", "event_payload": {"client_ref": reference}}
        return {"type": "message", "text": TEXT, "ts": "1796050001.000100", "metadata": metadata}

    def test_it_is_found_by_its_reference(self) -> None:
        found = self.look_up(self.history({"text": TEXT, "ts": "1796050000.000100"}, self.ours("another"), self.ours()))
        assert (found.presence, found.message_id) == (Presence.PRESENT, "C0123456789:1796050001.000100")
        request = self.server.requests[0]
        assert request.method == "GET"
        path, _, query = request.path.partition("?")
        assert path == "/api/conversations.history"
        assert dict(part.split("=") for part in query.split("&")) == {
            "channel": "C0123456789",
            "oldest": f"{NOW - 60}.000000",
            "latest": f"{NOW + 600}.000000",
            "include_all_metadata": "true",
            "limit": "100",
        }

    def test_the_same_text_without_the_reference_is_not_ours(self) -> None:
        foreign = self.ours() | {"metadata": {"event_type": "other", "event_payload": {"client_ref": str(REF)}}}
        assert self.look_up(self.history({"text": TEXT, "ts": "1.1"}, foreign, "odd", {"metadata": 7})).presence == Presence.ABSENT
        assert not SlackProvider.absence_is_proof

    @pytest.mark.parametrize(
        "answer",
        [
            reply(200, {"ok": True, "messages": [], "has_more": True}),
            reply(200, {"ok": False, "error": "missing_scope"}),
            reply(200, {"ok": True}),
            reply(200, b"<html>"),
            reply(429, {}),
            HANG,
        ],
        ids=["more", "scope", "none", "page", "429", "hang"],
    )
    def test_without_a_clear_answer_it_is_unknown(self, answer: Answer) -> None:
        assert self.look_up(answer).presence == Presence.UNKNOWN

    def test_a_member_is_looked_up_in_the_channel_that_was_answered(self) -> None:
        assert self.look_up(address="U0123456789").presence == Presence.UNKNOWN
        assert self.server.connections == 0
        assert self.look_up(self.history(self.ours()), address="U0123456789", message_id="D0123456789:1.1").presence == Presence.PRESENT
        assert "channel=D0123456789" in self.server.requests[0].path

    # -- webhooks --------------------------------------------------------------------------------------------------------------

    def callback(self, **changes: Any) -> dict[str, Any]:
        event = {"type": "message", "user": "U2147483697", "text": "STOP &amp; thanks", "ts": "1796049999.000200", "channel": "D024BE91L"}
        return {
            "token": "an-old-token",
            "type": "event_callback",
            "event_id": "Ev0PV52K25",
            "event_time": NOW,
            "event": {**event, "channel_type": "im", **changes},
        }

    def signed(self, body: bytes = b"", *, secret: str = SECRET, at: int = NOW, **changes: Any) -> WebhookRequest:
        body = body or json.dumps(self.callback()).encode()
        digest = hmac.new(secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
        headers = {"x-slack-request-timestamp": str(at), "x-slack-signature": f"v0={digest}"}
        return replace(WebhookRequest("POST", "https://paceline.example/api/webhooks/x/", headers, {}, body), **changes)

    def forged(self) -> WebhookRequest:
        return self.signed(secret="another")

    def unsigned(self) -> WebhookRequest:
        return self.signed(headers={"x-slack-request-timestamp": str(NOW)})

    def test_the_published_example_of_a_signature(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SlackProvider, "clock", staticmethod(lambda: 1531420618.0))
        body = (
            b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
            b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
            b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
        )
        headers = {
            "x-slack-request-timestamp": "1531420618",
            "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        }
        provider = SlackProvider(SessionConfig({"bot_token": TOKEN, "signing_secret": "8f742231b10e8888abcd99yyyzzz85a5"}))
        with pytest.raises(WebhookRefused, match="Not an event") as refusal:  # signed well, and no JSON
            provider.accept_webhook(WebhookRequest("POST", "", headers, {}, body))
        assert refusal.value.status == 400

    @pytest.mark.parametrize("at", [NOW - 301, NOW + 301])
    def test_an_old_signature_is_refused(self, at: int) -> None:
        assert self._refused(self.signed(at=at)).status == 401

    @pytest.mark.parametrize("at", [NOW - 299, NOW + 299])
    def test_a_clock_may_be_a_little_wrong(self, at: int) -> None:
        assert self._items(self.signed(at=at))

    def test_nobody_signs_with_an_empty_secret(self) -> None:
        bare = self.provider(SessionConfig(credentials={"bot_token": TOKEN}))
        with pytest.raises(WebhookRefused):
            bare.accept_webhook(self.signed(secret=""))

    def test_the_challenge_is_repeated(self) -> None:
        body = json.dumps({"token": "x", "challenge": "3eZbrw1aB10FEMAGAZd4FyFQ", "type": "url_verification"}).encode()
        answer = self.make().accept_webhook(self.signed(body))
        assert (answer.body, answer.items) == ("3eZbrw1aB10FEMAGAZd4FyFQ", ())

    def test_a_reply(self) -> None:
        [item] = self._items(self.signed())
        assert (item.event_id, item.kind) == ("Ev0PV52K25", "message")
        assert "an-old-token" not in json.dumps(item.payload)
        assert self.make().read_event(item) == [
            Inbound(
                sender="U2147483697",
                at=datetime.fromtimestamp(1796049999, UTC),
                text="STOP & thanks",
                message_id="D024BE91L:1796049999.000200",
            )
        ]

    @pytest.mark.parametrize(
        "changes",
        [
            {"bot_id": "B1"},
            {"subtype": "message_changed"},
            {"subtype": "message_deleted"},
            {"subtype": "bot_message"},
            {"subtype": "channel_join"},
            {"user": None},
            {"type": "reaction_added"},
        ],
        ids=str,
    )
    def test_what_is_no_reply_is_ignored(self, changes: dict[str, Any]) -> None:
        [item] = self._items(self.signed(json.dumps(self.callback(**changes)).encode()))
        assert self.make().read_event(item) == []

    def test_a_file_and_a_removed_app(self) -> None:
        [event] = self.make().read_event(WebhookItem("1", "message", {"event": self.callback(subtype="file_share")["event"]}))
        assert isinstance(event, Inbound) and event.message_type == "DOCUMENT"
        [report] = self.make().read_event(WebhookItem("1", "app_uninstalled", {"event": {"type": "app_uninstalled"}}))
        assert isinstance(report, StateReport) and report.check.state == SessionState.DISCONNECTED

    @pytest.mark.parametrize("ts", [None, "", "soon", "1e9.5", "999999999999.0"])
    def test_half_a_message_is_a_value_error(self, ts: Any) -> None:
        with pytest.raises(ValueError):
            self.make().read_event(WebhookItem("1", "message", {"event": self.callback(ts=ts)["event"]}))


class TestSlackIncomingWebhook(_Registered):
    credentials = {"webhook_url": HOOK, "signing_secret": SECRET}
    accepted = reply(200, b"ok")
    accepted_id = ""
    unauthorised = reply(403, b"invalid_token")

    def test_the_request_is_as_documented(self) -> None:
        self.make().send("whatever the list says", self.message(), REF, soon())
        request = self.server.requests[0]
        assert (request.method, request.path) == ("POST", HOOK.removeprefix("https://hooks.slack.com"))
        assert request.json() == {"text": TEXT, "unfurl_links": True, "unfurl_media": True}
        assert "authorization" not in request.headers

    @pytest.mark.parametrize(
        ("status", "words", "code"),
        [
            (400, "invalid_payload", ErrorCode.MISCONFIGURED),
            (400, "too_many_attachments", ErrorCode.MISCONFIGURED),
            (400, "no_text", ErrorCode.FATAL),
            (400, "user_not_found", ErrorCode.DISCONNECTED),
            (400, "no_team", ErrorCode.DISCONNECTED),
            (403, "action_prohibited", ErrorCode.DISCONNECTED),
            (403, "invalid_token", ErrorCode.DISCONNECTED),
            (404, "channel_not_found", ErrorCode.DISCONNECTED),
            (404, "no_service", ErrorCode.DISCONNECTED),
            (410, "channel_is_archived", ErrorCode.DISCONNECTED),
            (429, "rate_limited", ErrorCode.RATE_LIMIT),
            (500, "rollup_error", ErrorCode.UNCONFIRMED),
            (200, "okay", ErrorCode.UNCONFIRMED),
            (302, "", ErrorCode.UNCONFIRMED),
        ],
    )
    def test_each_documented_answer(self, status: int, words: str, code: ErrorCode) -> None:
        result = self.send(reply(status, words.encode()))
        assert result.code == code and words in result.detail

    def test_it_cannot_be_asked(self) -> None:
        sent = SentMessage(self.address, self.message(), REF, CLAIMED)
        assert self.make().verify(sent, soon()).presence == Presence.UNKNOWN
        assert self.make().check_session(soon()).state == SessionState.CONNECTED
        assert self.server.connections == 0

    def test_without_a_base_url_it_calls_slack(self) -> None:
        assert SlackProvider(SessionConfig({"webhook_url": HOOK})).origin == "https://hooks.slack.com"
        assert SlackProvider(SessionConfig({"bot_token": TOKEN})).origin == "https://slack.com"

    def test_the_url_is_a_secret_in_all_its_parts(self) -> None:
        assert "XXXXXX" not in self.send(reply(404, b"no_service XXXXXXXXXXXXXXXXXXXXXXXX")).detail


@pytest.mark.parametrize(
    "values",
    [{"bot_token": f" {TOKEN} "}, {"webhook_url": HOOK}, {"bot_token": TOKEN, "signing_secret": "8f742231b10e8888abcd99eeefff85a5"}],
    ids=str,
)
def test_the_form_takes_either_way(values: dict[str, str]) -> None:
    assert SlackCredentials(values).errors == {}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "bot_token"),
        ({"signing_secret": "8f742231b10e8888abcd99eeefff85a5"}, "bot_token"),
        ({"bot_token": TOKEN, "webhook_url": HOOK}, "webhook_url"),
        ({"bot_token": TOKEN.replace("xoxb", "xoxp")}, "bot_token"),
        ({"webhook_url": "https://example.org/services/T0/B0/x"}, "webhook_url"),
        ({"webhook_url": "http://hooks.slack.com/services/T0/B0/x"}, "webhook_url"),
        ({"webhook_url": "https://hooks.slack.com.example.org/services/T0/B0/x"}, "webhook_url"),
        ({"webhook_url": "https://hooks.slack.com@example.org/services/T0/B0/x"}, "webhook_url"),
        ({"webhook_url": f"{HOOK}?x=1"}, "webhook_url"),
        ({"bot_token": TOKEN, "signing_secret": "xyz"}, "signing_secret"),
    ],
    ids=str,
)
def test_the_form_says_what_is_wrong(values: dict[str, str], field: str) -> None:
    form = SlackCredentials(values)
    assert list(form.errors) == [field] and str(form.errors[field][0]).endswith((".", "...."))
    assert TOKEN not in str(form)


def test_the_form_says_that_a_webhook_ignores_the_address() -> None:
    assert "addresses are ignored" in str(SlackCredentials.base_fields["webhook_url"].help_text)

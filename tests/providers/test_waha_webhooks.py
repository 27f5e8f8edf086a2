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
    Receipt,
    ReceiptState,
    SessionConfig,
    SessionState,
    StateReport,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)
from sessions_app.providers.sandbox import SandboxProvider
from sessions_app.providers.waha import WahaProvider
from tests.providers.contract import SECRET, WebhookContract

HOOK_SECRET = "a-secret-of-the-webhook-4711"
CHAT = "12025550101@c.us"
NOW = 1796040000  # 2026-11-30 12:00 UTC
AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
WEEK = 7 * 24 * 3600


def told(event: str, payload: Any, **changes: Any) -> dict[str, Any]:
    """As WAHA 2026.7.1 publishes it."""
    whole = {"id": "evt_01aaaaaaaaaaaaaaaaaaaaaaaa", "timestamp": NOW * 1000, "session": "sales", "engine": "GOWS", "event": event}
    me = {"id": "12025550100@c.us", "pushName": "Shop"}
    return {**whole, "payload": payload, "me": me, "environment": {"version": "2026.7.1"}, **changes}


def ack(number: int, raw: str = f"true_{CHAT}_3EB0AA", **changes: Any) -> dict[str, Any]:
    whole = {"id": raw, "from": "12025550100@c.us", "to": CHAT, "participant": None, "fromMe": True, "ack": number, "ackName": "X"}
    return {**whole, **changes}


def text(**changes: Any) -> dict[str, Any]:
    whole = {"id": f"false_{CHAT}_3AAA", "timestamp": NOW - 5, "from": CHAT, "fromMe": False, "to": "12025550100@c.us", "participant": None}
    return {**whole, "body": "Yes, please", "hasMedia": False, "media": None, "ack": 1, "ackName": "SERVER", **changes}


USUAL = json.dumps(told("message.ack", ack(2))).encode()
LOCK = {"code": "463", "blocked": True, "reason": "account_restricted", "until": 1796043600, "enforcementType": "BIZ"}


class TestWahaWebhooks(WebhookContract):
    provider = WahaProvider
    credentials = {"api_key": SECRET, "webhook_secret": HOOK_SECRET}
    settings = {"base_url": "http://127.0.0.1:9", "session": "sales", "engine": "GOWS"}

    @pytest.fixture(autouse=True)
    def _clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(WahaProvider, "clock", staticmethod(lambda: float(NOW + 60)))

    def signed(self, body: bytes = b"", *, secret: str = HOOK_SECRET, **changes: Any) -> WebhookRequest:
        body = body or USUAL
        signature = hmac.new(secret.encode(), body, hashlib.sha512).hexdigest()
        headers = {"x-webhook-hmac": signature, "x-webhook-hmac-algorithm": "sha512", "x-webhook-timestamp": "1"}
        return replace(WebhookRequest("POST", "https://paceline.example.org/api/webhooks/1/", headers, {}, body), **changes)

    def forged(self) -> WebhookRequest:
        return self.signed(secret="another-secret-of-the-webhook")

    def unsigned(self) -> WebhookRequest:
        return replace(self.signed(), headers={})

    def items(self, body: dict[str, Any]) -> list[WebhookItem]:
        stored = self._items(self.signed(json.dumps(body).encode()))
        return [WebhookItem(one.event_id, one.kind, json.loads(json.dumps(one.payload))) for one in stored]

    def events(self, event: str, payload: Any, **changes: Any) -> list[Any]:
        return [one for item in self.items(told(event, payload, **changes)) for one in self.make().read_event(item)]

    # -- what is taken

    def test_the_signature_of_the_documentation(self) -> None:
        """The example of WAHA's own documentation: body, key and result."""
        body = b'{"event":"message","session":"default","engine":"WEBJS"}'
        known = (
            "208f8a55dde9e05519e898b10b89bf0d0b3b0fdf11fdbf09b6b90476301b98d8"
            "097c462b2b17a6ce93b6b47a136cf2e78a33a63f6752c2c1631777076153fa89"
        )
        assert hmac.new(b"my-secret-key", body, hashlib.sha512).hexdigest() == known
        provider = self.provider(SessionConfig({"webhook_secret": "my-secret-key"}, {**self.settings, "session": "default"}))
        request = WebhookRequest("POST", "https://paceline.example.org/", {"x-webhook-hmac": known}, {}, body)
        assert [item.kind for item in provider.accept_webhook(request).items] == ["message"]

    @pytest.mark.parametrize("secret", ["é-as-long-as-it-takes", "x" * 16])
    def test_a_signature_with_other_letters_is_no_error(self, secret: str) -> None:
        assert self._refused(replace(self.signed(), headers={"x-webhook-hmac": secret})).status == 401

    def test_another_method(self) -> None:
        assert self._refused(self.signed(method="GET")).status == 405

    def test_another_session_of_the_same_waha_is_ignored(self) -> None:
        assert not self.items(told("message.ack", ack(2), session="support"))
        nameless = self.provider(SessionConfig(self.credentials, {"base_url": "http://127.0.0.1:9"}))
        for name in (None, ""):
            assert not nameless.accept_webhook(self.signed(json.dumps(told("message.ack", ack(2), session=name)).encode())).items

    def test_told_again_after_hours_it_counts(self) -> None:
        assert self.items(told("message.ack", ack(2), timestamp=(NOW - 20 * 3600) * 1000))

    def test_a_week_old_one_is_played_back(self) -> None:
        assert self.items(told("message.ack", ack(2), timestamp=(NOW - WEEK + 120) * 1000))
        body = json.dumps(told("message.ack", ack(2), timestamp=(NOW - WEEK) * 1000)).encode()
        assert self._refused(self.signed(body)).status == 400

    def test_the_id_is_wahas(self) -> None:
        assert [item.event_id for item in self.items(told("message.ack", ack(2)))] == ["evt_01aaaaaaaaaaaaaaaaaaaaaaaa"]

    def test_without_an_id_it_is_over_what_makes_the_thing_itself(self) -> None:
        def event_id(payload: Any, at: int) -> str:
            return self.items(told("message.ack", payload, id=None, timestamp=at))[0].event_id

        assert event_id(ack(2), NOW * 1000) == event_id(ack(2), NOW * 1000 + 999) != event_id(ack(3), NOW * 1000)

    def test_what_is_not_read_is_kept_by_its_name_alone(self) -> None:
        for event in ("message.any", "message.reaction", "call.received", "x" * 100):
            (item,) = self.items(told(event, text(body="private")))
            assert (item.kind, item.payload) == (event[:60], {})
            assert self.make().read_event(item) == []

    def test_raw_messages_are_not_kept(self) -> None:
        (item,) = self.items(told("message", text(_data={"notifyName": "Ana", "secret": "key material"})))
        assert "key material" not in json.dumps(item.payload)

    @pytest.mark.parametrize("payload", [None, [], "x", 7, {}, {"id": 7, "ack": "2", "from": 7, "status": None}], ids=repr)
    @pytest.mark.parametrize("event", ["message", "message.ack", "session.status", None, 7])
    def test_odd_payloads_mean_nothing(self, event: Any, payload: Any) -> None:
        assert self.events(event, payload) == []

    # -- receipts

    @pytest.mark.parametrize(
        ("number", "state"),
        [(1, ReceiptState.ACCEPTED), (2, ReceiptState.DELIVERED), (3, ReceiptState.READ), (4, ReceiptState.READ)],
    )
    @pytest.mark.parametrize("event", ["message.ack", "message.ack.group"])
    def test_acks(self, event: str, number: int, state: ReceiptState) -> None:
        assert self.events(event, ack(number)) == [Receipt(state, AT, message_id="3EB0AA")]

    @pytest.mark.parametrize(
        "raw",
        [
            f"true_{CHAT}_3EB0AA",
            "true_998877@lid_3EB0AA",
            "true_120363041234567890@g.us_3EB0AA_998877@lid",
            {"fromMe": True, "remote": CHAT, "id": "3EB0AA", "_serialized": f"true_{CHAT}_3EB0AA"},
            "3EB0AA",
        ],
        ids=["plain", "hidden user", "group", "object", "raw"],
    )
    def test_ids_of_every_engine(self, raw: Any) -> None:
        assert [event.message_id for event in self.events("message.ack", ack(2, raw))] == ["3EB0AA"]

    @pytest.mark.parametrize("changes", [{"ack": 0}, {"ack": 9}, {"ack": True}, {"ack": None}, {"fromMe": False}, {"id": None}], ids=repr)
    def test_acks_that_say_nothing(self, changes: dict[str, Any]) -> None:
        assert self.events("message.ack", ack(2, **changes) if "id" not in changes else {**ack(2), **changes}) == []

    def test_refused_after_all(self) -> None:
        (receipt,) = self.events("message.ack", ack(-1))
        assert (receipt.state, receipt.message_id, receipt.code) == (ReceiptState.FAILED, "3EB0AA", ErrorCode.FATAL)
        assert receipt.detail == "WhatsApp refused the message (ack -1)"

    def test_why_it_was_refused_is_kept(self) -> None:
        (receipt,) = self.events("message.ack", ack(-1, error={"code": 479, "reason": "smax\0-invalid"}))
        assert (receipt.code, receipt.detail) == (ErrorCode.FATAL, "WhatsApp refused the message (ack -1): 479 smax-invalid")

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (LOCK, "until 2026-11-30 13:00 UTC"),
            ({"code": 463}, "for now"),
            ({"reason": "account_restricted", "until": None}, "for now"),
            ({"code": "463", "until": 1e300}, "for now"),
        ],
    )
    def test_an_account_that_may_not_start_chats(self, error: dict[str, Any], words: str) -> None:
        receipt, report = self.events("message.ack", ack(-1, error=error))
        assert (receipt.state, receipt.code) == (ReceiptState.FAILED, ErrorCode.DISCONNECTED)
        assert isinstance(report, StateReport)
        assert report.check.state == SessionState.RESTRICTED
        assert words in receipt.detail and words in report.check.detail

    # -- replies

    def test_a_reply(self) -> None:
        said = text(_data={"notifyName": "Ana"})
        reply = Inbound(CHAT, AT - timedelta(seconds=5), text="Yes, please", message_id="3AAA", name="Ana", message_type="TEXT")
        assert self.events("message", said) == [reply]

    @pytest.mark.parametrize(
        ("changes", "sender", "hidden"),
        [
            ({"from": "998877@lid"}, "998877@lid", True),
            ({"from": "12025550101:3@s.whatsapp.net"}, CHAT, False),
            ({"from": "1203@g.us", "participant": CHAT}, CHAT, False),
            ({"from": "1203@g.us", "participant": "998877@lid"}, "998877@lid", True),
            ({"from": "1203@g.us", "author": CHAT}, CHAT, False),
        ],
        ids=["hidden", "internal", "group", "hidden in a group", "author"],
    )
    def test_who_wrote(self, changes: dict[str, Any], sender: str, hidden: bool) -> None:
        (reply,) = self.events("message", text(**changes))
        assert (reply.sender, reply.needs_resolving) == (sender, hidden)

    @pytest.mark.parametrize(
        "changes",
        [
            {"fromMe": True},
            {"from": "status@broadcast", "participant": CHAT},
            {"from": "120363@newsletter"},
            {"from": "1203@g.us", "participant": None},
            {"from": None},
        ],
        ids=["ours", "status", "channel", "nobody of a group", "nobody"],
    )
    def test_what_is_no_reply(self, changes: dict[str, Any]) -> None:
        assert self.events("message", text(**changes)) == []

    @pytest.mark.parametrize(
        ("changes", "type"),
        [
            ({"hasMedia": True, "media": {"mimetype": "image/jpeg"}}, "IMAGE"),
            ({"hasMedia": True, "media": {"mimetype": "video/mp4"}}, "VIDEO"),
            ({"hasMedia": True, "media": {"mimetype": "audio/ogg; codecs=opus"}}, "AUDIO"),
            ({"hasMedia": True, "media": {"mimetype": "application/pdf"}}, "DOCUMENT"),
            ({"hasMedia": True, "_data": {"type": "ptt"}}, "AUDIO"),
            ({"hasMedia": True}, "MEDIA"),
            ({"location": {"latitude": "1"}}, "LOCATION"),
            ({"vCards": ["BEGIN:VCARD"]}, "CONTACT"),
            ({}, "TEXT"),
        ],
        ids=repr,
    )
    def test_of_which_kind(self, changes: dict[str, Any], type: str) -> None:
        (reply,) = self.events("message", text(body="the caption", **changes))
        assert (reply.message_type, reply.text) == (type, "the caption")

    @pytest.mark.parametrize(
        "data", [{"notifyName": "Ana"}, {"pushName": "Ana"}, {"Info": {"PushName": "Ana"}}], ids=["WEBJS", "NOWEB", "GOWS"]
    )
    def test_the_name_of_every_engine(self, data: dict[str, Any]) -> None:
        assert [reply.name for reply in self.events("message", text(_data=data))] == ["Ana"]

    def test_what_a_database_cannot_store_is_taken_out(self) -> None:
        body = json.dumps(told("message", text(body="a\0b\ud83d", _data={"notifyName": "\udc00Ana\0"}), id="evt\0\ud800")).encode()
        (item,) = self._items(self.signed(body))
        whole = json.dumps([item.event_id, item.kind, item.payload])
        assert "\\u0000" not in whole and "\\ud" not in whole
        (reply,) = self.make().read_event(item)
        assert (reply.text, reply.name) == ("ab?", "?Ana")

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", '"soon"', "null", "true", "9" * 400])
    def test_times_that_are_none(self, number: str) -> None:
        body = json.dumps(told("message", text(timestamp="T"), timestamp="E")).replace('"T"', number).replace('"E"', number)
        (item,) = self._items(self.signed(body.encode()))
        json.dumps(item.payload, allow_nan=False)
        (reply,) = self.make().read_event(item)
        assert reply.at == AT + timedelta(seconds=60), "when it came"

    def test_a_time_beyond_the_calendar_costs_itself(self) -> None:
        (item,) = self.items(told("message", text(timestamp=9e14)))
        with pytest.raises(ValueError, match=r"not a time|year"):
            self.make().read_event(item)

    # -- the session

    @pytest.mark.parametrize(
        ("status", "state"),
        [
            ("WORKING", SessionState.CONNECTED),
            ("SCAN_QR_CODE", SessionState.NEEDS_PAIRING),
            ("STARTING", SessionState.CONNECTING),
            ("STOPPED", SessionState.DISCONNECTED),
            ("FAILED", SessionState.DISCONNECTED),
            ("DANCING", SessionState.DISCONNECTED),
        ],
    )
    def test_the_session_changes(self, status: str, state: SessionState) -> None:
        (report,) = self.events("session.status", {"name": "sales", "status": status, "statuses": [], "data": None})
        assert isinstance(report, StateReport)
        assert report.check.state == state
        assert bool(report.check.detail) == (state != SessionState.CONNECTED)


def test_the_sandbox_tells_the_same() -> None:
    assert SandboxProvider.takes_webhooks and SandboxProvider.takes_replies and SandboxProvider.can_pair and SandboxProvider.lists_chats
    assert SandboxProvider.receipts == WahaProvider.receipts == frozenset(ReceiptState)
    with pytest.raises(WebhookRefused):
        SandboxProvider(SessionConfig()).accept_webhook(WebhookRequest("POST", "http://127.0.0.1/", {}, {}, b"{}"))

import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessions_app.providers.base import (
    Answer,
    ErrorCode,
    Inbound,
    Message,
    MessageType,
    NotPossible,
    Receipt,
    ReceiptState,
    SessionConfig,
    SessionState,
    StateReport,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)
from sessions_app.providers.whatsapp_cloud import (
    GRAPH_VERSION,
    Template,
    WhatsAppCloudCredentials,
    WhatsAppCloudProvider,
    WhatsAppCloudSettings,
)
from sessions_app.providers.whatsapp_cloud_answers import CODES
from tests.providers import scripted_server
from tests.providers.contract import REF, SECRET, TEXT, HTTPChannelContract, WebhookContract, soon
from tests.providers.scripted_server import CLOSE, RESET, reply

PHONE_ID, WABA = "106540352242922", "102290129340398"
APP_SECRET, VERIFY_TOKEN = "0123456789abcdef0123456789abcdef", "our-word-4711"
WAMID = "wamid.HBgLMTIwMjU1NTAxMDEVAgARGBI5QTNDQTVCM0Q0Q0Q2RTY3RTcA"
PERSON = "12025550101@c.us"
PLAIN = TEXT.replace("\r\n", "\n")
AT = 1796040000  # 2026-11-30 12:00 UTC
COMPONENTS = ({"type": "body", "parameters": [{"type": "text", "text": "Ana"}, {"type": "text", "text": "4711"}]},)
ACCEPTED = {
    "messaging_product": "whatsapp",
    "contacts": [{"input": "12025550101", "wa_id": "12025550101"}],
    "messages": [{"id": WAMID}],
}

# POST /{phone number id}/messages: field -> (type, required)
MESSAGE = {
    "messaging_product": (str, True),
    "recipient_type": (str, False),
    "to": (str, True),
    "type": (str, True),
    "biz_opaque_callback_data": (str, False),
}
CONTENT: dict[str, dict[str, tuple[type, bool]]] = {
    "text": {"body": (str, True), "preview_url": (bool, False)},
    "image": {"link": (str, True), "caption": (str, False)},
    "video": {"link": (str, True), "caption": (str, False)},
    "audio": {"link": (str, True)},
    "document": {"link": (str, True), "caption": (str, False), "filename": (str, False)},
    "template": {"name": (str, True), "language": (dict, True), "components": (list, False)},
}

BY_CODE = {
    ErrorCode.DISCONNECTED: [0, 190, 3, 10, 200, 250, 299, 131005, 368, 131031, 33, 131045, 133010, 133016, 131037, 131048],
    ErrorCode.RATE_LIMIT: [4, 80007, 130429, 132069, 131057],
    ErrorCode.INVALID_RECIPIENT: [130497, 131049, 131050, 130472, 131026, 131021, 131030, 131062, 137000],
    ErrorCode.MISCONFIGURED: [
        *(131042, 131064, 100, 131008, 131009, 131051, 131052, 131053, 131063),
        *(132000, 132001, 132005, 132007, 132015, 132016, 132068),
    ],
    ErrorCode.FATAL: [131047, 132008, 132012, 132018, 999999],
    ErrorCode.UNCONFIRMED: [1, 2, 131000, 131016, 135000],
}


def meta(code: Any, message: str = "Some title", *, status: int = 400, **more: Any) -> scripted_server.Answer:
    error = {"message": message, "type": "OAuthException", "code": code, "error_data": {"details": "Some details."}, "fbtrace_id": "Az8"}
    return reply(status, {"error": {**error, **more}})


def fits(value: dict[str, Any], shape: dict[str, tuple[type, bool]]) -> None:
    assert value.keys() <= shape.keys()
    for name, (kind, required) in shape.items():
        if required or name in value:
            assert type(value[name]) is kind, name


def change(value: dict[str, Any], field: str = "messages", waba: str = WABA) -> bytes:
    changes = [{"field": field, "value": value}]
    return json.dumps({"object": "whatsapp_business_account", "entry": [{"id": waba, "time": AT, "changes": changes}]}).encode()


def of_number(phone_id: str = PHONE_ID, **content: Any) -> dict[str, Any]:
    return {"messaging_product": "whatsapp", "metadata": {"display_phone_number": "1", "phone_number_id": phone_id}, **content}


def status(state: str = "delivered", **changes: Any) -> dict[str, Any]:
    whole = {"id": WAMID, "status": state, "timestamp": str(AT), "recipient_id": "12025550101", "biz_opaque_callback_data": str(REF)}
    return {**whole, **changes}


def incoming(kind: str = "text", **content: Any) -> dict[str, Any]:
    return {"from": "12025550101", "id": "wamid.IN1", "timestamp": str(AT), "type": kind, **content}


USUAL = change(
    of_number(
        statuses=[
            status("sent"),
            status("delivered"),
            status("read"),
            status("failed", errors=[{"code": 131026, "title": "Undeliverable"}]),
        ],
        contacts=[{"profile": {"name": "Ana"}, "wa_id": "12025550101"}],
        messages=[incoming(text={"body": "STOP"})],
    )
)


class TestWhatsAppCloud(HTTPChannelContract, WebhookContract):
    provider = WhatsAppCloudProvider
    credentials = {"access_token": SECRET, "app_secret": APP_SECRET, "verify_token": VERIFY_TOKEN}
    settings = {"phone_number_id": PHONE_ID, "business_account_id": WABA}
    accepted = reply(200, ACCEPTED)
    accepted_id = WAMID
    unauthorised = meta(190, "Error validating access token", status=401)
    takes_an_empty_body = False
    address_is_a_setting = False

    @classmethod
    def error(cls, words: Any) -> dict[str, Any]:
        return {"error": {"message": words, "error_data": {"details": "bad\0news"}}}

    def message(self, type: MessageType = MessageType.TEXT) -> Message:
        template = {"template_name": "parcel_ready", "template_language": "en_US", "template_components": COMPONENTS}
        return replace(super().message(type), **(template if type is MessageType.TEMPLATE else {}))

    def sent(self, message: Message) -> dict[str, Any]:
        assert self.make().send(PERSON, message, REF, soon()).answer == Answer.ACCEPTED
        return self.server.requests[-1].json()

    def signed(self, body: bytes = b"", *, secret: str = APP_SECRET, **changes: Any) -> WebhookRequest:
        body = body or USUAL
        headers = {"x-hub-signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}
        request = WebhookRequest("POST", "https://paceline.example.org/api/webhooks/1/", headers, {}, body)
        return replace(request, **changes)

    def forged(self) -> WebhookRequest:
        return self.signed(secret="f" * 32)

    def unsigned(self) -> WebhookRequest:
        return replace(self.signed(), headers={})

    def events(self, body: bytes) -> list[Any]:
        return [event for item in self._items(self.signed(body)) for event in self.make().read_event(item)]

    # --- what leaves

    @pytest.mark.parametrize("type", MessageType)
    def test_the_request_has_the_published_shape(self, type: MessageType) -> None:
        body = self.sent(self.message(type))
        kind = type.value.lower()
        content = body.pop(kind)
        fits(body, MESSAGE)
        fits(content, CONTENT[kind])
        assert body == {
            "messaging_product": "whatsapp",
            "recipient_type": "individual",
            "to": "12025550101",
            "type": kind,
            "biz_opaque_callback_data": str(REF),
        }
        request = self.server.requests[0]
        assert (request.method, request.path) == ("POST", f"/{GRAPH_VERSION}/{PHONE_ID}/messages")
        assert request.headers["authorization"] == f"Bearer {SECRET}"

    def test_the_contents(self) -> None:
        assert self.sent(self.message())["text"] == {"body": PLAIN, "preview_url": True}
        assert self.sent(replace(self.message(), link_preview=False))["text"]["preview_url"] is False
        assert self.sent(self.message(MessageType.IMAGE))["image"] == {"link": "https://example.org/a.jpg", "caption": PLAIN}
        assert self.sent(self.message(MessageType.AUDIO))["audio"] == {"link": "https://example.org/a.jpg"}
        assert "caption" not in self.sent(replace(self.message(MessageType.VIDEO), caption=" "))["video"]
        template = self.sent(self.message(MessageType.TEMPLATE))["template"]
        assert template == {"name": "parcel_ready", "language": {"code": "en_US"}, "components": list(COMPONENTS)}

    @pytest.mark.parametrize(
        ("filename", "url", "seen"),
        [
            ("Invoice Ana.pdf", "https://example.org/1", "Invoice Ana.pdf"),
            ("", "https://example.org/files/price%20list.pdf?x=1", "price list.pdf"),
            ("", "https://example.org", "document"),
        ],
    )
    def test_the_name_of_a_document(self, filename: str, url: str, seen: str) -> None:
        message = replace(self.message(MessageType.DOCUMENT), filename=filename, media_url=url)
        assert self.sent(message)["document"]["filename"] == seen

    @pytest.mark.parametrize(
        "address",
        [
            "120363041234567890@g.us",
            "998877@lid",
            "120363999@newsletter",
            "status@broadcast",
            "+12025550101",
            "12025550101",
            "",
            "1/2@c.us",
        ],
    )
    def test_groups_and_hidden_ids_do_not_leave(self, address: str) -> None:
        assert self.make().send(address, self.message(), REF, soon()).code == ErrorCode.INVALID_RECIPIENT
        assert self.server.connections == 0

    @pytest.mark.parametrize(
        ("type", "changes", "code"),
        [
            (MessageType.TEXT, {"text": " \n"}, ErrorCode.FATAL),
            (MessageType.TEXT, {"text": "x" * 4097}, ErrorCode.FATAL),
            (MessageType.IMAGE, {"media_url": ""}, ErrorCode.MISCONFIGURED),
            (MessageType.TEMPLATE, {"template_name": ""}, ErrorCode.MISCONFIGURED),
            (MessageType.TEMPLATE, {"template_language": ""}, ErrorCode.MISCONFIGURED),
            (
                MessageType.TEMPLATE,
                {"template_components": ({"type": "body", "parameters": [{"type": "text", "text": " "}]},)},
                ErrorCode.FATAL,
            ),
        ],
        ids=["empty", "too long", "no media", "no name", "no language", "empty value"],
    )
    def test_what_cannot_be_sent_does_not_leave(self, type: MessageType, changes: dict[str, Any], code: ErrorCode) -> None:
        assert self.make().send(PERSON, replace(self.message(type), **changes), REF, soon()).code == code
        assert self.server.connections == 0

    def test_without_a_phone_number_id_nothing_leaves(self) -> None:
        assert self.send(phone_number_id="").code == ErrorCode.MISCONFIGURED
        assert self.make(phone_number_id="").check_session(soon()).state == SessionState.DISCONNECTED
        assert self.server.connections == 0

    # --- what comes back

    @pytest.mark.parametrize(
        "changes",
        [
            {"contacts": [{"input": "5511987654321", "wa_id": "551187654321"}]},
            {"messages": [{"id": WAMID, "message_status": "accepted"}]},
            {"messages": [{"id": WAMID, "message_status": "held_for_quality_assessment"}]},
        ],
        ids=["another wa_id", "accepted", "held"],
    )
    def test_accepted_in_other_words(self, changes: dict[str, Any]) -> None:
        assert self.send(reply(200, {**ACCEPTED, **changes})).message_id == WAMID

    @pytest.mark.parametrize(
        ("number", "code"), [(number, code) for code, numbers in BY_CODE.items() for number in numbers], ids=lambda value: str(value)
    )
    def test_every_code(self, number: int, code: ErrorCode) -> None:
        result = self.send(meta(number))
        assert (result.answer, result.code, result.one_recipient) == (Answer.REFUSED, code, False)
        assert f"code {number}): Some title; Some details." in result.detail

    def test_the_table_above_has_them_all(self) -> None:
        assert CODES.keys() - {number for numbers in BY_CODE.values() for number in numbers} == {131056}

    @pytest.mark.parametrize("status", [200, 400, 403, 429, 500])
    def test_the_code_decides_and_not_the_status(self, status: int) -> None:
        assert self.send(meta(131026, status=status)).code == ErrorCode.INVALID_RECIPIENT
        assert self.send(meta(131000, status=status)).code == ErrorCode.UNCONFIRMED

    def test_the_limit_of_one_person_holds_up_nobody_else(self) -> None:
        result = self.send(meta(131056, "(#131056) pair rate limit hit"))
        assert (result.code, result.one_recipient, result.retry_after) == (ErrorCode.RATE_LIMIT, True, timedelta(minutes=2))

    def test_maintenance_waits_for_a_minute(self) -> None:
        assert self.send(meta(131057)).retry_after == timedelta(minutes=1)
        assert self.send(meta(130429, status=429)).retry_after is None

    @pytest.mark.parametrize(
        "answer",
        [
            reply(200, {}),
            reply(200, {**ACCEPTED, "messages": []}),
            reply(200, {"messages": [{"id": ""}]}),
            reply(200, {"messages": "x"}),
            reply(200, {**ACCEPTED, "error": "x"}),
            reply(400, {"error": {"message": "no code"}}),
            reply(400, {"error": "text"}),
            reply(404, b"<h1>Not Found</h1>"),
            meta(999999, status=500),
        ],
        ids=["empty", "no message", "no id", "odd", "both", "no code", "no object", "a page", "unknown, 500"],
    )
    def test_what_is_no_clear_answer_is_a_doubt(self, answer: scripted_server.Answer) -> None:
        self.doubtful(self.send(answer))

    def test_the_values_of_a_template_are_not_quoted(self) -> None:
        self.server.script(meta(132012, "Parameter format does not match: Ana-Maria in body"))
        message = replace(
            self.message(MessageType.TEMPLATE), template_components=({"type": "body", "parameters": [{"text": "Ana-Maria"}]},)
        )
        detail = self.make().send(PERSON, message, REF, soon()).detail
        assert "Ana-Maria" not in detail
        assert "in body" in detail

    # --- the rate

    @pytest.mark.parametrize(("rate", "metered", "burst"), [(None, 64, 32), (80, 64, 32), (20, 16, 16), (1, 0.8, 1), (1000, 64, 32)])
    def test_four_fifths_of_the_throughput(self, rate: float | None, metered: float, burst: int) -> None:
        found = self.make(rate=rate).metered
        assert found is not None
        assert (found.rate, found.burst) == (pytest.approx(metered), burst)

    # --- the session

    @pytest.mark.parametrize(
        ("answer", "state", "words"),
        [
            (reply(200, {"id": PHONE_ID, "status": "CONNECTED", "quality_rating": "GREEN"}), SessionState.CONNECTED, ""),
            (reply(200, {"id": PHONE_ID, "quality_rating": "UNKNOWN"}), SessionState.CONNECTED, ""),
            (reply(200, {"id": PHONE_ID, "status": "CONNECTED", "quality_rating": "RED"}), SessionState.CONNECTED, "quality is low"),
            (reply(200, {"id": PHONE_ID, "status": "FLAGGED"}), SessionState.CONNECTED, "flagged"),
            (reply(200, {"id": PHONE_ID, "status": "RESTRICTED"}), SessionState.RESTRICTED, "conversations"),
            (reply(200, {"id": PHONE_ID, "status": "BANNED"}), SessionState.DISCONNECTED, "banned"),
            (reply(200, {"id": PHONE_ID, "status": "PENDING"}), SessionState.CONNECTING, "not registered"),
            (reply(200, {"id": PHONE_ID, "status": "DANCING"}), SessionState.DISCONNECTED, "not known"),
            (reply(200, {"id": "7"}), SessionState.DISCONNECTED, "that can be understood"),
            (reply(200, b"<title>Log in</title>"), SessionState.DISCONNECTED, "that can be understood"),
            (meta(190, "Session has expired", status=401), SessionState.DISCONNECTED, "access token is wrong or has expired"),
            (meta(100, "Unsupported get request", error_subcode=33), SessionState.DISCONNECTED, "does not know the phone number ID"),
            (reply(500, b""), SessionState.DISCONNECTED, "that can be understood"),
            (CLOSE, SessionState.DISCONNECTED, "does not answer"),
        ],
        ids=[
            *("connected", "no status", "low quality", "flagged", "restricted", "banned", "pending", "unknown state"),
            *("another id", "a page", "expired", "wrong id", "500", "cut"),
        ],
    )
    def test_a_check_says_what_is_wrong(self, answer: scripted_server.Answer, state: SessionState, words: str) -> None:
        self.server.script(answer)
        check = self.make().check_session(soon())
        assert check.state == state
        assert words in check.detail and bool(check.detail) == bool(words)
        request = self.server.requests[0]
        assert request.path.startswith(f"/{GRAPH_VERSION}/{PHONE_ID}?fields=") and request.headers["authorization"] == f"Bearer {SECRET}"

    # --- templates

    def test_the_templates_of_all_pages(self) -> None:
        header = {"type": "HEADER", "format": "TEXT", "text": "Parcel {{1}}"}
        body = {"type": "BODY", "text": "Dear {{1}}, parcel {{2}} is ready, {{1}}."}
        first = {"name": "parcel_ready", "language": "en_US", "status": "APPROVED", "category": "UTILITY", "components": [header, body]}
        picture = {"type": "HEADER", "format": "IMAGE", "example": {}}
        named = {"type": "BODY", "text": "Dear {{ first_name }}"}
        second = {"name": "sale", "language": "pt_BR", "status": "PAUSED", "category": "MARKETING", "components": [picture, named]}
        more = {"cursors": {"before": "a", "after": "c2"}, "next": f"{self.server.url}/elsewhere?access_token={SECRET}"}
        self.server.script(
            reply(200, {"data": [first], "paging": more}), reply(200, {"data": [second, {}], "paging": {"cursors": {"after": "c3"}}})
        )
        assert self.make().list_templates(soon()) == [
            Template("parcel_ready", "en_US", "APPROVED", "UTILITY", (header, body), body_parameters=2, header_parameters=1),
            Template("sale", "pt_BR", "PAUSED", "MARKETING", (picture, named), body_parameters=1, header_parameters=1),
        ]
        path = f"/{GRAPH_VERSION}/{WABA}/message_templates?fields=name%2Clanguage%2Cstatus%2Ccategory%2Ccomponents&limit=100"
        assert [request.path for request in self.server.requests] == [path, f"{path}&after=c2"]

    def test_a_part_of_the_templates_is_no_answer(self) -> None:
        endless = reply(200, {"data": [], "paging": {"cursors": {"after": "x"}, "next": "https://graph.facebook.com/x"}})
        self.server.usual = endless
        with pytest.raises(NotPossible, match="more than 2000 templates"):
            self.make().list_templates(soon())
        assert len(self.server.requests) == 20

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (meta(190, status=401), "expired"),
            (meta(100, error_subcode=33), "Business Account ID"),
            (reply(200, {"data": 1}), "that can be understood"),
            (reply(500, {"error": {"message": f"token {SECRET}"}}), "that can be understood"),
            (RESET, "could not be asked"),
        ],
        ids=["token", "account", "odd", "500", "cut"],
    )
    def test_templates_that_cannot_be_listed(self, answer: scripted_server.Answer, words: str) -> None:
        self.server.script(answer)
        with pytest.raises(NotPossible, match=words) as refusal:
            self.make().list_templates(soon())
        assert SECRET not in str(refusal.value)
        with pytest.raises(NotPossible, match="missing"):
            self.make(business_account_id="").list_templates(soon())

    # --- webhooks

    def challenge(self, **changes: str) -> WebhookRequest:
        query = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "1158201444", **changes}
        return WebhookRequest("GET", "https://paceline.example.org/", {}, query, b"")

    def test_the_challenge_is_repeated(self) -> None:
        answer = self.make().accept_webhook(self.challenge())
        assert (answer.body, answer.items, answer.content_type) == ("1158201444", (), "text/plain")

    @pytest.mark.parametrize(
        ("name", "value", "status"), [("hub.verify_token", "é", 401), ("hub.verify_token", "", 401), ("hub.mode", "x", 400)]
    )
    def test_another_challenge_is_refused(self, name: str, value: str, status: int) -> None:
        assert self._refused(self.challenge(**{name: value})).status == status
        bare = WhatsAppCloudProvider(SessionConfig(settings=self.settings))
        with pytest.raises(WebhookRefused):
            bare.accept_webhook(self.challenge(**{"hub.verify_token": ""}))

    def test_another_method_is_refused(self) -> None:
        assert self._refused(self.signed(method="PUT")).status == 405

    @pytest.mark.parametrize(
        ("state", "receipt"),
        [("sent", "ACCEPTED"), ("delivered", "DELIVERED"), ("read", "READ"), ("played", "READ"), ("failed", "FAILED")],
    )
    def test_receipts(self, state: str, receipt: str) -> None:
        (event,) = self.events(change(of_number(statuses=[status(state)])))
        assert (event.state, event.message_id, event.client_ref) == (ReceiptState(receipt), WAMID, REF)
        assert event.at == datetime(2026, 11, 30, 12, 0, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("number", "code"),
        [(131026, "INVALID_RECIPIENT"), (131049, "INVALID_RECIPIENT"), (132015, "MISCONFIGURED"), (131000, "TRANSIENT"), (7, "FATAL")],
    )
    def test_a_failure_has_its_code(self, number: int, code: str) -> None:
        errors = [{"code": number, "title": "Not to 12025550101", "error_data": {"details": "Some details."}}]
        (event,) = self.events(change(of_number(statuses=[status("failed", errors=errors)])))
        assert event.code == ErrorCode(code)
        assert "Some details." in event.detail and "12025550101" not in event.detail

    @pytest.mark.parametrize("ref", [None, "", "crm-77", 5])
    def test_a_status_of_somebody_elses_message_has_no_reference(self, ref: Any) -> None:
        (event,) = self.events(change(of_number(statuses=[status(biz_opaque_callback_data=ref)])))
        assert isinstance(event, Receipt) and event.client_ref is None

    def test_only_this_number(self) -> None:
        assert self.events(change(of_number("999", statuses=[status()], messages=[incoming(text={"body": "x"})]))) == []
        assert self.events(change({"statuses": [status()]})) == []

    @pytest.mark.parametrize(
        ("message", "text", "kind"),
        [
            (incoming(text={"body": "Hello"}), "Hello", "TEXT"),
            (incoming("button", button={"payload": "P", "text": "Yes"}), "Yes", "BUTTON"),
            (
                incoming("interactive", interactive={"type": "button_reply", "button_reply": {"id": "1", "title": "Stop"}}),
                "Stop",
                "INTERACTIVE",
            ),
            (incoming("interactive", interactive={"type": "list_reply", "list_reply": {"id": "1", "title": "Two"}}), "Two", "INTERACTIVE"),
            (incoming("image", image={"id": "1", "caption": "Look"}), "Look", "IMAGE"),
            (incoming("audio", audio={"id": "1"}), "", "AUDIO"),
            (incoming("interactive", interactive={"type": 7}), "", "INTERACTIVE"),
            (incoming("unsupported"), "", "UNSUPPORTED"),
        ],
        ids=["text", "button", "button_reply", "list_reply", "image", "audio", "odd", "unsupported"],
    )
    def test_what_people_write(self, message: dict[str, Any], text: str, kind: str) -> None:
        contacts = [{"profile": {"name": "Ana"}, "wa_id": "12025550101"}]
        (event,) = self.events(change(of_number(contacts=contacts, messages=[message])))
        assert event == Inbound(PERSON, datetime(2026, 11, 30, 12, 0, tzinfo=UTC), text, "wamid.IN1", "Ana", kind)

    @pytest.mark.parametrize(
        "message",
        [incoming("reaction", reaction={"emoji": "x"}), incoming("system", system={}), incoming(**{"from": "US.13491208655302741918"})],
        ids=["reaction", "system", "no number"],
    )
    def test_what_is_no_message_from_a_number(self, message: dict[str, Any]) -> None:
        assert self.events(change(of_number(messages=[message]))) == []

    def test_a_time_nobody_can_read_is_an_error_of_that_item(self) -> None:
        for timestamp in (None, "soon", "9" * 30):
            (item,) = self._items(self.signed(change(of_number(statuses=[status(timestamp=timestamp)]))))
            with pytest.raises(ValueError):
                self.make().read_event(item)

    RESTRICTION = {"event": "ACCOUNT_RESTRICTION", "restriction_info": [{"restriction_type": "RESTRICTED_BIZ_INITIATED_MESSAGING"}]}

    @pytest.mark.parametrize(
        ("update", "state"),
        [
            ({"event": "DISABLED_UPDATE", "ban_info": {"waba_ban_state": "DISABLE"}}, SessionState.DISCONNECTED),
            ({"event": "ACCOUNT_DELETED"}, SessionState.DISCONNECTED),
            (RESTRICTION, SessionState.RESTRICTED),
            ({**RESTRICTION, "phone_number": "16505551111"}, None),
            ({"event": "ACCOUNT_RESTRICTION", "restriction_info": [{"restriction_type": "RESTRICTED_ADD_PHONE_NUMBER_ACTION"}]}, None),
            ({"event": "DISABLED_UPDATE", "ban_info": {"waba_ban_state": "SCHEDULE_FOR_DISABLE"}}, None),
            ({"event": "DISABLED_UPDATE", "ban_info": {"waba_ban_state": "REINSTATE"}}, None),
            ({"event": "ACCOUNT_VIOLATION", "violation_info": {"violation_type": "SPAM"}}, None),
        ],
        ids=["disabled", "deleted", "restricted", "of a number", "add numbers", "scheduled", "reinstated", "violation"],
    )
    def test_what_becomes_of_the_account(self, update: dict[str, Any], state: SessionState | None) -> None:
        events = self.events(change(update, "account_update"))
        assert [event.check.state for event in events if isinstance(event, StateReport)] == ([state] if state else [])
        assert self.events(change(update, "account_update", waba="1")) == []

    def test_other_fields_are_kept_by_name_alone(self) -> None:
        (item,) = self._items(self.signed(change({"messages": ["private"]}, "smb_message_echoes")))
        assert item == WebhookItem(item.event_id, "smb_message_echoes", {})
        assert self.make().read_event(item) == []


# --- the forms


def test_the_settings() -> None:
    form = WhatsAppCloudSettings({"phone_number_id": f" {PHONE_ID} ", "business_account_id": WABA, "rate": "20"})
    assert form.is_valid(), form.errors
    assert form.cleaned_data == {"phone_number_id": PHONE_ID, "business_account_id": WABA, "rate": 20}
    assert "base_url" not in form.fields


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("phone_number_id", ""),
        ("phone_number_id", "+12025550101"),
        ("phone_number_id", "1 202"),
        ("business_account_id", "x"),
        ("business_account_id", PHONE_ID),
        ("rate", "0"),
        ("rate", "81"),
    ],
)
def test_wrong_settings(field: str, value: str) -> None:
    form = WhatsAppCloudSettings({"phone_number_id": PHONE_ID, "business_account_id": WABA, field: value})
    assert list(form.errors) == [field]


@pytest.mark.parametrize(
    ("field", "value"),
    [("access_token", "EA AB"), ("access_token", ""), ("app_secret", "x" * 32), ("app_secret", "ab12"), ("verify_token", "")],
)
def test_wrong_credentials(field: str, value: str) -> None:
    good = {"access_token": "EAAB", "app_secret": APP_SECRET, "verify_token": VERIFY_TOKEN}
    assert WhatsAppCloudCredentials(good).is_valid()
    form = WhatsAppCloudCredentials({**good, field: value})
    assert list(form.errors) == [field]
    assert APP_SECRET not in form.as_p() and VERIFY_TOKEN not in form.as_p()

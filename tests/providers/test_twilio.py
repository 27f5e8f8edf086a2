import base64
import hashlib
import hmac
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import pytest

from sessions_app.providers.base import (
    Answer,
    ErrorCode,
    Inbound,
    Message,
    MessageType,
    Presence,
    Receipt,
    SentMessage,
    SessionState,
    Verification,
    WebhookRequest,
)
from sessions_app.providers.twilio import TwilioCredentials, TwilioProvider, TwilioSettings
from sessions_app.providers.twilio_answers import CODES, GSM_7, GSM_7_ESCAPED, segments
from tests.providers import scripted_server
from tests.providers.contract import REF, SECRET, TEXT, HTTPChannelContract, WebhookContract, soon
from tests.providers.scripted_server import CLOSE, reply

ACCOUNT, SERVICE, SID = "AC" + "0a" * 16, "MG" + "1b" * 16, "SM" + "2c" * 16
PHONE, SENDER = "+12025550101", "+14155552345"
CLAIMED_AT = datetime(2026, 11, 30, 0, 0, 30, tzinfo=UTC)
PLAIN = TEXT.replace("\r\n", "\n")
CALLBACK = "https://paceline.example.org/api/webhooks/6f1f/"

# What Twilio publishes for CreateMessage: form field -> (pattern, required)
CREATE_MESSAGE = {
    "To": (r"\+[1-9][0-9]{6,14}", True),
    "StatusCallback": (r"https?://[A-Za-z0-9.:-]+/.*", False),
    "From": (r".+", False),
    "MessagingServiceSid": (r"MG[0-9a-fA-F]{32}", False),
    "Body": (r"(?s).{1,1600}", False),
    "ApplicationSid": (r"AP[0-9a-fA-F]{32}", False),
    "ProvideFeedback": (r"true|false", False),
    "Attempt": (r"[0-9]+", False),
    "ValidityPeriod": (r"[0-9]{1,5}", False),
    "ContentRetention": (r"retain|discard", False),
    "AddressRetention": (r"retain|obfuscate", False),
    "SmartEncoded": (r"true|false", False),
    "ShortenUrls": (r"true|false", False),
    "SendAsMms": (r"true|false", False),
    "MediaUrl": (r"https?://.*", False),
    "ContentSid": (r"HX[0-9a-fA-F]{32}", False),
}
CREATED = {
    "account_sid": ACCOUNT,
    "api_version": "2010-04-01",
    "body": PLAIN,
    "date_created": format_datetime(CLAIMED_AT + timedelta(seconds=2)),
    "date_sent": None,
    "direction": "outbound-api",
    "error_code": None,
    "error_message": None,
    "from": SENDER,
    "messaging_service_sid": None,
    "num_segments": "1",
    "sid": SID,
    "status": "queued",
    "to": PHONE,
}

BY_CODE = {
    ErrorCode.DISCONNECTED: [20003, 20404, 30002],
    ErrorCode.RATE_LIMIT: [20429, 21611, 30001, 63017],
    ErrorCode.INVALID_RECIPIENT: [21211, 21217, 21401, 21408, 21608, 21610, 21612, 21614, 21635, 30003, 30004, 30005, 30006],
    ErrorCode.MISCONFIGURED: [14103, 21605, 21617, 21212, 21601, 21606, 21659, 14105, 21609, 30007],
    ErrorCode.FATAL: [30008, 21999],
    ErrorCode.UNCONFIRMED: [20500],
}


def refusal(code: Any, status: int = 400) -> scripted_server.Answer:
    return reply(
        status, {"code": code, "message": "Some words.", "more_info": f"https://www.twilio.com/docs/errors/{code}", "status": status}
    )


def signature(text: str, token: str = SECRET) -> str:
    return base64.b64encode(hmac.new(token.encode(), text.encode(), hashlib.sha1).digest()).decode()


def callback(state: str = "delivered", **changes: str) -> dict[str, str]:
    return {"AccountSid": ACCOUNT, "From": SENDER, "MessageSid": SID, "MessageStatus": state, "SmsStatus": state, "To": PHONE, **changes}


def incoming(**changes: str) -> dict[str, str]:
    whole = {"AccountSid": ACCOUNT, "From": PHONE, "To": SENDER, "MessageSid": "SM" + "3d" * 16, "SmsStatus": "received", "Body": "STOP"}
    return {**whole, "NumMedia": "0", "FromCity": "", **changes}


class TestTwilio(HTTPChannelContract, WebhookContract):
    provider = TwilioProvider
    address = PHONE
    credentials = {"auth_token": SECRET}
    settings = {"account_sid": ACCOUNT, "sender": SENDER}
    accepted = reply(201, CREATED)
    accepted_id = SID
    unauthorised = refusal(20003, 401)
    takes_an_empty_body = False
    address_is_a_setting = False

    @classmethod
    def error(cls, words: Any) -> dict[str, Any]:
        return {"message": words, "more_info": "bad\0news"}

    def form(self, **settings: Any) -> dict[str, str]:
        assert self.send(**settings).answer == Answer.ACCEPTED
        fields = parse_qs(self.server.requests[-1].body.decode(), keep_blank_values=True, strict_parsing=True)
        assert all(len(values) == 1 for values in fields.values())
        return {name: values[0] for name, values in fields.items()}

    def signed(self, body: bytes = b"", *, token: str = SECRET, url: str = f"{CALLBACK}?ref={REF}", **changes: Any) -> WebhookRequest:
        body = body or urlencode(callback()).encode()
        try:
            form = parse_qs(body.decode(), keep_blank_values=True)
        except ValueError:
            form = {}
        text = url + "".join(name + value for name in sorted(form) for value in sorted(set(form[name])))
        headers = {"content-type": "application/x-www-form-urlencoded", "x-twilio-signature": signature(text, token)}
        query = {name: values[-1] for name, values in parse_qs(url.partition("?")[2]).items()}
        return replace(WebhookRequest("POST", url, headers, query, body), **changes)

    def forged(self) -> WebhookRequest:
        return self.signed(token="another")

    def unsigned(self) -> WebhookRequest:
        return replace(self.signed(), headers={"content-type": "application/x-www-form-urlencoded"})

    def events(self, fields: dict[str, str], **changes: Any) -> list[Any]:
        items = self._items(self.signed(urlencode(fields).encode(), **changes))
        return [event for item in items for event in self.make().read_event(item)]

    # --- what leaves

    @pytest.mark.parametrize(
        "sender",
        [{}, {"sender": SERVICE}, {"sender": "Paceline"}, {"callback_url": CALLBACK}],
        ids=["number", "service", "name", "callback"],
    )
    def test_the_request_has_the_published_shape(self, sender: dict[str, Any]) -> None:
        form = self.form(**sender)
        assert form.keys() <= CREATE_MESSAGE.keys()
        for name, (pattern, required) in CREATE_MESSAGE.items():
            if required or name in form:
                assert re.fullmatch(pattern, form[name]), name
        assert ("From" in form) != ("MessagingServiceSid" in form)
        request = self.server.requests[0]
        assert (request.method, request.path) == ("POST", f"/2010-04-01/Accounts/{ACCOUNT}/Messages.json")
        assert request.headers["content-type"] == "application/x-www-form-urlencoded"
        assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode() == f"{ACCOUNT}:{SECRET}"

    def test_the_fields(self) -> None:
        assert self.form() == {"To": PHONE, "Body": PLAIN, "From": SENDER}
        assert self.form(sender=SERVICE)["MessagingServiceSid"] == SERVICE
        assert self.form(callback_url=CALLBACK)["StatusCallback"] == f"{CALLBACK}?ref={REF}"
        assert self.form(callback_url=f"{CALLBACK}?a=1")["StatusCallback"] == f"{CALLBACK}?a=1&ref={REF}"

    @pytest.mark.parametrize("address", ["12025550101", "whatsapp:+12025550101", "12025550101@c.us", "+0123456789", "", "a@b.org"])
    def test_what_is_no_phone_number_does_not_leave(self, address: str) -> None:
        assert self.make().send(address, self.message(), REF, soon()).code == ErrorCode.INVALID_RECIPIENT
        assert self.make().verify(SentMessage(address, self.message(), REF, CLAIMED_AT), soon()).presence == Presence.UNKNOWN
        assert self.server.connections == 0

    @pytest.mark.parametrize("text", ["", " \r\n", "x" * 1601], ids=["empty", "blank", "too long"])
    def test_a_text_that_cannot_be_sent_does_not_leave(self, text: str) -> None:
        assert self.make().send(PHONE, Message(MessageType.TEXT, text=text), REF, soon()).code == ErrorCode.FATAL
        assert self.server.connections == 0

    @pytest.mark.parametrize("missing", ["account_sid", "sender"])
    def test_without_account_or_sender_nothing_leaves(self, missing: str) -> None:
        assert self.send(**{missing: ""}).code == ErrorCode.MISCONFIGURED
        assert self.make(**{missing: ""}).check_session(soon()).state == SessionState.DISCONNECTED
        assert self.server.connections == 0

    # --- what comes back

    @pytest.mark.parametrize(
        ("number", "code"), [(number, code) for code, numbers in BY_CODE.items() for number in numbers], ids=lambda value: str(value)
    )
    def test_every_code(self, number: int, code: ErrorCode) -> None:
        result = self.send(refusal(number))
        assert (result.answer, result.code, result.one_recipient) == (Answer.REFUSED, code, False)
        assert result.detail.endswith(f"(400, code {number}): Some words.; https://www.twilio.com/docs/errors/{number}")

    def test_the_table_above_has_them_all(self) -> None:
        assert CODES.keys() - {number for numbers in BY_CODE.values() for number in numbers} == {14107}

    def test_the_limit_of_one_person_holds_up_nobody_else(self) -> None:
        result = self.send(refusal(14107))
        assert (result.code, result.one_recipient, result.retry_after) == (ErrorCode.RATE_LIMIT, True, timedelta(seconds=30))

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (refusal(29999, 401), ErrorCode.DISCONNECTED),
            (refusal(29999, 403), ErrorCode.DISCONNECTED),
            (refusal(29999, 404), ErrorCode.DISCONNECTED),
            (refusal(29999, 429), ErrorCode.RATE_LIMIT),
            (refusal(29999, 500), ErrorCode.UNCONFIRMED),
            (refusal("21211"), ErrorCode.UNCONFIRMED),
            (reply(400, b"<h1>Bad Request</h1>"), ErrorCode.UNCONFIRMED),
            (reply(201, {}), ErrorCode.UNCONFIRMED),
            (reply(201, []), ErrorCode.UNCONFIRMED),
            (reply(201, {**CREATED, "sid": "x"}), ErrorCode.UNCONFIRMED),
            (reply(201, {**CREATED, "status": "failed", "error_code": 30006, "error_message": "Landline"}), ErrorCode.INVALID_RECIPIENT),
            (reply(201, {**CREATED, "status": "failed"}), ErrorCode.FATAL),
        ],
        ids=[
            "401",
            "403",
            "404",
            "429",
            "500",
            "text for a code",
            "a page",
            "empty",
            "list",
            "no sid",
            "failed at once",
            "failed, no code",
        ],
    )
    def test_other_answers(self, answer: scripted_server.Answer, code: ErrorCode) -> None:
        assert self.send(answer).code == code

    @pytest.mark.parametrize("status", ["queued", "accepted", "sending", "sent", "delivered"])
    def test_accepted_in_every_state(self, status: str) -> None:
        assert self.send(reply(201, {**CREATED, "status": status, "num_segments": "0"})).message_id == SID

    # --- the rate

    @pytest.mark.parametrize(
        ("rate", "metered", "burst"), [(None, 0.8, 1), (1, 0.8, 1), (3, 2.4, 3), (0.1, 0.08, 1), (100, 80, 32), (1000, 80, 32)]
    )
    def test_four_fifths_of_the_throughput(self, rate: float | None, metered: float, burst: int) -> None:
        found = self.make(rate=rate).metered
        assert found is not None
        assert (found.rate, found.burst) == (pytest.approx(metered), burst)

    # --- the session

    @pytest.mark.parametrize(
        ("answer", "state", "words"),
        [
            (reply(200, {"sid": ACCOUNT, "status": "active", "type": "Full", "auth_token": SECRET}), SessionState.CONNECTED, ""),
            (reply(200, {"sid": ACCOUNT, "status": "active", "type": "Trial"}), SessionState.CONNECTED, "verified numbers only"),
            (reply(200, {"sid": ACCOUNT, "status": "suspended", "auth_token": SECRET}), SessionState.DISCONNECTED, "not active"),
            (reply(200, {"sid": ACCOUNT, "status": "closed"}), SessionState.DISCONNECTED, "not active"),
            (reply(200, {"sid": "AC1", "status": "active", "auth_token": SECRET}), SessionState.DISCONNECTED, "cannot be understood"),
            (refusal(20003, 401), SessionState.DISCONNECTED, "refused the Account SID or the auth token"),
            (refusal(20404, 404), SessionState.DISCONNECTED, "does not know the account"),
            (reply(500, b""), SessionState.DISCONNECTED, "(500"),
            (CLOSE, SessionState.DISCONNECTED, "does not answer"),
        ],
        ids=["active", "trial", "suspended", "closed", "another", "wrong token", "no account", "500", "cut"],
    )
    def test_a_check_says_what_is_wrong(self, answer: scripted_server.Answer, state: SessionState, words: str) -> None:
        self.server.script(answer)
        check = self.make().check_session(soon())
        assert check.state == state
        assert words in check.detail.replace("that can be", "cannot be") and bool(check.detail) == bool(words)
        assert SECRET not in check.detail
        assert self.server.requests[0].path == f"/2010-04-01/Accounts/{ACCOUNT}.json"

    # --- what became of a message

    def verify(self, *messages: Any, more: bool = False, **settings: Any) -> Verification:
        self.server.script(reply(200, {"messages": list(messages), "next_page_uri": "/2010-04-01/x" if more else None}))
        return self.make(**settings).verify(SentMessage(PHONE, self.message(), REF, CLAIMED_AT), soon())

    def test_found_by_recipient_time_and_text(self) -> None:
        assert self.verify("odd", {**CREATED, "body": "x", "sid": "SM1"}, CREATED) == Verification(Presence.PRESENT, SID)
        path, _, query = self.server.requests[0].path.partition("?")
        assert path == f"/2010-04-01/Accounts/{ACCOUNT}/Messages.json"
        assert query == f"To={quote(PHONE, safe='')}&DateSent%3E=2026-11-29&PageSize=50"

    def test_found_by_its_messaging_service(self) -> None:
        found = {**CREATED, "messaging_service_sid": SERVICE}
        assert self.verify(found, sender=SERVICE).presence == Presence.PRESENT
        assert self.verify(CREATED, sender=SERVICE).presence == Presence.ABSENT

    @pytest.mark.parametrize(
        "changes",
        [
            {"body": PLAIN + "!"},
            {"body": None},
            {"to": "+12025550199"},
            {"from": "+14155550000"},
            {"date_created": format_datetime(CLAIMED_AT - timedelta(seconds=61))},
            {"date_created": format_datetime(CLAIMED_AT + timedelta(seconds=601))},
            {"date_created": "soon"},
            {"date_created": None},
            {"status": "undelivered"},
            {"status": "failed"},
        ],
        ids=["text", "no text", "recipient", "sender", "earlier", "later", "no time", "null", "undelivered", "failed"],
    )
    def test_a_message_that_is_not_ours_or_failed_does_not_count(self, changes: dict[str, Any]) -> None:
        verification = self.verify({**CREATED, **changes})
        assert verification.presence == Presence.ABSENT and verification.detail
        assert self.verify({**CREATED, **changes}, CREATED).presence == Presence.PRESENT

    def test_absence_is_no_proof_and_a_full_page_no_absence(self) -> None:
        assert not TwilioProvider.absence_is_proof
        assert self.verify().presence == Presence.ABSENT
        assert self.verify(more=True).presence == Presence.UNKNOWN
        assert self.verify(CREATED, more=True).presence == Presence.PRESENT

    @pytest.mark.parametrize("answer", [refusal(20003, 401), reply(200, {}), reply(200, b"x"), reply(500, b""), CLOSE])
    def test_an_answer_that_says_neither_is_unknown(self, answer: scripted_server.Answer) -> None:
        self.server.script(answer)
        verification = self.make().verify(SentMessage(PHONE, self.message(), REF, CLAIMED_AT), soon())
        assert verification.presence == Presence.UNKNOWN and verification.detail

    # --- webhooks

    @pytest.mark.parametrize(
        ("signed", "called"),
        [
            ("https://p.example.org/x?ref=1", "https://p.example.org:443/x?ref=1"),
            ("https://p.example.org:443/x?ref=1", "https://p.example.org/x?ref=1"),
            ("http://p.example.org:80/x", "http://p.example.org/x"),
            ("https://p.example.org/x", "https://p.example.org:8443/x"),
            ("https://p.example.org:8443/x", "https://p.example.org:8443/x"),
        ],
    )
    def test_the_signature_with_and_without_a_port(self, signed: str, called: str) -> None:
        assert self._items(replace(self.signed(url=signed), url=called))

    @pytest.mark.parametrize(
        "called", ["https://q.example.org/x", "https://p.example.org/y", "http://p.example.org/x", "https://p.example.org/x?a=1"]
    )
    def test_the_signature_of_another_address(self, called: str) -> None:
        assert self._refused(replace(self.signed(url="https://p.example.org/x"), url=called)).status == 401

    def test_the_signature_that_twilio_publishes_as_an_example(self) -> None:
        url = "https://mycompany.com/myapp.php?foo=1&bar=2"
        form = {"CallSid": "CA1234567890ABCDE", "Caller": "+14158675309", "Digits": "1234", "From": "+14158675309", "To": "+18005551212"}
        headers = {"x-twilio-signature": "RSOYDt4T1cUTdK1PDd93/VVr8B8="}
        request = WebhookRequest("POST", url, headers, {"foo": "1", "bar": "2"}, urlencode(form).encode())
        provider = TwilioProvider(replace(self.make().config, credentials={"auth_token": "12345"}))
        assert provider.accept_webhook(request).items == ()

    def test_names_that_come_twice_are_signed_once_for_each_value(self) -> None:
        body = urlencode([*callback().items(), ("Extra", "b"), ("Extra", "a"), ("Extra", "b")]).encode()
        text = f"{CALLBACK}?ref={REF}" + "".join(
            name + value for name, value in sorted([*callback().items(), ("Extra", "a"), ("Extra", "b")])
        )
        request = self.signed(body)
        assert request.headers["x-twilio-signature"] == signature(text)
        assert self._items(request)

    def json_request(self, body: bytes, digest: str) -> WebhookRequest:
        url = f"{CALLBACK}?bodySHA256={digest}"
        headers = {"content-type": "application/json", "x-twilio-signature": signature(url)}
        return WebhookRequest("POST", url, headers, {"bodySHA256": digest}, body)

    def test_a_json_body_is_signed_by_its_hash(self) -> None:
        body = json.dumps(callback()).encode()
        digest = hashlib.sha256(body).hexdigest()
        assert [item.kind for item in self._items(self.json_request(body, digest))] == ["status.delivered"]
        assert self._refused(self.json_request(body + b" ", digest)).status == 401
        assert self._refused(replace(self.json_request(body, digest), headers={"content-type": "application/json"})).status == 401
        plain = replace(self.json_request(body, digest), url=CALLBACK, query={})
        assert self._refused(plain).status == 401, "no hash in the address"

    def test_a_get_is_refused(self) -> None:
        assert self._refused(self.signed(method="GET")).status == 405

    @pytest.mark.parametrize(
        ("status", "state"),
        [
            *((one, "ACCEPTED") for one in ("accepted", "queued", "sending", "sent")),
            *((one, "DELIVERED") for one in ("delivered", "read")),
            *((one, "FAILED") for one in ("undelivered", "failed")),
            *((one, None) for one in ("scheduled", "canceled", "dancing")),
        ],
    )
    def test_receipts(self, status: str, state: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TwilioProvider, "clock", staticmethod(lambda: CLAIMED_AT.timestamp()))
        events = self.events(callback(status))
        assert [event.state for event in events] == ([state] if state else [])
        for event in events:
            assert isinstance(event, Receipt)
            assert (event.message_id, event.client_ref, event.at) == (SID, REF, CLAIMED_AT)

    @pytest.mark.parametrize(
        ("number", "code"), [("30006", "INVALID_RECIPIENT"), ("30007", "MISCONFIGURED"), ("30008", "FATAL"), ("", "FATAL"), ("x", "FATAL")]
    )
    def test_a_failure_has_its_code(self, number: str, code: str) -> None:
        (event,) = self.events(callback("undelivered", ErrorCode=number))
        assert event.code == ErrorCode(code) and event.detail

    def test_without_our_reference_the_id_still_names_it(self) -> None:
        for url in (CALLBACK, f"{CALLBACK}?ref=x"):
            (event,) = self.events(callback(), url=url)
            assert (event.message_id, event.client_ref) == (SID, None)

    @pytest.mark.parametrize(
        ("changes", "kind"),
        [({}, "TEXT"), ({"MediaContentType0": "image/jpeg"}, "IMAGE"), ({"MediaContentType0": "application/pdf"}, "DOCUMENT")],
        ids=["text", "image", "document"],
    )
    def test_what_people_write(self, changes: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TwilioProvider, "clock", staticmethod(lambda: CLAIMED_AT.timestamp()))
        assert self.events(incoming(**changes)) == [Inbound(PHONE, CLAIMED_AT, "STOP", "SM" + "3d" * 16, message_type=kind)]

    @pytest.mark.parametrize(
        "fields",
        [
            incoming(From="whatsapp:+12025550101"),
            incoming(From="12345"),
            incoming(AccountSid="AC1"),
            callback(AccountSid="AC1"),
            {"A": "b"},
        ],
        ids=["another channel", "short code", "another account", "status of another account", "something else"],
    )
    def test_what_is_not_for_us_means_nothing(self, fields: dict[str, str]) -> None:
        assert self.events(fields) == []


# --- how long a text is


def test_the_alphabet_has_its_127_signs_and_10_more() -> None:
    assert (len(GSM_7), len(GSM_7_ESCAPED), GSM_7 & GSM_7_ESCAPED) == (127, 10, frozenset())


@pytest.mark.parametrize(
    ("text", "number", "encoding"),
    [
        ("", 0, "GSM-7"),
        ("a", 1, "GSM-7"),
        ("a" * 160, 1, "GSM-7"),
        ("a" * 161, 2, "GSM-7"),
        ("a" * 306, 2, "GSM-7"),
        ("a" * 307, 3, "GSM-7"),
        ("Dear Zoë" + "x", 1, "UCS-2"),
        ("àèéìòùñäöüß¿¡@£$¥", 1, "GSM-7"),
        ("€" * 80, 1, "GSM-7"),
        ("€" * 81, 2, "GSM-7"),
        ("€" * 152, 2, "GSM-7"),
        ("€" * 153, 3, "GSM-7"),
        ("a" * 152 + "€" + "a" * 151, 2, "GSM-7"),
        ("a" * 152 + "€" + "a" * 152, 3, "GSM-7"),
        ("ы" * 70, 1, "UCS-2"),
        ("ы" * 71, 2, "UCS-2"),
        ("ы" * 134, 2, "UCS-2"),
        ("ы" * 135, 3, "UCS-2"),
        ("a" * 69 + "ç", 1, "UCS-2"),
        ("a" * 149 + "“", 3, "UCS-2"),
        ("\U0001f600" * 35, 1, "UCS-2"),
        ("\U0001f600" * 36, 2, "UCS-2"),
        ("\U0001f600" * 66, 2, "UCS-2"),
        ("\U0001f600" * 67, 3, "UCS-2"),
        ("a" * 1600, 11, "GSM-7"),
        ("ы" * 1600, 24, "UCS-2"),
    ],
    ids=lambda value: f"{value[:1]}x{len(value)}".encode("unicode_escape").decode() if isinstance(value, str) and len(value) > 9 else None,
)
def test_segments(text: str, number: int, encoding: str) -> None:
    assert segments(text) == (number, encoding)


# --- the forms


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("+1 (415) 555-2345", SENDER),
        (SERVICE, SERVICE),
        ("12345", "12345"),
        ("Paceline", "Paceline"),
        ("My Shop 24", "My Shop 24"),
    ],
)
def test_senders(given: str, stored: str) -> None:
    form = TwilioSettings({"account_sid": ACCOUNT, "sender": given, "rate": ""})
    assert form.is_valid(), form.errors
    assert form.cleaned_data == {"account_sid": ACCOUNT, "sender": stored, "rate": None}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("account_sid", "AC12"),
        ("account_sid", "SK" + "0a" * 16),
        ("sender", ""),
        ("sender", "4155552345678"),
        ("sender", "A name too long"),
        ("sender", "MG12"[:2] + "é"),
        ("sender", "whatsapp:+14155552345"),
        ("rate", "0"),
        ("rate", "101"),
    ],
)
def test_wrong_settings(field: str, value: str) -> None:
    assert list(TwilioSettings({"account_sid": ACCOUNT, "sender": SENDER, field: value}).errors) == [field]


def test_the_auth_token() -> None:
    assert TwilioCredentials({"auth_token": " abc "}).is_valid()
    for wrong in ("", "a b", "clé"):
        assert not TwilioCredentials({"auth_token": wrong}).is_valid()
    assert SECRET not in TwilioCredentials({"auth_token": SECRET}).as_p()

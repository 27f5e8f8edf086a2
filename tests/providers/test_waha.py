import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessions_app.models import Session
from sessions_app.providers.base import (
    Answer,
    ErrorCode,
    Message,
    MessageType,
    Presence,
    Reach,
    SentMessage,
    SessionConfig,
    SessionState,
)
from sessions_app.providers.waha import WahaProvider
from sessions_app.providers.waha_answers import client_id, person, plain, raw_id
from sessions_app.providers.waha_connection import ENGINES, WahaCredentials, WahaSettings
from tests.providers import scripted_server
from tests.providers.contract import REF, SECRET, TEXT, HTTPChannelContract, soon
from tests.providers.scripted_server import CLOSE, HANG, reply

CLAIMED_AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
CHAT = "12025550101@c.us"

# POST /api/sendText, as WAHA 2026.7.1 publishes it: field -> (type, required)
SEND_TEXT = {
    "session": (str, True),
    "chatId": (str, True),
    "text": (str, True),
    "id": (str, False),
    "reply_to": (str, False),
    "linkPreview": (bool, False),
    "linkPreviewHighQuality": (bool, False),
}


def matches(body: dict[str, Any], schema: dict[str, tuple[type, bool]]) -> None:
    assert {name for name, (_, required) in schema.items() if required} <= body.keys() <= schema.keys()
    assert all(type(value) is schema[name][0] for name, value in body.items())


def failure(message: str, **request: Any) -> scripted_server.Answer:
    """A 500 as WAHA's filter of exceptions writes it, with our own request echoed."""
    whole = {"statusCode": 500, "timestamp": "2026", "exception": {"message": message, "name": "Error"}, "request": {"body": request}}
    return reply(500, {**whole, "version": {"version": "2026.7.1"}})


def unprocessable(status: str) -> scripted_server.Answer:
    words = "Session status is not as expected. Try again later or restart the session"
    return reply(422, {"error": words, "session": "sales", "status": status, "expected": ["WORKING"]})


def nest(status: int, message: Any) -> scripted_server.Answer:
    return reply(status, {"statusCode": status, "message": message, "error": "Some Error"})


ERRORS = {
    "malformed": (nest(400, ["chatId must be a string"]), ErrorCode.MISCONFIGURED),
    "wrong key": (reply(401, {"message": "Unauthorized", "statusCode": 401}), ErrorCode.DISCONNECTED),
    "key may not": (nest(403, "Forbidden resource"), ErrorCode.DISCONNECTED),
    "no such session": (nest(404, "We didn't find a session with name 'sales'."), ErrorCode.DISCONNECTED),
    "not working": (unprocessable("SCAN_QR_CODE"), ErrorCode.DISCONNECTED),
    "starting": (unprocessable("STARTING"), ErrorCode.DISCONNECTED),
    "no such method": (nest(422, "The method is not implemented by the engine."), ErrorCode.MISCONFIGURED),
    "one session only": (nest(422, "WAHA Core support only 'default' session."), ErrorCode.MISCONFIGURED),
    "throttled": (nest(429, "Too Many Requests"), ErrorCode.RATE_LIMIT),
    "account restricted": (failure("2 UNKNOWN: server returned error 463"), ErrorCode.DISCONNECTED),
    "another number": (failure("server returned error 4631"), ErrorCode.UNCONFIRMED),
    "unknown number, GOWS": (failure("no LID found for 12025550101@s.whatsapp.net from server"), ErrorCode.INVALID_RECIPIENT),
    "unknown number, WEBJS": (failure("Error: No LID for user"), ErrorCode.INVALID_RECIPIENT),
    "overlimit": (failure("rate-overlimit"), ErrorCode.RATE_LIMIT),
    "broken until restarted": (failure("server returned error 400"), ErrorCode.UNCONFIRMED),
    "browser gone": (failure("Evaluation failed: detached Frame"), ErrorCode.UNCONFIRMED),
    "sent, then failed": (failure("Cannot read properties of undefined (reading 'markedUnread')"), ErrorCode.UNCONFIRMED),
    "our text is echoed": (failure("oops", text="rate-overlimit, no LID found, server returned error 463"), ErrorCode.UNCONFIRMED),
    "our text is the message": (reply(500, {"message": "server returned error 463"}), ErrorCode.UNCONFIRMED),
    "bad gateway": (reply(502, b"<h1>Bad Gateway</h1>"), ErrorCode.UNCONFIRMED),
    "unavailable": (reply(503, {}, headers={"Retry-After": "5"}), ErrorCode.UNCONFIRMED),
    "gateway time-out": (reply(504, b""), ErrorCode.UNCONFIRMED),
    "conflict": (nest(409, "Conflict"), ErrorCode.UNCONFIRMED),
    "too large": (nest(413, "request entity too large"), ErrorCode.UNCONFIRMED),
    "teapot": (reply(418, b""), ErrorCode.UNCONFIRMED),
    "moved for good": (reply(301, b"", headers={"Location": "https://waha.example.org/"}), ErrorCode.MISCONFIGURED),
    "log in first": (reply(302, b"", headers={"Location": "/login"}), ErrorCode.MISCONFIGURED),
    "done, see there": (reply(303, b"", headers={"Location": "/done"}), ErrorCode.UNCONFIRMED),
    "moved for now": (reply(307, b"", headers={"Location": "/there"}), ErrorCode.MISCONFIGURED),
    "moved for good, same method": (reply(308, b"", headers={"Location": "/there"}), ErrorCode.MISCONFIGURED),
    "not modified": (reply(304, b""), ErrorCode.UNCONFIRMED),
    "a page": (reply(200, b"<title>Log in</title>"), ErrorCode.UNCONFIRMED),
    "a page as created": (reply(201, b"<title>Welcome</title>"), ErrorCode.UNCONFIRMED),
    "an empty 200": (reply(200, b""), ErrorCode.UNCONFIRMED),
    "a 200 of something else": (reply(200, {"ok": True}), ErrorCode.UNCONFIRMED),
    "queued by something else": (reply(202, {"queued": True}), ErrorCode.UNCONFIRMED),
}

SENT = {
    "WEBJS": {"_data": {"id": {}}, "id": {"fromMe": True, "remote": CHAT, "id": "3EB0AA", "_serialized": f"true_{CHAT}_3EB0AA"}, "ack": 0},
    "WEBJS without _serialized": {"id": {"fromMe": True, "remote": CHAT, "id": "3EB0AA", "$1": "x"}},
    "NOWEB": {"key": {"remoteJid": "12025550101@s.whatsapp.net", "fromMe": True, "id": "3EB0AA"}, "message": {}, "status": "PENDING"},
    "GOWS": {"id": f"true_{CHAT}_3EB0AA", "_data": {}},
    "hidden user": {"id": "true_998877@lid_3EB0AA"},
    "group": {"id": "true_120363041234567890@g.us_3EB0AA_998877@lid"},
    "as published": {"id": "true_11111111111@c.us_3EB0AA", "timestamp": 1666943582, "fromMe": True},
    "raw": {"id": "3EB0AA"},
}
NO_ID: list[Any] = [
    {},
    {"id": None},
    {"id": 5},
    {"id": {}},
    {"id": ["x"]},
    {"key": "x"},
    {"id": "<script>"},
    {"id": "A" * 300},
    [],
    "x",
    None,
]


@pytest.mark.parametrize("body", SENT.values(), ids=SENT.keys())
def test_the_id_of_every_engine(body: dict[str, Any]) -> None:
    assert raw_id(body) == "3EB0AA"


@pytest.mark.parametrize("body", NO_ID, ids=repr)
def test_no_id(body: Any) -> None:
    assert raw_id(body) == ""


def test_the_client_id_is_whatsapp_like_and_always_the_same() -> None:
    ids = {client_id(uuid.uuid4()) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(one) == 22 and one.startswith("3EB0") and one == one.upper() and int(one, 16) for one in ids)
    assert client_id(REF) == "3EB0479BE5CB022491F167"  # a look-up after an upgrade must find what was sent before it


def test_line_ends() -> None:
    assert plain("a\r\nb\rc\nd") == "a\nb\nc\nd"


class TestWaha(HTTPChannelContract):
    provider = WahaProvider
    settings = {"session": "sales", "engine": "WEBJS"}
    accepted = reply(201, SENT["WEBJS"])
    accepted_id = "3EB0AA"

    def test_it_is_as_slow_as_a_human(self) -> None:
        assert WahaProvider.pacing is None
        assert not WahaProvider.absence_is_proof

    # --- what is sent

    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_request_is_as_published(self, engine: str) -> None:
        self.send(engine=engine)
        request = self.server.requests[0]
        body = request.json()
        assert (request.method, request.path, request.headers["x-api-key"]) == ("POST", "/api/sendText", SECRET)
        matches(body, SEND_TEXT)
        assert (body["session"], body["chatId"], body["text"]) == ("sales", CHAT, TEXT.replace("\r\n", "\n"))
        assert body.get("id") == (client_id(REF) if engine in ("NOWEB", "GOWS") else None)

    @pytest.mark.parametrize(("preview", "quality"), [(True, False), (True, True), (False, False)])
    def test_the_link_preview_is_said(self, preview: bool, quality: bool) -> None:
        message = Message(MessageType.TEXT, text="https://example.org", link_preview=preview, link_preview_high_quality=quality)
        self.make().send(CHAT, message, REF, soon())
        body = self.server.requests[0].json()
        assert (body["linkPreview"], body["linkPreviewHighQuality"]) == (preview, quality)

    @pytest.mark.parametrize("engine", ["NOWEB", "GOWS"])
    def test_another_try_has_the_same_id(self, engine: str) -> None:
        self.send(CLOSE, engine=engine)
        self.send(engine=engine)
        first, second = (request.json() for request in self.server.requests)
        assert first == second

    @pytest.mark.parametrize("address", ["120363041234567890@g.us", "123456-7890@g.us", "998877@lid", "120363999@newsletter", CHAT])
    def test_every_kind_of_chat(self, address: str) -> None:
        assert self.make().send(address, self.message(), REF, soon()).answer == Answer.ACCEPTED

    @pytest.mark.parametrize(
        "address",
        ["12025550101", "status@broadcast", "12025550101@s.whatsapp.net", "+12025550101", "", "a@b.org", "1/../2@c.us"],
    )
    def test_what_is_no_chat_does_not_leave(self, address: str) -> None:
        assert self.make().send(address, self.message(), REF, soon()).code == ErrorCode.INVALID_RECIPIENT
        assert self.make().verify(SentMessage(address, self.message(), REF, CLAIMED_AT), soon()).presence == Presence.UNKNOWN
        assert self.server.connections == 0

    @pytest.mark.parametrize("text", ["", " \r\n\t"])
    def test_an_empty_text_does_not_leave(self, text: str) -> None:
        assert self.make().send(CHAT, Message(MessageType.TEXT, text=text), REF, soon()).code == ErrorCode.FATAL
        assert self.server.connections == 0

    def test_the_instances_own_waha(self, settings: Any) -> None:
        settings.WAHA_API_URL, settings.WAHA_API_KEY = f"{self.server.url}/waha/", "instance-key"
        named = SessionConfig(settings={"session": "default"})
        assert WahaProvider(named).send(CHAT, self.message(), REF, soon()).answer == Answer.ACCEPTED
        request = self.server.requests[0]
        assert (request.path, request.headers["x-api-key"], request.json()["session"]) == ("/waha/api/sendText", "instance-key", "default")
        settings.WAHA_API_URL = ""
        assert WahaProvider(named).send(CHAT, self.message(), REF, soon()).code == ErrorCode.MISCONFIGURED

    def test_without_a_session_chosen_nothing_leaves_from_wahas_default_account(self, settings: Any) -> None:
        settings.WAHA_API_URL = self.server.url
        assert WahaProvider(SessionConfig()).send(CHAT, self.message(), REF, soon()).code == ErrorCode.MISCONFIGURED
        assert self.server.connections == 0

    def test_an_address_typed_into_a_session_does_not_collect_the_instances_key(self, settings: Any) -> None:
        settings.WAHA_API_URL, settings.WAHA_API_KEY = "https://waha.example.org", "instance-key"
        WahaProvider(SessionConfig(settings={"base_url": self.server.url, "session": "default"})).send(CHAT, self.message(), REF, soon())
        assert "instance-key" not in str(self.server.requests[0].headers)

    @pytest.mark.parametrize(
        ("callback", "media", "fetched"),
        [
            ("", "https://site.example/p/files/t/a.png", "https://site.example/p/files/t/a.png"),
            ("http://web:8000/api/webhooks/7/", "https://site.example/p/files/t/a.png", "http://web:8000/files/t/a.png"),
            ("http://web:8000/p/api/webhooks/7/", "https://site.example/p/files/t/a.png", "http://web:8000/p/files/t/a.png"),
            ("http://proxy:1/hook", "https://site.example/p/files/t/a.png", "http://proxy:1/files/t/a.png"),
            ("http://web:8000/api/webhooks/7/", "https://cdn.example/files/t/a.png", "https://cdn.example/files/t/a.png"),
        ],
        ids=["the same name", "another name", "and a path", "another webhook", "not ours"],
    )
    def test_an_uploaded_file_is_fetched_where_waha_reaches_this_site(self, settings: Any, callback: str, media: str, fetched: str) -> None:
        settings.PUBLIC_URL = "https://site.example/p"
        message = replace(self.message(MessageType.IMAGE), media_url=media)
        assert self.make(callback_url=callback).send(CHAT, message, REF, soon()).answer == Answer.ACCEPTED
        assert self.server.requests[0].json()["file"] == {"mimetype": "image/png", "url": fetched, "filename": "a.png"}

    # --- seen and typing

    def paths(self) -> list[str]:
        return [request.path.removeprefix("/api/") for request in self.server.requests]

    def test_nothing_but_the_text_unless_chosen(self) -> None:
        self.send()
        assert self.paths() == ["sendText"]

    def test_seen_and_typing_before_a_text(self) -> None:
        chosen = {"show_seen": True, "show_typing": True}
        assert self.send(**chosen).answer == Answer.ACCEPTED
        assert self.paths() == ["sendSeen", "startTyping", "stopTyping", "sendText"]
        for request in self.server.requests[:3]:
            assert request.json() == {"session": "sales", "chatId": CHAT}
            assert request.headers["x-api-key"] == SECRET
        self.make(**chosen).send(CHAT, self.message(MessageType.IMAGE), REF, soon())
        assert self.paths()[4:] == ["sendImage"]

    @pytest.mark.parametrize("answer", [failure("markedUnread"), nest(404, "x"), CLOSE, reply(401, {})], ids=["500", "404", "cut", "401"])
    def test_their_failure_is_none_of_the_text(self, answer: scripted_server.Answer) -> None:
        self.server.script(answer, answer, answer, reply(201, SENT["WEBJS"]))
        result = self.make(show_seen=True, show_typing=True).send(CHAT, self.message(), REF, soon())
        assert (result.answer, result.message_id, self.paths()[-1]) == (Answer.ACCEPTED, "3EB0AA", "sendText")

    def test_they_take_a_third_of_the_time_at_most(self) -> None:
        self.server.script(HANG)
        result = self.make(show_seen=True, show_typing=True).send(CHAT, self.message(), REF, soon(0.9))
        assert result.answer == Answer.ACCEPTED
        assert self.paths() == ["sendSeen", "sendText"]

    # --- what comes back

    @pytest.mark.parametrize(("engine", "known"), [("NOWEB", True), ("GOWS", True), ("WEBJS", False), ("WPP", False)])
    def test_a_doubt_keeps_our_id_for_the_receipt(self, engine: str, known: bool) -> None:
        for answer in (CLOSE, reply(502, b"")):
            assert self.send(answer, engine=engine).message_id == (client_id(REF) if known else "")
        self.server.script(CLOSE)
        assert self.make(engine=engine).send(CHAT, self.message(MessageType.IMAGE), REF, soon()).message_id == ""
        assert self.send(nest(429, "x"), engine=engine).message_id == ""

    @pytest.mark.parametrize("body", SENT.values(), ids=SENT.keys())
    def test_accepted_by_every_engine(self, body: dict[str, Any]) -> None:
        assert self.send(reply(201, body)).message_id == "3EB0AA"
        assert self.send(reply(200, body)).message_id == "3EB0AA"

    def test_accepted_without_an_id(self) -> None:
        result = self.send(reply(201, {"message": "sent"}))
        assert (result.answer, result.message_id, result.http_status) == (Answer.ACCEPTED, "", 201)

    @pytest.mark.parametrize(("answer", "code"), ERRORS.values(), ids=ERRORS.keys())
    def test_errors(self, answer: scripted_server.Answer, code: ErrorCode) -> None:
        result = self.send(answer)
        assert (result.answer, result.code) == (Answer.REFUSED, code)
        assert result.detail
        assert f"({result.http_status})" in result.detail
        assert (result.retry_after is None) or code == ErrorCode.RATE_LIMIT

    def test_the_vendors_words_are_kept(self) -> None:
        assert self.send(unprocessable("SCAN_QR_CODE")).detail == (
            "The session is not working (422): Session status is not as expected. Try again later or restart the session; SCAN_QR_CODE"
        )

    # --- what became of a message

    def verify(self, *script: scripted_server.Answer, engine: str = "NOWEB", text: str = TEXT, known: str = "") -> Any:
        self.server.script(*script)
        sent = SentMessage(CHAT, Message(MessageType.TEXT, text=text), REF, CLAIMED_AT, known)
        return self.make(engine=engine).verify(sent, soon())

    def found(self, **changes: Any) -> dict[str, Any]:
        whole = {"id": f"true_{CHAT}_{client_id(REF)}", "timestamp": int(CLAIMED_AT.timestamp()) + 3, "fromMe": True, "to": CHAT, "ack": 1}
        return {**whole, "body": TEXT.replace("\r\n", "\n"), **changes}

    @pytest.mark.parametrize("engine", ["NOWEB", "GOWS"])
    @pytest.mark.parametrize(
        ("ack", "presence"),
        [
            (1, Presence.PRESENT),
            (2, Presence.PRESENT),
            (4, Presence.PRESENT),
            (None, Presence.PRESENT),
            (0, Presence.UNKNOWN),
            (-1, Presence.ABSENT),
        ],
    )
    def test_found_by_our_own_id(self, engine: str, ack: int | None, presence: Presence) -> None:
        verification = self.verify(reply(200, self.found(ack=ack)), engine=engine)
        assert (verification.presence, verification.message_id) == (presence, client_id(REF))
        assert self.server.requests[0].path == f"/api/sales/chats/all/messages/{client_id(REF)}?downloadMedia=false"

    def test_found_by_the_id_waha_gave(self) -> None:
        assert self.verify(reply(200, self.found(id=f"true_{CHAT}_3EB0AA")), engine="WEBJS", known="3EB0AA").presence == Presence.PRESENT
        assert self.server.requests[0].path == (
            "/api/sales/chats/12025550101%40c.us/messages/true_12025550101%40c.us_3EB0AA?downloadMedia=false"
        )

    @pytest.mark.parametrize("answer", [nest(404, "Message not found"), reply(200, b""), reply(200, b"null")])
    def test_not_found_by_its_id(self, answer: scripted_server.Answer) -> None:
        assert self.verify(answer).presence == Presence.ABSENT

    @pytest.mark.parametrize(
        "answer",
        [
            nest(404, "Session not found"),
            nest(404, "We didn't find a session with name 'sales'."),
            nest(404, "Cannot GET /api/sales/chats/all/messages/x"),
            reply(404, b"<h1>Not Found</h1>"),
            reply(401, {"message": "Unauthorized"}),
            unprocessable("STARTING"),
            failure("Enable NOWEB store"),
            reply(200, b"<title>Log in</title>"),
            reply(200, {"id": f"true_{CHAT}_ANOTHER"}),
            reply(200, {"messages": []}),
            reply(302, b"", headers={"Location": "/"}),
            CLOSE,
        ],
    )
    @pytest.mark.parametrize("engine", ["NOWEB", "WEBJS"])
    def test_an_answer_that_says_neither_is_unknown(self, answer: scripted_server.Answer, engine: str) -> None:
        verification = self.verify(answer, engine=engine)
        assert verification.presence == Presence.UNKNOWN
        assert verification.detail

    @pytest.mark.parametrize("engine", ["WEBJS", "WPP"])
    def test_found_by_its_text(self, engine: str) -> None:
        others = [self.found(body="Another text"), self.found(body=TEXT, id="true_x_3EB0BB", ack=2)]
        verification = self.verify(reply(200, others), engine=engine)
        assert (verification.presence, verification.message_id) == (Presence.PRESENT, "3EB0BB")
        path, _, query = self.server.requests[0].path.partition("?")
        assert path == "/api/sales/chats/12025550101%40c.us/messages"
        at = int(CLAIMED_AT.timestamp())
        assert dict(pair.split("=") for pair in query.split("&")) == {
            "limit": "100",
            "sortOrder": "desc",
            "downloadMedia": "false",
            "filter.fromMe": "true",
            "filter.timestamp.gte": str(at - 60),
            "filter.timestamp.lte": str(at + 600),
        }

    @pytest.mark.parametrize(
        "changes",
        [
            {"body": "Another text"},
            {"body": TEXT + "!"},
            {"body": None},
            {"fromMe": False},
            {"timestamp": int((CLAIMED_AT - timedelta(hours=24)).timestamp())},
            {"timestamp": int((CLAIMED_AT + timedelta(hours=24)).timestamp())},
            {"ack": -1},
        ],
        ids=repr,
    )
    def test_a_message_that_is_not_ours_does_not_count(self, changes: dict[str, Any]) -> None:
        assert self.verify(reply(200, [self.found(**changes), "odd", None]), engine="WEBJS").presence == Presence.ABSENT

    def test_of_two_with_the_same_text_the_better_one_counts(self) -> None:
        both = [self.found(ack=-1), self.found(ack=0), self.found(ack=3)]
        assert self.verify(reply(200, both), engine="WEBJS").presence == Presence.PRESENT
        assert self.verify(reply(200, both[:2]), engine="WEBJS").presence == Presence.UNKNOWN

    def test_a_full_page_without_it_proves_nothing(self) -> None:
        page = [self.found(body=f"Another text {number}") for number in range(100)]
        assert self.verify(reply(200, page), engine="WEBJS").presence == Presence.UNKNOWN
        assert self.verify(reply(200, page[:99]), engine="WEBJS").presence == Presence.ABSENT

    # --- where a number is reached

    def resolve(self, *script: scripted_server.Answer, address: str = CHAT) -> Any:
        self.server.script(*script)
        return self.make().resolve_address(address, soon())

    def test_only_numbers_are_checked_and_only_where_chosen(self) -> None:
        assert self.make().needs_resolving(CHAT), "a session that was saved before there was the choice"
        assert self.make(check_numbers=True).needs_resolving(CHAT)
        assert not self.make(check_numbers=False).needs_resolving(CHAT)
        assert not any(self.make().needs_resolving(one) for one in ("1203630412@g.us", "998877@lid", "120363999@newsletter", ""))

    def test_the_number_is_asked_for(self) -> None:
        found = self.resolve(reply(200, {"numberExists": True, "chatId": "551187654321@c.us"}), address="5511987654321@c.us")
        assert (found.reach, found.address, found.code) == (Reach.FOUND, "551187654321@c.us", None)
        request = self.server.requests[0]
        assert (request.method, request.path) == ("GET", "/api/contacts/check-exists?phone=5511987654321&session=sales")
        assert request.headers["x-api-key"] == SECRET

    @pytest.mark.parametrize(("told", "kept"), [("1202@s.whatsapp.net", "1202@c.us"), ("998877@lid", "998877@lid"), ("12:3@c.us", "")])
    def test_other_forms_of_the_answer(self, told: str, kept: str) -> None:
        found = self.resolve(reply(200, {"numberExists": True, "chatId": told}))
        assert (found.reach, found.address) == ((Reach.FOUND, kept) if kept else (Reach.UNKNOWN, ""))

    @pytest.mark.parametrize("body", [{"numberExists": False}, {"numberExists": False, "chatId": None}], ids=repr)
    def test_nobody_there(self, body: dict[str, Any]) -> None:
        assert self.resolve(reply(200, body)).reach == Reach.NOT_FOUND

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (nest(429, "Too Many Requests"), ErrorCode.RATE_LIMIT),
            (failure("rate-overlimit"), ErrorCode.RATE_LIMIT),
            (reply(401, {"message": "Unauthorized"}), ErrorCode.DISCONNECTED),
            (nest(403, "Forbidden"), ErrorCode.DISCONNECTED),
            (nest(404, "We didn't find a session with name 'sales'."), ErrorCode.DISCONNECTED),
            (nest(404, "Session not found"), ErrorCode.DISCONNECTED),
            (unprocessable("SCAN_QR_CODE"), ErrorCode.DISCONNECTED),
            (nest(404, "Cannot GET /api/contacts/check-exists?phone=1&session=sales"), None),
            (reply(404, b"<h1>Not Found</h1>"), None),
            (nest(422, "The method is not implemented by the engine."), None),
            (failure("no LID found for 12025550101@s.whatsapp.net"), None),
            (failure("Evaluation failed"), None),
            (reply(200, {"numberExists": None}), None),
            (reply(200, {"numberExists": "false"}), None),
            (reply(200, {"numberExists": True}), None),
            (reply(201, {"numberExists": False}), None),
            (reply(404, {"numberExists": False}), None),
            (reply(200, b"<title>Log in</title>"), None),
            (reply(302, b"", headers={"Location": "/"}), None),
            (reply(503, b""), None),
            (CLOSE, None),
        ],
    )
    def test_what_is_not_said_is_unknown(self, answer: scripted_server.Answer, code: ErrorCode | None) -> None:
        found = self.resolve(answer)
        assert (found.reach, found.address, found.code, found.retry_after) == (Reach.UNKNOWN, "", code, None)
        assert found.detail and CHAT.partition("@")[0] not in found.detail

    def test_how_long_to_wait_is_kept(self) -> None:
        assert self.resolve(reply(429, {}, headers={"Retry-After": "90"})).retry_after == timedelta(seconds=90)

    def test_what_is_no_number_is_not_asked_about(self) -> None:
        assert self.resolve(address="1203630412@g.us").reach == Reach.UNKNOWN
        assert (
            WahaProvider(SessionConfig(settings={"base_url": self.server.url})).resolve_address(CHAT, soon()).code == ErrorCode.DISCONNECTED
        )
        assert self.server.connections == 0


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("12025550101@c.us", "12025550101@c.us"),
        ("12025550101:17@s.whatsapp.net", "12025550101@c.us"),
        ("12025550101.0:17@s.whatsapp.net", "12025550101@c.us"),
        ("998877:3@lid", "998877@lid"),
        ("status@broadcast", ""),
        ("1203630412@g.us", ""),
        ("12025550101", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_who_a_chat_id_is(told: Any, kept: str) -> None:
    assert person(told) == kept


# --- the forms

DEFAULTS = {"check_numbers": False, "show_seen": False, "show_typing": False, "convert_media": False, "callback_url": ""}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("http://waha:3000", "http://waha:3000"),
        (" https://waha.example.org/ ", "https://waha.example.org"),
        ("https://example.org/tools/waha/", "https://example.org/tools/waha"),
        ("http://[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_addresses_of_waha(given: str, stored: str) -> None:
    form = WahaSettings({"base_url": given, "session": "default", "engine": "WEBJS"})
    assert form.is_valid(), form.errors
    assert form.cleaned_data == {"base_url": stored, "session": "default", "engine": "WEBJS", **DEFAULTS}
    json.dumps(form.cleaned_data)


@pytest.mark.parametrize(
    "given",
    [
        "waha:3000",
        "ftp://waha",
        "http://",
        "http://user:pass@waha",
        "http://waha?x=1",
        "http://waha#x",
        "http://wa ha",
        "javascript:alert(1)",
        "http://waha/\n"[:-1] + "\\x",
    ],
)
def test_what_is_no_address_of_waha(given: str) -> None:
    assert "base_url" in WahaSettings({"base_url": given, "session": "default", "engine": "WEBJS"}).errors


def test_the_address_may_be_left_out_where_the_instance_has_one(settings: Any) -> None:
    settings.WAHA_API_URL = ""
    assert "WAHA_API_URL" in str(WahaSettings({"base_url": "", "session": "default", "engine": "WEBJS"}).errors["base_url"])
    settings.WAHA_API_URL = "http://waha:3000"
    assert WahaSettings({"base_url": "", "session": "default", "engine": "WEBJS"}).is_valid()


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 55])
def test_what_is_no_session_name(name: str) -> None:
    assert "session" in WahaSettings({"base_url": "http://waha", "session": name, "engine": "WEBJS"}).errors


def test_a_new_session_checks_its_numbers() -> None:
    assert WahaSettings().fields["check_numbers"].initial is True


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("", True),
        ("https://paceline.example.org/api/webhooks/0b2f/", True),
        ("http://web:8000/api/webhooks/0b2f/", True),
        ("paceline.example.org/api", False),
        ("https://user:pass@example.org/", False),
        ("https://example.org/?x=1", False),
    ],
)
def test_addresses_of_the_webhook(url: str, good: bool) -> None:
    form = WahaSettings({"base_url": "http://waha", "session": "default", "engine": "WEBJS", "callback_url": url})
    assert form.is_valid() == good
    assert not good or form.cleaned_data["callback_url"] == url, "the slash at the end stays: without it Django redirects"


@pytest.mark.parametrize(("secret", "good"), [("", True), ("a" * 16, True), ("short", False), ("a b" * 8, False), ("é" * 20, False)])
def test_webhook_secrets(secret: str, good: bool) -> None:
    assert WahaCredentials({"webhook_secret": secret}).is_valid() == good


@pytest.mark.parametrize(("key", "good"), [("", True), (" abc ", True), ("a b", False), ("clé", False), ("a\u200bb", False)])
def test_api_keys(key: str, good: bool) -> None:
    assert WahaCredentials({"api_key": key}).is_valid() == good


def test_a_stored_key_is_not_shown_again() -> None:
    both = {"api_key": SECRET, "webhook_secret": SECRET}
    assert SECRET not in WahaCredentials(initial=both).as_p()
    assert SECRET not in WahaCredentials(both).as_p()


def test_the_states_are_those_of_the_model() -> None:
    assert {state.value for state in SessionState} == set(Session.Status.values)

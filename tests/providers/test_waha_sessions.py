import base64
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sessions_app.providers.base import Chat, NotPossible, SessionConfig, SessionState
from sessions_app.providers.waha import WahaProvider
from sessions_app.providers.waha_sessions import EVENTS, PNG, RETRIES
from tests.providers import scripted_server
from tests.providers.contract import SECRET, soon
from tests.providers.scripted_server import CLOSE, ScriptedServer, reply

HOOK_SECRET = "a-secret-of-the-webhook-4711"
URL = "https://paceline.example.org/api/webhooks/0b2f7a1e-0000-4000-8000-000000000001/"
QR = PNG + b"\x00\x00\x00\rIHDR and so on"
OURS = {"url": URL, "events": EVENTS, "hmac": {"key": HOOK_SECRET}, "retries": RETRIES}
LOCKED = {"me": {"reachoutTimelock": {"isActive": True, "timeEnforcementEnds": 1796040000}}}


def state(status: str, **more: Any) -> scripted_server.Answer:
    return reply(200, {"name": "sales", "status": status, "me": None, **more})


def nest(status: int, message: Any) -> scripted_server.Answer:
    return reply(status, {"statusCode": status, "message": message, "error": "Some Error"})


NOT_WAITING = reply(
    422, {"error": "Session status is not as expected.", "session": "sales", "status": "FAILED", "expected": ["SCAN_QR_CODE"]}
)


class OneWaha:
    server: ScriptedServer

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with ScriptedServer() as self.server:
            yield

    def make(self, **settings: Any) -> WahaProvider:
        where = {"base_url": self.server.url, "session": "sales", "engine": "WEBJS"}
        credentials = {"api_key": SECRET, "webhook_secret": HOOK_SECRET}
        return WahaProvider(SessionConfig(credentials=credentials, settings={**where, **settings}))

    def calls(self) -> list[str]:
        assert all(request.headers["x-api-key"] == SECRET for request in self.server.requests)
        return [f"{request.method} {request.path.removeprefix('/api/')}" for request in self.server.requests]

    def bodies(self) -> list[Any]:
        return [request.json() for request in self.server.requests if request.body]


class TestState(OneWaha):
    @pytest.mark.parametrize(
        ("status", "state"),
        [
            ("WORKING", SessionState.CONNECTED),
            ("SCAN_QR_CODE", SessionState.NEEDS_PAIRING),
            ("PASSKEY_REQUIRED", SessionState.NEEDS_PAIRING),
            ("PASSKEY_CONFIRMATION_REQUIRED", SessionState.NEEDS_PAIRING),
            ("STARTING", SessionState.CONNECTING),
            ("STOPPED", SessionState.DISCONNECTED),
            ("FAILED", SessionState.DISCONNECTED),
            ("DANCING", SessionState.DISCONNECTED),
            (None, SessionState.DISCONNECTED),
        ],
    )
    def test_the_states_of_a_session(self, status: str | None, state: SessionState) -> None:
        self.server.script(reply(200, {"name": "sales", "status": status, "me": None}))
        check = self.make().check_session(soon())
        assert check.state == state
        assert bool(check.detail) == (state != SessionState.CONNECTED)
        assert (self.server.requests[0].method, self.server.requests[0].path) == ("GET", "/api/sessions/sales")
        assert self.server.requests[0].headers["x-api-key"] == SECRET

    @pytest.mark.parametrize(
        ("more", "state", "words"),
        [
            ({"me": {"id": "1@c.us", "reachoutTimelock": None}}, SessionState.CONNECTED, ""),
            ({"me": {"reachoutTimelock": {"isActive": False, "timeEnforcementEnds": 0}}}, SessionState.CONNECTED, ""),
            (
                LOCKED,
                SessionState.RESTRICTED,
                "until 2026-11-30 12:00 UTC",
            ),
            ({"me": {"reachoutTimelock": {"isActive": True}}}, SessionState.RESTRICTED, "for now"),
            ({"restriction": {"active": True, "until": 1796040000}}, SessionState.RESTRICTED, "until 2026-11-30 12:00 UTC"),
            ({"restriction": {"active": False}, "me": "odd"}, SessionState.CONNECTED, ""),
        ],
    )
    def test_an_account_that_may_not_start_chats(self, more: dict[str, Any], state: SessionState, words: str) -> None:
        self.server.script(reply(200, {"name": "sales", "status": "WORKING", **more}))
        check = self.make().check_session(soon())
        assert check.state == state
        assert words in check.detail

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (reply(401, {"message": "Unauthorized"}), "API key"),
            (reply(404, {"message": "Session not found"}), 'no session "sales"'),
            (reply(500, {"message": "oops"}), "oops"),
            (reply(200, b"<title>Log in</title>"), "Not an answer of WAHA (200)"),
            (reply(200, []), "Not an answer of WAHA (200)"),
            (reply(301, b"", headers={"Location": "/"}), "Not an answer of WAHA (301)"),
            (CLOSE, "does not answer"),
        ],
    )
    def test_a_check_that_fails_says_why(self, answer: scripted_server.Answer, words: str) -> None:
        self.server.script(answer)
        check = self.make().check_session(soon())
        assert check.state == SessionState.DISCONNECTED
        assert words in check.detail


class TestPairing(OneWaha):
    def pair(self, *script: scripted_server.Answer, phone: str = "") -> Any:
        self.server.script(*script)
        return self.make().pair(soon(), phone=phone)

    def test_a_qr_code(self) -> None:
        pairing = self.pair(state("SCAN_QR_CODE"), reply(200, QR, headers={"Content-Type": "image/png"}))
        assert (pairing.check.state, pairing.qr_png, pairing.code) == (SessionState.NEEDS_PAIRING, QR, "")
        assert "Scan it with the phone" in pairing.check.detail
        assert self.calls() == ["GET sessions/sales", "GET sales/auth/qr?format=image"]
        assert self.server.requests[1].headers["accept"] == "image/png"
        assert "IHDR" not in repr(pairing)

    def test_a_qr_code_in_json(self) -> None:
        answer = reply(200, {"mimetype": "image/png", "data": base64.b64encode(QR).decode()})
        assert self.pair(state("SCAN_QR_CODE"), answer).qr_png == QR

    @pytest.mark.parametrize("status", ["WORKING", "STARTING", "STOPPED", "FAILED"])
    def test_none_is_asked_for_where_there_is_none(self, status: str) -> None:
        pairing = self.pair(state(status))
        assert (pairing.qr_png, self.calls()) == (b"", ["GET sessions/sales"])
        assert pairing.check == self.check(state(status))

    def check(self, *script: scripted_server.Answer) -> Any:
        self.server.script(*script)
        return self.make().check_session(soon())

    def test_paired_between_the_two_calls(self) -> None:
        pairing = self.pair(state("SCAN_QR_CODE"), NOT_WAITING, state("WORKING"))
        assert (pairing.check.state, pairing.qr_png) == (SessionState.CONNECTED, b"")

    def test_a_passkey_has_no_qr_code_and_says_why(self) -> None:
        pairing = self.pair(state("PASSKEY_REQUIRED"), NOT_WAITING, state("PASSKEY_REQUIRED"))
        assert (pairing.check.state, pairing.qr_png) == (SessionState.NEEDS_PAIRING, b"")
        assert "passkey" in pairing.check.detail

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (reply(200, b"<title>Log in</title>"), "did not give a QR code (200)"),
            (reply(200, {"mimetype": "image/png", "data": "not base64!"}), "did not give a QR code (200)"),
            (reply(200, {"value": "2@abc"}), "did not give a QR code (200)"),
            (reply(500, {"message": f"oops {SECRET}"}), "did not give a QR code (500): oops [hidden]"),
            (nest(403, "Forbidden"), "actions control and setting"),
            (CLOSE, "does not answer"),
        ],
    )
    def test_without_a_qr_code_it_says_why(self, answer: scripted_server.Answer, words: str) -> None:
        pairing = self.pair(state("SCAN_QR_CODE"), answer)
        assert (pairing.check.state, pairing.qr_png) == (SessionState.NEEDS_PAIRING, b"")
        assert words in pairing.check.detail

    def test_a_code_to_type_in(self) -> None:
        pairing = self.pair(state("SCAN_QR_CODE"), reply(201, {"code": "ABCD-EFGH"}), phone="+55 (11) 91234-5678")
        assert (pairing.check.state, pairing.qr_png, pairing.code) == (SessionState.NEEDS_PAIRING, b"", "ABCD-EFGH")
        assert "Type it in" in pairing.check.detail
        assert self.calls() == ["GET sessions/sales", "POST sales/auth/request-code"]
        assert self.bodies() == [{"phoneNumber": "5511912345678"}]
        assert "ABCD" not in repr(pairing)

    @pytest.mark.parametrize("phone", ["1234", "+", "1" * 16, "call me"])
    def test_what_is_no_phone_number(self, phone: str) -> None:
        pairing = self.pair(state("SCAN_QR_CODE"), phone=phone)
        assert (pairing.code, self.calls()) == ("", ["GET sessions/sales"])
        assert "country code" in pairing.check.detail

    @pytest.mark.parametrize("answer", [reply(201, {}), reply(201, {"code": "<b>"}), reply(500, {"message": "no: 5511912345678"}), CLOSE])
    def test_without_a_code_it_says_why_and_not_the_number(self, answer: scripted_server.Answer) -> None:
        pairing = self.pair(state("SCAN_QR_CODE"), answer, phone="5511912345678")
        assert pairing.code == ""
        assert pairing.check.detail and "5511912345678" not in pairing.check.detail


class TestManaging(OneWaha):
    def manage(self, verb: str, *script: scripted_server.Answer, **settings: Any) -> Any:
        self.server.script(*script)
        return self.make(**settings).manage(verb, soon())

    @pytest.mark.parametrize(
        ("verb", "status", "expected"),
        [
            ("start", "STARTING", SessionState.CONNECTING),
            ("stop", "STOPPED", SessionState.DISCONNECTED),
            ("restart", "STARTING", SessionState.CONNECTING),
            ("logout", "SCAN_QR_CODE", SessionState.NEEDS_PAIRING),
        ],
    )
    def test_the_verbs(self, verb: str, status: str, expected: SessionState) -> None:
        check = self.manage(verb, reply(201, {"name": "sales", "status": status}))
        assert check.state == expected
        assert self.calls() == [f"POST sessions/sales/{verb}"]

    def test_an_answer_without_the_state_is_asked_for(self) -> None:
        assert self.manage("logout", reply(201), state("SCAN_QR_CODE")).state == SessionState.NEEDS_PAIRING
        assert self.calls() == ["POST sessions/sales/logout", "GET sessions/sales"]

    @pytest.mark.parametrize(
        ("engine", "config"),
        [("WEBJS", {}), ("WPP", {}), ("GOWS", {}), ("NOWEB", {"noweb": {"store": {"enabled": True, "fullSync": False}}})],
    )
    def test_created_so_that_messages_can_be_looked_up(self, engine: str, config: dict[str, Any]) -> None:
        assert self.manage("create", reply(201, {"name": "sales", "status": "STARTING"}), engine=engine).state == SessionState.CONNECTING
        assert (self.calls(), self.bodies()) == (["POST sessions"], [{"name": "sales", "start": True, "config": config}])

    @pytest.mark.parametrize("engine", ["GOWS", "WEBJS"])
    def test_created_with_its_webhook(self, engine: str) -> None:
        self.manage("create", reply(201, {"name": "sales", "status": "STARTING"}), engine=engine, callback_url=URL)
        acks = {"webjs": {"tagsEventsOn": True}} if engine == "WEBJS" else {}
        assert self.bodies()[0]["config"] == {"webhooks": [OURS], **acks}

    def test_a_webhook_without_a_secret_is_not_created(self) -> None:
        settings = {"base_url": self.server.url, "session": "sales", "engine": "GOWS", "callback_url": URL}
        with pytest.raises(NotPossible, match="webhook secret"):
            WahaProvider(SessionConfig(settings=settings)).manage("create", soon())
        assert self.server.connections == 0

    @pytest.mark.parametrize(
        ("verb", "answer", "words"),
        [
            ("create", nest(422, "Session 'sales' already exists"), "already exists; Some Error. If it is there already, start it"),
            ("start", nest(404, "Session not found"), 'no session "sales"'),
            ("start", nest(401, "Unauthorized"), "API key"),
            ("stop", nest(403, "Forbidden"), "actions control and setting"),
            (
                "restart",
                reply(500, {"message": f"oops {SECRET} {HOOK_SECRET}"}),
                "did not restart the session (500): oops [hidden] [hidden]",
            ),
            ("stop", reply(302, b"", headers={"Location": "/"}), "(302)"),
            ("logout", CLOSE, "may have done it all the same"),
        ],
    )
    def test_a_refusal_is_a_sentence(self, verb: str, answer: scripted_server.Answer, words: str) -> None:
        with pytest.raises(NotPossible) as refusal:
            self.manage(verb, answer)
        assert words in str(refusal.value)

    @pytest.mark.parametrize("verb", ["delete", "", "../keys"])
    def test_no_other_verb(self, verb: str) -> None:
        with pytest.raises(NotPossible):
            self.manage(verb)
        assert self.server.connections == 0

    def test_without_a_session_chosen_nothing_is_asked(self) -> None:
        with pytest.raises(NotPossible, match="not chosen"):
            self.manage("stop", session="")
        assert self.server.connections == 0

    def test_too_late(self) -> None:
        with pytest.raises(NotPossible, match="deadline"):
            self.make().manage("stop", soon(0))
        assert self.server.connections == 0


class TestWebhookOfTheSession(OneWaha):
    def put(self, config: Any, *script: scripted_server.Answer, engine: str = "GOWS", url: str = URL) -> Any:
        """The config that was put, or None."""
        self.server.script(state("WORKING", **({} if config is None else {"config": config})), *(script or (reply(200, {}),)))
        self.make(engine=engine).set_webhook(url, soon())
        return self.bodies()[-1]["config"] if self.bodies() else None

    @pytest.mark.parametrize("config", [None, {}, {"webhooks": []}, {"webhooks": None}], ids=repr)
    def test_the_first_one(self, config: Any) -> None:
        assert self.put(config) == {**(config or {}), "webhooks": [OURS]}
        assert self.calls() == ["GET sessions/sales", "PUT sessions/sales"]
        assert self.bodies()[0].keys() == {"config"}

    def test_what_is_as_published(self) -> None:
        self.put({})
        hook = self.bodies()[0]["config"]["webhooks"][0]
        assert hook["events"] == ["message", "message.ack", "message.ack.group", "session.status"]
        assert hook["retries"] == {"policy": "exponential", "delaySeconds": 2, "attempts": 15}
        assert hook["hmac"] == {"key": HOOK_SECRET}

    def test_nothing_is_lost(self) -> None:
        other = {"url": "https://crm.example.org/hook", "events": ["message"], "customHeaders": [{"name": "X", "value": "1"}]}
        config = {"proxy": {"server": "p:1"}, "metadata": {"a": "b"}, "webhooks": [other], "noweb": {"store": {"enabled": True}}}
        assert self.put(config) == {**config, "webhooks": [other, OURS]}

    def test_what_is_there_already_does_not_restart_the_session(self) -> None:
        assert self.put({"webhooks": [OURS], "debug": True}) is None
        assert self.calls() == ["GET sessions/sales"]

    def test_ours_of_before_is_replaced_in_its_place(self) -> None:
        other = {"url": "https://crm.example.org/hook", "events": ["message"]}
        headers = {"customHeaders": [{"name": "X", "value": "1"}]}
        old = {**OURS, "url": URL.replace("https://paceline", "http://old"), "hmac": {"key": "old"}, "events": ["message"], **headers}
        assert self.put({"webhooks": [old, other, old]}) == {"webhooks": [{**OURS, **headers}, other]}

    def test_one_of_somebody_else_is_not_taken_for_ours(self) -> None:
        others = [{"url": url, "events": ["message"]} for url in ("https://crm.example.org", "https://erp.example.org/", "http://[bad")]
        bare = "http://web:8000/"
        assert self.put({"webhooks": others}, url=bare) == {"webhooks": [*others, {**OURS, "url": bare}]}

    def test_webjs_is_told_to_tell_about_deliveries(self) -> None:
        assert self.put({"webjs": {"x": 1}}, engine="WEBJS") == {"webjs": {"x": 1, "tagsEventsOn": True}, "webhooks": [OURS]}

    def test_webjs_that_tells_already_is_left_alone(self) -> None:
        assert self.put({"webjs": {"tagsEventsOn": True}, "webhooks": [OURS]}, engine="WEBJS") is None

    @pytest.mark.parametrize(
        ("script", "words", "calls"),
        [
            ([nest(404, "Session not found")], 'no session "sales"', 1),
            ([reply(200, {"message": "hi"})], "did not show the session", 1),
            ([reply(200, b"<title>Log in</title>")], "did not show the session", 1),
            ([state("WORKING"), nest(403, "Forbidden")], "actions control and setting", 2),
            ([state("WORKING"), nest(400, [f"bad {HOOK_SECRET}"])], "did not take the webhook (400): bad [hidden]", 2),
            ([state("WORKING"), CLOSE], "may have done it all the same", 2),
        ],
    )
    def test_a_refusal_is_a_sentence(
        self, script: list[scripted_server.Answer], words: str, calls: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        self.server.script(*script)
        with pytest.raises(NotPossible) as refusal:
            self.make().set_webhook(URL, soon())
        assert words in str(refusal.value)
        assert len(self.server.requests) == calls
        assert not any(secret in caplog.text + str(refusal.value) for secret in (SECRET, HOOK_SECRET))

    @pytest.mark.parametrize("url", ["", "paceline.example.org/x", "https://user:pass@example.org/x/"])
    def test_what_is_no_address(self, url: str) -> None:
        with pytest.raises(NotPossible, match="malformed"):
            self.make().set_webhook(url, soon())
        assert self.server.connections == 0


GROUPS = {
    "WEBJS": [
        {"id": {"_serialized": "1203@g.us", "server": "g.us"}, "name": "Choir", "groupMetadata": {"participants": [{}, {}, {}]}},
        {"id": {"server": "g.us", "user": "1204"}, "groupMetadata": {"subject": "Board", "size": 12}},
    ],
    "NOWEB": {"1203@g.us": {"id": "1203@g.us", "subject": "Choir", "size": 3}, "1204@g.us": {"subject": "Board", "size": 12}},
    "GOWS": [{"JID": "1203@g.us", "Name": "Choir", "Participants": [{}, {}, {}]}, {"JID": "1204@g.us", "Name": "Board", "size": 12}],
}
CONTACTS = [
    {"id": "12025550101@c.us", "number": "12025550101", "name": "Ana  Müller", "pushname": "ana", "isMe": False},
    {"id": "12025550102@s.whatsapp.net", "pushname": "Bo"},
    {"id": {"_serialized": "12025550103@c.us"}, "name": None, "shortName": ""},
    {"id": "998877@lid", "name": "Ana Müller"},
    {"id": "12025550100@c.us", "name": "This phone", "isMe": True},
    {"id": "1203@g.us", "name": "Choir", "isGroup": True},
    {"id": "0@c.us", "name": "WhatsApp"},
    {"name": "nobody"},
]
ANA, BO, NO_NAME = Chat("12025550101@c.us", "Ana Müller"), Chat("12025550102@c.us", "Bo"), Chat("12025550103@c.us", "+12025550103")


class TestChats(OneWaha):
    def chats(self, *pages: Any, groups: bool = False, **more: Any) -> list[Chat]:
        self.server.script(*(reply(200, page) for page in pages))
        return self.make().list_chats(soon(), groups=groups, **more)

    @pytest.mark.parametrize("body", GROUPS.values(), ids=GROUPS.keys())
    def test_groups_of_every_engine(self, body: Any) -> None:
        found = [Chat("1203@g.us", "Choir", is_group=True, members=3), Chat("1204@g.us", "Board", is_group=True, members=12)]
        assert self.chats(body, groups=True) == found
        assert self.calls() == ["GET sales/groups?limit=100&offset=0&sortBy=id&sortOrder=asc&exclude=participants"]

    def test_a_group_without_name_and_members(self) -> None:
        assert self.chats([{"id": "1203@g.us"}, {"id": "12@c.us"}], groups=True) == [Chat("1203@g.us", "1203@g.us", is_group=True)]

    def test_contacts(self) -> None:
        assert self.chats(CONTACTS) == [ANA, BO, NO_NAME]
        assert self.calls() == ["GET contacts/all?limit=100&offset=0&sortBy=id&sortOrder=asc&session=sales"]

    @pytest.mark.parametrize(
        ("search", "found"),
        [("MÜLLER", [ANA]), ("550102", [BO]), ("+1 (202) 555-0103", [NO_NAME]), (" ", [ANA, BO, NO_NAME]), ("c.us", []), ("-", [])],
    )
    def test_a_search_by_name_or_number(self, search: str, found: list[Chat]) -> None:
        assert self.chats(CONTACTS, search=search) == found

    def page(self, first: int) -> list[dict[str, Any]]:
        return [{"id": f"1202555{number:04}@c.us", "name": f"N{number}"} for number in range(first, first + 100)]

    def test_pages(self) -> None:
        found = self.chats(self.page(0), self.page(100), self.page(200)[:10], offset=150, limit=100)
        assert [chat.name for chat in found] == [f"N{number}" for number in range(150, 210)]
        assert [call.partition("offset=")[2].partition("&")[0] for call in self.calls()] == ["0", "100", "200"]

    def test_no_more_pages_than_are_needed(self) -> None:
        assert len(self.chats(self.page(0), limit=50)) == 50
        assert len(self.calls()) == 1

    def test_ten_pages_are_the_most(self) -> None:
        assert self.chats(*(self.page(first) for first in range(0, 1200, 100)), search="nobody") == []
        assert len(self.calls()) == 10

    def test_an_engine_that_ignores_the_limits(self) -> None:
        assert len(self.chats([*self.page(0), *self.page(100)], search="n", limit=500)) == 200
        assert len(self.chats(self.page(0), self.page(0), search="n", limit=500)) == 100
        assert len(self.calls()) == 3

    @pytest.mark.parametrize(
        "answer",
        [
            nest(404, "Session not found"),
            nest(422, "The method is not implemented by the engine."),
            reply(200, {"message": "oops"}),
            reply(200, b"<title>Log in</title>"),
            reply(200, 7),
            CLOSE,
        ],
    )
    def test_a_refusal_is_a_sentence(self, answer: scripted_server.Answer) -> None:
        for groups in (True, False):
            self.server.script(answer)
            with pytest.raises(NotPossible, match="WAHA"):
                self.make().list_chats(soon(), groups=groups)

    # --- who hides behind an id

    @pytest.mark.parametrize(
        ("answer", "sender"),
        [
            (reply(200, {"lid": "998877@lid", "pn": "12025550101@c.us"}), "12025550101@c.us"),
            (reply(200, {"lid": "998877@lid", "pn": "12025550101@s.whatsapp.net"}), "12025550101@c.us"),
            (reply(200, {"lid": "998877@lid", "pn": None}), ""),
            (reply(200, {"lid": "998877@lid", "pn": "5544@lid"}), ""),
            (reply(200, b""), ""),
            (nest(404, "Session not found"), ""),
            (reply(500, {"pn": "12025550101@c.us"}), ""),
            (CLOSE, ""),
        ],
    )
    def test_a_hidden_sender(self, answer: scripted_server.Answer, sender: str) -> None:
        self.server.script(answer)
        assert self.make().resolve_sender("998877@lid", soon()) == sender
        assert self.calls() == ["GET sales/lids/998877%40lid"]

    def test_a_sender_that_is_not_hidden_is_not_asked_about(self) -> None:
        assert self.make().resolve_sender("12025550101@c.us", soon()) == "12025550101@c.us"
        assert self.make().resolve_sender("1203@g.us", soon()) == ""
        assert self.server.connections == 0

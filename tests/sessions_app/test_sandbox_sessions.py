"""The stand-in's sessions, people and media: what a WAHA does around the sending of texts."""

import base64
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3

from sessions_app.sandbox import Sandbox, qr
from sessions_app.sandbox.accounts import QR_CODES_LAST, STARTING_TAKES, Accounts
from sessions_app.sandbox.people import CONTACTS, GROUPS, chat_of, is_reached, lid_of, phone_of
from sessions_app.sandbox.state import ENGINES

CHAT = "12025550101@c.us"
IMAGE = {"mimetype": "image/jpeg", "url": "https://example.org/a.jpg", "filename": "a.jpg"}
Call = Callable[..., urllib3.BaseHTTPResponse]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def calling(sandbox: Sandbox, http: urllib3.PoolManager) -> Call:
    def call(method: str, path: str, body: Any = None, **headers: str) -> urllib3.BaseHTTPResponse:
        return http.request(method, sandbox.url + path, json=body, headers=headers)

    return call


@pytest.fixture
def call(sandbox: Sandbox) -> Iterator[Call]:
    with urllib3.PoolManager() as http:
        yield calling(sandbox, http)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


# --- the life of a session, on a clock of the test's


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_new_session_starts_and_asks_for_a_phone(clock: Clock) -> None:
    accounts = Accounts(open_sessions=False, clock=clock)
    assert accounts.status("shop") is None
    assert accounts.create("shop", start=False, config={"metadata": {"a": "b"}})
    assert not accounts.create("shop", start=True, config={})
    assert accounts.status("shop") == "STOPPED"
    assert accounts.act("shop", "start")
    assert accounts.status("shop") == "STARTING"
    assert accounts.act("shop", "start"), "it can be said twice"
    clock.now += STARTING_TAKES
    assert accounts.status("shop") == "SCAN_QR_CODE"
    assert accounts.scan("shop")
    assert not accounts.scan("shop")
    assert accounts.status("shop") == "WORKING"
    accounts.act("shop", "restart")
    assert accounts.status("shop") == "STARTING"
    clock.now += STARTING_TAKES
    assert accounts.status("shop") == "WORKING", "a restart keeps the phone"
    accounts.act("shop", "logout")
    assert accounts.status("shop") == "SCAN_QR_CODE"
    assert not accounts.act("nobody", "start")


def test_nobody_scans_and_the_session_fails(clock: Clock) -> None:
    accounts = Accounts(clock=clock)
    accounts.act("shop", "logout")
    clock.now += QR_CODES_LAST - 1
    assert accounts.status("shop") == "SCAN_QR_CODE"
    clock.now += 1
    assert accounts.status("shop") == "FAILED"
    accounts.act("shop", "start")
    clock.now += STARTING_TAKES + 1
    assert accounts.status("shop") == "SCAN_QR_CODE"


def test_it_pairs_itself_after_its_code_was_looked_at(clock: Clock) -> None:
    accounts = Accounts(auto_pair=5, clock=clock)
    accounts.act("shop", "logout")
    clock.now += 30
    assert accounts.status("shop") == "SCAN_QR_CODE", "nobody looked yet"
    accounts.fetched("shop")
    clock.now += 4
    accounts.fetched("shop")  # the first look counts
    clock.now += 1
    assert accounts.status("shop") == "WORKING"


def test_what_is_set_by_hand_stays(clock: Clock) -> None:
    accounts = Accounts(auto_pair=None, clock=clock)
    accounts.set_status("shop", "STARTING")
    clock.now += 1000
    assert accounts.status("shop") == "STARTING"
    accounts.set_status("shop", "WORKING")
    assert accounts.status("shop") == "WORKING"


def test_a_deleted_session_does_not_come_back_by_itself(clock: Clock) -> None:
    accounts = Accounts(clock=clock)
    assert accounts.status("shop") == "WORKING"
    accounts.delete("shop")
    accounts.delete("shop")
    assert accounts.status("shop") is None
    assert accounts.create("shop", start=False, config={})


# --- over HTTP


def test_pairing_by_code(sandbox: Sandbox, call: Call) -> None:
    answer = call("GET", "/api/demo/auth/qr")
    assert (answer.status, answer.json()["expected"]) == (422, ["SCAN_QR_CODE"])
    assert call("POST", "/api/demo/auth/request-code", {"phoneNumber": "12025550101"}).status == 422
    call("POST", "/api/sessions/demo/logout")
    picture = call("GET", "/api/demo/auth/qr", Accept="image/png")
    assert picture.headers["Content-Type"] == "image/png"
    as_json = call("GET", "/api/demo/auth/qr?format=image", Accept="application/json").json()
    assert (as_json["mimetype"], base64.b64decode(as_json["data"])) == ("image/png", picture.data)
    assert qr.picture(call("GET", "/api/demo/auth/qr?format=raw").json()["value"]) == picture.data
    code = call("POST", "/api/demo/auth/request-code", {"phoneNumber": "12025550101"})
    assert (code.status, len(code.json()["code"])) == (201, 9)
    assert call("POST", "/api/demo/auth/request-code", {}).status == 400
    assert call("GET", "/api/sessions/demo/me").data == b""
    assert call("POST", "/_sandbox/sessions/demo/scan").status == 200
    assert call("POST", "/_sandbox/sessions/demo/scan").status == 422
    assert call("GET", "/api/sessions/demo/me").json()["id"].endswith("@c.us")


def test_the_picture_is_a_png_that_changes() -> None:
    first, second = qr.picture(qr.value("demo", 0)), qr.picture(qr.value("demo", 1))
    assert first != second
    assert first == qr.picture(qr.value("demo", 0))
    chunks, rest = {}, first[8:]
    while rest:
        (length,), kind = struct.unpack(">I", rest[:4]), rest[4:8]
        chunks[kind] = rest[8 : 8 + length]
        assert struct.unpack(">I", rest[8 + length : 12 + length]) == (zlib.crc32(kind + chunks[kind]),)
        rest = rest[12 + length :]
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    pixels = zlib.decompress(chunks[b"IDAT"])
    assert (width, len(pixels)) == (height, height * (width + 1))
    assert set(pixels) == {0, 255}


def test_the_configuration_is_kept_whole(call: Call) -> None:
    config = {"metadata": {"who": "us"}, "noweb": {"store": {"enabled": True}}, "webhooks": []}
    assert call("PUT", "/api/sessions/demo", {"config": config}).json() == {"name": "demo", "status": "STARTING", "config": config}
    assert call("GET", "/api/sessions/demo").json()["config"] == config
    created = call("POST", "/api/sessions", {"name": "new", "config": {"metadata": {"x": "y"}}})
    assert (created.status, created.json()["config"]) == (201, {"metadata": {"x": "y"}})
    assert call("POST", "/api/sessions", {"name": "a b"}).status == 400
    assert call("DELETE", "/api/sessions/new").status == 200
    assert call("GET", "/api/sessions/new").status == 404
    assert call("PUT", "/api/sessions/new", {"config": {}}).status == 404


@pytest.mark.parametrize(
    "hook",
    [
        "x",
        {"url": "http://127.0.0.1:1/"},
        {"url": "https://example.org/", "events": []},
        {"url": "http://10.0.0.1/", "events": []},
        {"url": "http://127.0.0.1.example.org/", "events": []},
        {"url": "http://user@127.0.0.1/", "events": []},
        {"url": "http://127.0.0.1/a b", "events": []},
        {"url": "http://127.0.0.1/", "events": [], "retries": {"policy": "never"}},
        {"url": "http://127.0.0.1/", "events": [], "retries": {"attempts": "3"}},
        {"url": "http://127.0.0.1/", "events": [], "hmac": {"key": 5}},
        {"url": "http://127.0.0.1/", "events": [], "customHeaders": [{"name": "X", "value": "a\r\nb"}]},
    ],
    ids=range(11),
)
def test_a_webhook_that_cannot_be_used_is_refused(sandbox: Sandbox, call: Call, hook: Any) -> None:
    assert call("PUT", "/api/sessions/demo", {"config": {"webhooks": [hook]}}).status == 400
    assert call("POST", "/api/sessions", {"name": "other", "config": {"webhooks": [hook]}}).status == 400
    assert call("POST", "/_sandbox/webhooks", [hook]).status == 400
    assert call("GET", "/api/sessions/demo").json()["config"] == {}
    assert not sandbox.events.everywhere


@pytest.mark.parametrize("engine", ENGINES)
def test_an_account_that_may_start_no_new_chats(engine: str) -> None:
    with Sandbox(engine=engine) as sandbox, urllib3.PoolManager() as http:
        call = calling(sandbox, http)
        text = {"session": "demo", "chatId": CHAT, "text": "Hello"}
        assert call("POST", "/api/sendText", text).status == 201
        assert call("POST", "/_sandbox/sessions/demo/restriction", {"seconds": 3600}).status == 200
        info = call("GET", "/api/sessions/demo").json()
        assert info["me"]["reachoutTimelock"]["isActive"] is True
        assert ("restriction" in info) == (engine == "NOWEB")
        assert call("POST", "/api/sendText", text).status == 201, "chats that are there go on"
        cold = call("POST", "/api/sendText", text | {"chatId": "12025550102@c.us"})
        assert cold.status == (201 if engine == "NOWEB" else 500)
        assert engine == "NOWEB" or "error 463" in cold.json()["exception"]["message"]
        call("POST", "/_sandbox/sessions/demo/restriction", {"seconds": 0})
        assert "reachoutTimelock" not in call("GET", "/api/sessions/demo").json()["me"]
        assert call("POST", "/_sandbox/sessions/demo/restriction", {"seconds": "long"}).status == 400


# --- people


def test_numbers_of_brazil() -> None:
    with_nine = [f"5531987{number:06}" for number in range(1, 401)]
    kept = [chat_of(number) for number in with_nine]
    assert kept == [chat_of(number) for number in with_nine]
    assert 150 < sum(chat == f"{number}@c.us" for number, chat in zip(with_nine, kept, strict=True)) < 250
    for number, chat in zip(with_nine, kept, strict=True):
        without = number[:4] + number[5:]
        assert chat in (f"{number}@c.us", f"{without}@c.us")
        assert chat_of(without) == chat, "it is one person, however the number is written"
        assert is_reached(chat)
        assert not is_reached(f"{number if chat == f'{without}@c.us' else without}@c.us")


@pytest.mark.parametrize("number", ["5511987654321", "5530987654321", "553133334444", "12025550101", "551187654321"])
def test_numbers_that_are_written_in_one_way(number: str) -> None:
    assert chat_of(number) == f"{number}@c.us"


def test_nobody_has_0000() -> None:
    assert chat_of("5531987650000") is None
    assert not is_reached("12025550000@c.us")
    assert is_reached("120363025000000001@g.us")


def test_ids_that_hide_a_number(call: Call) -> None:
    lid = lid_of("12025550101")
    assert lid is not None
    assert phone_of(lid) == CHAT
    assert call("GET", "/api/demo/lids/pn/12025550101").json() == {"lid": lid, "pn": CHAT}
    assert call("GET", f"/api/demo/lids/{lid.replace('@', '%40')}").json() == {"lid": lid, "pn": CHAT}
    assert call("GET", "/api/demo/lids/99999@lid").json() == {"lid": "99999@lid", "pn": None}
    assert call("GET", "/api/demo/lids/pn/12025550000").json() == {"lid": None, "pn": None}


def test_check_exists_can_fail(sandbox: Sandbox, call: Call) -> None:
    sandbox.script({"kind": "429", "on": "resolve"}, {"kind": "500-rate-overlimit", "on": "resolve"})
    assert [call("GET", "/api/contacts/check-exists?session=demo&phone=12025550101").status for _ in range(3)] == [429, 500, 200]


@pytest.mark.parametrize("engine", ENGINES)
def test_groups_and_contacts_come_in_pages(engine: str) -> None:
    with Sandbox(engine=engine) as sandbox, urllib3.PoolManager() as http:
        call = calling(sandbox, http)
        pages = [call("GET", f"/api/demo/groups?limit=10&offset={offset}&exclude=participants").json() for offset in (0, 10, 20, 30)]
        assert [len(page) for page in pages] == [10, 10, GROUPS - 20, 0]
        assert "articipants" not in str(pages)
        assert "articipants" in str(call("GET", "/api/demo/groups").json())
        people = [call("GET", f"/api/contacts/all?session=demo&limit=100&offset={offset}").json() for offset in (0, 100, 200)]
        assert [len(page) for page in people] == [100, CONTACTS - 100, 0]
        assert len({one["id"] for page in people for one in page}) == CONTACTS
        assert call("GET", "/api/demo/groups?limit=x").status == 400
        sandbox.set_session("demo", "FAILED")
        assert call("GET", "/api/demo/groups").status == 422


# --- media


@pytest.mark.parametrize(
    ("path", "kind", "more"),
    [
        ("sendImage", "image", {"caption": "Look"}),
        ("sendFile", "file", {"caption": "Look"}),
        ("sendVideo", "video", {"caption": "Look", "convert": False, "asNote": False}),
        ("sendVoice", "voice", {"convert": True}),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_media_are_kept(engine: str, path: str, kind: str, more: dict[str, Any]) -> None:
    with Sandbox(engine=engine) as sandbox, urllib3.PoolManager() as http:
        body = {"session": "demo", "chatId": CHAT, "file": IMAGE, **more}
        answer = calling(sandbox, http)("POST", f"/api/{path}", body)
        calling(sandbox, http)("POST", f"/api/{path}", body)
        first, second = sandbox.messages()
        found = calling(sandbox, http)("GET", f"/api/demo/chats/{CHAT}/messages/{first['id']}").json()
    assert answer.status == 201
    assert first["id"].endswith(str(answer.json().get("key", {}).get("id") or "")), "the answer names what is kept"
    assert (first["type"], first["url"], first["filename"]) == (kind, IMAGE["url"], "a.jpg")
    assert first["caption"] == first["text"] == more.get("caption", "")
    assert first["convert"] == more.get("convert", False)
    assert (first["double"], second["double"]) == (False, True)
    assert (found["body"], found["hasMedia"], found["media"]["url"]) == (first["caption"], True, IMAGE["url"])


def test_a_video_without_a_caption_gets_wahas(call: Call, sandbox: Sandbox) -> None:
    call("POST", "/api/sendVideo", {"session": "demo", "chatId": CHAT, "file": IMAGE, "convert": False})
    call("POST", "/api/sendVideo", {"session": "demo", "chatId": CHAT, "file": IMAGE, "convert": False, "caption": ""})
    assert [message["caption"] for message in sandbox.messages()] == ["Just watch at this!", ""]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("sendImage", {"file": None}),
        ("sendImage", {"file": {"url": "https://example.org/a.jpg"}}),
        ("sendImage", {"file": {"mimetype": "image/jpeg"}}),
        ("sendImage", {"file": IMAGE | {"data": "AAAA"}}),
        ("sendImage", {"file": {"mimetype": "image/jpeg", "data": "no base64!"}}),
        ("sendImage", {"file": IMAGE | {"url": "ftp://example.org/a"}}),
        ("sendImage", {"file": IMAGE, "convert": True}),
        ("sendImage", {"file": IMAGE, "id": "3EB0"}),
        ("sendVideo", {"file": IMAGE}),
        ("sendVoice", {"file": IMAGE, "convert": True, "caption": "x"}),
    ],
    ids=range(10),
)
def test_malformed_media_are_refused(sandbox: Sandbox, call: Call, path: str, change: dict[str, Any]) -> None:
    assert call("POST", f"/api/{path}", {"session": "demo", "chatId": CHAT, **change}).status == 400
    assert sandbox.messages() == []


def test_a_file_within_the_request(sandbox: Sandbox, call: Call) -> None:
    body = {"session": "demo", "chatId": CHAT, "file": {"mimetype": "image/jpeg", "data": base64.b64encode(b"x" * 1000).decode()}}
    assert call("POST", "/api/sendImage", body).status == 201
    assert (sandbox.messages()[0]["url"], sandbox.messages()[0]["mimetype"]) == ("", "image/jpeg")


def test_faults_meet_media_as_they_meet_texts(sandbox: Sandbox, call: Call) -> None:
    sandbox.script("429", "500-after-accept")
    body = {"session": "demo", "chatId": CHAT, "file": IMAGE}
    assert [call("POST", "/api/sendImage", body).status for _ in range(3)] == [429, 500, 201]
    assert len(sandbox.messages()) == 2


def test_seen_and_typing(sandbox: Sandbox, call: Call) -> None:
    where = {"session": "demo", "chatId": CHAT}
    sandbox.script({"kind": "500", "on": "presence"})
    assert call("POST", "/api/sendSeen", where).status == 500
    for act in ("sendSeen", "startTyping", "stopTyping"):
        answer = call("POST", f"/api/{act}", where)
        assert (answer.status, answer.json()) == (201, {"result": True})
    assert [one["act"] for one in call("GET", "/_sandbox/state/presence").json()] == ["sendSeen", "startTyping", "stopTyping"]
    assert call("POST", "/api/startTyping", {"session": "demo"}).status == 400
    assert sandbox.messages() == []


def test_the_state_says_what_there_is_and_no_key(sandbox: Sandbox, call: Call) -> None:
    hook = {"url": "http://127.0.0.1:9/", "events": ["message"], "hmac": {"key": "the-key"}}
    call("PUT", "/api/sessions/demo", {"config": {"webhooks": [hook]}})
    state = call("GET", "/_sandbox/state")
    assert b"the-key" not in state.data
    [session] = state.json()["sessions"]
    assert (session["name"], session["webhooks"]) == ("demo", [{"url": hook["url"], "events": ["message"], "signed": True}])
    assert call("GET", "/_sandbox/state/nothing").status == 404
    assert call("GET", "/api/sessions/demo").json()["config"]["webhooks"] == [hook], "the API itself shows it, as WAHA does"

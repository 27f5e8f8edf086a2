"""What the stand-in tells by itself: over real HTTP, into a server that does what a test says."""

import hashlib
import hmac
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3

from sessions_app.providers.base import (
    Event,
    Inbound,
    Message,
    MessageType,
    Receipt,
    ReceiptState,
    SessionConfig,
    SessionState,
    StateReport,
    WebhookRequest,
)
from sessions_app.providers.waha import WahaProvider
from sessions_app.sandbox import Sandbox
from sessions_app.sandbox.behaviour import Behaviour
from sessions_app.sandbox.people import CONTACTS, GROUPS, chat_of, lid_of, share
from sessions_app.sandbox.state import ENGINES
from tests.processes import A_BUSY_MACHINE
from tests.providers.contract import soon
from tests.providers.scripted_server import CLOSE, HANG, ScriptedServer, reply

KEY = "the-key"
NOW = {"server": 0, "device": 0.02, "read": 0.04, "reply_after": 0.06, "never_read": 0, "replies": 0}
READER = next(f"1202555{n:04}@c.us" for n in range(100, 200) if share("reads", f"1202555{n:04}@c.us") >= 0.2)


@pytest.fixture
def receiver() -> Iterator[ScriptedServer]:
    with ScriptedServer(usual=reply(200, {})) as server:
        yield server


@pytest.fixture
def sandbox(receiver: ScriptedServer) -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        sandbox.events.behaviour = Behaviour().changed(NOW)
        yield sandbox


@pytest.fixture
def http() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager() as manager:
        yield manager


def hook(receiver: ScriptedServer, *events: str, **more: Any) -> dict[str, Any]:
    return {"url": f"{receiver.url}/hooks?x=1", "events": list(events or ["*"]), "hmac": {"key": KEY}, **more}


def listen(sandbox: Sandbox, http: urllib3.PoolManager, *hooks: dict[str, Any], session: str = "demo", **config: Any) -> None:
    answer = http.request("PUT", f"{sandbox.url}/api/sessions/{session}", json={"config": {"webhooks": list(hooks), **config}})
    assert answer.status == 200, answer.data


def send(sandbox: Sandbox, http: urllib3.PoolManager, chat: str = READER, path: str = "sendText") -> None:
    answer = http.request("POST", f"{sandbox.url}/api/{path}", json={"session": "demo", "chatId": chat, "text": "Hello"})
    assert answer.status == 201, answer.data


def until(fact: Callable[[], Any], within: float = 5) -> Any:
    end = time.monotonic() + within
    while not (found := fact()):
        assert time.monotonic() < end
        threading.Event().wait(0.005)
    return found


def heard(receiver: ScriptedServer, event: str) -> list[dict[str, Any]]:
    return [body["payload"] for request in list(receiver.requests) if (body := request.json())["event"] == event]


def acks(receiver: ScriptedServer) -> list[int]:
    return [payload["ack"] for payload in heard(receiver, "message.ack")]


def test_a_message_is_told_of_in_wahas_words(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    headers = [{"name": "X-Own", "value": "yes"}]
    listen(sandbox, http, hook(receiver, "message.ack", customHeaders=headers), metadata={"tenant": "a"})
    send(sandbox, http)
    until(lambda: len(receiver.requests) == 3)
    request = receiver.requests[0]
    assert (request.method, request.path, request.headers["x-own"]) == ("POST", "/hooks?x=1", "yes")
    assert request.headers["x-webhook-hmac"] == hmac.new(KEY.encode(), request.body, hashlib.sha512).hexdigest()
    assert request.headers["x-webhook-hmac-algorithm"] == "sha512"
    assert request.headers["x-webhook-request-id"]
    assert abs(int(request.headers["x-webhook-timestamp"]) / 1000 - time.time()) < 60
    body = request.json()
    kinds = {"id": str, "timestamp": int, "session": str, "metadata": dict, "engine": str, "event": str, "payload": dict, "me": dict}
    assert {name: type(body[name]) for name in kinds} == kinds
    assert set(body) == {*kinds, "environment"}
    assert (body["session"], body["engine"], body["metadata"]) == ("demo", "NOWEB", {"tenant": "a"})
    assert set(body["environment"]) == {"version", "engine", "tier", "browser", "platform", "worker"}
    [sent] = sandbox.messages()
    for seen, (ack, name) in zip(heard(receiver, "message.ack"), [(1, "SERVER"), (2, "DEVICE"), (3, "READ")], strict=True):
        assert (seen["id"], seen["fromMe"], seen["ack"], seen["ackName"]) == (sent["id"], True, ack, name)
        assert set(seen) == {"id", "from", "to", "participant", "fromMe", "ack", "ackName"}
    assert len({one.json()["id"] for one in receiver.requests}) == 3
    assert len({one.connection for one in receiver.requests}) == 1, "the connection is kept"
    look_up = http.request("GET", f"{sandbox.url}/api/demo/chats/{READER}/messages/{sent['id']}").json()
    assert (look_up["ack"], look_up["ackName"]) == (3, "READ")


def test_nothing_runs_before_somebody_listens(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    send(sandbox, http)
    sandbox.set_session("demo", "FAILED")
    sandbox.set_session("demo", "WORKING")
    assert "sandbox events" not in [thread.name for thread in threading.enumerate()]
    listen(sandbox, http, hook(receiver), session="other")
    send(sandbox, http)
    until(lambda: [one["status"] for one in heard(receiver, "session.status")] == ["STARTING", "WORKING"])
    assert {one.json()["session"] for one in receiver.requests} == {"other"}
    assert [thread.name for thread in threading.enumerate()].count("sandbox events") == 1


def test_webhooks_for_every_session(receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    with Sandbox(webhooks=[hook(receiver, "session.status")]) as sandbox:
        http.request("POST", f"{sandbox.url}/api/sessions/demo/logout")
        [status] = until(lambda: heard(receiver, "session.status"))
        assert http.request("GET", f"{sandbox.url}/api/sessions/demo").json()["config"] == {}
        shown = http.request("GET", f"{sandbox.url}/_sandbox/webhooks")
        assert shown.json() == [{"url": f"{receiver.url}/hooks?x=1", "events": ["session.status"], "signed": True}]
        assert http.request("DELETE", f"{sandbox.url}/_sandbox/webhooks").json() == []
        assert http.request("POST", f"{sandbox.url}/_sandbox/webhooks", json=hook(receiver)).json()[0]["events"] == ["*"]
    assert (status["name"], status["status"], status["data"]) == ("demo", "SCAN_QR_CODE", None)
    assert [point["status"] for point in status["statuses"]] == ["WORKING", "SCAN_QR_CODE"]


def test_a_session_is_followed_through_its_pairing(receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    with Sandbox(open_sessions=False, auto_pair=0.05) as sandbox:
        config = {"webhooks": [hook(receiver, "session.status", "message")]}
        assert http.request("POST", f"{sandbox.url}/api/sessions", json={"name": "demo", "config": config}).status == 201
        until(lambda: [one["status"] for one in heard(receiver, "session.status")] == ["STARTING", "SCAN_QR_CODE"])
        assert http.request("GET", f"{sandbox.url}/api/demo/auth/qr").status == 200
        until(lambda: len(heard(receiver, "session.status")) == 3)  # without anybody asking
        assert heard(receiver, "session.status")[-1]["status"] == "WORKING"
        http.request("POST", f"{sandbox.url}/_sandbox/sessions/demo/restriction", json={"seconds": 60})
        until(lambda: len(heard(receiver, "session.status")) == 4)
        assert heard(receiver, "session.status")[-1]["data"]["reachoutTimelock"]["isActive"] is True
        http.request("POST", f"{sandbox.url}/api/sendText", json={"session": "demo", "chatId": READER, "text": "cold"})
        assert acks(receiver) == [], "not among its events"


def test_a_reply_now_and_replies_by_themselves(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    control = f"{sandbox.url}/_sandbox/replies"
    said = {"session": "demo", "from": "21010555202@lid", "text": "Olá 👋"}
    assert http.request("POST", control, json=said).status == 422, "nobody would hear it"
    listen(sandbox, http, hook(receiver, "message"))
    answer = http.request("POST", control, json=said)
    [inbound] = until(lambda: heard(receiver, "message"))
    assert (answer.status, answer.json()["id"]) == (201, inbound["id"])
    assert (inbound["from"], inbound["body"], inbound["fromMe"]) == ("21010555202@lid", "Olá 👋", False)
    for wrong in ({"from": "someone"}, {"text": 5}, {"session": None}, {"participant": "x"}):
        assert http.request("POST", control, json=said | wrong).status == 400
    assert http.request("POST", f"{sandbox.url}/_sandbox/behaviour", json={"replies": 1}).json()["replies"] == 1
    assert http.request("POST", f"{sandbox.url}/_sandbox/behaviour", json={"replies": 2}).status == 400
    send(sandbox, http)
    assert until(lambda: heard(receiver, "message")[1:])[0]["from"] == READER


def test_what_fails_is_told_again_with_the_same_bytes(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    sandbox.events.behaviour = Behaviour().changed(NOW | {"never_read": 1, "device": 60})
    listen(sandbox, http, hook(receiver, "message.ack", retries={"policy": "exponential", "delaySeconds": 0.01, "attempts": 4}))
    receiver.script(reply(500), CLOSE, reply(302, headers={"Location": "/elsewhere"}), reply(204))
    send(sandbox, http)
    until(lambda: sandbox.events.counts["delivered"])
    assert len(receiver.requests) == 4
    assert len({(one.body, one.headers["x-webhook-request-id"]) for one in receiver.requests}) == 1
    attempts = http.request("GET", f"{sandbox.url}/_sandbox/state/webhooks").json()
    assert [(one["attempt"], one["status"]) for one in attempts] == [(1, 500), (2, 0), (3, 302), (4, 204)]


def test_a_receiver_that_keeps_no_connection(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    receiver.usual = reply(200, {}, then="close")
    listen(sandbox, http, hook(receiver, "message.ack", retries={"attempts": 1}))
    send(sandbox, http)
    until(lambda: sandbox.events.counts.total() == 3)
    assert sandbox.events.counts["delivered"] == 3


def test_it_gives_up_after_the_attempts_it_has(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    listen(sandbox, http, hook(receiver, "message.ack", retries={"policy": "constant", "delaySeconds": 0.01, "attempts": 2}))
    receiver.script(*[reply(503)] * 6)
    send(sandbox, http)
    until(lambda: sandbox.events.counts["given_up"] == 3)
    assert len(receiver.requests) == 6
    assert sandbox.events.totals()["waiting"] == 0


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("no-acks", []),
        ("ack-error", [-1]),
        ("double-events", [1, 1, 2, 2, 3, 3]),
        ("drop-replies", [1, 2, 3]),
        ("early-ack", [1, 2, 3]),
    ],
)
def test_webhooks_go_wrong_as_scripted(
    sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager, kind: str, told: list[int]
) -> None:
    sandbox.events.behaviour = Behaviour().changed(NOW | {"replies": 1})
    listen(sandbox, http, hook(receiver, "message.ack", "message"))
    sandbox.script(kind)
    send(sandbox, http)
    until(lambda: sandbox.events.totals()["waiting"] == 0)
    replies = {"double-events": 2, "drop-replies": 0, "ack-error": 0}.get(kind, 1)
    until(lambda: (acks(receiver), len(heard(receiver, "message"))) == (told, replies))
    if kind == "double-events":
        assert set(Counter(one.json()["id"] for one in receiver.requests).values()) == {2}
    assert sandbox.faults.listed() == []
    if kind == "ack-error":
        assert http.request("GET", f"{sandbox.url}/api/demo/chats/all/messages/{sandbox.messages()[0]['id']}").json()["ack"] == -1


def test_an_ack_can_come_before_the_answer(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    sandbox.events.behaviour = Behaviour().changed(NOW | {"server": 60, "device": 60, "read": 60})
    listen(sandbox, http, hook(receiver, "message.ack"))
    sandbox.script("early-ack")
    send(sandbox, http)
    assert acks(receiver) == [1]


def test_the_other_form_of_a_number_has_the_servers_ack_and_no_more(
    sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager
) -> None:
    right = next(chat for n in range(100) if len(chat := str(chat_of(f"5531987654{n:03}"))) == 17)  # 12 digits
    wrong = f"{right[:4]}9{right[4:]}"
    listen(sandbox, http, hook(receiver, "message.ack"))
    send(sandbox, http, wrong)
    send(sandbox, http, right)
    until(lambda: len(receiver.requests) == 4)
    until(lambda: sandbox.events.totals()["waiting"] == 0)
    assert sorted((wrong in one["id"], one["ack"]) for one in heard(receiver, "message.ack")) == [
        (False, 1),
        (False, 2),
        (False, 3),
        (True, 1),
    ]


def test_a_held_back_account_hears_why(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    listen(sandbox, http, hook(receiver, "message.ack"))
    assert sandbox.accounts.restrict("demo", time.time() + 60)
    send(sandbox, http)
    [ack] = until(lambda: heard(receiver, "message.ack"))
    assert (ack["ack"], ack["error"]["code"], ack["error"]["reason"]) == (-1, "463", "account_restricted")
    assert abs(ack["error"]["until"] - time.time() - 60) < 30


def test_a_group_has_an_event_of_its_own(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    listen(sandbox, http, hook(receiver))
    send(sandbox, http, "120363025000000001@g.us")
    until(lambda: heard(receiver, "message.ack.group"))
    ack = heard(receiver, "message.ack.group")[0]
    assert ack["id"] == f"{sandbox.messages()[0]['id']}_{ack['participant']}"


@pytest.mark.parametrize("tags", [False, True])
def test_webjs_tells_of_acks_only_when_asked(receiver: ScriptedServer, http: urllib3.PoolManager, tags: bool) -> None:
    with Sandbox(engine="WEBJS") as sandbox:
        sandbox.events.behaviour = Behaviour().changed(NOW | {"replies": 1})
        listen(sandbox, http, hook(receiver, "message.ack", "message"), webjs={"tagsEventsOn": tags})
        send(sandbox, http)
        until(lambda: heard(receiver, "message"))
        assert acks(receiver) == ([1, 2, 3] if tags else [])
        assert http.request("GET", f"{sandbox.url}/api/demo/chats/{READER}/messages?limit=1").json()[0]["ack"] == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_the_channel_understands_all_of_it(receiver: ScriptedServer, http: urllib3.PoolManager, engine: str) -> None:
    """Created, paired, listened to, sent through and answered by the channel WAHA itself."""
    with Sandbox(engine=engine, open_sessions=False) as sandbox:
        sandbox.events.behaviour = Behaviour().changed(NOW | {"replies": 1})
        settings = {"base_url": sandbox.url, "session": "demo", "engine": engine}
        waha = WahaProvider(SessionConfig({"webhook_secret": KEY * 5}, settings))
        waha.manage("create", soon())
        until(lambda: waha.check_session(soon()).state == SessionState.NEEDS_PAIRING)
        assert waha.pair(soon()).qr_png.startswith(b"\x89PNG")
        assert waha.pair(soon(), phone="+1 202 555 0101").code
        sandbox.accounts.scan("demo")
        waha.set_webhook(f"{receiver.url}/hooks", soon())
        assert len(waha.list_chats(soon(), groups=True)) == GROUPS
        assert len(waha.list_chats(soon(), groups=False, limit=1000)) == CONTACTS
        assert waha.resolve_sender(str(lid_of("12025550101")), soon()) == "12025550101@c.us"
        sent = waha.send(READER, Message(MessageType.TEXT, text="Hello"), uuid.uuid4(), soon())
        until(lambda: heard(receiver, "message"))
    seen: list[Event] = []
    for one in receiver.requests:
        answer = waha.accept_webhook(WebhookRequest(one.method, f"{receiver.url}/hooks", one.headers, {}, one.body))
        seen += [event for item in answer.items for event in waha.read_event(item)]
    receipts = [event for event in seen if isinstance(event, Receipt)]
    assert [event.state for event in receipts] == [ReceiptState.ACCEPTED, ReceiptState.DELIVERED, ReceiptState.READ]
    assert {event.message_id for event in receipts} == {sent.message_id}
    assert [event.sender for event in seen if isinstance(event, Inbound)] == [READER]
    assert [event.check.state for event in seen if isinstance(event, StateReport)] == [SessionState.CONNECTING, SessionState.CONNECTED]


def test_it_stops_at_once_while_a_receiver_hangs(receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    def call() -> None:
        with pytest.raises(urllib3.exceptions.HTTPError), urllib3.PoolManager() as own:
            own.request("POST", f"{sandbox.url}/api/sendText", json=body, retries=False)

    body = {"session": "demo", "chatId": READER, "text": "x"}
    receiver.script(HANG)
    with Sandbox(webhooks=[hook(receiver)]) as sandbox:
        send(sandbox, http)
        until(lambda: receiver.requests)
        sandbox.script({"kind": "early-ack"}, {"kind": "timeout-after-accept", "seconds": 60})
        caller = threading.Thread(target=call)  # waits for an ack that the hanging one is in front of
        caller.start()
        until(lambda: len(sandbox.messages()) == 2)
        began = time.monotonic()
    caller.join(30)
    assert time.monotonic() - began < 1 + A_BUSY_MACHINE
    assert "sandbox events" not in [thread.name for thread in threading.enumerate()]


def test_what_is_forgotten_is_never_told(sandbox: Sandbox, receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    sandbox.events.behaviour = Behaviour().changed(NOW | {"server": 60})
    listen(sandbox, http, hook(receiver, "message.ack"))
    send(sandbox, http)
    assert sandbox.events.totals()["waiting"] > 0
    sandbox.clear()
    assert sandbox.events.totals() == {"delivered": 0, "given_up": 0, "waiting": 0, "refused": 0}


def test_many_messages_are_all_told_of(receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    with Sandbox(webhooks=[hook(receiver, "message.ack")]) as sandbox:
        sandbox.events.behaviour = Behaviour().changed(NOW)
        for n in range(100):
            send(sandbox, http, f"1202555{n + 100:04}@c.us")
        until(lambda: len(receiver.requests) == 300)
        assert Counter(acks(receiver)) == {1: 100, 2: 100, 3: 100}
        assert sandbox.events.totals() == {"delivered": 300, "given_up": 0, "waiting": 0, "refused": 0}


def test_what_has_no_room_is_refused_and_counted(receiver: ScriptedServer, http: urllib3.PoolManager) -> None:
    with Sandbox(webhooks=[hook(receiver)], events_waiting=2) as sandbox:
        sandbox.events.behaviour = Behaviour().changed(NOW | {"server": 60, "device": 60, "read": 60})
        for _ in range(3):
            send(sandbox, http)
        assert sandbox.events.totals() == {"delivered": 0, "given_up": 0, "waiting": 2, "refused": 7}

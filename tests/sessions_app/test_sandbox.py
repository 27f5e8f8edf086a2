"""The stand-in itself, and the sandbox channel against it over real HTTP."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3
from django.core.management import call_command
from django.core.management.base import CommandError

from sessions_app.providers.base import (
    Answer,
    ErrorCode,
    Message,
    MessageType,
    Presence,
    SendResult,
    SentMessage,
    SessionConfig,
    SessionState,
)
from sessions_app.providers.sandbox import SandboxProvider
from sessions_app.providers.waha import WahaProvider
from sessions_app.providers.waha_answers import client_id
from sessions_app.sandbox import Sandbox
from sessions_app.sandbox.faults import KINDS, BadFault
from sessions_app.sandbox.state import ENGINES, State
from tests.providers.contract import soon

CHAT = "12025550101@c.us"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def http() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager() as manager:
        yield manager


def provider(sandbox: Sandbox, *, session: str = "demo", engine: str = "", api_key: str = "") -> SandboxProvider:
    chosen = engine or sandbox.state.engine
    return SandboxProvider(SessionConfig({"api_key": api_key}, {"base_url": sandbox.url, "session": session, "engine": chosen}))


def send(sandbox: Sandbox, *, text: str = "Hello", ref: uuid.UUID | None = None, seconds: float = 5, **how: Any) -> SendResult:
    message = Message(MessageType.TEXT, text=text)
    return provider(sandbox, **how).send(CHAT, message, ref or uuid.uuid4(), soon(seconds))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_it_accepts_it_writes_down(engine: str) -> None:
    ref, before = uuid.uuid4(), time.time()
    with Sandbox(engine=engine) as sandbox:
        result = send(sandbox, ref=ref, text="Olá\r\nAna 👋")
        [message] = sandbox.messages()
    takes_ids = engine in ("NOWEB", "GOWS")
    assert result.answer == Answer.ACCEPTED
    assert message["id"] == f"true_{CHAT}_{result.message_id}"
    assert (message["n"], message["session"], message["chatId"], message["text"]) == (1, "demo", CHAT, "Olá\nAna 👋")
    assert message["clientId"] == (client_id(ref) if takes_ids else None)
    assert before - 0.001 <= message["time"] <= time.time() + 0.001
    assert takes_ids == (result.message_id == client_id(ref))


def test_a_real_waha_client_speaks_to_it_too(sandbox: Sandbox) -> None:
    waha = WahaProvider(SessionConfig(settings={"base_url": sandbox.url, "session": "sales", "engine": "NOWEB"}))
    assert waha.send(CHAT, Message(MessageType.TEXT, text="Hello"), uuid.uuid4(), soon()).answer == Answer.ACCEPTED
    assert waha.check_session(soon()).state == SessionState.CONNECTED


def test_doubles_are_counted_and_never_hidden(sandbox: Sandbox) -> None:
    ref = uuid.uuid4()
    for _ in range(3):
        assert send(sandbox, ref=ref).answer == Answer.ACCEPTED
    send(sandbox)
    assert [message["double"] for message in sandbox.messages()] == [False, True, True, False]
    assert sandbox.state.totals() == {"accepted": 4, "kept": 4, "doubles": 2}


def test_without_client_ids_the_same_text_in_the_same_chat_is_a_double() -> None:
    with Sandbox(engine="WEBJS") as sandbox:
        send(sandbox, text="a")
        send(sandbox, text="b")
        send(sandbox, text="a")
        assert [message["double"] for message in sandbox.messages()] == [False, False, True]


# kind -> what the channel makes of it, whether the stand-in accepted the message
EFFECTS = {
    "400": (ErrorCode.MISCONFIGURED, 0),
    "401": (ErrorCode.DISCONNECTED, 0),
    "403": (ErrorCode.DISCONNECTED, 0),
    "404": (ErrorCode.DISCONNECTED, 0),
    "422-session": (ErrorCode.DISCONNECTED, 0),
    "422-engine": (ErrorCode.MISCONFIGURED, 0),
    "429": (ErrorCode.RATE_LIMIT, 0),
    "429-retry-after": (ErrorCode.RATE_LIMIT, 0),
    "500": (ErrorCode.UNCONFIRMED, 0),
    "500-after-accept": (ErrorCode.UNCONFIRMED, 1),
    "500-463": (ErrorCode.DISCONNECTED, 0),
    "500-no-lid": (ErrorCode.INVALID_RECIPIENT, 0),
    "500-rate-overlimit": (ErrorCode.RATE_LIMIT, 0),
    "502": (ErrorCode.UNCONFIRMED, 0),
    "503": (ErrorCode.UNCONFIRMED, 0),
    "504": (ErrorCode.UNCONFIRMED, 0),
    "drop-before-accept": (ErrorCode.UNCONFIRMED, 0),
    "drop-after-accept": (ErrorCode.UNCONFIRMED, 1),
    "timeout-before-accept": (ErrorCode.UNCONFIRMED, 0),
    "timeout-after-accept": (ErrorCode.UNCONFIRMED, 1),
    "empty-201": (None, 1),
    "html-200": (ErrorCode.UNCONFIRMED, 0),
    "redirect": (ErrorCode.MISCONFIGURED, 0),
    "slow": (ErrorCode.UNCONFIRMED, 1),
}


def test_every_fault_has_its_row() -> None:
    assert EFFECTS.keys() == KINDS


@pytest.mark.parametrize(("kind", "code", "accepted"), [(kind, *effect) for kind, effect in EFFECTS.items()], ids=EFFECTS)
def test_faults(sandbox: Sandbox, kind: str, code: ErrorCode | None, accepted: int) -> None:
    """Each through the real transport; and afterwards a look-up finds exactly what was accepted."""
    ref, claimed_at = uuid.uuid4(), datetime.now(UTC)
    sandbox.script(kind)
    result = send(sandbox, ref=ref, seconds=0.3 if kind.startswith(("timeout", "slow")) else 5)
    assert result.code == code
    assert len(sandbox.messages()) == accepted
    sent = SentMessage(CHAT, Message(MessageType.TEXT, text="Hello"), ref, claimed_at)
    assert provider(sandbox).verify(sent, soon()).presence == (Presence.PRESENT if accepted else Presence.ABSENT)
    assert send(sandbox).answer == Answer.ACCEPTED, "it was one fault"


@pytest.mark.parametrize("engine", ENGINES)
def test_look_ups_of_every_engine(engine: str) -> None:
    with Sandbox(engine=engine) as sandbox:
        ref, before = uuid.uuid4(), datetime.now(UTC)
        result = send(sandbox, ref=ref, text="Find\r\nme")

        def presence(text: str, ref: uuid.UUID, known: str = "", at: datetime = before) -> Presence:
            sent = SentMessage(CHAT, Message(MessageType.TEXT, text=text), ref, at, known)
            return provider(sandbox).verify(sent, soon()).presence

        assert presence("Find\r\nme", ref) == Presence.PRESENT
        assert presence("Find\r\nme", ref, known=result.message_id) == Presence.PRESENT
        assert presence("Find somebody else", uuid.uuid4()) == Presence.ABSENT
        if engine in ("WEBJS", "WPP"):
            assert presence("Find\r\nme", uuid.uuid4(), at=before - timedelta(hours=1)) == Presence.ABSENT
        sandbox.set_session("demo", "FAILED")
        assert presence("Find\r\nme", ref) == Presence.UNKNOWN


def test_a_fault_waits_for_the_call_it_is_for(sandbox: Sandbox) -> None:
    sandbox.script({"kind": "429", "session": "other"}, {"kind": "401", "chat": "1@c.us"}, {"kind": "404", "count": 2})
    assert [send(sandbox).code for _ in range(3)] == [ErrorCode.DISCONNECTED, ErrorCode.DISCONNECTED, None]
    assert send(sandbox, session="other").code == ErrorCode.RATE_LIMIT
    assert [fault["kind"] for fault in sandbox.faults.listed()] == ["401"]


def test_faults_of_the_other_calls(sandbox: Sandbox) -> None:
    sandbox.script({"kind": "500", "on": "session"}, {"kind": "503", "on": "lookup"})
    assert send(sandbox).answer == Answer.ACCEPTED
    assert provider(sandbox).check_session(soon()).state == SessionState.DISCONNECTED
    assert provider(sandbox).check_session(soon()).state == SessionState.CONNECTED
    sent = SentMessage(CHAT, Message(MessageType.TEXT, text="Hello"), uuid.uuid4(), datetime.now(UTC))
    assert provider(sandbox).verify(sent, soon()).presence == Presence.UNKNOWN
    assert provider(sandbox).verify(sent, soon()).presence == Presence.ABSENT


@pytest.mark.parametrize("given", ["30", "Mon, 30 Nov 2099 12:00:00 GMT"])
def test_retry_after_as_scripted(sandbox: Sandbox, given: str) -> None:
    sandbox.script({"kind": "429-retry-after", "retry_after": given})
    wait = send(sandbox).retry_after
    assert wait is not None
    assert wait == timedelta(seconds=30) or wait > timedelta(days=1000)


def test_chaos_is_the_same_for_the_same_seed() -> None:
    def run() -> list[ErrorCode | None]:
        with Sandbox() as sandbox:
            sandbox.script({"probability": 0.3, "kinds": ["429", "500-after-accept"], "seed": 1})
            return [send(sandbox).code for _ in range(60)]

    first = run()
    assert first == run()
    assert 5 < sum(code is not None for code in first) < 35
    assert set(first) == {None, ErrorCode.RATE_LIMIT, ErrorCode.UNCONFIRMED}


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "418"},
        {"kind": "429", "count": 0},
        {"kind": "429", "on": "moon"},
        {"kind": "429", "what": 1},
        {"kind": ["429"]},
        {"kind": "slow", "seconds": -1},
        {},
        {"probability": 2, "kinds": ["429"]},
        {"probability": 0.5},
        {"probability": 0.5, "kinds": ["418"]},
        {"probability": 0.5, "kinds": ["429"], "what": 1},
    ],
)
def test_a_script_that_says_nothing_is_refused(sandbox: Sandbox, http: urllib3.PoolManager, entry: dict[str, Any]) -> None:
    with pytest.raises(BadFault):
        sandbox.script(entry)
    answer = http.request("POST", f"{sandbox.url}/_sandbox/faults", json=[entry])
    assert answer.status == 400
    assert answer.json()["message"]


def test_the_control_by_http(sandbox: Sandbox, http: urllib3.PoolManager) -> None:
    control = f"{sandbox.url}/_sandbox"
    assert http.request("POST", f"{control}/faults", json={"kind": "429", "count": 5}).json()[0]["count"] == 5
    assert send(sandbox).code == ErrorCode.RATE_LIMIT
    assert http.request("GET", f"{control}/faults").json()[0]["count"] == 4
    http.request("DELETE", f"{control}/faults")
    send(sandbox)
    send(sandbox, session="other")
    both = http.request("GET", f"{control}/messages").json()
    assert both == sandbox.messages()
    assert [message["n"] for message in http.request("GET", f"{control}/messages?session=other").json()] == [2]
    assert http.request("GET", f"{control}/messages?since={both[1]['time'] + 1}").json() == []
    assert http.request("GET", f"{control}/messages?since=noon").status == 400
    assert http.request("GET", f"{control}/totals").json() == {"accepted": 2, "kept": 2, "doubles": 0}
    http.request("DELETE", f"{control}/messages")
    assert http.request("GET", f"{control}/messages").json() == []
    assert http.request("POST", f"{control}/sessions/demo", json={"status": "SCAN_QR_CODE"}).status == 200
    assert provider(sandbox).check_session(soon()).state == SessionState.NEEDS_PAIRING
    assert http.request("POST", f"{control}/sessions/demo", json={"status": "DANCING"}).status == 400
    assert http.request("POST", f"{control}/faults", body=b"not json").status == 400
    assert http.request("GET", f"{control}/nothing").status == 404


def test_the_key_is_checked(http: urllib3.PoolManager) -> None:
    with Sandbox(api_key="right") as sandbox:
        assert send(sandbox, api_key="wrong").code == ErrorCode.DISCONNECTED
        assert send(sandbox, api_key="right").answer == Answer.ACCEPTED
        answer = http.request("GET", f"{sandbox.url}/ping")
        assert (answer.status, answer.json()) == (401, {"message": "Unauthorized", "statusCode": 401})
        assert http.request("GET", f"{sandbox.url}/ping", headers={"X-Api-Key": "right"}).json() == {"message": "pong"}


def test_a_session_has_a_life(sandbox: Sandbox, http: urllib3.PoolManager) -> None:
    api = f"{sandbox.url}/api/sessions"
    assert http.request("GET", f"{api}/demo").json()["status"] == "WORKING"
    assert http.request("POST", f"{api}/demo/stop").status == 201
    assert send(sandbox).http_status == 404
    assert http.request("GET", api).json() == []
    assert [one["name"] for one in http.request("GET", f"{api}?all=true").json()] == ["demo"]
    http.request("POST", f"{api}/demo/start")
    assert send(sandbox).answer == Answer.ACCEPTED, "what is paired stays so, and a session that is starting is waited for"
    http.request("POST", f"{api}/demo/logout")
    assert (send(sandbox).http_status, provider(sandbox).check_session(soon()).state) == (422, SessionState.NEEDS_PAIRING)
    http.request("POST", f"{api}/demo/start")
    assert send(sandbox).http_status == 422, "a start pairs nothing"
    assert http.request("POST", f"{sandbox.url}/_sandbox/sessions/demo/scan").json() == {"name": "demo", "status": "WORKING"}
    assert send(sandbox).answer == Answer.ACCEPTED
    assert http.request("POST", api, json={"name": "demo"}).status == 422
    assert http.request("POST", api, json={"name": "quiet", "start": False}).json()["status"] == "STOPPED"
    assert http.request("POST", f"{api}/demo/dance").status == 404


def test_only_created_sessions_where_asked_for(http: urllib3.PoolManager) -> None:
    with Sandbox(open_sessions=False) as sandbox:
        assert send(sandbox).http_status == 404
        assert provider(sandbox).check_session(soon()).state == SessionState.DISCONNECTED
        assert http.request("POST", f"{sandbox.url}/api/sessions", json={"name": "demo"}).json()["status"] == "STARTING"
        assert send(sandbox).http_status == 422
        http.request("POST", f"{sandbox.url}/_sandbox/sessions/demo/scan")
        assert send(sandbox).answer == Answer.ACCEPTED


def test_small_questions(sandbox: Sandbox, http: urllib3.PoolManager) -> None:
    version = http.request("GET", f"{sandbox.url}/api/server/version").json()
    assert (version["version"], version["engine"]) == ("2026.7.1", "NOWEB")
    check = f"{sandbox.url}/api/contacts/check-exists?session=demo&phone="
    assert http.request("GET", check + "%2B12025550101").json() == {"numberExists": True, "chatId": CHAT}
    assert http.request("GET", check + "12025550000").json() == {"numberExists": False}
    assert http.request("GET", check).status == 400
    assert http.request("GET", f"{sandbox.url}/api/demo/chats/{CHAT}/messages").status == 400, "limit is required"
    assert http.request("PUT", f"{sandbox.url}/api/nothing").status == 404


@pytest.mark.parametrize(
    "body",
    [
        {"session": "demo", "chatId": CHAT},
        {"session": "demo", "chatId": CHAT, "text": 5},
        {"session": "demo", "chatId": CHAT, "text": "x", "linkPreview": "yes"},
        {"session": "demo", "chatId": CHAT, "text": "x", "txt": "y"},
        ["x"],
        None,
    ],
)
def test_a_malformed_message_is_refused(sandbox: Sandbox, http: urllib3.PoolManager, body: Any) -> None:
    assert http.request("POST", f"{sandbox.url}/api/sendText", json=body).status == 400
    assert sandbox.messages() == []


def test_it_forgets_the_oldest() -> None:
    state = State(engine="NOWEB", capacity=3)
    for number in range(5):
        state.accept("demo", CHAT, f"Text {number}", f"ID{number}")
    assert [message.n for message in state.messages()] == [3, 4, 5]
    assert state.totals() == {"accepted": 5, "kept": 3, "doubles": 0}
    assert state.find("demo", "ID1") is None
    assert [message.n for message in state.chat("demo", CHAT)] == [5, 4, 3]
    assert not state.accept("demo", CHAT, "Text 0", "ID0").double


def test_many_callers_at_once(sandbox: Sandbox) -> None:
    def call() -> None:
        for _ in range(25):
            assert send(sandbox).answer == Answer.ACCEPTED

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [message["n"] for message in sandbox.messages()] == list(range(1, 201))


def test_it_stops_while_a_call_hangs() -> None:
    with Sandbox() as sandbox:
        sandbox.script({"kind": "timeout-after-accept", "seconds": 60})
        caller = threading.Thread(target=send, args=(sandbox,), kwargs={"seconds": 30})
        caller.start()
        while not sandbox.messages():
            os.sched_yield()
        began = time.monotonic()
    caller.join(5)
    assert not caller.is_alive()
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_command_runs_and_stops_cleanly(stop: signal.Signals, http: urllib3.PoolManager) -> None:
    manage = Path(__file__).resolve().parents[2] / "manage.py"
    command = [sys.executable, str(manage), "run_sandbox", "--port", "0", "--engine", "GOWS", "--api-key", "k", "--auto-pair", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        assert said.startswith("Sandbox at http://127.0.0.1:"), process.stderr.read()
        url = said.split()[2]
        assert http.request("GET", f"{url}/ping", headers={"X-Api-Key": "k"}).json() == {"message": "pong"}
        key = {"X-Api-Key": "k"}
        http.request("POST", f"{url}/api/sessions/demo/logout", headers=key)
        assert http.request("GET", f"{url}/api/demo/auth/qr", headers=key).data.startswith(b"\x89PNG")
        assert http.request("GET", f"{url}/api/sessions/demo", headers=key).json()["status"] == "WORKING", "it paired itself"
        process.send_signal(stop)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""


def test_a_wait_that_makes_no_sense_is_said() -> None:
    with pytest.raises(CommandError, match="from 0 to 3600"):
        call_command("run_sandbox", "--auto-pair", "-1")


def test_a_port_that_is_taken_is_said(sandbox: Sandbox) -> None:
    manage = Path(__file__).resolve().parents[2] / "manage.py"
    port = sandbox.url.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, str(manage), "run_sandbox", "--port", port], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert f"Port {port} on 127.0.0.1 cannot be used" in done.stderr
    assert "Traceback" not in done.stderr

"""Each way a provider can fail, on each channel that speaks HTTP: what becomes of the message, its session, its campaign and the receiver.

Real engine, real client, real HTTP; only the clock is the test's, and the receiver does what the row says to the first person's message.
What it is asked afterwards it cannot answer, so nothing here is put right by a look-up: that is tests/dispatch/test_verification.py.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from campaigns import transitions
from campaigns.models import Campaign
from dispatch.models import DispatchLog, Lane
from sessions_app.models import Session
from tests.dispatch.conftest import START, Drive, make_ready
from tests.dispatch.invariants import assert_sum_rule
from tests.factories import make_session
from tests.providers.scripted_server import CLOSE, HANG, RESET, Answer, ScriptedServer, drip, reply

pytestmark = pytest.mark.django_db
A_CALL = timedelta(seconds=5)
A_SHORT_CALL = timedelta(seconds=0.6)  # for what ends with its deadline only

# -- the table -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    status: str  # of the first message, for good
    attempts: int  # how often it left
    accepts: int  # of it at the receiver
    rest: str  # of the second message
    campaign: str
    session: str = "CONNECTED"
    streak: int = 0  # failures in a row that the lane counts after the first answer
    waits: tuple[float, float] | None = None  # seconds of cool-down, at least and at most


SENT = Cell("SENT", 1, 1, rest="SENT", campaign="COMPLETED")
NO_SUCH_PERSON = Cell("FAILED", 1, 0, rest="SENT", campaign="COMPLETED")  # counts to the twenty, not to the five
ALL_FAIL = Cell("FAILED", 1, 0, rest="FAILED", campaign="COMPLETED", streak=1)  # nobody can be reached; from five on it pauses
AWAY = Cell("PENDING", 1, 0, rest="PENDING", campaign="PAUSED", session="DISCONNECTED")
WRONG = Cell("PENDING", 1, 0, rest="PENDING", campaign="PAUSED")  # for everybody, so nobody else is tried
DOUBT = Cell("UNCONFIRMED", 1, 0, rest="SENT", campaign="COMPLETED", streak=1)
DOUBT_BUT_THERE = Cell("UNCONFIRMED", 1, 1, rest="SENT", campaign="COMPLETED", streak=1)


def throttled(at_least: float, at_most: float | None = None) -> Cell:
    """The same message again after the wait, and then the next one."""
    return Cell("SENT", 2, 1, rest="SENT", campaign="COMPLETED", waits=(at_least, at_most or at_least))


CHANNELS: dict[str, dict[str, Any]] = {
    "waha, NOWEB": {"channel": "waha", "engine": "NOWEB", "check_numbers": False},  # takes our own message id
    "waha, WEBJS": {"channel": "waha", "engine": "WEBJS", "check_numbers": False},  # does not
    "sandbox": {"channel": "sandbox", "engine": "NOWEB", "rate": 1},  # one at a time, as the human ones
}

# fault                            waha, NOWEB        waha, WEBJS        sandbox
EXPECTED: dict[str, tuple[Cell, Cell, Cell]] = {
    "no fault":                   (SENT,              SENT,              SENT),
    "dns_fail":                   (ALL_FAIL,          ALL_FAIL,          WRONG),  # the sandbox calls this machine only
    "refuse":                     (ALL_FAIL,          ALL_FAIL,          ALL_FAIL),
    "connect_timeout":            (ALL_FAIL,          ALL_FAIL,          ALL_FAIL),
    "tls_fail":                   (ALL_FAIL,          ALL_FAIL,          ALL_FAIL),
    "400":                        (WRONG,             WRONG,             WRONG),
    "401":                        (AWAY,              AWAY,              AWAY),
    "403":                        (AWAY,              AWAY,              AWAY),
    "404":                        (AWAY,              AWAY,              AWAY),
    "409":                        (DOUBT,             DOUBT,             DOUBT),
    "413":                        (DOUBT,             DOUBT,             DOUBT),
    "422-session":                (AWAY,              AWAY,              AWAY),
    "422-other":                  (WRONG,             WRONG,             WRONG),
    "429":                        (throttled(300),    throttled(300),    throttled(5)),
    "429, Retry-After 2":         (throttled(300),    throttled(300),    throttled(5)),  # never sooner than our own
    "429, Retry-After 420":       (throttled(420),    throttled(420),    throttled(420)),
    "429, Retry-After date":      (throttled(590, 600), throttled(590, 600), throttled(590, 600)),
    "500-before":                 (DOUBT,             DOUBT,             DOUBT),
    "500-after-accept":           (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "500, number unknown":        (NO_SUCH_PERSON,    NO_SUCH_PERSON,    NO_SUCH_PERSON),
    "502":                        (DOUBT,             DOUBT,             DOUBT),
    "503":                        (DOUBT,             DOUBT,             DOUBT),
    "504":                        (DOUBT,             DOUBT,             DOUBT),
    "drop_before_body":           (DOUBT,             DOUBT,             DOUBT),
    "drop_before_accept":         (DOUBT,             DOUBT,             DOUBT),
    "accept_then_drop":           (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "accept_then_hang":           (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "slow-drip head":             (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "slow-drip body":             (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "answer cut short":           (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "200-with-html":              (DOUBT,             DOUBT,             DOUBT),
    "200-empty":                  (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "201-without-id":             (SENT,              SENT,              SENT),
    "201-empty":                  (SENT,              SENT,              SENT),
    "201-empty-object":           (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "201-with-html":              (DOUBT,             DOUBT,             DOUBT),
    "duplicate id":               (SENT,              SENT,              SENT),
    "redirect":                   (WRONG,             WRONG,             WRONG),
    "redirect, see other":        (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
    "huge body":                  (DOUBT_BUT_THERE,   DOUBT_BUT_THERE,   DOUBT_BUT_THERE),
}  # fmt: skip

# -- the faults ----------------------------------------------------------------------------------------------------------------

CHAT = "12025550100@c.us"
ACCEPTED = reply(201, {"key": {"id": "3EB0AA", "fromMe": True}, "id": "true_12025550100@c.us_3EB0AA"})
HEAD = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"


@dataclass(frozen=True)
class Fault:
    answer: Answer | None = None  # to the first message; None: nobody answers there at all
    arrives: bool = False  # whether the receiver took it all the same
    where: Callable[[ScriptedServer, ExitStack], str] = lambda server, stack: server.url
    cuts_first_connection: bool = False
    call: timedelta = A_CALL


def _closed_port(server: ScriptedServer, stack: ExitStack) -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def _full_backlog(server: ScriptedServer, stack: ExitStack) -> str:
    """A listener that takes nobody: further connections get no answer at all."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(4):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(listener.getsockname())
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _nest(status: int, message: str) -> Answer:
    return reply(status, {"statusCode": status, "message": message, "error": "Some Error"})


def _engine_failure(message: str) -> Answer:
    return reply(500, {"statusCode": 500, "exception": {"message": message, "name": "Error"}})


def _throttle(**headers: str) -> Answer:
    return reply(429, {"message": "Too Many Requests"}, headers={name.replace("_", "-"): value for name, value in headers.items()})


SESSION_IS_AWAY = {"error": "Session status is not as expected.", "status": "SCAN_QR_CODE", "expected": ["WORKING"]}
PAGE = b"<!doctype html><title>Log in</title>"
FAULTS: dict[str, Callable[[], Fault]] = {
    "no fault": lambda: Fault(ACCEPTED, arrives=True),
    "dns_fail": lambda: Fault(where=lambda server, stack: "http://no-such-host.invalid"),
    "refuse": lambda: Fault(where=_closed_port),
    "connect_timeout": lambda: Fault(where=_full_backlog, call=A_SHORT_CALL),
    "tls_fail": lambda: Fault(where=lambda server, stack: server.url.replace("http:", "https:")),
    "400": lambda: Fault(_nest(400, "text must be a string")),
    "401": lambda: Fault(_nest(401, "Unauthorized")),
    "403": lambda: Fault(_nest(403, "Forbidden resource")),
    "404": lambda: Fault(_nest(404, "We didn't find a session with name 'default'.")),
    "409": lambda: Fault(_nest(409, "Conflict")),
    "413": lambda: Fault(_nest(413, "request entity too large")),
    "422-session": lambda: Fault(reply(422, SESSION_IS_AWAY)),
    "422-other": lambda: Fault(_nest(422, "The method is not implemented by the engine.")),
    "429": lambda: Fault(_throttle()),
    "429, Retry-After 2": lambda: Fault(_throttle(Retry_After="2")),
    "429, Retry-After 420": lambda: Fault(_throttle(Retry_After="420")),
    "429, Retry-After date": lambda: Fault(_throttle(Retry_After=format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True))),
    "500-before": lambda: Fault(_engine_failure("Evaluation failed: detached Frame")),
    "500-after-accept": lambda: Fault(_engine_failure("Cannot read properties of undefined (reading 'markedUnread')"), arrives=True),
    "500, number unknown": lambda: Fault(_engine_failure("no LID found for 12025550100@s.whatsapp.net from server")),
    "502": lambda: Fault(reply(502, b"<h1>Bad Gateway</h1>")),
    "503": lambda: Fault(reply(503, b"", headers={"Retry-After": "5"})),
    "504": lambda: Fault(reply(504, b"<h1>Gateway Time-out</h1>")),
    "drop_before_body": lambda: Fault(cuts_first_connection=True),
    "drop_before_accept": lambda: Fault(CLOSE),
    "accept_then_drop": lambda: Fault(RESET, arrives=True),
    "accept_then_hang": lambda: Fault(HANG, arrives=True, call=A_SHORT_CALL),
    "slow-drip head": lambda: Fault(drip(b"HTTP/1.1 201 Created\r\nX-Slow: " + b"x" * 500), arrives=True, call=A_SHORT_CALL),
    "slow-drip body": lambda: Fault(Answer((HEAD, *drip(b" " * 500).pieces), pause=0.05), arrives=True, call=A_SHORT_CALL),
    "answer cut short": lambda: Fault(Answer((HEAD + b"{",), then="close"), arrives=True),
    "200-with-html": lambda: Fault(reply(200, PAGE)),
    "200-empty": lambda: Fault(reply(200), arrives=True),
    "201-without-id": lambda: Fault(reply(201, {"status": "PENDING"}), arrives=True),
    "201-empty": lambda: Fault(reply(201), arrives=True),
    "201-empty-object": lambda: Fault(reply(201, {}), arrives=True),
    "201-with-html": lambda: Fault(reply(201, PAGE)),
    "duplicate id": lambda: Fault(ACCEPTED, arrives=True),  # the second person's answer names the same id
    "redirect": lambda: Fault(reply(302, b"", headers={"Location": "/login"})),
    "redirect, see other": lambda: Fault(reply(303, b"", headers={"Location": "/done"}), arrives=True),
    "huge body": lambda: Fault(reply(201, b" " * (3 * 1024 * 1024), then="close"), arrives=True),
}
CELLS = [(name, column) for name in FAULTS for column in CHANNELS]


def test_every_cell_has_an_expectation_and_every_expectation_a_cell():
    assert set(EXPECTED) == set(FAULTS)
    assert {len(row) for row in EXPECTED.values()} == {len(CHANNELS)}


# -- the cells -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(usual=ACCEPTED) as server:
        yield server


def leave(server: ScriptedServer, chat: str) -> list[int]:
    """Which of the messages that the server read were to this person, counted over all of them."""
    sends = [request for request in server.requests if request.method == "POST"]
    return [position for position, request in enumerate(sends) if request.json()["chatId"] == chat]


def accepts(server: ScriptedServer, fault: Fault, chat: str) -> int:
    """What the row answers to the first message, the usual answer accepts."""
    is_scripted = fault.answer is not None
    return sum(fault.arrives if is_scripted and position == 0 else True for position in leave(server, chat))


def prepare(server: ScriptedServer, fault: Fault, column: str, stack: ExitStack) -> Campaign:
    if fault.answer is not None:
        server.script(fault.answer)
    if fault.cuts_first_connection:
        cuts = iter([socket.socket.close])
        server.before_reading = lambda connection: next(cuts, lambda one: None)(connection)
    config = dict(CHANNELS[column])
    channel = config.pop("channel")
    settings = {"base_url": fault.where(server, stack), "session": "default", **config}
    campaign = make_ready(people=2, session=make_session(channel=channel, settings=settings, checked_at=START))
    return transitions.start(campaign.pk, by="ana", now=START)


def see_first_answer(drive: Drive, cell: Cell) -> None:
    drive.once()
    lane = Lane.objects.get()
    assert lane.consecutive_failures == cell.streak
    assert lane.trouble == ""  # what shut it was seen to
    if cell.waits is not None:
        at_least, at_most = cell.waits
        assert at_least <= (lane.next_send_at - drive.now).total_seconds() <= at_most


def let_days_pass(drive: Drive) -> None:
    """Whatever would send again or be asked again has its chance."""
    drive.until_done()
    drive.forward(timedelta(hours=25))
    drive.until_done()


@pytest.mark.parametrize(("name", "column"), CELLS, ids=[f"{name} / {column}" for name, column in CELLS])
def test_cell(name: str, column: str, server: ScriptedServer, drive: Drive) -> None:
    cell = EXPECTED[name][list(CHANNELS).index(column)]
    fault = FAULTS[name]()
    with ExitStack() as stack:
        campaign = prepare(server, fault, column, stack)
        drive.engine.deadline = fault.call
        see_first_answer(drive, cell)
        if fault.answer is not None:
            drive.engine.deadline = A_CALL
        let_days_pass(drive)
    first, second = DispatchLog.objects.order_by("pk")
    assert first.address == CHAT
    campaign.refresh_from_db()
    assert (first.status, second.status) == (cell.status, cell.rest), (first.error_text, campaign.status_reason)
    assert first.attempt == cell.attempts
    assert accepts(server, fault, first.address) == cell.accepts
    assert accepts(server, fault, second.address) == (cell.rest == "SENT")
    assert campaign.status == cell.campaign, campaign.status_reason
    assert Session.objects.get().status == cell.session
    assert_sum_rule(campaign)
    if cell.status in {"FAILED", "UNCONFIRMED", "PENDING"}:
        assert first.error_text  # nobody is left without the reason

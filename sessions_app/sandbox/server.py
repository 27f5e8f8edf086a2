"""The HTTP side of the stand-in. Loopback only, keep-alive, one thread per connection."""

import json
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from sessions_app.sandbox import hooks
from sessions_app.sandbox.accounts import Accounts
from sessions_app.sandbox.agenda import CAPACITY
from sessions_app.sandbox.answers import Drop, Reply, Request
from sessions_app.sandbox.events import Events
from sessions_app.sandbox.faults import Faults
from sessions_app.sandbox.routes import answer
from sessions_app.sandbox.state import ENGINES, State

HOST = "127.0.0.1"
BODY_AT_MOST = 4 * 1024 * 1024
PREFIX = "/_sandbox/waha"  # the sandbox channel calls this, which no real WAHA answers


class Sandbox:
    """The stand-in in threads of this process: `with Sandbox() as sandbox: ... sandbox.url`. Port 0 takes a free one.

    With `open_sessions` every session name that is asked for exists and works; without, sessions are made and paired through the API.
    With `auto_pair` one is paired so many seconds after its QR code was first looked at. `webhooks`, in the shape of WAHA's
    configuration, hear of every session; BadHook when they are wrong.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        api_key: str = "",
        engine: str = "NOWEB",
        open_sessions: bool = True,
        capacity: int = 200_000,
        auto_pair: float | None = None,
        webhooks: Sequence[Mapping[str, Any]] = (),
        events_waiting: int = CAPACITY,
    ) -> None:
        if engine not in ENGINES:
            raise ValueError(f"There is no engine {engine}. Known: {', '.join(ENGINES)}.")
        self.api_key = api_key
        self.state = State(engine=engine, capacity=capacity)
        self.accounts = Accounts(open_sessions=open_sessions, auto_pair=auto_pair)
        self.faults = Faults()
        self.events = Events(self.accounts, self.state, self.faults, capacity=events_waiting)
        self.hear(webhooks)
        self.stopping = threading.Event()
        self._server = _Server((HOST, port), self)
        self._thread = threading.Thread(target=self._listen, name="sandbox")

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Cuts what is in progress, also calls that hang on purpose, and waits for the threads."""
        self.stopping.set()
        if self._thread.is_alive():
            socket.create_connection((HOST, self._server.server_address[1])).close()  # wakes the listener
            self._thread.join()
        self.events.stop()
        self._server.cut_connections()
        self._server.server_close()

    def _listen(self) -> None:
        while not self.stopping.is_set():
            self._server.handle_request()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def messages(self, *, session: str | None = None, since: float | None = None) -> list[dict[str, Any]]:
        """Everything accepted, in order; the fields are those of GET /_sandbox/messages."""
        return [one.listed() for one in self.state.messages(session=session, since=since)]

    def script(self, *faults: Mapping[str, Any] | str) -> None:
        """The faults of the next calls; a string is short for {"kind": ...}. Raises BadFault."""
        for fault in faults:
            self.faults.add({"kind": fault} if isinstance(fault, str) else fault)

    def set_session(self, name: str, status: str) -> None:
        self.accounts.set_status(name, status)

    def hear(self, webhooks: Sequence[Mapping[str, Any]]) -> None:
        """Who hears of every session, instead of those before. Raises BadHook."""
        self.events.everywhere = hooks.parse(list(webhooks))

    def clear(self) -> None:
        """Forget messages, faults and what was still to be told of them; the sessions stay."""
        self.state.clear()
        self.faults.clear()
        self.events.clear()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close() waits for them
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def cut_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the other side was quicker

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here; anything else is."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)
        if self.server.sandbox.stopping.is_set():  # it was accepted while the others were being cut
            self.close_connection = True

    def finish(self) -> None:
        self.server.closed(self.connection)
        try:
            super().finish()
        except OSError:
            pass  # cut while something was still to be flushed

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: what was accepted can be read from /_sandbox/messages."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        sandbox = self.server.sandbox
        url = urlsplit(self.path)
        path = url.path.removeprefix(PREFIX)
        try:
            body = self._body()
        except ValueError:
            self.close_connection = True
            self._reply(Reply(400, {"statusCode": 400, "message": "The body is not JSON.", "error": "Bad Request"}))
            return
        segments = tuple(unquote(part) for part in path.strip("/").split("/"))
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        accept = self.headers.get("Accept", "") if self.command == "GET" else ""
        reply = answer(sandbox, Request(self.command, segments, query, body, self.headers.get("X-Api-Key", ""), accept))
        if reply.delay:
            sandbox.stopping.wait(reply.delay)
        if reply.drop is not None:
            self._drop(reply.drop)
        else:
            self._reply(reply)

    def _body(self) -> Any:
        """Raises ValueError."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= BODY_AT_MOST:
            raise ValueError("too large")
        return json.loads(self.rfile.read(length)) if length else None

    def _reply(self, reply: Reply) -> None:
        content = reply.content()
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _drop(self, how: Drop) -> None:
        if how is Drop.RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

"""An HTTP server that does exactly what a test tells it, byte by byte: it can cut, drip, hang and reset. Loopback only."""

import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int  # counts the connections, so a test can see whether one was used again

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """Pieces of bytes, `pause` seconds apart. Then the connection stays, ends, is reset, hangs until the caller gives up, or goes deaf."""

    pieces: tuple[bytes, ...] = ()
    pause: float = 0.0
    then: str = "stay"  # or close, reset, hang, deaf


def reply(status: int, body: Any = b"", *, headers: Mapping[str, str] | None = None, then: str = "stay") -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "application/json" if not isinstance(body, bytes) else "text/html"
    lines = {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}
    head = f"HTTP/1.1 {status} Scripted\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    return Answer((head.encode() + content,), then=then)


def drip(whole: bytes, *, pause: float = 0.05) -> Answer:
    """One byte at a time, each well inside any time-out of a single read."""
    return Answer(tuple(bytes([byte]) for byte in whole), pause=pause)


HANG = Answer(then="hang")
RESET = Answer(then="reset")
CLOSE = Answer(then="close")


@dataclass
class ScriptedServer:
    """Answers in the order of the script; without one left, with `usual`. `before_reading` runs at each new connection."""

    usual: Answer = field(default_factory=lambda: reply(201, {}))
    tls: ssl.SSLContext | None = None
    before_reading: Callable[[socket.socket], object] | None = None

    def __post_init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self._script: deque[Answer] = deque()
        self._stopping = threading.Event()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def script(self, *answers: Answer) -> None:
        self._script.extend(answers)

    def __enter__(self) -> Self:
        self._spawn(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        socket.create_connection(self._listener.getsockname()).close()  # wakes the listener
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()
        self._listener.close()

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._stopping.is_set():
                connection.close()
                return
            self.connections += 1
            self._spawn(self._converse, connection, self.connections)

    def _converse(self, connection: socket.socket, number: int) -> None:
        try:
            if self.before_reading:
                self.before_reading(connection)
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            with connection, connection.makefile("rb") as stream:
                while (request := _read(stream, number)) is not None:
                    self.requests.append(request)
                    if not self._answer(connection, self._script.popleft() if self._script else self.usual):
                        return
        except (OSError, ValueError):  # the caller hung up, or spoke no HTTP, which is its right
            connection.close()

    def _answer(self, connection: socket.socket, answer: Answer) -> bool:
        for piece in answer.pieces:
            connection.sendall(piece)
            if answer.pause and self._stopping.wait(answer.pause):
                return False
        if answer.then == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if answer.then == "hang":
            while not self._stopping.is_set() and connection.recv(1):  # ends when the caller closes
                pass
        if answer.then == "deaf":
            self._stopping.wait()
        return answer.then == "stay"


def _read(stream: Any, number: int) -> Request | None:
    line = stream.readline().decode()
    if not line.strip():
        return None
    method, path, _ = line.split(" ")
    headers: dict[str, str] = {}
    while (header := stream.readline().decode("latin-1").strip()) != "":
        name, _, value = header.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Request(method, path, headers, stream.read(int(headers.get("content-length", 0))), number)

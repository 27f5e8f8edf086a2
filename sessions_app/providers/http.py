"""The transport every HTTP channel shares: one call, one answer, and certain knowledge of whether anything left.

urllib3 does the protocol, with its own retries, redirects and proxies off. What is added is the part that decides between "may be tried
again" and "nobody knows": the deadline holds over the whole call, and a connection knows whether a byte of the request was written.
"""

import http.client
import json
import logging
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util import create_urllib3_context

from sessions_app.providers.base import Deadline, ErrorCode, SendResult
from sessions_app.providers.reachable import is_public_address
from sessions_app.providers.scrubbing import DETAIL_AT_MOST as DETAIL_AT_MOST
from sessions_app.providers.scrubbing import scrub as scrub

CONNECT_TAKES_AT_MOST = 10.0  # seconds, so that a black hole does not use up what is left for nothing
IDLE_AT_MOST = timedelta(seconds=2)  # Node closes idle connections after 5 s; writing into one that is closing is a doubt of our own making
BODY_AT_MOST = 1024 * 1024
CONNECTIONS_PER_ORIGIN = 64

# Its debug lines carry the path, and the path of a look-up names the recipient.
logging.getLogger("urllib3").setLevel(logging.INFO)


class NotSent(Exception):
    """Provably nothing of the request left this process. With `deadline_passed`, only because it was too late to begin."""

    def __init__(self, reason: str, *, deadline_passed: bool = False) -> None:
        super().__init__(reason)
        self.deadline_passed = deadline_passed


class NoAnswer(Exception):
    """The first byte was written and no whole answer came back. What the other side did with it, nobody knows."""


class TooLarge(NoAnswer):
    """It was larger than what was to be read."""


@dataclass(frozen=True)
class Response:
    """A whole answer. The headers may carry cookies and the body an echo of the message, so neither is in the repr."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Raises ValueError when the body is not JSON."""
        return json.loads(self.body)

    @property
    def retry_after(self) -> timedelta | None:
        return parse_retry_after(self.headers.get("Retry-After", ""), now=datetime.now(UTC))


class _Call:
    """What the connection of one request must know, and what it finds out."""

    def __init__(self, deadline: Deadline, *, public_only: bool = False, at_most: int = BODY_AT_MOST) -> None:
        self.deadline = deadline
        self.public_only = public_only
        self.at_most = at_most
        self.wrote = False


_thread = threading.local()  # urllib3 picks the connection inside the call, in the caller's thread


def _call() -> _Call:
    return _thread.call


class _DeadlinePassed(Exception):
    pass


class _BoundedReads:
    """A socket of which every read ends at the deadline of the call it serves, so that an answer in drips cannot outlast it."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(_seconds_left())  # type: ignore[attr-defined]
        return super().recv_into(*args, **kwargs)  # type: ignore[misc]


class _Socket(_BoundedReads, socket.socket):
    pass


class _TLSSocket(_BoundedReads, ssl.SSLSocket):
    pass


def _seconds_left() -> float:
    left = _call().deadline.remaining
    if left == 0.0:
        raise TimeoutError("the deadline has passed")
    return left


def resolve(host: str, port: int, seconds: float) -> list[Any]:
    """getaddrinfo with a limit: it has none of its own, so it runs in a thread that is left behind when it takes too long."""
    found: list[Any] = []
    failed: list[Exception] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    thread = threading.Thread(target=look_up, name="resolve", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError("the name could not be resolved in time")
    return found


def _connect(host: str, port: int) -> _Socket:
    """Name and connection together take at most CONNECT_TAKES_AT_MOST or what is left, over all addresses of the host."""
    limit = Deadline(timedelta(seconds=min(CONNECT_TAKES_AT_MOST, _seconds_left())))
    failure: OSError = TimeoutError("timed out")
    for family, kind, protocol, _name, address in resolve(host, port, limit.remaining):
        if limit.passed:
            break
        if _call().public_only and not is_public_address(address[0]):
            failure = PermissionError(0, "The name leads into a local network")
            continue
        sock = _Socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(limit.remaining)
            sock.connect(address)
            sock.settimeout(limit.remaining)  # for the TLS handshake
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


class _Watched:
    """A connection that looks at the deadline right before the first byte, remembers that it wrote one, and does not stay idle for long."""

    sock: Any
    reusable: Deadline | None = None

    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port)  # type: ignore[attr-defined]

    def send(self, data: Any) -> None:
        call = _call()
        if self.sock is None:
            self.connect()  # type: ignore[attr-defined]
        if not call.wrote:
            if call.deadline.passed:
                raise _DeadlinePassed
            call.wrote = True
        self.sock.settimeout(_seconds_left())
        super().send(data)  # type: ignore[misc]


class _HTTP(_Watched, HTTPConnection):
    pass


class _HTTPS(_Watched, HTTPSConnection):
    pass


class _FreshOnly:
    """A pool that closes what was idle for too long instead of handing it out."""

    def _get_conn(self, timeout: float | None = None) -> Any:
        connection = super()._get_conn(timeout)  # type: ignore[misc]
        if connection.reusable is not None and connection.reusable.passed:
            connection.close()  # it connects anew by itself
        return connection

    def _put_conn(self, connection: Any) -> None:
        if connection is not None:
            connection.reusable = Deadline(IDLE_AT_MOST)
        super()._put_conn(connection)  # type: ignore[misc]


class _HTTPPool(_FreshOnly, HTTPConnectionPool):
    ConnectionCls = _HTTP


class _HTTPSPool(_FreshOnly, HTTPSConnectionPool):
    ConnectionCls = _HTTPS


def _new_manager() -> urllib3.PoolManager:
    context = create_urllib3_context()
    context.load_default_certs()
    context.sslsocket_class = _TLSSocket
    manager = urllib3.PoolManager(num_pools=100, maxsize=CONNECTIONS_PER_ORIGIN, ssl_context=context)
    manager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}
    return manager


_manager: urllib3.PoolManager | None = None
_making = threading.Lock()


def _pools() -> urllib3.PoolManager:
    global _manager
    with _making:
        if _manager is None:
            _manager = _new_manager()
        return _manager


def forget_connections() -> None:
    """The next call opens its own. Also run in every forked child: two processes on one socket would read each other's answers."""
    global _manager, _making
    _making = threading.Lock()
    _manager = None


os.register_at_fork(after_in_child=forget_connections)


def post_json(url: str, payload: Mapping[str, Any], *, deadline: Deadline, headers: Mapping[str, str] | None = None) -> Response:
    """Raises NotSent or NoAnswer, nothing else that the network can cause. A redirect comes back as the answer it is."""
    body = json.dumps(payload).encode()
    return _request("POST", url, body, {"Content-Type": "application/json", **(headers or {})}, deadline)


def post_form(
    url: str, fields: Mapping[str, str] | Iterable[tuple[str, str]], *, deadline: Deadline, headers: Mapping[str, str] | None = None
) -> Response:
    """As post_json, with a form's encoding."""
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    content = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
    return _request("POST", url, urlencode(list(pairs)).encode(), content, deadline)


def post_bytes(
    url: str, body: bytes, *, deadline: Deadline, headers: Mapping[str, str] | None = None, public_only: bool = False
) -> Response:
    """As post_json, for a body that was signed as it is. `public_only`: no connection into a local network, under whatever name; looked at
    when the connection is made, so that a name which changes its mind gains nothing.
    """
    return _request("POST", url, body, headers or {}, deadline, public_only=public_only)


def put_json(url: str, payload: Mapping[str, Any], *, deadline: Deadline, headers: Mapping[str, str] | None = None) -> Response:
    """As post_json."""
    return _request("PUT", url, json.dumps(payload).encode(), {"Content-Type": "application/json", **(headers or {})}, deadline)


def get_json(
    url: str, *, deadline: Deadline, query: Mapping[str, str | int] | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """As post_json."""
    return _request("GET", f"{url}?{urlencode(query)}" if query else url, None, headers or {}, deadline)


def get_bytes(url: str, *, deadline: Deadline, at_most: int, public_only: bool = False) -> Response:
    """A file of at most that many bytes; a larger one raises TooLarge. Else as post_bytes."""
    return _request("GET", url, None, {"Accept": "*/*"}, deadline, public_only=public_only, at_most=at_most)


def without_answer(error: NotSent | NoAnswer, who: str, hidden: Iterable[str]) -> SendResult:
    """What a call to `who` that brought no answer says about the message: too late to begin, provably not sent, or a doubt."""
    if isinstance(error, NoAnswer):
        return SendResult.refused(ErrorCode.UNCONFIRMED, scrub(f"The answer was lost: {error}", hidden))
    if error.deadline_passed:
        return SendResult.unsent(str(error))
    return SendResult.refused(ErrorCode.TRANSIENT, scrub(f"{who} cannot be reached: {error}", hidden))


_AS_IT_COMES: dict[str, Any] = {
    "timeout": None,  # the deadline bounds every single operation instead
    "retries": False,
    "redirect": False,
    "preload_content": False,
    "decode_content": False,
}


def _request(method: str, url: str, body: bytes | None, headers: Mapping[str, str], deadline: Deadline, **limits: Any) -> Response:
    if deadline.passed:
        raise NotSent("The deadline had passed before the call", deadline_passed=True)
    call = _thread.call = _Call(deadline, **limits)
    # identity: nothing to unpack, so a small answer cannot unfold into a large one
    sent_headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "paceline", **headers}
    try:
        answer = _pools().request(method, url, body=body, headers=sent_headers, **_AS_IT_COMES)
        return Response(answer.status, answer.headers, _read(answer))
    except NoAnswer:
        raise
    except _DeadlinePassed:
        raise NotSent("The deadline passed before the first byte", deadline_passed=True) from None
    except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
        if call.wrote:
            raise NoAnswer(in_words(error)) from None
        raise NotSent(in_words(error)) from None


def _read(answer: urllib3.BaseHTTPResponse) -> bytes:
    body, at_most = b"", _call().at_most
    while piece := answer.read(at_most + 1 - len(body)):
        body += piece
        if len(body) > at_most:
            answer.close()
            raise TooLarge("The answer is too large")
    answer.release_conn()
    return body


def in_words(error: BaseException) -> str:
    """For people. Never the error's own text: urllib3 and http.client quote URLs and header values in it, and both may hold secrets."""
    cause = error
    while isinstance(cause.__cause__ or cause.__context__, Exception) and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"The server's certificate was not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"No secure connection: {cause.reason or type(cause).__name__}"
    if isinstance(cause, socket.gaierror):
        return "The server's name could not be resolved"
    if isinstance(cause, TimeoutError):
        return "No answer in time"
    if isinstance(cause, OSError):
        return cause.strerror or type(cause).__name__
    if isinstance(error, ValueError):
        return "The address or a header of the call cannot be used"
    return f"The connection failed: {type(error).__name__}"


def parse_retry_after(value: str, *, now: datetime) -> timedelta | None:
    """Seconds or an HTTP date, as RFC 9110 has it; None when it is neither. A moment in the past is no wait."""
    value = value.strip()
    if re.fullmatch(r"[0-9]{1,9}", value):
        return timedelta(seconds=int(value))
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(timedelta(0), moment.replace(tzinfo=moment.tzinfo or UTC) - now)

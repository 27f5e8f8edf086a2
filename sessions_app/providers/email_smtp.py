"""One mail server: its connections, kept for a while, and one message at a time with certain knowledge of how far it got.

smtplib speaks the protocol. What is added: every read and write ends at the deadline, and the final dot is a write of its own. Without the
dot a server takes nothing, so what fails before it was not accepted; what fails after it is a doubt.
"""

import os
import smtplib
import socket
import ssl
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sessions_app.providers import http
from sessions_app.providers.base import Deadline, ErrorCode, SendResult
from sessions_app.providers.email_answers import Reply, Stage, meaning, read_reply, reply_of

IDLE_AT_MOST = timedelta(seconds=30)
MESSAGES_AT_MOST = 100  # on one connection: servers end long ones by themselves, and in the middle of something
CONNECT_TAKES_AT_MOST = 10.0
FAREWELL_TAKES_AT_MOST = timedelta(seconds=1)


class Refused(Exception):
    """A reply, at a stage, that ends the message."""

    def __init__(self, stage: Stage, reply: Reply) -> None:
        super().__init__(stage)
        self.stage, self.reply = stage, reply


class NotOffered(Exception):
    """The server has no encryption, or no login."""


class _TooLate(Exception):
    pass


class _Bounded:
    """A socket of which every operation ends at the deadline of the message it is used for."""

    deadline: Deadline | None = None

    def _limit(self) -> None:
        left = self.deadline.remaining if self.deadline else CONNECT_TAKES_AT_MOST
        if left == 0.0:
            raise TimeoutError("the deadline has passed")
        self.settimeout(left)  # type: ignore[attr-defined]

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._limit()
        return super().recv_into(*args, **kwargs)  # type: ignore[misc]

    def send(self, *args: Any, **kwargs: Any) -> int:
        self._limit()
        return super().send(*args, **kwargs)  # type: ignore[misc]

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self._limit()
        super().sendall(*args, **kwargs)  # type: ignore[misc]


class _Socket(_Bounded, socket.socket):
    pass


class _TLSSocket(_Bounded, ssl.SSLSocket):
    pass


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _TLSSocket
    return context


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    security: str  # "none", "starttls" or "tls"
    user: str
    password: str
    name: str  # ours, as we greet


class _Client(smtplib.SMTP):
    """Connected and greeted by, when the constructor returns."""

    def __init__(self, server: Server, deadline: Deadline) -> None:
        self.server, self.deadline, self.messages = server, deadline, 0
        self.reusable: Deadline | None = None
        super().__init__(server.host, server.port, local_hostname=server.name)

    def _get_socket(self, host: str, port: int, timeout: float) -> Any:
        limit = Deadline(timedelta(seconds=min(CONNECT_TAKES_AT_MOST, self.deadline.remaining)))
        failure: OSError = TimeoutError("timed out")
        for family, kind, protocol, _, address in http.resolve(host, port, limit.remaining):
            if limit.passed:
                break
            sock = _Socket(family, kind, protocol)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the text and its dot are two writes: 40 ms else
                sock.settimeout(limit.remaining)
                sock.connect(address)
                sock.deadline = self.deadline
                if self.server.security != "tls":
                    return sock
                sock.settimeout(self.deadline.remaining or 0.001)
                return self.for_deadline(self.deadline, _tls().wrap_socket(sock, server_hostname=host))
            except OSError as error:
                sock.close()
                failure = error
        raise failure

    def for_deadline(self, deadline: Deadline, sock: Any = None) -> Any:
        self.deadline = deadline
        sock = sock or self.sock
        if sock is not None:
            sock.deadline = deadline
        return sock

    def ask(self, stage: Stage, command: str, expected: int) -> None:
        reply = reply_of(*self.docmd(command))
        if reply.code // 100 != expected // 100:
            raise Refused(stage, reply)


def connect(server: Server, deadline: Deadline) -> _Client:
    """Greeted, encrypted and logged in. Raises Refused, or OSError for what the network did."""
    stage = Stage.CONNECT
    client: _Client | None = None
    try:
        client = _Client(server, deadline)
        stage = Stage.HELLO
        client.ehlo_or_helo_if_needed()
        if server.security == "starttls":
            stage = Stage.STARTTLS
            client.starttls(context=_tls())
            client.for_deadline(deadline)
            client.ehlo_or_helo_if_needed()
        if server.user:
            stage = Stage.LOGIN
            client.login(server.user, server.password)
    except smtplib.SMTPResponseException as error:
        raise _closed(client, Refused(stage, reply_of(error.smtp_code, error.smtp_error))) from None
    except smtplib.SMTPNotSupportedError as error:
        raise _closed(client, NotOffered(str(error))) from None
    except (OSError, ValueError) as error:
        raise _closed(client, error if isinstance(error, OSError) else OSError(type(error).__name__)) from None
    return client


def _closed(client: _Client | None, error: Exception) -> Exception:
    if client is not None:
        client.close()
    return error


def farewell(client: _Client) -> None:
    """Its answer is of no interest, and nobody waits long for it."""
    try:
        client.for_deadline(Deadline(FAREWELL_TAKES_AT_MOST))
        client.quit()
    except OSError:  # which the exceptions of smtplib are
        pass
    finally:
        client.close()


class Connections:
    """Those that are open and not in use. As many as there are threads at work, and each is used by one at a time."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._free: list[_Client] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    def deliver(self, sender: str, recipient: str, content: bytes, deadline: Deadline, hidden: list[str]) -> SendResult:
        """`content` with CRLF line ends. The look at the deadline is right before MAIL FROM, and once more before the final dot."""
        try:
            client = self._begin(sender, len(content), deadline)
        except _TooLate:
            return SendResult.unsent("The deadline passed before the message was begun")
        except Refused as refusal:
            return read_reply(refusal.stage, refusal.reply, hidden)
        except NotOffered as error:
            return SendResult.refused(ErrorCode.MISCONFIGURED, http.scrub(f"The mail server does not offer it: {error}", hidden))
        except OSError as error:
            detail = f"The mail server cannot be reached: {in_words(error)}"
            return SendResult.refused(ErrorCode.TRANSIENT, http.scrub(detail, hidden))
        return self._finish(client, recipient, content, deadline, hidden)

    def _begin(self, sender: str, size: int, deadline: Deadline) -> _Client:
        """A connection that has taken MAIL FROM. One that was kept may have been closed by the server, which is no news: then a new one."""
        if deadline.passed:
            raise _TooLate
        kept = self._take(deadline)
        if kept is not None:
            try:
                return _mail_from(kept, sender, size, deadline)
            except _TooLate:
                self._give_back(kept)
                raise
            except Refused as refusal:
                if _is_understood(refusal.reply):
                    self._give_back(kept)
                    raise
                kept.close()
            except OSError:
                kept.close()
        client = connect(self.server, deadline)
        try:
            return _mail_from(client, sender, size, deadline)
        except (Refused, OSError, _TooLate):
            farewell(client)
            raise

    def _finish(self, client: _Client, recipient: str, content: bytes, deadline: Deadline, hidden: list[str]) -> SendResult:
        dotted = False
        try:
            client.ask(Stage.RECIPIENT, f"RCPT TO:<{recipient}>", 250)
            client.ask(Stage.TEXT, "DATA", 354)
            client.send(smtplib._quote_periods(content if content.endswith(b"\r\n") else content + b"\r\n"))  # type: ignore[attr-defined]
            if deadline.passed:
                client.close()
                return SendResult.refused(ErrorCode.TRANSIENT, "The deadline passed before the message was complete; it was left so")
            dotted = True
            client.send(b".\r\n")
            reply = reply_of(*client.getreply())
            if reply.code // 100 != 2:
                raise Refused(Stage.TEXT, reply)
        except Refused as refusal:
            return self._refused(client, refusal, dotted, hidden)
        except OSError as error:
            client.close()
            if dotted:
                return SendResult.refused(ErrorCode.UNCONFIRMED, f"The connection was lost before the answer: {in_words(error)}")
            return SendResult.refused(ErrorCode.TRANSIENT, f"The connection was lost before the message was complete: {in_words(error)}")
        client.messages += 1
        self._give_back(client)
        return SendResult.accepted()

    def _refused(self, client: _Client, refusal: Refused, dotted: bool, hidden: list[str]) -> SendResult:
        """The next message may use the connection, if the server forgets this one."""
        if _is_understood(refusal.reply) and (dotted or _is_reset(client)):
            self._give_back(client)
        else:
            client.close()
        if not dotted and meaning(refusal.stage, refusal.reply) == ErrorCode.UNCONFIRMED:
            return SendResult.refused(ErrorCode.TRANSIENT, "The mail server answered out of turn before it got the message")
        return read_reply(refusal.stage, refusal.reply, hidden)

    def _take(self, deadline: Deadline) -> _Client | None:
        with self._lock:
            if self._process != os.getpid():  # a forked child: they belong to the parent, and no word is said on them
                for one in self._free:
                    one.close()
                self._process, self._free = os.getpid(), []
            old = [client for client in self._free if client.reusable is None or client.reusable.passed]
            self._free = [client for client in self._free if client not in old]
            client = self._free.pop() if self._free else None
        for one in old:
            farewell(one)
        if client is not None:
            client.for_deadline(deadline)
        return client

    def _give_back(self, client: _Client) -> None:
        if client.messages >= MESSAGES_AT_MOST:
            farewell(client)
            return
        client.reusable = Deadline(IDLE_AT_MOST)
        with self._lock:
            self._free.append(client)

    def close(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for client in free:
            client.close()


def _mail_from(client: _Client, sender: str, size: int, deadline: Deadline) -> _Client:
    options = [f"SIZE={size}"] if client.has_extn("size") else []
    options += ["BODY=8BITMIME"] if client.has_extn("8bitmime") else []
    if deadline.passed:
        raise _TooLate
    client.ask(Stage.SENDER, " ".join([f"MAIL FROM:<{sender}>", *options]), 250)
    return client


def _is_understood(reply: Reply) -> bool:
    """After any other answer the two sides no longer know where they are; after 421 the server hangs up."""
    return 400 <= reply.code < 600 and reply.code != 421


def _is_reset(client: _Client) -> bool:
    try:
        return client.rset()[0] == 250
    except OSError:
        return False


def in_words(error: OSError) -> str:
    """For people, without addresses and texts that the exception may quote."""
    if isinstance(error, smtplib.SMTPException):
        return "the server hung up or did not answer in time"
    return http.in_words(error)

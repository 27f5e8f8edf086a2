"""E-mail over real SMTP: aiosmtpd answers as a script says; a bare socket cuts the line where no server would."""

import contextlib
import email
import email.policy
import os
import socket
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP as SMTPServer
from aiosmtpd.smtp import AuthResult
from django.core import mail

from sessions_app.providers import email_smtp
from sessions_app.providers.base import Answer, ErrorCode, Message, MessageType, SendResult, SessionConfig, SessionState
from sessions_app.providers.email import EmailProvider
from sessions_app.providers.email_answers import BUSY_FOR, Reply, Stage, meaning, read_open_error, read_send_error
from sessions_app.providers.email_forms import EmailCredentials, EmailSettings
from tests.providers.contract import REF, SECRET, TEXT, ChannelContract, soon
from tests.providers.scripted_server import Answer as HTTPAnswer
from tests.providers.scripted_server import ScriptedServer, reply

TO = "ana@example.org"
MESSAGE_ID = f"<{REF}@shop.example>"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


class Scripted:
    """A handler of aiosmtpd: what a stage answers instead of "250 OK", once or always."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.envelopes: list[Any] = []
        self.peers: list[Any] = []

    def letters(self) -> list[EmailMessage]:
        return [email.message_from_bytes(one.content, policy=email.policy.default) for one in self.envelopes]

    async def handle_EHLO(self, server: Any, session: Any, envelope: Any, hostname: str, responses: list[str]) -> list[str]:
        session.host_name = hostname
        self.peers.append(session.peer)
        return [self.answers["EHLO"]] if "EHLO" in self.answers else responses

    async def handle_MAIL(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> str:
        if "MAIL" in self.answers:
            return self.answers["MAIL"]
        envelope.mail_from, envelope.mail_options = address, options
        return "250 OK"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> str:
        if "RCPT" in self.answers:
            return self.answers["RCPT"]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if "DATA" in self.answers:
            return self.answers["DATA"]
        self.envelopes.append(envelope)
        return "250 2.0.0 queued as 4711"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        if "AUTH" in self.answers:
            return AuthResult(success=False, handled=False, message=self.answers["AUTH"])
        return AuthResult(success=(data.login, data.password) == (b"shop", SECRET.encode()))


class _Controller(Controller):
    def factory(self) -> SMTPServer:
        return SMTPServer(self.handler, **self.SMTP_kwargs)


@contextlib.contextmanager
def smtp(handler: Scripted, *, tls: ssl.SSLContext | None = None, starttls: ssl.SSLContext | None = None) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options: dict[str, Any] = {"authenticator": handler.authenticate, "auth_require_tls": False, "ident": "test"}
    controller = _Controller(handler, "127.0.0.1", port, ssl_context=tls, tls_context=starttls, server_hostname="mx.test", **options)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


class Bare:
    """A mail server of a few lines: {command: bytes}; b"" cuts the line there, None says nothing. Without an entry it is polite."""

    POLITE: ClassVar[dict[str, bytes]] = {"EHLO": b"250 bare\r\n", "DATA": b"354 go on\r\n", ".": b"250 OK\r\n"}

    def __init__(self, *scripts: dict[str, bytes | None]) -> None:
        self.scripts = list(scripts)  # one for each connection; the last goes on
        self.commands: list[str] = []
        self.texts: list[bytes] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> "Bare":
        self._spawn(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()
        self._listener.close()

    def _spawn(self, target: Any, *args: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            script = self.scripts[min(self.connections, len(self.scripts) - 1)]
            self.connections += 1
            self._spawn(self._converse, connection, script)

    def _converse(self, connection: socket.socket, script: dict[str, bytes | None]) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            if not self._say(connection, script.get("connect", b"220 bare\r\n")):
                return
            while line := stream.readline():
                command = line.split(b" ")[0].strip().decode().upper()
                self.commands.append(command)
                said = script.get(command, self.POLITE.get(command, b"250 OK\r\n"))
                if not self._say(connection, said):
                    return
                if command == "DATA" and said and said.startswith(b"354"):
                    self._read_text(connection, stream, script)

    def _read_text(self, connection: socket.socket, stream: Any, script: dict[str, bytes | None]) -> None:
        if "text" in script:  # hangs up in the middle of it
            stream.read(10)
            connection.close()
            raise OSError
        text = b""
        while (line := stream.readline()) not in (b".\r\n", b""):
            text += line
        if line:
            self.texts.append(text)
            if not self._say(connection, script.get(".", self.POLITE["."])):
                raise OSError

    def _say(self, connection: socket.socket, words: bytes | None) -> bool:
        if words:
            connection.sendall(words)
        return words != b""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For 127.0.0.1; trusted where SSL_CERT_FILE names it."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def made(port: int, **more: Any) -> EmailProvider:
    settings = {"host": "127.0.0.1", "port": port, "security": "none", "from_address": "shop@shop.example", **more}
    return EmailProvider(SessionConfig(credentials={"password": SECRET}, settings=settings))


def letter(**more: Any) -> Message:
    return Message(**{"type": MessageType.TEXT, "text": TEXT, "subject": "Your parcel", **more})


def send(provider: EmailProvider, *, seconds: float = 5.0, address: str = TO, ref: uuid.UUID = REF, **more: Any) -> SendResult:
    return provider.send(address, letter(**more), ref, soon(seconds))


class TestEmail(ChannelContract):
    provider = EmailProvider
    address = TO
    credentials = {"password": SECRET}

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        self.handler = Scripted()
        with smtp(self.handler) as self.port:
            yield

    def make(self, **settings: Any) -> EmailProvider:
        return made(self.port, **{"user": "", **settings})

    def message(self, type: MessageType = MessageType.TEXT) -> Message:
        return replace(super().message(type), subject="Your parcel")

    def test_what_arrives(self) -> None:
        provider = self.make(from_name="Zoë's Shop", reply_to="help@shop.example")
        result = send(provider, subject="Olá\nAna", html="<p>Dear <b>Ana</b></p>")
        assert (result.answer, result.message_id) == (Answer.ACCEPTED, MESSAGE_ID)
        [envelope], [one] = self.handler.envelopes, self.handler.letters()
        assert (envelope.mail_from, envelope.rcpt_tos) == ("shop@shop.example", [TO])
        assert one["Subject"] == "Olá Ana"
        assert (one["From"], one["To"], one["Reply-To"]) == ("Zoë's Shop <shop@shop.example>", TO, "help@shop.example")
        assert one["Message-ID"] == MESSAGE_ID
        assert one["Date"] and not one["Auto-Submitted"] and not one["List-Unsubscribe"]
        assert one.get_content_type() == "multipart/alternative"
        plain, html = one.iter_parts()
        assert plain.get_content().splitlines() == TEXT.splitlines()
        assert (html.get_content_type(), html.get_content().strip()) == ("text/html", "<p>Dear <b>Ana</b></p>")

    def test_a_line_that_is_a_dot_does_not_end_the_text(self) -> None:
        send(self.make(), text="one\n.\n..two")
        assert self.handler.letters()[0].get_content().splitlines() == ["one", ".", "..two"]

    @pytest.mark.parametrize(
        ("link", "header", "one_click"),
        [
            ("https://shop.example/u?to={address}", "<https://shop.example/u?to=ana%40example.org>", "List-Unsubscribe=One-Click"),
            ("https://shop.example/preferences", "<https://shop.example/preferences>", None),
            ("mailto:stop@shop.example?subject=stop", "<mailto:stop@shop.example?subject=stop>", None),
        ],
    )
    def test_unsubscribing(self, link: str, header: str, one_click: str | None) -> None:
        send(self.make(unsubscribe=link))
        one = self.handler.letters()[0]
        assert (one["List-Unsubscribe"], one["List-Unsubscribe-Post"]) == (header, one_click)

    @pytest.mark.parametrize(
        ("stage", "answer", "code"),
        [
            ("MAIL", "553 5.7.1 not your address", ErrorCode.MISCONFIGURED),
            ("MAIL", "550 no", ErrorCode.MISCONFIGURED),
            ("MAIL", "530 5.7.0 Authentication required", ErrorCode.DISCONNECTED),
            ("MAIL", "421 4.7.0 too many", ErrorCode.RATE_LIMIT),
            ("MAIL", "450 4.7.1 too fast", ErrorCode.RATE_LIMIT),
            ("MAIL", "451 4.3.0 try later", ErrorCode.TRANSIENT),
            ("MAIL", "452 4.3.1 no space", ErrorCode.TRANSIENT),
            ("RCPT", "550 5.1.1 no such user", ErrorCode.INVALID_RECIPIENT),
            ("RCPT", "550 no such user", ErrorCode.INVALID_RECIPIENT),
            ("RCPT", "551 not local", ErrorCode.INVALID_RECIPIENT),
            ("RCPT", "553 5.1.3 bad address", ErrorCode.INVALID_RECIPIENT),
            ("RCPT", "550 5.1.8 sender's domain unknown", ErrorCode.MISCONFIGURED),
            ("RCPT", "552 5.2.2 over quota", ErrorCode.INVALID_RECIPIENT),
            ("RCPT", "550 5.4.1 access denied", ErrorCode.INVALID_RECIPIENT),
            ("RCPT", "552 5.3.4 too big", ErrorCode.MISCONFIGURED),
            ("RCPT", "554 5.7.1 Relay access denied", ErrorCode.MISCONFIGURED),
            ("RCPT", "550 relay not permitted", ErrorCode.MISCONFIGURED),
            ("RCPT", "550 5.7.1 blocked by the recipient", ErrorCode.FATAL),
            ("RCPT", "554 no", ErrorCode.FATAL),
            ("RCPT", "421 too many connections", ErrorCode.RATE_LIMIT),
            ("RCPT", "450 4.2.0 greylisted", ErrorCode.TRANSIENT),
            ("RCPT", "451 4.7.1 greylisted", ErrorCode.TRANSIENT),
            ("RCPT", "452 4.2.2 mailbox full", ErrorCode.TRANSIENT),
            ("DATA", "550 5.7.515 not authenticated", ErrorCode.MISCONFIGURED),
            ("DATA", "554 5.7.1 spam", ErrorCode.MISCONFIGURED),
            ("DATA", "552 5.3.4 too big", ErrorCode.MISCONFIGURED),
            ("DATA", "552 too big", ErrorCode.MISCONFIGURED),
            ("DATA", "550 5.1.1 no such user", ErrorCode.INVALID_RECIPIENT),
            ("DATA", "554 5.6.0 malformed", ErrorCode.FATAL),
            ("DATA", "554 transaction failed", ErrorCode.FATAL),
            ("DATA", "421 4.7.28 unusual rate", ErrorCode.RATE_LIMIT),
            ("DATA", "451 4.3.0 local error", ErrorCode.TRANSIENT),
            ("DATA", "452 4.3.1 no space", ErrorCode.TRANSIENT),
        ],
    )
    def test_each_stage(self, stage: str, answer: str, code: ErrorCode) -> None:
        self.handler.answers[stage] = answer
        result = send(self.make())
        assert (result.answer, result.code, result.one_recipient) == (Answer.REFUSED, code, False)
        assert answer.partition(" ")[0] in result.detail
        assert not self.handler.envelopes

    def test_a_mailbox_that_gets_too_much_waits_alone(self) -> None:
        self.handler.answers["RCPT"] = "450 4.2.1 receiving mail too quickly"
        result = send(self.make())
        assert (result.code, result.one_recipient, result.retry_after) == (ErrorCode.RATE_LIMIT, True, BUSY_FOR)

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            ("535 5.7.8 wrong", ErrorCode.DISCONNECTED),
            ("534 5.7.9 stronger please", ErrorCode.DISCONNECTED),
            ("454 4.7.0 later", ErrorCode.TRANSIENT),
        ],
    )
    def test_the_login(self, answer: str, code: ErrorCode) -> None:
        self.handler.answers["AUTH"] = answer
        provider = self.make(user="shop")
        result = send(provider)
        assert (result.code, "login" in result.detail) == (code, True)
        check = provider.check_session(soon())
        assert (check.state, "login" in check.detail) == (SessionState.DISCONNECTED, True)

    def test_the_right_password(self) -> None:
        provider = self.make(user="shop")
        assert send(provider).answer == Answer.ACCEPTED
        assert provider.check_session(soon()).state == SessionState.CONNECTED

    def test_nothing_secret_in_details(self) -> None:
        self.handler.answers["RCPT"] = f"550 5.1.1 <{TO}> {SECRET} {TEXT.splitlines()[0]} unknown here"
        result = send(self.make())
        assert "unknown here" in result.detail
        for secret in (SECRET, TO, "Dear Ana"):
            assert secret not in result.detail

    def test_a_connection_is_used_again_also_after_a_refusal(self) -> None:
        provider = self.make()
        send(provider)
        self.handler.answers["RCPT"] = "550 5.1.1 no such user"
        send(provider)
        self.handler.answers.clear()
        send(provider)
        assert (len(set(self.handler.peers)), len(self.handler.envelopes)) == (1, 2)

    def test_a_connection_is_closed_after_some_messages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(email_smtp, "MESSAGES_AT_MOST", 2)
        provider = self.make()
        for _ in range(5):
            assert send(provider).answer == Answer.ACCEPTED
        assert len(set(self.handler.peers)) == 3

    def test_an_idle_connection_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(email_smtp, "IDLE_AT_MOST", timedelta(0))
        provider = self.make()
        send(provider)
        send(provider)
        assert len(set(self.handler.peers)) == 2

    def test_threads_do_not_share_a_connection(self) -> None:
        provider, results = self.make(), []
        threads = [threading.Thread(target=lambda: results.append(send(provider, ref=uuid.uuid4()))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.answer for one in results] == [Answer.ACCEPTED] * 8
        assert len({one["Message-ID"] for one in self.handler.letters()}) == 8

    def test_a_forked_child_opens_its_own(self) -> None:
        provider = self.make()
        send(provider)
        provider._connections._process = os.getpid() + 1  # what a child finds
        send(provider)
        assert len(set(self.handler.peers)) == 2

    def test_what_is_refused_before_the_first_byte(self) -> None:
        refusals = {
            ErrorCode.MISCONFIGURED: [send(self.make(), subject=" "), send(self.make(), type=MessageType.TEMPLATE)],
            ErrorCode.INVALID_RECIPIENT: [send(self.make(), address=one) for one in ("ana", "a@b.org>\r\nDATA", "a b@example.org")],
            ErrorCode.FATAL: [send(self.make(), text=" \n")],
        }
        for code, results in refusals.items():
            assert [one.code for one in results] == [code] * len(results)
        assert send(self.make(host="")).code == send(self.make(from_address="")).code == ErrorCode.MISCONFIGURED
        assert send(self.make(), seconds=0).answer == Answer.UNSENT
        assert not self.handler.peers

    @pytest.mark.parametrize(("type", "path"), [("IMAGE", "a.png"), ("VIDEO", "a.mp4"), ("AUDIO", "a.ogg"), ("DOCUMENT", "price list.pdf")])
    def test_a_file_is_attached(self, settings: Any, type: str, path: str) -> None:
        settings.DEBUG = True
        kind = {"IMAGE": "image/png", "VIDEO": "video/mp4", "AUDIO": "audio/ogg", "DOCUMENT": "application/pdf"}[type]
        with ScriptedServer(usual=reply(200, PNG, headers={"Content-Type": kind})) as files:
            url = f"{files.url}/f/{path.replace(' ', '%20')}?v=1"
            provider = self.make()
            results = [
                send(provider, type=MessageType(type), caption=TEXT, text="", media_url=url, filename=name) for name in ("", "b/c.x")
            ]
            assert [one.answer for one in results] == [Answer.ACCEPTED] * 2
            assert len(files.requests) == 1, "the same file for the next person is not fetched again"
        for one, name in zip(self.handler.letters(), (path, "b_c.x"), strict=True):
            [file] = one.iter_attachments()
            assert (file.get_content_type(), file.get_filename(), file.get_content()) == (kind, name, PNG)
            assert one.get_body().get_content().splitlines() == TEXT.splitlines()

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (reply(404, b"no"), ErrorCode.MISCONFIGURED),
            (reply(302, b"", headers={"Location": "/x"}), ErrorCode.MISCONFIGURED),
            (reply(200, b""), ErrorCode.MISCONFIGURED),
            (reply(200, b"<title>Log in</title>", headers={"Content-Type": "text/html"}), ErrorCode.MISCONFIGURED),
            (reply(200, b" " * (1024 * 1024 + 1), then="close"), ErrorCode.MISCONFIGURED),
            (reply(503, b"later"), ErrorCode.TRANSIENT),
            (HTTPAnswer(then="reset"), ErrorCode.TRANSIENT),
            (HTTPAnswer(then="hang"), ErrorCode.TRANSIENT),
        ],
        ids=["not found", "moved", "empty", "a page", "too large", "unavailable", "cut", "silent"],
    )
    def test_without_its_file_nothing_is_sent(self, settings: Any, answer: HTTPAnswer, code: ErrorCode) -> None:
        settings.DEBUG = True
        with ScriptedServer(usual=answer) as files:
            result = send(self.make(), type=MessageType.IMAGE, caption="Hi", media_url=f"{files.url}/secret-name.png", seconds=0.8)
        assert (result.answer, result.code) == (Answer.REFUSED, code)
        assert "secret-name" not in result.detail
        assert not self.handler.peers

    def test_a_file_that_staff_uploaded_is_fetched_from_this_site_in_a_network_of_its_own(self, settings: Any) -> None:
        path = f"/files/{'t' * 32}/price%20list.png"
        with ScriptedServer(usual=reply(200, PNG, headers={"Content-Type": "image/png"})) as files:
            settings.PUBLIC_URL = files.url
            assert send(self.make(), type=MessageType.IMAGE, caption="Hi", media_url=files.url + path).answer == Answer.ACCEPTED
            [one] = self.handler.letters()
            assert [file.get_filename() for file in one.iter_attachments()] == ["price list.png"]
            for other in (f"{files.url}/admin/", f"{files.url}/files/short/a.png", f"{files.url}{path}/more", f"{files.url}{path}?x=1"):
                assert send(self.make(), type=MessageType.IMAGE, caption="Hi", media_url=other).code == ErrorCode.MISCONFIGURED
            assert len(files.requests) == 1

    def test_a_file_of_the_local_network_is_not_fetched(self) -> None:
        with ScriptedServer() as files:
            result = send(self.make(), type=MessageType.IMAGE, caption="Hi", media_url=files.url)
            assert (result.code, files.connections) == (ErrorCode.MISCONFIGURED, 0)


# -- encryption ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_encrypted(security: str, certificate: Path, server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    handler = Scripted()
    with smtp(handler, **{security: server_tls}) as port:
        provider = made(port, security=security, user="shop")
        assert [send(provider).answer for _ in range(2)] == [Answer.ACCEPTED] * 2
        assert provider.check_session(soon()).state == SessionState.CONNECTED
        provider._connections.close()
    assert len(handler.envelopes) == 2


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_certificate_that_nobody_vouches_for_is_not_trusted(security: str, server_tls: ssl.SSLContext) -> None:
    handler = Scripted()
    with smtp(handler, **{security: server_tls}) as port:
        provider = made(port, security=security, user="shop")
        result = send(provider)
        assert (result.code, "certificate" in result.detail) == (ErrorCode.TRANSIENT, True)
        assert "certificate" in provider.check_session(soon()).detail


def test_no_starttls_no_message_and_no_password() -> None:
    handler = Scripted()
    with smtp(handler) as port:
        result = send(made(port, security="starttls", user="shop"))
    assert (result.code, "STARTTLS" in result.detail) == (ErrorCode.MISCONFIGURED, True)


def test_no_login_offered() -> None:
    with Bare({}) as server:
        assert send(made(server.port, user="shop")).code == ErrorCode.MISCONFIGURED
    assert "AUTH" not in server.commands


# -- cuts ----------------------------------------------------------------------------------------------------------------------

CUTS: dict[str, tuple[dict[str, bytes | None], ErrorCode]] = {
    "at the connection": ({"connect": b""}, ErrorCode.TRANSIENT),
    "421 at the connection": ({"connect": b"421 busy\r\n"}, ErrorCode.RATE_LIMIT),
    "554 at the connection": ({"connect": b"554 your address is blocked\r\n"}, ErrorCode.DISCONNECTED),
    "no mail server": ({"connect": b"SSH-2.0-OpenSSH_9.6\r\n"}, ErrorCode.TRANSIENT),
    "silent": ({"connect": None}, ErrorCode.TRANSIENT),
    "at EHLO": ({"EHLO": b"", "HELO": b""}, ErrorCode.TRANSIENT),
    "refused at EHLO": ({"EHLO": b"550 go away\r\n", "HELO": b"550 go away\r\n"}, ErrorCode.TRANSIENT),
    "at MAIL": ({"MAIL": b""}, ErrorCode.TRANSIENT),
    "nonsense at MAIL": ({"MAIL": b"what?\r\n"}, ErrorCode.TRANSIENT),
    "at RCPT": ({"RCPT": b""}, ErrorCode.TRANSIENT),
    "silent at RCPT": ({"RCPT": None}, ErrorCode.TRANSIENT),
    "nonsense at RCPT": ({"RCPT": b"what?\r\n"}, ErrorCode.TRANSIENT),
    "at DATA": ({"DATA": b""}, ErrorCode.TRANSIENT),
    "out of turn at DATA": ({"DATA": b"250 OK\r\n"}, ErrorCode.TRANSIENT),
    "refused at DATA": ({"DATA": b"554 5.5.1 no valid recipients\r\n"}, ErrorCode.FATAL),
    "in the text": ({"text": b""}, ErrorCode.TRANSIENT),
    "after the dot": ({".": b""}, ErrorCode.UNCONFIRMED),
    "silent after the dot": ({".": None}, ErrorCode.UNCONFIRMED),
    "nonsense after the dot": ({".": b"what?\r\n"}, ErrorCode.UNCONFIRMED),
    "in the middle of the answer": ({".": b"25"}, ErrorCode.UNCONFIRMED),
}


@pytest.mark.parametrize(("script", "code"), CUTS.values(), ids=CUTS.keys())
def test_a_line_that_is_cut(script: dict[str, bytes | None], code: ErrorCode) -> None:
    began = time.monotonic()
    large = "x" * 70 + "\r\n"
    with Bare(script) as server:
        in_text = "text" in script  # more than the sockets' buffers take
        result = send(made(server.port), seconds=5 if in_text else 0.3, text=large * 200_000 if in_text else TEXT)
    assert (result.answer, result.code) == (Answer.REFUSED, code)
    assert time.monotonic() - began < 5
    assert bool(server.texts) == (code == ErrorCode.UNCONFIRMED)
    assert server.connections <= 1


def test_an_answer_in_drips_ends_at_the_deadline() -> None:
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with contextlib.suppress(OSError), connection:
            while not stop.wait(0.05):
                connection.sendall(b"2")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        began = time.monotonic()
        assert send(made(listener.getsockname()[1]), seconds=0.4).code == ErrorCode.TRANSIENT
        assert time.monotonic() - began < 2
        stop.set()
        thread.join()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert send(made(port)).code == ErrorCode.TRANSIENT
    check = made(port).check_session(soon())
    assert (check.state, "Connection refused" in check.detail) == (SessionState.DISCONNECTED, True)


@pytest.mark.parametrize("second", [{"MAIL": b""}, {"MAIL": b"421 idle for too long\r\n"}], ids=["hung up", "said 421"])
def test_a_kept_connection_that_the_server_gave_up_is_opened_anew(second: dict[str, bytes | None]) -> None:
    with Bare({}) as server:
        provider = made(server.port)
        assert send(provider).answer == Answer.ACCEPTED
        kept = provider._connections._free[0]
        server.scripts = [{}]
        if second["MAIL"] == b"":
            kept.sock.shutdown(socket.SHUT_WR)  # the server reads the end, and closes
        else:
            kept.putcmd("NOOP")  # its answer is taken for the next one
            kept.getreply = lambda: (421, b"idle for too long")  # type: ignore[method-assign]
        assert send(provider).answer == Answer.ACCEPTED
        assert (server.connections, len(server.texts)) == (2, 2)


def test_a_message_that_was_begun_is_never_begun_again() -> None:
    with Bare({}, {}) as server:
        provider = made(server.port)
        send(provider)
        server.scripts = [{}]
        kept = provider._connections._free[0]
        original = kept.docmd

        def cut_at_rcpt(command: str, arguments: str = "") -> tuple[int, bytes]:
            if command.startswith("RCPT"):
                kept.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
            return original(command, arguments)

        kept.docmd = cut_at_rcpt  # type: ignore[method-assign]
        assert send(provider).code == ErrorCode.TRANSIENT
        assert (server.connections, len(server.texts)) == (1, 1)


class Passing:
    """A deadline that passes at the n-th look."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def remaining(self) -> float:
        return 5.0

    @property
    def passed(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize(
    ("looks", "answer", "code", "commands"),
    [
        (1, Answer.UNSENT, None, []),  # send, then before the connection
        (2, Answer.UNSENT, None, ["EHLO", "QUIT"]),  # right before MAIL FROM
        (3, Answer.REFUSED, ErrorCode.TRANSIENT, ["EHLO", "MAIL", "RCPT", "DATA"]),  # right before the final dot
        (4, Answer.ACCEPTED, None, ["EHLO", "MAIL", "RCPT", "DATA"]),
    ],
)
def test_the_looks_at_the_deadline(looks: int, answer: Answer, code: ErrorCode | None, commands: list[str]) -> None:
    with Bare({}) as server:
        result = made(server.port).send(TO, letter(), REF, Passing(looks))  # type: ignore[arg-type]
    assert (result.answer, result.code, server.commands) == (answer, code, commands)
    assert len(server.texts) == (answer == Answer.ACCEPTED)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("digits", [*range(400, 600, 10), 421, 535, -1, 250])
def test_only_the_end_of_the_text_leaves_a_doubt(stage: Stage, digits: int) -> None:
    if meaning(stage, Reply(digits, "")) == ErrorCode.UNCONFIRMED:
        assert (stage, digits // 100 in (4, 5)) == (Stage.TEXT, False)


# -- the mail service of this instance -----------------------------------------------------------------------------------------


def instances(**more: Any) -> EmailProvider:
    return EmailProvider(SessionConfig(settings={"backend": "instance", "from_address": "shop@shop.example", **more}))


def test_through_the_backend_of_the_instance() -> None:
    result = send(instances())
    assert (result.answer, result.message_id) == (Answer.ACCEPTED, MESSAGE_ID)
    [one] = mail.outbox
    assert (one.to, one.subject, one.extra_headers["Message-ID"]) == ([TO], "Your parcel", MESSAGE_ID)
    assert instances().check_session(soon()).state == SessionState.CONNECTED


@pytest.mark.parametrize("kind", ["console", "dummy"])
def test_a_backend_that_sends_nothing_is_no_mail_service(settings: Any, kind: str) -> None:
    settings.EMAIL_BACKEND = f"django.core.mail.backends.{kind}.EmailBackend"
    assert send(instances()).code == ErrorCode.MISCONFIGURED
    assert "EMAIL_URL" in instances().check_session(soon()).detail


@pytest.mark.parametrize(
    ("stage", "answer", "code"),
    [
        ("", "", None),
        ("AUTH", "535 5.7.8 wrong", ErrorCode.DISCONNECTED),
        ("AUTH", "454 4.7.0 later", ErrorCode.TRANSIENT),
        ("MAIL", "553 5.7.1 not yours", ErrorCode.MISCONFIGURED),
        ("RCPT", "550 5.1.1 no such user", ErrorCode.INVALID_RECIPIENT),
        ("RCPT", "421 too many", ErrorCode.RATE_LIMIT),
        ("DATA", "554 5.7.1 spam", ErrorCode.MISCONFIGURED),
    ],
)
def test_smtp_of_the_instance(settings: Any, stage: str, answer: str, code: ErrorCode | None) -> None:
    handler = Scripted()
    handler.answers[stage] = answer
    with smtp(handler) as port:
        settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = "django.core.mail.backends.smtp.EmailBackend", "127.0.0.1", port
        settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = "shop", SECRET
        result = send(instances())
    assert (result.answer, result.code) == (Answer.REFUSED if code else Answer.ACCEPTED, code)
    assert len(handler.envelopes) == (code is None)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ({"connect": b""}, ErrorCode.TRANSIENT),
        ({"MAIL": b""}, ErrorCode.UNCONFIRMED),
        ({".": b""}, ErrorCode.UNCONFIRMED),
        ({".": None}, ErrorCode.UNCONFIRMED),
    ],
    ids=["at the connection", "at MAIL, which Django does not tell apart", "after the dot", "silent after the dot"],
)
def test_cuts_of_the_instances_server(settings: Any, script: dict[str, bytes | None], code: ErrorCode) -> None:
    with Bare(script) as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        assert send(instances(), seconds=0.3).code == code


INACTIVE = f"Marked as inactive.\n Found inactive addresses: {TO}.\n Inactive recipients are ones that have generated a hard bounce."
POSTMARK_OK = {"ErrorCode": 0, "Message": "OK", "MessageID": "b7bc2f4a", "To": TO, "SubmittedAt": "2026-11-30T12:00:00Z"}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (reply(200, POSTMARK_OK), None),
        (reply(401, {"ErrorCode": 10, "Message": "bad token"}), ErrorCode.DISCONNECTED),
        (
            reply(422, {"ErrorCode": 406, "Message": INACTIVE}),
            ErrorCode.INVALID_RECIPIENT,
        ),
        (reply(422, {"ErrorCode": 406, "Message": "Inactive, in other words"}), ErrorCode.UNCONFIRMED),
        (reply(422, {"ErrorCode": 300, "Message": "Invalid email request"}), ErrorCode.FATAL),
        (reply(429, {"ErrorCode": 0, "Message": "slow"}, headers={"Retry-After": "42"}), ErrorCode.RATE_LIMIT),
        (reply(500, {"ErrorCode": 0, "Message": "oops"}), ErrorCode.UNCONFIRMED),
        (reply(200, b"<h1>hello</h1>"), ErrorCode.UNCONFIRMED),
        (HTTPAnswer(then="reset"), ErrorCode.UNCONFIRMED),
        (HTTPAnswer(then="hang"), ErrorCode.UNCONFIRMED),
    ],
    ids=["ok", "401", "inactive", "a status that anymail cannot read", "422", "429", "500", "a page", "cut", "silent"],
)
def test_a_service_of_anymail(settings: Any, answer: HTTPAnswer, code: ErrorCode | None) -> None:
    settings.EMAIL_BACKEND = "anymail.backends.postmark.EmailBackend"
    with ScriptedServer(usual=answer) as server:
        settings.ANYMAIL = {"POSTMARK_SERVER_TOKEN": SECRET, "POSTMARK_API_URL": f"{server.url}/"}
        result = send(instances(), seconds=0.3)
        assert (result.answer, result.code) == (Answer.REFUSED if code else Answer.ACCEPTED, code)
        assert len(server.requests) == 1
        assert server.requests[0].json()["Headers"] == [{"Name": "Message-ID", "Value": MESSAGE_ID}]
    assert result.message_id == ("" if code else "b7bc2f4a")
    assert (result.retry_after == timedelta(seconds=42)) == (code == ErrorCode.RATE_LIMIT)
    for secret in (SECRET, TO, "Dear Ana"):
        assert secret not in result.detail


def test_a_service_of_anymail_that_cannot_be_reached(settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings.EMAIL_BACKEND = "anymail.backends.postmark.EmailBackend"
    settings.ANYMAIL = {"POSTMARK_SERVER_TOKEN": SECRET, "POSTMARK_API_URL": f"http://127.0.0.1:{port}/"}
    assert send(instances()).code == ErrorCode.TRANSIENT
    settings.ANYMAIL = {}
    assert send(instances()).code == ErrorCode.MISCONFIGURED


def test_exceptions_of_any_backend() -> None:
    assert read_send_error(RuntimeError("what?"), []).code == ErrorCode.UNCONFIRMED
    assert read_open_error(RuntimeError("what?"), []).code == ErrorCode.MISCONFIGURED


# -- forms ---------------------------------------------------------------------------------------------------------------------

RIGHT = {
    "backend": "session",
    "host": "smtp.example.org",
    "port": "587",
    "security": "starttls",
    "user": "me",
    "from_address": "Me@Shop.EXAMPLE",
}


def test_the_form_takes_what_is_right() -> None:
    form = EmailSettings({**RIGHT, "unsubscribe": "https://shop.example/u/{address}"})
    assert form.is_valid(), form.errors
    assert form.cleaned_data["from_address"] == "Me@shop.example"
    assert EmailSettings({**RIGHT, "backend": "instance", "host": ""}).is_valid()
    assert EmailCredentials({}).is_valid()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", ""),
        ("host", "https://smtp.example.org"),
        ("host", "smtp.example.org\r\nX: y"),
        ("port", "22"),
        ("port", "70000"),
        ("security", "none"),
        ("user", "zoë"),
        ("from_address", "shop"),
        ("reply_to", "a@b, c@d"),
        ("rate", "51"),
        ("rate", "0"),
        ("unsubscribe", "http://shop.example/u"),
        ("unsubscribe", "https://127.0.0.1/u"),
        ("unsubscribe", "mailto:nobody"),
        ("unsubscribe", "https://shop.example/>x"),
    ],
)
def test_the_form_says_what_is_wrong(field: str, value: str) -> None:
    form = EmailSettings({**RIGHT, field: value})
    assert not form.is_valid()
    assert list(form.errors) == [field]


def test_a_password_with_accents_is_refused() -> None:
    assert not EmailCredentials({"password": "señal"}).is_valid()

"""E-mail: through an SMTP server of the session, or through the mail backend of this instance, which any django-anymail service may be.

One person per message, and our own Message-ID, the same at each try. Accepted means that a mail server took the message for delivery:
what bounces later comes back to the sender's mailbox, and is not read here. The server may well stand in the local network, so its host is
not held back from there; its port must be one for mail, or above 1023. A file is fetched by us and attached.
"""

import re
import threading
import uuid
import weakref
from collections.abc import Mapping
from datetime import timedelta
from email.utils import formataddr
from math import ceil
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from django import forms
from django.conf import settings
from django.core import mail

from sessions_app.pacing import Metered
from sessions_app.providers import http
from sessions_app.providers.base import (
    Answer,
    ChannelProvider,
    Deadline,
    ErrorCode,
    Message,
    MessageType,
    SendResult,
    SessionCheck,
    SessionState,
)
from sessions_app.providers.email_answers import read_open_error, read_reply, read_send_error, read_sent
from sessions_app.providers.email_files import File, fetch
from sessions_app.providers.email_forms import ADDRESS, DEFAULT_RATE, INSTANCE, EmailCredentials, EmailSettings
from sessions_app.providers.email_smtp import Connections, NotOffered, Refused, Server, connect, farewell, in_words

KEPT_FOR = timedelta(minutes=5)
# They write to a terminal or nowhere: a message that they took would count as sent.
_NO_BACKENDS = ("django.core.mail.backends.console.EmailBackend", "django.core.mail.backends.dummy.EmailBackend")
_ADDRESS = re.compile(r"[\x21-\x3b=\x3f-\x7e]{1,64}@[a-z0-9.-]{3,253}")


class EmailProvider(ChannelProvider):
    key = "email"
    label = "E-mail"
    address_kind = "email"
    pacing: ClassVar[Metered] = Metered(rate=50, burst=8)
    message_types = frozenset({MessageType.TEXT, MessageType.IMAGE, MessageType.VIDEO, MessageType.AUDIO, MessageType.DOCUMENT})
    takes = frozenset({"subject", "html", "filename"})
    needs_subject = True
    settings_form: ClassVar[type[forms.Form]] = EmailSettings
    credentials_form: ClassVar[type[forms.Form]] = EmailCredentials

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._connections = Connections(self._server())
        self._closing = weakref.finalize(self, self._connections.close)
        self._kept: tuple[str, Deadline, File] | None = None  # the file of the last message: that of the next one, nearly always
        self._keeping = threading.Lock()

    @property
    def origin(self) -> str:
        server = self._connections.server
        return f"smtp://{server.host}:{server.port}".lower() if server.host and not self.is_instances else ""

    @property
    def metered(self) -> Metered:
        rate = self.config.settings.get("rate")
        if not isinstance(rate, (int, float)) or not 0 < rate <= self.pacing.rate:
            rate = DEFAULT_RATE
        return Metered(rate=rate, burst=min(self.pacing.burst, ceil(rate)))

    @property
    def is_instances(self) -> bool:
        return self._setting("backend") == INSTANCE

    @property
    def from_address(self) -> str:
        return self._setting("from_address")

    def _setting(self, name: str) -> str:
        return str(self.config.settings.get(name) or "")

    def _server(self) -> Server:
        return Server(
            host=self._setting("host"),
            port=int(self.config.settings.get("port") or 587),
            security=self._setting("security") or "starttls",
            user=self._setting("user"),
            password=self.config.credentials.get("password", ""),
            name=self.from_address.rpartition("@")[2] or "localhost",  # looking up this machine's own name could take long
        )

    def misconfiguration(self) -> str:
        """Why nothing can be sent at all; "" when it can."""
        if not _ADDRESS.fullmatch(self.from_address):
            return "The sender's address is missing. Enter it in the session."
        if self.is_instances:
            return "This instance has no mail service: EMAIL_URL is not set." if settings.EMAIL_BACKEND in _NO_BACKENDS else ""
        return "" if self._setting("host") else "The SMTP server is missing. Enter it in the session."

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        refusal = self._refusal_before_the_call(address, message)
        if refusal is not None:
            return refusal
        if deadline.passed:
            return SendResult.unsent("The deadline had passed before the call")
        hidden = self._hidden(address, message)
        file = self._file(message, hidden, deadline) if message.type != MessageType.TEXT else None
        if isinstance(file, SendResult):
            return file
        letter = self._compose(address, message, client_ref, file)
        if self.is_instances:
            return self._through_the_instance(letter, deadline, hidden)
        content = letter.message().as_bytes(linesep="\r\n")  # type: ignore[call-arg]
        result = self._connections.deliver(self.from_address, address, content, deadline, hidden)
        return SendResult.accepted(letter.extra_headers["Message-ID"]) if result.answer == Answer.ACCEPTED else result

    def _refusal_before_the_call(self, address: str, message: Message) -> SendResult | None:
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        if problem := self.misconfiguration():
            return SendResult.refused(ErrorCode.MISCONFIGURED, problem)
        if not message.subject.strip():
            return SendResult.refused(ErrorCode.MISCONFIGURED, "An e-mail needs a subject, and there is none.")
        if not _ADDRESS.fullmatch(address):
            return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "Not an e-mail address.")
        if message.type == MessageType.TEXT and not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        return None

    def _compose(self, address: str, message: Message, client_ref: uuid.UUID, file: File | None) -> mail.EmailMultiAlternatives:
        letter = mail.EmailMultiAlternatives(
            subject=" ".join(message.subject.split()),  # a line break that came with a value would be refused
            body=message.body,
            from_email=formataddr((self._setting("from_name"), self.from_address)),
            to=[address],
            reply_to=[self._setting("reply_to")] if self._setting("reply_to") else None,
            headers={"Message-ID": f"<{client_ref}@{self.from_address.rpartition('@')[2]}>", **self._unsubscribe(address)},
        )
        if message.html:
            letter.attach_alternative(message.html, "text/html")
        if file is not None:
            letter.attach(file.name, file.content, file.content_type)
        return letter

    def _unsubscribe(self, address: str) -> Mapping[str, str]:
        """One click only where the link says whom it is about: the mail program sends nothing else."""
        link = self._setting("unsubscribe")
        if not link:
            return {}
        headers = {"List-Unsubscribe": f"<{link.replace(ADDRESS, quote(address, safe=''))}>"}
        one_click = link.startswith("https://") and ADDRESS in link
        return headers | ({"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"} if one_click else {})

    def _file(self, message: Message, hidden: list[str], deadline: Deadline) -> File | SendResult:
        with self._keeping:
            kept = self._kept
        if kept is not None and kept[0] == message.media_url and not kept[1].passed:
            return kept[2].called(message.filename)
        file = fetch(message.media_url, message.type, hidden, deadline)
        if isinstance(file, SendResult):
            return file
        with self._keeping:
            self._kept = (message.media_url, Deadline(KEPT_FOR), file)
        return file.called(message.filename)

    def _through_the_instance(self, letter: mail.EmailMultiAlternatives, deadline: Deadline, hidden: list[str]) -> SendResult:
        opened = self._open_instances(deadline)
        if opened.error is not None:
            return read_open_error(opened.error, hidden)
        try:
            if deadline.passed:
                return SendResult.unsent("The deadline passed before the message was begun")
            count = opened.backend.send_messages([letter])
        except Exception as error:
            return read_send_error(error, hidden)
        finally:
            _close(opened.backend)
        if not count:
            return SendResult.refused(ErrorCode.FATAL, "The mail service of this instance took no message, and did not say why.")
        return read_sent(getattr(letter, "anymail_status", None), letter.extra_headers["Message-ID"])

    def _open_instances(self, deadline: Deadline) -> "Opened":
        backend = None
        try:
            backend = mail.get_connection(timeout=max(deadline.remaining, 0.001))
            backend.open()
        except Exception as error:
            _close(backend)
            return Opened(backend, error)
        return Opened(backend, None)

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if problem := self.misconfiguration():
            return SessionCheck(SessionState.DISCONNECTED, problem)
        if self.is_instances:
            opened = self._open_instances(deadline)
            _close(opened.backend)
            if opened.error is not None:
                return SessionCheck(SessionState.DISCONNECTED, read_open_error(opened.error, self._hidden()).detail)
            return SessionCheck(SessionState.CONNECTED, "The mail service of this instance is ready, as far as it can be asked.")
        try:
            client = connect(self._connections.server, deadline)
            code = client.noop()[0]
            farewell(client)
        except Refused as refusal:
            return SessionCheck(SessionState.DISCONNECTED, read_reply(refusal.stage, refusal.reply, self._hidden()).detail)
        except NotOffered as error:
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(f"The mail server does not offer it: {error}", self._hidden()))
        except OSError as error:
            detail = f"The mail server cannot be reached: {in_words(error)}"
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(detail, self._hidden()))
        state = SessionState.CONNECTED if code == 250 else SessionState.DISCONNECTED
        return SessionCheck(state, "The mail server lets us in." if code == 250 else f"The mail server is not ready ({code}).")

    def _hidden(self, address: str = "", message: Message | None = None) -> list[str]:
        keys = [value for value in getattr(settings, "ANYMAIL", {}).values() if isinstance(value, str)]
        hidden = [*self.config.credentials.values(), settings.EMAIL_HOST_PASSWORD, *keys, address]
        if message is not None:
            hidden += [message.subject, message.html, message.media_url, message.body, *message.body.splitlines()]
        return hidden


class Opened(NamedTuple):
    backend: Any
    error: Exception | None


def _close(backend: Any) -> None:
    """What it says as it leaves changes nothing about the message."""
    try:
        if backend is not None:
            backend.close()
    except Exception:  # noqa: S110
        pass

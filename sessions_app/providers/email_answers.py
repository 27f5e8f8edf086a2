"""What a mail server's reply means, by the stage of the conversation; and what an exception of a mail backend means. Pure.

The enhanced code (5.1.1) is read first, the three digits second. A reply to a command before the text was over refuses for certain: a mail
server takes nothing until it has answered the final dot.
"""

import re
import smtplib
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from sessions_app.providers import http
from sessions_app.providers.base import ErrorCode, SendResult

BUSY_FOR = timedelta(minutes=10)  # a mailbox that gets too much at once


class Stage(StrEnum):
    """What was asked when the reply came, for people too: "The mail server refused <stage>"."""

    CONNECT = "the connection"
    HELLO = "the greeting"
    STARTTLS = "STARTTLS"
    LOGIN = "the login"
    SENDER = "the sender"
    RECIPIENT = "the recipient"
    TEXT = "the message"


class Reply(NamedTuple):
    code: int
    words: str

    @property
    def enhanced(self) -> tuple[int, int] | None:
        """(1, 7) of "5.1.7 ..."; None when there is none or it belongs to another class than the three digits."""
        found = re.match(r"([245])\.([0-9]{1,3})\.([0-9]{1,3})\b", self.words)
        return (int(found[2]), int(found[3])) if found and int(found[1]) == self.code // 100 else None


def read_reply(stage: Stage, reply: Reply, hidden: list[str]) -> SendResult:
    """A reply that is not the one that was hoped for."""
    detail = http.scrub(f"The mail server refused {stage} ({reply.code}): {reply.words}", hidden)
    if reply.code // 100 == 4 and stage in (Stage.RECIPIENT, Stage.TEXT) and reply.enhanced == (2, 1):
        return SendResult.deferred(detail, retry_after=BUSY_FOR)
    return SendResult.refused(meaning(stage, reply), detail)


def meaning(stage: Stage, reply: Reply) -> ErrorCode:
    match reply.code // 100:
        case 4:
            return ErrorCode.RATE_LIMIT if _is_about_rate(stage, reply) else ErrorCode.TRANSIENT
        case 5:
            return _refused(stage, reply)
        case _:  # no reply that the protocol knows here
            return ErrorCode.UNCONFIRMED if stage == Stage.TEXT else ErrorCode.TRANSIENT


def _is_about_rate(stage: Stage, reply: Reply) -> bool:
    return reply.code == 421 or (stage == Stage.SENDER and reply.code == 450)


def _refused(stage: Stage, reply: Reply) -> ErrorCode:
    if reply.code in (530, 534, 535, 538) or stage in (Stage.LOGIN, Stage.CONNECT):
        return ErrorCode.DISCONNECTED
    if stage in (Stage.HELLO, Stage.STARTTLS):
        return ErrorCode.TRANSIENT
    if stage == Stage.SENDER:
        return ErrorCode.MISCONFIGURED
    return _by_enhanced_code(stage, reply) or _by_digits(stage, reply)


def _by_enhanced_code(stage: Stage, reply: Reply) -> ErrorCode | None:
    match reply.enhanced:
        case (1, 7 | 8):  # the sender's address
            return ErrorCode.MISCONFIGURED
        case (2, 3) | (3, 4):  # too large
            return ErrorCode.MISCONFIGURED
        case (1 | 2, _):
            return ErrorCode.INVALID_RECIPIENT
        case (4, _) if stage == Stage.RECIPIENT:  # no way to the domain
            return ErrorCode.INVALID_RECIPIENT
        case (7, _):
            # Of a recipient: their own rules, unless we may not send through this server at all. Of the text: policy, which hits everybody.
            return ErrorCode.MISCONFIGURED if stage == Stage.TEXT or _is_about_relaying(reply) else ErrorCode.FATAL
        case None:
            return None
        case _:
            return ErrorCode.FATAL


def _by_digits(stage: Stage, reply: Reply) -> ErrorCode:
    if stage == Stage.RECIPIENT:
        if _is_about_relaying(reply):
            return ErrorCode.MISCONFIGURED
        return ErrorCode.INVALID_RECIPIENT if reply.code in (550, 551, 552, 553) else ErrorCode.FATAL
    return ErrorCode.MISCONFIGURED if reply.code == 552 else ErrorCode.FATAL


def _is_about_relaying(reply: Reply) -> bool:
    return re.search(r"\brelay|authenticat", reply.words, re.IGNORECASE) is not None


# -- the backend of the instance: nothing but exceptions -----------------------------------------------------------------------

_NEVER_CONNECTED = {"NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ConnectTimeout", "ConnectionRefusedError"}
_BY_STATUS = {
    400: ErrorCode.FATAL,
    401: ErrorCode.DISCONNECTED,
    402: ErrorCode.MISCONFIGURED,
    403: ErrorCode.DISCONNECTED,
    404: ErrorCode.MISCONFIGURED,
    413: ErrorCode.MISCONFIGURED,
    422: ErrorCode.FATAL,
    429: ErrorCode.RATE_LIMIT,
}
_ANYMAIL = {
    "AnymailRecipientsRefused": ErrorCode.INVALID_RECIPIENT,
    "AnymailInvalidAddress": ErrorCode.INVALID_RECIPIENT,
    "AnymailUnsupportedFeature": ErrorCode.MISCONFIGURED,
    "AnymailSerializationError": ErrorCode.MISCONFIGURED,
    "AnymailConfigurationError": ErrorCode.MISCONFIGURED,
    "ImproperlyConfigured": ErrorCode.MISCONFIGURED,
}


def read_open_error(error: Exception, hidden: list[str]) -> SendResult:
    """The backend could not be made ready: nothing of a message has left."""
    if isinstance(error, smtplib.SMTPResponseException):
        stage = Stage.LOGIN if isinstance(error, smtplib.SMTPAuthenticationError) else Stage.CONNECT
        return read_reply(stage, reply_of(error.smtp_code, error.smtp_error), hidden)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return SendResult.refused(ErrorCode.MISCONFIGURED, http.scrub(f"The mail server does not offer it: {error}", hidden))
    code = ErrorCode.TRANSIENT if isinstance(error, OSError) else ErrorCode.MISCONFIGURED
    return SendResult.refused(code, http.scrub(f"The mail service of this instance cannot be used: {_words(error)}", hidden))


def read_send_error(error: Exception, hidden: list[str]) -> SendResult:
    """The backend raised this while it sent. Django's SMTP backend does not tell at which byte, so a lost connection is a doubt."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        code, words = next(iter(error.recipients.values()))
        return read_reply(Stage.RECIPIENT, reply_of(code, words), hidden)
    if isinstance(error, smtplib.SMTPResponseException):
        stage = Stage.SENDER if isinstance(error, smtplib.SMTPSenderRefused) else Stage.TEXT
        return read_reply(stage, reply_of(error.smtp_code, error.smtp_error), hidden)
    names = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status_code", None)
    response: Any = getattr(error, "response", None)
    known = next((code for name, code in _ANYMAIL.items() if name in names), None)
    if known is None and status is None and _NEVER_CONNECTED & _causes(error):
        known = ErrorCode.TRANSIENT
    meant = known or _BY_STATUS.get(status or 0, ErrorCode.UNCONFIRMED)
    headers = getattr(response, "headers", None) or {}
    asked = http.Response(status or 0, headers, b"").retry_after if meant == ErrorCode.RATE_LIMIT else None
    return SendResult.refused(meant, http.scrub(f"The mail service says: {_words(error)}", hidden), retry_after=asked, http_status=status)


_BY_ANYMAIL_STATUS = {
    "invalid": ErrorCode.INVALID_RECIPIENT,
    "rejected": ErrorCode.INVALID_RECIPIENT,
    "failed": ErrorCode.FATAL,
}


def read_sent(anymail_status: Any, our_id: str) -> SendResult:
    """The backend raised nothing. A service of anymail may still have said something else than "taken"; None for other backends."""
    told = set(getattr(anymail_status, "status", None) or {"sent"})
    if told <= {"sent", "queued"}:
        message_id = getattr(anymail_status, "message_id", None)
        return SendResult.accepted(message_id if isinstance(message_id, str) else our_id)
    code = _BY_ANYMAIL_STATUS.get(min(map(str, told)), ErrorCode.UNCONFIRMED)
    return SendResult.refused(code, f"The mail service says: {', '.join(sorted(map(str, told)))}.")


def reply_of(code: int, words: bytes | str) -> Reply:
    return Reply(code, words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _causes(error: BaseException) -> set[str]:
    """The names of the exceptions behind it, also of those that urllib3 keeps in an attribute."""
    names: set[str] = set()
    waiting: list[Any] = [error]
    while waiting and len(names) < 20:
        one = waiting.pop()
        names.add(type(one).__name__)
        found = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
        waiting += [other for other in found if isinstance(other, BaseException) and type(other).__name__ not in names]
    return names

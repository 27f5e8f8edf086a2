"""What a receiver answers and tells. Pure.

Answers are read by HTTP's own statuses, and by what the session's form says about two of them.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from sessions_app.providers import http
from sessions_app.providers.base import ErrorCode, Inbound, Receipt, ReceiptState, SendResult

LONGEST_ID = 200
_CONFIGURABLE = frozenset({ErrorCode.MISCONFIGURED, ErrorCode.INVALID_RECIPIENT, ErrorCode.FATAL})


@dataclass(frozen=True)
class Rules:
    """What a person said about the receiver."""

    message_id_path: str = ""
    on_404: ErrorCode = ErrorCode.MISCONFIGURED
    on_422: ErrorCode = ErrorCode.MISCONFIGURED
    honours_idempotency: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        def meaning(name: str) -> ErrorCode:
            value = settings.get(name)
            return ErrorCode(value) if value in _CONFIGURABLE else ErrorCode.MISCONFIGURED

        path = settings.get("message_id_path", "id") or ""
        return cls(str(path), meaning("on_404"), meaning("on_422"), settings.get("honours_idempotency") is True)


def read_send(response: http.Response, rules: Rules, hidden: list[str]) -> SendResult:
    status, answer = response.status, _json(response.body)
    # A page in front of the receiver, such as a log-in, also answers 200; whether it let the message through, nobody knows.
    if 200 <= status < 300 and not response.body.lstrip().startswith(b"<"):
        return SendResult.accepted(_at(answer, rules.message_id_path), http_status=status)
    code, advice = _refusal(response, rules)
    detail = http.scrub(f"{advice} ({status}): {_words(response, answer)}", hidden)
    wait = response.retry_after if code == ErrorCode.RATE_LIMIT else None
    return SendResult.refused(code, detail, retry_after=wait, http_status=status)


def _refusal(response: http.Response, rules: Rules) -> tuple[ErrorCode, str]:
    status = response.status
    if status == 408 or status >= 500:
        return _failure(response, rules)
    if status == 404:
        return rules.on_404, "The receiver does not know this"
    if status == 422:
        return rules.on_422, "The receiver cannot do this"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 400 <= status < 500:
        return ErrorCode.FATAL, "The receiver refused the message"
    return ErrorCode.UNCONFIRMED, "Not an answer of the receiver"


_BY_STATUS: Mapping[int, tuple[ErrorCode, str]] = {
    # By the meaning of these four the request was not passed on; a 303 may come after it was carried out.
    **dict.fromkeys((301, 302, 307, 308), (ErrorCode.MISCONFIGURED, "The address redirects elsewhere: enter the one it leads to")),
    401: (ErrorCode.DISCONNECTED, "The receiver refused the signature or the key"),
    403: (ErrorCode.DISCONNECTED, "The receiver refused the signature or the key"),
    410: (ErrorCode.DISCONNECTED, "The receiver has switched this address off"),
    425: (ErrorCode.TRANSIENT, "The receiver did not begin, and asks for another try"),
    429: (ErrorCode.RATE_LIMIT, "Too many messages"),
}


def _failure(response: http.Response, rules: Rules) -> tuple[ErrorCode, str]:
    """After one of these the message may have left. A receiver that drops doubles may be given it once more; no other."""
    if not rules.honours_idempotency:
        return ErrorCode.UNCONFIRMED, "The receiver failed, perhaps after sending"
    if response.status == 503 and response.retry_after is not None:
        return ErrorCode.RATE_LIMIT, "The receiver asks to wait"
    return ErrorCode.TRANSIENT, "The receiver failed, and drops what it got before"


def _at(answer: Any, path: str) -> str:
    """The id at "data.0.id"; "" when there is none."""
    if not path:
        return ""
    found = answer
    for name in path.split("."):
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return ""
    return str(found) if isinstance(found, (str, int)) and not isinstance(found, bool) and len(str(found)) <= LONGEST_ID else ""


def read_receipt(told: Mapping[str, Any], hidden: list[str]) -> Receipt:
    """Raises ValueError."""
    state = str(told.get("state")).upper()
    if state not in ReceiptState.__members__:
        raise ValueError("A receipt of an unknown state: it is ACCEPTED, DELIVERED, READ or FAILED.")
    if not told.get("id") and not told.get("ref"):
        raise ValueError("A receipt that names no message: it has id or ref.")
    code = None
    if state == ReceiptState.FAILED:
        code = ErrorCode.INVALID_RECIPIENT if told.get("code") == ErrorCode.INVALID_RECIPIENT else ErrorCode.FATAL
    return Receipt(
        state=ReceiptState(state),
        at=_moment(told.get("at")),
        message_id=str(told.get("id") or ""),
        client_ref=uuid.UUID(str(told["ref"])) if told.get("ref") else None,
        code=code,
        detail=http.scrub(str(told.get("detail") or ""), hidden),
    )


def read_message(told: Mapping[str, Any]) -> Inbound:
    """Raises ValueError."""
    sender = told.get("from")
    if not isinstance(sender, str) or not sender.strip():
        raise ValueError("A message without its sender: from is an address.")
    text, message_id, name = (str(told.get(field) or "") for field in ("text", "id", "name"))
    return Inbound(sender.strip(), _moment(told.get("at")), text, message_id[:LONGEST_ID], name)


def _moment(value: Any) -> datetime:
    try:
        moment = datetime.fromtimestamp(value, UTC) if isinstance(value, (int, float)) else datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("No moment that can be read: at is ISO 8601 with its offset, such as 2026-11-30T12:00:00Z, or Unix seconds.")
    return moment


def _words(response: http.Response, answer: Any) -> str:
    """The first lines in which receivers usually say what is wrong, else the beginning of what is no page."""
    if isinstance(answer, dict):
        said = [answer.get(name) for name in ("message", "error", "detail", "title", "errors")]
        if words := [str(word) for word in said if word]:
            return "; ".join(words)
    text = response.body.decode(errors="replace").strip()
    return f"{len(response.body)} bytes" if not text or text.startswith("<") else text


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None

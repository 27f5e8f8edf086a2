"""What WAHA's answers mean. Pure.

WAHA publishes no schema of its errors: the tables here are what its source and its users report, for version 2026.7.1.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sessions_app.providers import http
from sessions_app.providers.base import ErrorCode, Presence, SendResult, SessionState, Verification

_RAW_ID = re.compile(r"[A-Za-z0-9.-]{1,100}")
ACK_ERROR, ACK_PENDING = -1, 0


def client_id(client_ref: uuid.UUID) -> str:
    """The id we give a message where the engine takes one: in the form WhatsApp Web makes them, always the same for one log row."""
    return "3EB0" + hashlib.sha256(client_ref.bytes).hexdigest()[:18].upper()


def raw_id(answer: Any) -> str:
    """The part of a message id that is the same in answers, receipts and look-ups; "" when there is none.

    Each engine has its own shape: a string or an object, plain or as true_<chat>_<RAW>[_<participant>], where <chat> may be @lid or @c.us
    for the same person. Only <RAW> is stable.
    """
    if not isinstance(answer, dict):
        return ""
    found: Any = answer.get("id")
    if isinstance(found, dict):
        found = found.get("_serialized") or found.get("id")
    if not found and isinstance(answer.get("key"), dict):
        found = answer["key"].get("id")
    if not isinstance(found, str):
        return ""
    parts = found.split("_")
    raw = parts[2] if len(parts) >= 3 and parts[0] in ("true", "false") else found
    return raw if _RAW_ID.fullmatch(raw) else ""


def plain(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


BY_WEIGHT = [Presence.PRESENT, Presence.UNKNOWN, Presence.ABSENT]

STATES: Mapping[str, tuple[SessionState, str]] = {
    "WORKING": (SessionState.CONNECTED, ""),
    "SCAN_QR_CODE": (SessionState.NEEDS_PAIRING, "Scan the QR code of this session in WAHA with the phone."),
    "PASSKEY_REQUIRED": (SessionState.NEEDS_PAIRING, "WhatsApp asks for a passkey: finish the pairing in WAHA."),
    "PASSKEY_CONFIRMATION_REQUIRED": (SessionState.NEEDS_PAIRING, "WhatsApp asks to confirm the passkey: finish the pairing in WAHA."),
    "STARTING": (SessionState.CONNECTING, "WAHA is starting the session. Check again in a moment."),
    "STOPPED": (SessionState.DISCONNECTED, "The session is stopped: start it in WAHA."),
    "FAILED": (SessionState.DISCONNECTED, "The session failed: restart it in WAHA, or log in again."),
}


class Unreadable(Exception):
    """An answer to a look-up that says neither yes nor no: a wrong key, a session that does not run, a store that is off."""

    def __init__(self, response: http.Response) -> None:
        super().__init__(f"WAHA could not tell ({response.status}): {vendor_words(response)}")


def presence(found: Mapping[str, Any]) -> Verification:
    ack = found.get("ack")
    if ack == ACK_ERROR:
        return Verification(Presence.ABSENT, raw_id(found), "WAHA has it, and WhatsApp refused it (ack -1).")
    if ack == ACK_PENDING:
        return Verification(Presence.UNKNOWN, raw_id(found), "WAHA has it, and WhatsApp has not acknowledged it yet (ack 0).")
    return Verification(Presence.PRESENT, raw_id(found))


def is_the_text(found: Any, text: str, query: Mapping[str, str | int]) -> bool:
    """Filters once more what WAHA was asked to filter: some engines and versions ignore parts of the query."""
    if not isinstance(found, dict) or found.get("fromMe") is not True or not isinstance(found.get("body"), str):
        return False
    timestamp = found.get("timestamp")
    if isinstance(timestamp, (int, float)) and not query["filter.timestamp.gte"] <= timestamp <= query["filter.timestamp.lte"]:  # type: ignore[operator]
        return False
    return plain(found["body"]) == text


def restricted(session: Mapping[str, Any]) -> str:
    """ " until ..." while WhatsApp holds the account back; newer versions tell, and only some engines. "" otherwise."""
    lock = (session.get("me") or {}).get("reachoutTimelock") if isinstance(session.get("me"), dict) else None
    restriction = session.get("restriction")
    if isinstance(lock, dict) and lock.get("isActive"):
        until = lock.get("timeEnforcementEnds")
    elif isinstance(restriction, dict) and restriction.get("active"):
        until = restriction.get("until")
    else:
        return ""
    try:
        return f" until {datetime.fromtimestamp(float(until or ''), UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, TypeError, OverflowError, OSError):
        return " for now"


def json_object(response: http.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def vendor_words(response: http.Response) -> str:
    """What WAHA said, out of the shapes it says it in. Its 500 echoes our request beside it, which is left out."""
    answer = json_object(response)
    exception = answer.get("exception")
    said = [
        exception.get("message") if isinstance(exception, dict) else None,
        answer.get("message"),
        answer.get("error"),
        answer.get("status"),
    ]
    words = [str(word) for part in said for word in (part if isinstance(part, list) else [part]) if word]
    if words:
        return "; ".join(words)
    kind = response.headers.get("Content-Type", "").partition(";")[0] or "no content type"
    return f"{len(response.body)} bytes of {kind}"


def read_send(response: http.Response, hidden: list[str]) -> SendResult:
    code, advice = _refusal(response)
    if code is None:
        return SendResult.accepted(raw_id(json_object(response)), http_status=response.status)
    detail = http.scrub(f"{advice} ({response.status}): {vendor_words(response)}", hidden)
    retry_after = response.retry_after if code == ErrorCode.RATE_LIMIT else None
    return SendResult.refused(code, detail, retry_after=retry_after, http_status=response.status)


def _refusal(response: http.Response) -> tuple[ErrorCode | None, str]:
    """The code and our sentence for it; (None, "") when it was accepted.

    Accepted is what WAHA documents, 201 with a JSON body, and what it was seen to answer, 201 with none. Another 2xx counts only with a
    message id in it: a log-in page in front of WAHA also answers 200, and whether it let the message through, nobody knows.
    """
    status = response.status
    if status == 201 and (not response.body.strip() or json_object(response)):
        return None, ""
    if 200 <= status < 300:
        return (None, "") if raw_id(json_object(response)) else (ErrorCode.UNCONFIRMED, "Not an answer of WAHA")
    if status in (301, 302, 307, 308):
        # WAHA's API has no redirects: something in front of it answered, and by the meaning of these four it did not pass the request on.
        # It would do so to everybody on the list, so the campaign pauses with this message still waiting.
        return ErrorCode.MISCONFIGURED, "The address redirects elsewhere: enter the address of WAHA itself"
    if status == 500:
        return _engine_failure(response)
    if status == 422:
        return _unprocessable(response)
    return _BY_STATUS.get(status, (ErrorCode.UNCONFIRMED, "WAHA failed, perhaps after sending"))


_BY_STATUS: Mapping[int, tuple[ErrorCode, str]] = {
    400: (ErrorCode.MISCONFIGURED, "WAHA refused the request as malformed"),
    401: (ErrorCode.DISCONNECTED, "WAHA refused the API key"),
    403: (ErrorCode.DISCONNECTED, "The API key may not send"),
    404: (ErrorCode.DISCONNECTED, "WAHA does not run this session"),
    429: (ErrorCode.RATE_LIMIT, "Too many requests"),
}


def _unprocessable(response: http.Response) -> tuple[ErrorCode, str]:
    """422 is WAHA's own check before the engine is called, so nothing has left. About the session it has a body of its own."""
    answer = json_object(response)
    if "expected" in answer or "session status" in str(answer.get("error", "")).lower():
        return ErrorCode.DISCONNECTED, "The session is not working"
    return ErrorCode.MISCONFIGURED, "WAHA cannot do this"


def _engine_failure(response: http.Response) -> tuple[ErrorCode, str]:
    """A 500 may come after the message has left, unless WhatsApp's own words in it say that it was not taken.

    Looks at the engine's message only: the same body echoes the text we sent, which may contain anything.
    """
    exception = json_object(response).get("exception")
    words = str(exception.get("message", "")) if isinstance(exception, dict) else ""
    if re.search(r"server returned error 463\b", words):
        return ErrorCode.DISCONNECTED, "WhatsApp does not let this account start new chats for now"
    if re.search(r"no LID found|No LID for user", words, re.IGNORECASE):
        return ErrorCode.INVALID_RECIPIENT, "WhatsApp does not know this number"
    if "rate-overlimit" in words:
        return ErrorCode.RATE_LIMIT, "WhatsApp says it is too much"
    return ErrorCode.UNCONFIRMED, "WAHA failed, perhaps after sending"

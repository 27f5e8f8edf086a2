"""What WAHA's answers mean. Pure.

WAHA publishes no schema of its errors: the tables here are what its source and its users report, for version 2026.7.1.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from sessions_app.providers import http
from sessions_app.providers.base import ErrorCode, Message, MessageType, Presence, Reach, Resolution, SendResult, SessionState, Verification

CHAT = re.compile(r"[0-9-]{3,40}@(c\.us|g\.us|lid|newsletter)")
_PERSON = re.compile(r"([0-9]{3,20})(?:\.[0-9]+)?(?::[0-9]+)?@(c\.us|s\.whatsapp\.net|lid)")
_RAW_ID = re.compile(r"[A-Za-z0-9.-]{1,100}")
ACK_ERROR, ACK_PENDING = -1, 0
HELD_BACK = "WhatsApp does not let this account start new chats for now"


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


def person(value: Any) -> str:
    """A person's chat id as our addresses have it, without the device; "" for anything else."""
    match = _PERSON.fullmatch(value) if isinstance(value, str) else None
    return f"{match[1]}@{'lid' if match[2] == 'lid' else 'c.us'}" if match else ""


def plain(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


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


def best_of(verifications: list[Verification]) -> Verification:
    weights = [Presence.PRESENT, Presence.UNKNOWN, Presence.ABSENT]
    return min(verifications, key=lambda one: weights.index(one.presence))


class Likeness(Enum):
    SAME = 1
    PERHAPS = 2
    OTHER = 3


def likeness(found: Any, message: Message, query: Mapping[str, str | int]) -> Likeness:
    """Whether a listed message is the one that is looked for. Filters once more what WAHA was asked to filter: some engines and versions
    ignore parts of the query.
    """
    if not isinstance(found, dict) or found.get("fromMe") is not True:
        return Likeness.OTHER
    timestamp = found.get("timestamp")
    if isinstance(timestamp, (int, float)) and not query["filter.timestamp.gte"] <= timestamp <= query["filter.timestamp.lte"]:  # type: ignore[operator]
        return Likeness.OTHER
    body = plain(found["body"]) if isinstance(found.get("body"), str) else ""
    if message.type is MessageType.TEXT:
        return Likeness.SAME if body == plain(message.text) else Likeness.OTHER
    kind = raw_kind(found) or media_kind(found)
    if message.type is MessageType.DOCUMENT and raw_kind(found) is None and kind is not message.type:
        kind = None  # anything can be sent as a document
    if found.get("hasMedia") is False or (kind is not None and kind is not message.type):
        return Likeness.OTHER
    if message.caption.strip() and message.type is not MessageType.AUDIO:
        return Likeness.SAME if body == plain(message.caption) else Likeness.OTHER
    if body.strip() and message.type is not MessageType.DOCUMENT:  # some engines give a document's name there
        return Likeness.OTHER
    return Likeness.PERHAPS if kind is None else Likeness.SAME


_KINDS: Mapping[str, MessageType] = {
    "image": MessageType.IMAGE,
    "video": MessageType.VIDEO,
    "audio": MessageType.AUDIO,
    "ptt": MessageType.AUDIO,
    "document": MessageType.DOCUMENT,
}


def raw_kind(found: Mapping[str, Any]) -> MessageType | None:
    """What the engine's raw message says. Its shapes are no part of WAHA's published API: `type` is what WEBJS and WPP were seen to have,
    `message` NOWEB, `Message` GOWS.
    """
    data = found.get("_data")
    if not isinstance(data, dict):
        return None
    if isinstance(data.get("type"), str) and data["type"] in _KINDS:
        return _KINDS[data["type"]]
    content = data.get("message") or data.get("Message")
    return next((kind for name, kind in _KINDS.items() if isinstance(content, dict) and content.get(f"{name}Message")), None)


def media_kind(found: Mapping[str, Any]) -> MessageType | None:
    """As `raw_kind`, else by the media's MIME type, which does not tell a picture from one sent as a document. None: not said."""
    media = found.get("media")
    mimetype = media.get("mimetype") if isinstance(media, dict) else None
    main = mimetype.partition("/")[0] if isinstance(mimetype, str) else ""
    return raw_kind(found) or (MessageType.DOCUMENT if main in ("application", "text") else _KINDS.get(main))


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
    return until_when(until)


def until_when(until: Any) -> str:
    moment = moment_of(until)
    return f" until {moment:%Y-%m-%d %H:%M} UTC" if moment else " for now"


def moment_of(seconds: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(seconds or ""), UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        return None


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
    result = SendResult.refused(code, detail, retry_after=retry_after, http_status=response.status)
    return replace(result, restricted=advice == HELD_BACK)


def read_reach(response: http.Response, hidden: list[str]) -> Resolution:
    """The answer of check-exists. Nobody is there only when it says so; a code is set only where the session is clearly the cause."""
    answer = json_object(response)
    if response.status == 200 and answer.get("numberExists") is False:
        return Resolution(Reach.NOT_FOUND, detail="WhatsApp has no account with this number.")
    chat = person(answer.get("chatId"))
    if response.status == 200 and answer.get("numberExists") is True and chat:
        return Resolution(Reach.FOUND, chat)
    code, advice = _refusal(response)
    words = vendor_words(response)
    if code not in (ErrorCode.RATE_LIMIT, ErrorCode.DISCONNECTED) or (response.status == 404 and not _NO_SESSION.search(words)):
        code, advice = None, "WAHA could not tell"
    detail = http.scrub(f"{advice} ({response.status}): {words}", hidden)
    retry_after = response.retry_after if code == ErrorCode.RATE_LIMIT else None
    return Resolution(Reach.UNKNOWN, detail=detail, code=code, retry_after=retry_after)


# A 404 of anything else, a proxy or an older WAHA, quotes the path at most, and the path has the word in it too.
_NO_SESSION = re.compile(r"find a session|session\b.*\bnot found", re.IGNORECASE)


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
        return ErrorCode.DISCONNECTED, HELD_BACK
    if re.search(r"no LID found|No LID for user", words, re.IGNORECASE):
        return ErrorCode.INVALID_RECIPIENT, "WhatsApp does not know this number"
    if "rate-overlimit" in words:
        return ErrorCode.RATE_LIMIT, "WhatsApp says it is too much"
    return ErrorCode.UNCONFIRMED, "WAHA failed, perhaps after sending"

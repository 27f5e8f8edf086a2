"""What the answers and webhooks of the WhatsApp Cloud API mean. Pure.

The codes are those of Meta's list in 2026; 132018 and 133010, and the states of a number, are from memory. No
account was called. Meta asks to branch on `code` alone: neither the HTTP status nor title and subcode mean anything by themselves.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sessions_app.providers import http
from sessions_app.providers.base import (
    ErrorCode,
    Event,
    Inbound,
    Receipt,
    ReceiptState,
    SendResult,
    SessionCheck,
    SessionState,
    StateReport,
)

PAIR_LIMIT = 131056
# One message in 6 s to the same person, and a burst is paid back later: twenty at once cost two minutes.
PAIR_WAIT = timedelta(minutes=2)

CODES: Mapping[int, tuple[ErrorCode, str]] = {
    0: (ErrorCode.DISCONNECTED, "Meta refused the access token: make a new one"),
    190: (ErrorCode.DISCONNECTED, "The access token is wrong or has expired: make a new one"),
    3: (ErrorCode.DISCONNECTED, "The access token lacks a permission (whatsapp_business_messaging)"),
    10: (ErrorCode.DISCONNECTED, "The access token lacks a permission (whatsapp_business_messaging)"),
    131005: (ErrorCode.DISCONNECTED, "The access token lacks a permission (whatsapp_business_messaging)"),
    33: (ErrorCode.DISCONNECTED, "The number was deleted at Meta"),
    368: (ErrorCode.DISCONNECTED, "Meta blocked the account for violating its policies"),
    131031: (ErrorCode.DISCONNECTED, "Meta locked the account"),
    131037: (ErrorCode.DISCONNECTED, "Meta has not approved the display name of the number"),
    131045: (ErrorCode.DISCONNECTED, "The number is not registered correctly: register it again"),
    133010: (ErrorCode.DISCONNECTED, "The number is not registered for the Cloud API"),
    133016: (ErrorCode.DISCONNECTED, "The number was registered too often: wait for three days"),
    131048: (ErrorCode.DISCONNECTED, "WhatsApp holds the number back: too many people blocked it or reported it as spam"),
    131042: (ErrorCode.MISCONFIGURED, "The account has no valid means of payment at Meta"),
    131064: (ErrorCode.MISCONFIGURED, "Meta limits the account: its templates are in the wrong category"),
    4: (ErrorCode.RATE_LIMIT, "The app makes too many calls"),
    80007: (ErrorCode.RATE_LIMIT, "The business account makes too many calls"),
    130429: (ErrorCode.RATE_LIMIT, "The number sends too fast"),
    132069: (ErrorCode.RATE_LIMIT, "The flow in this message is throttled"),
    131057: (ErrorCode.RATE_LIMIT, "The account is in maintenance, as while Meta raises the throughput of its number"),
    PAIR_LIMIT: (ErrorCode.RATE_LIMIT, "Too many messages to this person"),
    130472: (ErrorCode.INVALID_RECIPIENT, "This person is in an experiment of Meta that keeps marketing messages away"),
    130497: (ErrorCode.INVALID_RECIPIENT, "The business may not write to this country"),
    131021: (ErrorCode.INVALID_RECIPIENT, "This is the sender's own number"),
    131026: (ErrorCode.INVALID_RECIPIENT, "This number cannot be reached: no WhatsApp, an old version, or the terms not accepted"),
    131030: (ErrorCode.INVALID_RECIPIENT, "A test number reaches only the numbers on its list of recipients"),
    131049: (ErrorCode.INVALID_RECIPIENT, "WhatsApp withheld the message: this person gets too much marketing. Not before 24 hours"),
    131050: (ErrorCode.INVALID_RECIPIENT, "This person stopped marketing messages"),
    131062: (ErrorCode.INVALID_RECIPIENT, "This person hides the number, and this message needs it"),
    137000: (ErrorCode.INVALID_RECIPIENT, "The identity of this number has changed"),
    131047: (ErrorCode.FATAL, "This person has not written for 24 hours: only a template can be sent"),
    132008: (ErrorCode.FATAL, "A value of the template is not accepted"),
    132012: (ErrorCode.FATAL, "A value of the template is in the wrong format"),
    132018: (ErrorCode.FATAL, "A value of the template is not accepted"),
    100: (ErrorCode.MISCONFIGURED, "A field of the message, or the phone number ID, is wrong"),
    131008: (ErrorCode.MISCONFIGURED, "A field of the message is missing"),
    131009: (ErrorCode.MISCONFIGURED, "A field of the message is wrong"),
    131051: (ErrorCode.MISCONFIGURED, "WhatsApp does not support this type of message"),
    131052: (ErrorCode.MISCONFIGURED, "The media could not be downloaded"),
    131053: (ErrorCode.MISCONFIGURED, "The media could not be used: look at its address, type and size"),
    131063: (ErrorCode.MISCONFIGURED, "Marketing templates are off for the Cloud API"),
    132000: (ErrorCode.MISCONFIGURED, "The template needs another number of values"),
    132001: (ErrorCode.MISCONFIGURED, "There is no such template in this language, or it is not approved"),
    132005: (ErrorCode.MISCONFIGURED, "The template is too long with these values"),
    132007: (ErrorCode.MISCONFIGURED, "The template violates a policy of WhatsApp"),
    132015: (ErrorCode.MISCONFIGURED, "Meta paused the template for its quality"),
    132016: (ErrorCode.MISCONFIGURED, "Meta disabled the template for its quality"),
    132068: (ErrorCode.MISCONFIGURED, "The flow in this message is blocked"),
    # None of these is documented as "not processed".
    1: (ErrorCode.UNCONFIRMED, "Meta failed, perhaps after sending"),
    2: (ErrorCode.UNCONFIRMED, "Meta is not available, perhaps after sending"),
    131000: (ErrorCode.UNCONFIRMED, "Meta failed, perhaps after sending"),
    131016: (ErrorCode.UNCONFIRMED, "Meta is not available, perhaps after sending"),
    135000: (ErrorCode.UNCONFIRMED, "Meta failed, perhaps after sending"),
}
WAITS = {131057: timedelta(minutes=1)}  # an upgrade of the throughput takes up to a minute
# Where something in front of Meta answered, or Meta without a code.
WITHOUT_A_CODE = {401: (ErrorCode.DISCONNECTED, "The access token was refused"), 429: (ErrorCode.RATE_LIMIT, "Too many requests")}

NUMBER_STATES: Mapping[str, tuple[SessionState, str]] = {
    "CONNECTED": (SessionState.CONNECTED, ""),
    "FLAGGED": (SessionState.CONNECTED, "Meta flagged the number for its quality: send less, and to those who expect it."),
    "RESTRICTED": (SessionState.RESTRICTED, "Meta does not let the number start conversations for now."),
    "RATE_LIMITED": (SessionState.RESTRICTED, "The number has reached its limit of new conversations for 24 hours."),
    "PENDING": (SessionState.CONNECTING, "The number is not registered yet: finish that in WhatsApp Manager."),
    "UNVERIFIED": (SessionState.DISCONNECTED, "The number is not verified: finish that in WhatsApp Manager."),
    "OFFLINE": (SessionState.DISCONNECTED, "The number is offline: register it again in WhatsApp Manager."),
    "DISCONNECTED": (SessionState.DISCONNECTED, "The number is disconnected: register it again in WhatsApp Manager."),
    "MIGRATED": (SessionState.DISCONNECTED, "The number was moved to another business account."),
    "DELETED": (SessionState.DISCONNECTED, "The number was deleted in WhatsApp Manager."),
    "BANNED": (SessionState.DISCONNECTED, "Meta banned the number."),
}
RECEIPTS = {
    "sent": ReceiptState.ACCEPTED,
    "delivered": ReceiptState.DELIVERED,
    "read": ReceiptState.READ,
    "played": ReceiptState.READ,
    "failed": ReceiptState.FAILED,
}
NO_MESSAGES = {"reaction", "system", "ephemeral"}  # what people do, and do not write


@dataclass(frozen=True)
class Template:
    """A message that Meta approves beforehand."""

    name: str
    language: str  # as "en_US"
    status: str  # only APPROVED can be sent
    category: str
    components: tuple[Any, ...]  # as the API has them
    body_parameters: int  # how many different {{...}} the text has
    header_parameters: int  # the same of the heading; 1 where it is an image, a video, a document or a place


def read_template(found: Any) -> Template | None:
    """None for what is no template."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    components = tuple(one for one in found.get("components") or () if isinstance(one, dict))
    body = [one for one in components if one.get("type") == "BODY"]
    header = [one for one in components if one.get("type") == "HEADER"]
    return Template(
        name=found["name"],
        language=str(found.get("language", "")),
        status=str(found.get("status", "")),
        category=str(found.get("category", "")),
        components=components,
        body_parameters=sum(_parameters(one) for one in body),
        header_parameters=sum(_parameters(one) if one.get("format") in (None, "TEXT") else 1 for one in header),
    )


def _parameters(component: Mapping[str, Any]) -> int:
    return len(set(re.findall(r"\{\{\s*(\w+)\s*\}\}", str(component.get("text", "")))))


def json_object(response: http.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def meaning(number: Any) -> tuple[ErrorCode, str] | None:
    if not isinstance(number, int):
        return None
    return CODES[10] if 200 <= number <= 299 else CODES.get(number)


def words(error: Mapping[str, Any]) -> str:
    data = error.get("error_data")
    said = [
        error.get("message") or error.get("title"),
        data.get("details") if isinstance(data, dict) else None,
        error.get("error_user_msg"),
    ]
    return "; ".join(str(one) for one in said if one)


def error_of(response: http.Response) -> tuple[ErrorCode, str, dict[str, Any]]:
    """Our code, our sentence, and Meta's error; {} when it said none.

    A code that stands in no table was refused all the same where the status says so; that it is about everybody is not known, so five in
    a row must show it.
    """
    error = json_object(response).get("error")
    error = error if isinstance(error, dict) else {}
    if (known := meaning(error.get("code"))) is not None:
        return *known, error
    if response.status in WITHOUT_A_CODE:
        return *WITHOUT_A_CODE[response.status], error
    if "code" in error and 400 <= response.status < 500:
        return ErrorCode.FATAL, "Meta refused the message", error
    return ErrorCode.UNCONFIRMED, "Not an answer that can be understood", error


def in_words(response: http.Response, advice: str, error: Mapping[str, Any]) -> str:
    said = words(error) or f"{len(response.body)} bytes of {response.headers.get('Content-Type', 'no type').partition(';')[0]}"
    number = error.get("code")
    return f"{advice} ({response.status}{f', code {number}' if isinstance(number, int) else ''}): {said}"


def read_send(response: http.Response, hidden: list[str]) -> SendResult:
    """Accepted is a 2xx with an id. `message_status` (accepted, held_for_quality_assessment) changes nothing: a webhook tells the rest."""
    answer = json_object(response)
    messages = answer.get("messages")
    first = messages[0] if isinstance(messages, list) and messages and isinstance(messages[0], dict) else {}
    if 200 <= response.status < 300 and "error" not in answer and isinstance(first.get("id"), str) and first["id"]:
        return SendResult.accepted(first["id"], http_status=response.status)
    code, advice, error = error_of(response)
    detail = http.scrub(in_words(response, advice, error), hidden)
    number = error.get("code")
    if number == PAIR_LIMIT:
        return SendResult.deferred(detail, retry_after=response.retry_after or PAIR_WAIT, http_status=response.status)
    wait = (response.retry_after or WAITS.get(number)) if code == ErrorCode.RATE_LIMIT else None  # type: ignore[arg-type]
    return SendResult.refused(code, detail, retry_after=wait, http_status=response.status)


def moment(value: Any) -> datetime:
    """Raises ValueError."""
    try:
        return datetime.fromtimestamp(int(str(value)), UTC)
    except (OverflowError, OSError) as error:
        raise ValueError("not a time") from error


def dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def read_status(status: Mapping[str, Any]) -> Iterator[Event]:
    state = RECEIPTS.get(str(status.get("status")))
    if state is None:
        return
    code, detail = None, ""
    if state == ReceiptState.FAILED:
        error = next(iter(dicts(status.get("errors"))), {})
        code, advice = meaning(error.get("code")) or (ErrorCode.FATAL, "Meta did not deliver the message")
        if code == ErrorCode.UNCONFIRMED:  # in an answer it is a doubt; here Meta says that it failed
            code, advice = ErrorCode.TRANSIENT, "Meta failed and did not send it"
        detail = http.scrub(f"{advice} ({error.get('code')}): {words(error)}", [str(status.get("recipient_id", ""))])
    yield Receipt(
        state, moment(status.get("timestamp")), message_id=str(status.get("id") or ""), client_ref=_ref(status), code=code, detail=detail
    )


def _ref(status: Mapping[str, Any]) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(status.get("biz_opaque_callback_data")))
    except ValueError:  # sent by something else with the same number
        return None


def read_message(message: Mapping[str, Any], name: str) -> Iterator[Event]:
    """People without a number (a user id alone) cannot be named in our addresses, so what they write is left out."""
    kind, sender = str(message.get("type", "")), str(message.get("from", ""))
    if kind in NO_MESSAGES or not re.fullmatch(r"[1-9][0-9]{5,14}", sender):
        return
    yield Inbound(
        sender=f"{sender}@c.us",
        at=moment(message.get("timestamp")),
        text=_text_of(message, kind),
        message_id=str(message.get("id") or ""),
        name=name,
        message_type=kind.upper(),
    )


def _text_of(message: Mapping[str, Any], kind: str) -> str:
    content = message.get(kind)
    if not isinstance(content, dict):
        return ""
    if kind == "interactive":  # the button or the line of a list that was chosen, under the name of its own type
        content = content.get(str(content.get("type")))
        content = content if isinstance(content, dict) else {}
    found = next((content[key] for key in ("body", "text", "title", "caption") if content.get(key)), "")
    return str(found)


def read_account(update: Mapping[str, Any]) -> Iterator[Event]:
    """Only what stops sending for certain. A reinstated account may still have a number that cannot send: a check says so."""
    event = update.get("event")
    ban = update.get("ban_info")
    if event == "ACCOUNT_DELETED":
        yield StateReport(SessionCheck(SessionState.DISCONNECTED, "The business account was deleted at Meta."))
    elif event == "DISABLED_UPDATE" and isinstance(ban, dict) and ban.get("waba_ban_state") == "DISABLE":
        yield StateReport(SessionCheck(SessionState.DISCONNECTED, "Meta disabled the business account for violating its policies."))
    elif event == "ACCOUNT_RESTRICTION" and "phone_number" not in update:
        kinds = {one.get("restriction_type") for one in dicts(update.get("restriction_info"))}
        if "RESTRICTED_BIZ_INITIATED_MESSAGING" in kinds:
            yield StateReport(SessionCheck(SessionState.RESTRICTED, "Meta does not let the account start conversations for now."))

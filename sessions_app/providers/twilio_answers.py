"""What Twilio's answers and callbacks mean, how it signs, and how long a text is in SMS. Pure.

The codes are those of Twilio's pages on errors. Twilio splits them further now and then, so one that stands in no table is read by its
HTTP status. No account was called.
"""

import base64
import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sessions_app.providers import http
from sessions_app.providers.base import ErrorCode, Event, Inbound, Receipt, ReceiptState, SendResult, WebhookRefused, WebhookRequest

PHONE = re.compile(r"\+[1-9][0-9]{6,14}")
_MESSAGE = re.compile(r"(SM|MM)[0-9a-fA-F]{32}")

CODES: Mapping[int, tuple[ErrorCode, str]] = {
    20003: (ErrorCode.DISCONNECTED, "Twilio refused the Account SID or the auth token"),
    20404: (ErrorCode.DISCONNECTED, "Twilio does not know the account or the Messaging Service"),
    30002: (ErrorCode.DISCONNECTED, "The account is suspended: look into its balance and its notices at Twilio"),
    20429: (ErrorCode.RATE_LIMIT, "Too many calls at once"),
    21611: (ErrorCode.RATE_LIMIT, "The sender already has more than ten hours of messages waiting"),
    30001: (ErrorCode.RATE_LIMIT, "The sender's queue at Twilio overflowed"),
    63017: (ErrorCode.RATE_LIMIT, "The account sends too fast"),
    14107: (ErrorCode.RATE_LIMIT, "Too many messages between these two numbers"),
    21211: (ErrorCode.INVALID_RECIPIENT, "This is not a phone number"),
    21217: (ErrorCode.INVALID_RECIPIENT, "This is not a phone number"),
    21401: (ErrorCode.INVALID_RECIPIENT, "This is not a phone number"),
    21408: (ErrorCode.INVALID_RECIPIENT, "This country is not switched on: Messaging > Settings > Geo permissions at Twilio"),
    21608: (ErrorCode.INVALID_RECIPIENT, "A trial account reaches verified numbers only"),
    21610: (ErrorCode.INVALID_RECIPIENT, "This person answered STOP"),
    21612: (ErrorCode.INVALID_RECIPIENT, "This sender cannot reach this number"),
    21614: (ErrorCode.INVALID_RECIPIENT, "This is not a mobile number"),
    21635: (ErrorCode.INVALID_RECIPIENT, "This is a landline"),
    30003: (ErrorCode.INVALID_RECIPIENT, "The phone cannot be reached: off, abroad, or a landline"),
    30004: (ErrorCode.INVALID_RECIPIENT, "The person or the carrier blocks the message"),
    30005: (ErrorCode.INVALID_RECIPIENT, "This number does not exist any more"),
    30006: (ErrorCode.INVALID_RECIPIENT, "This is a landline, or a carrier that cannot be reached"),
    14103: (ErrorCode.MISCONFIGURED, "The text is missing or too long"),
    21605: (ErrorCode.MISCONFIGURED, "The text is too long"),
    21617: (ErrorCode.MISCONFIGURED, "The text is too long"),
    21212: (ErrorCode.MISCONFIGURED, "The sender is not a number that can send"),
    21601: (ErrorCode.MISCONFIGURED, "The sender's number cannot send SMS"),
    21606: (ErrorCode.MISCONFIGURED, "The sender does not belong to this account"),
    21659: (ErrorCode.MISCONFIGURED, "The sender does not belong to this account"),
    14105: (ErrorCode.MISCONFIGURED, "The address for status callbacks is not accepted"),
    21609: (ErrorCode.MISCONFIGURED, "The address for status callbacks is not accepted"),
    30007: (ErrorCode.MISCONFIGURED, "Carriers filter the message as unwanted: change the text, or register the sender"),
    30008: (ErrorCode.FATAL, "The carrier did not deliver it and does not say why"),
    20500: (ErrorCode.UNCONFIRMED, "Twilio failed, perhaps after sending"),
}
PAIR_LIMIT, PAIR_WAIT = 14107, timedelta(seconds=30)
BY_STATUS: Mapping[int, tuple[ErrorCode, str]] = {
    401: CODES[20003],
    403: (ErrorCode.DISCONNECTED, "The account may not send"),
    404: CODES[20404],
    429: CODES[20429],  # documented as never processed
}
RECEIPTS = {
    **dict.fromkeys(("accepted", "queued", "sending", "sent"), ReceiptState.ACCEPTED),
    **dict.fromkeys(("delivered", "read"), ReceiptState.DELIVERED),
    **dict.fromkeys(("undelivered", "failed"), ReceiptState.FAILED),
}
DID_NOT_ARRIVE = {"failed", "undelivered", "canceled"}

GSM_7 = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
GSM_7_ESCAPED = frozenset("\f^{}\\[~]|€")  # two places each


def segments(text: str) -> tuple[int, str]:
    """How many SMS a text takes, and its encoding. A sign of two places is never cut in half, so its rest moves to the next SMS."""
    if all(sign in GSM_7 or sign in GSM_7_ESCAPED for sign in text):
        encoding, whole, part = "GSM-7", 160, 153
        widths = [2 if sign in GSM_7_ESCAPED else 1 for sign in text]
    else:
        encoding, whole, part = "UCS-2", 70, 67
        widths = [2 if ord(sign) > 0xFFFF else 1 for sign in text]
    if sum(widths) <= whole:
        return min(len(text), 1), encoding
    number, used = 1, 0
    for width in widths:
        if used + width > part:
            number, used = number + 1, 0
        used += width
    return number, encoding


def plain(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def json_object(response: http.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def meaning(response: http.Response) -> tuple[ErrorCode, str]:
    """By Twilio's code; by the status where it is unknown. A code of its own with a status of 4xx is a refusal, whatever it says."""
    number = json_object(response).get("code")
    if isinstance(number, int) and number in CODES:
        return CODES[number]
    if response.status in BY_STATUS:
        return BY_STATUS[response.status]
    if isinstance(number, int) and 400 <= response.status < 500:
        return ErrorCode.FATAL, "Twilio refused the message"
    return ErrorCode.UNCONFIRMED, "Not an answer that can be understood"


def in_words(response: http.Response, advice: str) -> str:
    answer = json_object(response)
    said = "; ".join(str(one) for one in (answer.get("message"), answer.get("error_message"), answer.get("more_info")) if one)
    said = said or f"{len(response.body)} bytes of {response.headers.get('Content-Type', 'no type').partition(';')[0]}"
    return f"{advice} ({response.status}, code {answer.get('code', 'not said')}): {said}"


def read_send(response: http.Response, hidden: list[str]) -> SendResult:
    answer = json_object(response)
    sid = str(answer.get("sid", ""))
    if 200 <= response.status < 300 and _MESSAGE.fullmatch(sid) and answer.get("status") not in DID_NOT_ARRIVE:
        return SendResult.accepted(sid, http_status=response.status)
    code, advice = meaning(response)
    number = answer.get("code")
    if 200 <= response.status < 300 and _MESSAGE.fullmatch(sid):  # made, and failed at once
        number = answer.get("error_code")
        code, advice = CODES.get(number, (ErrorCode.FATAL, "Twilio could not send it"))  # type: ignore[arg-type]
    detail = http.scrub(in_words(response, advice), hidden)
    if number == PAIR_LIMIT:
        return SendResult.deferred(detail, retry_after=response.retry_after or PAIR_WAIT, http_status=response.status)
    wait = response.retry_after if code == ErrorCode.RATE_LIMIT else None
    return SendResult.refused(code, detail, retry_after=wait, http_status=response.status)


def read_event(payload: Mapping[str, Any]) -> list[Event]:
    if "at" not in payload:
        return []
    at = datetime.fromisoformat(payload["at"])
    if "from" in payload:  # short codes and names cannot be answered, and other channels of Twilio are not SMS
        kind = payload["media"].partition("/")[0].upper()
        kind = kind if kind in {"IMAGE", "VIDEO", "AUDIO"} else "DOCUMENT" if kind else "TEXT"
        is_phone = PHONE.fullmatch(payload["from"])
        return [Inbound(payload["from"], at, payload["body"], payload["sid"], message_type=kind)] if is_phone else []
    state = RECEIPTS.get(payload["status"])
    if state is None:
        return []
    code, detail = None, ""
    if state == ReceiptState.FAILED:
        number = int(payload["error"]) if re.fullmatch(r"[0-9]{1,9}", payload["error"]) else 0
        code, advice = CODES.get(number, (ErrorCode.FATAL, "Twilio could not deliver it"))
        detail = f"{advice} (code {number or 'not said'})"
    return [Receipt(state, at, message_id=payload["sid"], client_ref=_uuid(payload["ref"]), code=code, detail=detail)]


def signed_fields(request: WebhookRequest) -> tuple[dict[str, str], str]:
    """What was posted, and the part of it that is signed behind the address: a form in order of its names, or a hash inside the address."""
    digest = request.query.get("bodySHA256", "")
    try:
        if digest and "form-urlencoded" not in request.headers.get("content-type", ""):
            if not hmac.compare_digest(hashlib.sha256(request.body).hexdigest().encode(), digest.lower().encode(errors="replace")):
                raise WebhookRefused("The body is not the one that was signed")
            answer = json.loads(request.body)
            return ({key: str(value) for key, value in answer.items()} if isinstance(answer, dict) else {}), ""
        form = parse_qs(request.body.decode(), keep_blank_values=True)
    except ValueError:
        raise WebhookRefused("The body can be read neither as a form nor as JSON", status=400) from None
    signed = "".join(name + value for name in sorted(form) for value in sorted(set(form[name])))
    return {name: values[-1] for name, values in form.items()}, signed


def as_twilio_may_see_it(url: str) -> list[str]:
    """As it is, without its port, and with the port of its scheme: which of them is signed differs."""
    parts = urlsplit(url)
    host = re.sub(r":[0-9]+$", "", parts.netloc)
    port = "443" if parts.scheme == "https" else "80"
    rest = url.partition("://")[2].removeprefix(parts.netloc)
    return [url, f"{parts.scheme}://{host}{rest}", f"{parts.scheme}://{host}:{port}{rest}"]


def signature(token: str, text: str) -> bytes:
    return base64.b64encode(hmac.new(token.encode(), text.encode(errors="surrogatepass"), hashlib.sha1).digest())


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None

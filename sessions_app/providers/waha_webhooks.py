"""What WAHA tells by itself: what became of messages, what people write, and how the session is."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from sessions_app.providers import http
from sessions_app.providers.base import (
    ErrorCode,
    Event,
    Inbound,
    Receipt,
    ReceiptState,
    SessionCheck,
    SessionState,
    StateReport,
    WebhookAnswer,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
    event_id_of,
)
from sessions_app.providers.waha_answers import ACK_ERROR, STATES, media_kind, moment_of, person, raw_id, until_when
from sessions_app.providers.waha_connection import WahaConnection

# WAHA tells again for hours when nobody answered, so a request cannot be refused for being some minutes old. What is told twice has the
# same id and changes nothing; this limit is for what is played back after its id was cleaned away.
TOLD_AT_MOST = 7 * 24 * 3600
RECEIPTS: Mapping[int, ReceiptState] = {
    -1: ReceiptState.FAILED,
    1: ReceiptState.ACCEPTED,
    2: ReceiptState.DELIVERED,
    3: ReceiptState.READ,
    4: ReceiptState.READ,  # played
}


class WahaWebhooks(WahaConnection):
    takes_webhooks: ClassVar[bool] = True
    takes_replies: ClassVar[bool] = True
    receipts: ClassVar[frozenset[ReceiptState]] = frozenset(ReceiptState)
    clock = staticmethod(time.time)

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        if request.method != "POST":
            raise WebhookRefused("WAHA uses POST", status=405)
        if not self.webhook_secret:
            raise WebhookRefused("The session has no webhook secret")
        signature = hmac.new(self.webhook_secret.encode(), request.body, hashlib.sha512).hexdigest()
        given = request.headers.get("x-webhook-hmac", "").lower()
        if not hmac.compare_digest(signature.encode(), given.encode(errors="replace")):
            raise WebhookRefused("The signature is missing or not of this webhook secret")
        try:
            body = json.loads(request.body)
        except ValueError:
            raise WebhookRefused("The body is not JSON", status=400) from None
        if not isinstance(body, dict):
            raise WebhookRefused("The body is not an object", status=400)
        if not self.waha_session or body.get("session") != self.waha_session:
            return WebhookAnswer()  # a webhook of WAHA's own settings tells about all its sessions
        told = _number(body.get("timestamp"))
        if told is not None and told / 1000 < self.clock() - TOLD_AT_MOST:
            raise WebhookRefused("The event is more than a week old", status=400)
        return WebhookAnswer(items=(self._item(body, self.clock() if told is None else told / 1000),))

    def _item(self, body: dict[str, Any], at: float) -> WebhookItem:
        """What nothing here reads is kept by its name alone: some of it is people's messages."""
        kind = _text(body.get("event"), 60) or "unknown"
        said = body["payload"] if isinstance(body.get("payload"), dict) else {}
        read = {"message.ack": _ack, "message.ack.group": _ack, "message": _message, "session.status": _status}.get(kind)
        event_id = _text(body.get("id"), 200) or event_id_of(kind, said)
        return WebhookItem(event_id, kind, {"at": at, **read(said, at)} if read else {})

    def read_event(self, item: WebhookItem) -> list[Event]:
        payload = item.payload
        if "ack" in payload:
            return _receipt(payload["ack"], _moment(payload["at"]))
        if "message" in payload:
            facts = payload["message"]
            sender = facts["sender"]
            return [Inbound(**{**facts, "at": _moment(facts["at"])}, needs_resolving=sender.endswith("@lid"))]
        if "status" in payload:
            unknown = (SessionState.DISCONNECTED, "WAHA reports an unknown state.")
            return [StateReport(SessionCheck(*STATES.get(payload["status"], unknown)))]
        return []


def _ack(said: Mapping[str, Any], at: float) -> dict[str, Any]:
    """{} for acks of what was written to us, and for those that say nothing yet (0: it waits in WAHA)."""
    ack, raw = said.get("ack"), raw_id(said)
    if type(ack) is not int or ack not in RECEIPTS or not raw or said.get("fromMe") is False:
        return {}
    error = said["error"] if isinstance(said.get("error"), dict) else {}
    facts: dict[str, Any] = {"id": raw, "ack": ack}
    if ack == ACK_ERROR:
        facts |= {"code": _text(error.get("code"), 40), "reason": _text(error.get("reason"), 100), "until": _number(error.get("until"))}
    return {"ack": facts}


def _receipt(facts: Mapping[str, Any], at: datetime) -> list[Event]:
    state = RECEIPTS[facts["ack"]]
    if state is not ReceiptState.FAILED:
        return [Receipt(state, at, message_id=facts["id"])]
    if facts["code"] == "463" or facts["reason"] == "account_restricted":
        detail = f"WhatsApp does not let this account start new chats{until_when(facts['until'])}."
        receipt = Receipt(state, at, message_id=facts["id"], code=ErrorCode.DISCONNECTED, detail=detail)
        return [receipt, StateReport(SessionCheck(SessionState.RESTRICTED, detail, moment_of(facts["until"])))]
    said = " ".join(filter(None, (facts["code"], facts["reason"])))
    detail = http.scrub(f"WhatsApp refused the message (ack -1){': ' if said else ''}{said}", [])
    return [Receipt(state, at, message_id=facts["id"], code=ErrorCode.FATAL, detail=detail)]


def _message(said: Mapping[str, Any], at: float) -> dict[str, Any]:
    """{} for what we wrote ourselves, for statuses and channels, and where nobody is named. In a group the participant is who wrote."""
    chat = said.get("from")
    in_group = isinstance(chat, str) and chat.endswith("@g.us")
    sender = person(said.get("participant") or said.get("author")) if in_group else person(chat)
    if not sender or said.get("fromMe") is True:
        return {}
    sent_at = _number(said.get("timestamp"))
    facts = {
        "sender": sender,
        "at": at if sent_at is None else sent_at,
        "text": _text(said.get("body"), 65_536),
        "message_id": raw_id(said),
        "name": _name(said.get("_data")),
        "message_type": _type_of(said),
    }
    return {"message": facts}


def _type_of(said: Mapping[str, Any]) -> str:
    if said.get("location"):
        return "LOCATION"
    if said.get("vCards"):
        return "CONTACT"
    kind = media_kind(said)
    return str(kind) if kind else ("MEDIA" if said.get("hasMedia") is True else "TEXT")


def _name(data: Any) -> str:
    """Only in the engine's raw message, which is no part of the published API: as WEBJS, NOWEB and GOWS were seen to write it."""
    if not isinstance(data, dict):
        return ""
    info = data["Info"] if isinstance(data.get("Info"), dict) else {}
    return _text(data.get("notifyName") or data.get("pushName") or info.get("PushName"), 200)


def _status(said: Mapping[str, Any], at: float) -> dict[str, Any]:
    status = _text(said.get("status"), 40)
    return {"status": status} if status else {}


def _text(value: Any, most: int) -> str:
    """What PostgreSQL can store: no NUL and no half of a pair of surrogates, both of which JSON can carry."""
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:most]


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < 1e15 else None  # neither nan nor inf


def _moment(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError):
        raise ValueError("not a time") from None

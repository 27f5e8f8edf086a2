"""What the stand-in answers to messages, and to what goes before them: seen, typing."""

import base64
import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sessions_app.sandbox.answers import (
    Drop,
    Reply,
    Request,
    engine_failure,
    malformed,
    nest,
    not_found,
    not_working,
    session_is,
    unauthorized,
    unprocessable,
)
from sessions_app.sandbox.faults import ACCEPTING, Fault
from sessions_app.sandbox.state import Accepted, Media

if TYPE_CHECKING:
    from sessions_app.sandbox.server import Sandbox

TAKES_CLIENT_ID = ("NOWEB", "GOWS")
_Fields = dict[str, type]
_WORDS = {str: "a string", bool: "a boolean", dict: "an object"}
_WHERE: _Fields = {"session": str, "chatId": str}
_TEXT: _Fields = _WHERE | {"text": str}
_TEXT_MAY_HAVE: _Fields = {"id": str, "reply_to": str, "linkPreview": bool, "linkPreviewHighQuality": bool}
# path -> type, required, optional
MEDIA: dict[str, tuple[str, _Fields, _Fields]] = {
    "sendImage": ("image", {}, {"caption": str, "reply_to": str}),
    "sendFile": ("file", {}, {"caption": str, "reply_to": str}),
    "sendVideo": ("video", {"convert": bool}, {"caption": str, "reply_to": str, "asNote": bool}),
    "sendVoice": ("voice", {"convert": bool}, {"reply_to": str}),
}
PRESENCE: dict[str, _Fields] = {
    "sendSeen": {"messageId": str, "messageIds": list, "participant": str},
    "startTyping": {},
    "stopTyping": {},
}
_CAPTION_OF_A_VIDEO = "Just watch at this!"  # what WAHA's schema puts there when nobody says otherwise


def send_text(sandbox: "Sandbox", request: Request) -> Reply:
    body = request.body
    problems = _problems(body, _TEXT, _TEXT_MAY_HAVE)
    if problems:
        return malformed(*problems)
    chosen = body.get("id") if sandbox.state.engine in TAKES_CLIENT_ID else None
    return _send(sandbox, body, body["text"], chosen, None)


def send_media(sandbox: "Sandbox", request: Request) -> Reply:
    body = request.body
    kind, required, optional = MEDIA[request.segments[1]]
    problems = _problems(body, _WHERE | {"file": dict} | required, optional) or _file_problems(body["file"])
    if problems:
        return malformed(*problems)
    file = body["file"]
    caption = body.get("caption", _CAPTION_OF_A_VIDEO if kind == "video" else "") or ""
    media = Media(kind, file["mimetype"], file.get("url") or "", file.get("filename") or "", caption, body.get("convert", False))
    return _send(sandbox, body, caption, None, media)


def note_presence(sandbox: "Sandbox", request: Request) -> Reply:
    act, body = request.segments[1], request.body
    problems = _problems(body, _WHERE, PRESENCE[act])
    if problems:
        return malformed(*problems)
    fault = sandbox.faults.take("presence", body["session"], body["chatId"])
    if fault is not None:
        return failure_of_a_question(fault, body["session"], body)
    refusal = not_working(sandbox, body["session"])
    if refusal is None:
        sandbox.state.note_presence(act, body["session"], body["chatId"])
    return refusal or Reply(201, {"result": True})


def _send(sandbox: "Sandbox", body: dict[str, Any], text: str, chosen: str | None, media: Media | None) -> Reply:
    session, chat = body["session"], body["chatId"]
    fault = sandbox.faults.take("send", session, chat)
    if fault is not None and fault.kind not in ACCEPTING:
        return failure(fault, session, body)
    refusal = not_working(sandbox, session)
    if refusal is not None:
        return refusal
    engine = sandbox.state.engine
    held_back = sandbox.accounts.restricted(session) and not sandbox.state.chat(session, chat)
    if held_back and engine != "NOWEB":  # which finds out later, and says so with an ack
        return engine_failure("2 UNKNOWN: server returned error 463", body)
    message = sandbox.state.accept(session, chat, text, chosen, media)
    sandbox.events.sent(message, restricted=held_back)
    if fault is not None:
        return _failure_after(fault, message, body, engine)
    return Reply(201, _sent(message, engine))


def _problems(body: Any, required: _Fields, optional: _Fields) -> list[str]:
    if not isinstance(body, dict):
        return ["the body must be an object"]
    problems = [f"{name} must be {_WORDS[kind]}" for name, kind in required.items() if not isinstance(body.get(name), kind)]
    problems += [f"{name} is of the wrong type" for name, kind in optional.items() if not isinstance(body.get(name), (kind, type(None)))]
    return problems + [f"property {name} should not exist" for name in body if name not in required and name not in optional]


def _file_problems(file: dict[str, Any]) -> list[str]:
    """By address or within the request, and one of the two."""
    problems = _problems(file, {"mimetype": str}, {"filename": str, "url": str, "data": str})
    if problems:
        return [f"file.{problem}" for problem in problems]
    url, data = file.get("url"), file.get("data")
    if bool(url) == bool(data):
        return ["file must have either url or data"]
    if url and not url.startswith(("http://", "https://")):
        return ["file.url must be a URL address"]
    try:
        base64.b64decode(data or "", validate=True)
    except binascii.Error:
        return ["file.data must be base64 encoded"]
    return []


def _sent(message: Accepted, engine: str) -> dict[str, Any]:
    """Each engine's own shape of a sent message: they differ in where the id is."""
    media = message.media
    if engine == "NOWEB":
        key = {"remoteJid": message.chat_id.replace("@c.us", "@s.whatsapp.net"), "fromMe": True, "id": message.raw_id}
        content: dict[str, Any] = {"extendedTextMessage": {"text": message.text}}
        if media is not None:
            name = {"file": "document", "voice": "audio"}.get(media.type, media.type)
            content = {f"{name}Message": {"mimetype": media.mimetype, "caption": media.caption}}
        return {"key": key, "message": content, "messageTimestamp": str(int(message.time)), "status": "PENDING"}
    if engine == "GOWS":
        return {"id": message.id, "_data": {}}
    whole = {"fromMe": True, "remote": message.chat_id, "id": message.raw_id, "_serialized": message.id}
    shown = {"_data": {"id": whole}, "id": whole, "ack": 0, "body": message.text, "timestamp": int(message.time), "fromMe": True}
    return shown if media is None else {**shown, "hasMedia": True}


# --- faults


def failure(fault: Fault, session: str, body: Any) -> Reply:
    """A fault before anything was accepted."""
    plain: dict[str, Callable[[], Reply]] = {
        "400": lambda: malformed("text must be a string"),
        "401": unauthorized,
        "403": lambda: nest(403, "Forbidden resource", "Forbidden"),
        "404": lambda: not_found(f"We didn't find a session with name '{session}'."),
        "422-session": lambda: session_is(session, "SCAN_QR_CODE", "WORKING"),
        "422-engine": lambda: unprocessable("The method is not implemented by the engine."),
        "429": lambda: nest(429, "ThrottlerException: Too Many Requests", "Too Many Requests"),
        "500": lambda: engine_failure("Evaluation failed: detached Frame", body),
        "500-463": lambda: engine_failure("2 UNKNOWN: server returned error 463", body),
        "500-no-lid": lambda: engine_failure(f"2 UNKNOWN: no LID found for {session} from server", body),
        "500-rate-overlimit": lambda: engine_failure("rate-overlimit", body),
        "drop-before-accept": lambda: Reply(0, drop=Drop.RESET),
        "timeout-before-accept": lambda: Reply(0, delay=fault.seconds, drop=Drop.CLOSE),
        "html-200": lambda: Reply(200, html="<!doctype html><title>Log in</title>"),
        "redirect": lambda: Reply(302, headers={"Location": "/login"}),
    }
    if fault.kind == "429-retry-after":
        wait = fault.retry_after if fault.retry_after is not None else str(int(fault.seconds))
        return Reply(429, plain["429"]().body, headers={"Retry-After": wait})
    if fault.kind in ("502", "503", "504"):
        return Reply(int(fault.kind), html=f"<html><h1>{fault.kind}</h1></html>")
    return plain[fault.kind]()


def failure_of_a_question(fault: Fault, session: str, body: Any = None) -> Reply:
    """Where nothing can be accepted: what would happen after that is no answer here."""
    return failure(fault, session, body) if fault.kind not in ACCEPTING else Reply(0, delay=fault.seconds, drop=Drop.CLOSE)


def _failure_after(fault: Fault, message: Accepted, body: Any, engine: str) -> Reply:
    """A fault after the message was accepted: the receiver has it, whatever the caller hears."""
    if fault.kind == "500-after-accept":
        return engine_failure("Evaluation failed: TypeError: Cannot read properties of undefined (reading 'markedUnread')", body)
    if fault.kind == "empty-201":
        return Reply(201)
    if fault.kind == "slow":
        return Reply(201, _sent(message, engine), delay=fault.seconds)
    if fault.kind == "timeout-after-accept":
        return Reply(0, delay=fault.seconds, drop=Drop.CLOSE)
    return Reply(0, drop=Drop.RESET)

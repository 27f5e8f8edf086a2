"""What the stand-in answers. The shapes are those of WAHA 2026.7.1, as far as Paceline reads them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from sessions_app.sandbox.faults import ACCEPTING, BadFault, Fault
from sessions_app.sandbox.state import STATUSES, Accepted, new_raw_id

if TYPE_CHECKING:
    from sessions_app.sandbox.server import Sandbox

TAKES_CLIENT_ID = ("NOWEB", "GOWS")


class Drop(Enum):
    CLOSE = 1  # an orderly end without an answer
    RESET = 2


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any = None  # JSON; None is an empty body
    headers: Mapping[str, str] = field(default_factory=dict)
    html: str = ""
    delay: float = 0.0
    drop: Drop | None = None

    @property
    def content_type(self) -> str:
        return "text/html; charset=utf-8" if self.html else "application/json; charset=utf-8"

    def content(self) -> bytes:
        if self.html:
            return self.html.encode()
        return b"" if self.body is None else json.dumps(self.body).encode()


def _nest(status: int, message: Any, error: str) -> Reply:
    return Reply(status, {"statusCode": status, "message": message, "error": error})


def _not_found(message: str) -> Reply:
    return _nest(404, message, "Not Found")


def _engine_failure(words: str, request: Any = None) -> Reply:
    """WAHA's filter of exceptions echoes the request, the text and the recipient in it: so does this."""
    exception = {"message": words, "name": "Error"}
    return Reply(500, {"statusCode": 500, "exception": exception, "request": {"path": "/api/sendText", "method": "POST", "body": request}})


def _session_is(session: str, status: str) -> Reply:
    words = "Session status is not as expected. Try again later or restart the session"
    return Reply(422, {"error": words, "session": session, "status": status, "expected": ["WORKING"]})


def answer(sandbox: "Sandbox", method: str, segments: tuple[str, ...], query: Mapping[str, str], body: Any, api_key: str) -> Reply:
    if segments[0] == "_sandbox":
        return _control(sandbox, method, segments[1:], query, body)
    if sandbox.api_key and api_key != sandbox.api_key:
        return Reply(401, {"message": "Unauthorized", "statusCode": 401})
    match (method, *segments):
        case ("GET", "ping"):
            return Reply(200, {"message": "pong"})
        case ("GET", "api", "server", "version") | ("GET", "api", "version"):
            version = {"version": "2026.7.1", "engine": sandbox.state.engine, "tier": "SANDBOX", "browser": "", "platform": "paceline"}
            return Reply(200, {**version, "worker": {"id": None}})
        case ("POST", "api", "sendText"):
            return _send_text(sandbox, body)
        case ("GET", "api", "contacts", "check-exists"):
            return _check_exists(sandbox, query)
        case (_, "api", "sessions", *rest):
            return _sessions(sandbox, method, rest, query, body)
        case ("GET", "api", session, "new-message-id"):
            return _working(sandbox, session) or Reply(200, {"id": new_raw_id()})
        case ("GET", "api", session, "chats", chat, "messages", *rest):
            return _look_up(sandbox, session, chat, rest, query)
    return _not_found(f"Cannot {method} /{'/'.join(segments)}")


def _working(sandbox: "Sandbox", session: str) -> Reply | None:
    """None when it works. As in WAHA, a session that is stopped is not found."""
    status = sandbox.state.status(session)
    if status in (None, "STOPPED"):
        return _not_found(f"We didn't find a session with name '{session}'. Please start it first.")
    return None if status == "WORKING" else _session_is(session, str(status))


# --- sending


def _send_text(sandbox: "Sandbox", body: Any) -> Reply:
    problems = _problems(body)
    if problems:
        return _nest(400, problems, "Bad Request")
    session, chat = body["session"], body["chatId"]
    fault = sandbox.faults.take("send", session, chat)
    if fault is not None and fault.kind not in ACCEPTING:
        return _failure(fault, session, body)
    refusal = _working(sandbox, session)
    if refusal is not None:
        return refusal
    chosen = body.get("id") if sandbox.state.engine in TAKES_CLIENT_ID else None
    message = sandbox.state.accept(session, chat, body["text"], chosen)
    if fault is not None:
        return _failure_after(fault, message, body, sandbox.state.engine)
    return Reply(201, _sent(message, sandbox.state.engine))


def _problems(body: Any) -> list[str]:
    if not isinstance(body, dict):
        return ["the body must be an object"]
    kinds: dict[str, type] = {"session": str, "chatId": str, "text": str}
    optional: dict[str, type] = {"id": str, "reply_to": str, "linkPreview": bool, "linkPreviewHighQuality": bool}
    problems = [f"{name} must be a string" for name, kind in kinds.items() if not isinstance(body.get(name), kind)]
    problems += [f"{name} is of the wrong type" for name, kind in optional.items() if not isinstance(body.get(name), (kind, type(None)))]
    return problems + [f"property {name} should not exist" for name in body if name not in kinds | optional]


def _sent(message: Accepted, engine: str) -> dict[str, Any]:
    """Each engine's own shape of a sent message: they differ in where the id is."""
    if engine == "NOWEB":
        key = {"remoteJid": message.chat_id.replace("@c.us", "@s.whatsapp.net"), "fromMe": True, "id": message.raw_id}
        content = {"extendedTextMessage": {"text": message.text}}
        return {"key": key, "message": content, "messageTimestamp": str(int(message.time)), "status": "PENDING"}
    if engine == "GOWS":
        return {"id": message.id, "_data": {}}
    whole = {"fromMe": True, "remote": message.chat_id, "id": message.raw_id, "_serialized": message.id}
    return {"_data": {"id": whole}, "id": whole, "ack": 0, "body": message.text, "timestamp": int(message.time), "fromMe": True}


def _failure(fault: Fault, session: str, body: Any) -> Reply:
    """A fault before anything was accepted."""
    plain: dict[str, Callable[[], Reply]] = {
        "400": lambda: _nest(400, ["text must be a string"], "Bad Request"),
        "401": lambda: Reply(401, {"message": "Unauthorized", "statusCode": 401}),
        "403": lambda: _nest(403, "Forbidden resource", "Forbidden"),
        "404": lambda: _not_found(f"We didn't find a session with name '{session}'."),
        "422-session": lambda: _session_is(session, "SCAN_QR_CODE"),
        "422-engine": lambda: _nest(422, "The method is not implemented by the engine.", "Unprocessable Entity"),
        "429": lambda: _nest(429, "ThrottlerException: Too Many Requests", "Too Many Requests"),
        "500": lambda: _engine_failure("Evaluation failed: detached Frame", body),
        "500-463": lambda: _engine_failure("2 UNKNOWN: server returned error 463", body),
        "500-no-lid": lambda: _engine_failure(f"2 UNKNOWN: no LID found for {session} from server", body),
        "500-rate-overlimit": lambda: _engine_failure("rate-overlimit", body),
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


def _failure_after(fault: Fault, message: Accepted, body: Any, engine: str) -> Reply:
    """A fault after the message was accepted: the receiver has it, whatever the caller hears."""
    if fault.kind == "500-after-accept":
        return _engine_failure("Evaluation failed: TypeError: Cannot read properties of undefined (reading 'markedUnread')", body)
    if fault.kind == "empty-201":
        return Reply(201)
    if fault.kind == "slow":
        return Reply(201, _sent(message, engine), delay=fault.seconds)
    if fault.kind == "timeout-after-accept":
        return Reply(0, delay=fault.seconds, drop=Drop.CLOSE)
    return Reply(0, drop=Drop.RESET)


# --- asking


def _check_exists(sandbox: "Sandbox", query: Mapping[str, str]) -> Reply:
    """Every number exists but those that end in 0000."""
    refusal = _working(sandbox, query.get("session", "default"))
    if refusal is not None:
        return refusal
    digits = "".join(character for character in query.get("phone", "").partition("@")[0] if character.isdigit())
    if not digits:
        return _nest(400, ["phone should not be empty"], "Bad Request")
    if digits.endswith("0000"):
        return Reply(200, {"numberExists": False})
    return Reply(200, {"numberExists": True, "chatId": f"{digits}@c.us"})


def _look_up(sandbox: "Sandbox", session: str, chat: str, rest: list[str], query: Mapping[str, str]) -> Reply:
    fault = sandbox.faults.take("lookup", session, chat)
    if fault is not None:
        return _failure(fault, session, None) if fault.kind not in ACCEPTING else Reply(0, delay=fault.seconds, drop=Drop.CLOSE)
    refusal = _working(sandbox, session)
    if refusal is not None:
        return refusal
    if rest:
        raw = rest[0].split("_")[2] if rest[0].count("_") >= 2 else rest[0]
        found = sandbox.state.find(session, raw)
        if found is None or chat not in ("all", found.chat_id):
            return _not_found("Message not found")
        return Reply(200, found.as_message())
    try:
        since, until = float(query.get("filter.timestamp.gte", "-inf")), float(query.get("filter.timestamp.lte", "inf"))
        limit, offset = int(query["limit"]), int(query.get("offset", "0"))
    except (KeyError, ValueError):
        return _nest(400, ["limit must be a number conforming to the specified constraints"], "Bad Request")
    if query.get("filter.fromMe") == "false":
        return Reply(200, [])
    inside = [one.as_message() for one in sandbox.state.chat(session, chat) if since <= int(one.time) <= until]
    return Reply(200, inside[offset : offset + limit])


# --- sessions


def _session_info(sandbox: "Sandbox", name: str, status: str) -> dict[str, Any]:
    me = {"id": "10000000000@c.us", "pushName": name} if status == "WORKING" else None
    engine = {"engine": sandbox.state.engine}
    return {"name": name, "status": status, "config": {}, "me": me, "engine": engine, "presence": None, "timestamps": {"activity": None}}


def _sessions(sandbox: "Sandbox", method: str, rest: list[str], query: Mapping[str, str], body: Any) -> Reply:
    state = sandbox.state
    match (method, *rest):
        case ("GET",):
            known = state.sessions().items()
            shown = [(name, status) for name, status in known if query.get("all") == "true" or status != "STOPPED"]
            return Reply(200, [_session_info(sandbox, name, status) for name, status in shown])
        case ("POST",):
            name = (body.get("name") if isinstance(body, dict) else None) or "default"
            if name in state.sessions():
                return _nest(422, f"Session '{name}' already exists. Use PUT to update it.", "Unprocessable Entity")
            state.set_status(name, "WORKING" if not isinstance(body, dict) or body.get("start", True) else "STOPPED")
            return Reply(201, _session_info(sandbox, name, str(state.status(name))))
        case ("GET", name):
            fault = sandbox.faults.take("session", name)
            if fault is not None:
                return _failure(fault, name, None) if fault.kind not in ACCEPTING else Reply(0, delay=fault.seconds, drop=Drop.CLOSE)
            status = state.status(name)
            return _not_found("Session not found") if status is None else Reply(200, _session_info(sandbox, name, status))
        case ("POST", name, "start" | "stop" | "restart" | "logout" as verb):
            if state.status(name) is None:
                return _not_found("Session not found")
            state.set_status(name, {"start": "WORKING", "restart": "WORKING", "stop": "STOPPED", "logout": "SCAN_QR_CODE"}[verb])
            return Reply(201, _session_info(sandbox, name, str(state.status(name))))
    return _not_found(f"Cannot {method} /api/sessions/{'/'.join(rest)}")


# --- control


def _control(sandbox: "Sandbox", method: str, rest: tuple[str, ...], query: Mapping[str, str], body: Any) -> Reply:
    match (method, *rest):
        case ("GET", "messages"):
            try:
                since = float(query["since"]) if "since" in query else None
            except ValueError:
                return _nest(400, "since is a moment in unix seconds.", "Bad Request")
            return Reply(200, sandbox.messages(session=query.get("session"), since=since))
        case ("DELETE", "messages"):
            sandbox.state.clear()
            return Reply(200, {})
        case ("GET", "totals"):
            return Reply(200, sandbox.state.totals())
        case ("GET", "faults"):
            return Reply(200, sandbox.faults.listed())
        case ("DELETE", "faults"):
            sandbox.faults.clear()
            return Reply(200, {})
        case ("POST", "faults"):
            return _script(sandbox, body)
        case ("POST", "sessions", name):
            status = body.get("status") if isinstance(body, dict) else None
            if status not in STATUSES:
                return _nest(400, f"status must be one of {', '.join(STATUSES)}.", "Bad Request")
            sandbox.set_session(name, status)
            return Reply(200, {"name": name, "status": status})
    return _not_found(f"Cannot {method} /_sandbox/{'/'.join(rest)}")


def _script(sandbox: "Sandbox", body: Any) -> Reply:
    entries = body if isinstance(body, list) else [body]
    try:
        if not all(isinstance(entry, dict) for entry in entries):
            raise BadFault('A fault is an object such as {"kind": "429", "count": 2}.')
        sandbox.script(*entries)
    except BadFault as error:
        return _nest(400, str(error), "Bad Request")
    return Reply(201, sandbox.faults.listed())

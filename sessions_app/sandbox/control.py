"""What no WAHA answers: /_sandbox, where a test or a person looks at the stand-in and tells it what to do."""

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sessions_app.sandbox.accounts import STATUSES
from sessions_app.sandbox.answers import Reply, Request, nest, no_route, not_found, unprocessable
from sessions_app.sandbox.behaviour import BadBehaviour
from sessions_app.sandbox.faults import BadFault
from sessions_app.sandbox.hooks import BadHook

if TYPE_CHECKING:
    from sessions_app.sandbox.server import Sandbox

_CHAT = re.compile(r"[0-9-]{3,40}@(c\.us|g\.us|lid)")


def control(sandbox: "Sandbox", rest: tuple[str, ...], request: Request) -> Reply:
    match (request.method, *rest):
        case ("GET", "messages"):
            try:
                since = float(request.query["since"]) if "since" in request.query else None
            except ValueError:
                return _wrong("since is a moment in unix seconds.")
            return Reply(200, sandbox.messages(session=request.query.get("session"), since=since))
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
            return _script(sandbox, request.body)
        case (_, "sessions", name, *what):
            return _session(sandbox, name, tuple(what), request)
        case ("GET", "state", *what):
            return _state(sandbox, tuple(what), request)
        case ("POST", "replies"):
            return _reply(sandbox, request)
        case (_, "webhooks" | "behaviour"):
            return _settings(sandbox, rest[0], request)
    return no_route(request)


def _wrong(message: str) -> Reply:
    return nest(400, message, "Bad Request")


def _script(sandbox: "Sandbox", body: Any) -> Reply:
    entries = body if isinstance(body, list) else [body]
    try:
        if not all(isinstance(entry, dict) for entry in entries):
            raise BadFault('A fault is an object such as {"kind": "429", "count": 2}.')
        sandbox.script(*entries)
    except BadFault as error:
        return _wrong(str(error))
    return Reply(201, sandbox.faults.listed())


def _session(sandbox: "Sandbox", name: str, what: tuple[str, ...], request: Request) -> Reply:
    match (request.method, *what):
        case ("POST",):
            status = request.field("status")
            if status not in STATUSES:
                return _wrong(f"status must be one of {', '.join(STATUSES)}.")
            sandbox.set_session(name, status)
        case ("POST", "scan"):
            if sandbox.accounts.get(name) is None:
                return not_found("Session not found")
            if not sandbox.accounts.scan(name):
                return unprocessable(f"Session '{name}' shows no QR code: start it or log it out first.")
        case ("POST", "restriction"):
            seconds = request.field("seconds")
            if not isinstance(seconds, (int, float)) or not 0 <= seconds <= 366 * 86_400:
                return _wrong("seconds is how long the account may start no new chats; 0 ends it.")
            if not sandbox.accounts.restrict(name, sandbox.accounts.clock() + seconds if seconds else 0.0):
                return not_found("Session not found")
        case _:
            return no_route(request)
    return Reply(200, {"name": name, "status": sandbox.accounts.status(name)})


def _state(sandbox: "Sandbox", what: tuple[str, ...], request: Request) -> Reply:
    match what:
        case ():
            now = sandbox.accounts.clock()
            sessions = [
                {
                    "name": one.name,
                    "status": one.status,
                    "paired": one.paired,
                    "restricted": one.restricted_until > now,
                    "webhooks": [_seen(hook) for hook in one.config.get("webhooks") or ()],
                }
                for one in sandbox.accounts.all()
            ]
            return Reply(200, {"messages": sandbox.state.totals(), "sessions": sessions, "webhooks": sandbox.events.totals()})
        case ("webhooks",):
            return Reply(200, sandbox.events.deliveries())
        case ("presence",):
            return Reply(200, sandbox.state.presence())
    return no_route(request)


def _seen(hook: Mapping[str, Any]) -> dict[str, Any]:
    """Without the key."""
    return {"url": hook["url"], "events": hook["events"], "signed": bool((hook.get("hmac") or {}).get("key"))}


def _reply(sandbox: "Sandbox", request: Request) -> Reply:
    session, sender, text = request.field("session"), request.field("from"), request.field("text")
    participant = request.field("participant")
    if not isinstance(session, str) or not isinstance(text, str):
        return _wrong('A reply is {"session": ..., "from": "12025550101@c.us", "text": ...}, in a group with a participant.')
    if not all(isinstance(who, str) and _CHAT.fullmatch(who) for who in ([sender] if participant is None else [sender, participant])):
        return _wrong("from, and a participant, is a chat such as 12025550101@c.us.")
    if sandbox.accounts.status(session) is None:
        return not_found("Session not found")
    if not any(hook.wants("message") for hook in sandbox.events.listening(session)):
        return unprocessable(f"Session '{session}' has no webhook for the event message: nobody would hear it.")
    return Reply(201, {"id": sandbox.events.reply(session, sender, text, participant), "time": round(time.time(), 3)})


def _settings(sandbox: "Sandbox", which: str, request: Request) -> Reply:
    events = sandbox.events
    try:
        if request.method == "POST" and which == "webhooks":
            sandbox.hear(request.body if isinstance(request.body, list) else [request.body])
        elif request.method == "POST":
            events.behaviour = events.behaviour.changed(request.body)
        elif request.method == "DELETE" and which == "webhooks":
            sandbox.hear([])
        elif request.method != "GET":
            return no_route(request)
    except (BadHook, BadBehaviour) as error:
        return _wrong(str(error))
    if which == "behaviour":
        return Reply(200, vars(events.behaviour))
    return Reply(200, [{"url": hook.url, "events": sorted(hook.events), "signed": bool(hook.key)} for hook in events.everywhere])

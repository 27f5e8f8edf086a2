"""What the stand-in answers to questions: who has a number, what was sent, whom it knows."""

from typing import TYPE_CHECKING, Any

from sessions_app.sandbox.answers import Reply, Request, malformed, no_route, not_found, not_working, page
from sessions_app.sandbox.people import chat_of, contacts, groups, lid_of, phone_of
from sessions_app.sandbox.sending import failure_of_a_question

if TYPE_CHECKING:
    from sessions_app.sandbox.server import Sandbox

NOT_A_PAGE = "limit must be a number conforming to the specified constraints"


def check_exists(sandbox: "Sandbox", request: Request) -> Reply:
    session = request.query.get("session", "default")
    digits = _digits(request.query.get("phone", ""))
    fault = sandbox.faults.take("resolve", session, f"{digits}@c.us")
    if fault is not None:
        return failure_of_a_question(fault, session)
    refusal = not_working(sandbox, session)
    if refusal is not None:
        return refusal
    if not digits:
        return malformed("phone should not be empty")
    chat = chat_of(digits)
    return Reply(200, {"numberExists": False} if chat is None else {"numberExists": True, "chatId": chat})


def lids(sandbox: "Sandbox", session: str, rest: tuple[str, ...], request: Request) -> Reply:
    refusal = not_working(sandbox, session)
    if refusal is not None:
        return refusal
    match rest:
        case ("pn", phone):
            lid = lid_of(_digits(phone))
            return Reply(200, {"lid": lid, "pn": chat_of(_digits(phone)) if lid else None})
        case (lid,):
            whole = lid if "@" in lid else f"{lid}@lid"
            return Reply(200, {"lid": whole, "pn": phone_of(whole)})
    return no_route(request)


def list_groups(sandbox: "Sandbox", session: str, request: Request) -> Reply:
    found = groups(sandbox.state.engine, with_participants=request.query.get("exclude") != "participants")
    return _listed(sandbox, session, found, request)


def list_contacts(sandbox: "Sandbox", request: Request) -> Reply:
    return _listed(sandbox, request.query.get("session", "default"), contacts(), request)


def _listed(sandbox: "Sandbox", session: str, found: list[dict[str, Any]], request: Request) -> Reply:
    refusal = not_working(sandbox, session)
    if refusal is not None:
        return refusal
    part = page(request, otherwise=len(found))
    return malformed(NOT_A_PAGE) if part is None else Reply(200, found[part])


def look_up(sandbox: "Sandbox", session: str, chat: str, rest: tuple[str, ...], request: Request) -> Reply:
    fault = sandbox.faults.take("lookup", session, chat)
    if fault is not None:
        return failure_of_a_question(fault, session)
    refusal = not_working(sandbox, session)
    if refusal is not None:
        return refusal
    state, query = sandbox.state, request.query
    if rest:
        raw = rest[0].split("_")[2] if rest[0].count("_") >= 2 else rest[0]
        found = state.find(session, raw)
        if found is None or chat not in ("all", found.chat_id):
            return not_found("Message not found")
        return Reply(200, found.as_message(state.ack(found)))
    part = page(request, otherwise=0) if "limit" in query else None
    try:
        since, until = float(query.get("filter.timestamp.gte", "-inf")), float(query.get("filter.timestamp.lte", "inf"))
    except ValueError:
        part = None
    if part is None:
        return malformed(NOT_A_PAGE)
    if query.get("filter.fromMe") == "false":
        return Reply(200, [])
    inside = [one for one in state.chat(session, chat) if since <= int(one.time) <= until]
    return Reply(200, [one.as_message(state.ack(one)) for one in inside[part]])


def _digits(phone: str) -> str:
    return "".join(character for character in phone.partition("@")[0] if character.isdecimal() and character.isascii())

"""Who answers what. The shapes are those of WAHA 2026.7.1, as far as Paceline reads them."""

from typing import TYPE_CHECKING

from sessions_app.sandbox.answers import Reply, Request, no_route, not_working, unauthorized
from sessions_app.sandbox.asking import check_exists, lids, list_contacts, list_groups, look_up
from sessions_app.sandbox.control import control
from sessions_app.sandbox.events import environment
from sessions_app.sandbox.sending import MEDIA, PRESENCE, note_presence, send_media, send_text
from sessions_app.sandbox.session_routes import pairing, sessions
from sessions_app.sandbox.state import new_raw_id

if TYPE_CHECKING:
    from sessions_app.sandbox.server import Sandbox


def answer(sandbox: "Sandbox", request: Request) -> Reply:
    segments = request.segments
    if segments[0] == "_sandbox":
        return control(sandbox, segments[1:], request)
    if sandbox.api_key and request.api_key != sandbox.api_key:
        return unauthorized()
    match (request.method, *segments):
        case ("POST", "api", "sendText"):
            return send_text(sandbox, request)
        case ("POST", "api", what) if what in MEDIA:
            return send_media(sandbox, request)
        case ("POST", "api", what) if what in PRESENCE:
            return note_presence(sandbox, request)
        case ("GET", "ping"):
            return Reply(200, {"message": "pong"})
        case ("GET", "api", "server", "version") | ("GET", "api", "version"):
            return Reply(200, environment(sandbox.state.engine))
        case ("GET", "api", "contacts", "check-exists"):
            return check_exists(sandbox, request)
        case ("GET", "api", "contacts", "all"):
            return list_contacts(sandbox, request)
        case (_, "api", "sessions", *rest):
            return sessions(sandbox, tuple(rest), request)
        case (_, "api", session, "auth", *rest):
            return pairing(sandbox, session, tuple(rest), request)
        case ("GET", "api", session, "new-message-id"):
            return not_working(sandbox, session) or Reply(200, {"id": new_raw_id()})
        case ("GET", "api", session, "chats", chat, "messages", *rest):
            return look_up(sandbox, session, chat, tuple(rest), request)
        case ("GET", "api", session, "groups"):
            return list_groups(sandbox, session, request)
        case ("GET", "api", session, "lids", *rest):
            return lids(sandbox, session, tuple(rest), request)
    return no_route(request)

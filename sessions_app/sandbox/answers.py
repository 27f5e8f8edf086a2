"""What comes in and what goes out, and the shapes of WAHA's refusals."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sessions_app.sandbox.server import Sandbox


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    body: Any = None
    api_key: str = ""
    accept: str = ""

    def field(self, name: str) -> Any:
        """Of a JSON object; None where the body is none."""
        return self.body.get(name) if isinstance(self.body, dict) else None


class Drop(Enum):
    CLOSE = 1  # an orderly end without an answer
    RESET = 2


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any = None  # JSON; None is an empty body
    headers: Mapping[str, str] = field(default_factory=dict)
    html: str = ""
    png: bytes = b""
    delay: float = 0.0
    drop: Drop | None = None

    @property
    def content_type(self) -> str:
        if self.png:
            return "image/png"
        return "text/html; charset=utf-8" if self.html else "application/json; charset=utf-8"

    def content(self) -> bytes:
        if self.png or self.html:
            return self.png or self.html.encode()
        return b"" if self.body is None else json.dumps(self.body).encode()


def nest(status: int, message: Any, error: str) -> Reply:
    return Reply(status, {"statusCode": status, "message": message, "error": error})


def malformed(*problems: str) -> Reply:
    return nest(400, list(problems), "Bad Request")


def unprocessable(message: str) -> Reply:
    return nest(422, message, "Unprocessable Entity")


def not_found(message: str) -> Reply:
    return nest(404, message, "Not Found")


def no_route(request: Request) -> Reply:
    return not_found(f"Cannot {request.method} /{'/'.join(request.segments)}")


def unauthorized() -> Reply:
    return Reply(401, {"message": "Unauthorized", "statusCode": 401})


def engine_failure(words: str, body: Any = None) -> Reply:
    """WAHA's filter of exceptions echoes the request, the text and the recipient in it: so does this."""
    exception = {"message": words, "name": "Error"}
    return Reply(500, {"statusCode": 500, "exception": exception, "request": {"path": "/api/sendText", "method": "POST", "body": body}})


def session_is(session: str, status: str, *expected: str) -> Reply:
    words = "Session status is not as expected. Try again later or restart the session"
    return Reply(422, {"error": words, "session": session, "status": status, "expected": list(expected)})


def not_working(sandbox: "Sandbox", session: str) -> Reply | None:
    """None when it works. As in WAHA, a session that is stopped is not found, and one that is starting is waited for."""
    status = sandbox.accounts.status(session)
    if status == "WORKING":
        return None
    if status == "STARTING":
        status = sandbox.accounts.status_after_start(session, sandbox.stopping)
    if status in (None, "STOPPED"):
        return not_found(f"We didn't find a session with name '{session}'. Please start it first.")
    return None if status == "WORKING" else session_is(session, str(status), "WORKING")


def page(request: Request, *, otherwise: int) -> slice | None:
    """Of `limit` and `offset`; None where they are no numbers."""
    try:
        limit, offset = int(request.query.get("limit", otherwise)), int(request.query.get("offset", 0))
    except ValueError:
        return None
    return slice(offset, offset + limit) if limit >= 0 and offset >= 0 else None

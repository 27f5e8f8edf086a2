"""What the stand-in answers about its sessions, and to whoever pairs one with a phone."""

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any

from sessions_app.sandbox import qr
from sessions_app.sandbox.accounts import QR_CODE_LIVES, Account
from sessions_app.sandbox.answers import Reply, Request, malformed, no_route, not_found, session_is, unprocessable
from sessions_app.sandbox.hooks import BadHook
from sessions_app.sandbox.sending import failure_of_a_question

if TYPE_CHECKING:
    from sessions_app.sandbox.server import Sandbox

_NAME = re.compile(r"[A-Za-z0-9_-]{1,54}")


def _shown(account: Account) -> dict[str, Any]:
    return {"name": account.name, "status": account.status, "config": account.config}


def _info(sandbox: "Sandbox", account: Account) -> dict[str, Any]:
    now = sandbox.accounts.clock()
    info = _shown(account) | {"me": account.me(now), "engine": {"engine": sandbox.state.engine}}
    info |= {"presence": None, "timestamps": {"activity": int(account.since * 1000)}}
    if sandbox.state.engine == "NOWEB" and account.restricted_until > now:
        lock = account.timelock()
        info["restriction"] = {"active": True, "until": lock["timeEnforcementEnds"], "enforcementType": lock["enforcementType"]}
    return info


def sessions(sandbox: "Sandbox", rest: tuple[str, ...], request: Request) -> Reply:
    accounts = sandbox.accounts
    match (request.method, *rest):
        case ("GET",):
            whole = request.query.get("all") == "true"
            return Reply(200, [_info(sandbox, one) for one in accounts.all() if whole or one.status != "STOPPED"])
        case ("POST",):
            return _create(sandbox, request)
        case ("GET", name):
            fault = sandbox.faults.take("session", name)
            if fault is not None:
                return failure_of_a_question(fault, name)
            account = accounts.get(name)
            return not_found("Session not found") if account is None else Reply(200, _info(sandbox, account))
        case ("GET", name, "me"):
            account = accounts.get(name)
            return not_found("Session not found") if account is None else Reply(200, account.me(accounts.clock()))
        case ("PUT", name):
            return _update(sandbox, name, request)
        case ("DELETE", name):
            accounts.delete(name)
            sandbox.events.configure(name, {})
            return Reply(200)
        case ("POST", name, "start" | "stop" | "restart" | "logout" as verb):
            if not accounts.act(name, verb):
                return not_found("Session not found")
            return _answered(sandbox, 201, name)
    return no_route(request)


def _answered(sandbox: "Sandbox", status: int, name: str) -> Reply:
    account = sandbox.accounts.get(name)
    return not_found("Session not found") if account is None else Reply(status, _shown(account))


def _create(sandbox: "Sandbox", request: Request) -> Reply:
    name, config = request.field("name") or "default", request.field("config") or {}
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return malformed("name must be letters, digits, - and _ only, at most 54")
    if not isinstance(config, dict):
        return malformed("config must be an object")
    if any(account.name == name for account in sandbox.accounts.all()):
        return _taken(name)
    try:
        sandbox.events.configure(name, config)
    except BadHook as error:
        return malformed(str(error))
    start = request.field("start")
    if not sandbox.accounts.create(name, start=start is None or bool(start), config=config):
        return _taken(name)
    return _answered(sandbox, 201, name)


def _taken(name: str) -> Reply:
    return unprocessable(f"Session '{name}' already exists. Use PUT to update it.")


def _update(sandbox: "Sandbox", name: str, request: Request) -> Reply:
    config = request.field("config") or {}
    if not isinstance(config, dict):
        return malformed("config must be an object")
    if sandbox.accounts.get(name) is None:
        return not_found("Session not found")
    try:
        sandbox.events.configure(name, config)
    except BadHook as error:
        return malformed(str(error))
    sandbox.accounts.configure(name, config)
    return _answered(sandbox, 200, name)


# --- pairing


def pairing(sandbox: "Sandbox", name: str, rest: tuple[str, ...], request: Request) -> Reply:
    account = sandbox.accounts.get(name)
    if account is None:
        return not_found("Session not found")
    match (request.method, *rest):
        case ("GET", "qr") | ("POST", "request-code") if account.status != "SCAN_QR_CODE":
            return session_is(name, account.status, "SCAN_QR_CODE")
        case ("GET", "qr"):
            sandbox.accounts.fetched(name)
            return _qr(sandbox, account, request)
        case ("POST", "request-code"):
            phone = request.field("phoneNumber")
            if not isinstance(phone, str) or not phone.strip():
                return malformed("phoneNumber must be a string")
            sandbox.accounts.fetched(name)
            letters = base64.b32encode(hashlib.sha256(f"{name} {phone} {account.since}".encode()).digest()).decode()
            return Reply(201, {"code": f"{letters[:4]}-{letters[4:8]}"})
    return no_route(request)


def _qr(sandbox: "Sandbox", account: Account, request: Request) -> Reply:
    value = qr.value(account.name, int((sandbox.accounts.clock() - account.since) // QR_CODE_LIVES))
    if request.query.get("format") == "raw":
        return Reply(200, {"value": value})
    picture = qr.picture(value)
    if "application/json" in request.accept:
        return Reply(200, {"mimetype": "image/png", "data": base64.b64encode(picture).decode()})
    return Reply(200, png=picture)

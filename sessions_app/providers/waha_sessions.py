"""WAHA's sessions, seen from outside: their state, pairing, webhook and chats."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from sessions_app.providers import http
from sessions_app.providers.base import Chat, Deadline, NotPossible, Pairing, SessionCheck, SessionState
from sessions_app.providers.waha_answers import STATES, json_object, person, restricted, vendor_words
from sessions_app.providers.waha_connection import BASE_URL, WahaConnection

VERBS = ("create", "start", "stop", "restart", "logout")
EVENTS = ["message", "message.ack", "message.ack.group", "session.status"]
RETRIES = {"policy": "exponential", "delaySeconds": 2, "attempts": 15}  # the last about nine hours after the first
PNG = b"\x89PNG\r\n\x1a\n"
SCAN = "Scan it with the phone: WhatsApp > Linked devices > Link a device."
TYPE = "Type it in on the phone: WhatsApp > Linked devices > Link a device > Link with phone number."
PAGE, PAGES_AT_MOST = 100, 10
_GROUP = re.compile(r"[0-9-]{3,40}@g\.us")
_CODE = re.compile(r"[A-Za-z0-9-]{4,20}")


class WahaSessions(WahaConnection):
    can_pair: ClassVar[bool] = True
    lists_chats: ClassVar[bool] = True

    # -- its state -------------------------------------------------------------------------------------------------------------

    def check_session(self, deadline: Deadline) -> SessionCheck:
        problem = self.misconfiguration()
        if problem:
            return SessionCheck(SessionState.DISCONNECTED, problem)
        try:
            response = http.get_json(self._url("sessions", self.waha_session), headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return SessionCheck(SessionState.DISCONNECTED, f"WAHA does not answer at {self.origin}: {error}")
        if response.status in (401, 403):
            return SessionCheck(SessionState.DISCONNECTED, f"WAHA refused the API key ({response.status}).")
        if response.status == 404:
            return SessionCheck(SessionState.DISCONNECTED, f'WAHA at {self.origin} has no session "{self.waha_session}".')
        answer = json_object(response)
        if response.status != 200 or not answer:
            detail = f"Not an answer of WAHA ({response.status}) from {self.origin}: {vendor_words(response)}"
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(detail, self._secrets()))
        return check_of(answer)

    def pair(self, deadline: Deadline, *, phone: str = "") -> Pairing:
        """Asks for the state first: WAHA makes a session that is not waiting to be paired wait some seconds for its refusal."""
        check = self.check_session(deadline)
        if check.state != SessionState.NEEDS_PAIRING:
            return Pairing(check)
        try:
            return self._code(check, phone, deadline) if phone else self._qr(check, deadline)
        except NotPossible as error:
            return Pairing(replace(check, detail=str(error)))

    def _qr(self, check: SessionCheck, deadline: Deadline) -> Pairing:
        segments = (self.waha_session, "auth", "qr")
        response = self._get(*segments, query={"format": "image"}, accept="image/png", deadline=deadline)
        if response.status == 422:  # it was paired, gave up or wants a passkey
            return Pairing(self.check_session(deadline))
        png = _png(response)
        if not png:
            raise self._why(response, "give a QR code")
        return Pairing(replace(check, detail=SCAN), qr_png=png)

    def _code(self, check: SessionCheck, phone: str, deadline: Deadline) -> Pairing:
        digits = re.sub(r"[^0-9]", "", phone)
        if not 7 <= len(digits) <= 15:
            raise NotPossible("Enter the number of the phone with its country code, such as +55 11 91234-5678.")
        response = self._post(self.waha_session, "auth", "request-code", body={"phoneNumber": digits}, deadline=deadline)
        code = json_object(response).get("code")
        if response.status not in (200, 201) or not isinstance(code, str) or not _CODE.fullmatch(code):
            raise self._why(response, "give a code", [digits])
        return Pairing(replace(check, detail=TYPE), code=code)

    def manage(self, verb: str, deadline: Deadline) -> SessionCheck:
        if verb not in VERBS:
            raise NotPossible(f"{self.label} has nothing to {verb}.")
        if verb == "create":
            body = {"name": self.waha_session, "start": True, "config": self._new_config()}
            response = self._post("sessions", body=body, deadline=deadline)
        else:
            response = self._post("sessions", self.waha_session, verb, body={}, deadline=deadline)
        if response.status == 422 and verb == "create":
            words = http.scrub(vendor_words(response), self._secrets())
            raise NotPossible(f"WAHA did not create the session (422): {words}. If it is there already, start it instead.")
        if response.status not in (200, 201):
            raise self._why(response, f"{verb} the session")
        answer = json_object(response)
        return check_of(answer) if str(answer.get("status")) in STATES else self.check_session(deadline)

    def _new_config(self) -> dict[str, Any]:
        """NOWEB keeps no messages unless told to, and then none can be looked up."""
        config: dict[str, Any] = {}
        if self.config.settings.get("engine") == "NOWEB":
            config["noweb"] = {"store": {"enabled": True, "fullSync": False}}
        callback = str(self.config.settings.get("callback_url") or "")
        return self._with_webhook(config, callback) if callback else config

    # -- its webhook -----------------------------------------------------------------------------------------------------------

    def set_webhook(self, url: str, deadline: Deadline) -> None:
        """Beside what else the session has; WAHA restarts a running session for it, so only when something differs."""
        self._with_webhook({}, url)  # says what is missing before anything is asked
        response = self._get("sessions", self.waha_session, deadline=deadline)
        answer = json_object(response)
        if response.status != 200 or "status" not in answer:
            raise self._why(response, "show the session")
        config = answer["config"] if isinstance(answer.get("config"), dict) else {}
        wanted = self._with_webhook(config, url)
        if wanted == config:
            return
        response = self._put("sessions", self.waha_session, body={"config": wanted}, deadline=deadline)
        if response.status not in (200, 201):
            raise self._why(response, "take the webhook")

    def _with_webhook(self, config: Mapping[str, Any], url: str) -> dict[str, Any]:
        if not self.webhook_secret:
            raise NotPossible("Enter a webhook secret in the session first: without one, nothing proves that a webhook comes from WAHA.")
        if not BASE_URL.fullmatch(url):
            raise NotPossible("The address of the webhook is malformed.")
        return with_webhook(config, url=url, secret=self.webhook_secret, tells_acks=self.config.settings.get("engine") != "WEBJS")

    # -- its chats -------------------------------------------------------------------------------------------------------------

    def list_chats(self, deadline: Deadline, *, groups: bool, search: str = "", offset: int = 0, limit: int = 50) -> list[Chat]:
        """Out of the first thousand: WAHA cannot search, so its pages are gone through here. Contacts without a number are left out."""
        found: dict[str, Chat] = {}
        before: list[dict[str, Any]] = []
        for page in range(PAGES_AT_MOST):
            entries = self._entries(groups, page * PAGE, deadline)
            chats = [chat for chat in map(read_group if groups else read_contact, entries) if chat is not None]
            found |= {chat.address: chat for chat in chats if _is_wanted(chat, search)}
            # A short page is the last; a long one, or the same once more, is from an engine that gives everything at once.
            if len(entries) != PAGE or entries == before or len(found) >= offset + limit:
                break
            before = entries
        return list(found.values())[offset : offset + limit]

    def _entries(self, groups: bool, offset: int, deadline: Deadline) -> list[dict[str, Any]]:
        query: dict[str, str | int] = {"limit": PAGE, "offset": offset, "sortBy": "id", "sortOrder": "asc"}
        if groups:
            response = self._get(self.waha_session, "groups", query={**query, "exclude": "participants"}, deadline=deadline)
        else:
            response = self._get("contacts", "all", query={**query, "session": self.waha_session}, deadline=deadline)
        entries = entries_of(response)
        if response.status != 200 or entries is None:
            raise self._why(response, "list the chats")
        return entries

    def resolve_sender(self, sender: str, deadline: Deadline) -> str:
        if not sender.endswith("@lid"):
            return person(sender)
        try:
            response = self._get(self.waha_session, "lids", sender, deadline=deadline)
        except NotPossible:
            return ""
        found = person(json_object(response).get("pn")) if response.status == 200 else ""
        return found if found.endswith("@c.us") else ""

    # -- the calls -------------------------------------------------------------------------------------------------------------

    def _get(self, *segments: str, deadline: Deadline, query: Mapping[str, str | int] | None = None, accept: str = "") -> http.Response:
        headers = {**self._headers(), **({"Accept": accept} if accept else {})}
        self._refuse_without_an_address()
        try:
            return http.get_json(self._url(*segments), query=query, headers=headers, deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            raise NotPossible(f"WAHA does not answer at {self.origin}: {error}.") from None

    def _post(self, *segments: str, body: Mapping[str, Any], deadline: Deadline) -> http.Response:
        return self._change(http.post_json, segments, body, deadline)

    def _put(self, *segments: str, body: Mapping[str, Any], deadline: Deadline) -> http.Response:
        return self._change(http.put_json, segments, body, deadline)

    def _change(self, call: Any, segments: tuple[str, ...], body: Mapping[str, Any], deadline: Deadline) -> http.Response:
        self._refuse_without_an_address()
        try:
            response: http.Response = call(self._url(*segments), body, headers=self._headers(), deadline=deadline)
        except http.NotSent as error:
            raise NotPossible(f"WAHA does not answer at {self.origin}: {error}.") from None
        except http.NoAnswer as error:
            raise NotPossible(f"WAHA's answer was lost: {error}. It may have done it all the same: check the connection.") from None
        return response

    def _refuse_without_an_address(self) -> None:
        problem = self.misconfiguration()
        if problem:
            raise NotPossible(problem)

    def _why(self, response: http.Response, what: str, hidden: list[str] | None = None) -> NotPossible:
        if response.status == 401:
            return NotPossible("WAHA refused the API key (401).")
        if response.status == 403:
            return NotPossible("The API key may not do this (403). Give it the actions control and setting in WAHA.")
        if response.status == 404:
            return NotPossible(f'WAHA at {self.origin} has no session "{self.waha_session}", or it does not run (404). Create or start it.')
        words = http.scrub(vendor_words(response), [*self._secrets(), *(hidden or [])])
        return NotPossible(f"WAHA did not {what} ({response.status}): {words}.")


def check_of(session: Mapping[str, Any]) -> SessionCheck:
    state, advice = STATES.get(str(session.get("status")), (SessionState.DISCONNECTED, "WAHA reports an unknown state."))
    if state == SessionState.CONNECTED and (until := restricted(session)):
        return SessionCheck(SessionState.RESTRICTED, f"WhatsApp does not let this account start new chats{until}.")
    return SessionCheck(state, advice)


def with_webhook(config: Mapping[str, Any], *, url: str, secret: str, tells_acks: bool) -> dict[str, Any]:
    """The config with our webhook in it: in the place of the one with the same path, which is ours from before, or after the others."""
    hooks = [hook for hook in config.get("webhooks") or () if isinstance(hook, dict)]
    old = [hook for hook in hooks if _path(hook.get("url")) == _path(url)]
    ours = {**(old[0] if old else {}), "url": url, "events": EVENTS, "hmac": {"key": secret}, "retries": RETRIES}
    kept = [ours if old and hook is old[0] else hook for hook in hooks if not any(hook is one for one in old[1:])]
    changed = {**config, "webhooks": kept if old else [*kept, ours]}
    if not tells_acks:  # WEBJS says nothing of deliveries unless told to, and a session that says nothing is taken for dead
        changed["webjs"] = {**(config.get("webjs") or {}), "tagsEventsOn": True}
    return changed


def _path(url: Any) -> str:
    """The whole address where it has no path to be known by."""
    try:
        path = urlsplit(str(url)).path
    except ValueError:
        return str(url)
    return path if path.strip("/") else str(url)


def _png(response: http.Response) -> bytes:
    """The picture itself, or in the JSON that a proxy which drops Accept makes WAHA answer with."""
    if response.status != 200:
        return b""
    data = json_object(response).get("data")
    try:
        body = base64.b64decode(data, validate=True) if isinstance(data, str) else response.body
    except binascii.Error:
        return b""
    return body if body.startswith(PNG) else b""


def entries_of(response: http.Response) -> list[dict[str, Any]] | None:
    """A list, or an object that is keyed by the chat's id; None when it is neither."""
    try:
        answer = response.json()
    except ValueError:
        return None
    if isinstance(answer, dict):
        entries = [{"id": key, **entry} for key, entry in answer.items() if isinstance(entry, dict)]
        return entries if entries or not answer else None
    return [entry for entry in answer if isinstance(entry, dict)] if isinstance(answer, list) else None


def read_group(entry: Mapping[str, Any]) -> Chat | None:
    """WEBJS has `groupMetadata` and an id in parts, NOWEB `subject` and `size`, GOWS names in capitals. None for what is no group."""
    address = _id_of(entry)
    if not _GROUP.fullmatch(address):
        return None
    metadata = entry["groupMetadata"] if isinstance(entry.get("groupMetadata"), dict) else {}
    size = next((one for one in (entry.get("size"), metadata.get("size")) if type(one) is int), None)
    lists = (entry.get("participants"), entry.get("Participants"), metadata.get("participants"))
    members = size if size is not None else next((len(one) for one in lists if isinstance(one, list) and one), None)
    return Chat(address, _name(entry, metadata) or address, is_group=True, members=members)


def read_contact(entry: Mapping[str, Any]) -> Chat | None:
    """None for groups, for the account itself, and for ids that hide a number: who is listed under both would be picked twice."""
    address = person(_id_of(entry))
    if not address.endswith("@c.us") or entry.get("isMe") is True or len(address) < len("12345@c.us"):
        return None
    return Chat(address, _name(entry) or f"+{address.partition('@')[0]}")


def _id_of(entry: Mapping[str, Any]) -> str:
    found = next((entry[name] for name in ("id", "JID", "jid", "Jid") if entry.get(name)), "")
    if isinstance(found, dict):
        found = found.get("_serialized") or f"{found.get('user')}@{found.get('server')}"
    return found if isinstance(found, str) else ""


_NAMES = ("name", "subject", "Name", "Subject", "pushname", "pushName", "PushName", "shortName", "notify", "verifiedName")


def _name(*entries: Mapping[str, Any]) -> str:
    names = (entry.get(name) for entry in entries for name in _NAMES)
    return next((" ".join(name.split())[:200] for name in names if isinstance(name, str) and name.strip()), "")


def _is_wanted(chat: Chat, search: str) -> bool:
    """By a part of the name, or of the number however it is written."""
    wanted = search.strip().casefold()
    digits = re.sub(r"[\s().+-]", "", wanted)
    return wanted in chat.name.casefold() or (digits.isdecimal() and digits in chat.address)

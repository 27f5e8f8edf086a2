"""WhatsApp through WAHA (waha.devlike.pro), an unofficial gateway: always at the pace of a human.

Written against WAHA 2026.7.1. What its answers mean stands in waha_answers.py.
"""

import re
import uuid
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import quote

from django import forms
from django.conf import settings

from sessions_app.providers import http
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Message,
    Presence,
    SendResult,
    SentMessage,
    SessionCheck,
    SessionState,
    Verification,
)
from sessions_app.providers.waha_answers import (
    BY_WEIGHT,
    STATES,
    Unreadable,
    client_id,
    is_the_text,
    json_object,
    plain,
    presence,
    raw_id,
    read_send,
    restricted,
    vendor_words,
)

ENGINES = ("WEBJS", "NOWEB", "GOWS", "WPP")
TAKES_CLIENT_ID = frozenset({"NOWEB", "GOWS"})  # since WAHA 2026.4.3
# Plain enough that no two parsers can read two different hosts out of it.
BASE_URL = re.compile(r"(?P<origin>https?://(?P<host>\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?)(/[\w.~-]+)*/?", re.ASCII)
_SESSION_NAME = re.compile(r"[A-Za-z0-9_-]{1,54}")
_CHAT = re.compile(r"[0-9-]{3,40}@(c\.us|g\.us|lid|newsletter)")
# How far before and after the claim a message found by its text may lie: clocks differ by seconds, and a call is over long before this.
SEARCH_BEFORE = timedelta(seconds=60)
SEARCH_AFTER = timedelta(seconds=600)
SEARCH_LIMIT = 100


def clean_base_url(value: str) -> str:
    """Without the slash at its end. Raises ValidationError."""
    value = value.strip().rstrip("/")
    if value and not BASE_URL.fullmatch(value):
        raise forms.ValidationError(
            "Enter the address of WAHA, such as http://waha:3000 or https://waha.example.org: no password, no query."
        )
    return value


class WahaSettings(forms.Form):
    base_url = forms.CharField(label="WAHA address", required=False, help_text="Empty: WAHA_API_URL of this instance.")
    session = forms.CharField(label="WAHA session", initial="default", help_text="The name the session has in WAHA.")
    engine = forms.ChoiceField(
        label="Engine",
        choices=[(engine, engine) for engine in ENGINES],
        initial="WEBJS",
        help_text="As WAHA runs it. NOWEB and GOWS take our own message ids, so a message whose outcome is unknown can be looked up.",
    )

    def clean_base_url(self) -> str:
        value = clean_base_url(self.cleaned_data["base_url"])
        if not value and not self.instance_base_url():
            raise forms.ValidationError("This instance has no WAHA_API_URL: enter the address of WAHA here.")
        return value

    def instance_base_url(self) -> str:
        return settings.WAHA_API_URL

    def clean_session(self) -> str:
        name = self.cleaned_data["session"]
        if not _SESSION_NAME.fullmatch(name):
            raise forms.ValidationError("A WAHA session name has letters, digits, - and _ only, at most 54.")
        return name


class WahaCredentials(forms.Form):
    api_key = forms.CharField(
        label="API key",
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Empty: WAHA_API_KEY of this instance, for its own WAHA_API_URL only. A key with the actions read and send is enough.",
    )

    def clean_api_key(self) -> str:
        key = self.cleaned_data["api_key"]
        if not re.fullmatch(r"[\x21-\x7e]*", key):
            raise forms.ValidationError("An API key has no blanks and no special characters. Paste it again.")
        return key


class WahaProvider(ChannelProvider):
    key = "waha"
    label = "WhatsApp (WAHA)"
    address_kind = "whatsapp"
    settings_form: ClassVar[type[forms.Form]] = WahaSettings
    credentials_form: ClassVar[type[forms.Form]] = WahaCredentials
    can_verify = True
    absence_is_proof = False  # WAHA keeps what it sent in a store that a crash or an off switch can empty

    api_prefix = ""

    @property
    def base_url(self) -> str:
        """ "" when none is set or the one that is set is not an address we would call."""
        url = (self.config.settings.get("base_url") or self.default_base_url()).rstrip("/")
        return url if BASE_URL.fullmatch(url) else ""

    def default_base_url(self) -> str:
        return settings.WAHA_API_URL

    @property
    def origin(self) -> str:
        match = BASE_URL.fullmatch(self.base_url)
        return match["origin"].lower() if match else ""

    @property
    def api_key(self) -> str:
        """The session's own. The instance's key goes to the instance's WAHA only: an address typed into a session must not collect it."""
        own = self.config.credentials.get("api_key", "")
        is_instances = self.base_url == settings.WAHA_API_URL.rstrip("/")
        return own or (settings.WAHA_API_KEY if is_instances else "")

    @property
    def waha_session(self) -> str:
        """ "" until somebody chose it: WAHA would take an account of its own for a call that names none."""
        return self.config.settings.get("session") or ""

    @property
    def takes_client_id(self) -> bool:
        return self.config.settings.get("engine") in TAKES_CLIENT_ID

    def misconfiguration(self) -> str:
        """Why no call can be made at all; "" when one can."""
        if not self.base_url:
            return "The address of WAHA is missing or malformed. Enter it in the session."
        return "" if self.waha_session else "The session in WAHA was not chosen yet. Open this session's page, fill in its fields and save."

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        hidden = self._hidden(address, message)
        refusal = self._refusal_before_the_call(address, message)
        if refusal is not None:
            return refusal
        body: dict[str, Any] = {
            "session": self.waha_session,
            "chatId": address,
            "text": plain(message.text),
            "linkPreview": message.link_preview,
            "linkPreviewHighQuality": message.link_preview_high_quality,
        }
        if self.takes_client_id:
            body["id"] = client_id(client_ref)
        try:
            response = http.post_json(self._url("sendText"), body, headers=self._headers(), deadline=deadline)
        except http.NotSent as error:
            if error.deadline_passed:
                return SendResult.unsent(str(error))
            return SendResult.refused(ErrorCode.TRANSIENT, http.scrub(f"WAHA cannot be reached: {error}", hidden))
        except http.NoAnswer as error:
            return SendResult.refused(ErrorCode.UNCONFIRMED, http.scrub(f"The answer was lost: {error}", hidden))
        return read_send(response, hidden)

    def _refusal_before_the_call(self, address: str, message: Message) -> SendResult | None:
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        problem = self.misconfiguration()
        if problem:
            return SendResult.refused(ErrorCode.MISCONFIGURED, problem)
        if not _CHAT.fullmatch(address):  # WAHA would take a bare number for a person and status@broadcast for everybody
            return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "Not a WhatsApp chat id.")
        if not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        return None

    def check_session(self, deadline: Deadline) -> SessionCheck:
        problem = self.misconfiguration()
        if problem:
            return SessionCheck(SessionState.DISCONNECTED, problem)
        try:
            response = http.get_json(self._url("sessions", self.waha_session), headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return SessionCheck(SessionState.DISCONNECTED, f"WAHA does not answer at {self.origin}: {error}")
        return self._read_session(response)

    def _read_session(self, response: http.Response) -> SessionCheck:
        if response.status in (401, 403):
            return SessionCheck(SessionState.DISCONNECTED, f"WAHA refused the API key ({response.status}).")
        if response.status == 404:
            return SessionCheck(SessionState.DISCONNECTED, f'WAHA at {self.origin} has no session "{self.waha_session}".')
        answer = json_object(response)
        if response.status != 200 or not answer:
            detail = f"Not an answer of WAHA ({response.status}) from {self.origin}: {vendor_words(response)}"
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(detail, [self.api_key]))
        state, advice = STATES.get(str(answer.get("status")), (SessionState.DISCONNECTED, "WAHA reports an unknown state."))
        if state == SessionState.CONNECTED and (until := restricted(answer)):
            return SessionCheck(SessionState.RESTRICTED, f"WhatsApp does not let this account start new chats{until}.")
        return SessionCheck(state, advice)

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        """By our own id where the engine takes one, or the id WAHA answered; else by chat, text and time.

        A message WhatsApp's server has not acknowledged (ack 0) is UNKNOWN and not PRESENT: it stands in WAHA's outbox, so it must not be
        sent again, but it has not arrived either. Asked a little later, it will say one or the other. Ack -1 is WhatsApp's refusal: ABSENT.
        """
        if self.misconfiguration() or not _CHAT.fullmatch(sent.address):
            return Verification(Presence.UNKNOWN, detail=self.misconfiguration() or "Not a WhatsApp chat id.")
        known = sent.provider_message_id or (client_id(sent.client_ref) if self.takes_client_id else "")
        hidden = self._hidden(sent.address, sent.message)
        try:
            return self._look_up(known, sent, deadline) if known else self._search(sent, deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return Verification(Presence.UNKNOWN, detail=http.scrub(f"WAHA could not be asked: {error}", hidden))
        except Unreadable as error:
            return Verification(Presence.UNKNOWN, detail=http.scrub(str(error), hidden))

    def _look_up(self, raw: str, sent: SentMessage, deadline: Deadline) -> Verification:
        if self.takes_client_id:  # "all" leaves the chat open, which may be stored as @lid or @c.us
            path = ("chats", "all", "messages", raw)
        else:
            path = ("chats", sent.address, "messages", f"true_{sent.address}_{raw}")
        response = http.get_json(
            self._url(self.waha_session, *path), query={"downloadMedia": "false"}, headers=self._headers(), deadline=deadline
        )
        if response.status == 404 and re.search(r"message\b.*\bnot found", vendor_words(response), re.IGNORECASE):
            return Verification(Presence.ABSENT, detail="WAHA does not know this message.")
        if response.status == 200 and response.body.strip() in (b"", b"null"):  # how WAHA writes "nothing"
            return Verification(Presence.ABSENT, detail="WAHA does not know this message.")
        found = json_object(response)
        if response.status != 200 or raw_id(found).upper() != raw.upper():
            raise Unreadable(response)
        return presence(found)

    def _search(self, sent: SentMessage, deadline: Deadline) -> Verification:
        query: dict[str, str | int] = {
            "limit": SEARCH_LIMIT,
            "sortOrder": "desc",
            "downloadMedia": "false",
            "filter.fromMe": "true",
            "filter.timestamp.gte": int((sent.claimed_at - SEARCH_BEFORE).timestamp()),
            "filter.timestamp.lte": int((sent.claimed_at + SEARCH_AFTER).timestamp()),
        }
        url = self._url(self.waha_session, "chats", sent.address, "messages")
        response = http.get_json(url, query=query, headers=self._headers(), deadline=deadline)
        try:
            messages = response.json()
        except ValueError:
            messages = None
        if response.status != 200 or not isinstance(messages, list):
            raise Unreadable(response)
        text = plain(sent.message.text)
        same = [found for found in messages if is_the_text(found, text, query)]
        if same:
            verifications = [presence(found) for found in same]
            return min(verifications, key=lambda one: BY_WEIGHT.index(one.presence))
        if len(messages) >= SEARCH_LIMIT:
            return Verification(Presence.UNKNOWN, detail="There are too many messages in this chat to be sure.")
        return Verification(Presence.ABSENT, detail="WAHA does not list this text in the chat at that time.")

    def _url(self, *segments: str) -> str:
        return f"{self.base_url}{self.api_prefix}/api/" + "/".join(quote(segment, safe="") for segment in segments)

    def _headers(self) -> dict[str, str]:
        return {"X-Api-Key": self.api_key} if self.api_key else {}

    def _hidden(self, address: str, message: Message) -> list[str]:
        return [self.api_key, address, address.partition("@")[0], message.text, plain(message.text), *message.text.splitlines()]

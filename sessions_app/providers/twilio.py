"""SMS through Twilio (API 2010-04-01). What its answers and callbacks mean stands in twilio_answers.py.

Nothing makes a repeated call harmless there: what is in doubt is looked up by recipient, time and text, or settled by a callback.
"""

import base64
import hmac
import math
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms

from sessions_app.pacing import Metered
from sessions_app.providers import http
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Event,
    Message,
    Presence,
    ReceiptState,
    SendResult,
    SentMessage,
    SessionCheck,
    SessionState,
    Verification,
    WebhookAnswer,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
    event_id_of,
)
from sessions_app.providers.twilio_answers import (
    DID_NOT_ARRIVE,
    PHONE,
    as_twilio_may_see_it,
    in_words,
    json_object,
    meaning,
    plain,
    read_event,
    read_send,
    signature,
    signed_fields,
)

BASE_URL = "https://api.twilio.com"
LONG_CODE, FASTEST, SHARE = 1.0, 100.0, 0.8  # segments a second of a US number and of a short code, and what of it is ours
SEARCH_BEFORE, SEARCH_AFTER, SEARCH_LIMIT = timedelta(seconds=60), timedelta(seconds=600), 50
_ACCOUNT = re.compile(r"AC[0-9a-fA-F]{32}")
_SERVICE = re.compile(r"MG[0-9a-fA-F]{32}")
_SENDER = re.compile(r"\+[1-9][0-9]{6,14}|[0-9]{3,8}|(?=.*[A-Za-z])[A-Za-z0-9 ]{1,11}")


class TwilioSettings(forms.Form):
    account_sid = forms.CharField(label="Account SID", help_text="On the first page of the Twilio Console; it begins with AC.")
    sender = forms.CharField(
        label="Sender",
        help_text="Your Twilio number with + and country code, a short code, a sender name, or the SID of a Messaging Service (MG...).",
    )
    rate = forms.FloatField(
        label="Throughput of the sender",
        required=False,
        min_value=0.01,
        max_value=FASTEST,
        help_text="SMS a second that Twilio allows the sender; 80 % of it is used. Empty: 1, as for a US number. "
        "A long text counts as several: if yours take three each, enter a third.",
    )

    def clean_account_sid(self) -> str:
        value = self.cleaned_data["account_sid"]
        if not _ACCOUNT.fullmatch(value):
            raise forms.ValidationError("An Account SID is AC and 32 more characters, 0 to 9 and a to f. Copy it from the Twilio Console.")
        return value

    def clean_sender(self) -> str:
        value = self.cleaned_data["sender"]
        if value.startswith("+"):
            value = re.sub(r"[\s().-]", "", value)
        if not (_SERVICE.fullmatch(value) or _SENDER.fullmatch(value)):
            raise forms.ValidationError(
                "Not a sender: a number such as +12025550101, a short code, a name of at most 11 letters and digits, or MG..."
            )
        return value


class TwilioCredentials(forms.Form):
    auth_token = forms.CharField(
        label="Auth token",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Below the Account SID in the Twilio Console. An API key is something else: it cannot prove that a callback is Twilio's.",
    )

    def clean_auth_token(self) -> str:
        token = self.cleaned_data["auth_token"]
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise forms.ValidationError("An auth token has no blanks and no special characters. Paste it again.")
        return token


class TwilioProvider(ChannelProvider):
    key = "twilio"
    label = "SMS (Twilio)"
    counts_segments = True  # a text costs by the SMS it becomes
    address_kind = "phone"
    pacing: ClassVar[Metered] = Metered(rate=FASTEST * SHARE, burst=32)
    max_text_length = 1600
    settings_form: ClassVar[type[forms.Form]] = TwilioSettings
    credentials_form: ClassVar[type[forms.Form]] = TwilioCredentials
    can_verify = True
    absence_is_proof = False  # the list is sorted by the day it was sent, and what waits in a queue has none yet
    takes_webhooks = True
    receipts = frozenset({ReceiptState.ACCEPTED, ReceiptState.DELIVERED, ReceiptState.FAILED})
    takes_replies = True
    clock = staticmethod(time.time)

    @property
    def origin(self) -> str:
        return str(self.config.settings.get("base_url") or BASE_URL)

    @property
    def metered(self) -> Metered:
        """80 % of what the sender may do: without a number in the settings, that of the slowest sender there is."""
        allowed = self.config.settings.get("rate")
        if not isinstance(allowed, (int, float)) or allowed <= 0:
            allowed = LONG_CODE
        rate = min(allowed, FASTEST) * SHARE
        return Metered(rate=rate, burst=min(self.pacing.burst, math.ceil(rate)))

    @property
    def account_sid(self) -> str:
        return str(self.config.settings.get("account_sid") or "")

    @property
    def sender(self) -> str:
        return str(self.config.settings.get("sender") or "")

    @property
    def auth_token(self) -> str:
        return self.config.credentials.get("auth_token", "")

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        hidden = self._hidden(address, message)
        refusal = self._refusal_before_the_call(address, message)
        if refusal is not None:
            return refusal
        form = {"To": address, "Body": plain(message.text)}
        form["MessagingServiceSid" if _SERVICE.fullmatch(self.sender) else "From"] = self.sender
        if callback := str(self.config.settings.get("callback_url") or ""):
            form["StatusCallback"] = f"{callback}{'&' if '?' in callback else '?'}{urlencode({'ref': client_ref})}"
        try:
            response = http.post_form(self._url("Messages.json"), form, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return http.without_answer(error, "Twilio", hidden)
        return read_send(response, hidden)

    def _refusal_before_the_call(self, address: str, message: Message) -> SendResult | None:
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        if not (self.account_sid and self.sender):
            return SendResult.refused(ErrorCode.MISCONFIGURED, "The Account SID or the sender is missing. Enter it in the session.")
        if not PHONE.fullmatch(address):
            return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "Not a phone number with + and country code.")
        if not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        if len(plain(message.text)) > self.max_text_length:
            return SendResult.refused(ErrorCode.FATAL, f"The text is too long: {self.max_text_length} characters are the most.")
        return None

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if not (self.account_sid and self.sender):
            return SessionCheck(SessionState.DISCONNECTED, "The Account SID or the sender is missing. Enter it in the session.")
        try:
            response = http.get_json(
                f"{self.origin}/2010-04-01/Accounts/{self.account_sid}.json", headers=self._headers(), deadline=deadline
            )
        except (http.NotSent, http.NoAnswer) as error:
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(f"Twilio does not answer: {error}", self._secrets()))
        account = json_object(response)
        if response.status != 200 or account.get("sid") != self.account_sid:
            _, advice = meaning(response)
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(in_words(response, advice), self._secrets()))
        if account.get("status") != "active":  # suspended or closed; the answer holds the auth token, so nothing of it is quoted
            return SessionCheck(SessionState.DISCONNECTED, "The account is not active: look into its balance and its notices at Twilio.")
        return SessionCheck(
            SessionState.CONNECTED, "A trial account: it reaches verified numbers only." if account.get("type") == "Trial" else ""
        )

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        """By recipient, time and text; days are as fine as the list can be asked for."""
        if not (self.account_sid and PHONE.fullmatch(sent.address)):
            return Verification(Presence.UNKNOWN, detail="Without an account and a phone number nothing can be looked up.")
        day = (sent.claimed_at - SEARCH_BEFORE).astimezone(UTC).date()
        query: dict[str, str | int] = {"To": sent.address, "DateSent>": day.isoformat(), "PageSize": SEARCH_LIMIT}
        hidden = self._hidden(sent.address, sent.message)
        try:
            response = http.get_json(self._url("Messages.json"), query=query, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return Verification(Presence.UNKNOWN, detail=http.scrub(f"Twilio could not be asked: {error}", hidden))
        page = json_object(response)
        if response.status != 200 or not isinstance(page.get("messages"), list):
            return Verification(Presence.UNKNOWN, detail=http.scrub(in_words(response, "Twilio could not tell"), hidden))
        same = [one for one in page["messages"] if isinstance(one, dict) and self._is_it(one, sent)]
        arrived = [one for one in same if one.get("status") not in DID_NOT_ARRIVE]
        if arrived:
            return Verification(Presence.PRESENT, str(arrived[0].get("sid", "")))
        if same:
            return Verification(Presence.ABSENT, str(same[0].get("sid", "")), "Twilio has it and could not deliver it.")
        if page.get("next_page_uri"):
            return Verification(Presence.UNKNOWN, detail="There are too many messages to this number to be sure.")
        return Verification(Presence.ABSENT, detail="Twilio does not list this text to this number at that time.")

    def _is_it(self, found: Mapping[str, Any], sent: SentMessage) -> bool:
        """Checks the recipient once more, and the sender; a message that still waits has a date of creation only."""
        try:
            at = parsedate_to_datetime(str(found.get("date_created")))
        except ValueError:
            return False
        return (
            found.get("to") == sent.address
            and self.sender in (found.get("from"), found.get("messaging_service_sid"))
            and str(found.get("body")).strip() == plain(sent.message.text).strip()
            and sent.claimed_at - SEARCH_BEFORE <= (at if at.tzinfo else at.replace(tzinfo=UTC)) <= sent.claimed_at + SEARCH_AFTER
        )

    def set_webhook(self, url: str, deadline: Deadline) -> None:
        """Each message names the address of its receipts: nothing to tell. For replies, it is entered at the number in Twilio's console."""

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        if request.method != "POST":
            raise WebhookRefused("Callbacks come by POST", status=405)
        if not self.auth_token:
            raise WebhookRefused("The session has no auth token")
        fields, signed = signed_fields(request)
        given = request.headers.get("x-twilio-signature", "").encode(errors="replace")
        signatures = [signature(self.auth_token, url + signed) for url in as_twilio_may_see_it(request.url)]
        if not any(hmac.compare_digest(one, given) for one in signatures):
            raise WebhookRefused("The signature is missing, not of this auth token, or for another address than the one that was called")
        return WebhookAnswer(items=tuple(self._items(fields, request.query.get("ref", ""))))

    def _items(self, fields: Mapping[str, str], ref: str) -> Iterator[WebhookItem]:
        sid, status = fields.get("MessageSid") or fields.get("SmsSid") or "", fields.get("MessageStatus", "")
        if not sid or fields.get("AccountSid") != self.account_sid:
            return
        at = datetime.fromtimestamp(self.clock(), UTC).isoformat()  # Twilio says no time
        if status and status != "received":
            payload = {"sid": sid, "status": status, "error": fields.get("ErrorCode", ""), "ref": ref, "at": at}
            yield WebhookItem(event_id_of("status", sid, status), f"status.{status}"[:60], payload)
        elif "From" in fields:
            media = fields.get("MediaContentType0", "")
            payload = {"sid": sid, "from": fields["From"], "body": fields.get("Body", ""), "media": media, "at": at}
            yield WebhookItem(event_id_of("incoming", sid), "incoming", payload)

    def read_event(self, item: WebhookItem) -> list[Event]:
        return read_event(item.payload)

    def _url(self, name: str) -> str:
        return f"{self.origin}/2010-04-01/Accounts/{self.account_sid}/{name}"

    def _basic(self) -> str:
        return base64.b64encode(f"{self.account_sid}:{self.auth_token}".encode()).decode()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Basic {self._basic()}"}

    def _secrets(self) -> list[str]:
        return [self.auth_token, self._basic()]

    def _hidden(self, address: str, message: Message) -> list[str]:
        return [*self._secrets(), address, address.removeprefix("+"), message.text, plain(message.text), *message.text.splitlines()]

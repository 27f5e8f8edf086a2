"""A webhook of the company's own: each message is one POST of JSON, signed as Standard Webhooks (standardwebhooks.com).

What we send. Headers: webhook-id (the message's own id, the same at each try), Idempotency-Key (the same id), webhook-timestamp (Unix
seconds), webhook-signature ("v1," and the Base64 of an HMAC-SHA256 over id.timestamp.body, with the bytes of the secret behind whsec_).

    {"id": "<our id>", "to": "<address>", "type": "TEXT", "session": "<name>", "text": "..."}

A text may have subject, html and link_preview; IMAGE, VIDEO, AUDIO and DOCUMENT have media_url, caption and filename; TEMPLATE has text and
template: {"name", "language", "components"}. What is empty is left out. Any 2xx accepts the message; the receiver may name its own id.

What comes back, to the session's webhook address, signed in the same way with the same secret and a webhook-id of its own. One object, or a
list of them:

    {"type": "receipt", "id": "<the receiver's id>", "ref": "<our id>", "state": "DELIVERED", "at": "2026-11-30T12:00:00Z"}
    {"type": "message", "from": "<address>", "text": "...", "at": ..., "id": "...", "name": "..."}

A receipt names the message by id or ref, or both; its state is ACCEPTED, DELIVERED, READ or FAILED. `at` is ISO 8601 with its offset, or
Unix seconds. A FAILED receipt may have a code (INVALID_RECIPIENT, or FATAL, which is the default) and a detail.
"""

import base64
import hmac
import json
import re
import time
import uuid
from math import ceil
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django import forms
from django.conf import settings

from sessions_app.pacing import Metered
from sessions_app.providers import http
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Event,
    Message,
    MessageType,
    ReceiptState,
    SendResult,
    SessionCheck,
    SessionState,
    WebhookAnswer,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
    event_id_of,
)
from sessions_app.providers.reachable import why_not_public
from sessions_app.providers.webhook_answers import Rules, read_message, read_receipt, read_send

DEFAULT_RATE = 5
REPLAY_WINDOW = 300  # seconds
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_OURS = re.compile(
    r"(?:webhook-|content-|transfer-|proxy-).*|host|idempotency-key|connection|user-agent|accept.*|expect|te|upgrade|trailer"
)
_MEANINGS = [
    (ErrorCode.MISCONFIGURED.value, "Something is wrong for everybody: pause the campaign"),
    (ErrorCode.INVALID_RECIPIENT.value, "This person cannot be reached: go on"),
    (ErrorCode.FATAL.value, "This message is refused: go on"),
]


def why_not_called(url: str) -> str:
    """This machine itself may be called while developing only."""
    return why_not_public(url, allow=LOOPBACK if settings.DEBUG else frozenset())


def signing_key(secret: str) -> bytes:
    """The bytes behind whsec_; b"" for what is no such secret."""
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True) if secret.startswith("whsec_") else b""
    except ValueError:
        return b""


class WebhookSettings(forms.Form):
    url = forms.CharField(label="Address", help_text="Where each message is posted to, such as https://hooks.example.org/messages.")
    session = forms.CharField(
        label="Session name",
        required=False,
        max_length=100,
        help_text="Told to the receiver as session, for one that serves several. May be empty.",
    )
    rate = forms.FloatField(
        label="Messages per second",
        required=False,
        min_value=0.01,
        max_value=50,
        help_text=f"At most what the receiver takes. Empty: {DEFAULT_RATE}.",
    )
    message_id_path = forms.CharField(
        label="Message id in the answer",
        required=False,
        initial="id",
        help_text="Where the answer's JSON has the receiver's id: id, data.id or messages.0.id. Empty: the answer has none.",
    )
    on_404 = forms.ChoiceField(label="An answer 404 means", choices=_MEANINGS, initial=ErrorCode.MISCONFIGURED.value)
    on_422 = forms.ChoiceField(label="An answer 422 means", choices=_MEANINGS, initial=ErrorCode.MISCONFIGURED.value)
    honours_idempotency = forms.BooleanField(
        label="The receiver honours Idempotency-Key",
        required=False,
        help_text="Tick it only if the receiver surely drops a message that it got before. A message is then tried again after an answer "
        "5xx or 408, which otherwise stays unconfirmed.",
    )
    header_name = forms.CharField(
        label="Extra header",
        required=False,
        help_text="For a receiver that wants a key besides the signature, such as X-Api-Key. May be empty.",
    )

    def clean_url(self) -> str:
        url = self.cleaned_data["url"].strip()
        if problem := why_not_called(url):
            raise forms.ValidationError(problem)
        return url

    def clean_message_id_path(self) -> str:
        path = self.cleaned_data["message_id_path"].strip()
        if path and not re.fullmatch(r"[\w-]+(\.[\w-]+){0,9}", path):
            raise forms.ValidationError("Write names or numbers with dots between them, such as data.id.")
        return path

    def clean_header_name(self) -> str:
        name = self.cleaned_data["header_name"].strip()
        if name and (not re.fullmatch(r"[A-Za-z0-9-]{1,64}", name) or _OURS.fullmatch(name.lower())):
            raise forms.ValidationError("Use letters, digits and hyphens, and none of the headers that we send ourselves.")
        return name


class WebhookCredentials(forms.Form):
    signing_secret = forms.CharField(
        label="Signing secret",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="The same on both sides: whsec_ and 24 to 64 random bytes in Base64, as `openssl rand -base64 32` prints them.",
    )
    header_value = forms.CharField(
        label="Value of the extra header",
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Only if the receiver wants one.",
    )

    def clean_signing_secret(self) -> str:
        secret = self.cleaned_data["signing_secret"].strip()
        if not 24 <= len(signing_key(secret)) <= 64:
            raise forms.ValidationError("Not a signing secret: it is whsec_ and then 24 to 64 bytes in Base64.")
        return secret

    def clean_header_value(self) -> str:
        value = self.cleaned_data["header_value"]
        if not re.fullmatch(r"[\x20-\x7e]*", value):
            raise forms.ValidationError("A header takes plain letters, digits and signs only, without accents.")
        return value


class WebhookProvider(ChannelProvider):
    key = "webhook"
    label = "Webhook"
    address_kind = "any"
    pacing: ClassVar[Metered] = Metered(rate=50, burst=10)
    message_types = frozenset(MessageType)
    takes = frozenset({"subject", "html", "filename"})
    settings_form: ClassVar[type[forms.Form]] = WebhookSettings
    credentials_form: ClassVar[type[forms.Form]] = WebhookCredentials
    takes_webhooks = True
    receipts = frozenset(ReceiptState)
    takes_replies = True
    clock = staticmethod(time.time)

    @property
    def url(self) -> str:
        """ "" when none is set or the one that is set is not an address we would call."""
        url = str(self.config.settings.get("url") or "")
        return "" if why_not_called(url) else url

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}".lower() if parts.netloc else ""

    @property
    def metered(self) -> Metered:
        rate = self.config.settings.get("rate")
        if not isinstance(rate, (int, float)) or not 0 < rate <= self.pacing.rate:
            rate = DEFAULT_RATE
        return Metered(rate=rate, burst=min(self.pacing.burst, ceil(rate)))

    @property
    def signing_key(self) -> bytes:
        return signing_key(self.config.credentials.get("signing_secret", ""))

    @property
    def extra_header(self) -> dict[str, str]:
        name, value = self.config.settings.get("header_name") or "", self.config.credentials.get("header_value", "")
        return {name: value} if name and value else {}

    def misconfiguration(self) -> str:
        """Why no call can be made at all; "" when one can."""
        if not self.url:
            return f"The address of the webhook is not one to be called. {why_not_called(str(self.config.settings.get('url') or ''))}"
        if not self.signing_key:
            return "The signing secret is missing. Enter it in the session."
        if self.config.settings.get("header_name") and not self.extra_header:
            return "The extra header has a name and no value. Enter the value, or empty the name."
        return ""

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        if problem := self.misconfiguration():
            return SendResult.refused(ErrorCode.MISCONFIGURED, problem)
        hidden = self._hidden(address, message.media_url, message.body, *message.body.splitlines(), message.subject, message.html)
        body = json.dumps(self._payload(address, message, client_ref)).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(client_ref), **self.extra_header}
        headers |= self._signed(str(client_ref), body)
        try:
            response = http.post_bytes(self.url, body, headers=headers, deadline=deadline, public_only=not settings.DEBUG)
        except (http.NotSent, http.NoAnswer) as error:
            return http.without_answer(error, "The receiver", hidden)
        return read_send(response, Rules.of(self.config.settings), hidden)

    def _payload(self, address: str, message: Message, client_ref: uuid.UUID) -> dict[str, Any]:
        payload: dict[str, Any] = {"id": str(client_ref), "to": address, "type": message.type.value}
        optional: dict[str, Any] = {"session": self.config.settings.get("session"), "subject": message.subject}
        if message.type in {MessageType.TEXT, MessageType.TEMPLATE}:
            optional |= {"text": message.text, "html": message.html}
            payload["link_preview"] = message.link_preview
        else:
            optional |= {"media_url": message.media_url, "caption": message.caption, "filename": message.filename}
        if message.type == MessageType.TEMPLATE:
            components = list(message.template_components)
            payload["template"] = {"name": message.template_name, "language": message.template_language, "components": components}
        return payload | {name: value for name, value in optional.items() if value}

    def _signed(self, message_id: str, body: bytes) -> dict[str, str]:
        moment = str(int(self.clock()))
        return {"webhook-id": message_id, "webhook-timestamp": moment, "webhook-signature": self._signature(message_id, moment, body)}

    def _signature(self, message_id: str, moment: str, body: bytes) -> str:
        digest = hmac.digest(self.signing_key, f"{message_id}.{moment}.".encode() + body, "sha256")
        return f"v1,{base64.b64encode(digest).decode()}"

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if problem := self.misconfiguration():
            return SessionCheck(SessionState.DISCONNECTED, problem)
        return SessionCheck(SessionState.CONNECTED, "A webhook cannot be tried without a message: the first one will show.")

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        self._check_signature(request)
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            body = None
        told = body if isinstance(body, list) else [body]
        if not all(isinstance(one, dict) for one in told):
            raise WebhookRefused("Not an object, nor a list of objects", status=400)
        webhook_id = request.headers["webhook-id"]
        # The content is part of it: a receiver that keeps one webhook-id for all it tells about a message must not lose what comes second.
        return WebhookAnswer(
            tuple(WebhookItem(event_id_of(webhook_id, at, one), str(one.get("type") or "")[:60], one) for at, one in enumerate(told))
        )

    def _check_signature(self, request: WebhookRequest) -> None:
        if not self.signing_key:
            raise WebhookRefused("The session has no signing secret")
        webhook_id, moment, shown = (request.headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
        right = self._signature(webhook_id, moment, request.body).encode()
        matches = [hmac.compare_digest(one.encode(), right) for one in shown.split()]  # several while a secret is being changed
        if not webhook_id or not any(matches):
            raise WebhookRefused("The signature is missing or wrong")
        if not re.fullmatch(r"[0-9]{1,12}", moment, re.ASCII) or abs(self.clock() - int(moment)) > REPLAY_WINDOW:
            raise WebhookRefused("The request was signed too long ago, or one of the two clocks is wrong")

    def read_event(self, item: WebhookItem) -> list[Event]:
        if item.kind == "receipt":
            return [read_receipt(item.payload, self._hidden())]
        return [read_message(item.payload)] if item.kind == "message" else []

    def _hidden(self, *more: str) -> list[str]:
        secret = self.config.credentials.get("signing_secret", "").removeprefix("whsec_")
        return [*self.config.credentials.values(), secret, *more]

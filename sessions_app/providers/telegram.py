"""Telegram through the Bot API (core.telegram.org/bots/api): a bot writes to people who have started it, and to groups it is in.

The bot's token is part of every URL: no URL goes into a detail or a log. Telegram has no receipts, no key against doubles and no look-up of
what was sent, so an answer that was lost stays UNCONFIRMED. Groups take 20 messages a minute, which a 429 tells, for the whole bot.

From memory, not tried against Telegram: that documents are fetched by URL for PDF, ZIP and GIF only, photos up to 5 MB and other files up
to 20 MB; and the words of the refusals about a chat's rights.
"""

import hmac
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import quote

from django import forms

from sessions_app.pacing import Metered
from sessions_app.providers import http
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Event,
    Inbound,
    Message,
    MessageType,
    NotPossible,
    SendResult,
    SessionCheck,
    SessionState,
    WebhookAnswer,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
)
from sessions_app.providers.telegram_answers import json_object, read_json, read_send, vendor_words

API = "https://api.telegram.org"
UPDATES = ["message", "my_chat_member"]
_TOKEN = re.compile(r"[0-9]{5,20}:[A-Za-z0-9_-]{30,100}", re.ASCII)
_WEBHOOK_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}", re.ASCII)
_CHAT = re.compile(r"-?[1-9][0-9]{0,15}|@[A-Za-z][A-Za-z0-9_]{3,31}", re.ASCII)

# Method and field by type.
_MEDIA = {
    MessageType.IMAGE: ("sendPhoto", "photo"),
    MessageType.VIDEO: ("sendVideo", "video"),
    MessageType.AUDIO: ("sendAudio", "audio"),
    MessageType.DOCUMENT: ("sendDocument", "document"),
}
# What people write, by the field that an update has; the first that is there counts. Anything else is a notice of Telegram's own.
_RECEIVED = {
    "text": "TEXT",
    "photo": "IMAGE",
    "sticker": "IMAGE",
    "animation": "VIDEO",
    "video": "VIDEO",
    "video_note": "VIDEO",
    "voice": "AUDIO",
    "audio": "AUDIO",
    "document": "DOCUMENT",
    "contact": "CONTACT",
    "location": "LOCATION",
}


class TelegramCredentials(forms.Form):
    token = forms.CharField(
        label="Bot token",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="In Telegram, write /newbot or /token to @BotFather: it answers with a token such as 123456789:AAH....",
    )
    webhook_secret = forms.CharField(
        label="Webhook secret",
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Needed for replies only. Make one up: at least 16 letters, digits, - or _. Telegram shows it with each call to us.",
    )

    def clean_token(self) -> str:
        token = self.cleaned_data["token"].strip()
        if not _TOKEN.fullmatch(token):
            raise forms.ValidationError("Not a bot token: it is a number, a colon, and about 35 letters, digits, - or _. Copy it again.")
        return token

    def clean_webhook_secret(self) -> str:
        secret = self.cleaned_data["webhook_secret"]
        if secret and (len(secret) < 16 or not _WEBHOOK_SECRET.fullmatch(secret)):
            raise forms.ValidationError("Use 16 to 256 letters, digits, - or _. Telegram takes nothing else.")
        return secret


class TelegramProvider(ChannelProvider):
    key = "telegram"
    label = "Telegram"
    address_kind = "telegram"
    # 80 % of the 30 per second that Telegram names for bulk; with the burst, no second has more than those 30.
    pacing: ClassVar[Metered] = Metered(rate=24, burst=6)
    message_types = frozenset({MessageType.TEXT, *_MEDIA})
    max_text_length = 4096
    max_caption_length = 1024
    credentials_form: ClassVar[type[forms.Form]] = TelegramCredentials
    takes_webhooks = True
    takes_replies = True

    @property
    def origin(self) -> str:
        return str(self.config.settings.get("base_url") or API).rstrip("/")

    @property
    def token(self) -> str:
        return self.config.credentials.get("token", "")

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        refusal = self._refusal_before_the_call(address, message)
        if refusal is not None:
            return refusal
        hidden = self._hidden(address, address.lstrip("@-"), message.media_url, message.body, *message.body.splitlines())
        method, payload = _call_for(address, message)
        try:
            response = http.post_json(self._url(method), payload, deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return http.without_answer(error, "Telegram", hidden)
        return read_send(response, address, hidden)

    def _refusal_before_the_call(self, address: str, message: Message) -> SendResult | None:
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        if not self.token:
            return SendResult.refused(ErrorCode.DISCONNECTED, "The bot token is missing. Enter it in the session.")
        if not _CHAT.fullmatch(address):
            return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "Not a Telegram chat: a number, or @name of a channel or public group.")
        if message.type == MessageType.TEXT and not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        if message.type != MessageType.TEXT and not message.media_url:
            return SendResult.refused(ErrorCode.MISCONFIGURED, "There is no file to send: its address (media URL) is empty.")
        most = self.max_text_length if message.type == MessageType.TEXT else self.max_caption_length
        if len(message.body) > most:
            return SendResult.refused(ErrorCode.FATAL, f"The text has {len(message.body)} characters, and Telegram takes {most} here.")
        return None

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if not self.token:
            return SessionCheck(SessionState.DISCONNECTED, "The bot token is missing. Enter it in the session.")
        try:
            response = http.get_json(self._url("getMe"), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(f"Telegram does not answer: {error}", self._hidden()))
        bot = json_object(response).get("result")
        if response.status == 200 and json_object(response).get("ok") is True and isinstance(bot, dict):
            return SessionCheck(SessionState.CONNECTED, http.scrub(f"The bot is @{bot.get('username')}.", self._hidden()))
        if response.status in (401, 404):
            return SessionCheck(SessionState.DISCONNECTED, "Telegram does not know this bot token: take a new one from @BotFather.")
        return SessionCheck(SessionState.DISCONNECTED, f"Telegram could not tell (status {response.status}). Check again later.")

    def set_webhook(self, url: str, deadline: Deadline) -> None:
        secret = self.config.credentials.get("webhook_secret", "")
        if not self.token or not secret:
            raise NotPossible("Enter the bot token and a webhook secret in the session first.")
        payload = {"url": url, "secret_token": secret, "allowed_updates": UPDATES}
        try:
            response = http.post_json(self._url("setWebhook"), payload, deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            raise NotPossible(http.scrub(f"Telegram did not answer: {error}. Try again.", self._hidden())) from None
        if response.status != 200 or json_object(response).get("ok") is not True:
            raise NotPossible(http.scrub(f"Telegram refused the address: {vendor_words(response)}", self._hidden()))

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        """Telegram shows the secret and signs nothing: that the body is unchanged rests on HTTPS alone."""
        secret = self.config.credentials.get("webhook_secret", "").encode()
        shown = request.headers.get("x-telegram-bot-api-secret-token", "").encode()
        if not secret:
            raise WebhookRefused("The session has no webhook secret")
        if not hmac.compare_digest(shown, secret):
            raise WebhookRefused("The webhook secret is missing or wrong")
        update = read_json(request.body)
        if not isinstance(update, dict) or not isinstance(update.get("update_id"), int):
            raise WebhookRefused("Not an update of Telegram", status=400)
        kind = next((name for name in update if name != "update_id"), "")
        return WebhookAnswer((WebhookItem(str(update["update_id"])[:200], kind[:60], update),))

    def read_event(self, item: WebhookItem) -> list[Event]:
        """Messages of people. That a person blocked the bot (my_chat_member) is kept by its kind only: they may unblock it any moment."""
        message = item.payload.get("message")
        if not isinstance(message, dict):
            return []
        person = message.get("from")
        kind = next((kind for name, kind in _RECEIVED.items() if message.get(name)), "")
        if not kind or not isinstance(person, dict) or person.get("is_bot"):
            return []
        try:
            return [_inbound(message, person, kind)]
        except (KeyError, TypeError, OverflowError, OSError):
            raise ValueError("A message of Telegram without its chat, its sender's number or its time.") from None

    def _url(self, method: str) -> str:
        return f"{self.origin}/bot{quote(self.token, safe=':')}/{method}"

    def _hidden(self, *more: str) -> list[str]:
        return [*self.config.credentials.values(), self.token.partition(":")[2], *more]


def _inbound(message: Mapping[str, Any], person: Mapping[str, Any], kind: str) -> Inbound:
    names = [person.get("first_name"), person.get("last_name")]
    return Inbound(
        sender=str(int(person["id"])),
        at=datetime.fromtimestamp(int(message["date"]), UTC),
        text=str(message.get("text") or message.get("caption") or ""),
        message_id=f"{message['chat']['id']}:{message['message_id']}",
        name=" ".join(str(name) for name in names if name) or str(person.get("username") or ""),
        message_type=kind,
    )


def _call_for(address: str, message: Message) -> tuple[str, dict[str, Any]]:
    chat: int | str = address if address.startswith("@") else int(address)
    if message.type == MessageType.TEXT:
        preview = {"is_disabled": not message.link_preview, "prefer_large_media": message.link_preview_high_quality}
        return "sendMessage", {"chat_id": chat, "text": message.text, "link_preview_options": preview}
    method, field = _MEDIA[message.type]
    payload = {"chat_id": chat, field: message.media_url}
    return method, {**payload, "caption": message.caption} if message.caption else payload

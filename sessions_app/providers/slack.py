"""Slack in two ways: an app's bot token, which writes to any channel or person, or an incoming webhook, which has one fixed channel.

The Web API answers 200 and says in the body whether it worked. A bot's message carries our reference in its metadata, so one whose answer
was lost can be looked for in the channel's history; that needs the scope channels:history (groups:history, im:history). Finding it
is proof, not finding it is none. An incoming webhook answers "ok" without an id and cannot be asked anything; its URL is the credential.

From memory, not tried against Slack: that texts of more than 4,000 characters may be split in two (above 40,000 they are cut, which is
documented, so those do not leave).
"""

import hashlib
import hmac
import re
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

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
    Presence,
    SendResult,
    SentMessage,
    SessionCheck,
    SessionState,
    StateReport,
    Verification,
    WebhookAnswer,
    WebhookItem,
    WebhookRefused,
    WebhookRequest,
    event_id_of,
)
from sessions_app.providers.slack_answers import (
    ACCOUNT,
    EVENT_TYPE,
    TS,
    error_name,
    escaped,
    json_object,
    message_id_of,
    read_hook,
    read_json,
    read_send,
    reference_in,
    refusal_of,
    unescaped,
    vendor_words,
)

API, HOOKS = "https://slack.com", "https://hooks.slack.com"
JSON = "application/json; charset=utf-8"  # without the charset Slack adds a warning to each answer
CUT_ABOVE = 40_000
REPLAY_WINDOW = 300  # seconds
SEARCH_BEFORE, SEARCH_AFTER = timedelta(seconds=60), timedelta(seconds=600)
_TOKEN = re.compile(r"xoxb-[A-Za-z0-9-]{20,250}", re.ASCII)
_HOOK = re.compile(r"https://hooks\.slack\.com/services(/[A-Za-z0-9]{1,64}){3}", re.ASCII)
_ADDRESS = re.compile(r"[CDGUW][A-Z0-9]{5,30}", re.ASCII)


class SlackCredentials(forms.Form):
    bot_token = forms.CharField(
        label="Bot token",
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="At api.slack.com/apps, your app, OAuth & Permissions: Bot User OAuth Token (xoxb-...). Give it the scopes chat:write "
        "and channels:history. Recipients are then channel or member ids, such as C0123456789 or U0123456789.",
    )
    webhook_url = forms.CharField(
        label="Incoming webhook URL",
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Instead of a bot token: https://hooks.slack.com/services/.... It writes to the one channel it was made for: every "
        "message of a campaign goes there, and the recipients' addresses are ignored.",
    )
    signing_secret = forms.CharField(
        label="Signing secret",
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Needed for replies only. At api.slack.com/apps, your app, Basic Information, App Credentials.",
    )

    def clean_bot_token(self) -> str:
        token = self.cleaned_data["bot_token"].strip()
        if token and not _TOKEN.fullmatch(token):
            raise forms.ValidationError(
                "Not a bot token: it begins with xoxb-. A token of a user (xoxp-) or an app (xapp-) is another one."
            )
        return token

    def clean_webhook_url(self) -> str:
        url = self.cleaned_data["webhook_url"].strip()
        if url and not _HOOK.fullmatch(url):
            raise forms.ValidationError("Not an incoming webhook of Slack: it looks like https://hooks.slack.com/services/T.../B.../....")
        return url

    def clean_signing_secret(self) -> str:
        secret = self.cleaned_data["signing_secret"].strip()
        if secret and not re.fullmatch(r"[0-9a-fA-F]{32,64}", secret):
            raise forms.ValidationError("Not a signing secret: it has 32 digits and letters from a to f. Copy it again.")
        return secret

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("bot_token") and cleaned.get("webhook_url"):
            self.add_error("webhook_url", "Use one of the two: a bot token, or a webhook URL. Remove the other.")
        elif not self.errors and not cleaned.get("bot_token") and not cleaned.get("webhook_url"):
            self.add_error("bot_token", "Enter a bot token, or an incoming webhook URL.")
        return cleaned


class SlackProvider(ChannelProvider):
    key = "slack"
    label = "Slack"
    address_kind = "any"
    pacing: ClassVar[Metered] = Metered(rate=0.8, burst=1)  # of one message per second and channel
    max_text_length = 4000
    credentials_form: ClassVar[type[forms.Form]] = SlackCredentials
    can_verify = True
    takes_webhooks = True
    takes_replies = True
    clock = staticmethod(time.time)

    @property
    def bot_token(self) -> str:
        return self.config.credentials.get("bot_token", "")

    @property
    def hook(self) -> str:
        """The path of the webhook URL; "" when there is none or it is not Slack's."""
        url = self.config.credentials.get("webhook_url", "")
        return urlsplit(url).path if not self.bot_token and _HOOK.fullmatch(url) else ""

    @property
    def origin(self) -> str:
        return str(self.config.settings.get("base_url") or (HOOKS if self.hook else API)).rstrip("/")

    def misconfiguration(self) -> str:
        return "" if self.bot_token or self.hook else "There is neither a bot token nor a webhook URL of Slack. Enter one in the session."

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        refusal = self._refusal_before_the_call(address, message)
        if refusal is not None:
            return refusal
        hidden = self._hidden(address, message.text, *message.text.splitlines())
        payload: dict[str, Any] = {
            "text": escaped(message.text),
            "unfurl_links": message.link_preview,
            "unfurl_media": message.link_preview,
        }
        if not self.hook:
            payload["channel"] = address
            payload["metadata"] = {"event_type": EVENT_TYPE, "event_payload": {"client_ref": str(client_ref)}}
        url = self.origin + (self.hook or "/api/chat.postMessage")
        try:
            response = http.post_json(url, payload, headers={**self._headers(), "Content-Type": JSON}, deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return http.without_answer(error, "Slack", hidden)
        return read_hook(response, hidden) if self.hook else read_send(response, hidden)

    def _refusal_before_the_call(self, address: str, message: Message) -> SendResult | None:
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        if problem := self.misconfiguration():
            return SendResult.refused(ErrorCode.DISCONNECTED, problem)
        if not self.hook and not _ADDRESS.fullmatch(address):
            return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "Not the id of a channel (C...) or member (U...) of Slack.")
        if not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        if len(escaped(message.text)) > CUT_ABOVE:
            return SendResult.refused(ErrorCode.FATAL, f"Slack cuts texts of more than {CUT_ABOVE} characters.")
        return None

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if problem := self.misconfiguration():
            return SessionCheck(SessionState.DISCONNECTED, problem)
        if self.hook:
            return SessionCheck(SessionState.CONNECTED, "A webhook URL cannot be tried without a message: the first one will show.")
        try:
            response = http.post_json(f"{self.origin}/api/auth.test", {}, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(f"Slack does not answer: {error}", self._hidden()))
        answer = json_object(response)
        if response.status == 200 and answer.get("ok") is True:
            detail = http.scrub(f"The app is {answer.get('user')} in {answer.get('team')}.", self._hidden())
            return SessionCheck(SessionState.CONNECTED, detail)
        name = error_name(answer)
        advice = ACCOUNT[1] if refusal_of(name)[0] == ErrorCode.DISCONNECTED else "Slack could not tell"
        return SessionCheck(SessionState.DISCONNECTED, http.scrub(f"{advice}: {name or response.status}.", self._hidden()))

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        """By our reference in the metadata of what stands in the channel. A member's id names no channel, so those stay UNKNOWN."""
        channel = sent.provider_message_id.partition(":")[0] or sent.address
        if not self.bot_token or not _ADDRESS.fullmatch(channel) or channel[0] in "UW":
            return Verification(Presence.UNKNOWN, detail="Slack can be asked by a bot and about channels only.")
        query: dict[str, str | int] = {
            "channel": channel,
            "oldest": f"{(sent.claimed_at - SEARCH_BEFORE).timestamp():.6f}",
            "latest": f"{(sent.claimed_at + SEARCH_AFTER).timestamp():.6f}",
            "include_all_metadata": "true",
            "limit": 100,
        }
        hidden = self._hidden(sent.address, sent.message.text, *sent.message.text.splitlines())
        try:
            response = http.get_json(f"{self.origin}/api/conversations.history", query=query, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return Verification(Presence.UNKNOWN, detail=http.scrub(f"Slack could not be asked: {error}", hidden))
        answer = json_object(response)
        messages = answer.get("messages")
        if response.status != 200 or answer.get("ok") is not True or not isinstance(messages, list):
            return Verification(
                Presence.UNKNOWN, detail=http.scrub(f"Slack could not tell ({response.status}): {vendor_words(answer)}", hidden)
            )
        if ours := next((one for one in messages if reference_in(one) == str(sent.client_ref)), None):
            return Verification(Presence.PRESENT, message_id_of(channel, ours.get("ts")))
        if answer.get("has_more"):
            return Verification(Presence.UNKNOWN, detail="There are too many messages in this channel to be sure.")
        return Verification(Presence.ABSENT, detail="Slack does not list this message in the channel at that time.")

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        self._check_signature(request)
        body = read_json(request.body)
        if not isinstance(body, dict):
            raise WebhookRefused("Not an event of Slack", status=400)
        if body.get("type") == "url_verification" and isinstance(body.get("challenge"), str):
            return WebhookAnswer(body=body["challenge"])
        event = body.get("event")
        event = event if isinstance(event, dict) else {}
        event_id = body.get("event_id")
        event_id = event_id[:200] if event_id and isinstance(event_id, str) else event_id_of(body.get("type"), event)
        kind = str(event.get("type") or body.get("type") or "")[:60]
        return WebhookAnswer((WebhookItem(event_id, kind, {"event": event}),))  # not the old token that Slack still sends along

    def _check_signature(self, request: WebhookRequest) -> None:
        secret = self.config.credentials.get("signing_secret", "").encode()
        if not secret:
            raise WebhookRefused("The session has no signing secret")
        told = request.headers.get("x-slack-request-timestamp", "")
        shown = request.headers.get("x-slack-signature", "")
        right = "v0=" + hmac.new(secret, b"v0:" + told.encode() + b":" + request.body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(shown.encode(), right.encode()):
            raise WebhookRefused("The signature is missing or wrong")
        if not re.fullmatch(r"[0-9]{1,12}", told, re.ASCII) or abs(self.clock() - int(told)) > REPLAY_WINDOW:
            raise WebhookRefused("The request was signed too long ago, or this clock is wrong")

    def read_event(self, item: WebhookItem) -> list[Event]:
        event = item.payload.get("event") or {}
        if item.kind == "app_uninstalled":
            return [StateReport(SessionCheck(SessionState.DISCONNECTED, "The app was taken out of the workspace."))]
        is_a_persons = event.get("user") and not event.get("bot_id") and event.get("subtype") in (None, "file_share")
        if item.kind != "message" or not is_a_persons:  # a subtype is an edit, a deletion or a notice
            return []
        moment = str(event.get("ts"))
        if not TS.fullmatch(moment):
            raise ValueError("A message of Slack without its time.")
        return [
            Inbound(
                sender=str(event["user"]),
                at=datetime.fromtimestamp(int(moment.partition(".")[0]), UTC),
                text=unescaped(str(event.get("text") or "")),
                message_id=message_id_of(str(event.get("channel") or ""), moment),
                message_type="DOCUMENT" if event.get("subtype") else "TEXT",
            )
        ]

    def _headers(self) -> dict[str, str]:
        return {} if self.hook else {"Authorization": f"Bearer {self.bot_token}"}

    def _hidden(self, *more: str) -> list[str]:
        return [*self.config.credentials.values(), self.hook, self.hook.rpartition("/")[2], *more]

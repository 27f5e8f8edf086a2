"""WhatsApp through Meta's own Cloud API. What its answers and webhooks mean stands in whatsapp_cloud_answers.py.

There is no way to ask Meta about a message: one whose outcome is unknown is settled by the webhook, which repeats our reference.
"""

import hashlib
import hmac
import json
import math
import re
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from django import forms

from sessions_app.pacing import Metered
from sessions_app.providers import http
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Event,
    Message,
    MessageType,
    NotPossible,
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
from sessions_app.providers.whatsapp_cloud_answers import (
    NUMBER_STATES,
    Template,
    dicts,
    error_of,
    in_words,
    json_object,
    read_account,
    read_message,
    read_send,
    read_status,
    read_template,
)

BASE_URL = "https://graph.facebook.com"
GRAPH_VERSION = "v25.0"
NUMBER_FIELDS = "id,display_phone_number,verified_name,quality_rating,status"
TEMPLATE_FIELDS = "name,language,status,category,components"
PAGES_AT_MOST, PAGE = 20, 100
THROUGHPUT, SHARE = 80, 0.8  # messages a second that Meta gives a number, and what of it is ours
_PERSON = re.compile(r"([1-9][0-9]{5,14})@c\.us")
_MEDIA = {MessageType.IMAGE, MessageType.VIDEO, MessageType.AUDIO, MessageType.DOCUMENT}


class WhatsAppCloudSettings(forms.Form):
    phone_number_id = forms.CharField(
        label="Phone number ID",
        help_text="Not the number itself: in the Meta app under WhatsApp > API Setup, below the number it sends from.",
    )
    business_account_id = forms.CharField(
        label="WhatsApp Business Account ID", help_text="On the same page, beside the phone number ID. Templates belong to it."
    )
    rate = forms.FloatField(
        label="Throughput of the number",
        required=False,
        min_value=0.1,
        max_value=THROUGHPUT,
        help_text="Messages a second that Meta allows; 80 % of it is used. Empty: 80. A number shared with the Business app has 20.",
    )

    def clean_phone_number_id(self) -> str:
        return self._id("phone_number_id", "The phone number ID")

    def clean_business_account_id(self) -> str:
        value = self._id("business_account_id", "The business account ID")
        if value == self.cleaned_data.get("phone_number_id"):
            raise forms.ValidationError("This is the phone number ID once more. The business account has an ID of its own.")
        return value

    def _id(self, name: str, label: str) -> str:
        value = self.cleaned_data[name]
        if not re.fullmatch(r"[0-9]{5,25}", value):
            raise forms.ValidationError(f"{label} has digits only, without + or blanks. Copy it from the Meta app.")
        return value


def _secret(label: str, help_text: str) -> forms.CharField:
    return forms.CharField(label=label, help_text=help_text, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}))


class WhatsAppCloudCredentials(forms.Form):
    access_token = _secret(
        "Access token", "Of a system user, with whatsapp_business_messaging and _management. The one of API Setup ends in a day."
    )
    app_secret = _secret("App secret", "In the Meta app under App settings > Basic. It proves that a webhook comes from Meta.")
    verify_token = _secret(
        "Webhook verify token", "A word of your own choice. Enter the same one where you enter the webhook's address at Meta."
    )

    def clean_access_token(self) -> str:
        token = self.cleaned_data["access_token"]
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise forms.ValidationError("An access token has no blanks and no special characters. Paste it again.")
        return token

    def clean_app_secret(self) -> str:
        secret = self.cleaned_data["app_secret"]
        if not re.fullmatch(r"[0-9a-fA-F]{32}", secret):
            raise forms.ValidationError("An app secret has 32 characters, 0 to 9 and a to f. It is not the access token.")
        return secret


class WhatsAppCloudProvider(ChannelProvider):
    key = "whatsapp_cloud"
    label = "WhatsApp (Cloud API)"
    address_kind = "whatsapp"
    pacing: ClassVar[Metered] = Metered(rate=THROUGHPUT * SHARE, burst=32)
    message_types = frozenset(MessageType)
    takes = frozenset({"filename"})
    uncaptioned = frozenset({MessageType.AUDIO})
    max_text_length = 4096
    settings_form: ClassVar[type[forms.Form]] = WhatsAppCloudSettings
    credentials_form: ClassVar[type[forms.Form]] = WhatsAppCloudCredentials
    takes_webhooks = True
    receipts = frozenset(ReceiptState)
    takes_replies = True
    has_templates = True  # `list_templates` knows what Meta approved

    @property
    def origin(self) -> str:
        return str(self.config.settings.get("base_url") or BASE_URL)

    @property
    def metered(self) -> Metered:
        """80 % of what the number may do, and never above `pacing`: a number that Meta upgraded to 1,000 a second keeps the usual rate."""
        allowed = self.config.settings.get("rate")
        if not isinstance(allowed, (int, float)) or not 0 < allowed < THROUGHPUT:
            return self.pacing
        rate = allowed * SHARE
        return Metered(rate=rate, burst=min(self.pacing.burst, math.ceil(rate)))

    @property
    def phone_number_id(self) -> str:
        return str(self.config.settings.get("phone_number_id") or "")

    @property
    def business_account_id(self) -> str:
        return str(self.config.settings.get("business_account_id") or "")

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        hidden = self._hidden(address, message)
        refusal = self._refusal_before_the_call(address, message)
        if refusal is not None:
            return refusal
        body = {
            "messaging_product": "whatsapp",
            "recipient_type": "individual",
            "to": address.partition("@")[0],
            "biz_opaque_callback_data": str(client_ref),
            "type": message.type.value.lower(),
            message.type.value.lower(): _content(message),
        }
        try:
            response = http.post_json(self._url(self.phone_number_id, "messages"), body, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return http.without_answer(error, "Meta", hidden)
        return read_send(response, hidden)

    def _refusal_before_the_call(self, address: str, message: Message) -> SendResult | None:
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        if not self.phone_number_id:
            return SendResult.refused(ErrorCode.MISCONFIGURED, "The phone number ID is missing. Enter it in the session.")
        if not _PERSON.fullmatch(address):
            return SendResult.refused(
                ErrorCode.INVALID_RECIPIENT, "The Cloud API writes to people's numbers only, not to groups or hidden ids."
            )
        if message.type in _MEDIA and not message.media_url.startswith(("https://", "http://")):
            return SendResult.refused(ErrorCode.MISCONFIGURED, "The address of the media is missing. Enter it in the step.")
        if message.type is MessageType.TEMPLATE:
            if not (message.template_name and message.template_language):
                return SendResult.refused(ErrorCode.MISCONFIGURED, "The template's name or language is missing. Enter both in the step.")
            if _has_an_empty_value(message.template_components):  # Meta takes it for a field that is missing for everybody
                return SendResult.refused(ErrorCode.FATAL, "A value of the template is empty for this person.")
        if message.type is MessageType.TEXT and not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        if message.type is MessageType.TEXT and len(message.text) > self.max_text_length:
            return SendResult.refused(ErrorCode.FATAL, f"The text has {len(message.text)} characters; {self.max_text_length} is the most.")
        return None

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if not self.phone_number_id:
            return SessionCheck(SessionState.DISCONNECTED, "The phone number ID is missing. Enter it in the session.")
        try:
            url = self._url(self.phone_number_id)
            response = http.get_json(url, query={"fields": NUMBER_FIELDS}, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            return SessionCheck(SessionState.DISCONNECTED, http.scrub(f"Meta does not answer: {error}", self._secrets()))
        number = json_object(response)
        if response.status != 200 or str(number.get("id")) != self.phone_number_id:
            return SessionCheck(SessionState.DISCONNECTED, self._trouble(response, "the phone number ID"))
        unknown = (SessionState.DISCONNECTED, "Meta reports a state of the number that is not known here.")
        # A number without a state is one that this token can read: an older one, or a test number.
        state, detail = NUMBER_STATES.get(str(number.get("status") or "CONNECTED"), unknown)
        if state == SessionState.CONNECTED and not detail and number.get("quality_rating") == "RED":
            detail = "Its quality is low: people block or report it. Send less, and to those who expect it."
        return SessionCheck(state, detail)

    def list_templates(self, deadline: Deadline) -> list[Template]:
        """All of the business account, in every status. Raises NotPossible, also where there are more than 2,000: a part proves nothing."""
        if not self.business_account_id:
            raise NotPossible("The WhatsApp Business Account ID is missing. Enter it in the session.")
        found: list[Template] = []
        query: dict[str, str | int] = {"fields": TEMPLATE_FIELDS, "limit": PAGE}
        for _ in range(PAGES_AT_MOST):
            page = self._page_of_templates(query, deadline)
            found += [template for one in page["data"] if (template := read_template(one)) is not None]
            paging = page.get("paging")
            cursors = paging.get("cursors") if isinstance(paging, dict) else None
            # `next` is an address with the token in it: it says that there is more, and is never called.
            if not (isinstance(paging, dict) and paging.get("next") and isinstance(cursors, dict) and cursors.get("after")):
                return found
            query["after"] = str(cursors["after"])
        raise NotPossible(f"This business account has more than {PAGES_AT_MOST * PAGE} templates. Enter the template's name by hand.")

    def _page_of_templates(self, query: dict[str, str | int], deadline: Deadline) -> dict[str, Any]:
        url = self._url(self.business_account_id, "message_templates")
        try:
            response = http.get_json(url, query=query, headers=self._headers(), deadline=deadline)
        except (http.NotSent, http.NoAnswer) as error:
            raise NotPossible(http.scrub(f"Meta could not be asked for its templates: {error}.", self._secrets())) from None
        page = json_object(response)
        if response.status != 200 or not isinstance(page.get("data"), list):
            raise NotPossible(self._trouble(response, "the WhatsApp Business Account ID"))
        return page

    def accept_webhook(self, request: WebhookRequest) -> WebhookAnswer:
        if request.method == "GET":
            return self._challenge(request)
        if request.method != "POST":
            raise WebhookRefused("Meta uses GET and POST", status=405)
        secret = self.config.credentials.get("app_secret", "")
        if not secret:
            raise WebhookRefused("The session has no app secret")
        signature = "sha256=" + hmac.new(secret.encode(), request.body, hashlib.sha256).hexdigest()
        given = request.headers.get("x-hub-signature-256", "")
        if not hmac.compare_digest(signature.encode(), given.encode(errors="replace")):
            raise WebhookRefused("The signature is missing or not of this app secret")
        try:
            body = json.loads(request.body)
        except ValueError:
            raise WebhookRefused("The body is not JSON", status=400) from None
        if not isinstance(body, dict):
            raise WebhookRefused("The body is not an object", status=400)
        return WebhookAnswer(items=tuple({item.event_id: item for item in self._items(body)}.values()))

    def _challenge(self, request: WebhookRequest) -> WebhookAnswer:
        """Meta's question when the address is entered there."""
        expected = self.config.credentials.get("verify_token", "")
        given = request.query.get("hub.verify_token", "")
        if not expected or not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
            raise WebhookRefused("The verify token is not the one of this session")
        if request.query.get("hub.mode") != "subscribe":
            raise WebhookRefused("Not a subscription", status=400)
        return WebhookAnswer(body=request.query.get("hub.challenge", ""))

    def _items(self, body: dict[str, Any]) -> Iterator[WebhookItem]:
        for entry in dicts(body.get("entry")):
            for change in dicts(entry.get("changes")):
                kind, value = str(change.get("field", ""))[:60], change.get("value")
                if not isinstance(value, dict):
                    continue
                if kind == "messages":
                    yield from self._items_of_the_number(value)
                elif str(entry.get("id")) == self.business_account_id:
                    # What nothing here reads is kept by its name alone: some of it is people's messages.
                    payload = {"account": value} if kind == "account_update" else {}
                    yield WebhookItem(event_id_of(kind, entry.get("id"), entry.get("time"), value), kind, payload)

    def _items_of_the_number(self, value: dict[str, Any]) -> Iterator[WebhookItem]:
        metadata = value.get("metadata")
        if not isinstance(metadata, dict) or str(metadata.get("phone_number_id")) != self.phone_number_id:
            return  # one app's webhook serves all its numbers
        for status in dicts(value.get("statuses")):
            kind = str(status.get("status", ""))
            yield WebhookItem(event_id_of("status", status.get("id"), kind), f"status.{kind}"[:60], {"status": status})
        names = {str(one.get("wa_id")): one.get("profile") for one in dicts(value.get("contacts"))}
        for message in dicts(value.get("messages")):
            profile = names.get(str(message.get("from")))
            name = str(profile.get("name") or "") if isinstance(profile, dict) else ""
            kind = f"message.{message.get('type', '')}"[:60]
            yield WebhookItem(event_id_of("message", message.get("id")), kind, {"message": message, "name": name})

    def read_event(self, item: WebhookItem) -> list[Event]:
        payload = item.payload
        if "status" in payload:
            return list(read_status(payload["status"]))
        if "message" in payload:
            return list(read_message(payload["message"], payload["name"]))
        return list(read_account(payload["account"])) if "account" in payload else []

    def _trouble(self, response: http.Response, which: str) -> str:
        """Why a look-up failed, in a sentence for the person who asked."""
        code, advice, error = error_of(response)
        if error.get("code") == 100 or response.status == 404:
            advice = f"Meta does not know {which}, or the access token may not see it"
        elif code == ErrorCode.UNCONFIRMED:
            advice = "Not an answer that can be understood"
        said = error if "code" in error else {}  # without a code they are not Meta's words
        return http.scrub(in_words(response, advice, said), self._secrets())

    def _url(self, *segments: str) -> str:
        return "/".join((self.origin, GRAPH_VERSION, *segments))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.config.credentials.get('access_token', '')}"}

    def _secrets(self) -> list[str]:
        return [secret for secret in self.config.credentials.values() if secret]

    def _hidden(self, address: str, message: Message) -> list[str]:
        texts = [message.text, message.caption, *_strings(message.template_components)]
        lines = [line for text in texts for line in (text, _plain(text), *text.splitlines())]
        return [*self._secrets(), address, address.partition("@")[0], *lines]


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _content(message: Message) -> dict[str, Any]:
    """The part of the body that has the name of its type. Audio has no caption on WhatsApp: its text goes nowhere."""
    if message.type is MessageType.TEXT:
        return {"body": _plain(message.text), "preview_url": message.link_preview}
    if message.type is MessageType.TEMPLATE:
        language = {"code": message.template_language}
        return {"name": message.template_name, "language": language, "components": list(message.template_components)}
    content = {"link": message.media_url}
    if message.type is not MessageType.AUDIO and message.caption.strip():
        content["caption"] = _plain(message.caption)
    if message.type is MessageType.DOCUMENT:
        content["filename"] = message.filename or unquote(urlsplit(message.media_url).path.rpartition("/")[2]) or "document"
    return content


def _strings(value: Any) -> Iterator[str]:
    """What was filled in, without the words of the API itself: those are needed in its answers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            if key not in {"type", "sub_type", "index", "parameter_name", "format"}:
                yield from _strings(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _strings(one)


def _has_an_empty_value(components: tuple[Any, ...]) -> bool:
    parameters = [one for component in dicts(list(components)) for one in dicts(component.get("parameters"))]
    return any(one.get("type") == "text" and not str(one.get("text") or "").strip() for one in parameters)

"""What every call to WAHA shares: where it goes, with which key, and what a person enters about it."""

import re
from typing import ClassVar
from urllib.parse import quote

from django import forms
from django.conf import settings

from sessions_app.providers.base import ChannelProvider

ENGINES = ("WEBJS", "NOWEB", "GOWS", "WPP")
TAKES_CLIENT_ID = frozenset({"NOWEB", "GOWS"})  # since WAHA 2026.4.3
# Plain enough that no two parsers can read two different hosts out of it.
BASE_URL = re.compile(r"(?P<origin>https?://(?P<host>\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?)(/[\w.~-]+)*/?", re.ASCII)
_SESSION_NAME = re.compile(r"[A-Za-z0-9_-]{1,54}")


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
    check_numbers = forms.BooleanField(
        label="Check each number before its first message",
        required=False,
        initial=True,
        help_text="Asks WhatsApp once where a number is reached, at the pace of a message. Brazilian numbers need it: many accounts have "
        "no ninth digit, and what is sent to the other form never arrives.",
    )
    show_seen = forms.BooleanField(
        label="Mark the chat as read before a text",
        required=False,
        help_text="As somebody does who opens it. When it fails, the text goes.",
    )
    show_typing = forms.BooleanField(
        label="Show typing before a text",
        required=False,
        help_text="Typing begins and ends right before the text, without a wait between. When it fails, the text goes.",
    )
    convert_media = forms.BooleanField(
        label="Convert voice and video",
        required=False,
        help_text="WAHA converts each one when it is sent, which takes long. Not needed for voice in OGG/OPUS and video in MP4.",
    )
    callback_url = forms.CharField(
        label="Webhook address, as WAHA reaches it",
        required=False,
        help_text="Entered in WAHA when the session is created from here; files that were uploaded here are fetched from there too. "
        "Empty: created without a webhook.",
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

    def clean_callback_url(self) -> str:
        value = self.cleaned_data["callback_url"]
        if value and not BASE_URL.fullmatch(value):
            raise forms.ValidationError(
                "Enter the whole address of this session's webhook, with http:// or https://: no password, no query."
            )
        return value


def _secret(label: str, help_text: str) -> forms.CharField:
    return forms.CharField(
        label=label, required=False, help_text=help_text, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"})
    )


class WahaCredentials(forms.Form):
    api_key = _secret(
        "API key",
        "Empty: WAHA_API_KEY of this instance, for its own WAHA_API_URL only. A key with the actions read and send is enough to send; "
        "creating and pairing the session needs control and setting as well.",
    )
    webhook_secret = _secret(
        "Webhook secret",
        "A long word of your own choice. Entered in WAHA together with the webhook, it proves that a webhook comes from there. "
        "Empty: webhooks are refused, so there are no receipts and no replies.",
    )

    def clean_api_key(self) -> str:
        key = self.cleaned_data["api_key"]
        if not re.fullmatch(r"[\x21-\x7e]*", key):
            raise forms.ValidationError("An API key has no blanks and no special characters. Paste it again.")
        return key

    def clean_webhook_secret(self) -> str:
        secret = self.cleaned_data["webhook_secret"]
        if secret and not re.fullmatch(r"[\x21-\x7e]{16,200}", secret):
            raise forms.ValidationError("A webhook secret has 16 to 200 characters, without blanks and accents.")
        return secret


class WahaConnection(ChannelProvider):
    settings_form: ClassVar[type[forms.Form]] = WahaSettings
    credentials_form: ClassVar[type[forms.Form]] = WahaCredentials
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
    def webhook_secret(self) -> str:
        return self.config.credentials.get("webhook_secret", "")

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

    def _is_on(self, name: str, *, default: bool = False) -> bool:
        """A checkbox of the settings; `default` for sessions that were saved before there was one."""
        return self.config.settings.get(name, default) is True

    def _url(self, *segments: str) -> str:
        return f"{self.base_url}{self.api_prefix}/api/" + "/".join(quote(segment, safe="") for segment in segments)

    def _headers(self) -> dict[str, str]:
        return {"X-Api-Key": self.api_key} if self.api_key else {}

    def _secrets(self) -> list[str]:
        return [self.api_key, self.webhook_secret]

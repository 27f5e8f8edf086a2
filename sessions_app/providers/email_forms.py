"""What a session of the e-mail channel asks for."""

import re
from typing import Any

from django import forms
from django.core.validators import validate_email

from sessions_app.addresses import InvalidAddress, canonical
from sessions_app.providers.reachable import why_not_public

ADDRESS = "{address}"
DEFAULT_RATE = 2
SESSION, INSTANCE = "session", "instance"
PORTS = (25, 465, 587, 2525)


class EmailSettings(forms.Form):
    backend = forms.ChoiceField(
        label="Sent through",
        choices=[(SESSION, "An SMTP server, given here"), (INSTANCE, "The mail service of this instance (EMAIL_URL)")],
        initial=SESSION,
        help_text="For the mail service of this instance, leave server, port, encryption and user as they are.",
    )
    host = forms.CharField(label="SMTP server", required=False, help_text="Such as smtp.example.org: your mail provider names it.")
    port = forms.IntegerField(label="Port", initial=587, min_value=1, max_value=65535, help_text="587 with STARTTLS, 465 with TLS.")
    security = forms.ChoiceField(
        label="Encryption",
        choices=[("starttls", "STARTTLS"), ("tls", "TLS from the start"), ("none", "None: local servers only")],
        initial="starttls",
    )
    user = forms.CharField(label="User", required=False, help_text="Often the whole e-mail address. Empty: the server wants no login.")
    from_address = forms.CharField(label="Sender's address", help_text="One that the server lets you use. Bounces and replies come there.")
    from_name = forms.CharField(label="Sender's name", required=False, max_length=100)
    reply_to = forms.CharField(label="Reply to", required=False, help_text="Another address for replies. May be empty.")
    unsubscribe = forms.CharField(
        label="Unsubscribe link",
        required=False,
        help_text="An https: or a mailto: address, which mail programs show beside the sender. With {address} where the recipient belongs, "
        "the https address is also called by one click (POST, RFC 8058), as large mailbox providers require of bulk mail.",
    )
    rate = forms.FloatField(
        label="Messages per second",
        required=False,
        min_value=0.01,
        max_value=50,
        help_text=f"At most 80 % of what the mail provider allows. Empty: {DEFAULT_RATE}.",
    )

    def clean_host(self) -> str:
        host = self.cleaned_data["host"].strip()
        if host and not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?", host):
            raise forms.ValidationError("Enter the name of the server alone, such as smtp.example.org: no https://, no port, no blanks.")
        return host

    def clean_port(self) -> int:
        port = self.cleaned_data["port"]
        if port not in PORTS and port < 1024:
            raise forms.ValidationError("Not a port of mail servers: use 587, 465, 25, 2525, or one above 1023.")
        return port

    def clean_user(self) -> str:
        user = self.cleaned_data["user"].strip()
        if not user.isascii():
            raise forms.ValidationError("Mail servers take plain letters, digits and signs only, without accents.")
        return user

    def clean_from_address(self) -> str:
        return _clean_address(self.cleaned_data["from_address"])

    def clean_reply_to(self) -> str:
        reply_to = self.cleaned_data["reply_to"]
        return _clean_address(reply_to) if reply_to else ""

    def clean_unsubscribe(self) -> str:
        link = self.cleaned_data["unsubscribe"].strip()
        if link.startswith("mailto:"):
            validate_email(link.removeprefix("mailto:").partition("?")[0])
        elif link and (not link.startswith("https://") or why_not_public(link.replace(ADDRESS, "a"))):
            raise forms.ValidationError("Enter a public address that begins with https://, or mailto: and an e-mail address.")
        if not re.fullmatch(r"[\x21-\x3b=\x3f-\x7e]*", link):
            raise forms.ValidationError("Leave out blanks, angle brackets and letters with accents.")
        return link

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("backend") == SESSION and "host" in cleaned and not cleaned["host"]:
            self.add_error("host", "Enter the SMTP server, or choose the mail service of this instance above.")
        if cleaned.get("backend") == SESSION and cleaned.get("user") and cleaned.get("security") == "none":
            self.add_error("security", "With a user and a password choose STARTTLS or TLS: they would be readable on their way.")
        return cleaned


class EmailCredentials(forms.Form):
    password = forms.CharField(
        label="Password",
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="Of the SMTP user. With two-step login, an app password that the mail provider makes for you.",
    )

    def clean_password(self) -> str:
        password = self.cleaned_data["password"]
        if not re.fullmatch(r"[\x20-\x7e]*", password):
            raise forms.ValidationError("Mail servers take plain letters, digits and signs only, without accents.")
        return password


def _clean_address(text: str) -> str:
    try:
        return canonical("email", text, region="").value
    except InvalidAddress as error:
        raise forms.ValidationError(str(error)) from None

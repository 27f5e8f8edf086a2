"""The WAHA channel for the local stand-in: quick, because nobody can be reached by it.

Two locks keep a real number behind the floors of human pacing. Only loopback addresses are called; and every path begins with one that
the stand-in has and a WAHA has not, so that a real WAHA on this machine refuses the message as well.
"""

import ipaddress
import math
from typing import Any, ClassVar

from django import forms

from sessions_app.pacing import Metered
from sessions_app.providers.waha import WahaProvider
from sessions_app.providers.waha_connection import BASE_URL, WahaSettings

DEFAULT_BASE_URL = "http://127.0.0.1:3900"
PREFIX = "/_sandbox/waha"
NOT_LOCAL = "The sandbox is called on this machine only: 127.0.0.1, ::1 or localhost. To reach people, use the channel WhatsApp (WAHA)."


def is_loopback(base_url: str) -> bool:
    """By what is written, without asking a name server: 127.0.0.0/8, ::1, or the word localhost."""
    match = BASE_URL.fullmatch(base_url)
    if match is None:
        return False
    host = match["host"].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class SandboxSettings(WahaSettings):
    rate = forms.FloatField(
        label="Messages per second",
        required=False,
        min_value=0.01,
        max_value=200,
        help_text="Empty: 200, as much as the stand-in is meant for.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["base_url"].label = "Sandbox address"
        self.fields["base_url"].help_text = f"Of manage.py run_sandbox, on this machine. Empty: {DEFAULT_BASE_URL}."
        self.fields["engine"].initial = "NOWEB"
        self.fields["check_numbers"].initial = False

    def clean_base_url(self) -> str:
        value = super().clean_base_url()
        if value and not is_loopback(value):
            raise forms.ValidationError(NOT_LOCAL)
        return value

    def instance_base_url(self) -> str:
        return DEFAULT_BASE_URL


class SandboxProvider(WahaProvider):
    key = "sandbox"
    label = "Sandbox (local stand-in)"
    pacing: ClassVar[Metered] = Metered(rate=200, burst=32)
    settings_form = SandboxSettings
    absence_is_proof = True  # it keeps every message it accepted and writes it down before it answers
    checks_numbers = False  # nobody's account is at stake
    api_prefix = PREFIX

    @property
    def metered(self) -> Metered:
        """Never above `pacing`, whatever is stored; a low rate needs no more in flight than it sends in a second."""
        rate = self.config.settings.get("rate")
        if not isinstance(rate, (int, float)) or not 0 < rate < self.pacing.rate:
            return self.pacing
        return Metered(rate=rate, burst=min(self.pacing.burst, math.ceil(rate)))

    def default_base_url(self) -> str:
        return DEFAULT_BASE_URL

    @property
    def api_key(self) -> str:
        return self.config.credentials.get("api_key", "")  # the instance's key is for a real WAHA

    def misconfiguration(self) -> str:
        return super().misconfiguration() or ("" if is_loopback(self.base_url) else NOT_LOCAL)

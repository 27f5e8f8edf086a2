"""The fields of each channel on its session's page, filled with what a vendor hands out: saved, shown again, and handed to its check."""

import base64
from typing import Any

import pytest
from django.conf import settings
from django.urls import reverse

from sessions_app.forms import channel_class
from sessions_app.models import Session
from sessions_app.providers.base import SessionCheck, SessionState
from tests.factories import make_session


def deliver(*, address: str, message: dict[str, Any], client_ref: str) -> None:
    """A task of a company's own."""


WHSEC = "whsec_" + base64.b64encode(bytes(range(32))).decode()
# channel -> (settings, credentials), as a person types them
FILLED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "waha": (
        {"base_url": "http://waha.example.org:3000", "session": "default", "engine": "NOWEB", "check_numbers": "on", "show_typing": "on"},
        {"api_key": "k" * 32},
    ),
    "whatsapp_cloud": (
        {"phone_number_id": "106540352242922", "business_account_id": "102290129340398", "rate": "20"},
        {"access_token": "EAAG" + "x" * 60, "app_secret": "a" * 32, "verify_token": "a-word-of-ours-1234"},
    ),
    "twilio": ({"account_sid": "AC" + "0" * 32, "sender": "+12025550100", "rate": "1"}, {"auth_token": "f" * 32}),
    "telegram": ({}, {"token": "123456789:AAH" + "x" * 32}),
    "slack": ({}, {"bot_token": "xoxb-12345678901-1234567890123-abcdefghijklmnopqrstuvwx", "signing_secret": "0" * 32}),
    "webhook": ({"url": "https://hooks.example.org/in", "on_404": "INVALID_RECIPIENT", "on_422": "FATAL"}, {"signing_secret": WHSEC}),
    "smsdev": ({"rate": "5"}, {"api_key": "K" * 64}),
    "email": (
        {
            "backend": "session",
            "host": "smtp.example.org",
            "port": "587",
            "security": "starttls",
            "user": "shop",
            "from_address": "a@b.org",
        },
        {"password": "p4ss w0rd"},
    ),
    "apprise": ({"rate": "2"}, {"url": "ntfys://user:password@ntfy.example.org/shop"}),
    "internal_queue": ({"function": f"{__name__}.deliver"}, {}),
    "sandbox": ({"base_url": "http://127.0.0.1:3900", "session": "default", "engine": "NOWEB"}, {}),
    "mock": ({}, {}),
}


def test_every_channel_is_here():
    assert set(FILLED) == set(settings.CHANNELS)


@pytest.mark.parametrize("channel", FILLED)
def test_it_is_filled_and_checked(admin_client, said, monkeypatch, channel):
    typed, secrets = FILLED[channel]
    provider, seen = channel_class(channel), []

    def check_session(self, deadline):
        seen.append(self.config)
        return SessionCheck(SessionState.CONNECTED)

    monkeypatch.setattr(provider, "check_session", check_session)
    session = make_session(name="Sales", channel=channel, settings={}, credentials={}, status=Session.Status.DISCONNECTED)
    page = reverse("admin:sessions_app_session_change", args=[session.pk])
    fields = {f"setting-{name}": value for name, value in typed.items()} | {f"credential-{name}": value for name, value in secrets.items()}
    shown = admin_client.get(page).content.decode()
    assert all(f'name="{name}"' in shown for name in fields)
    response = admin_client.post(page, {"name": "Sales", "time_zone": "UTC", **fields})
    assert response.status_code == 302, (response.context["errors"], [form.errors for form in (response.context["adminform"].form,)])
    response = admin_client.post(reverse("admin:sessions_app_session_check_connection", args=[session.pk]), {"_form_submitted": "True"})
    assert said(response)[-1] == 'Session "Sales" is connected.'
    [config] = seen
    assert {name: str(config.settings[name]) for name in typed if typed[name] != "on"} == {
        name: str(type(config.settings[name])(value)) for name, value in typed.items() if value != "on"
    }
    assert {name: config.credentials[name] for name in secrets} == secrets
    again = admin_client.get(page).content.decode()
    assert not [secret for secret in secrets.values() if secret in again]

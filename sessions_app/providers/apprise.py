"""Anything that Apprise (github.com/caronc/apprise) can notify over HTTP: one URL, one message, one target.

Apprise says only "taken" or "not taken". Why not is read from its log lines, of which the words are its plugins' own: error=<HTTP status>
where the service answered, and the socket's error where none did. So TRANSIENT and the refusals are believed only when the target is a
single one, nothing was logged as sent, and the line is clear. There are no message ids, no receipts and no look-up.

Its plugins open their connections themselves: what a host name resolves to is not looked at here, only how it is written.
"""

import logging
import re
import sys
import uuid
from collections.abc import Iterable
from math import ceil
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, urlsplit

from django import forms
from django.conf import settings

from sessions_app.pacing import Metered
from sessions_app.providers import http
from sessions_app.providers.base import ChannelProvider, Deadline, ErrorCode, Message, SendResult, SessionCheck, SessionState
from sessions_app.providers.reachable import why_not_public

ADDRESS = "{address}"
DEFAULT_RATE = 1
SOCKET_SECONDS = 4.0  # to connect, and again for each read
TAKES_AT_MOST = 10.0  # seconds; a call cannot be cut short, so it does not begin with less than this
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
# Parameters by which a plugin would read a file of this machine.
_FILES = re.compile(r"(?i).*(file|template|pem|cert|attach)")

_NEVER_CONNECTED = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeoutError|Failed to establish a new connection")
_SENT = re.compile(r"Sent\b|.*\bsent successfully\b")
_BY_STATUS = {
    400: (ErrorCode.FATAL, "The service refused the message"),
    401: (ErrorCode.DISCONNECTED, "The service refused the keys in the URL"),
    403: (ErrorCode.DISCONNECTED, "The service refused the keys in the URL"),
    404: (ErrorCode.INVALID_RECIPIENT, "The service does not know the recipient"),
    410: (ErrorCode.INVALID_RECIPIENT, "The recipient is gone"),
    429: (ErrorCode.RATE_LIMIT, "Too many requests"),
}


class AppriseCredentials(forms.Form):
    url = forms.CharField(
        label="Apprise URL",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="For one target, as github.com/caronc/apprise/wiki describes it, such as ntfys://ntfy.example.org/{address}. "
        "Write {address} where the recipient belongs. Without it every message goes to the same target, and the recipients' addresses are "
        "ignored. It holds the service's keys, so it is never shown again.",
    )

    def clean_url(self) -> str:
        url = self.cleaned_data["url"].strip()
        if problem := why_not(url):
            raise forms.ValidationError(problem)
        return url


class AppriseSettings(forms.Form):
    rate = forms.FloatField(
        label="Messages per second",
        required=False,
        min_value=0.01,
        max_value=10,
        help_text=f"At most 80 % of what the service takes. Empty: {DEFAULT_RATE}.",
    )


class AppriseProvider(ChannelProvider):
    key = "apprise"
    label = "Apprise (100+ services)"
    address_kind = "any"
    pacing: ClassVar[Metered] = Metered(rate=10, burst=4)
    takes = frozenset({"subject", "html"})
    settings_form: ClassVar[type[forms.Form]] = AppriseSettings
    credentials_form: ClassVar[type[forms.Form]] = AppriseCredentials

    @property
    def url(self) -> str:
        return self.config.credentials.get("url", "")

    @property
    def metered(self) -> Metered:
        rate = self.config.settings.get("rate")
        if not isinstance(rate, (int, float)) or not 0 < rate <= self.pacing.rate:
            rate = DEFAULT_RATE
        return Metered(rate=rate, burst=min(self.pacing.burst, ceil(rate)))

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        if message.type not in self.message_types:
            return SendResult.refused(ErrorCode.MISCONFIGURED, f"{self.label} does not send {message.type.value} messages.")
        if not message.text.strip():
            return SendResult.refused(ErrorCode.FATAL, "The text is empty.")
        if problem := why_not(self.url):
            return SendResult.refused(ErrorCode.MISCONFIGURED, problem)
        target = _target(self.url.replace(ADDRESS, quote(address, safe="")))
        if target is None or len(target) != 1:
            return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "With this address in it, the URL is none that Apprise understands.")
        apprise = _apprise()
        caller = apprise.Apprise(asset=target.asset)
        caller.add(target)
        body, form = (message.html, apprise.NotifyFormat.HTML) if message.html else (message.text, apprise.NotifyFormat.TEXT)
        if deadline.remaining < TAKES_AT_MOST:
            return SendResult.unsent(f"Less than {TAKES_AT_MOST:.0f} seconds were left, and a call of Apprise may take as long")
        with caller.notify(body=body, title=message.subject, body_format=form, log_level=logging.DEBUG) as result:
            if result:
                return SendResult.accepted()
            lines = [entry.message for entry in result.logs()]
        return self._read(lines, self._hidden(address, message))

    def _read(self, lines: list[str], hidden: Iterable[str]) -> SendResult:
        """The lines that Apprise wrote about a message that was not taken."""
        said = " ".join(lines)
        found = re.findall(r"error=([1-5][0-9]{2})\b", said)
        if any(_SENT.match(line) for line in lines):
            return SendResult.refused(ErrorCode.UNCONFIRMED, "Apprise failed after a part of the message was sent.")
        if len(set(found)) == 1:
            status = int(found[0])
            code, words = _BY_STATUS.get(status, (ErrorCode.UNCONFIRMED, "The service failed, perhaps after sending"))
            if code == ErrorCode.INVALID_RECIPIENT and ADDRESS not in self.url:
                code, words = ErrorCode.MISCONFIGURED, "The service does not know the target: check the URL"
            return SendResult.refused(code, http.scrub(f"{words} ({status}).", hidden), http_status=status)
        if not found and _NEVER_CONNECTED.search(said):
            return SendResult.refused(ErrorCode.TRANSIENT, "The service cannot be reached: no connection was made.")
        return SendResult.refused(ErrorCode.UNCONFIRMED, "Apprise says that it failed, and not why: it may have been sent.")

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if problem := why_not(self.url):
            return SessionCheck(SessionState.DISCONNECTED, problem)
        detail = "The URL is understood. Apprise cannot try it without a message: the first one will show."
        return SessionCheck(SessionState.CONNECTED, detail)

    def _hidden(self, address: str, message: Message) -> list[str]:
        return [self.url, address, message.text, message.subject, message.html]


def why_not(url: str) -> str:
    """A sentence on what is wrong with the URL, without anything of it; "" for one that may be used."""
    if not url:
        return "The Apprise URL is missing. Enter it in the session."
    if re.search(r"\s", url) or url.count("://") != 1:
        return "Enter one URL, without blanks."
    if any(_FILES.fullmatch(name) for name, _ in parse_qsl(urlsplit(url).query.replace("?", "&"), keep_blank_values=True)):
        return "The URL names a file of this machine. Apprise may not read files here."
    target = _target(url.replace(ADDRESS, "12025550101"))
    if target is None:
        return "Apprise does not understand this URL. Compare it with github.com/caronc/apprise/wiki."
    return _why_not_target(target)


def _why_not_target(target: Any) -> str:
    apprise = _apprise()
    modules = {kind.__module__ for kind in type(target).__mro__ if kind.__module__.startswith("apprise.plugins.")}
    speaks_http = any(hasattr(sys.modules[name], "requests") for name in modules)
    if not speaks_http or target.service_name == "Vapid Web Push Notifications":
        return "Only services that are called over HTTP can be used here. For e-mail there is a channel of its own."
    if any(isinstance(value, apprise.AppriseAttachment) and len(value) for value in vars(target).values()):
        return "The URL names a file of this machine. Apprise may not read files here."
    if len(target) != 1:
        return "The URL must name one target. If one of several fails, nobody could tell who got the message."
    if target.overflow_mode == apprise.OverflowMode.SPLIT:
        return "Take overflow=split out of the URL: a message in parts may arrive in part."
    if any("{host}" in template for template in target.templates):
        host = f"[{target.host}]" if ":" in str(target.host) else target.host
        port = f":{target.port}" if target.port else ""
        return why_not_public(f"http://{host}{port}/", allow=LOOPBACK if settings.DEBUG else frozenset())
    return ""


def _target(url: str) -> Any:
    """The plugin of a URL, ready for one call; None when there is none. It never sleeps, retries, redirects or waits longer than we can."""
    apprise = _apprise()
    # In this thread; what the log lines need stays in memory.
    asset = apprise.AppriseAsset(async_mode=False, service_timeout=0, result_log_disk_size=0, app_id="Paceline")
    target = apprise.Apprise.instantiate(url, asset=asset)
    if target is not None:
        target.retry, target.wait, target.redirects = 0, 0.0, False
        target.socket_connect_timeout = target.socket_read_timeout = SOCKET_SECONDS
        target.request_rate_per_sec = 0
    return target


def _apprise() -> Any:
    """Imported when it is needed: its plugins take a quarter of a second. Its log lines quote URLs and answers: they stay out of ours."""
    import apprise

    logger = logging.getLogger("apprise")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return apprise

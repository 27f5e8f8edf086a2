"""Where events are sent to: what a session's configuration says, how a request is signed, and when it is tried again."""

import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

POLICIES = ("linear", "exponential", "constant")
_ULID_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"


class BadHook(ValueError):
    """A configuration of webhooks that the stand-in cannot use."""


@dataclass(frozen=True)
class Hook:
    url: str
    events: frozenset[str]
    key: bytes = b""
    policy: str = "constant"
    delay: float = 2.0  # seconds
    attempts: int = 15  # in all, with the first
    headers: tuple[tuple[str, str], ...] = ()

    def wants(self, event: str) -> bool:
        return event in self.events or "*" in self.events

    def back_off(self, attempt: int, random: Random) -> float:
        """Seconds until the next, after `attempt` of them."""
        if self.policy == "constant":
            return self.delay
        if self.policy == "linear":
            return self.delay * attempt
        return self.delay * 2 ** (attempt - 1) * random.uniform(0.8, 1.2)

    def request_headers(self, body: bytes) -> dict[str, str]:
        """Of one event for this hook, the same at each attempt."""
        signed = {}
        if self.key:
            signature = hmac.new(self.key, body, hashlib.sha512).hexdigest()
            signed = {"X-Webhook-Hmac": signature, "X-Webhook-Hmac-Algorithm": "sha512"}
        marks = {"X-Webhook-Request-Id": ulid(), "X-Webhook-Timestamp": str(int(time.time() * 1000))}
        return {"Content-Type": "application/json", **dict(self.headers), **marks, **signed}


def ulid() -> str:
    number = int(time.time() * 1000) << 80 | secrets.randbits(80)
    return "".join(_ULID_DIGITS[number >> shift & 31] for shift in range(125, -1, -5))


def parse(entries: Any) -> tuple[Hook, ...]:
    """In the shape of WAHA's `config.webhooks`. Raises BadHook."""
    if entries is None:
        return ()
    if not isinstance(entries, list):
        raise BadHook("webhooks must be an array")
    return tuple(_hook(entry) for entry in entries)


def _hook(entry: Any) -> Hook:
    if not isinstance(entry, dict):
        raise BadHook("each value in webhooks must be an object")
    events = entry.get("events")
    if not isinstance(events, list) or not all(isinstance(event, str) for event in events):
        raise BadHook("webhooks.events must be an array of names")
    retries, secret = entry.get("retries") or {}, entry.get("hmac") or {}
    if not isinstance(retries, dict) or not isinstance(secret, dict):
        raise BadHook("webhooks.retries and webhooks.hmac must be objects")
    policy, delay, attempts = retries.get("policy") or "constant", retries.get("delaySeconds", 2), retries.get("attempts", 15)
    if policy not in POLICIES:
        raise BadHook(f"webhooks.retries.policy must be one of {', '.join(POLICIES)}")
    if not isinstance(delay, (int, float)) or not 0 <= delay <= 86_400:
        raise BadHook("webhooks.retries.delaySeconds must be a number of seconds, at most a day")
    if not isinstance(attempts, int) or not 0 <= attempts <= 100:
        raise BadHook("webhooks.retries.attempts must be a number up to 100")
    key = secret.get("key") or ""
    if not isinstance(key, str):
        raise BadHook("webhooks.hmac.key must be a string")
    return Hook(
        _local(entry.get("url")),
        frozenset(events),
        key.encode(),
        policy,
        delay,
        max(1, attempts),
        _headers(entry.get("customHeaders") or []),
    )


def _headers(entries: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(entries, Sequence) or not all(isinstance(one, dict) for one in entries):
        raise BadHook("webhooks.customHeaders must be an array of objects")
    headers = tuple((one.get("name"), one.get("value")) for one in entries)
    if not all(isinstance(part, str) and part.isascii() and part.isprintable() for header in headers for part in header):
        raise BadHook("webhooks.customHeaders must have a name and a value, of plain characters")
    return headers


def _local(url: Any) -> str:
    """The stand-in reaches nobody: it calls this machine only, and without TLS."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host, _ = parts.hostname or "", parts.port
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = False
    if not is_here or parts.scheme != "http" or parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise BadHook("webhooks.url must be an http address on this machine, such as http://127.0.0.1:8000/api/webhooks/...")
    return url


def signable(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

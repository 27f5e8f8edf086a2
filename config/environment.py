"""The environment variables that Paceline reads: their names, defaults and meaning, and the refusal of what they cannot mean.

`.env.example` lists the same variables; a test holds the two together.
"""

import difflib
import os
import re
import secrets
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import environ
import phonenumbers
from cryptography.fernet import Fernet
from django.conf import global_settings
from django.core.exceptions import ImproperlyConfigured

Parse = Callable[[str], Any]


def _text(value: str) -> str:
    return value


def _token(value: str) -> str:
    """Sent in a header, so it has no spaces; long enough that nobody guesses it."""
    if value and (len(value) < 16 or not value.isprintable() or " " in value):
        raise ValueError("it must have 16 characters or more, and no spaces: python -c 'import secrets; print(secrets.token_urlsafe(32))'")
    return value


def _bool(value: str) -> bool:
    """Stricter than django-environ, which takes every unknown word for False: DEBUG=ture must not pass."""
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if value.lower() not in known:
        raise ValueError("it must be true or false")
    return known[value.lower()]


def _whole_number(at_least: int) -> Parse:
    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < at_least:
            raise ValueError(f"it must be a whole number, {at_least} or more")
        return int(value)

    return parse


def _whole_number_or_none(value: str) -> int | None:
    return _whole_number(at_least=1)(value) if value else None


def _one_of(*allowed: str) -> Parse:
    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return value

    return parse


def _list(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _zone(value: str) -> str:
    try:
        zoneinfo.ZoneInfo(value)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise ValueError("it must be an IANA time zone such as America/Sao_Paulo") from None
    return value


def _language(value: str) -> str:
    known = {code for code, _ in global_settings.LANGUAGES}
    if value.lower() not in known and value.lower().partition("-")[0] not in known:
        raise ValueError("it must be a language code such as en or pt-br")
    return value.lower()


def _region(value: str) -> str:
    if value and value not in phonenumbers.SUPPORTED_REGIONS:
        raise ValueError("it must be a two-letter country code such as BR, or empty")
    return value


def _url(*schemes: str, path: bool = False) -> Parse:
    """`path`: the URL must name something after the host. The messages never repeat the URL: it may hold a password."""

    def parse(value: str) -> str:
        if not value:
            return value
        if not value.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError(f"it must start with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        try:
            parts = urlsplit(value)
            host = parts.hostname
            _ = parts.port
        except ValueError:
            raise ValueError(
                "host or port cannot be read; characters such as / ? # @ in a password are written as %2F %3F %23 %40"
            ) from None
        if path and not parts.path.strip("/"):
            raise ValueError(f"the name after the host is missing, as in {schemes[0]}://user:password@host:port/name")
        if not host and not (parts.query or parts.path.strip("/")):
            raise ValueError("the host is missing")
        return value

    return parse


def _web_url(value: str) -> str:
    _url("http", "https")(value)
    if value and not urlsplit(value).hostname:
        raise ValueError("the host is missing")
    return value


def _sentry_dsn(value: str) -> str:
    _web_url(value)
    if value and not (urlsplit(value).username and urlsplit(value).path.strip("/")):
        raise ValueError("it must look like https://key@host/project")
    return value


def _email_url(value: str) -> str:
    scheme, found, _ = value.partition("://")
    if value and not (found and scheme in environ.Env.EMAIL_SCHEMES):
        raise ValueError(f"it must start with one of {', '.join(f'{name}://' for name in environ.Env.EMAIL_SCHEMES)}")
    if scheme.startswith("smtp"):
        _url(scheme)(value)
    return value


def _apprise_urls(value: str) -> list[str]:
    """Separated by spaces or commas before the next scheme: an Apprise URL may hold commas of its own. The messages never repeat one."""
    urls = [part.strip() for part in re.split(r"[\s,]+(?=[A-Za-z][A-Za-z0-9+.-]*://)", value) if part.strip()]
    if not all(re.match(r"[A-Za-z][A-Za-z0-9+.-]*://.", url) for url in urls):
        raise ValueError("each must be an Apprise URL such as mailto://user:password@example.org or slack://a/b/c")
    return urls


def _web_urls(value: str) -> list[str]:
    return [_web_url(part) for part in _list(value)]


def _fernet_keys(value: str) -> list[str]:
    keys = _list(value)
    for key in keys:
        try:
            Fernet(key)
        except ValueError:
            raise ValueError("each key must be 32 url-safe base64-encoded bytes, as Fernet.generate_key() makes them") from None
    return keys


# name -> (default as it would be written, meaning)
VARIABLES: dict[str, tuple[str, Parse]] = {
    "SECRET_KEY": ("", _text),
    "DEBUG": ("true", _bool),
    "ALLOWED_HOSTS": ("", _list),
    "CSRF_TRUSTED_ORIGINS": ("", _web_urls),
    "SECURE_SSL_REDIRECT": ("false", _bool),
    "DATABASE_URL": ("", _url("postgres", "postgresql", path=True)),
    "TIME_ZONE": ("UTC", _zone),
    "LANGUAGE_CODE": ("en", _language),
    "DEFAULT_REGION": ("", _region),
    "CREDENTIALS_KEYS": ("", _fernet_keys),
    "WAHA_API_URL": ("", _web_url),
    "WAHA_API_KEY": ("", _text),
    "SCHEDULE_GRACE_SECONDS": ("120", _whole_number(at_least=0)),
    "SEND_DEADLINE_SECONDS": ("30", _whole_number(at_least=1)),
    "RECOVERY_POLICY": ("pause", _one_of("pause", "continue")),
    "ENGINE_DRIVER": ("service", _one_of("service", "schedule")),
    "CAMPAIGN_RETRY_JOB_TOKEN": ("", _token),
    "CAMPAIGN_RETRY_JOB_URL": ("", _web_url),
    "CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN": ("false", _bool),
    "CAMPAIGN_RETRY_BATCH_SIZE": ("100", _whole_number(at_least=1)),
    "CAMPAIGN_RETRY_MAX_CAMPAIGNS": ("20", _whole_number(at_least=1)),
    "CAMPAIGN_RETRY_JOB_LOCK_TTL_SECONDS": ("300", _whole_number(at_least=10)),
    "CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS": ("300", _whole_number(at_least=1)),
    "CAMPAIGN_RETRY_DAEMON_TIMEOUT_MS": ("30000", _whole_number(at_least=100)),
    "CAMPAIGN_RETRY_TENANT_ID": ("", _text),
    "CAMPAIGN_RETRY_CAMPAIGN_ID": ("", _whole_number_or_none),
    "CAMPAIGN_RETRY_ALERT_WEBHOOK_URL": ("", _web_url),
    "CAMPAIGN_RETRY_ALERT_ON_FAILURE": ("true", _bool),
    "ALERT_URLS": ("", _apprise_urls),
    "HEALTHCHECK_TOKEN": ("", _token),
    "RETRY_WORKER_STALE_MINUTES": ("30", _whole_number(at_least=1)),
    "WEBHOOK_FAILURE_RATE_THRESHOLD_PER_HOUR": ("20", _whole_number(at_least=1)),
    "PUBLIC_URL": ("", _web_url),
    "OPS_BASE_URL": ("http://127.0.0.1:8000", _web_url),
    "REDIS_URL": ("", _url("redis", "rediss", "unix")),
    "EMAIL_URL": ("", _email_url),
    "SENTRY_DSN": ("", _sentry_dsn),
    "LOG_LEVEL": ("INFO", _one_of("DEBUG", "INFO", "WARNING", "ERROR")),
}
_REQUIRED_IN_PRODUCTION = ("SECRET_KEY", "ALLOWED_HOSTS", "CREDENTIALS_KEYS")


class Environment:
    """Reads all of the variables above at once, so that a value which cannot be meant is refused at the start, with its name.

    What is set in the process goes before what `env_file` says.
    """

    def __init__(self, env_file: Path, var: Path) -> None:
        self._var = var
        if env_file.exists():
            environ.Env.read_env(env_file)
        self._values = {name: self._read(name) for name in VARIABLES}
        missing = [name for name in _REQUIRED_IN_PRODUCTION if not self._values["DEBUG"] and not self._values[name]]
        if missing:
            raise ImproperlyConfigured(f"with DEBUG=false these must be set: {', '.join(missing)}; see .env.example")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def _read(self, name: str) -> Any:
        # Not through environ.Env: it takes a value that begins with $ for the name of another variable.
        default, parse = VARIABLES[name]
        try:
            return parse(os.environ.get(name, default).strip())
        except ValueError as error:
            raise ImproperlyConfigured(f"{name} in the environment is not usable: {error}; see .env.example") from None

    def parsed(self, name: str, parse: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """A URL variable taken apart by django-environ (`environ.Env.db_url_config`); one that it cannot read is refused by name."""
        try:
            return parse(self._values[name])
        except (ValueError, KeyError, ImproperlyConfigured):
            raise ImproperlyConfigured(f"{name} in the environment is not usable: the URL cannot be read; see .env.example") from None

    def secret(self, name: str, make: Callable[[], str]) -> Any:
        """The variable; on a development instance one that is generated once and kept in var/."""
        value = self._values[name]
        if value:
            return value
        kept = self._var / name.lower()
        if not kept.exists():
            self._var.mkdir(parents=True, exist_ok=True)
            _write_once(kept, make())
        try:
            found = VARIABLES[name][1](kept.read_text().strip())
        except ValueError as error:
            raise ImproperlyConfigured(f"{kept} is not usable: {error}; restore it, or set {name}") from None
        if not found:
            raise ImproperlyConfigured(f"{kept} is empty: restore it, or set {name}")
        return found


def unread_names(env_file: Path) -> list[tuple[str, str]]:
    """What `env_file` sets and nothing reads, each with the known name that looks most like it (or ""); a line that is no setting too."""
    if not env_file.exists():
        return []
    unread = []
    for line in env_file.read_text().splitlines():
        name = line.strip().removeprefix("export ").partition("=")[0].strip()
        if not line.strip() or line.lstrip().startswith("#") or (name in VARIABLES and re.match(rf"(export )?{name}=", line)):
            continue
        unread.append((name, next(iter(difflib.get_close_matches(name.upper(), VARIABLES, n=1)), "")))
    return unread


def _write_once(path: Path, text: str) -> None:
    """Two processes that start together agree on one key: the first link wins, and no reader sees half a file."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    draft.touch(mode=0o600)
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # what is encrypted with it is of no use without it
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def new_secret_key() -> str:
    return secrets.token_urlsafe(50)


def new_credentials_key() -> str:
    return Fernet.generate_key().decode()

"""The environment variables that Paceline reads: their names, kinds, defaults, and the refusal of what they cannot mean.

`.env.example` lists the same variables; a test holds the two together.
"""

import secrets
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environ
import phonenumbers
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation.trans_real import language_code_re

Check = Callable[[Any], Any]


def _zone(value: str) -> str:
    zoneinfo.ZoneInfo(value)
    return value


def _language(value: str) -> str:
    if not language_code_re.match(value):
        raise ValueError("not a language code such as en or pt-br")
    return value


def _region(value: str) -> str:
    if value and value not in phonenumbers.SUPPORTED_REGIONS:
        raise ValueError("not a two-letter country code such as BR")
    return value


def _positive(value: int) -> int:
    if value < 1:
        raise ValueError("must be 1 or more")
    return value


def _not_negative(value: int) -> int:
    if value < 0:
        raise ValueError("must be 0 or more")
    return value


def _fernet_keys(keys: list[str]) -> list[str]:
    for key in keys:
        Fernet(key)
    return keys


def _one_of(*allowed: str) -> Check:
    def check(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of: {', '.join(allowed)}")
        return value

    return check


def _url(*schemes: str) -> Check:
    def check(value: str) -> str:
        if value and not value.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError(f"must start with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return value

    return check


def _bool(value: str) -> bool:
    """Stricter than django-environ, which takes every unknown word for False: DEBUG=ture must not pass."""
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if value.strip().lower() not in known:
        raise ValueError("must be true or false")
    return known[value.strip().lower()]


# name -> (cast, default, check)
VARIABLES: dict[str, tuple[Any, Any, Check | None]] = {
    "SECRET_KEY": (str, "", None),
    "DEBUG": (str, "true", _bool),
    "ALLOWED_HOSTS": (list, [], None),
    "CSRF_TRUSTED_ORIGINS": (list, [], None),
    "SECURE_SSL_REDIRECT": (str, "false", _bool),
    "DATABASE_URL": (str, "", _url("postgres", "postgresql")),
    "TIME_ZONE": (str, "UTC", _zone),
    "LANGUAGE_CODE": (str, "en", _language),
    "DEFAULT_REGION": (str, "", _region),
    "CREDENTIALS_KEYS": (list, [], _fernet_keys),
    "WAHA_API_URL": (str, "", _url("http", "https")),
    "WAHA_API_KEY": (str, "", None),
    "SCHEDULE_GRACE_SECONDS": (int, 120, _not_negative),
    "SEND_DEADLINE_SECONDS": (int, 30, _positive),
    "RECOVERY_POLICY": (str, "pause", _one_of("pause", "continue")),
    "ENGINE_DRIVER": (str, "service", _one_of("service", "schedule")),
    "REDIS_URL": (str, "", _url("redis", "rediss", "unix")),
    "EMAIL_URL": (str, "", None),
    "SENTRY_DSN": (str, "", _url("http", "https")),
    "LOG_LEVEL": (str, "INFO", _one_of("DEBUG", "INFO", "WARNING", "ERROR")),
}


class Environment:
    """Reads the variables above once; a value that cannot be meant is refused with the variable's name."""

    def __init__(self, env_file: Path, var: Path) -> None:
        self._var = var
        if env_file.exists():
            environ.Env.read_env(env_file)
        self._env = environ.Env()

    def __getitem__(self, name: str) -> Any:
        cast, default, check = VARIABLES[name]
        try:
            value = self._env.get_value(name, cast=cast, default=default)
            return check(value) if check else value
        except (ValueError, KeyError, zoneinfo.ZoneInfoNotFoundError, ImproperlyConfigured) as error:
            raise ImproperlyConfigured(f"{name} in the environment is not usable: {error}. See .env.example.") from None

    def parsed(self, name: str, parse: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """A URL variable taken apart by django-environ; a malformed one is refused by name."""
        try:
            return parse(self._env, name)
        except (ValueError, KeyError, ImproperlyConfigured) as error:
            raise ImproperlyConfigured(f"{name} in the environment is not usable: {error}. See .env.example.") from None

    def secret(self, name: str, make: Callable[[], str]) -> Any:
        """The variable; on a development instance one that is generated once and kept in var/. Refused when missing elsewhere."""
        value = self[name]
        if value:
            return value
        if not self["DEBUG"]:
            raise ImproperlyConfigured(f"{name} must be set when DEBUG=false. See .env.example.")
        kept = self._var / name.lower()
        if not kept.exists():
            self._var.mkdir(exist_ok=True)
            _write_once(kept, make())
        text = kept.read_text().strip()
        return [text] if isinstance(value, list) else text

    def required_in_production(self, name: str) -> Any:
        value = self[name]
        if not value and not self["DEBUG"]:
            raise ImproperlyConfigured(f"{name} must be set when DEBUG=false. See .env.example.")
        return value


def _write_once(path: Path, text: str) -> None:
    """Two processes that start together agree on one key: the first link wins, and no reader sees half a file."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    draft.touch(mode=0o600)
    draft.write_text(text)
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

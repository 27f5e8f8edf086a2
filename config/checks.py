"""What `manage.py check` says about the settings."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning

from config.environment import unread_names


def unread_settings(**_kwargs: Any) -> list[CheckMessage]:
    """A misspelt name in `.env` would otherwise leave its default in place without a word."""
    return [
        Warning(
            f"{name} in .env is read by nothing",
            hint=f"Did you mean {nearest}?" if nearest else "The names that are read, written NAME=value, are in .env.example.",
            id="config.W001",
        )
        for name, nearest in unread_names(settings.ENV_FILE)
    ]

"""Which channels there are: settings.CHANNELS, key -> dotted path. A new channel is a line there, and no migration."""

from functools import cache

from django.conf import settings
from django.utils.module_loading import import_string

from sessions_app.providers.base import ChannelProvider


class UnknownChannel(LookupError):
    """The key stands in no line of settings.CHANNELS."""

    def __init__(self, key: str) -> None:
        super().__init__(f'There is no channel "{key}". Known channels: {", ".join(sorted(settings.CHANNELS))}.')


@cache
def _load(path: str) -> type[ChannelProvider]:
    return import_string(path)


def provider_class(key: str) -> type[ChannelProvider]:
    try:
        path = settings.CHANNELS[key]
    except KeyError:
        raise UnknownChannel(key) from None
    return _load(path)


def choices() -> list[tuple[str, str]]:
    """(key, label) of every channel, by label: for forms."""
    return sorted(((key, provider_class(key).label) for key in settings.CHANNELS), key=lambda pair: pair[1])

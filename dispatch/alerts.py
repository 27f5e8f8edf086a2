"""One place for what somebody should be told. For now it goes to the log, at ERROR, where Sentry and log watchers see it."""

import logging
from typing import Any

logger = logging.getLogger("paceline.alerts")


def alert(kind: str, **facts: Any) -> None:
    """Never blocks and never raises: an alert must not break the sending it is about."""
    logger.error(kind, extra=facts)

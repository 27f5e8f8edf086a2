"""Log lines: a constant message, and the facts after it as key=value."""

import logging

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request", "taskName"}


class FactsFormatter(logging.Formatter):
    """`2026-11-30 10:00:00 INFO sent session=Sales address=+55119****0101`: what `extra=` carries is printed, in its order.

    Times are in the zone of TIME_ZONE. A fact stays one word on one line, whatever is in it.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        facts = [f"{name}={_quoted(value)}" for name, value in vars(record).items() if name not in _STANDARD]
        return " ".join([super().formatMessage(record), *facts])


def _quoted(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(character in " \"'=" for character in text)
    return text if plain else repr(text)

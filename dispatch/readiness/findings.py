"""What a look at one thing comes to, and how many such looks stand side by side without one that breaks ending the others."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db import Error as DatabaseTrouble
from django.db import ProgrammingError

logger = logging.getLogger("paceline.readiness")


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Verdict:
    level: Level
    sentence: str
    remedy: str = ""  # the command or the edit that mends it; "" when there is nothing to mend


def ok(sentence: str) -> Verdict:
    return Verdict(Level.OK, sentence)


def warning(sentence: str, remedy: str) -> Verdict:
    return Verdict(Level.WARNING, sentence, remedy)


def error(sentence: str, remedy: str) -> Verdict:
    return Verdict(Level.ERROR, sentence, remedy)


@dataclass(frozen=True)
class Check:
    key: str  # also the heading of its section in docs/readiness.md
    find: Callable[[], Iterable[Verdict]]
    needs_database: bool = False


@dataclass(frozen=True)
class Finding:
    key: str
    verdict: Verdict

    @property
    def section(self) -> str:
        return f"docs/readiness.md#{self.key}"

    @property
    def is_error(self) -> bool:
        return self.verdict.level is Level.ERROR

    def as_dict(self) -> dict[str, Any]:
        verdict = self.verdict
        return {"key": self.key, "level": verdict.level, "sentence": verdict.sentence, "remedy": verdict.remedy, "section": self.section}


def findings_of(check: Check) -> Iterator[Finding]:
    """One that raises is an error finding of its own."""
    try:
        for verdict in check.find():
            yield Finding(check.key, verdict)
    except Exception as trouble:
        logger.debug("a look failed", extra={"key": check.key}, exc_info=True)
        remedy = "manage.py migrate" if isinstance(trouble, ProgrammingError) else "LOG_LEVEL=DEBUG shows where it failed."
        yield Finding(check.key, error(f"This could not be looked at: {_in_words(trouble)}.", remedy))


def _in_words(trouble: Exception) -> str:
    """The database's own words help; those of anything else may hold what nobody should read."""
    kind = type(trouble).__name__
    return f"{kind}: {first_line(trouble)}" if isinstance(trouble, DatabaseTrouble) else kind


def first_line(trouble: Exception) -> str:
    return (str(trouble).strip().splitlines() or [type(trouble).__name__])[0].rstrip(".")


def look_at_all(before: Sequence[Check], database: Check, after: Sequence[Check]) -> Iterator[Finding]:
    """Without a database, what needs one is named and left out, and everything else is still looked at."""
    for check in before:
        yield from findings_of(check)
    found = list(findings_of(database))
    is_there = not any(finding.is_error for finding in found)
    left_out = [] if is_there else [check.key for check in after if check.needs_database]
    yield from found
    if left_out:
        yield Finding(database.key, warning(f"Not looked at without a database: {', '.join(left_out)}.", "Mend the database first."))
    for check in after:
        if check.key not in left_out:
            yield from findings_of(check)

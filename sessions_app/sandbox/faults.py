"""What the stand-in does wrong, when it is asked to."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

KINDS = frozenset(
    {
        "400",
        "401",
        "403",
        "404",
        "422-session",
        "422-engine",
        "429",
        "429-retry-after",
        "500",
        "500-after-accept",
        "500-463",
        "500-no-lid",
        "500-rate-overlimit",
        "502",
        "503",
        "504",
        "drop-before-accept",
        "drop-after-accept",
        "timeout-before-accept",
        "timeout-after-accept",
        "empty-201",
        "html-200",
        "redirect",
        "slow",
    }
)
ACCEPTING = frozenset({"500-after-accept", "drop-after-accept", "timeout-after-accept", "empty-201", "slow"})
CALLS = frozenset({"send", "session", "lookup", "resolve", "presence"})
# What happens to the webhooks of a message that was accepted as it should be. On "events" only, and only there.
EVENT_KINDS = frozenset({"shuffle-acks", "double-events", "no-acks", "ack-error", "drop-replies", "early-ack"})


class BadFault(ValueError):
    """A script that says nothing the stand-in can do."""


@dataclass(frozen=True)
class Fault:
    """One scripted fault. `seconds` is how long a time-out hangs, how slow `slow` is, or what Retry-After says."""

    kind: str
    count: int = 1
    on: str = "send"
    session: str | None = None
    chat: str | None = None
    seconds: float = 30.0
    retry_after: str | None = None

    def fits(self, call: str, session: str, chat: str) -> bool:
        return self.on == call and self.session in (None, session) and self.chat in (None, chat)


@dataclass(frozen=True)
class Chaos:
    """Each send fails with this probability, in one of these ways; the same seed gives the same run of faults.

    Or its webhooks do, where the kinds are theirs.
    """

    probability: float
    kinds: tuple[str, ...]
    seed: int = 0
    seconds: float = 30.0
    session: str | None = None

    @property
    def on(self) -> str:
        return "events" if self.kinds[0] in EVENT_KINDS else "send"


class Faults:
    """The script: first in, first out; each fault serves `count` calls that it fits. Chaos holds until it is cleared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[list[Any]] = []  # [fault, calls left]
        self._chaos: list[tuple[Chaos, Random]] = []

    def add(self, entry: Mapping[str, Any]) -> None:
        made = _chaos(entry) if "probability" in entry else _fault(entry)
        with self._lock:
            if isinstance(made, Chaos):
                self._chaos.append((made, Random(made.seed)))
            else:
                self._waiting.append([made, made.count])

    def take(self, call: str, session: str, chat: str = "") -> Fault | None:
        with self._lock:
            for waiting in self._waiting:
                if waiting[0].fits(call, session, chat):
                    waiting[1] -= 1
                    self._waiting = [one for one in self._waiting if one[1] > 0]
                    return waiting[0]
            for chaos, random in self._chaos:
                if chaos.on == call and chaos.session in (None, session) and random.random() < chaos.probability:
                    return Fault(random.choice(chaos.kinds), seconds=chaos.seconds)
        return None

    def clear(self) -> None:
        with self._lock:
            self._waiting, self._chaos = [], []

    def listed(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(fault) | {"count": left} for fault, left in self._waiting] + [asdict(chaos) for chaos, _ in self._chaos]


def _known(kinds: Sequence[Any], among: frozenset[str] = KINDS) -> None:
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in among]
    if unknown:
        raise BadFault(f"There is no fault {unknown[0]!r}. Known: {', '.join(sorted(among))}.")


def _fault(entry: Mapping[str, Any]) -> Fault:
    try:
        fault = Fault(**entry)
    except TypeError:
        raise BadFault(f"A fault is kind, count, on, session, chat, seconds, retry_after; this is {sorted(entry)}.") from None
    _known([fault.kind], KINDS | EVENT_KINDS)
    if fault.kind in EVENT_KINDS:
        fault = replace(fault, on="events")
    elif fault.on not in CALLS:
        raise BadFault(f"on must be one of {', '.join(sorted(CALLS))}.")
    if not isinstance(fault.count, int) or fault.count < 1:
        raise BadFault("count must be 1 or more.")
    if not isinstance(fault.seconds, (int, float)) or fault.seconds < 0:
        raise BadFault("seconds must be 0 or more.")
    return fault


def _chaos(entry: Mapping[str, Any]) -> Chaos:
    try:
        chaos = Chaos(**{**entry, "kinds": tuple(entry.get("kinds") or ())})
    except TypeError:
        raise BadFault(f"Chaos is probability, kinds, seed, seconds, session; this is {sorted(entry)}.") from None
    _known(chaos.kinds, EVENT_KINDS if EVENT_KINDS.intersection(map(str, chaos.kinds)) else KINDS)
    if not chaos.kinds:
        raise BadFault("kinds must name at least one fault.")
    if not isinstance(chaos.probability, (int, float)) or not 0 <= chaos.probability <= 1:
        raise BadFault("probability must be between 0 and 1.")
    return chaos

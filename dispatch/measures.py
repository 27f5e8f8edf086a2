"""What this process counts and times while it sends. Its heartbeat carries a snapshot, since another process answers /metrics.

A registry of our own, without the interpreter's numbers: those of a process that nobody can scrape are of no use.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
NOBODY = "none"  # the channel of a session for which no provider could be made

claims = Counter("paceline_claims", "Messages that were taken to be sent.", registry=REGISTRY)
settles = Counter(
    "paceline_settles",
    "Answers that were written to the ledger: ACCEPTED, an error code, or UNSENT for what was given back.",
    ["channel", "outcome"],
    registry=REGISTRY,
)
send_seconds = Histogram(
    "paceline_send_duration_seconds",
    "How long the provider took to answer one send.",
    ["channel"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
lateness_seconds = Histogram(
    "paceline_send_lateness_seconds",
    "How long after the moment at which it could have left a message went to its provider; pauses and used-up days do not count.",
    ["channel"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30),
    registry=REGISTRY,
)
last_send = Gauge("paceline_last_send_timestamp_seconds", "When a channel accepted a message last; 0: not yet.", registry=REGISTRY)


def settled(outcomes: Iterable[tuple[str, str]]) -> None:
    """(channel, code of the outcome) of answers that the ledger has now."""
    for channel, code in outcomes:
        settles.labels(channel, code).inc()
        if code == "ACCEPTED":
            last_send.set_to_current_time()


def began(channel: str, *, after: timedelta) -> None:
    """The provider is about to be called."""
    lateness_seconds.labels(channel).observe(after.total_seconds())


def snapshot() -> dict[str, list[list[Any]]]:
    """Name of the sample -> [labels, value], ready for JSON; what kind of number each is stands in REGISTRY."""
    found: dict[str, list[list[Any]]] = {}
    for family in REGISTRY.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, []).append([dict(sample.labels), sample.value])
    return found


def reset() -> None:
    """For tests: as after the start of the process."""
    claims.reset()
    last_send.set(0)
    for metric in (settles, send_seconds, lateness_seconds):
        metric.clear()

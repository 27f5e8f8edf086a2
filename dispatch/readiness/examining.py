"""All of it, in the order in which one would mend it."""

from collections.abc import Iterator

from dispatch.readiness import configuration, ledger, outside, processes
from dispatch.readiness.findings import Finding, look_at_all

CHECKS = [*configuration.CHECKS, ledger.DATABASE, *ledger.CHECKS, *processes.CHECKS, *outside.CHECKS]


def examine() -> Iterator[Finding]:
    return look_at_all(configuration.CHECKS, ledger.DATABASE, [*ledger.CHECKS, *processes.CHECKS, *outside.CHECKS])

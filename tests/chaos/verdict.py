"""What the stand-in accepted against what the ledger says."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sessions_app.sandbox.state import Accepted
from tests.chaos.plan import FLOOR, Plan

LEDGER = """
SELECT g.address, g.status, g.attempt, g.campaign_id, c.status AS campaign_status, s.name AS session, g.error_code, g.reason
FROM dispatch_dispatchlog g JOIN campaigns_campaign c ON c.id = g.campaign_id JOIN sessions_app_session s ON s.id = g.session_id
"""
NOT_PLANNED = """
SELECT r.address FROM campaigns_recipient r JOIN campaigns_campaign c ON c.id = r.campaign_id
WHERE c.status <> 'FAILED' AND NOT EXISTS (SELECT FROM dispatch_dispatchlog g WHERE g.recipient_id = r.id)
"""
OPEN = """
SELECT 'campaign ' || id || ' ' || status AS what FROM campaigns_campaign WHERE status NOT IN ('COMPLETED', 'FAILED')
UNION ALL SELECT 'run ' || id || ' ' || status FROM dispatch_run WHERE status = 'RUNNING'
UNION ALL SELECT 'message ' || id || ' ' || status FROM dispatch_dispatchlog WHERE status IN ('PENDING', 'SENDING')
UNION ALL SELECT 'lane ' || session_id || ' is held' FROM dispatch_lane WHERE owner IS NOT NULL
"""
# Who had claimed a message is written down by a trigger of the run's own: a recovery takes the owner off the lane.
WATCH = """
CREATE TABLE chaos_claim (session_id bigint, token bigint, owner uuid, PRIMARY KEY (session_id, token));
CREATE FUNCTION chaos_watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO chaos_claim VALUES (NEW.session_id, NEW.token, NEW.owner); RETURN NULL; END $$;
CREATE TRIGGER chaos_watch AFTER UPDATE ON dispatch_lane FOR EACH ROW
WHEN (NEW.token <> OLD.token AND NEW.owner IS NOT NULL) EXECUTE FUNCTION chaos_watch();
"""
# Not an answer that came after all: a busy machine kept its process waiting for longer than these short leases.
LOST = """
SELECT c.owner::text, h.pid, count(*)::int AS lost
FROM dispatch_attempt a LEFT JOIN chaos_claim c USING (session_id, token) LEFT JOIN dispatch_heartbeat h ON h.uuid = c.owner
WHERE a.outcome = 'LOST' AND NOT EXISTS (
  SELECT FROM dispatch_attempt b WHERE b.log_id = a.log_id AND b.attempt = a.attempt AND b.token = a.token
    AND b.outcome NOT IN ('LOST', 'VERIFIED_PRESENT', 'VERIFIED_ABSENT'))
GROUP BY 1, 2
"""
ATTEMPTS = "SELECT outcome, count(*)::int AS n FROM dispatch_attempt GROUP BY 1"
AFTER_A_THAW = 1.0  # seconds: what a process that was frozen past the grace sends before it looks at the clock again


@dataclass
class Figures:
    """`must_be_none`: name -> the cases found. `told`: what else there is to know."""

    must_be_none: dict[str, list[str]] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    remark: str = "must be 0"

    @property
    def passed(self) -> bool:
        return not any(self.must_be_none.values())

    @property
    def doubled(self) -> int:
        return len(self.must_be_none["accepted more than once"])

    def only_doubles(self) -> None:
        """For the negative control, which is not carried to its end: nothing else can be said about it."""
        self.must_be_none = {"accepted more than once": self.must_be_none["accepted more than once"]}
        self.remark = "as it must be"

    def table(self) -> str:
        rows = [(name, str(value)) for name, value in self.told.items()]
        rows += [(name, f"{len(cases)}  <-- {self.remark}" if cases else "0") for name, cases in self.must_be_none.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)

    def cases(self, most: int = 8) -> str:
        return "\n".join(f"  {name}: {case}" for name, cases in self.must_be_none.items() for case in cases[:most])


def judge(
    plan: Plan,
    accepted: Sequence[Accepted],
    ledger: Sequence[dict[str, Any]],
    *,
    not_planned: Sequence[str],
    still_open: Sequence[str],
    long_thaws: Sequence[float] = (),
) -> Figures:
    """Compares by number: each person of a run has one of their own."""
    times: dict[str, list[float]] = defaultdict(list)
    for one in accepted:
        times[one.chat_id].append(one.time)
    status = {row["address"]: row["status"] for row in ledger}
    no_proof = {lane.name for lane in plan.lanes if lane.kind == "gateway"}

    def is_late(address: str) -> bool:
        return any(0 <= moment - thaw <= AFTER_A_THAW for moment in times[address] for thaw in long_thaws)

    doubled = [address for address, moments in times.items() if len(moments) > 1]
    in_doubt = [row for row in ledger if row["status"] == "UNCONFIRMED"]
    figures = Figures()
    figures.must_be_none = {
        "accepted more than once": [describe(address, times, status) for address in doubled if not is_late(address)],
        "SENT but never accepted": [address for address, state in status.items() if state == "SENT" and address not in times],
        "accepted, neither SENT nor UNCONFIRMED": [
            describe(address, times, status) for address in times if status.get(address) not in {"SENT", "UNCONFIRMED"}
        ],
        "never settled": [*still_open, *(f"{address} has no row" for address in not_planned)],
        "gaps below the floor": gaps(plan, accepted),
        "UNCONFIRMED where absence is proof": [row["address"] for row in in_doubt if row["session"] not in no_proof],
        "UNCONFIRMED though accepted": [row["address"] for row in in_doubt if row["address"] in times],
    }
    found = Counter(status.values())
    figures.told = {
        "messages": plan.messages,
        "accepted by the stand-in": len(accepted),
        "ledger": ", ".join(f"{count} {name}" for name, count in sorted(found.items())),
        "UNCONFIRMED, absence is no proof": sum(row["session"] in no_proof for row in in_doubt),
        "twice, after a freeze past the grace": sum(is_late(address) for address in doubled),
    }
    return figures


def lost_without_cause(lost: Sequence[dict[str, Any]], blows: dict[int, int], *, at_once: int) -> list[str]:
    """A message is in doubt through a death only if it was on its way in a process at one of its kills or freezes.

    `lost`: for each owner its pid and how many; `blows`: by pid how often it was killed or frozen; `at_once`: what a process has on its way
    at most.
    """
    return [
        f"process {row['pid']} ({row['owner']}) lost {row['lost']} at {blows.get(row['pid'], 0)} blows"
        for row in lost
        if row["lost"] > at_once * blows.get(row["pid"], 0)
    ]


def describe(address: str, times: dict[str, list[float]], status: dict[str, str]) -> str:
    moments = ", ".join(f"{moment:.3f}" for moment in times[address])
    return f"{address} {status.get(address, 'no row')}, accepted at {moments}"


def gaps(plan: Plan, accepted: Sequence[Accepted]) -> list[str]:
    """On each lane at human pace, over everything that its number sent, whichever campaign it was of."""
    found = []
    for lane in plan.lanes:
        if lane.kind == "metered":
            continue
        mine = sorted((one for one in accepted if one.session == lane.name), key=lambda one: one.time)
        for before, after in itertools.pairwise(mine):
            if after.time - before.time < FLOOR:
                found.append(f"{lane.name}: {after.time - before.time:.3f} s between {before.chat_id} and {after.chat_id}")
    return found

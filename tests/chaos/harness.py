"""One run: real processes, a database that is crashed, a gateway that lies, an operator who meddles; then calm, then the verdict."""

import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from sessions_app.sandbox import Sandbox
from sessions_app.sandbox.faults import KINDS
from tests.chaos import verdict
from tests.chaos.database import Server, bouncer
from tests.chaos.plan import AT_ONCE, FAULTY, FREEZE, KILL_EVERY, LONG_FREEZE, Plan
from tests.chaos.processes import Child, Zygote
from tests.chaos.verdict import Figures

ENOUGH_DOUBLES = 10  # for the negative control, which asks for nothing else
TEMPLATE = "chaos_template"
CALM_AT_MOST = 120.0
# Drawn one after the other, one at each kill, so that each has its turn also in a short run.
DECK = ("freeze",) * 3 + ("term",) * 3 + ("immediate", "fast") + ("terminate",) * 2 + ("recover",) * 4 + ("lookup",) * 3 + ("",) * 7
HANGS = 1.3  # seconds, longer than the deadline
THINKS = 0.3  # what most answers take after the acceptance: a gateway at work, so that a kill finds messages on their way
PROGRESS = "SELECT count(*)::int AS done FROM dispatch_dispatchlog WHERE status IN ('SENT', 'FAILED', 'SKIPPED')"


class Ground:
    """A server with a migrated template: what several runs can share."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.server = Server(place / "postgres")
        self._runs = 0

    def __enter__(self) -> "Ground":
        self.server.start()
        self.server.create(TEMPLATE, "template1")
        with Zygote(self.place, self.server.url(TEMPLATE)) as zygote:
            done = zygote.run("command", command=["migrate", "--verbosity", "0"])
            assert done.code == 0, done.log.read_text()
        with self.server.connect(TEMPLATE) as connection:
            connection.execute(verdict.WATCH.encode())
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    def database(self) -> str:
        """A new one, migrated and empty."""
        self._runs += 1
        name = f"chaos_{self._runs}"
        self.server.create(name, TEMPLATE)
        return name

    def folder_of(self, database: str) -> Path:
        place = self.place / database
        place.mkdir(mode=0o711, exist_ok=True)
        return place

    def run(self, plan: Plan) -> Figures:
        database = self.database()
        place = self.folder_of(database)
        if plan.pooled:
            with bouncer(self.server, place, database) as url:
                return _run(plan, self.server, database, url, place)
        return _run(plan, self.server, database, self.server.url(database), place)


def _run(plan: Plan, server: Server, database: str, url: str, place: Path) -> Figures:
    with Sandbox() as sandbox, Zygote(place, url) as zygote:
        chaos = Chaos(plan, server, database, zygote, sandbox)
        chaos.prepare()
        chaos.rage()
        if not plan.naive:
            chaos.calm_down()
        return chaos.judge()


class Chaos:
    def __init__(self, plan: Plan, server: Server, database: str, zygote: Zygote, sandbox: Sandbox) -> None:
        self.plan = plan
        self.server = server
        server.until_restarted()
        server.restarts.update(immediate=0, fast=0)
        self.database = database
        self.zygote = zygote
        self.sandbox = sandbox
        self.rng = Random(plan.seed)
        self.schedulers: list[Child] = []
        self.everybody: list[Child] = []
        self.done: Counter[str] = Counter()
        self.long_thaws: list[float] = []
        self.accepted_in_chaos = 0
        self.calm_took = 0.0
        self._deck: list[str] = []
        self._stopped = 0 if plan.naive else 1  # the campaign that the operator stops

    # -- the four parts ------------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        done = self.zygote.run("prepare", lanes=[vars(lane) for lane in self.plan.lanes], sandbox=self.sandbox.url)
        assert done.code == 0, done.log.read_text()
        faults = {"probability": FAULTY, "kinds": sorted(KINDS), "seconds": HANGS, "seed": self.plan.seed}
        thinking = {"probability": 0.9, "kinds": ["slow"], "seconds": THINKS, "seed": self.plan.seed + 1}
        self.sandbox.script(faults, thinking)

    def rage(self) -> None:
        operator = self.zygote.start("operator", seed=self.plan.seed, calm=False, stops=self._stopped)
        longs = self._when_to_freeze_long()
        begun = time.monotonic()
        while not self._enough(time.monotonic() - begun):
            self._keep_up()
            end = time.monotonic() + self.rng.uniform(*KILL_EVERY)
            while time.monotonic() < end:
                self._thaw()
                time.sleep(0.02)
            if longs and time.monotonic() - begun > longs[0]:
                longs.pop(0)
                self._freeze(LONG_FREEZE, "long freeze")
            self._kill()
            self._meddle()
        self.accepted_in_chaos = len(self.sandbox.state.messages())
        operator.signal(signal.SIGKILL)

    def calm_down(self) -> None:
        begun = time.monotonic()
        self.server.until_restarted()
        self.sandbox.faults.clear()
        while any(child.frozen_until for child in self.schedulers):  # the long ones are waited for
            self._thaw()
            time.sleep(0.05)
        self._keep_up()
        operator = self.zygote.start("operator", seed=self.plan.seed, calm=True, stops=self._stopped)
        end = time.monotonic() + CALM_AT_MOST
        while self._left() and time.monotonic() < end:
            time.sleep(0.2)
        self.calm_took = time.monotonic() - begun
        operator.signal(signal.SIGKILL)
        for child in self._living():
            child.signal(signal.SIGTERM)
        for child in self.everybody:
            child.wait(30)

    def judge(self) -> Figures:
        self.server.until_restarted()
        rows = self.server.rows
        figures = verdict.judge(
            self.plan,
            self.sandbox.state.messages(),
            rows(self.database, verdict.LEDGER),
            not_planned=[row["address"] for row in rows(self.database, verdict.NOT_PLANNED)],
            still_open=[row["what"] for row in rows(self.database, verdict.OPEN)],
            long_thaws=self.long_thaws,
        )
        figures.must_be_none["in doubt through more than a blow can do"] = verdict.lost_without_cause(
            rows(self.database, verdict.LOST), {child.pid: child.blows for child in self.everybody}, at_once=AT_ONCE
        )
        check = self.zygote.run("check")
        figures.must_be_none["invariants broken"] = [] if check.code == 0 else [check.log.read_text()[-3000:]]
        figures.must_be_none["schedulers that ended by themselves"] = [
            f"{child.log.name}: {child.code}" for child in self.everybody if child.code and "SIGKILL" not in child.told
        ]
        figures.must_be_none["schedulers that did not end"] = [child.log.name for child in self.everybody if child.runs]
        figures.must_be_none["tracebacks"] = [
            log.read_text()[log.read_text().index("Traceback") - 300 :][:3000]
            for role in ("scheduler", "operator", "recover")
            for log in self.zygote.logs(role)
            if "Traceback" in log.read_text()
        ]
        attempts = {row["outcome"]: row["n"] for row in rows(self.database, verdict.ATTEMPTS)}
        figures.told |= {
            "accepted while chaos reigned": self.accepted_in_chaos,
            "in doubt through a death, a freeze": attempts.get("LOST", 0),
            "in doubt through an answer": attempts.get("UNCONFIRMED", 0),
            "verified as present, as absent": f"{attempts.get('VERIFIED_PRESENT', 0)}, {attempts.get('VERIFIED_ABSENT', 0)}",
            "kill -9, SIGTERM": f"{self.done['kill']}, {self.done['term']}",
            "freezes past the lease, past the grace": f"{self.done['freeze']}, {self.done['long freeze']}",
            "PostgreSQL immediate, fast, backends ended": ", ".join(
                map(str, (self.server.restarts["immediate"], self.server.restarts["fast"], self.done["terminate"]))
            ),
            "recover_stuck": self.done["recover"],
            "seconds until all was settled": round(self.calm_took, 1),
        }
        if self.plan.naive:
            figures.only_doubles()
        return figures

    # -- what happens --------------------------------------------------------------------------------------------------------------

    def _when_to_freeze_long(self) -> list[float]:
        return sorted(self.rng.uniform(1, self.plan.seconds / 2) for _ in range(self.plan.long_freezes))

    def _living(self) -> list[Child]:
        return [child for child in self.schedulers if child.runs]

    def _keep_up(self) -> None:
        """Those that ended, or were told to, are replaced at once."""
        self.schedulers = [child for child in self.schedulers if child.runs and not child.told & {"SIGKILL", "SIGTERM"}]
        while len(self.schedulers) < self.plan.schedulers:
            child = self.zygote.start("scheduler", naive=self.plan.naive)
            self.schedulers.append(child)
            self.everybody.append(child)

    def _victim(self) -> Child | None:
        awake = [child for child in self._living() if child.frozen_until is None and not child.told & {"SIGKILL", "SIGTERM"}]
        return self.rng.choice(awake) if awake else None

    def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.done["kill"] += 1
            victim.signal(signal.SIGKILL)
            victim.wait(5)

    def _freeze(self, seconds: float, how: str = "freeze") -> None:
        victim = self._victim()
        if victim is not None:
            self.done[how] += 1
            victim.told.add(how)
            victim.signal(signal.SIGSTOP)
            victim.frozen_until = time.monotonic() + seconds

    def _thaw(self) -> None:
        for child in self.schedulers:
            if child.frozen_until is not None and time.monotonic() >= child.frozen_until:
                child.frozen_until = None
                if "long freeze" in child.told:
                    self.long_thaws.append(time.time())
                child.signal(signal.SIGCONT)

    def _meddle(self) -> None:
        if not self._deck:
            self._deck = list(DECK)
            self.rng.shuffle(self._deck)
        match self._deck.pop():
            case "freeze":
                if not any(child.frozen_until for child in self.schedulers):
                    self._freeze(self.rng.uniform(*FREEZE))
            case "term":
                victim = self._victim()
                if victim is not None:
                    self.done["term"] += 1
                    victim.signal(signal.SIGTERM)
            case "immediate" | "fast" as mode:
                self.server.restart(mode)
            case "terminate":
                self.done["terminate"] += 1
                self._unless_away(lambda: self.server.terminate_backends(self.database))
            case "recover":
                self.done["recover"] += 1
                self.zygote.start("recover", naive=self.plan.naive)
            case "lookup":
                kind = self.rng.choice(sorted(KINDS))
                self.sandbox.script({"kind": kind, "on": self.rng.choice(["lookup", "lookup", "session"]), "count": 5, "seconds": HANGS})

    def _unless_away(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except psycopg.Error:
            return None

    def _enough(self, passed: float) -> bool:
        """When nearly all is through, or the time is up; on a machine that is busy otherwise it goes on until the run proves something."""
        totals = self.sandbox.state.totals()
        if self.plan.naive:
            return totals["doubles"] >= ENOUGH_DOUBLES or passed > self.plan.seconds * (1 if totals["doubles"] else 3)
        proves_little = totals["accepted"] < self.plan.messages // 4
        if passed > self.plan.seconds * (3 if proves_little else 1):
            return True
        found = self._unless_away(lambda: self.server.rows(self.database, PROGRESS))
        return bool(found) and found[0]["done"] >= 0.97 * self.plan.messages

    def _left(self) -> bool:
        """Whether anything is still open that time will settle: also what the gateway has and was not asked about again yet."""
        arrived = {message.chat_id for message in self.sandbox.state.messages()}
        doubtful = "SELECT address FROM dispatch_dispatchlog WHERE status = 'UNCONFIRMED'"
        if any(row["address"] in arrived for row in self.server.rows(self.database, doubtful)):
            return True
        proof = ", ".join(f"'{lane.name}'" for lane in self.plan.lanes if lane.kind != "gateway")
        doubt = f"""SELECT 1 AS what FROM dispatch_dispatchlog g JOIN sessions_app_session s ON s.id = g.session_id
                    WHERE g.status = 'UNCONFIRMED' AND s.name IN ({proof}) LIMIT 1"""
        return bool(self.server.rows(self.database, verdict.OPEN) or self.server.rows(self.database, doubt))

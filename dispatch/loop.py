"""The loop of `run_scheduler`, and of every other driver that lends the engine a process: passes, rest, heartbeat, a clean end."""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections, connection, reset_queries
from django.db.models.functions import Now

from dispatch import alerts, measures, recovery, watching
from dispatch.alerts import Notice, Teller, alert
from dispatch.engine import Engine
from dispatch.models import Heartbeat
from dispatch.scheduler import DATABASE_AWAY, PassReport, run_pass, run_until_idle, seconds_until_due
from dispatch.stopping import SLICE, StopFlag, rest
from sessions_app.clock import spoken

logger = logging.getLogger("paceline.scheduler")

CLAIMS_ARE_POLLED_EVERY = 1.0  # seconds, at most
REFUSES_WRITES = {"25006": "it is read-only", "53100": "its disk is full", "53200": "it is out of memory"}
BEAT_INTERVAL = timedelta(seconds=10)
BEAT_IS_LOGGED_EVERY = timedelta(minutes=5)
LAST_SETTLE_TAKES_AT_MOST = timedelta(seconds=15)
WATCHED_EVERY = 60.0
DATABASE_IS_AWAY = "database away"
AN_OUTAGE_IS_TOLD_AFTER = timedelta(seconds=60)


def start_heart(kind: Heartbeat.Kind, interval: timedelta = BEAT_INTERVAL) -> Heartbeat:
    """A new row: this process start. What an earlier one left is seen to now, so that its death is not found again after a clean stop."""
    heart = Heartbeat.objects.create(
        kind=kind,
        host=socket.gethostname(),
        host_identity=recovery.host_identity(),
        pid=os.getpid(),
        version=settings.VERSION,
        interval=interval,
    )
    recovery.take_over()
    return heart


class Outage:
    """The database is away: a line in the log when it begins, and word to people when it lasts."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._since: float | None = None
        self._said = ""
        self._is_alerted = False

    @property
    def lasts(self) -> bool:
        return self._since is not None

    def goes_on(self, error: Exception, meanwhile: str) -> None:
        why = _in_words(error)
        if self._since is None or (why != self._said and why in REFUSES_WRITES.values()):  # it came back, and takes no writes
            logger.warning(f"database away; {meanwhile}", extra={"error": why})
            self._said = why
        if self._since is None:
            self._since, self._is_alerted, self._teller.told_directly = time.monotonic(), False, False
        if time.monotonic() - self._since >= AN_OUTAGE_IS_TOLD_AFTER.total_seconds():
            self._alert(why)

    def ends(self) -> None:
        if self._is_alerted:
            alerts.store(DATABASE_IS_AWAY, self._facts(self._said), told=self._teller.told_directly)
        self._since = None

    def _alert(self, why: str) -> None:
        if not self._is_alerted:
            alerts.say(DATABASE_IS_AWAY, self._facts(why))
            self._is_alerted = True
        self._teller.tell_directly(Notice.unstored(DATABASE_IS_AWAY, self._facts(why)))

    def _facts(self, why: str) -> dict[str, str]:
        lasted = spoken(timedelta(seconds=time.monotonic() - (self._since or 0.0)))
        return {"detail": f"for {lasted}: {why}; nothing is sent meanwhile, and nothing is lost"}


@dataclass
class Loop:
    """One process's loop. `run` returns the exit code."""

    heart: Heartbeat
    engine: Engine
    stop: StopFlag
    interval: float = 1.0  # seconds between two looks at what is due
    teller: Teller = field(default_factory=Teller)
    _planned_at: float = float("-inf")
    _beat_at: float = float("-inf")
    _logged_at: float = 0.0
    _watch_at: float = float("-inf")
    _watched_since: float = 0.0

    def __post_init__(self) -> None:
        self._outage = Outage(self.teller)

    def run(self) -> int:
        logger.info("scheduler started", extra={"pid": self.heart.pid, "owner": str(self.heart.pk), "version": settings.VERSION})
        self._logged_at = self._watched_since = time.monotonic()
        while not self.stop.requested:
            _drop_broken_connection()
            try:
                report = self._pass()
                self._database_is_back()
                self._attend()
                self._rest(report)
            except DATABASE_AWAY as error:
                self._wait_for_database(error)
            except Exception as error:
                self._wait_after_error(error)
        return self._end()

    def _pass(self) -> PassReport:
        now = time.monotonic()
        planning = self._outage.lasts or now - self._planned_at >= self.interval
        if planning:
            self._planned_at = now
        report = run_pass(self.engine, planning=planning)
        if self._outage.lasts or now - self._beat_at >= BEAT_INTERVAL.total_seconds() / 2:  # a write: it knows whether that works again
            signs = {"beat_at": Now(), "last_pass_at": Now(), "recovered_at": None, "measures": measures.snapshot()}
            Heartbeat.objects.filter(pk=self.heart.pk).update(**signs)
            self._beat_at = now
        self._say(report, now)
        return report

    def _say(self, report: PassReport, now: float) -> None:
        if report.found_work:
            logger.info("pass", extra=report.facts())
            self._logged_at = now
        elif now - self._logged_at >= BEAT_IS_LOGGED_EVERY.total_seconds():
            logger.info("idle", extra={"owner": str(self.heart.pk)})
            self._logged_at = now

    def _rest(self, report: PassReport) -> None:
        if self.engine.busy:
            self.engine.wait(SLICE)
        elif not report.found_work:
            self.stop.sleep(seconds_until_due(self.engine, at_most=min(CLAIMS_ARE_POLLED_EVERY, self.interval)))

    def _attend(self) -> None:
        """What is not sending. It delays nothing: the network has a thread of its own."""
        self.teller.look()
        if time.monotonic() >= self._watch_at:
            self._watch_at = time.monotonic() + WATCHED_EVERY
            watching.watch_from_scheduler(watched_for=timedelta(seconds=time.monotonic() - self._watched_since))

    def _wait_for_database(self, error: Exception) -> None:
        self._outage.goes_on(error, "answers are kept until it is back")
        connection.close()
        self.stop.sleep(0.5)

    def _database_is_back(self) -> None:
        if self._outage.lasts:
            logger.info("database back", extra={"unsettled": len(self.engine.unsettled)})
            self.engine.database_was_away()
            self._watched_since = time.monotonic()
            self._outage.ends()

    def _wait_after_error(self, error: Exception) -> None:
        """A bug must not end the process: it holds answers that nobody else has. Meanwhile there is no beat, so monitoring sees it."""
        logger.exception("a pass failed")
        alert("a pass failed", error=type(error).__name__)
        self.stop.sleep(1)

    def _end(self) -> int:
        """Give back what has not started, finish what has, settle; 1 when the database stayed away and answers could not be saved."""
        logger.info("stopping", extra={"in_flight": self.engine.threads - self.engine.idle_threads})
        give_up_at = time.monotonic() + self.engine.deadline.total_seconds() + LAST_SETTLE_TAKES_AT_MOST.total_seconds()
        saved = False
        while not saved and time.monotonic() < give_up_at:
            try:
                _drop_broken_connection()
                self.engine.give_back()
                while self.engine.busy and time.monotonic() < give_up_at:
                    self.engine.wait(SLICE)
                    self.engine.collect()
                self.engine.collect()
                self.engine.settle()
                Heartbeat.objects.filter(pk=self.heart.pk).update(beat_at=Now(), stopped_at=Now())
                saved = True
            except DATABASE_AWAY:
                connection.close()
                self.engine.wait(SLICE)
                rest(SLICE)
        self.teller.close()
        self.engine.close()
        for answer in self.engine.unsettled:
            facts = {"log": answer.claimed.id, "attempt": answer.claimed.attempt, "answer": answer.result.answer.value}
            logger.error("this answer could not be saved", extra=facts)
        logger.info("scheduler stopped", extra={"unsaved": len(self.engine.unsettled)})
        return 0 if saved else 1


def _in_words(error: Exception) -> str:
    """What the operator has to mend, where PostgreSQL says it in a code; else the kind of error."""
    return REFUSES_WRITES.get(getattr(error.__cause__, "sqlstate", None) or "", type(error).__name__)


def _drop_broken_connection() -> None:
    """With CONN_HEALTH_CHECKS, what makes a long-lived process outlive a restart of the database. Inside a test there is a transaction.

    With DEBUG, Django keeps the last 9000 statements, with everybody's text in them: forgotten, as between two requests.
    """
    if not connection.in_atomic_block:
        close_old_connections()
        reset_queries()


def default_engine(owner: UUID) -> Engine:
    return Engine(owner=owner)


def run_scheduler(stop: StopFlag, *, interval: float, once: bool = False, make_engine: Callable[[UUID], Engine] = default_engine) -> int:
    """What the command does, without the command line. With `once` a database that is away is an error; else it is waited for."""
    teller = Teller()
    heart = start_heart(Heartbeat.Kind.SCHEDULER) if once else _start_heart_when_possible(stop, Outage(teller))
    if heart is None:
        return 0
    loop = Loop(heart=heart, engine=make_engine(heart.pk), stop=stop, interval=interval, teller=teller)
    if not once:
        return loop.run()
    try:
        logger.info("pass", extra=run_until_idle(loop.engine).facts())
    finally:  # also when it broke off: what is on its way has its answers written down
        stop.requested = True
        code = loop.run()
    return code


def _start_heart_when_possible(stop: StopFlag, outage: Outage) -> Heartbeat | None:
    while not stop.requested:
        try:
            heart = start_heart(Heartbeat.Kind.SCHEDULER)
            outage.ends()
            return heart
        except DATABASE_AWAY as error:
            outage.goes_on(error, "waiting for it to start")
            connection.close()
            stop.sleep(1)
    return None

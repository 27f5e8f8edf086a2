"""Everything that can happen, in any order: hypothesis looks for the order in which a message is lost, doubled or misreported.

Real PostgreSQL, real engines, real verbs; the clock, the provider and the moment at which a worker dies belong to the test. After every
rule the ledger is compared with what the provider really accepted, and at the end everything is resumed and nobody may be forgotten.
Receipts and opt-outs do not exist yet, so there are no rules for them.

The short run is always the same one. To search for longer, with other examples each time:

    PACELINE_MACHINE_EXAMPLES=2000 pytest tests/dispatch/test_machine.py
"""

import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from campaigns import transitions
from campaigns.forms import is_frozen
from campaigns.models import Campaign
from campaigns.transitions import Refused
from dispatch import recovery
from dispatch import transitions as log_transitions
from dispatch.models import DispatchLog, Heartbeat, Lane
from dispatch.scheduler import run_pass
from dispatch.verification import VerifyPolicy
from sessions_app import transitions as session_transitions
from sessions_app.models import Session
from tests.dispatch.machine import LEASE, Job, Ledger, Verdict, Worker, World, WorldProvider
from tests.factories import make_campaign, make_recipients, make_session, make_step

START = datetime(2020, 6, 10, 20, 0, tzinfo=UTC)
REAL_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # what the database's own clock wrote is later, and is set back to the world's
S = Campaign.Status
SEVERAL = st.integers(0, 5)
WHICH = st.integers(0, 1)
VERDICTS = st.sampled_from([Verdict.ACCEPTS] * 5 + list(Verdict))
ENDS = st.sampled_from(["settled", "settled", "claimed", "called", "dies claimed", "dies called", "dies settled"])
DECISIONS = st.sampled_from(["send_again", "send_again", "mark_sent", "give_up"])
MOSTLY = st.sampled_from([True, True, True, False])
VERBS = st.sampled_from(["start all", "start all", "start", "start", "pause", "schedule", "stop", "move"])
JUMPS = [1, 1, 3, 6, 20, 70, 610, 3600, 86400]
SAFE_HOURS = st.sampled_from([Campaign.SafeHours.OFF, Campaign.SafeHours.OFF, Campaign.SafeHours.BLOCK, Campaign.SafeHours.WARN])


class Paceline(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._transaction = transaction.atomic()
        self._transaction.__enter__()
        self.workers: list[Worker | None] = [None, None]
        self.added = 0

    @initialize(metered=st.sampled_from([False, False, True]), lag=st.sampled_from([0, 400]), limit=st.sampled_from([None, None, 4]))
    def begin(self, metered: bool, lag: int, limit: int | None) -> None:
        self.world = WorldProvider.world = World(START, timedelta(seconds=lag))
        self.ledger = Ledger(self.world)
        channel = "world_metered" if metered else "world"
        values = {"channel": channel, "checked_at": START, "time_zone": "America/Sao_Paulo", "daily_limit": limit}
        self.sessions = [make_session(settings={"position": position}, **values) for position in range(2)]
        self.new_campaign(session=0, people=7, hours=Campaign.SafeHours.OFF)
        self.somebody_acts(0, "start", 0)
        self.tick(0)

    # -- the clock -------------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return self.world.now

    @rule(seconds=st.sampled_from(JUMPS))
    def time_goes_by(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @rule()
    def until_something_is_due(self) -> None:
        self.world.now = min(self.moments(), default=self.now)

    def until_a_lane_is_due(self) -> None:
        later = Lane.objects.filter(is_open=True, owner__isnull=True, next_send_at__gt=self.now).order_by("next_send_at")
        self.world.now = later.values_list("next_send_at", flat=True).first() or self.now

    def moments(self) -> list[datetime]:
        """The moments still to come at which something may happen by itself."""
        lanes = Lane.objects.values_list("next_send_at", "lease_expires_at", "open_until")
        logs = DispatchLog.objects.unconfirmed().values_list("verify_at", flat=True)
        campaigns = Campaign.objects.filter(status=S.SCHEDULED).values_list("due_at", flat=True)
        found = [*(moment for lane in lanes for moment in lane), *logs, *campaigns]
        return [moment for moment in found if moment is not None and moment > self.now]

    # -- people ----------------------------------------------------------------------------------------------------------------

    def campaigns(self) -> list[Campaign]:
        return list(Campaign.objects.order_by("pk"))

    def pick(self, number: int) -> Campaign:
        return (found := self.campaigns())[number % len(found)]

    def new_campaign(self, session: int, people: int, hours: str) -> None:
        campaign = make_campaign(session=self.sessions[session], safe_hours=hours, grace_seconds=7200)
        make_step(campaign, text="Hello {{ name }}")
        make_recipients(people, campaign)

    @rule(number=SEVERAL, verb=VERBS, session=WHICH, seconds=st.sampled_from(JUMPS), claimed=st.booleans())
    def somebody_acts(self, number: int, verb: str, session: int, seconds: int = 1, claimed: bool = False) -> None:
        if claimed:
            self.work(session, Verdict.ACCEPTS, 1, mended=True, end="settled")
        campaign_id = self.pick(number).pk
        with suppress(Refused):
            match verb:
                case "pause":
                    transitions.pause(campaign_id, reason="paused by ana")
                case "stop":
                    transitions.stop(campaign_id, by="ana")
                case "move":
                    transitions.move(campaign_id, session_id=self.sessions[session].pk, by="ana")
                case "schedule":
                    Campaign.objects.filter(pk=campaign_id).update(scheduled_at=self.now + timedelta(seconds=seconds))
                    transitions.schedule(campaign_id, by="ana", now=self.now)
                case "start all":
                    self.start_all()
                case _:
                    transitions.start(campaign_id, by="ana", now=self.now)
        self.on_the_worlds_clock()
        if claimed:  # before any scheduler has planned anew
            self.until_a_lane_is_due()
            self.tick(session, planning=False)

    def start_all(self) -> None:
        for campaign in Campaign.objects.filter(status__in=[S.PAUSED, S.DRAFT]).order_by("pk"):
            with suppress(Refused):
                transitions.start(campaign.pk, by="ana", now=self.now)
        self.on_the_worlds_clock()

    @rule(number=SEVERAL, what=st.sampled_from(["campaign", "person", "step", "pacing", "limit"]), hours=SAFE_HOURS, how=st.integers(0, 3))
    def somebody_edits(self, number: int, what: str, hours: str, how: int) -> None:
        campaign = self.pick(number)
        match what:
            case "campaign" if Campaign.objects.count() < 3:
                self.new_campaign(number % 2, how + 2, hours)
            case "person" if not is_frozen(campaign) and campaign.status != S.FAILED and campaign.recipients.count() < 5:
                self.added += 1
                make_recipients(1, campaign, address=f"{900_000_000 + self.added}@lid")
            case "step" if campaign.status in {S.DRAFT, S.SCHEDULED, S.PAUSED} and campaign.steps.count() < 2:
                again = {"recurrence_type": "daily", "recurrence_count": 2} if how % 2 else {}
                make_step(campaign, text="And {{ name }}", delay_after_previous=timedelta(minutes=30) if how > 1 else None, **again)
            case "pacing":
                campaign.min_interval, campaign.max_interval, campaign.batch_size = ((1, 1, 1), (8, 13, 3), (40, 50, 10), (9, 9, 2))[how]
                campaign.save()
            case "limit":
                edited = Session.objects.get(pk=self.sessions[number % 2].pk)
                edited.daily_limit = (None, None, 2, 5)[how]
                edited.save()

    @precondition(lambda self: DispatchLog.objects.unconfirmed().exists())
    @rule(number=SEVERAL, decision=DECISIONS)
    def decide(self, number: int, decision: str) -> None:
        found = list(DispatchLog.objects.unconfirmed().order_by("pk"))
        log = found[number % len(found)]
        excuse = self.ledger.excuses[log.pk]
        when = {"now": self.now} if decision == "send_again" else {}
        getattr(log_transitions, decision)(log.pk, by="ana", **when)
        excuse.marked_sent |= decision == "mark_sent"
        excuse.repeats += decision == "send_again"
        excuse.accepted_before = len(self.world.accepted[log.client_ref])

    @precondition(lambda self: DispatchLog.objects.pending().exists())
    @rule(number=SEVERAL, with_the_person=st.booleans())
    def take_out(self, number: int, with_the_person: bool) -> None:
        found = list(DispatchLog.objects.pending().order_by("pk").select_related("recipient"))
        log = found[number % len(found)]
        if not with_the_person:
            log_transitions.remove(log.pk, by="ana")
        elif log.recipient is not None:
            log.recipient.delete()

    # -- the provider ----------------------------------------------------------------------------------------------------------

    @rule(session=WHICH, is_noticed=st.booleans())
    def session_goes_away(self, session: int, is_noticed: bool) -> None:
        self.world.up[session] = False
        if is_noticed:
            session_transitions.disconnect(self.sessions[session].pk, "logged out on the phone")
            self.on_the_worlds_clock()

    @precondition(lambda self: not all(self.world.up) or Session.objects.exclude(status="CONNECTED").exists())
    @rule()
    def sessions_come_back(self) -> None:
        self.world.up = [True, True]
        for session in self.sessions:
            session_transitions.connect(session.pk)
        self.on_the_worlds_clock()

    def on_the_worlds_clock(self) -> None:
        Session.objects.filter(checked_at__gte=REAL_TIME).update(checked_at=self.now)

    # -- workers ---------------------------------------------------------------------------------------------------------------

    def worker(self, which: int) -> Worker:
        worker = self.workers[which]
        if worker is None:
            worker = self.workers[which] = Worker.start(self.now, seed=which)
            self.ledger.check()
        worker.beat(self.now)
        return worker

    def jobs(self, which: int, *, called: bool) -> list[Job]:
        worker = self.workers[which]
        return [] if worker is None else worker.engine.hands.called() if called else worker.engine.hands.waiting()

    @rule(which=WHICH, planning=st.booleans())
    def tick(self, which: int, planning: bool = True) -> None:
        run_pass(self.worker(which).engine, planning=planning)
        self.on_the_worlds_clock()
        self.ledger.check()  # also here: the next step of a longer rule may hide what this one did
        if planning:
            self.ledger.check_after_planning()

    @precondition(lambda self: self.jobs(0, called=False) or self.jobs(1, called=False))
    @rule(which=WHICH, verdict=VERDICTS)
    def call_is_made(self, which: int, verdict: Verdict) -> None:
        self.world.verdict = verdict
        for job in self.jobs(which, called=False)[:1]:
            job.call()

    @precondition(lambda self: self.jobs(0, called=True) or self.jobs(1, called=True))
    @rule(which=WHICH)
    def answer_arrives(self, which: int) -> None:
        for job in self.jobs(which, called=True)[:1]:
            job.answer()

    def mend(self, which: int) -> None:
        """What is paused or away goes on, and nobody else has anything in hand: or most examples would soon stand still."""
        self.sessions_come_back()
        self.world.verdict = Verdict.ACCEPTS
        if self.workers[1 - which] is not None:
            self.call_and_answer(1 - which)
            self.tick(1 - which, planning=False)
        self.start_all()
        self.tick(which)

    # A rule for each worker, since hypothesis leaves whole rules out of many an example, and nothing moves without one of these.

    @rule(verdict=VERDICTS, messages=st.integers(1, 3), mended=MOSTLY, end=ENDS)
    def first_worker_works(self, verdict: Verdict, messages: int, mended: bool, end: str) -> None:
        self.work(0, verdict, messages, mended, end)

    @rule(verdict=VERDICTS, messages=st.integers(1, 3), mended=MOSTLY, end=ENDS)
    def second_worker_works(self, verdict: Verdict, messages: int, mended: bool, end: str) -> None:
        self.work(1, verdict, messages, mended, end)

    @rule(which=WHICH, verdict=VERDICTS, mended=MOSTLY, end=ENDS)
    def some_worker_works(self, which: int, verdict: Verdict, mended: bool, end: str) -> None:
        self.work(which, verdict, 1, mended, end)

    def work(self, which: int, verdict: Verdict, messages: int, mended: bool, end: str) -> None:
        """The next messages are claimed when they are due, called, answered and settled; the last one as verdict and end say."""
        if mended:
            self.mend(which)
        for left in reversed(range(messages)):
            self.until_a_lane_is_due()
            self.tick(which)
            self.world.verdict = Verdict.ACCEPTS if left else verdict
            if left:
                self.call_and_answer(which)
        if not end.endswith("claimed"):
            for job in self.jobs(which, called=False):
                job.call()
        if end == "settled":
            self.call_and_answer(which)
            self.tick(which)
        elif end.startswith("dies"):
            self.crash(which, settles=end == "dies settled", seen=messages % 2 == 0)

    def call_and_answer(self, which: int) -> None:
        for job in self.jobs(which, called=False):
            job.call()
        for job in self.jobs(which, called=True):
            job.answer()

    @rule(which=WHICH, settles=st.booleans(), seen=st.booleans())
    def crash(self, which: int, settles: bool, seen: bool) -> None:
        if (worker := self.workers[which]) is None:
            return
        if settles:  # and dies before it could pause what its answers shut
            self.call_and_answer(which)
            worker.engine.collect()
            worker.engine.settle()
            self.on_the_worlds_clock()
        worker.die(seen=seen)
        self.workers[which] = None

    @rule(which=WHICH, first=VERDICTS, second=VERDICTS, decision=DECISIONS, is_called=st.booleans())
    def an_answer_comes_late(self, which: int, first: Verdict, second: Verdict, decision: str, is_called: bool) -> None:
        """A frozen worker's answer comes after a person decided, and perhaps while the next attempt is on its way."""
        self.work(which, first, 1, mended=True, end="called")
        self.what_died_is_recovered(resumed=True, verdict=first, stuck=False)
        if DispatchLog.objects.unconfirmed().exists():
            self.decide(0, decision)
        late = {job.claimed.id for job in self.jobs(which, called=True) if job.claimed}
        for _ in range(8):  # a message that is sent again stands at the end of the queue
            self.tick(1 - which)
            self.until_a_lane_is_due()
            self.tick(1 - which)
            if any(job.claimed and job.claimed.id in late for job in self.jobs(1 - which, called=False)):
                break
            self.world.verdict = Verdict.ACCEPTS
            self.call_and_answer(1 - which)
        self.ledger.check()
        self.world.verdict = second
        if is_called:
            for job in self.jobs(1 - which, called=False):
                job.call()
        for job in self.jobs(which, called=True):
            job.answer()
        self.tick(which)

    @rule(which=WHICH)
    def stop_cleanly(self, which: int) -> None:
        if (worker := self.workers[which]) is None:
            return
        worker.beat(self.now)
        self.world.unsent |= {(job.claimed.id, job.claimed.attempt) for job in self.jobs(which, called=False) if job.claimed}
        worker.engine.give_back()
        for job in self.jobs(which, called=True):
            job.answer()
        worker.engine.collect()
        worker.engine.settle()
        self.on_the_worlds_clock()
        Heartbeat.objects.filter(pk=worker.heart.pk).update(stopped_at=self.now)
        self.workers[which] = None

    @rule(resumed=st.booleans(), verdict=VERDICTS, stuck=st.booleans())
    def what_died_is_recovered(self, resumed: bool, verdict: Verdict, stuck: bool) -> None:
        self.world.now += LEASE + timedelta(seconds=1)
        self.world.verdict = verdict
        if stuck:
            recovery.recover_stuck(now=self.now)
        else:
            recovery.recover_lanes(verify_after=VerifyPolicy().first, lease_time=LEASE, now=self.now)
        if resumed:
            self.ledger.check()
            self.start_all()

    @rule()
    def recover_stuck(self) -> None:
        recovery.recover_stuck(now=self.now)

    # -- what must hold --------------------------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_tells_the_truth(self) -> None:
        self.ledger.check()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None and hasattr(self, "world"):
                self.nobody_is_forgotten()
        finally:
            transaction.set_rollback(True)
            self._transaction.__exit__(None, None, None)

    def nobody_is_forgotten(self) -> None:
        """From here on everything works, and people resume what is paused: then every message finds its end."""
        self.sessions_come_back()
        self.stop_cleanly(1)
        for _ in range(500):
            self.world.verdict = Verdict.ACCEPTS
            self.call_and_answer(0)
            self.tick(0)
            if self.jobs(0, called=False):
                continue
            if not self.somebody_waits():
                break
            self.world.now = max(min(self.moments(), default=self.now + timedelta(hours=3)), self.now + timedelta(minutes=15))
        for log in DispatchLog.objects.all():
            asked = self.world.asked[log.pk, log.attempt]
            is_known = log.status in {"SENT", "FAILED", "SKIPPED"}
            assert is_known or (log.status == "UNCONFIRMED" and asked >= len(VerifyPolicy().backoff)), f"{log} is {log.status} for ever"

    def somebody_waits(self) -> bool:
        self.start_all()
        undecided = DispatchLog.objects.filter(status__in=["PENDING", "SENDING"]) | DispatchLog.objects.filter(verify_at__isnull=False)
        return undecided.exists() or Campaign.objects.filter(status__in=[S.RUNNING, S.SCHEDULED]).exists()


@pytest.fixture
def world_channels(settings):
    here = "tests.dispatch.machine"
    settings.CHANNELS = {"world": f"{here}.WorldProvider", "world_metered": f"{here}.MeteredWorldProvider"}
    # After a start of the database a recovery waits one lease on the real clock, which no test can move: keep that short, and behind us.
    settings.SEND_DEADLINE_SECONDS = -(15 - LEASE.total_seconds() / 2)
    assert recovery.lease() == LEASE
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep_until(pg_postmaster_start_time() + make_interval(secs => %s))", [LEASE.total_seconds() + 0.1])
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pause_then_claim(machine: Paceline) -> None:
    machine.somebody_acts(0, "pause", 1, claimed=True)


def late_refusal(machine: Paceline) -> None:
    machine.an_answer_comes_late(0, Verdict.FATAL, Verdict.ACCEPTS, "send_again", True)


def crash_then_go_on(machine: Paceline) -> None:
    machine.work(0, Verdict.ACCEPTS, 1, mended=True, end="dies called")
    machine.what_died_is_recovered(resumed=True, verdict=Verdict.ACCEPTS, stuck=False)
    machine.work(1, Verdict.ACCEPTS, 1, mended=True, end="settled")


def crash_then_go_on_at_once(machine: Paceline) -> None:
    machine.work(0, Verdict.ACCEPTS, 1, mended=True, end="called")
    machine.crash(0, settles=False, seen=True)
    machine.worker(1)
    machine.start_all()
    machine.tick(1)
    machine.ledger.check()
    machine.call_and_answer(1)


def looked_up_within_the_grace_and_heard_after_it(machine: Paceline) -> None:
    """A process that is frozen between its question and the answer: what was absent then proves nothing."""
    machine.work(0, Verdict.ACCEPTS_AND_ANSWER_IS_LOST, 1, mended=True, end="settled")
    machine.time_goes_by(20)
    machine.tick(0)
    for job in machine.jobs(0, called=False):
        job.call()
    machine.time_goes_by(700)
    for job in machine.jobs(0, called=True):
        job.answer()
    machine.tick(0)


STORIES = [
    pause_then_claim,
    late_refusal,
    crash_then_go_on,
    crash_then_go_on_at_once,
    looked_up_within_the_grace_and_heard_after_it,
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("story", STORIES)
def test_the_orders_that_break_it_when_a_guard_is_missing(world_channels, story):
    machine = Paceline()
    try:
        machine.begin(metered=False, lag=400, limit=None)
        story(machine)
        machine.ledger.check()
    finally:
        machine.teardown()


@pytest.mark.django_db(transaction=True)  # each example is a transaction of its own, rolled back
def test_whatever_happens_nothing_is_lost_doubled_or_misreported(world_channels):
    wanted = os.environ.get("PACELINE_MACHINE_EXAMPLES")
    profile = settings(
        max_examples=int(wanted or 3),
        stateful_step_count=50,
        derandomize=wanted is None,
        database=None,
        print_blob=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Paceline, settings=profile)

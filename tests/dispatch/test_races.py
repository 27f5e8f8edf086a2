"""Many hands at once, each with a connection of its own, on a real PostgreSQL."""

import time
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from threading import Event, Thread
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign
from campaigns.transitions import Refused
from dispatch import runs
from dispatch import transitions as log_transitions
from dispatch.engine import Engine
from dispatch.models import DispatchLog, Lane, Run
from dispatch.scheduler import PassReport, plan
from sessions_app.models import Session
from sessions_app.providers.base import ErrorCode, SendResult
from tests.dispatch.invariants import NOW, OK, assert_sum_rule, bring_back, ready, recover, take, together
from tests.fakes import refused

pytestmark = pytest.mark.django_db(transaction=True)
S = DispatchLog.Status
ROUNDS = 5


@contextmanager
def meanwhile(act):
    """`act` has run in an open transaction of another connection, which is committed at the end of the block."""
    began, end, errors = Event(), Event(), []

    def hold():
        try:
            with transaction.atomic():
                act()
                began.set()
                assert end.wait(timeout=30)
        except BaseException as error:
            errors.append(error)
        finally:
            began.set()
            connection.close()

    thread = Thread(target=hold)
    thread.start()
    try:
        assert began.wait(timeout=30)
        yield
    finally:
        end.set()
        thread.join()
    assert not errors


def test_eight_at_one_human_lane_take_one_row_in_all():
    for _ in range(ROUNDS):
        campaign = ready(5)
        taken = together(*[lambda: take(uuid4())] * 8)
        assert sorted(map(len, taken)) == [0] * 7 + [1]
        assert_sum_rule(campaign)


def test_one_owner_in_eight_threads_takes_one_row_of_a_human_lane():
    campaign, owner = ready(5), uuid4()
    assert sum(map(len, together(*[lambda: take(owner, rows=8)] * 8))) == 1
    assert_sum_rule(campaign)


@pytest.mark.parametrize("owners", [1, 8])
def test_eight_at_one_metered_lane_never_pass_its_burst_and_take_no_row_twice(owners):
    for _ in range(ROUNDS):
        campaign = ready(40, rate=100, burst=5, next_send_at=NOW - timedelta(minutes=1))
        names = [uuid4() for _ in range(owners)]
        taken = together(*[lambda name=names[n % owners]: take(name, rows=3) for n in range(8)])
        rows = [one.id for some in taken for one in some]
        assert 1 <= len(rows) <= 5
        assert len(rows) == len(set(rows))
        assert len({one.token for some in taken for one in some}) == len([some for some in taken if some])
        assert_sum_rule(campaign)


def test_eight_at_many_lanes_share_them():
    campaigns = [ready(2) for _ in range(20)]
    taken = together(*[lambda: take(uuid4(), at_most=5)] * 8)
    rows = Counter(one.campaign_id for some in taken for one in some)
    assert set(rows.values()) == {1}
    assert len(rows) <= 20
    assert_sum_rule(*campaigns)


@pytest.mark.parametrize("pause", [True, False], ids=["pause", "disconnect"])
def test_a_pause_that_is_being_written_holds_the_claim_off(pause):
    campaign = ready(3)

    def write():
        if pause:
            transitions.pause(campaign.pk, reason="paused by ana")
        else:
            Session.objects.update(status=Session.Status.DISCONNECTED)

    with meanwhile(write):
        assert take(uuid4()) == []  # without waiting: nobody knows yet whether it will be committed
    assert take(uuid4()) == []
    assert_sum_rule(campaign)


def test_a_claim_that_is_being_written_holds_the_pause_off():
    """Otherwise a message could leave after somebody was told that the campaign is paused."""
    campaign = ready(3)
    taken = []
    with meanwhile(lambda: taken.extend(take(uuid4()))), pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '200ms'")
        transitions.pause(campaign.pk, reason="paused by ana")
    transitions.pause(campaign.pk, reason="paused by ana")
    assert len(taken) == 1
    assert take(uuid4()) == []


def test_pause_and_claim_at_once_agree_on_who_was_first():
    for _ in range(4 * ROUNDS):
        campaign = ready(3)
        taken, _paused = together(lambda: take(uuid4()), lambda c=campaign: transitions.pause(c.pk, reason="paused by ana"))
        assert len(taken) in {0, 1}
        Lane.objects.filter(session=campaign.session_id).update(next_send_at=NOW)
        assert take(uuid4()) == []
        assert_sum_rule(campaign)


def test_a_head_that_is_locked_keeps_its_place():
    campaign = ready(3)
    head = DispatchLog.objects.earliest("pk")
    with meanwhile(lambda: DispatchLog.objects.select_for_update().get(pk=head.pk)):
        assert take(uuid4()) == []
        assert lane_is_open(campaign)
    assert [one.id for one in take(uuid4())] == [head.pk]
    assert_sum_rule(campaign)


def test_a_row_that_is_being_taken_out_is_not_sent():
    campaign = ready(2)
    head, second = DispatchLog.objects.order_by("pk")
    with meanwhile(lambda: log_transitions.remove(head.pk, by="ana")):
        assert take(uuid4()) == []
    assert [one.id for one in take(uuid4())] == [second.pk]
    assert_sum_rule(campaign)


def lane_is_open(campaign: Campaign) -> bool:
    return Lane.objects.get(session=campaign.session_id).is_open


def test_eight_settles_of_one_answer_count_once():
    for _ in range(ROUNDS):
        campaign = ready(2)
        claimed = take(uuid4())
        changed = together(*[lambda c=claimed: bring_back(c, OK)] * 8)
        assert sorted(map(len, changed)) == [0] * 7 + [1]
        assert Run.objects.get(campaign=campaign).sent == 1
        assert_sum_rule(campaign)


def test_eight_recoveries_find_one_loss():
    for _ in range(ROUNDS):
        campaign, owner = ready(2), uuid4()
        take(owner)
        found = together(*[lambda o=owner: recover(o)] * 8)
        assert sorted(map(len, found)) == [0] * 7 + [1]
        assert Run.objects.get(campaign=campaign).unconfirmed == 1
        assert_sum_rule(campaign)


@pytest.mark.parametrize("result", [OK, refused(ErrorCode.FATAL), refused(ErrorCode.RATE_LIMIT)], ids=["accepted", "refused", "throttled"])
def test_an_answer_and_recovery_at_once_end_with_the_answer(result):
    for _ in range(ROUNDS):
        campaign, owner = ready(2), uuid4()
        claimed = take(owner)
        together(lambda c=claimed: bring_back(c, result), lambda o=owner: recover(o))
        expected = {"ACCEPTED": S.SENT, "REFUSED": S.PENDING if result.code == ErrorCode.RATE_LIMIT else S.FAILED}[result.answer]
        assert DispatchLog.objects.get(pk=claimed[0].id).status == expected
        assert_sum_rule(campaign)


def while_it_waits(first, second):
    """`second` begins while what `first` wrote is not committed yet, waits for its locks, and goes on from there."""
    results = []

    def wait_for_it():
        try:
            results.append(second())
        finally:
            connection.close()

    thread = Thread(target=wait_for_it)
    with meanwhile(first):
        thread.start()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not somebody_waits():
            time.sleep(0.01)
        assert somebody_waits()
    thread.join()
    assert results, "it failed"
    return results[0]


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone()[0] > 0


@pytest.mark.parametrize("result", [OK, refused(ErrorCode.FATAL), refused(ErrorCode.UNCONFIRMED)], ids=["accepted", "refused", "doubt"])
def test_an_answer_that_waited_for_recovery_counts_from_what_recovery_left(result):
    campaign, owner = ready(2), uuid4()
    claimed = take(owner)
    assert while_it_waits(lambda: recover(owner), lambda: bring_back(claimed, result)) == {claimed[0].id}
    assert_sum_rule(campaign)


def test_an_answer_that_waited_for_an_operator_counts_from_what_the_operator_left():
    campaign, owner = ready(2), uuid4()
    claimed = take(owner)
    recover(owner)
    assert while_it_waits(lambda: log_transitions.give_up(claimed[0].id, by="ana"), lambda: bring_back(claimed, OK)) == {claimed[0].id}
    assert DispatchLog.objects.get(pk=claimed[0].id).status == S.SENT
    assert_sum_rule(campaign)


def test_recovery_waits_for_an_answer_and_finds_nothing_lost():
    campaign, owner = ready(2), uuid4()
    claimed = take(owner)
    assert while_it_waits(lambda: bring_back(claimed, OK), lambda: recover(owner)) == []
    assert_sum_rule(campaign)


def test_an_operator_and_a_late_answer_at_once_leave_one_truth():
    for decide in (log_transitions.mark_sent, log_transitions.give_up, log_transitions.send_again):
        campaign, owner = ready(2), uuid4()
        claimed = take(owner)
        recover(owner)

        def by_hand(act=decide, log=claimed[0].id):
            try:
                act(log, by="ana")
            except Refused as refusal:
                return str(refusal)
            return ""

        together(lambda c=claimed: bring_back(c, OK), by_hand)
        assert DispatchLog.objects.get(pk=claimed[0].id).status == S.SENT
        assert_sum_rule(campaign)


def test_two_sweeps_and_a_claim_at_once():
    for _ in range(ROUNDS):
        campaign = ready(20)
        run = Run.objects.get(campaign=campaign)
        together(lambda: take(uuid4()), *[lambda r=run: runs.sweep(r.pk, "campaign stopped")] * 2)
        assert not DispatchLog.objects.pending().filter(campaign=campaign).exists()
        assert_sum_rule(campaign)


def test_two_schedulers_that_see_one_step_due_make_one_run_of_it_and_each_row_once():
    campaign = ready(0)
    Run.objects.all().delete()
    campaign.steps.update(status="SCHEDULED", next_run_at=timezone.now())
    Campaign.objects.update(epoch=1)
    assert sum(together(*[lambda: runs.advance(campaign.pk, timezone.now())] * 6)) == 1
    run = Run.objects.get()
    together(*[lambda: runs.make_rows(run.pk, timezone.now())] * 6)
    assert DispatchLog.objects.filter(run=run).count() == campaign.recipients.count()
    assert_sum_rule(campaign)


def test_somebody_who_is_moved_down_the_list_while_the_rows_are_made_gets_one(monkeypatch):
    monkeypatch.setattr(runs, "ROWS_AT_ONCE", 2)
    campaign = ready(5)
    DispatchLog.objects.all().delete()
    Run.objects.update(rows_complete=False, planned=0)
    run = Run.objects.get()
    assert runs.make_rows(run.pk, NOW) == 2
    campaign.recipients.filter(order=0).update(order=99)
    while runs.make_rows(run.pk, NOW):
        pass
    assert sorted(DispatchLog.objects.values_list("recipient_id", flat=True)) == sorted(campaign.recipients.values_list("pk", flat=True))
    assert_sum_rule(campaign)


# -- the deadlock hunt ---------------------------------------------------------------------------------------------------------


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush(), deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return cursor.fetchone()[1]


ALL_ANSWERS = [
    OK,
    OK,
    OK,
    refused(ErrorCode.UNCONFIRMED),
    refused(ErrorCode.FATAL),
    refused(ErrorCode.RATE_LIMIT),
    SendResult.unsent("late"),
]


@pytest.mark.slow
def test_three_seconds_of_everything_at_once_without_a_deadlock():
    campaigns = [ready(300, rate=1000, burst=8, next_send_at=timezone.now()) for _ in range(3)] + [ready(50)]
    Lane.objects.filter(rate__isnull=True).update(longest_wait=timedelta(0))
    DispatchLog.objects.update(available_at=timezone.now())
    DispatchLog.objects.filter(recipient__order__gte=20).delete()  # their rows are made while the others are on their way
    Run.objects.update(rows_complete=False, planned=20)
    before, began = deadlocks(), time.monotonic()
    did: Counter[str] = Counter()
    graves: list[UUID] = []

    def goes_on() -> bool:
        """For three seconds; longer on a machine that is busy otherwise, until something is proven."""
        passed = time.monotonic() - began
        return passed < 3 or (passed < 30 and not proves_something())

    def proves_something() -> bool:
        return all(did[name] > 0 for name in acts) and DispatchLog.objects.filter(status=S.SENT).count() > 20

    def repeat(name, act):
        random = Random(name)
        while goes_on():
            try:
                did[name] += act(random) or 0
            except Refused:
                pass

    def send(random: Random) -> int:
        owner = uuid4()
        claimed = take(owner, now=None, rows=random.randint(1, 8))
        if claimed and random.random() < 0.2:
            graves.append(owner)  # dies with its messages in flight
            return 0
        random.shuffle(claimed)
        return len(bring_back(claimed, *[random.choice(ALL_ANSWERS) for _ in claimed], now=None)) if claimed else 0

    def bury(random: Random) -> int:
        return len(recover(*graves, now=None))

    def fill(random: Random) -> int:
        for campaign in campaigns:
            for run in Run.objects.filter(campaign=campaign):
                runs.make_rows(run.pk, timezone.now())
                runs.finish(run.pk, timezone.now())
                if random.random() < 0.2:
                    campaign.recipients.filter(pk__in=campaign.recipients.order_by("?")[:1]).delete()
                    runs.sweep(run.pk, "recipient deleted")
        return 1

    def steer(random: Random) -> int:
        campaign = random.choice(campaigns)
        Lane.objects.filter(trouble__gt="").update(trouble="", trouble_code="", consecutive_failures=0)
        if random.random() < 0.5:
            transitions.pause(campaign.pk, reason="paused by ana")
        else:
            transitions.resume(campaign.pk, by="ana")
        for _ in range(3):
            Lane.objects.filter(session=campaign.session_id).update(is_open=True, next_send_at=timezone.now())
        return 1

    def decide(random: Random) -> int:
        log = DispatchLog.objects.unconfirmed().order_by("?").first()
        if log is not None:
            random.choice([log_transitions.mark_sent, log_transitions.give_up, log_transitions.send_again])(log.pk, by="ana")
        return log is not None

    acts = {"send": send, "send too": send, "bury": bury, "fill": fill, "steer": steer, "decide": decide}
    together(*[lambda name=name, act=act: repeat(name, act) for name, act in acts.items()])
    assert deadlocks() == before
    assert proves_something(), did
    recover(*graves, now=None)
    assert_sum_rule(*campaigns)


def test_a_scheduler_that_comes_second_does_not_pause_what_the_first_began():
    for _ in range(ROUNDS):
        campaign = ready(3)
        now = timezone.now()
        Campaign.objects.filter(pk=campaign.pk).update(status=Campaign.Status.SCHEDULED, due_at=now, due_seen_at=now)
        engines = [Engine(owner=uuid4(), threads=1) for _ in range(3)]
        together(*[lambda e=engine: plan(e, PassReport()) for engine in engines])
        for engine in engines:
            engine.close()
        campaign.refresh_from_db()
        assert (campaign.status, campaign.status_reason) == (Campaign.Status.RUNNING, "started at its time")
        Campaign.objects.filter(pk=campaign.pk).update(status=Campaign.Status.PAUSED)

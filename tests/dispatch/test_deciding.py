"""Many unconfirmed messages decided at once, and those that their campaign decides by itself."""

import tracemalloc
from datetime import timedelta
from functools import partial
from threading import Event

import pytest
from django.db import connection
from django.utils import timezone

from campaigns import transitions as campaign_transitions
from campaigns.models import Campaign, Recipient
from dispatch import deciding, transitions
from dispatch.deciding import ROWS_AT_ONCE, decide_all
from dispatch.models import DispatchLog, Run
from dispatch.scheduler import PassReport, plan, run_pass
from dispatch.transitions import DEFAULT, DEFAULTS, GIVE_UP, MARK_SENT, REMOVE, SEND_AGAIN
from dispatch.verification import LAST_ANSWER_IS_LOST_AFTER, VerifyPolicy
from sessions_app.models import Session
from sessions_app.providers.base import ErrorCode, Presence, Verification
from tests.dispatch.conftest import START, make_engine
from tests.dispatch.invariants import assert_sum_rule, together
from tests.factories import make_campaign, make_log, make_run, make_step, make_unconfirmed
from tests.fakes import FakeProvider, refused

pytestmark = pytest.mark.django_db
S = DispatchLog.Status
D = Campaign.UnconfirmedDefault
GRACE = VerifyPolicy().grace
DOUBT = refused(ErrorCode.UNCONFIRMED, "no answer in time")
UNKNOWN, PRESENT = Verification(Presence.UNKNOWN), Verification(Presence.PRESENT, "found-1")
BECOMES = {D.ASK: S.UNCONFIRMED, D.MARK_SENT: S.SENT, D.GIVE_UP: S.FAILED}


# -- the default of a campaign -------------------------------------------------------------------------------------------------


@pytest.fixture
def doubtful(campaign, drive) -> DispatchLog:
    """The first of three is in doubt, and the channel does not know what became of it."""
    FakeProvider.presence = UNKNOWN
    FakeProvider.answers(DOUBT)
    campaign_transitions.start(campaign.pk, by="ana", now=START)
    drive.once()
    return DispatchLog.objects.earliest("pk")


def choose(default: str) -> None:
    Campaign.objects.update(unconfirmed_default=default)


def now_in(log: DispatchLog) -> DispatchLog:
    return DispatchLog.objects.get(pk=log.pk)


def to_the_last_turn(drive, log: DispatchLog) -> None:
    """Every turn but the last one has passed, and nothing was decided at any of them."""
    for _ in VerifyPolicy().backoff[:-1]:
        drive.to(now_in(log).verify_at)
        drive.once()
        assert (now_in(log).status, now_in(log).decided_by) == ("UNCONFIRMED", "")
    last = now_in(log).verify_at
    assert last is not None
    drive.to(last - timedelta(milliseconds=1))
    drive.once()
    assert now_in(log).status == "UNCONFIRMED"
    drive.to(last)


@pytest.mark.parametrize(("default", "target"), BECOMES.items())
def test_each_default_is_read_and_applied_after_the_last_turn(doubtful, drive, campaign, default, target):
    choose(default)
    to_the_last_turn(drive, doubtful)
    drive.once()
    log = now_in(doubtful)
    assert (log.status, log.verifications, log.verify_at) == (target, len(VerifyPolicy().backoff), None)
    assert log.decided_by == ("" if default == D.ASK else DEFAULT)
    assert (DEFAULT in log.reason) == (default != D.ASK)
    assert_sum_rule(campaign)


def test_send_again_by_default_goes_out_once_more_and_then_waits_for_a_person(doubtful, drive, campaign):
    choose(D.SEND_AGAIN)
    to_the_last_turn(drive, doubtful)
    FakeProvider.answers(DOUBT)
    drive.until_done()
    second = now_in(doubtful)
    assert (second.status, second.attempt, second.verifications) == ("UNCONFIRMED", 2, 0)  # asked about from the beginning
    while (due := now_in(second).verify_at) is not None:
        drive.to(due)
        drive.once()
    drive.forward(timedelta(days=30))
    drive.once()
    assert (now_in(second).status, now_in(second).attempt, now_in(second).verifications) == ("UNCONFIRMED", 2, 7)
    assert len([call for call in FakeProvider.calls if call.address == second.address]) == 2
    assert_sum_rule(campaign)


def test_all_choices_that_decide_have_their_verb():
    assert set(DEFAULTS) == set(D) - {D.ASK}


@pytest.mark.parametrize("default", [D.MARK_SENT, D.GIVE_UP, D.SEND_AGAIN])
def test_nothing_is_decided_while_the_last_answer_is_on_its_way(doubtful, drive, monkeypatch, default):
    asked, answer = Event(), Event()

    def verify(self, sent, deadline):
        asked.set()
        assert answer.wait(timeout=30)
        return PRESENT

    choose(default)
    to_the_last_turn(drive, doubtful)
    monkeypatch.setattr(FakeProvider, "verify", verify)
    run_pass(drive.engine)
    assert asked.wait(timeout=30)
    drive.forward(LAST_ANSWER_IS_LOST_AFTER - timedelta(milliseconds=1))
    assert run_pass(drive.engine).decided == 0
    assert now_in(doubtful).status == "UNCONFIRMED"
    answer.set()
    drive.once()
    assert (now_in(doubtful).status, now_in(doubtful).decided_by) == ("SENT", "")


def test_a_last_answer_that_was_lost_with_its_process_is_asked_for_once_more(doubtful, drive):
    choose(D.GIVE_UP)
    to_the_last_turn(drive, doubtful)
    other = make_engine(now=drive.now)
    other.ask_about_unconfirmed()
    other.close()  # it never says what it heard
    drive.once()
    assert now_in(doubtful).status == "UNCONFIRMED"
    FakeProvider.presence = PRESENT
    drive.forward(LAST_ANSWER_IS_LOST_AFTER)
    drive.once()
    assert now_in(doubtful).status == "SENT"


def test_where_the_channel_cannot_be_asked_the_default_waits_out_the_grace(doubtful, drive, monkeypatch):
    monkeypatch.setattr(FakeProvider, "can_verify", False)
    choose(D.GIVE_UP)
    drive.to(START + timedelta(seconds=15))
    drive.once()
    assert now_in(doubtful).verify_at is None
    drive.to(START + GRACE - timedelta(milliseconds=1))
    drive.once()
    assert now_in(doubtful).status == "UNCONFIRMED"
    drive.to(START + GRACE)
    drive.once()
    assert now_in(doubtful).status == "FAILED"


def test_a_session_that_cannot_be_used_for_now_loses_its_turn_and_not_all_of_them(doubtful, drive):
    choose(D.GIVE_UP)
    Session.objects.update(channel="unknown", updated_at=timezone.now())
    drive.to(START + timedelta(seconds=15))
    drive.once()
    assert (now_in(doubtful).verifications, now_in(doubtful).verify_at) == (1, drive.now + timedelta(minutes=1))
    Session.objects.update(channel="fake", updated_at=timezone.now())
    FakeProvider.presence = PRESENT
    drive.to(now_in(doubtful).verify_at)
    drive.once()
    assert now_in(doubtful).status == "SENT"


def test_a_default_that_is_edited_later_applies_to_what_is_open(doubtful, drive, campaign):
    to_the_last_turn(drive, doubtful)
    drive.once()
    drive.forward(timedelta(days=3))
    drive.once()
    assert now_in(doubtful).status == "UNCONFIRMED"
    choose(D.MARK_SENT)
    drive.once()
    assert now_in(doubtful).status == "SENT"
    assert Campaign.objects.get().status_reason == "completed: 3 sent"
    assert_sum_rule(campaign)


def test_the_choice_counts_as_it_stands_when_it_is_applied(campaign):
    run = make_unconfirmed(2, make_run(campaign.steps.get(), rows_complete=True))
    ids = list(run.logs.values_list("pk", flat=True))
    assert transitions.decide_by_default(campaign.pk, ids, now=START) == 0
    assert run.logs.unconfirmed().count() == 2
    assert transitions.decide_by_default(0, ids, now=START) == 0


def test_nothing_is_sent_again_by_default_that_could_not_go_out(doubtful, drive):
    """It would be called skipped, though it may have arrived."""
    to_the_last_turn(drive, doubtful)
    drive.once()
    other = make_log(make_run(make_step(make_campaign(status=Campaign.Status.COMPLETED))), status=S.UNCONFIRMED, verify_at=None)
    DispatchLog.objects.filter(pk=other.pk).update(unconfirmed_at=START)
    Recipient.objects.filter(logs=other).delete()
    Campaign.objects.filter(pk=doubtful.campaign_id).update(status=Campaign.Status.FAILED)
    choose(D.SEND_AGAIN)
    drive.once()
    assert (now_in(doubtful).status, now_in(other).status) == ("UNCONFIRMED", "UNCONFIRMED")
    choose(D.GIVE_UP)
    drive.once()
    assert (now_in(doubtful).status, now_in(other).status) == ("FAILED", "FAILED")


def test_a_pass_decides_a_bounded_number(fake):
    run = make_unconfirmed(ROWS_AT_ONCE + 20)
    choose(D.GIVE_UP)
    engine = make_engine(now=timezone.now())
    found = []
    for _ in range(3):
        report = PassReport()
        plan(engine, report)
        found.append(report.decided)
    engine.close()
    assert found == [ROWS_AT_ONCE, 20, 0]
    assert_sum_rule(run.campaign)


def plan_of(rows) -> str:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE dispatch_dispatchlog, campaigns_campaign")
    return rows.explain()


def test_looking_for_what_a_default_decides_reads_an_index_of_open_ones_alone():
    run = make_unconfirmed(3000)
    make_unconfirmed(3000, run, status=S.SENT)
    campaigns = [make_campaign(unconfirmed_default=D.GIVE_UP, session=run.campaign.session) for _ in range(20)]
    make_unconfirmed(5, make_run(make_step(campaigns[0]), rows_complete=True))
    rows = DispatchLog.objects.left_open(timezone.now()).order_by("campaign_id", "pk").values_list("campaign_id", "pk")[:ROWS_AT_ONCE]
    assert len(rows) == 5
    found = plan_of(rows)
    assert "log_left_open" in found and "Seq Scan on dispatch_dispatchlog" not in found


# -- many at once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [MARK_SENT, GIVE_UP, SEND_AGAIN, REMOVE])
def test_every_row_of_a_list_is_decided_and_counted_over_campaigns_and_runs(decision):
    done = make_campaign(status=Campaign.Status.COMPLETED, status_reason="completed: 0 sent, 700 unconfirmed")
    step, other = make_step(done), make_step(make_campaign(status=Campaign.Status.PAUSED))
    for run, count in ((make_run(step, rows_complete=True), 699), (make_run(step, rows_complete=True), 1), (make_run(other), 40)):
        make_unconfirmed(count, run)
    sent = make_log(make_run(other), status=S.SENT)
    test = DispatchLog.objects.create(campaign=done, session=done.session, kind="TEST", address="x", status=S.UNCONFIRMED)
    if decision is REMOVE:
        DispatchLog.objects.unconfirmed().update(status=S.PENDING)
        Run.objects.update(unconfirmed=0)
    result = decide_all(decision, DispatchLog.objects.all(), by="ana")
    assert (result.decided, result.left, result.is_done) == (741, 0, True)
    assert set(DispatchLog.objects.exclude(pk=sent.pk).values_list("status", "decided_by", "unconfirmed_at")) == {
        (decision.target, "ana", None)
    }
    assert now_in(test).reason == decision.reason.format(by="ana")
    assert now_in(sent).decided_by == ""
    assert_sum_rule()
    done.refresh_from_db()
    wanted = {S.SENT: "completed: 700 sent", S.FAILED: "completed: 0 sent, 700 failed", S.SKIPPED: "completed: 0 sent, 700 skipped"}
    if decision is SEND_AGAIN:
        assert done.status == Campaign.Status.SCHEDULED and "sends again" in done.status_reason
        assert set(Run.objects.exclude(planned=1).values_list("status", flat=True)) == {Run.Status.RUNNING}
    else:
        assert (done.status, done.status_reason) == (Campaign.Status.COMPLETED, wanted[decision.target])


def test_what_was_decided_between_the_look_and_the_lock_is_left_alone_and_counted():
    run = make_unconfirmed(3)
    first, *rest = run.logs.order_by("pk").values_list("pk", flat=True)
    transitions.mark_sent(first, by="ben")
    assert transitions.decide(GIVE_UP, [first, *rest], by="ana") == 2
    assert list(run.logs.order_by("pk").values_list("status", "decided_by")) == [("SENT", "ben"), ("FAILED", "ana"), ("FAILED", "ana")]
    assert_sum_rule(run.campaign)


def test_memory_stays_flat_however_many_and_however_long_their_texts():
    run = make_unconfirmed(3000, body="x" * 3000)
    tracemalloc.start()
    try:
        assert decide_all(GIVE_UP, run.logs.all(), by="ana").decided == 3000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000  # the texts alone are 9 MB
    assert_sum_rule(run.campaign)


def test_what_there_is_no_time_for_is_left_for_the_next_call():
    run = make_unconfirmed(ROWS_AT_ONCE + 1)
    first = decide_all(GIVE_UP, run.logs.all(), by="ana", takes_at_most=timedelta(0))
    assert (first.decided, first.is_done) == (ROWS_AT_ONCE, False)
    second = decide_all(GIVE_UP, run.logs.all(), by="ana", takes_at_most=timedelta(0))
    assert (second.decided, second.is_done) == (1, True)
    assert_sum_rule(run.campaign)


@pytest.mark.django_db(transaction=True)
def test_two_who_decide_the_same_rows_decide_each_once():
    for _ in range(5):
        run = make_unconfirmed(500)
        rows = run.logs.all()
        one, two = together(partial(decide_all, MARK_SENT, rows, by="ana"), partial(decide_all, GIVE_UP, rows, by="ben"))
        assert one.decided + two.decided == 500
        assert run.logs.filter(status=S.SENT, decided_by="ana").count() == one.decided
        assert run.logs.filter(status=S.FAILED, decided_by="ben").count() == two.decided
        assert_sum_rule(run.campaign)


@pytest.mark.django_db(transaction=True)
def test_single_decisions_evidence_and_defaults_beside_a_bulk_one_move_each_row_once(monkeypatch):
    monkeypatch.setattr(deciding, "ROWS_AT_ONCE", 20)
    steps = [make_step(make_campaign(status=Campaign.Status.COMPLETED, unconfirmed_default=D.GIVE_UP)) for _ in range(3)]
    runs = [make_unconfirmed(40, make_run(step, rows_complete=True)) for step in steps]
    ids = list(DispatchLog.objects.order_by("-pk").values_list("pk", flat=True))
    session = {log.pk: log.campaign_id for log in DispatchLog.objects.all()}

    def one_by_one():
        for log_id in ids[::3]:
            transitions.decide(SEND_AGAIN, [log_id], by="ben")

    def evidence():
        for log_id in ids[1::3]:
            transitions.verified_present(log_id, attempt=1, message_id="x")

    def by_default():
        for log_id in ids[2::3]:
            transitions.decide_by_default(session[log_id], [log_id], now=timezone.now())

    together(one_by_one, evidence, by_default, lambda: decide_all(MARK_SENT, DispatchLog.objects.all(), by="ana"))
    assert not DispatchLog.objects.unconfirmed().exists()
    assert_sum_rule(*[run.campaign for run in runs])

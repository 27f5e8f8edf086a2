"""The retry job: what is queued again, when, and what never; and that whatever it does, messages leave through their lane."""

import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.db.models.functions import Now
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep
from campaigns.transitions import Refused
from dispatch import jobs, retry
from dispatch import transitions as log_transitions
from dispatch.models import DispatchLog, Job, Run
from dispatch.outcomes import MOST_TRANSIENTS
from dispatch.retry import Scope, run_batch, state
from sessions_app.providers.base import ErrorCode, SendResult
from tests.dispatch.conftest import START, make_ready, statuses
from tests.dispatch.invariants import assert_sum_rule
from tests.factories import make_campaign, make_log, make_recipients, make_run, make_session, make_step
from tests.fakes import FakeProvider, refused

pytestmark = pytest.mark.django_db
S = Campaign.Status
TRANSIENT = refused(ErrorCode.TRANSIENT, "the server is not there")
EVERYTHING = Scope()
SECOND = timedelta(seconds=1)


def begin(campaign: Campaign, drive, *answers: SendResult | None) -> None:
    """Goes out to everybody, with these answers first; at the end the clock stands where the last one was sent."""
    FakeProvider.answers(*answers)
    transitions.start(campaign.pk, by="ana", now=drive.now)
    drive.until_done()


def status(campaign: Campaign) -> str:
    return Campaign.objects.values_list("status", flat=True).get(pk=campaign.pk)


def calls_to(log: DispatchLog) -> int:
    return sum(call.address == log.address for call in FakeProvider.calls)


def failed(count: int = 1, *, campaign: Campaign | None = None, run: Run | None = None, at: datetime = START, **fields: Any) -> Run:
    """So many that failed and are due at `at`, in a campaign that is RUNNING."""
    run = run or make_run(make_step(campaign or make_campaign(status=S.RUNNING)), rows_complete=True)
    values = {"status": "FAILED", "error_code": "TRANSIENT", "transients": 1, "retry_at": at, "claimed_at": at - timedelta(minutes=5)}
    for _ in range(count):
        make_log(run, **{**values, **fields})
    return run


def many(count: int, **fields: Any) -> Run:
    """The same, quickly."""
    run = make_run(make_step(make_campaign(status=S.RUNNING)), rows_complete=True, planned=count, failed=count)
    values = {"status": "FAILED", "error_code": "TRANSIENT", "error_text": "away", "retry_at": START, "claimed_at": START, "attempt": 1}
    people = make_recipients(count, run.campaign)
    owner = {"campaign": run.campaign, "session": run.campaign.session, "step": run.step, "run": run}
    DispatchLog.objects.bulk_create(
        [DispatchLog(recipient=person, address=person.address, **owner, **{**values, **fields}) for person in people]
    )
    return run


def numbers(counts: dict[str, Any]) -> tuple[int, int, int, int | None]:
    return counts["queued"], counts["campaigns"], counts["failed"], counts["left"]


# -- back-off ------------------------------------------------------------------------------------------------------------------


def test_five_minutes_then_thirty_then_never(fake, drive):
    campaign = make_ready(people=1)
    begin(campaign, drive, TRANSIENT)
    for wait in (timedelta(minutes=5), timedelta(minutes=30)):
        log = DispatchLog.objects.get()
        assert (log.status, log.retry_at) == ("FAILED", drive.now + wait)
        assert run_batch(EVERYTHING, now=log.retry_at - SECOND)["queued"] == 0
        assert statuses(campaign) == ["FAILED"]
        assert run_batch(EVERYTHING, now=log.retry_at)["queued"] == 1
        assert (statuses(campaign), status(campaign)) == (["PENDING"], S.SCHEDULED)
        assert DispatchLog.objects.get().retry_at is None
        drive.to(log.retry_at)
        FakeProvider.answers(TRANSIENT)
        drive.until_done()
    log = DispatchLog.objects.get()
    assert (log.status, log.retry_at, log.transients, log.attempt) == ("FAILED", None, MOST_TRANSIENTS, MOST_TRANSIENTS)
    assert run_batch(EVERYTHING, now=drive.now + timedelta(days=365))["queued"] == 0
    assert len(FakeProvider.calls) == MOST_TRANSIENTS


def test_the_job_itself_sends_nothing_and_the_message_leaves_through_its_lane(fake, drive):
    """Queued while the others are still going out: the gap between any two stays what the campaign says."""
    campaign = make_ready(people=25, min_interval=8, max_interval=25)
    FakeProvider.answers(TRANSIENT)
    transitions.start(campaign.pk, by="ana", now=START)
    due = START + timedelta(minutes=5)
    while drive.now < due:
        drive.once()
        drive.to(drive.next_moment())
    sent_before = len(FakeProvider.calls)
    assert 1 < sent_before < 25
    assert run_batch(EVERYTHING, now=drive.now)["queued"] == 1
    assert (len(FakeProvider.calls), status(campaign)) == (sent_before, S.RUNNING)
    drive.until_done()
    gaps = [later - earlier for earlier, later in zip(drive.sent_at, drive.sent_at[1:], strict=False)]
    assert min(gaps) >= timedelta(seconds=8)
    assert len(drive.sent_at) == 26
    assert set(statuses(campaign)) == {"SENT"}
    assert sorted(calls_to(log) for log in DispatchLog.objects.all()) == [1] * 24 + [2]


# -- the states of a campaign --------------------------------------------------------------------------------------------------


def test_a_completed_campaign_takes_its_turn_again_and_sends_to_exactly_that_person_once(fake, drive):
    campaign = make_ready(people=4)
    begin(campaign, drive, None, TRANSIENT)
    assert status(campaign) == S.COMPLETED
    lost = DispatchLog.objects.get(status="FAILED")
    drive.to(lost.retry_at)
    counts = run_batch(EVERYTHING, now=drive.now)
    assert counts | {"left": 0} == {
        "queued": 1,
        "campaigns": 1,
        "requeued_campaigns": 1,
        "failed": 0,
        "left": 0,
        "by_reason": {"the server is not there": 1},
        "lock_lost": False,
        "dry_run": False,
    }
    campaign.refresh_from_db()
    assert (campaign.status, campaign.due_at) == (S.SCHEDULED, drive.now)
    assert campaign.status_reason == f"sends again: {retry.REASON}"
    drive.until_done()
    assert (status(campaign), statuses(campaign)) == (S.COMPLETED, ["SENT"] * 4)
    assert [calls_to(log) for log in DispatchLog.objects.order_by("pk")] == [1, 2, 1, 1]
    assert_sum_rule(campaign)
    assert run_batch(EVERYTHING, now=drive.now + timedelta(days=1))["queued"] == 0


def test_a_paused_campaign_stays_paused(fake, drive):
    campaign = make_ready(people=1)
    begin(campaign, drive, TRANSIENT)
    Campaign.objects.update(status=S.PAUSED, status_reason="paused by ana")
    due = DispatchLog.objects.get().retry_at
    counts = run_batch(EVERYTHING, now=due)
    assert (counts["queued"], counts["requeued_campaigns"]) == (1, 0)
    assert (status(campaign), statuses(campaign)) == (S.PAUSED, ["PENDING"])
    drive.to(due)
    drive.once()
    assert len(FakeProvider.calls) == 1
    transitions.resume(campaign.pk, by="ana", now=drive.now)
    drive.until_done()
    assert (status(campaign), statuses(campaign)) == (S.COMPLETED, ["SENT"])


def test_a_stopped_campaign_is_left_and_does_not_burden_the_next_batch():
    run = failed(3, campaign=make_campaign(status=S.FAILED))
    assert numbers(run_batch(EVERYTHING, now=START)) == (0, 0, 0, 0)
    assert statuses(run.campaign) == ["FAILED"] * 3
    assert not DispatchLog.objects.filter(retry_at__isnull=False).exists()


def test_one_that_waits_for_its_next_step_comes_back_now_and_keeps_the_step(fake, drive):
    campaign = make_ready(people=1)
    later = START + timedelta(days=2)
    make_step(campaign, text="later", scheduled_at=later)
    FakeProvider.answers(TRANSIENT)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.once()
    drive.forward(60)
    drive.once()
    assert (status(campaign), Campaign.objects.get().due_at) == (S.SCHEDULED, later)
    drive.to(DispatchLog.objects.get().retry_at)
    assert run_batch(EVERYTHING, now=drive.now)["requeued_campaigns"] == 1
    assert Campaign.objects.get().due_at == drive.now
    drive.once()
    assert statuses(campaign) == ["SENT"]
    drive.until_done()
    assert status(campaign) == S.COMPLETED
    assert FakeProvider.texts() == ["Hello Person 1", "Hello Person 1", "later"]
    assert CampaignStep.objects.get(order=2).runs.get().scheduled_for == later


def test_one_that_a_person_scheduled_keeps_its_time():
    campaign = make_campaign(status=S.SCHEDULED, due_at=START + timedelta(days=1))
    failed(campaign=campaign)
    counts = run_batch(EVERYTHING, now=START)
    assert (counts["queued"], counts["requeued_campaigns"]) == (1, 0)
    assert Campaign.objects.get().due_at == START + timedelta(days=1)


# -- what it never touches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["", "TRANSIENT", "FATAL", "INVALID_RECIPIENT"])
def test_unconfirmed_and_whatever_somebody_decided_are_left(code):
    run = failed(status="UNCONFIRMED", error_code=code or "UNCONFIRMED", verify_at=None)
    given_up = make_log(run, status="UNCONFIRMED", error_code="UNCONFIRMED")
    log_transitions.give_up(given_up.pk, by="ana")
    failed(run=run, error_code=code or "TRANSIENT", decided_by="ana", retry_at=None)
    failed(run=run, error_code=code or "TRANSIENT", status="SENT", retry_at=None)
    failed(run=run, error_code=code or "TRANSIENT", recipient=None)
    before = statuses(run.campaign)
    assert numbers(run_batch(Scope(error_code=code), now=START)) == (0, 0, 0, 0)
    assert statuses(run.campaign) == before == ["UNCONFIRMED", "FAILED", "FAILED", "SENT", "FAILED"]


def test_what_somebody_sent_again_is_worth_another_try_too():
    run = failed(decided_by="ana")
    assert run_batch(EVERYTHING, now=START)["queued"] == 1
    assert statuses(run.campaign) == ["PENDING"]


def test_other_codes_wait_for_somebody_who_names_them():
    run = failed(error_code="FATAL", retry_at=None)
    failed(run=run, error_code="INVALID_RECIPIENT", retry_at=None)
    failed(run=run, error_code="FATAL", retry_at=None, attempt=MOST_TRANSIENTS)
    assert run_batch(EVERYTHING, now=START)["queued"] == 0
    assert run_batch(Scope(error_code="FATAL"), now=START)["queued"] == 1
    assert statuses(run.campaign) == ["PENDING", "FAILED", "FAILED"]
    assert run_batch(Scope(error_code="INVALID_RECIPIENT"), now=START)["queued"] == 1
    assert statuses(run.campaign) == ["PENDING", "PENDING", "FAILED"]
    assert_sum_rule(run.campaign)


@pytest.mark.parametrize("code", ["UNCONFIRMED", "RATE_LIMIT", "NONSENSE", "transient"])
def test_a_code_that_cannot_be_queued_again_is_refused(code):
    with pytest.raises(Refused, match="Decide about it" if code == "UNCONFIRMED" else f"{code} is no error code .* FATAL"):
        run_batch(Scope(error_code=code))
    with pytest.raises(Refused):
        state(Scope(error_code=code))
    assert not Job.objects.exists()


# -- scope and limits ----------------------------------------------------------------------------------------------------------


def by(name: str, value: Callable[[Run], object]) -> Callable[[Run], Scope]:
    return lambda run: Scope(**{name: value(run)})


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(by("campaign_id", lambda run: run.campaign_id), id="campaign"),
        pytest.param(by("tenant", lambda run: "acme"), id="tenant"),
        pytest.param(by("session_id", lambda run: run.campaign.session_id), id="session"),
        pytest.param(by("max_age", lambda run: timedelta(hours=1)), id="age"),
    ],
)
def test_a_scope_takes_what_is_in_it_and_nothing_else(scope):
    mine = failed(2, campaign=make_campaign(status=S.RUNNING, tenant="acme"))
    other = failed(campaign=make_campaign(status=S.RUNNING, tenant="globex"), claimed_at=START - timedelta(hours=2))
    counts = run_batch(scope(mine), now=START)
    assert numbers(counts) == (2, 1, 0, 0)
    assert (statuses(mine.campaign), statuses(other.campaign)) == (["PENDING"] * 2, ["FAILED"])


def test_the_session_is_the_one_that_the_campaign_sends_through_now():
    run = failed()
    moved_to = make_session()
    Campaign.objects.update(session=moved_to)
    assert run_batch(Scope(session_id=run.campaign.session_id), now=START)["queued"] == 0
    assert run_batch(Scope(session_id=moved_to.pk), now=START)["queued"] == 1


def test_a_campaign_or_session_that_is_not_there_is_refused():
    with pytest.raises(Refused, match="There is no campaign 999"):
        run_batch(Scope(campaign_id=999))
    with pytest.raises(Refused, match="There is no session 998"):
        run_batch(Scope(session_id=998))


def test_the_settings_give_the_scope_and_the_limits(settings):
    settings.CAMPAIGN_RETRY_CAMPAIGN_ID, settings.CAMPAIGN_RETRY_TENANT_ID = 7, "acme"
    assert Scope.from_settings() == Scope(campaign_id=7, tenant="acme")
    settings.CAMPAIGN_RETRY_BATCH_SIZE, settings.CAMPAIGN_RETRY_MAX_CAMPAIGNS = 3, 1
    failed(2)
    failed(2)
    assert numbers(run_batch(EVERYTHING, now=START)) == (2, 1, 0, 2)


def test_at_most_so_many_messages_the_longest_due_first():
    run = make_run(make_step(make_campaign(status=S.RUNNING)), rows_complete=True)
    for minutes in (1, 3, 2):
        failed(run=run, at=START - timedelta(minutes=minutes))
    assert numbers(run_batch(EVERYTHING, batch_size=2, now=START)) == (2, 1, 0, 1)
    assert statuses(run.campaign) == ["FAILED", "PENDING", "PENDING"]


def test_a_row_that_moved_on_after_it_was_picked_is_not_moved_back(monkeypatch):
    """It failed again meanwhile, and now has to wait longer."""
    failed(2)
    choose = retry._Batch._choose

    def chosen_too_early(batch):
        chosen = choose(batch)
        DispatchLog.objects.filter(pk=min(pk for pks in chosen.values() for pk in pks)).update(retry_at=START + timedelta(minutes=30))
        return chosen

    monkeypatch.setattr(retry._Batch, "_choose", chosen_too_early)
    counts = run_batch(EVERYTHING, now=START)
    assert (counts["queued"], counts["by_reason"]) == (1, {"TRANSIENT": 1})


# -- saying what it would do ---------------------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing_and_counts_by_reason():
    run = failed(2, error_text="No route to +1202****0101 (120255501011)")
    failed(run=run, error_text="No route to +1202****0101 (120255501022)")
    failed(3, error_text="")
    failed(at=START + SECOND)
    before = list(DispatchLog.objects.order_by("pk").values())
    Job.objects.create(name=jobs.RETRY, locked_until=Now() + timedelta(minutes=5), holder_label="somebody else")
    counts = run_batch(EVERYTHING, dry_run=True, now=START)
    assert (counts["dry_run"], counts["queued"], counts["left"], counts["campaigns"]) == (True, 0, 6, 2)
    assert counts["by_reason"] == {"No route to +1202****0101 (****)": 3, "TRANSIENT": 3}
    assert list(DispatchLog.objects.order_by("pk").values()) == before
    assert Job.objects.get().runs == 0


def test_twenty_reasons_are_named_and_the_others_counted():
    run = make_run(make_step(make_campaign(status=S.RUNNING)), rows_complete=True)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        failed(run=run, error_text=f"reason {letter}")
    failed(run=run, error_text="reason a")
    for counts in (run_batch(EVERYTHING, dry_run=True, now=START), run_batch(EVERYTHING, now=START)):
        assert len(counts["by_reason"]) == 21
        assert (counts["by_reason"]["reason a"], counts["by_reason"]["other"]) == (2, 6)
        assert sum(counts["by_reason"].values()) == 27


def test_the_state_before_a_run_during_it_and_after():
    assert state(now=START) == {
        "running": False,
        "running_since": None,
        "holder": "",
        "last_started_at": None,
        "last_finished_at": None,
        "last_succeeded_at": None,
        "last_error": "",
        "last_counts": {},
        "next_due_at": None,
        "pending": {"due": 0, "waiting": 0, "by_reason": {}},
    }
    failed(2, at=START)
    failed(at=START + timedelta(minutes=30))
    with jobs.running(jobs.RETRY, ttl=timedelta(minutes=5)):
        during = state(now=START)
    assert during["running"]
    assert during["holder"].startswith("process ")
    assert during["running_since"] == during["last_started_at"] is not None
    assert during["pending"] == {"due": 2, "waiting": 1, "by_reason": {"TRANSIENT": 3}}
    assert during["next_due_at"] == START.isoformat()
    counts = run_batch(EVERYTHING, now=START)
    after = state(now=START)
    assert (after["running"], after["holder"], after["last_counts"], after["last_error"]) == (False, "", counts, "")
    assert after["last_finished_at"] == after["last_succeeded_at"] > after["last_started_at"]
    assert after["pending"] == {"due": 0, "waiting": 1, "by_reason": {"TRANSIENT": 1}}
    assert after["next_due_at"] == (START + timedelta(minutes=30)).isoformat()
    assert json.loads(json.dumps(after)) == after
    assert state(Scope(campaign_id=0), now=START)["pending"]["waiting"] == 0


def test_a_lock_that_ran_out_is_no_run():
    Job.objects.create(name=jobs.RETRY, locked_until=Now() - SECOND, holder_label="dead", started_at=timezone.now())
    assert (state()["running"], state()["holder"]) == (False, "")


# -- trouble -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def alerts(monkeypatch) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(retry, "alert", lambda kind, **facts: told.append({"kind": kind, **facts}))
    return told


@pytest.fixture
def poisoned(monkeypatch) -> Callable[..., None]:
    """These campaigns cannot be queued again, for that reason."""

    def poison(error: Exception, *campaigns: Campaign) -> None:
        queue_again = log_transitions.queue_again

        def poisonous(log_ids, **more):
            if DispatchLog.objects.filter(pk__in=log_ids, campaign__in=campaigns).exists():
                raise error
            return queue_again(log_ids, **more)

        monkeypatch.setattr(log_transitions, "queue_again", poisonous)

    return poison


@pytest.mark.parametrize(
    ("error", "words"),
    [(Refused("That one is not to be moved."), "That one is not to be moved."), (KeyError("name"), "KeyError")],
    ids=["refused", "bug"],
)
def test_a_poison_campaign_costs_itself_and_holds_up_nobody(poisoned, alerts, error, words):
    poison = failed(5, at=START - timedelta(hours=1)).campaign
    good = failed(2).campaign
    poisoned(error, poison)
    counts = run_batch(EVERYTHING, batch_size=2, max_campaigns=1, now=START)
    assert numbers(counts) == (2, 1, 1, 5)
    assert (statuses(poison), statuses(good)) == (["FAILED"] * 5, ["PENDING"] * 2)
    assert alerts == [{"kind": "retry job failed", "campaign": poison.pk, "error": words}]
    job = Job.objects.get()
    assert (job.counts["failed"], job.error, job.failures) == (1, "", 0)


def test_many_poison_campaigns_end_the_batch(poisoned, alerts, monkeypatch):
    monkeypatch.setattr(retry, "MOST_FAILED", 2)
    poisoned(KeyError("name"), *[failed(at=START - timedelta(hours=1)).campaign for _ in range(5)])
    failed()
    assert run_batch(EVERYTHING, batch_size=1, now=START)["failed"] == 2
    assert len(alerts) == 2


def test_the_alert_can_be_turned_off(poisoned, alerts, settings):
    settings.CAMPAIGN_RETRY_ALERT_ON_FAILURE = False
    poisoned(KeyError("name"), failed().campaign)
    assert run_batch(EVERYTHING, now=START)["failed"] == 1
    assert alerts == []


def test_a_batch_that_raises_leaves_its_error_and_alerts(alerts, monkeypatch):
    def break_down(batch):
        raise OperationalError("the disk is full")

    monkeypatch.setattr(retry._Batch, "_choose", break_down)
    with pytest.raises(OperationalError):
        run_batch(EVERYTHING, now=START)
    assert alerts == [{"kind": "retry job failed", "error": "OperationalError"}]
    job = Job.objects.get()
    assert (job.error, job.failures, job.holder) == ("OperationalError: the disk is full", 1, None)
    assert state(now=START)["last_error"] == job.error


def test_a_batch_whose_lock_was_lost_ends_there(caplog, monkeypatch, alerts):
    first, second = failed(at=START - SECOND).campaign, failed().campaign
    queue_again = log_transitions.queue_again

    def slow(*arguments, **more):
        Job.objects.update(locked_until=Now() - SECOND)
        jobs.take(jobs.RETRY, ttl=timedelta(minutes=5))
        return queue_again(*arguments, **more)

    monkeypatch.setattr(log_transitions, "queue_again", slow)
    with caplog.at_level(logging.WARNING, "paceline"):
        counts = run_batch(EVERYTHING, now=START)
    assert (counts["queued"], counts["lock_lost"]) == (1, True)
    assert (statuses(first), statuses(second)) == (["PENDING"], ["FAILED"])
    assert "the retry job's lock ran out" in caplog.text
    assert state(now=START)["running"]  # the other's


# -- two at once ---------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_second_of_two_at_once_is_told_and_changes_nothing(monkeypatch):
    failed(2)
    in_it, go_on = threading.Event(), threading.Event()
    choose = retry._Batch._choose

    def wait_in_it(batch):
        in_it.set()
        assert go_on.wait(10)
        return choose(batch)

    done: list[dict[str, Any]] = []

    def first() -> None:
        try:
            done.append(run_batch(EVERYTHING, now=START))
        finally:
            connections.close_all()

    monkeypatch.setattr(retry._Batch, "_choose", wait_in_it)
    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert in_it.wait(10)
        with pytest.raises(jobs.Busy, match="already running: process"):
            run_batch(EVERYTHING, now=START)
        assert state(now=START)["running"]
        assert run_batch(EVERYTHING, dry_run=True, now=START)["left"] == 2
    finally:
        go_on.set()
        thread.join()
    assert [numbers(counts) for counts in done] == [(2, 1, 0, 0)]
    assert Job.objects.get().runs == 1


def test_a_holder_that_died_does_not_block_past_its_time(settings):
    settings.CAMPAIGN_RETRY_JOB_LOCK_TTL_SECONDS = 60
    failed()
    jobs.take(jobs.RETRY, ttl=timedelta(seconds=60))
    with pytest.raises(jobs.Busy):
        run_batch(EVERYTHING, now=START)
    Job.objects.update(locked_until=Now() - SECOND)
    assert run_batch(EVERYTHING, now=START)["queued"] == 1


# -- size ----------------------------------------------------------------------------------------------------------------------


def test_no_statement_reads_the_whole_ledger():
    run = many(3000, status="SENT", error_code="", retry_at=None, provider_message_id="x", sent_at=START)
    failed(5, run=run)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE dispatch_dispatchlog")
        cursor.execute("ANALYZE campaigns_campaign")
    statements: list[tuple[str, Any]] = []

    def keep(execute, sql, params, is_many, context):
        if "dispatch_dispatchlog" in sql and sql.startswith("SELECT"):
            statements.append((sql, params))
        return execute(sql, params, is_many, context)

    with connection.execute_wrapper(keep):
        retry._Batch(EVERYTHING, START, most_rows=100, most_campaigns=20)._choose()
        retry._let_go(START)
        state(now=START)
        run_batch(EVERYTHING, dry_run=True, now=START)
    assert len(statements) == 6
    for sql, params in statements:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}", params)
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "Seq Scan on dispatch_dispatchlog" not in plan, plan
        assert "log_to_retry" in plan, plan


def test_a_full_batch_costs_a_handful_of_statements(django_assert_max_num_queries):
    many(100)
    with django_assert_max_num_queries(40):
        assert run_batch(EVERYTHING, now=START)["queued"] == 100

"""The short version of `make chaos`: the same code, a few hundred messages. A seed that fails is named in the assertion."""

from random import SystemRandom

import pytest
from django.db import connection

from dispatch.engine import THREADS
from dispatch.models import Attempt, DispatchLog
from sessions_app.sandbox.state import Accepted
from tests.chaos import verdict
from tests.chaos.harness import Ground
from tests.chaos.plan import AT_ONCE, FLOOR, FREEZE, GRACE, LEASE, Lane, Plan, lanes
from tests.factories import make_campaign

pytestmark = pytest.mark.slow


def seed() -> int:
    return SystemRandom().randrange(1_000_000)


def run(ground: Ground, plan: Plan) -> verdict.Figures:
    figures = ground.run(plan)
    assert plan.naive or figures.passed, f"seed {plan.seed}\n{figures.table()}\n{figures.cases()}"
    return figures


def test_nothing_is_lost_or_doubled_while_everything_is_killed_frozen_and_restarted(ground):
    figures = run(ground, Plan(seed(), 20, lanes(240)))
    assert figures.told["accepted while chaos reigned"] >= 60, figures.table()  # else it proves little


@pytest.mark.pgbouncer
def test_also_through_pgbouncer_in_transaction_mode(ground):
    run(ground, Plan(seed(), 6, lanes(60), pooled=True))


def test_the_harness_notices_a_recovery_that_sends_again(ground):
    plan = Plan(seed(), 20, lanes(300), naive=True)
    figures = run(ground, plan)
    assert figures.doubled, f"seed {plan.seed}\n{figures.table()}"


# -- the verdict itself ----------------------------------------------------------------------------------------------------------

LANES = (Lane("metered", "m", 1, 9), Lane("human", "h", 1, 9), Lane("gateway", "g", 1, 9))


def accepted(*facts: tuple[str, str, float]) -> list[Accepted]:
    return [
        Accepted(n=n, session=session, chat_id=chat, text="", raw_id=str(n), client_id=None, time=moment, double=False)
        for n, (session, chat, moment) in enumerate(facts, 1)
    ]


def found(arrived: list[Accepted], *rows: tuple[str, str, str], thaws: tuple[float, ...] = ()) -> set[str]:
    ledger = [{"session": session, "address": chat, "status": status} for session, chat, status in rows]
    figures = verdict.judge(Plan(0, 0, LANES), arrived, ledger, not_planned=[], still_open=[], long_thaws=thaws)
    return {name for name, cases in figures.must_be_none.items() if cases}


@pytest.mark.parametrize(
    ("arrived", "rows", "thaws", "names"),
    [
        ([("m", "a", 1), ("m", "b", 1)], [("m", "a", "SENT"), ("m", "b", "SENT")], (), set()),
        ([("m", "a", 1), ("m", "a", 5)], [("m", "a", "SENT")], (), {"accepted more than once"}),
        ([("m", "a", 1), ("m", "a", 5)], [("m", "a", "SENT")], (4.8,), set()),  # the stated risk, counted apart
        ([("m", "a", 1), ("m", "a", 5)], [("m", "a", "SENT")], (3.0,), {"accepted more than once"}),
        ([], [("m", "a", "SENT")], (), {"SENT but never accepted"}),
        ([("m", "a", 1)], [("m", "a", "FAILED")], (), {"accepted, neither SENT nor UNCONFIRMED"}),
        ([("m", "a", 1)], [], (), {"accepted, neither SENT nor UNCONFIRMED"}),
        ([], [("m", "a", "UNCONFIRMED")], (), {"UNCONFIRMED where absence is proof"}),
        ([], [("g", "a", "UNCONFIRMED")], (), set()),
        ([("g", "a", 1)], [("g", "a", "UNCONFIRMED")], (), {"UNCONFIRMED though accepted"}),
        ([("h", "b", 1 + FLOOR / 2), ("h", "a", 1)], [("h", "a", "SENT"), ("h", "b", "SENT")], (), {"gaps below the floor"}),
        ([("h", "b", 1.01 + FLOOR), ("h", "a", 1)], [("h", "a", "SENT"), ("h", "b", "SENT")], (), set()),
    ],
)
def test_each_figure_counts_what_it_says(arrived, rows, thaws, names):
    assert found(accepted(*arrived), *rows, thaws=thaws) == names


@pytest.mark.parametrize(
    ("lost", "blows", "is_fine"),
    [(16, 1, True), (17, 1, False), (17, 2, True), (1, 0, False), (0, 0, True)],
)
def test_what_a_process_loses_at_a_blow_is_what_it_can_have_on_its_way(lost, blows, is_fine):
    rows = [{"owner": "a", "pid": 7, "lost": lost}, {"owner": "b", "pid": 8, "lost": 16}]
    assert (verdict.lost_without_cause(rows, {7: blows, 8: 1}, at_once=16) == []) == is_fine


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("later", "lost"), [((), 1), (("VERIFIED_PRESENT",), 1), (("ACCEPTED",), 0), (("VERIFIED_PRESENT", "ACCEPTED"), 0)]
)
def test_an_answer_that_came_after_all_is_not_lost(later, lost):
    campaign = make_campaign()
    log = DispatchLog.objects.create(campaign=campaign, session=campaign.session, kind="TEST", address="1@c.us", attempt=1, token=1)
    for outcome in ("LOST", *later):
        Attempt.objects.create(log=log, attempt=1, token=1, session_id=campaign.session_id, outcome=outcome)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE chaos_claim (session_id bigint, token bigint, owner uuid) ON COMMIT DROP")
        cursor.execute(verdict.LOST)
        assert sum(row[2] for row in cursor.fetchall()) == lost


def test_a_process_has_as_many_on_its_way_as_it_has_threads():
    assert AT_ONCE == THREADS


def test_freezes_are_longer_than_a_lease_and_shorter_than_what_verification_waits_for():
    assert LEASE < min(FREEZE) <= max(FREEZE) < LEASE + GRACE


@pytest.mark.parametrize("messages", [60, 240, 2000])
def test_there_are_as_many_messages_as_asked_for_on_lanes_of_every_kind(messages):
    plan = Plan(0, 0, lanes(messages))
    assert plan.messages >= messages
    assert {lane.kind for lane in plan.lanes} == {"metered", "human", "gateway"}

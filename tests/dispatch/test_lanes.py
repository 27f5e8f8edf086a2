"""The statements of lanes.py one by one: who may claim what, which answer is believed, and what a death leaves behind."""

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from campaigns.models import Campaign
from dispatch import lanes
from dispatch.models import Attempt, DispatchLog, Lane, Run
from sessions_app.models import Session
from sessions_app.providers.base import ErrorCode, SendResult
from tests.dispatch.invariants import (
    LEASE,
    LONGEST_WAIT,
    NOW,
    OK,
    VERIFY_AFTER,
    assert_sum_rule,
    bring_back,
    ready,
    recover,
    take,
)
from tests.factories import make_session
from tests.fakes import refused

pytestmark = pytest.mark.django_db
S = DispatchLog.Status
ME, OTHER = uuid4(), uuid4()
SECOND = timedelta(seconds=1)
INVALID = refused(ErrorCode.INVALID_RECIPIENT)
DOUBT = refused(ErrorCode.UNCONFIRMED)
THROTTLED = refused(ErrorCode.RATE_LIMIT)
UNSENT = SendResult.unsent("stopped before it was sent")


def lane_of(campaign: Campaign) -> Lane:
    return Lane.objects.get(session=campaign.session_id)


# -- who may claim what --------------------------------------------------------------------------------------------------------


def test_rows_leave_strictly_in_the_order_of_availability_then_id():
    campaign = ready(5)
    rows = list(DispatchLog.objects.order_by("pk"))
    for row, minutes in zip(rows, (0, -2, 0, -1, -2), strict=True):
        DispatchLog.objects.filter(pk=row.pk).update(available_at=NOW + timedelta(minutes=minutes))
    left, now = [], NOW
    while claimed := take(ME, now=now):
        left += [one.id for one in claimed]
        bring_back(claimed, OK, now=now)
        assert_sum_rule(campaign)
        now = lane_of(campaign).next_send_at
    assert left == [rows[n].pk for n in (1, 4, 3, 0, 2)]


def test_a_claim_says_everything_the_send_needs():
    campaign = ready(1)
    person = campaign.recipients.get()
    person.metadata = {"city": "Porto"}
    person.save()
    [one] = take(ME)
    log = DispatchLog.objects.get()
    assert (one.id, one.attempt, one.token, one.client_ref) == (log.pk, log.attempt, log.token, log.client_ref)
    assert (one.name, one.metadata, one.address) == (person.name, {"city": "Porto"}, person.address)
    assert (log.status, log.attempt, log.claimed_at, log.session_id) == (S.SENDING, 1, NOW, campaign.session_id)


@pytest.mark.parametrize("status", [status for status in Campaign.Status if status != Campaign.Status.RUNNING])
def test_only_a_running_campaign_is_claimed_from(status):
    campaign = ready()
    Campaign.objects.update(status=status, due_at=NOW)
    assert take(ME) == []
    assert_sum_rule(campaign)


@pytest.mark.parametrize("status", [status for status in Session.Status if status != Session.Status.CONNECTED])
def test_only_a_connected_session_sends(status):
    ready()
    Session.objects.update(status=status)
    assert take(ME) == []


SHUT = {
    "shut": {"is_open": False},
    "window just ended": {"open_until": NOW},
    "window ended": {"open_until": NOW - SECOND},
    "in trouble": {"trouble": "5 failures in a row"},
    "not due": {"next_send_at": NOW + timedelta(milliseconds=1)},
    "another's": {"owner": OTHER, "lease_expires_at": NOW + SECOND},
    "mine, and human: one message is in flight": {"owner": ME, "lease_expires_at": NOW + SECOND},
    "mine, expired": {"owner": ME, "lease_expires_at": NOW - SECOND},
    "mine, expired, metered": {"owner": ME, "lease_expires_at": NOW - SECOND, "rate": 10, "burst": 5},
    "another's, metered": {"owner": OTHER, "lease_expires_at": NOW + SECOND, "rate": 10, "burst": 5},
    "full": {"in_flight": 5, "rate": 10, "burst": 5},
    "nobody's": {"campaign": None},
}


@pytest.mark.parametrize("lane", SHUT.values(), ids=SHUT)
def test_a_lane_that_is_shut_late_owned_or_full_gives_nothing(lane):
    ready(**lane)
    assert take(ME) == []
    assert not DispatchLog.objects.in_flight().exists()


def test_one_moment_inside_the_window_is_enough():
    ready(open_until=NOW + timedelta(milliseconds=1))
    assert len(take(ME)) == 1


def test_a_campaign_that_moved_to_another_session_is_not_sent_from_the_old_one():
    campaign = ready()
    Campaign.objects.update(session=make_session())
    assert take(ME) == []
    assert_sum_rule(campaign)


def test_what_is_not_available_yet_and_whom_nobody_knows_any_more_wait():
    campaign = ready(2)
    first, second = DispatchLog.objects.order_by("pk")
    DispatchLog.objects.filter(pk=first.pk).update(available_at=NOW + SECOND)
    campaign.recipients.filter(pk=second.recipient_id).delete()
    assert take(ME) == []
    assert_sum_rule(campaign)


def test_a_lane_with_nothing_left_is_parked_and_its_cool_down_stays():
    campaign = ready(1)
    DispatchLog.objects.update(status=S.SENT)
    assert take(ME) == []
    lane = lane_of(campaign)
    assert (lane.is_open, lane.next_send_at) == (False, NOW)


@pytest.mark.parametrize(("counted", "day", "claimed"), [(2, "2026-06-10", 0), (1, "2026-06-10", 1), (2, "2026-06-09", 1), (2, None, 1)])
def test_the_daily_limit_counts_attempts_of_the_sessions_own_day(counted, day, claimed):
    campaign = ready(session={"daily_limit": 2, "time_zone": "UTC"}, day=day, day_count=counted)
    assert len(take(ME)) == claimed
    if claimed:
        assert lane_of(campaign).day_count == (counted + 1 if day == "2026-06-10" else 1)


def test_a_metered_lane_takes_no_more_than_the_day_allows():
    ready(10, rate=1000, burst=8, session={"daily_limit": 3}, next_send_at=NOW - timedelta(minutes=1))
    assert len(take(ME, rows=8)) == 3


def test_what_yesterday_claimed_and_today_gives_back_does_not_lengthen_today():
    evening = datetime(2026, 6, 10, 23, 59, 59, 600_000, tzinfo=UTC)
    campaign = ready(10, rate=100, burst=8, next_send_at=evening - timedelta(minutes=1), session={"daily_limit": 5})
    owner = uuid4()
    yesterdays = take(owner, rows=2, now=evening)
    todays = take(owner, rows=3, now=evening + timedelta(seconds=0.6))
    assert (len(yesterdays), len(todays), lane_of(campaign).day_count) == (2, 3, 3)
    bring_back(yesterdays, UNSENT, now=evening + timedelta(seconds=0.7))
    assert lane_of(campaign).day_count == 3
    bring_back(todays[:1], UNSENT, now=evening + timedelta(seconds=0.7))
    assert lane_of(campaign).day_count == 2


def test_an_origin_that_is_full_is_left_out_and_the_others_go_on():
    ready(1, origin="http://127.0.0.1:1")
    other = ready(1, origin="http://127.0.0.1:2")
    assert [one.campaign_id for one in take(ME, full=["http://127.0.0.1:1"])] == [other.pk]


def test_one_statement_takes_one_row_of_each_human_lane_and_no_more_lanes_than_asked():
    campaigns = [ready(3, next_send_at=NOW - n * SECOND) for n in range(5)]
    first = take(ME, at_most=3)
    assert {one.campaign_id for one in first} == {campaign.pk for campaign in campaigns[2:]}  # the longest due first
    assert len(take(ME, rows=10)) == 2
    assert take(OTHER, now=NOW + SECOND) == []
    assert_sum_rule()


def test_a_metered_lane_saves_up_to_its_burst_and_spends_it_at_its_rate():
    campaign = ready(40, rate=10, burst=4, next_send_at=NOW - timedelta(hours=1))
    claimed = take(ME, rows=64)
    assert len(claimed) == 4
    assert take(ME, rows=64) == []  # in flight is at the burst
    bring_back(claimed, OK)
    assert_sum_rule(campaign)
    assert len(take(ME, rows=64, now=NOW)) == 0  # a whole burst was spent a moment ago
    assert len(take(ME, rows=64, now=NOW + timedelta(milliseconds=250))) in {2, 3}
    assert_sum_rule(campaign)


def test_over_a_minute_a_metered_lane_never_passes_its_rate_and_burst():
    campaign = ready(200, rate=2, burst=3)
    moments = []
    for tick in range(300):
        now = NOW + tick * timedelta(milliseconds=200)
        claimed = take(ME, rows=64, now=now)
        moments += [now] * len(claimed)
        if claimed:
            bring_back(claimed, OK, now=now)
    assert 115 <= len(moments) <= 2 * 60 + 3
    for position, moment in enumerate(moments):
        window = [other for other in moments[position:] if other - moment < timedelta(seconds=10)]
        assert len(window) <= 2 * 10 + 3
    assert_sum_rule(campaign)


# -- the settle ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "status", "counted"),
    [
        (OK, S.SENT, "sent"),
        (INVALID, S.FAILED, "failed"),
        (DOUBT, S.UNCONFIRMED, "unconfirmed"),
        (THROTTLED, S.PENDING, ""),
        (UNSENT, S.PENDING, ""),
    ],
    ids=["accepted", "refused", "doubt", "throttled", "unsent"],
)
def test_an_answer_moves_row_run_and_lane_in_one_statement(result, status, counted):
    campaign = ready(2)
    claimed = take(ME)
    assert bring_back(claimed, result) == {claimed[0].id}
    log = DispatchLog.objects.get(pk=claimed[0].id)
    assert (log.status, log.body) == (status, "Hello")
    assert not counted or getattr(Run.objects.get(), counted) == 1
    lane = lane_of(campaign)
    assert (lane.owner, lane.lease_expires_at, lane.in_flight) == (None, None, 0)
    assert_sum_rule(campaign)


def test_repeating_a_settle_changes_nothing():
    campaign = ready(2)
    claimed = take(ME)
    bring_back(claimed, OK)
    before = (list(Run.objects.values()), list(Lane.objects.values()), list(DispatchLog.objects.values()))
    assert bring_back(claimed, OK) == set()
    assert (list(Run.objects.values()), list(Lane.objects.values()), list(DispatchLog.objects.values())) == before
    assert_sum_rule(campaign)


@pytest.mark.parametrize("change", [{"attempt": 2}, {"attempt": 0}, {"token": 99}, {"token": 0}], ids=str)
def test_an_answer_of_another_attempt_or_another_claim_is_written_down_and_not_believed(change):
    campaign = ready(2)
    [claimed] = take(ME)
    stale = lanes.Claimed(**{**claimed.__dict__, **change})
    assert bring_back([stale], OK) == set()
    assert DispatchLog.objects.get(pk=claimed.id).status == S.SENDING
    assert Attempt.objects.get().outcome == "ACCEPTED"  # two of these for one row are the alarm "duplicate suspected"
    assert_sum_rule(campaign)


LATE = {  # where the row is when the late answer of its last attempt comes -> which answers are believed
    S.UNCONFIRMED: {S.SENT, S.FAILED, S.UNCONFIRMED, S.PENDING},
    S.PENDING: {S.SENT},
    S.FAILED: {S.SENT},
    S.SKIPPED: {S.SENT},
    S.SENT: set(),
}
ANSWERS = {S.SENT: OK, S.FAILED: INVALID, S.UNCONFIRMED: DOUBT, S.PENDING: THROTTLED}


@pytest.mark.parametrize("verdict", ANSWERS)
@pytest.mark.parametrize("where", LATE)
def test_a_late_answer(where, verdict):
    campaign = ready(2)
    [claimed] = take(ME)
    assert recover(ME)[0].log_id == claimed.id
    counters = {"unconfirmed": 0, str(where).lower(): 1} if where != S.PENDING else {"unconfirmed": 0}
    DispatchLog.objects.filter(pk=claimed.id).update(status=where)
    Run.objects.update(**counters)
    assert_sum_rule(campaign)
    changed = bring_back([claimed], ANSWERS[verdict], now=NOW + SECOND)
    believed = verdict in LATE[where]
    assert changed == ({claimed.id} if believed else set())
    assert DispatchLog.objects.get(pk=claimed.id).status == (verdict if believed else where)
    assert_sum_rule(campaign)
    bring_back([claimed], ANSWERS[verdict], now=NOW + 2 * SECOND)
    assert_sum_rule(campaign)


def test_every_status_has_a_row_in_the_table_of_late_answers():
    assert set(LATE) == set(S) - {S.SENDING}


def test_a_late_answer_that_brings_a_row_back_reopens_its_run():
    ready(1)
    claimed = take(ME)
    recover(ME)
    Run.objects.update(status=Run.Status.COMPLETED)
    bring_back(claimed, THROTTLED, now=NOW + SECOND)
    assert Run.objects.get().status == Run.Status.RUNNING


def test_proof_that_comes_after_the_row_was_taken_again_is_kept_as_the_alarm_it_is():
    campaign = ready(1)
    first = take(ME)
    recover(ME)
    DispatchLog.objects.update(status=S.PENDING)
    Run.objects.update(unconfirmed=0)
    Lane.objects.update(is_open=True, next_send_at=NOW)
    second = take(OTHER)
    assert second[0].attempt == first[0].attempt + 1
    assert bring_back(first, OK) == set()
    assert bring_back(second, OK) == {second[0].id}
    assert list(Attempt.objects.filter(outcome="ACCEPTED").values_list("attempt", flat=True)) == [1, 2]
    assert_sum_rule(campaign)


def test_a_settle_of_many_lanes_writes_each_its_own():
    campaigns = [ready(2) for _ in range(4)]
    claimed = take(ME)
    assert len(bring_back(claimed, OK, INVALID, DOUBT, UNSENT)) == 4
    assert sorted(DispatchLog.objects.exclude(attempt=0).values_list("status", flat=True)) == ["FAILED", "PENDING", "SENT", "UNCONFIRMED"]
    assert_sum_rule(*campaigns)


def test_a_part_of_a_burst_that_came_back_leaves_the_lane_to_its_owner():
    campaign = ready(5, rate=10, burst=3, next_send_at=NOW - timedelta(minutes=1))
    claimed = take(ME, rows=3)
    bring_back(claimed[:1], OK)
    lane = lane_of(campaign)
    assert (lane.owner, lane.in_flight) == (ME, 2)
    assert take(OTHER, now=NOW + SECOND / 2) == []
    bring_back(claimed[1:], OK)
    assert lane_of(campaign).owner is None
    assert_sum_rule(campaign)


# -- deaths --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metered", [{}, {"rate": 10, "burst": 3, "next_send_at": NOW - timedelta(minutes=1)}], ids=["human", "metered"])
def test_an_expired_lease_belongs_to_nobody_until_recovery_has_run(metered):
    campaign = ready(9, **metered)
    taken = take(ME)
    later = NOW + timedelta(hours=1)
    assert take(ME, now=later) == []
    assert take(OTHER, now=later) == []
    lost = recover(now=later)
    assert [entry.log_id for entry in lost] == [one.id for one in taken]
    assert set(DispatchLog.objects.filter(pk__in=[one.id for one in taken]).values_list("status", "reason")) == {(S.UNCONFIRMED, "lost")}
    assert DispatchLog.objects.get(pk=taken[0].id).verify_at == later + VERIFY_AFTER
    assert set(Attempt.objects.values_list("outcome", flat=True)) == {"LOST"}
    lane = lane_of(campaign)
    assert (lane.owner, lane.in_flight, lane.is_open) == (None, 0, False)
    assert_sum_rule(campaign)
    Lane.objects.update(is_open=True)
    assert taken[0].id not in {one.id for one in take(OTHER, now=later, rows=3)}  # never back to waiting


def test_a_lease_that_runs_is_nobody_elses_business():
    ready()
    take(ME)
    assert recover(now=NOW + LEASE) == []
    assert len(recover(now=NOW + LEASE + timedelta(milliseconds=1))) == 1
    assert recover(now=NOW + timedelta(hours=1)) == []


def test_an_owner_that_is_known_to_be_dead_need_not_be_waited_for_and_the_living_keep_theirs():
    dead, alive = ready(1), ready(1, next_send_at=NOW + SECOND)
    take(ME)
    take(OTHER, now=NOW + SECOND)
    assert {entry.campaign_id for entry in recover(ME)} == {dead.pk}
    assert lane_of(alive).owner == OTHER
    assert_sum_rule()


def test_after_a_restart_of_the_database_the_living_have_one_lease_to_settle():
    ready()
    take(ME)
    since_the_start = timedelta(days=3650)
    assert recover(now=NOW + timedelta(hours=1), lease=since_the_start) == []
    assert len(recover(ME, lease=since_the_start)) == 1


def test_a_death_cannot_shorten_a_gap():
    campaign = ready()
    take(ME)
    assert lane_of(campaign).next_send_at == NOW + LEASE + LONGEST_WAIT
    recover(now=NOW + 2 * LEASE)
    Lane.objects.update(is_open=True)
    assert take(OTHER, now=NOW + LEASE + LONGEST_WAIT - timedelta(milliseconds=1)) == []
    assert len(take(OTHER, now=NOW + LEASE + LONGEST_WAIT)) == 1


def test_the_settle_brings_the_lane_forward_to_one_wait_after_the_answer():
    campaign = ready()
    bring_back(take(ME), OK, now=NOW + SECOND)
    gap = lane_of(campaign).next_send_at - (NOW + SECOND)
    assert timedelta(seconds=8 * 2.5) <= gap <= timedelta(seconds=13 * 2.5)  # a run begins slowly


def test_recovery_sees_to_every_row_that_was_in_flight_and_only_to_those():
    campaign = ready(9, rate=10, burst=4, next_send_at=NOW - timedelta(minutes=1))
    taken = take(ME, rows=4)
    bring_back(taken[:2], OK)
    assert {entry.log_id for entry in recover(ME)} == {one.id for one in taken[2:]}
    assert DispatchLog.objects.filter(status=S.SENT).count() == 2
    assert_sum_rule(campaign)


# -- what the database itself refuses ------------------------------------------------------------------------------------------


def refused_by_the_database(name, write):
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        write()


def test_what_must_never_be_false_is_a_constraint():
    campaign = ready(1)
    log = DispatchLog.objects.get()
    session = campaign.session
    refused_by_the_database(
        "one_running_campaign_per_session",
        lambda: Campaign.objects.create(name="second", session=session, status=Campaign.Status.RUNNING),
    )
    twice = DispatchLog(
        campaign=campaign, session=session, step_id=log.step_id, run_id=log.run_id, recipient_id=log.recipient_id, address=log.address
    )
    refused_by_the_database("one_row_per_run_and_recipient", twice.save)
    refused_by_the_database("lane_in_flight_within_burst", lambda: Lane.objects.update(in_flight=2))
    refused_by_the_database("lane_human_has_one_in_flight", lambda: Lane.objects.update(burst=2))
    refused_by_the_database("lane_owner_has_a_lease", lambda: Lane.objects.update(owner=ME))
    refused_by_the_database("log_in_flight_was_claimed", lambda: DispatchLog.objects.update(status=S.SENDING))
    refused_by_the_database("run_counts_at_most_what_was_planned", lambda: Run.objects.update(sent=2))


# -- plans ---------------------------------------------------------------------------------------------------------------------


def many(lanes_wanted: int, rows_each: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
    now = NOW
    sessions = Session.objects.bulk_create(
        [Session(name=f"many {n}", channel="mock", status=Session.Status.CONNECTED, time_zone="UTC") for n in range(lanes_wanted)]
    )
    Campaign.objects.bulk_create(
        [Campaign(name=session.name, session=session, status=Campaign.Status.RUNNING, time_zone="UTC") for session in sessions]
    )
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO campaigns_campaignstep (campaign_id, "order", name, message_type, text, media_url, caption, link_preview,
                 link_preview_quality, template_name, template_language, template_components, time_zone, recurrence_type, status, runs_made)
               SELECT id, 1, '', 'TEXT', 'Hello', '', '', true, 'LOW', '', '', '[]', '', '', 'RUNNING', 1 FROM campaigns_campaign"""
        )
        cursor.execute(
            """INSERT INTO dispatch_run (campaign_id, step_id, number, message, pacing, status, reason, planned, rows_complete, sent,
                 failed, unconfirmed, skipped, created_at)
               SELECT campaign_id, id, 1, '{}', '{}', 'RUNNING', '', %(each)s, true, 0, 0, 0, 0, now() FROM campaigns_campaignstep""",
            {"each": rows_each},
        )
        cursor.execute(
            """INSERT INTO campaigns_recipient (campaign_id, address, address_as_imported, name, "order", metadata, created_at)
               SELECT c.id, n || '@lid', '', 'Person', n, '{}', now() FROM campaigns_campaign c, generate_series(1, %(each)s) n""",
            {"each": rows_each},
        )
        cursor.execute(
            """INSERT INTO dispatch_dispatchlog (campaign_id, session_id, step_id, run_id, recipient_id, kind, address, client_ref, status,
                 reason, available_at, attempt, provider_message_id, error_code, error_text, verifications, decided_by)
               SELECT c.id, c.session_id, r.step_id, r.id, p.id, 'MESSAGE', p.address, gen_random_uuid(), 'PENDING',
                 '', %(now)s, 0, '', '', '', 0, ''
               FROM campaigns_campaign c JOIN dispatch_run r ON r.campaign_id = c.id JOIN campaigns_recipient p ON p.campaign_id = c.id""",
            {"now": now},
        )
    Lane.objects.bulk_create(
        [
            Lane(session=campaign.session, campaign=campaign, is_open=True, next_send_at=now + n * SECOND)
            for n, campaign in enumerate(Campaign.objects.select_related("session"))
        ]
    )
    with connection.cursor() as cursor:
        for table in (
            "dispatch_dispatchlog",
            "dispatch_lane",
            "dispatch_run",
            "campaigns_campaign",
            "campaigns_recipient",
            "sessions_app_session",
        ):
            cursor.execute(f"ANALYZE {table}")


def scans(plan: dict) -> list[tuple[str, str, str]]:
    """(kind, table, index) of every scan in the plan."""
    own = [(plan["Node Type"], plan["Relation Name"], plan.get("Index Name", ""))] if "Relation Name" in plan else []
    return own + [scan for below in plan.get("Plans", []) for scan in scans(below)]


def explained(statement) -> list[tuple[str, str, str]]:
    """The scans of the one statement that the call runs."""
    found = []

    def explain(execute, sql, params, many, context):
        result = execute(f"EXPLAIN (FORMAT JSON) {sql}", params, many, context)
        rows = context["cursor"].fetchall()
        plan = rows[0][0] if not isinstance(rows[0][0], str) else json.loads(rows[0][0])
        found.extend(scans(plan[0]["Plan"]))
        execute(sql, params, many, context)
        return result

    with connection.execute_wrapper(explain):
        statement()
    return found


def test_claim_settle_and_recovery_cost_the_same_however_many_rows_wait():
    many(2000, 10)
    later = NOW + 100 * SECOND
    claim = explained(lambda: take(ME, now=later))
    assert ("Index Scan", "dispatch_lane", "lane_due") in claim
    assert {index for _, table, index in claim if table == "dispatch_dispatchlog" and index} >= {"log_due"}
    claimed = list(lanes.owned_by(ME))
    assert len(claimed) == 64
    settle = explained(lambda: bring_back(claimed[:32], OK, now=later))
    recovery = explained(lambda: recover(now=later + 2 * LEASE))
    for scanned in (claim, settle, recovery):
        large = {"dispatch_dispatchlog", "campaigns_recipient", "dispatch_lane"}
        assert not [scan for scan in scanned if scan[0] == "Seq Scan" and scan[1] in large]
    assert DispatchLog.objects.filter(status=S.UNCONFIRMED).count() == 32
    assert_sum_rule()


def test_a_row_says_how_late_it_is_and_what_stood_still_on_purpose_is_not_late():
    ready(3, next_send_at=NOW)
    (first,) = take(ME, now=NOW + timedelta(seconds=3))
    assert first.late == timedelta(seconds=3)
    bring_back([first], OK, now=NOW + timedelta(seconds=4))
    due = Lane.objects.get().next_send_at
    Campaign.objects.update(epoch=F("epoch") + 1)  # it was paused and resumed meanwhile
    (second,) = take(ME, now=due + timedelta(hours=9))
    assert second.late == timedelta(0)

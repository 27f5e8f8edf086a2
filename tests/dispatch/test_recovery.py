"""What a dead process left behind: its messages become unconfirmed, its campaigns are paused, and what is alive is left alone."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep
from dispatch import jobs, lanes, recovery, tasks, watching
from dispatch.loop import BEAT_INTERVAL, Loop, start_heart
from dispatch.models import Attempt, DispatchLog, Heartbeat, Job, Lane
from dispatch.scheduler import PassReport, plan, run_until_idle
from dispatch.stopping import StopFlag
from dispatch.verification import VerifyPolicy
from sessions_app.providers.base import Presence, Verification
from tests.dispatch.conftest import make_engine, make_ready, statuses
from tests.dispatch.invariants import assert_sum_rule
from tests.fakes import FakeProvider

pytestmark = pytest.mark.django_db
S = Campaign.Status
UNTOUCHED = {"campaigns_paused": 0, "steps_paused": 0, "logs_verified": 0, "logs_unconfirmed": 0, "logs_requeued": 0}
LONG_AGO = datetime(2026, 6, 10, tzinfo=UTC)
NO_GRACE = VerifyPolicy(grace=timedelta(0))


def gone_pid() -> int:
    """Of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def beat(*, gone: bool = False, silent: bool = False, here: bool = True, **fields) -> Heartbeat:
    heart = Heartbeat.objects.create(
        kind=Heartbeat.Kind.SCHEDULER,
        host="here" if here else "elsewhere",
        host_identity=recovery.host_identity() if here else "another boot of another machine",
        pid=gone_pid() if gone else os.getpid(),
        version="0",
        interval=BEAT_INTERVAL,
        **fields,
    )
    if silent:
        Heartbeat.objects.filter(pk=heart.pk).update(beat_at=timezone.now() - 3.1 * BEAT_INTERVAL)
    return heart


def take_one(campaign: Campaign, owner: UUID, lease: timedelta = timedelta(minutes=1)) -> int:
    """The campaign runs on the real clock and its next message is in flight under that owner."""
    if Campaign.objects.get(pk=campaign.pk).status != S.RUNNING:
        transitions.start(campaign.pk, by="ana")
    engine = make_engine(owner=owner, now=None)
    for _ in range(3):
        plan(engine, PassReport())
    engine.close()
    claimed = lanes.claim(owner=owner, lanes=10, rows=1, lease=lease)
    assert [one.campaign_id for one in claimed] == [campaign.pk]
    return claimed[0].id


@pytest.fixture
def campaign(fake, db) -> Campaign:
    campaign = make_ready(people=3)
    campaign.session.checked_at = timezone.now() + timedelta(minutes=1)
    campaign.session.save()
    return campaign


def test_a_death_in_mid_send_is_counted_verified_and_paused_and_then_nothing_is_left_to_do(campaign):
    log_id = take_one(campaign, beat(gone=True).pk)
    FakeProvider.presence = Verification(Presence.PRESENT, "found-1")
    assert recovery.recover_stuck().as_dict() == {
        **UNTOUCHED,
        "campaigns_paused": 1,
        "steps_paused": 1,
        "logs_unconfirmed": 1,
        "logs_verified": 1,
    }
    log = DispatchLog.objects.get(pk=log_id)
    assert (log.status, log.provider_message_id, log.sent_at) == ("SENT", "found-1", log.claimed_at)
    campaign.refresh_from_db()
    assert (campaign.status, campaign.status_reason) == (S.PAUSED, recovery.PAUSE_REASON)
    assert CampaignStep.objects.get().status == "PAUSED"
    assert_sum_rule(campaign)
    for _ in range(2):
        assert recovery.recover_stuck().as_dict() == UNTOUCHED
    assert FakeProvider.calls == []


@pytest.mark.parametrize(
    ("presence", "policy", "status", "counted"),
    [
        (Presence.ABSENT, VerifyPolicy(), "UNCONFIRMED", {}),
        (Presence.UNKNOWN, NO_GRACE, "UNCONFIRMED", {}),
        (Presence.ABSENT, NO_GRACE, "PENDING", {"logs_requeued": 1}),
    ],
    ids=["absent within the grace", "unknown", "absent"],
)
def test_what_is_not_proof_stays_unconfirmed_and_never_goes_back_by_itself(campaign, presence, policy, status, counted):
    log_id = take_one(campaign, beat(gone=True).pk)
    FakeProvider.presence = Verification(presence)
    found = recovery.recover_stuck(policy=policy).as_dict()
    assert found == {**UNTOUCHED, "campaigns_paused": 1, "steps_paused": 1, "logs_unconfirmed": 1} | counted
    assert DispatchLog.objects.get(pk=log_id).status == status
    assert Attempt.objects.filter(outcome="LOST").count() == 1
    assert_sum_rule(campaign)


def test_resumed_after_a_death_the_campaign_ends_with_everybody_reached_once(campaign, drive):
    owner = beat(gone=True).pk
    log_id = take_one(campaign, owner)
    FakeProvider.presence = Verification(Presence.PRESENT, "found-1")
    recovery.recover_stuck()
    transitions.resume(campaign.pk, by="ana")
    drive.to(timezone.now() + timedelta(hours=1))
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 3
    assert len(FakeProvider.calls) == 2
    assert DispatchLog.objects.get(pk=log_id).client_ref not in {call.client_ref for call in FakeProvider.calls}
    assert_sum_rule(campaign)


# -- who is dead ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "dead"),
    [
        ({}, False),
        ({"gone": True}, True),
        ({"silent": True}, True),
        ({"gone": True, "here": False}, False),  # a pid means nothing on another host
        ({"silent": True, "here": False}, True),
        ({"gone": True, "stopped_at": LONG_AGO}, False),
        ({"silent": True, "stopped_at": LONG_AGO}, False),
        ({"gone": True, "recovered_at": LONG_AGO}, False),
    ],
    ids=str,
)
def test_who_counts_as_dead(state, dead):
    heart = beat(**state)
    assert [found.pk for found in recovery.dead_heartbeats(timezone.now())] == ([heart.pk] if dead else [])


def test_a_silent_process_on_another_host_keeps_its_lease_until_that_expires(campaign):
    take_one(campaign, beat(silent=True, here=False).pk)
    report = recovery.recover_stuck()
    assert report.logs_unconfirmed == 0  # it may be alive and only cut off from the database
    assert report.campaigns_paused == 1
    assert DispatchLog.objects.in_flight().count() == 1
    later = timezone.now() + timedelta(seconds=61)
    found = recovery.recover_lanes(verify_after=timedelta(0), lease_time=timedelta(seconds=1), now=later)
    assert found.logs_unconfirmed == 1
    assert_sum_rule(campaign)


def test_beside_a_live_scheduler_it_touches_nothing_of_its(campaign):
    dead, alive = beat(gone=True), beat()
    log_id = take_one(campaign, alive.pk)
    assert recovery.recover_stuck().as_dict() == UNTOUCHED
    assert Campaign.objects.get().status == S.RUNNING
    assert DispatchLog.objects.get(pk=log_id).status == "SENDING"
    dead.refresh_from_db()
    assert dead.recovered_at is not None
    assert Lane.objects.get().owner == alive.pk


def test_beside_a_live_scheduler_the_dead_ones_own_campaign_is_still_seen_to(campaign, fake):
    take_one(campaign, beat(gone=True).pk)
    beat()
    other = make_ready(people=1)
    Campaign.objects.filter(pk=other.pk).update(status=S.RUNNING)
    report = recovery.recover_stuck()
    assert (report.logs_unconfirmed, report.campaigns_paused) == (1, 1)
    assert Campaign.objects.get(pk=other.pk).status == S.RUNNING


@pytest.mark.parametrize(("policy", "paused"), [("pause", 2), ("continue", 1)])
def test_the_policy_decides_what_becomes_of_campaigns_that_had_nothing_in_flight(campaign, fake, settings, policy, paused):
    settings.RECOVERY_POLICY = policy
    take_one(campaign, beat(gone=True).pk)
    other = make_ready(people=1)
    Campaign.objects.filter(pk=other.pk).update(status=S.RUNNING)
    assert recovery.recover_stuck().campaigns_paused == paused
    assert Campaign.objects.get(pk=other.pk).status == (S.PAUSED if policy == "pause" else S.RUNNING)


def test_what_is_not_running_is_not_paused(campaign, fake):
    beat(gone=True)
    expected = {}
    for status in set(S) - {S.RUNNING}:
        other = make_ready(people=1)
        Campaign.objects.filter(pk=other.pk).update(status=status, due_at=timezone.now() + timedelta(days=1))
        expected[other.pk] = status
    assert recovery.recover_stuck().campaigns_paused == 0
    assert {pk: Campaign.objects.get(pk=pk).status for pk in expected} == expected


# -- clean stops ---------------------------------------------------------------------------------------------------------------


def stop_cleanly(heart: Heartbeat) -> None:
    stop = StopFlag()
    stop.requested = True
    assert Loop(heart=heart, engine=make_engine(owner=heart.pk, now=None), stop=stop).run() == 0


def test_after_a_clean_stop_nothing_is_paused(campaign):
    heart = start_heart(Heartbeat.Kind.SCHEDULER)
    transitions.start(campaign.pk, by="ana")
    stop_cleanly(heart)
    assert recovery.recover_stuck().as_dict() == UNTOUCHED
    assert Campaign.objects.get().status == S.RUNNING


def test_a_death_of_last_week_is_not_found_again_after_a_clean_stop(campaign):
    old = beat(gone=True)
    Heartbeat.objects.filter(pk=old.pk).update(beat_at=timezone.now() - timedelta(days=7))
    heart = start_heart(Heartbeat.Kind.SCHEDULER)
    transitions.start(campaign.pk, by="ana")
    stop_cleanly(heart)
    assert recovery.recover_stuck().as_dict() == UNTOUCHED
    assert Campaign.objects.get().status == S.RUNNING


def test_a_new_process_frees_at_once_what_a_gone_one_held(campaign):
    log_id = take_one(campaign, beat(gone=True).pk)
    start_heart(Heartbeat.Kind.SCHEDULER)
    assert DispatchLog.objects.get(pk=log_id).status == "UNCONFIRMED"
    assert Campaign.objects.get().status == S.PAUSED


def test_a_new_process_leaves_alone_what_a_silent_one_elsewhere_holds(campaign):
    log_id = take_one(campaign, beat(silent=True, here=False).pk)
    start_heart(Heartbeat.Kind.SCHEDULER)
    assert DispatchLog.objects.get(pk=log_id).status == "SENDING"
    assert Campaign.objects.get().status == S.RUNNING


# -- in every pass -------------------------------------------------------------------------------------------------------------


def test_every_pass_sees_to_leases_that_expired(campaign):
    take_one(campaign, uuid4(), lease=timedelta(seconds=1))
    engine = make_engine(now=timezone.now() + timedelta(seconds=2))
    report = run_until_idle(engine)
    engine.close()
    assert (report.recovered, report.paused) == (1, 1)
    assert sorted(statuses(campaign)) == ["PENDING", "PENDING", "UNCONFIRMED"]
    assert Campaign.objects.get().status_reason == recovery.PAUSE_REASON
    assert_sum_rule(campaign)


def test_a_campaign_that_a_person_stopped_meanwhile_stays_stopped(campaign):
    take_one(campaign, beat(gone=True).pk)
    transitions.stop(campaign.pk, by="ana")
    report = recovery.recover_stuck()
    assert (report.logs_unconfirmed, report.campaigns_paused) == (1, 0)
    assert Campaign.objects.get().status_reason == "stopped by ana"


def test_deploys_do_not_wait_for_a_provider_that_hangs(campaign, monkeypatch):
    monkeypatch.setattr(recovery, "VERIFYING_TAKES_AT_MOST", timedelta(0))
    take_one(campaign, beat(gone=True).pk)
    FakeProvider.presence = Verification(Presence.PRESENT)
    assert recovery.recover_stuck().as_dict() == {**UNTOUCHED, "campaigns_paused": 1, "steps_paused": 1, "logs_unconfirmed": 1}
    monkeypatch.undo()
    assert recovery.recover_stuck().logs_verified == 1


# -- on schedule ---------------------------------------------------------------------------------------------------------------


def watches(*, ago: timedelta = timedelta(0)) -> None:
    watching.watch_from_tasks()
    Job.objects.filter(pk=jobs.WATCH).update(finished_at=timezone.now() - ago)


def test_whoever_looks_first_after_an_outage_takes_nobody_for_dead(campaign):
    """A cable was out: the server was never restarted, and everybody who drives has been silent for as long as everybody else."""
    transitions.start(campaign.pk, by="ana")
    alive = beat(here=False)
    watches(ago=timedelta(minutes=1))
    Heartbeat.objects.update(beat_at=timezone.now() - timedelta(minutes=1))
    for looks in range(2):
        assert tasks.recover() == UNTOUCHED
        if not looks:
            watches()  # it is the first one to look, too
    assert Campaign.objects.get().status == S.RUNNING
    Heartbeat.objects.update(beat_at=timezone.now())
    watches()
    assert tasks.recover() == UNTOUCHED
    assert Heartbeat.objects.get(pk=alive.pk).recovered_at is None


def test_silence_that_was_seen_twice_is_believed(campaign):
    transitions.start(campaign.pk, by="ana")
    dead = beat(here=False, silent=True)
    watches()
    assert tasks.recover() == UNTOUCHED
    watches(ago=timedelta(seconds=30))
    assert tasks.recover()["campaigns_paused"] == 1
    assert Heartbeat.objects.get(pk=dead.pk).recovered_at is not None


def test_what_was_seen_before_the_background_tasks_stood_still_does_not_count(campaign):
    transitions.start(campaign.pk, by="ana")
    beat(here=False, silent=True)
    watches()
    watches(ago=timedelta(minutes=4))
    assert tasks.recover() == UNTOUCHED
    assert Campaign.objects.get().status == S.RUNNING


def test_a_death_that_is_proven_frees_its_messages_at_once_also_on_schedule(campaign):
    take_one(campaign, beat(gone=True).pk)
    assert tasks.recover()["logs_unconfirmed"] == 1

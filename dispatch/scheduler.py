"""What is due becomes RUNNING, what runs gets its rows, what is finished is completed; then the engine sends.

`run_pass` does one unit of work and says what it did. Only the loop waits.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial

from django.db import transaction
from django.db.models import Min

from campaigns import transitions
from campaigns.models import Campaign
from campaigns.transitions import Refused, SessionBusy
from dispatch import agenda, deciding, opening, recovery, runs
from dispatch import transitions as log_transitions
from dispatch.alerts import alert
from dispatch.engine import Engine
from dispatch.models import Lane, Run
from dispatch.outcomes import RESTRICTED
from dispatch.settling import DATABASE_AWAY
from dispatch.stopping import SLICE
from sessions_app import transitions as session_transitions
from sessions_app.clock import database_now
from sessions_app.providers.base import ErrorCode

logger = logging.getLogger("paceline.scheduler")


@dataclass
class PassReport:
    """What one pass did."""

    recovered: int = 0
    started: int = 0
    missed: int = 0
    advanced: int = 0
    paused: int = 0
    rows_made: int = 0
    skipped: int = 0
    completed: int = 0
    claimed: int = 0
    settled: int = 0
    asked: int = 0
    decided: int = 0

    @property
    def found_work(self) -> bool:
        return any(asdict(self).values())

    def facts(self) -> dict[str, int]:
        return {name: count for name, count in asdict(self).items() if count}


def run_pass(engine: Engine, *, planning: bool = True) -> PassReport:
    """One unit of everything: recover, plan, settle, claim. Does not wait for the calls it starts. Raises when the database is away."""
    report = PassReport()
    engine.collect()
    report.settled = len(engine.unsettled)
    _pause_for(engine.settle(), report)
    if planning:
        plan(engine, report)
    report.claimed = engine.claim()
    return report


def run_until_idle(engine: Engine, *, most_passes: int = 1000) -> PassReport:
    """Passes until one finds nothing to do now and no call is on its way: for `--once`, jobs and tests."""
    total = PassReport()
    for _ in range(most_passes):
        report = run_pass(engine)
        for name, count in asdict(report).items():
            setattr(total, name, getattr(total, name) + count)
        if engine.busy:
            engine.wait(SLICE)
        elif not report.found_work and not engine.unsettled:
            break
    return total


# -- planning ------------------------------------------------------------------------------------------------------------------


def plan(engine: Engine, report: PassReport) -> None:
    """Everything but the sending. Each campaign is its own unit: one that raises is paused and reported, and the others go on.

    Mostly there is nothing to do, and one statement finds that out. What one step does may be work for those after it, so if any has
    something to do, each of them looks.
    """
    now = engine.now or database_now()
    waits = agenda.look(now, grace=engine.verify.grace)
    if agenda.RECOVER in waits and engine.trusts_leases:
        found = recovery.recover_lanes(verify_after=engine.verify.first, lease_time=engine.lease, now=engine.now)
        report.recovered, report.paused = found.logs_unconfirmed, report.paused + found.campaigns_paused
    if waits - {agenda.ASK}:
        plan_each_step(engine, now, report)
    if agenda.ASK in waits:
        report.asked = engine.ask_about_unconfirmed()


def plan_each_step(engine: Engine, now: datetime, report: PassReport) -> None:
    _pause_for(set(agenda.in_trouble(now).values_list("session_id", flat=True)), report)
    _pause_the_unconnected(now, report)
    _start_due(engine, now, report)
    for campaign in agenda.without_run(now):
        _alone(campaign, partial(_advance, campaign, now, report), report)
    _carry_runs_on(now, report)
    for campaign in opening.to_open(now):
        _alone(campaign, partial(_open, campaign, engine, now, report), report)
    opening.to_shut(now).update(is_open=False)
    for campaign_id, log_ids in deciding.left_to_default(now, engine.verify.grace):
        _alone(Campaign(pk=campaign_id), partial(_decide, campaign_id, log_ids, now, report), report)


def _alone(campaign: Campaign, act: Callable[[], object], report: PassReport) -> None:
    try:
        act()
    except DATABASE_AWAY:
        raise
    except Refused:
        pass  # somebody was faster; the next pass sees what they made of it
    except Exception as error:
        logger.exception("a campaign could not be planned", extra={"campaign": campaign.pk})
        _pause(campaign.pk, f"paused: an error inside Paceline ({type(error).__name__}); see the log", report)


def _pause(campaign_id: int, reason: str, report: PassReport) -> None:
    try:
        transitions.pause(campaign_id, reason=reason)
    except Refused:
        return
    report.paused += 1
    alert("campaign paused", campaign=campaign_id, reason=reason)


def _pause_for(session_ids: set[int], report: PassReport) -> None:
    """Pause what runs on lanes that the settle shut, mark the sessions that are the cause. Repeats what a crash cut off."""
    for lane in Lane.objects.filter(session__in=session_ids).exclude(trouble="").select_related("campaign"):
        if lane.trouble_code in {ErrorCode.DISCONNECTED, RESTRICTED}:
            if lane.trouble_code == RESTRICTED:
                session_transitions.restrict(lane.session_id, lane.trouble, now=database_now())
            else:
                session_transitions.disconnect(lane.session_id, lane.trouble)
            alert("session disconnected", session=lane.session_id, detail=lane.trouble)
        with transaction.atomic():
            campaign = lane.campaign
            if campaign is not None and campaign.epoch == lane.epoch:
                _pause(campaign.pk, f"paused: {lane.trouble}", report)
            Lane.objects.filter(pk=lane.pk, token=lane.token).update(trouble="", trouble_code="", is_open=False)


def _pause_the_unconnected(now: datetime, report: PassReport) -> None:
    for campaign in agenda.unconnected(now):
        state = f"{campaign.session.get_status_display().lower()}: {campaign.session.status_detail}".rstrip(": ")
        _pause(campaign.pk, f"paused: session {campaign.session} is {state}", report)


def _start_due(engine: Engine, now: datetime, report: PassReport) -> None:
    for campaign in agenda.not_seen_yet(now):
        assert campaign.due_at is not None
        if now - campaign.due_at > campaign.grace:
            _alone(campaign, partial(_miss, campaign, now, report), report)
        else:
            reason = f"waits for its turn on session {campaign.session}"
            _alone(campaign, partial(transitions.note_due, campaign.pk, now=now, reason=reason), report)
    seen: set[int] = set()
    for campaign in agenda.in_turn(now):  # by due time; one for each session, so a busy session starves nobody
        if campaign.session_id not in seen:
            seen.add(campaign.session_id)
            _alone(campaign, partial(_begin, campaign, engine, now, report), report)


def _miss(campaign: Campaign, now: datetime, report: PassReport) -> None:
    missed = transitions.miss(campaign.pk, now=now)
    report.missed += 1
    alert("campaign missed its start", campaign=campaign.pk, reason=missed.status_reason)


def _begin(campaign: Campaign, engine: Engine, now: datetime, report: PassReport) -> None:
    session = campaign.session
    usable = opening.why_not(session)
    if usable:
        _do_not_begin(campaign, usable, report)
        return
    if not session.was_checked_just_before(now):
        engine.check(session)  # the answer is written down when it comes; this campaign has its turn at the pass after
        return
    try:
        transitions.begin(campaign.pk, now=now)
    except SessionBusy:
        return
    except Refused as refusal:
        _do_not_begin(campaign, str(refusal), report)
        return
    report.started += 1
    logger.info("campaign started", extra={"campaign": campaign.pk, "session": session.name})


def _do_not_begin(campaign: Campaign, why: str, report: PassReport) -> None:
    """PAUSED, unless another scheduler was faster: what it has begun is not ours to pause."""
    with transaction.atomic():
        if runs.lock_campaign(campaign.pk).status == Campaign.Status.SCHEDULED:
            _pause(campaign.pk, f"could not start: {why}", report)


def _carry_runs_on(now: datetime, report: PassReport) -> None:
    """Rows are made, swept and counted to the end; whatever state their campaign is in."""
    for run in agenda.to_carry_on(now):
        _alone(run.campaign, partial(_carry_on, run, now, report), report)
    orphaned = agenda.without_person(now).values_list("run_id", flat=True)[: runs.ROWS_AT_ONCE]
    for run in Run.objects.filter(pk__in=set(orphaned)).select_related("campaign"):
        _alone(run.campaign, partial(_sweep, run, "recipient deleted", report), report)
    for run in agenda.to_finish(now):
        _alone(run.campaign, partial(_finish, run, now, report), report)


def _carry_on(run: Run, now: datetime, report: PassReport) -> None:
    match run.campaign.status:
        case Campaign.Status.FAILED:
            _sweep(run, "campaign stopped", report)
            runs.stop(run.pk)
        case Campaign.Status.COMPLETED | Campaign.Status.SCHEDULED:
            _requeue(run, now)
        case Campaign.Status.RUNNING | Campaign.Status.PAUSED if not run.rows_complete:
            report.rows_made += runs.make_rows(run.pk, now)


def _sweep(run: Run, reason: str, report: PassReport) -> None:
    report.skipped += runs.sweep(run.pk, reason)


def _finish(run: Run, now: datetime, report: PassReport) -> None:
    report.completed += runs.finish(run.pk, now)


def _requeue(run: Run, now: datetime) -> None:
    """A late answer reopened a run of a campaign that was done, or that waits for its next step: it takes its turn again."""
    with transaction.atomic():
        campaign = runs.lock_campaign(run.campaign_id)
        is_over = campaign.status == Campaign.Status.COMPLETED or transitions.waits_for_a_step(campaign)
        if is_over and Run.objects.live().filter(pk=run.pk).exists():
            transitions.requeue(campaign, now=now, reason="a message came back to be sent again")


def _decide(campaign_id: int, log_ids: list[int], now: datetime, report: PassReport) -> None:
    report.decided += log_transitions.decide_by_default(campaign_id, log_ids, now=now)


def _advance(campaign: Campaign, now: datetime, report: PassReport) -> None:
    report.advanced += runs.advance(campaign.pk, now)


def _open(campaign: Campaign, engine: Engine, now: datetime, report: PassReport) -> None:
    why_not = opening.open_lane(campaign, engine.providers, engine.human, now)
    if why_not:
        _pause(campaign.pk, f"paused: {why_not}", report)


def seconds_until_due(engine: Engine, *, at_most: float) -> float:
    """How long the loop may rest: until the next lane is due. One that is overdue and was not claimed must not make the loop spin."""
    now = engine.now or database_now()
    due = Lane.objects.filter(is_open=True, trouble="").aggregate(next=Min("next_send_at"))["next"]
    if due is None or due <= now:
        return at_most
    return min(at_most, (due - now).total_seconds())

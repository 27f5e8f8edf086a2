"""Every way a campaign or a step changes status. Nothing else writes Campaign.status or CampaignStep.status.

Each verb takes the campaign's row lock, checks the state it comes from, writes who and why, and refuses anything else with a sentence that
names both states. Verbs write Campaign and CampaignStep only: what follows for runs, rows and lanes is for the scheduler to notice.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from django.db import IntegrityError, transaction

from campaigns import preflight, recurrence
from campaigns.models import Campaign, CampaignStep
from sessions_app.checking import check_session
from sessions_app.clock import database_now, spoken
from sessions_app.models import Session

S = Campaign.Status
Step = CampaignStep.Status

# verb -> (states it may come from, state it leads to)
ALLOWED: dict[str, tuple[frozenset[Campaign.Status], Campaign.Status]] = {
    "schedule": (frozenset({S.DRAFT, S.PAUSED}), S.SCHEDULED),
    "start": (frozenset({S.DRAFT, S.SCHEDULED, S.PAUSED}), S.RUNNING),
    "resume": (frozenset({S.PAUSED}), S.RUNNING),
    "begin": (frozenset({S.SCHEDULED}), S.RUNNING),
    "pause": (frozenset({S.SCHEDULED, S.RUNNING}), S.PAUSED),
    "miss": (frozenset({S.SCHEDULED}), S.PAUSED),
    "wait": (frozenset({S.RUNNING}), S.SCHEDULED),
    "complete": (frozenset({S.RUNNING}), S.COMPLETED),
    "requeue": (frozenset({S.SCHEDULED, S.COMPLETED}), S.SCHEDULED),
    "stop": (frozenset({S.SCHEDULED, S.RUNNING, S.PAUSED}), S.FAILED),
}


class Refused(Exception):
    """The verb does not apply now. `str()` is a sentence for the person who asked."""


class SessionBusy(Refused):
    """Another campaign is RUNNING on the session."""


def _lock(campaign_id: int) -> Campaign:
    try:
        return Campaign.objects.select_for_update(no_key=True).get(pk=campaign_id)
    except Campaign.DoesNotExist:
        raise Refused(f"There is no campaign {campaign_id}; it was deleted, or the number is wrong.") from None


def _require(campaign: Campaign, verb: str) -> Campaign.Status:
    allowed, target = ALLOWED[verb]
    if campaign.status not in allowed:
        states = ", ".join(state.label for state in S if state in allowed)
        raise Refused(
            f'"{campaign}" is {campaign.get_status_display()} and cannot become {target.label}: {verb} works from {states}. '
            f"{campaign.status_reason}".strip()
        )
    return target


def _move(campaign: Campaign, verb: str, reason: str, **changes: object) -> Campaign:
    """The one writer. The caller holds the row lock."""
    campaign.status = _require(campaign, verb)
    campaign.status_reason = reason[:500]
    for name, value in changes.items():
        setattr(campaign, name, value)
    campaign.save(update_fields=["status", "status_reason", "updated_at", *changes])
    return campaign


def _move_steps(campaign: Campaign, origin: Iterable[CampaignStep.Status], target: CampaignStep.Status) -> None:
    campaign.steps.filter(status__in=origin).update(status=target)


def schedule(campaign_id: int, *, by: str, now: datetime | None = None) -> Campaign:
    """DRAFT or PAUSED -> SCHEDULED at the campaign's own start time. To change the time of a scheduled one: pause, edit, schedule."""
    now = now or database_now()
    with transaction.atomic():
        campaign = _lock(campaign_id)
        _require(campaign, "schedule")
        if campaign.scheduled_at is None:
            raise Refused(f'"{campaign}" has no start time. Enter one, or start it by hand.')
        if campaign.scheduled_at <= now:
            raise Refused(f'The start time of "{campaign}" is in the past. Enter a later one, or start it by hand.')
        _require_ready(campaign, now)
        reason = f"scheduled by {by}"
        return _move(campaign, "schedule", reason, due_at=campaign.scheduled_at, due_seen_at=None)


def start(campaign_id: int, *, by: str, now: datetime | None = None) -> Campaign:
    """DRAFT, SCHEDULED or PAUSED -> RUNNING. Asks the provider first, unless it answered within the last minute."""
    return _begin(campaign_id, "start", f"started by {by}", now)


def resume(campaign_id: int, *, by: str, now: datetime | None = None) -> Campaign:
    """PAUSED -> RUNNING, with the same checks as a start."""
    return _begin(campaign_id, "resume", f"resumed by {by}", now)


def begin(campaign_id: int, *, now: datetime) -> Campaign:
    """SCHEDULED and due -> RUNNING. For the scheduler, which has asked the provider already. May raise SessionBusy."""
    with transaction.atomic():
        campaign = _lock(campaign_id)
        _require(campaign, "begin")
        _require_ready(campaign, now)
        _require_connected(campaign)
        return _run(campaign, "begin", "started at its time", now)


def _begin(campaign_id: int, verb: str, reason: str, now: datetime | None) -> Campaign:
    now = now or database_now()
    campaign = Campaign.objects.select_related("session").filter(pk=campaign_id).first()
    if campaign is not None:
        _require(campaign, verb)
        _require_ready(campaign, now)
        _require_free(campaign)
        if not campaign.session.was_checked_just_before(now):
            check_session(campaign.session)  # the network: before the transaction, never inside
    with transaction.atomic():
        campaign = _lock(campaign_id)
        _require(campaign, verb)
        _require_connected(campaign)
        return _run(campaign, verb, reason, now)


def _run(campaign: Campaign, verb: str, reason: str, now: datetime) -> Campaign:
    try:
        with transaction.atomic():
            _move(
                campaign,
                verb,
                reason,
                epoch=campaign.epoch + 1,
                started_at=campaign.started_at or now,
                due_at=None,
                due_seen_at=None,
            )
    except IntegrityError:  # the partial unique index: somebody was faster
        _require_free(campaign)
        raise
    _move_steps(campaign, [Step.PAUSED], Step.RUNNING)
    reach_next_step(campaign, now)
    return campaign


def _require_ready(campaign: Campaign, now: datetime) -> None:
    problems = preflight.blockers(campaign, now=now)
    if problems:
        raise Refused(f'"{campaign}" cannot go out yet: {" ".join(problems)}')


def _require_connected(campaign: Campaign) -> None:
    session = Session.objects.get(pk=campaign.session_id)
    if session.status != Session.Status.CONNECTED:
        detail = f" ({session.status_detail.rstrip('.')})" if session.status_detail else ""
        raise Refused(
            f'Session "{session}" is not connected: {session.get_status_display().lower()}{detail}. '
            f'Connect it, check it on its page, then start "{campaign}" again.'
        )


def _require_free(campaign: Campaign) -> None:
    other = Campaign.objects.running().filter(session=campaign.session_id).exclude(pk=campaign.pk).first()
    if other is not None:
        raise SessionBusy(
            f'Session "{campaign.session}" is busy with "{other}". Pause or stop that one, wait until it is done, '
            f'or schedule "{campaign}": then it waits its turn.'
        )


def pause(campaign_id: int, *, reason: str) -> Campaign:
    """RUNNING or SCHEDULED -> PAUSED. Takes effect at the next claim: nothing is claimed after this has committed."""
    with transaction.atomic():
        campaign = _move(_lock(campaign_id), "pause", reason)
        _move_steps(campaign, [Step.RUNNING], Step.PAUSED)
        return campaign


def miss(campaign_id: int, *, now: datetime) -> Campaign:
    """SCHEDULED -> PAUSED: nobody saw it within the grace after its time. Never sent late unasked, never lost."""
    with transaction.atomic():
        campaign = _lock(campaign_id)
        _require(campaign, "miss")
        assert campaign.due_at is not None
        late = spoken(now - campaign.due_at)
        return _move(campaign, "miss", f"missed its start by {late}; resume to send now")


def note_due(campaign_id: int, *, now: datetime, reason: str) -> None:
    """A scheduler saw a SCHEDULED campaign due in time: from here it waits its turn and cannot be missed."""
    with transaction.atomic():
        campaign = _lock(campaign_id)
        if campaign.status == S.SCHEDULED:
            campaign.due_seen_at = campaign.due_seen_at or now
            campaign.status_reason = reason[:500]
            campaign.save(update_fields=["due_seen_at", "status_reason"])


def wait(campaign: Campaign, *, until: datetime, reason: str) -> Campaign:
    """RUNNING -> SCHEDULED until the next step or run is due; the session is free meanwhile. The caller holds the row lock."""
    return _move(campaign, "wait", reason, due_at=until, due_seen_at=None)


def complete(campaign: Campaign, *, now: datetime) -> Campaign:
    """RUNNING -> COMPLETED. The caller holds the row lock and has seen that nothing is left to run."""
    return _move(campaign, "complete", campaign.outcomes(), completed_at=now)


def waits_for_a_step(campaign: Campaign) -> bool:
    """SCHEDULED by `wait`, not by a person: it may come back earlier without breaking anybody's word."""
    step = campaign.steps.waiting().first()
    return campaign.status == S.SCHEDULED and step is not None and step.next_run_at == campaign.due_at


def requeue(campaign: Campaign, *, now: datetime, reason: str) -> Campaign:
    """COMPLETED, or SCHEDULED for a later step -> SCHEDULED now: it takes its turn on the session.

    The caller holds the row lock and flips rows in this transaction.
    """
    return _move(campaign, "requeue", reason, due_at=now, due_seen_at=now)  # seen: a retry has no promised time that could be missed


def restate(campaign: Campaign) -> None:
    """The reason of a COMPLETED campaign names its outcomes: say them anew when one of them was decided later."""
    if campaign.status == S.COMPLETED:
        campaign.status_reason = campaign.outcomes()
        campaign.save(update_fields=["status_reason"])


def stop(campaign_id: int, *, by: str) -> Campaign:
    """Any live state -> FAILED, for good. What was not sent is skipped by the scheduler."""
    with transaction.atomic():
        campaign = _move(_lock(campaign_id), "stop", f"stopped by {by}", due_at=None)
        _move_steps(campaign, [Step.PENDING, Step.SCHEDULED, Step.RUNNING, Step.PAUSED], Step.FAILED)
        campaign.steps.update(next_run_at=None)
        return campaign


def move(campaign_id: int, *, session_id: int, by: str) -> Campaign:
    """To another session of the same channel. Refused while RUNNING; what is on its way is settled where it was sent from."""
    with transaction.atomic():
        campaign = _lock(campaign_id)
        target = Session.objects.filter(pk=session_id).first()
        if target is None:
            raise Refused(f"There is no session {session_id}.")
        if campaign.status in {S.RUNNING, S.FAILED}:
            raise Refused(f'"{campaign}" is {campaign.get_status_display()}. Pause it first; a stopped campaign stays where it was.')
        if target.channel != campaign.session.channel:
            raise Refused(
                f'"{target}" is on channel {target.channel}, "{campaign}" on {campaign.session.channel}. Choose one of the same channel.'
            )
        campaign.status_reason = f"moved from {campaign.session} to {target} by {by}; {campaign.status_reason}"[:500]
        campaign.session = target
        campaign.save(update_fields=["session", "status_reason", "updated_at"])
        return campaign


def reach_next_step(campaign: Campaign, now: datetime) -> CampaignStep | None:
    """Give the first step that was not reached its time, if every step before it is done with its first run."""
    steps = list(campaign.steps.order_by("order"))
    for position, step in enumerate(steps):
        if step.status != Step.PENDING:
            continue
        before = steps[position - 1] if position else None
        if before is not None and before.status in {Step.PENDING, Step.RUNNING, Step.PAUSED}:
            return None
        if before is not None and before.status == Step.SCHEDULED and not before.runs_made:
            return None
        step.status, step.next_run_at = Step.SCHEDULED, step.first_run_at(now)
        step.save(update_fields=["status", "next_run_at"])
        return step
    return None


def begin_step(step: CampaignStep) -> None:
    """SCHEDULED -> RUNNING: its run was made. The caller holds the campaign's row lock."""
    step.status, step.next_run_at, step.runs_made = Step.RUNNING, None, step.runs_made + 1
    step.save(update_fields=["status", "next_run_at", "runs_made"])


def finish_step(step: CampaignStep, *, scheduled_for: datetime, now: datetime) -> list[datetime]:
    """Its run is done: COMPLETED, or SCHEDULED for the next occurrence after now. Returns the occurrences that were passed over.

    The caller holds the campaign's row lock.
    """
    following = next_run(step, now)
    step.status = Step.COMPLETED if following is None else Step.SCHEDULED
    step.next_run_at = following
    step.save(update_fields=["status", "next_run_at"])
    if not step.recurrence_type or step.scheduled_at is None:
        return []
    passed = recurrence.occurrences_between(step.recurrence_type, anchor=step.scheduled_at, zone=step.zone, after=scheduled_for, until=now)
    return [moment for moment in passed if _within_end(step, moment)]


def next_run(step: CampaignStep, now: datetime) -> datetime | None:
    """When a recurring step runs next, or None: it does not recur, its end date passed, or its count is reached."""
    if not step.recurrence_type:
        return None
    if step.recurrence_count is not None and step.runs_made >= step.recurrence_count:
        return None
    following = recurrence.next_occurrence(step.recurrence_type, anchor=step.scheduled_at, zone=step.zone, after=now)
    return following if _within_end(step, following) else None


def _within_end(step: CampaignStep, moment: datetime) -> bool:
    return step.recurrence_until is None or moment.astimezone(step.zone).date() <= step.recurrence_until


Verb = Callable[..., Campaign]
BY_HAND: dict[str, Verb] = {
    "schedule": schedule,
    "start": start,
    "resume": resume,
    "stop": stop,
    "pause": lambda campaign_id, *, by: pause(campaign_id, reason=f"paused by {by}"),
}

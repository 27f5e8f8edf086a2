"""Runs: made when a step is due, filled with rows in chunks, swept when their campaign was stopped, finished when everything is settled."""

import logging
from dataclasses import asdict
from datetime import datetime

from django.db import transaction
from django.db.models import F, Max, Q

from campaigns import recurrence, transitions
from campaigns.models import Campaign, CampaignStep, Recipient
from dispatch.models import DispatchLog, Lane, Run
from dispatch.providers import freeze

logger = logging.getLogger("paceline.scheduler")

ROWS_AT_ONCE = 5000
EARLIER_ONES_TOO = "so were earlier ones"
SWEEP = {"campaign stopped": Q(), "recipient deleted": Q(kind=DispatchLog.Kind.MESSAGE, recipient__isnull=True)}


def lock_campaign(campaign_id: int) -> Campaign:
    return Campaign.objects.select_for_update(no_key=True).get(pk=campaign_id)


def lock_run(run_id: int) -> Run:
    return Run.objects.select_for_update(no_key=True).get(pk=run_id)


def advance(campaign_id: int, now: datetime) -> bool:
    """What a RUNNING campaign without a live run does next: the run of the step that is due, a wait for the next one, or its end.

    False when somebody else was faster.
    """
    with transaction.atomic():
        campaign = lock_campaign(campaign_id)
        if campaign.status != Campaign.Status.RUNNING or campaign.runs.live().exists():
            return False
        transitions.reach_next_step(campaign, now)
        step = campaign.steps.waiting().first()
        if step is None:
            transitions.complete(campaign, now=now)
            logger.info("campaign completed", extra={"campaign": campaign.pk, "summary": campaign.status_reason})
            return True
        assert step.next_run_at is not None
        if step.next_run_at > now:
            local = step.next_run_at.astimezone(step.zone)
            transitions.wait(campaign, until=step.next_run_at, reason=f"waits for {step} at {local:%Y-%m-%d %H:%M} {step.zone}")
            logger.info("campaign waits", extra={"campaign": campaign.pk, "until": step.next_run_at.isoformat()})
            return True
        _make(campaign, step, step.next_run_at)
        return True


def _make(campaign: Campaign, step: CampaignStep, scheduled_for: datetime) -> Run:
    run = Run.objects.create(
        campaign=campaign,
        step=step,
        number=_next_number(step),
        scheduled_for=scheduled_for,
        message=freeze(step.message),
        pacing=asdict(campaign.pacing),
    )
    transitions.begin_step(step)
    Lane.objects.filter(session=campaign.session_id).update(attempts_in_run=0)  # the first attempts of a run are slow ones
    logger.info("run begun", extra={"campaign": campaign.pk, "step": step.order, "run": run.number})
    return run


def _next_number(step: CampaignStep) -> int:
    return (step.runs.aggregate(last=Max("number"))["last"] or 0) + 1


def make_rows(run_id: int, now: datetime) -> int:
    """One chunk of a run's rows, in sending order; the last one makes the run complete. Returns how many were made."""
    with transaction.atomic():
        run = lock_run(run_id)
        if run.rows_complete:
            return 0
        people = Recipient.objects.filter(campaign=run.campaign_id).order_by("order", "pk")
        if run.last_recipient_id is not None:
            people = people.filter(Q(order__gt=run.last_order) | Q(order=run.last_order, pk__gt=run.last_recipient_id))
        chunk = list(people.values_list("pk", "order", "address")[:ROWS_AT_ONCE])
        session_id = Campaign.objects.values_list("session_id", flat=True).get(pk=run.campaign_id)
        DispatchLog.objects.bulk_create(
            [
                DispatchLog(
                    campaign_id=run.campaign_id,
                    session_id=session_id,
                    step_id=run.step_id,
                    run=run,
                    recipient_id=pk,
                    address=address,
                    available_at=now,
                )
                for pk, _, address in chunk
            ],
            ignore_conflicts=True,
        )
        if chunk:
            run.last_recipient_id, run.last_order = chunk[-1][0], chunk[-1][1]
        run.rows_complete = len(chunk) < ROWS_AT_ONCE
        # counted at the end: somebody whose order was changed meanwhile is met twice, and makes one row
        run.planned = run.logs.count() if run.rows_complete else run.planned + len(chunk)
        run.save(update_fields=["last_recipient_id", "last_order", "rows_complete", "planned"])
        return len(chunk)


def sweep(run_id: int, reason: str) -> int:
    """One chunk of waiting rows of a run becomes SKIPPED for one of the reasons in SWEEP. Returns how many."""
    with transaction.atomic():
        run = lock_run(run_id)
        waiting = DispatchLog.objects.pending().filter(SWEEP[reason], campaign=run.campaign_id, run=run).order_by("pk")
        chunk = list(waiting.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True)[:ROWS_AT_ONCE])
        if chunk:
            DispatchLog.objects.filter(pk__in=chunk).update(status=DispatchLog.Status.SKIPPED, reason=reason)
            Run.objects.filter(pk=run.pk).update(skipped=F("skipped") + len(chunk))
        return len(chunk)


def stop(run_id: int) -> bool:
    """A run whose campaign was stopped: make no more rows, skip what waits; STOPPED once nothing is on its way. True when it is."""
    with transaction.atomic():
        run = lock_run(run_id)
        if not run.rows_complete:
            run.rows_complete, run.planned = True, run.logs.count()
            run.save(update_fields=["rows_complete", "planned"])
    while sweep(run_id, "campaign stopped") == ROWS_AT_ONCE:
        pass
    return Run.objects.settled().filter(pk=run_id).update(status=Run.Status.STOPPED, reason="campaign stopped") == 1


def finish(run_id: int, now: datetime) -> bool:
    """A run of which everything is settled is COMPLETED, and its step goes on. False when something is left after all."""
    with transaction.atomic():
        campaign = lock_campaign(Run.objects.values_list("campaign_id", flat=True).get(pk=run_id))
        run = lock_run(run_id)
        if run.status != Run.Status.RUNNING or not run.rows_complete or run.waiting:
            return False
        if campaign.status == Campaign.Status.FAILED:
            return False
        is_first_time = run.completed_at is None
        run.status, run.completed_at = Run.Status.COMPLETED, now
        run.save(update_fields=["status", "completed_at"])
        if is_first_time:  # a run that was reopened for single messages does not move its step again
            _pass_over(run, transitions.finish_step(run.step, scheduled_for=run.scheduled_for or now, now=now))
        logger.info("run finished", extra={"campaign": campaign.pk, "run": run.number, **run.counts()})
        return True


def _pass_over(run: Run, occurrences: list[datetime]) -> None:
    """The occurrences that went by while this run was on its way are kept, as runs that were SKIPPED and say why."""
    number = _next_number(run.step)
    for position, moment in enumerate(occurrences):
        is_cut = position == 0 and len(occurrences) == recurrence.MOST_PASSED_OVER
        Run.objects.create(
            campaign_id=run.campaign_id,
            step_id=run.step_id,
            number=number + position,
            scheduled_for=moment,
            status=Run.Status.SKIPPED,
            reason=f"passed over: run {run.number} was not done" + (f"; {EARLIER_ONES_TOO}" if is_cut else ""),
            rows_complete=True,
        )

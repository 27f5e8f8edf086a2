"""Every way a message leaves SENDING or UNCONFIRMED outside the settle, and every way a waiting one is taken out by hand.

By evidence (the provider was asked) or by a person; never by guessing. Each verb locks campaign, run and message in this order, moves the
run's counters with the row, and reopens what was completed when a message is to be sent again.
"""

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from campaigns import transitions as campaign_transitions
from campaigns.models import Campaign
from campaigns.transitions import Refused
from dispatch.models import Attempt, DispatchLog, Run
from sessions_app.clock import database_now

S = DispatchLog.Status
COUNTERS = {S.SENT: "sent", S.FAILED: "failed", S.UNCONFIRMED: "unconfirmed", S.SKIPPED: "skipped"}


def _lock(log_id: int, *allowed: DispatchLog.Status) -> DispatchLog:
    log = DispatchLog.objects.filter(pk=log_id).first()
    if log is None:
        raise Refused(f"There is no message {log_id}.")
    Campaign.objects.select_for_update(no_key=True).get(pk=log.campaign_id)
    if log.run_id is not None:
        Run.objects.select_for_update(no_key=True).get(pk=log.run_id)
    log = DispatchLog.objects.select_for_update(no_key=True).get(pk=log_id)
    if log.status not in allowed:
        states = " or ".join(S(state).label for state in allowed)
        raise Refused(f"Message {log_id} is {log.get_status_display()}, no longer {states}: somebody or something decided it meanwhile.")
    return log


def _move(log: DispatchLog, target: DispatchLog.Status, **changes: object) -> DispatchLog:
    """The one writer. The caller holds the locks."""
    counters: dict[str, Any] = {}
    if log.status in COUNTERS:
        counters[COUNTERS[S(log.status)]] = F(COUNTERS[S(log.status)]) - 1
    if target in COUNTERS:
        counters[COUNTERS[target]] = F(COUNTERS[target]) + 1
    if target == S.PENDING:
        counters["status"] = Run.Status.RUNNING
    if log.run_id is not None:
        Run.objects.filter(pk=log.run_id).update(**counters)
    changes = {"verify_at": None, "unconfirmed_at": None, **changes}
    log.status = target
    for name, value in changes.items():
        setattr(log, name, value)
    log.save(update_fields=["status", *changes])
    campaign_transitions.restate(Campaign.objects.get(pk=log.campaign_id))
    return log


def _back_to_pending(log: DispatchLog, reason: str, now: datetime, **changes: object) -> None:
    """It will be sent again, from where its campaign stands now. A stopped campaign's is skipped by the next sweep."""
    _move(log, S.PENDING, reason=reason, available_at=now, error_code="", error_text="", **changes)
    campaign = Campaign.objects.get(pk=log.campaign_id)
    if campaign.status == Campaign.Status.COMPLETED or campaign_transitions.waits_for_a_step(campaign):
        campaign_transitions.requeue(campaign, now=now, reason=f"sends again: {reason}")


def mark_sent(log_id: int, *, by: str) -> None:
    """UNCONFIRMED -> SENT, on the word of a person who looked."""
    with transaction.atomic():
        _move(_lock(log_id, S.UNCONFIRMED), S.SENT, reason=f"marked as sent by {by}", decided_by=by, sent_at=Now())


def send_again(log_id: int, *, by: str, now: datetime | None = None) -> None:
    """UNCONFIRMED -> PENDING, on the word of a person. May double: nobody knows whether the first one arrived."""
    with transaction.atomic():
        log = _lock(log_id, S.UNCONFIRMED)
        _back_to_pending(log, f"sent again by {by}, who knows that it may double", now or database_now(), decided_by=by)


def give_up(log_id: int, *, by: str) -> None:
    """UNCONFIRMED -> FAILED, on the word of a person."""
    with transaction.atomic():
        _move(_lock(log_id, S.UNCONFIRMED), S.FAILED, reason=f"given up by {by}", decided_by=by)


def remove(log_id: int, *, by: str) -> None:
    """PENDING -> SKIPPED: one waiting message is taken out by hand."""
    with transaction.atomic():
        _move(_lock(log_id, S.PENDING), S.SKIPPED, reason=f"removed by {by}", decided_by=by)


def verified_present(log_id: int, *, attempt: int, message_id: str) -> bool:
    """UNCONFIRMED -> SENT: the provider has it. False when the row moved on meanwhile."""
    with transaction.atomic():
        log = _lock_if_unconfirmed(log_id, attempt)
        if log is None:
            return False
        found = {"provider_message_id": message_id or log.provider_message_id, "sent_at": log.claimed_at}
        _move(log, S.SENT, reason="verified: the provider has it", error_code="", error_text="", **found)
        _note(log, "VERIFIED_PRESENT")
        return True


def verified_absent(log_id: int, *, attempt: int, now: datetime) -> bool:
    """UNCONFIRMED -> PENDING: the provider does not have it, and its absence is proof. Only past the grace; False when the row moved on."""
    with transaction.atomic():
        log = _lock_if_unconfirmed(log_id, attempt)
        if log is None:
            return False
        _back_to_pending(log, "verified: it never arrived", now)
        _note(log, "VERIFIED_ABSENT")
        return True


def _lock_if_unconfirmed(log_id: int, attempt: int) -> DispatchLog | None:
    try:
        log = _lock(log_id, S.UNCONFIRMED)
    except Refused:
        return None
    return log if log.attempt == attempt else None


def _note(log: DispatchLog, outcome: str) -> None:
    assert log.token is not None
    Attempt.objects.create(log=log, attempt=log.attempt, token=log.token, session_id=log.session_id, outcome=outcome)

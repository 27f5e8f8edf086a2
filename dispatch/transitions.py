"""Every way a message leaves SENDING or UNCONFIRMED outside the settle, every way a waiting one is taken out by hand, and the way back of
one that failed and is worth another try.

By evidence (the provider was asked), by a person, or by what a person chose for the campaign beforehand; never by guessing. Each verb
locks campaign, run and message in this order, ids ascending, moves the run's counters with the rows, and reopens what was completed when a
message is to be sent again. Those that take many ids are one transaction: hand them a bounded number.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Decision:
    """What somebody may decide about a message, and the sentence that is kept with it."""

    origin: DispatchLog.Status
    target: DispatchLog.Status
    reason: str


MARK_SENT = Decision(S.UNCONFIRMED, S.SENT, "marked as sent by {by}")
SEND_AGAIN = Decision(S.UNCONFIRMED, S.PENDING, "sent again by {by}, knowing that it may double")
GIVE_UP = Decision(S.UNCONFIRMED, S.FAILED, "given up by {by}")
REMOVE = Decision(S.PENDING, S.SKIPPED, "removed by {by}")

DEFAULT = "default of the campaign"  # in decided_by; no user can be called so, a user's name has no spaces
DEFAULTS = {
    Campaign.UnconfirmedDefault.MARK_SENT: MARK_SENT,
    Campaign.UnconfirmedDefault.GIVE_UP: GIVE_UP,
    Campaign.UnconfirmedDefault.SEND_AGAIN: SEND_AGAIN,
}


def _lock(log_id: int, *allowed: DispatchLog.Status) -> DispatchLog:
    log = DispatchLog.objects.filter(pk=log_id).first()
    if log is None:
        raise Refused(f"There is no message {log_id}.")
    _lock_owners([log.campaign_id], [log.run_id])
    log = DispatchLog.objects.select_for_update(no_key=True).get(pk=log_id)
    if log.status not in allowed:
        states = " or ".join(S(state).label for state in allowed)
        raise Refused(f"Message {log_id} is {log.get_status_display()}, no longer {states}: somebody or something decided it meanwhile.")
    return log


def _lock_owners(campaigns: Collection[int], runs: Collection[int | None]) -> None:
    list(Campaign.objects.select_for_update(no_key=True).filter(pk__in=campaigns).order_by("pk").values_list("pk"))
    list(
        Run.objects.select_for_update(no_key=True).filter(pk__in=[run for run in runs if run is not None]).order_by("pk").values_list("pk")
    )


def _lock_those_in(status: DispatchLog.Status, log_ids: Collection[int]) -> list[DispatchLog]:
    """Of these the ones in that status, as seen under the lock; without their texts, so that it costs little memory."""
    rows = DispatchLog.objects.filter(pk__in=log_ids, status=status)
    owners = list(rows.order_by().values_list("campaign_id", "run_id").distinct())
    _lock_owners({campaign for campaign, _ in owners}, {run for _, run in owners})
    return list(rows.select_for_update(no_key=True).only("pk", "status", "campaign_id", "run_id", "decided_by", "retry_at").order_by("pk"))


def _move(logs: Sequence[DispatchLog], target: DispatchLog.Status, **changes: object) -> None:
    """The one writer: rows that are all in one status. The caller holds the locks."""
    if not logs:
        return
    origin = S(logs[0].status)
    changes = {"verify_at": None, "unconfirmed_at": None, "retry_at": None, **changes}
    DispatchLog.objects.filter(pk__in=[log.pk for log in logs]).update(status=target, **changes)
    _count(Counter(log.run_id for log in logs if log.run_id is not None), origin, target)
    for campaign in _campaigns_of(logs).filter(status=Campaign.Status.COMPLETED):
        campaign_transitions.restate(campaign)


def _count(moved: Counter[int], origin: DispatchLog.Status, target: DispatchLog.Status) -> None:
    """One statement for all runs of which equally many rows moved: mostly one in all."""
    for amount in set(moved.values()):
        changes: dict[str, Any] = {}
        if origin in COUNTERS:
            changes[COUNTERS[origin]] = F(COUNTERS[origin]) - amount
        if target in COUNTERS:
            changes[COUNTERS[target]] = F(COUNTERS[target]) + amount
        if target == S.PENDING:
            changes["status"] = Run.Status.RUNNING
        Run.objects.filter(pk__in=[run for run, count in moved.items() if count == amount]).update(**changes)


def _campaigns_of(logs: Sequence[DispatchLog]) -> Any:
    return Campaign.objects.filter(pk__in={log.campaign_id for log in logs}).order_by("pk")


def _back_to_pending(logs: Sequence[DispatchLog], reason: str, now: datetime, **changes: object) -> None:
    """They will be sent again, from where their campaign stands now. A stopped campaign's are skipped by the next sweep.

    A new attempt that ends in doubt is asked about from the beginning.
    """
    _move(logs, S.PENDING, reason=reason, available_at=now, error_code="", error_text="", verifications=0, **changes)
    for campaign in _campaigns_of(logs).filter(status__in=[Campaign.Status.COMPLETED, Campaign.Status.SCHEDULED]):
        if campaign.status == Campaign.Status.COMPLETED or campaign_transitions.waits_for_a_step(campaign):
            campaign_transitions.requeue(campaign, now=now, reason=f"sends again: {reason}")


# -- decisions -----------------------------------------------------------------------------------------------------------------


def _carry_out(decision: Decision, logs: Sequence[DispatchLog], *, by: str, now: datetime | None = None) -> None:
    reason = decision.reason.format(by=by)
    if decision.target == S.PENDING:
        _back_to_pending(logs, reason, now or database_now(), decided_by=by)
    else:
        sent = {"sent_at": Now()} if decision.target == S.SENT else {}
        _move(logs, decision.target, reason=reason, decided_by=by, **sent)


def decide(decision: Decision, log_ids: Collection[int], *, by: str, now: datetime | None = None) -> int:
    """Returns how many were decided. What is no longer in the status that this decides about is left alone."""
    with transaction.atomic():
        logs = _lock_those_in(decision.origin, log_ids)
        _carry_out(decision, logs, by=by, now=now)
        return len(logs)


def decide_by_default(campaign_id: int, log_ids: Collection[int], *, now: datetime) -> int:
    """UNCONFIRMED -> what the campaign says now, read under its lock. The caller has seen that verification is over. Returns how many."""
    with transaction.atomic():
        campaign = Campaign.objects.select_for_update(no_key=True).filter(pk=campaign_id).first()
        decision = DEFAULTS.get(Campaign.UnconfirmedDefault(campaign.unconfirmed_default)) if campaign is not None else None
        return decide(decision, log_ids, by=DEFAULT, now=now) if decision is not None else 0


def _decide_one(decision: Decision, log_id: int, *, by: str, now: datetime | None = None) -> None:
    with transaction.atomic():
        _carry_out(decision, [_lock(log_id, decision.origin)], by=by, now=now)


def mark_sent(log_id: int, *, by: str) -> None:
    """UNCONFIRMED -> SENT, on the word of a person who looked."""
    _decide_one(MARK_SENT, log_id, by=by)


def send_again(log_id: int, *, by: str, now: datetime | None = None) -> None:
    """UNCONFIRMED -> PENDING, on the word of a person. May double: nobody knows whether the first one arrived."""
    _decide_one(SEND_AGAIN, log_id, by=by, now=now)


def give_up(log_id: int, *, by: str) -> None:
    """UNCONFIRMED -> FAILED, on the word of a person."""
    _decide_one(GIVE_UP, log_id, by=by)


def remove(log_id: int, *, by: str) -> None:
    """PENDING -> SKIPPED: one waiting message is taken out by hand."""
    _decide_one(REMOVE, log_id, by=by)


# -- another try ---------------------------------------------------------------------------------------------------------------


def queue_again(log_ids: Collection[int], *, reason: str, now: datetime) -> int:
    """FAILED -> PENDING, where its campaign can still send. Returns how many were queued.

    What somebody gave up stays given up; one that somebody sent again and that then failed for the moment is as good as any other.

    Nothing is sent here: they take their turn in their lane, a completed campaign takes its turn on the session, a paused one stays paused.
    """
    with transaction.atomic():
        logs = [log for log in _lock_those_in(S.FAILED, log_ids) if log.retry_at is not None or not log.decided_by]
        over = set(_campaigns_of(logs).filter(status__in=[Campaign.Status.FAILED, Campaign.Status.DRAFT]).values_list("pk", flat=True))
        logs = [log for log in logs if log.campaign_id not in over]
        _back_to_pending(logs, reason, now)
        return len(logs)


# -- evidence ------------------------------------------------------------------------------------------------------------------


def verified_present(log_id: int, *, attempt: int, message_id: str) -> bool:
    """UNCONFIRMED -> SENT: the provider has it. False when the row moved on meanwhile."""
    with transaction.atomic():
        log = _lock_if_unconfirmed(log_id, attempt)
        if log is None:
            return False
        found = {"provider_message_id": message_id or log.provider_message_id, "sent_at": log.claimed_at}
        _move([log], S.SENT, reason="verified: the provider has it", error_code="", error_text="", **found)
        _note(log, "VERIFIED_PRESENT")
        return True


def verified_absent(log_id: int, *, attempt: int, now: datetime) -> bool:
    """UNCONFIRMED -> PENDING: the provider does not have it, and its absence is proof. Only past the grace; False when the row moved on."""
    with transaction.atomic():
        log = _lock_if_unconfirmed(log_id, attempt)
        if log is None:
            return False
        _back_to_pending([log], "verified: it never arrived", now)
        _note(log, "VERIFIED_ABSENT")
        return True


def confirmed_by_receipt(log_id: int, *, message_id: str) -> bool:
    """Whatever was thought of it -> SENT: the channel told by itself that it has the message. False when the ledger had it as SENT already.

    A message that is being tried once more at this moment is left alone; its own answer comes.
    """
    with transaction.atomic():
        try:
            log = _lock(log_id, S.UNCONFIRMED, S.PENDING, S.FAILED, S.SKIPPED)
        except Refused:
            return False
        if not log.attempt:
            return False
        found = {"provider_message_id": message_id or log.provider_message_id, "sent_at": log.claimed_at}
        _move([log], S.SENT, reason="confirmed by a receipt", error_code="", error_text="", **found)
        _note(log, "RECEIPT")
        return True


def failed_by_receipt(log_id: int, *, code: str, detail: str) -> bool:
    """SENT or UNCONFIRMED -> FAILED: the channel took it first and could not deliver it. Never tried again by itself."""
    with transaction.atomic():
        try:
            log = _lock(log_id, S.SENT, S.UNCONFIRMED)
        except Refused:
            return False
        reason = "the channel accepted it and then could not deliver it"
        _move([log], S.FAILED, reason=reason, error_code=code, error_text=detail[:500])
        _note(log, "FAILED_RECEIPT", detail)
        return True


def _lock_if_unconfirmed(log_id: int, attempt: int) -> DispatchLog | None:
    try:
        log = _lock(log_id, S.UNCONFIRMED)
    except Refused:
        return None
    return log if log.attempt == attempt else None


def _note(log: DispatchLog, outcome: str, detail: str = "") -> None:
    assert log.token is not None
    Attempt.objects.create(log=log, attempt=log.attempt, token=log.token, session_id=log.session_id, outcome=outcome, detail=detail[:500])

"""The retry job: what failed and is worth another try is queued again, a bounded batch at a time. It never sends.

What it queues takes its turn in its lane like everything else, so no retry can break the pacing. It starts from FAILED only: what is
UNCONFIRMED, or was decided by somebody, it never touches.
"""

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Min, Q

from campaigns.models import Campaign
from campaigns.transitions import Refused
from dispatch import jobs, transitions
from dispatch.alerts import alert
from dispatch.models import DispatchLog
from dispatch.outcomes import MOST_TRANSIENTS
from sessions_app.clock import database_now
from sessions_app.models import Session
from sessions_app.providers.base import ErrorCode

logger = logging.getLogger("paceline.retry")

BY_ITSELF = ErrorCode.TRANSIENT  # waits its time, and is then queued again unasked
ON_REQUEST = (ErrorCode.FATAL, ErrorCode.INVALID_RECIPIENT)  # only for somebody who names the code, say after a list was mended
REASON = "another try, by the retry job"
MOST_REASONS = 20
OTHER = "other"
LET_GO_AT_ONCE = 5000
MOST_FAILED = 20  # campaigns in one batch; with more of them it is not the campaigns that are wrong


@dataclass(frozen=True)
class Scope:
    """Which of the failed messages. `max_age` counts from a message's last try; `session_id` is the one its campaign sends through now."""

    campaign_id: int | None = None
    tenant: str = ""
    session_id: int | None = None
    error_code: str = ""
    max_age: timedelta | None = None

    @classmethod
    def from_settings(cls) -> "Scope":
        return cls(campaign_id=settings.CAMPAIGN_RETRY_CAMPAIGN_ID, tenant=settings.CAMPAIGN_RETRY_TENANT_ID)

    def require_possible(self) -> None:
        """Raises Refused with a sentence for whoever asked."""
        require_retryable(self.error_code)
        if self.campaign_id is not None and not Campaign.objects.filter(pk=self.campaign_id).exists():
            raise Refused(f"There is no campaign {self.campaign_id}: it was deleted, or the number is wrong.")
        if self.session_id is not None and not Session.objects.filter(pk=self.session_id).exists():
            raise Refused(f"There is no session {self.session_id}: it was deleted, or the number is wrong.")


def require_retryable(code: str) -> None:
    if code == ErrorCode.UNCONFIRMED:
        raise Refused("UNCONFIRMED is never queued again by the job: the message may have arrived. Decide about it in the admin.")
    if code and code not in {BY_ITSELF, *ON_REQUEST}:
        choices = ", ".join([BY_ITSELF, *ON_REQUEST])
        raise Refused(f"{code} is no error code that can be queued again. Choose one of {choices}, or none: then {BY_ITSELF} is meant.")


def candidates(scope: Scope, until: datetime, *, now: datetime) -> Any:
    """What may be queued again, in its order: what waited long enough by `until`, or all with a code that is only taken on request."""
    if scope.error_code in ON_REQUEST:
        failed = DispatchLog.objects.filter(status=DispatchLog.Status.FAILED, error_code=scope.error_code, attempt__lt=MOST_TRANSIENTS)
        failed = failed.filter(decided_by="")
        there = failed.filter(recipient__isnull=False, run__isnull=False)
        rows = there.exclude(campaign__status__in=[Campaign.Status.FAILED, Campaign.Status.DRAFT]).order_by("pk")
    else:
        rows = DispatchLog.objects.to_retry(until)
    wanted = {
        "campaign_id": scope.campaign_id,
        "campaign__tenant": scope.tenant or None,
        "campaign__session_id": scope.session_id,
        "claimed_at__gte": now - scope.max_age if scope.max_age is not None else None,
    }
    return rows.filter(**{name: value for name, value in wanted.items() if value is not None})


# -- a batch -------------------------------------------------------------------------------------------------------------------


@dataclass
class _Batch:
    """One run of the job, within its limits. What goes wrong in one campaign costs that campaign its turn and is told."""

    scope: Scope
    now: datetime
    most_rows: int
    most_campaigns: int
    queued: int = 0
    requeued: int = 0
    served: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)
    lock_lost: bool = False

    def run(self, turn: jobs.Turn) -> None:
        """In rounds: where a campaign failed, the next round takes what stands behind it, so that it holds up nobody else."""
        again = True
        while again and (chosen := self._choose()):
            failed_before = len(self.failed)
            for campaign_id, log_ids in chosen.items():
                self._serve(campaign_id, log_ids)
                turn.counts = self.counts()
                if not turn.extend():
                    self.lock_lost = True
                    logger.warning("the retry job's lock ran out; another run has it", extra={"queued": self.queued})
                    return
            again = len(self.failed) > failed_before

    def _choose(self) -> dict[int, list[int]]:
        """The next messages by campaign, the longest due first."""
        chosen: dict[int, list[int]] = {}
        if len(self.failed) >= MOST_FAILED:
            return chosen
        rows = self._due().exclude(campaign_id__in=self.failed).values_list("campaign_id", "pk")
        for campaign_id, log_id in rows[: self.most_rows - self.queued]:
            if campaign_id in chosen or len(self.served | chosen.keys() | {campaign_id}) <= self.most_campaigns:
                chosen.setdefault(campaign_id, []).append(log_id)
        return chosen

    def _due(self) -> Any:
        return candidates(self.scope, self.now, now=self.now)

    def _serve(self, campaign_id: int, log_ids: Collection[int]) -> None:
        try:
            with transaction.atomic():
                before = _standing(campaign_id)
                # anew, under the lock: somebody may have queued them meanwhile, and they may have failed again
                still = list(self._due().filter(pk__in=log_ids).values_list("pk", "error_text", "error_code"))
                queued = transitions.queue_again([pk for pk, _, _ in still], reason=REASON, now=self.now) if still else 0
                moved = _standing(campaign_id) != before
        except Exception as error:  # if it is the database that is away, the next statement of the batch says so
            self.failed.add(campaign_id)
            logger.warning("a campaign could not be queued again", extra={"campaign": campaign_id}, exc_info=not isinstance(error, Refused))
            _tell(campaign=campaign_id, error=str(error) if isinstance(error, Refused) else type(error).__name__)
            return
        if queued:
            self.served.add(campaign_id)
            self.queued += queued
            self.requeued += moved
            self.reasons.update(_reason(text, code) for _, text, code in still)

    def counts(self, left: int | None = None) -> dict[str, Any]:
        return {
            "queued": self.queued,
            "campaigns": len(self.served),
            "requeued_campaigns": self.requeued,
            "failed": len(self.failed),
            "left": left,
            "by_reason": _most_common(self.reasons.items(), self.reasons.total()),
            "lock_lost": self.lock_lost,
            "dry_run": False,
        }


def run_batch(
    scope: Scope,
    *,
    batch_size: int | None = None,
    max_campaigns: int | None = None,
    dry_run: bool = False,
    now: datetime | None = None,
) -> dict[str, Any]:
    """Returns the counts. `left` is what is due in the scope after it. Raises jobs.Busy while another run is on its way, and Refused.

    `dry_run` takes no lock, changes nothing, and says what is due: `left`, of so many `campaigns`, `by_reason`.
    """
    scope.require_possible()
    now = now or database_now()
    if dry_run:
        return _dry_run(scope, now)
    batch = _Batch(
        scope,
        now,
        most_rows=settings.CAMPAIGN_RETRY_BATCH_SIZE if batch_size is None else batch_size,
        most_campaigns=settings.CAMPAIGN_RETRY_MAX_CAMPAIGNS if max_campaigns is None else max_campaigns,
    )
    try:
        with jobs.running(jobs.RETRY, ttl=timedelta(seconds=settings.CAMPAIGN_RETRY_JOB_LOCK_TTL_SECONDS)) as turn:
            while _let_go(now) == LET_GO_AT_ONCE and turn.extend():
                pass
            batch.run(turn)
            turn.counts = batch.counts(left=candidates(scope, now, now=now).count())
    except jobs.Busy:
        raise
    except Exception as error:
        _tell(error=type(error).__name__)
        raise
    if batch.queued or batch.failed:
        logger.info("queued again", extra={name: value for name, value in turn.counts.items() if name != "by_reason"})
    return turn.counts


def _dry_run(scope: Scope, now: datetime) -> dict[str, Any]:
    due = candidates(scope, now, now=now)
    facts = due.order_by().aggregate(left=Count("pk"), campaigns=Count("campaign_id", distinct=True))
    none = {"queued": 0, "requeued_campaigns": 0, "failed": 0, "lock_lost": False, "dry_run": True}
    return none | facts | {"by_reason": _by_reason(due, facts["left"])}


def _standing(campaign_id: int) -> tuple[Any, ...] | None:
    return Campaign.objects.select_for_update(no_key=True).filter(pk=campaign_id).values_list("status", "due_at").first()


def _tell(**facts: Any) -> None:
    if settings.CAMPAIGN_RETRY_ALERT_ON_FAILURE:
        alert("retry job failed", **facts)


def _let_go(now: datetime) -> int:
    """A chunk of what is due and can never be queued again leaves the index that every batch reads. Returns how many.

    Or a large campaign that was stopped would slow down all of them from then on.
    """
    never = Q(campaign__status=Campaign.Status.FAILED) | Q(recipient__isnull=True) | Q(run__isnull=True)
    due = DispatchLog.objects.filter(never, status=DispatchLog.Status.FAILED, retry_at__lte=now).order_by("retry_at")
    with transaction.atomic():
        locked = due.select_for_update(no_key=True, skip_locked=True, of=("self",))
        return DispatchLog.objects.filter(pk__in=list(locked.values_list("pk", flat=True)[:LET_GO_AT_ONCE])).update(retry_at=None)


# -- what it says --------------------------------------------------------------------------------------------------------------


def state(scope: Scope | None = None, *, now: datetime | None = None) -> dict[str, Any]:
    """JSON-ready: the last run, whether one is on its way now, and what waits in the scope. Read-only; raises Refused for a wrong code."""
    scope = scope or Scope.from_settings()
    require_retryable(scope.error_code)
    pending, next_due_at = _pending(scope, now or database_now())
    return jobs.state(jobs.RETRY) | {"next_due_at": jobs.iso(next_due_at), "pending": pending}


def _pending(scope: Scope, now: datetime) -> tuple[dict[str, Any], datetime | None]:
    rows = candidates(scope, datetime.max.replace(tzinfo=UTC), now=now)
    waits = Q(retry_at__gt=now)
    facts = rows.order_by().aggregate(all=Count("pk"), waiting=Count("pk", filter=waits), next=Min("retry_at"))
    due = facts["all"] - facts["waiting"]
    pending = {"due": due, "waiting": facts["waiting"], "by_reason": _by_reason(rows, facts["all"])}
    return pending, facts["next"] or (now if due else None)


def _by_reason(rows: Any, total: int) -> dict[str, int]:
    """The most frequent ones by a grouped query: a vendor may word each failure differently."""
    groups = rows.order_by().values_list("error_text", "error_code").annotate(times=Count("pk")).order_by("-times")[: 10 * MOST_REASONS]
    found: Counter[str] = Counter()
    for text, code, times in groups:
        found[_reason(text, code)] += times
    return _most_common(found.items(), total)


def _reason(text: str, code: str) -> str:
    """What differs from message to message, above all a person's number, is left out."""
    return re.sub(r"\+?\d{5,}", "****", text) or code


def _most_common(reasons: Iterable[tuple[str, int]], total: int) -> dict[str, int]:
    most = dict(Counter(dict(reasons)).most_common(MOST_REASONS))
    rest = total - sum(most.values())
    return most | ({OTHER: most.get(OTHER, 0) + rest} if rest > 0 else {})

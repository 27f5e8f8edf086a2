"""What must never be false, looked at in the data as it is. Read-only; safe beside a running engine.

Each check says what it means when it is broken, and what to do. The same checks run at the end of the tests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, Window
from django.db.models.functions import Lag

from campaigns import recurrence
from campaigns.models import Campaign, CampaignStep
from dispatch.models import Attempt, DispatchLog, Heartbeat, Lane, Run
from dispatch.outcomes import ACCEPTED
from dispatch.recovery import lease
from dispatch.runs import EARLIER_ONES_TOO
from sessions_app.clock import database_now, spoken
from sessions_app.models import Session
from sessions_app.pacing import MIN_INTERVAL_FLOOR

EXAMPLES = 10
S = DispatchLog.Status
COUNTED = {"sent": S.SENT, "failed": S.FAILED, "unconfirmed": S.UNCONFIRMED, "skipped": S.SKIPPED}


@dataclass(frozen=True)
class Scope:
    """What is looked at. `since` leaves out runs that were completed before it: the ledger may have ten million rows."""

    now: datetime
    since: datetime | None
    lease: timedelta
    floor: timedelta
    patience: timedelta = timedelta(seconds=60)  # how long a due message may wait before somebody should have taken it

    def runs(self) -> QuerySet[Run]:
        runs = Run.objects.exclude(status=Run.Status.SKIPPED)
        return runs if self.since is None else runs.filter(Q(completed_at__isnull=True) | Q(completed_at__gte=self.since))

    def logs(self) -> QuerySet[DispatchLog]:
        return DispatchLog.objects.order_by() if self.since is None else DispatchLog.objects.filter(run__in=self.runs()).order_by()


@dataclass(frozen=True)
class Check:
    key: str
    holds: str  # the sentence that must be true
    means: str  # when it is not
    remedy: str
    find: Callable[[Scope], Iterator[str]]


@dataclass(frozen=True)
class Finding:
    check: Check
    examples: tuple[str, ...]  # of what breaks it, at most a handful; none: it holds

    @property
    def is_broken(self) -> bool:
        return bool(self.examples)

    def as_dict(self) -> dict[str, Any]:
        facts = {"check": self.check.key, "holds": self.check.holds, "broken": self.is_broken, "examples": list(self.examples)}
        return facts | ({"means": self.check.means, "remedy": self.check.remedy} if self.is_broken else {})


def examine(
    *,
    now: datetime | None = None,
    everything: bool = False,
    floor: timedelta = timedelta(seconds=MIN_INTERVAL_FLOOR),
    lease_time: timedelta | None = None,
) -> list[Finding]:
    """All checks, over what was sent in the last week or over everything."""
    moment = now or database_now()
    since = None if everything else moment - timedelta(days=7)
    scope = Scope(now=moment, since=since, lease=lease() if lease_time is None else lease_time, floor=floor)
    return [Finding(check, tuple(islice(check.find(scope), EXAMPLES))) for check in CHECKS]


def _accepted_twice(scope: Scope) -> Iterator[str]:
    """A clean first success lives on its row alone, so an acceptance of another attempt than the row's counts as a second one."""
    accepted = Attempt.objects.filter(outcome=ACCEPTED, log__in=scope.logs(), log__decided_by="")
    several = accepted.values("log").annotate(tries=Count("attempt", distinct=True)).filter(tries__gt=1).values("log")
    other = accepted.filter(log__status=S.SENT).exclude(attempt=F("log__attempt")).values("log")
    for log in DispatchLog.objects.filter(Q(pk__in=several) | Q(pk__in=other)).order_by("pk"):
        yield f"message {log.pk} of campaign {log.campaign_id}"


def _too_many_in_flight(scope: Scope) -> Iterator[str]:
    sending = dict(DispatchLog.objects.in_flight().order_by().values_list("session").annotate(Count("pk")))
    for lane in Lane.objects.select_related("session").order_by("pk"):
        found = sending.pop(lane.pk, 0)
        if found != lane.in_flight or found > lane.burst:
            yield f"session {lane.session}: {found} on their way, {lane.in_flight} on the lane, {lane.burst} allowed"
    for session_id, found in sending.items():
        yield f"session {session_id}: {found} on their way, and it has no lane"


def _sending_for_too_long(scope: Scope) -> Iterator[str]:
    limit = scope.now - scope.lease - scope.patience
    for log in DispatchLog.objects.in_flight().filter(claimed_at__lt=limit).order_by("pk"):
        assert log.claimed_at is not None
        yield f"message {log.pk} of campaign {log.campaign_id}, for {spoken(scope.now - log.claimed_at)}"


def _sums(scope: Scope) -> Iterator[str]:
    wanted = {name: Count("logs", filter=Q(logs__status=status)) for name, status in COUNTED.items()}
    for run in scope.runs().annotate(rows=Count("logs"), **{f"real_{name}": count for name, count in wanted.items()}).order_by("pk"):
        wrong = [f"{name} {getattr(run, name)}, really {getattr(run, f'real_{name}')}" for name in COUNTED if _differs(run, name)]
        if run.rows_complete and run.planned != run.rows:
            wrong.append(f"planned {run.planned}, really {run.rows}")
        if wrong:
            yield f"run {run.pk} of campaign {run.campaign_id}: {'; '.join(wrong)}"


def _differs(run: Run, name: str) -> bool:
    return getattr(run, name) != getattr(run, f"real_{name}")


def _completed_with_something_left(scope: Scope) -> Iterator[str]:
    left = DispatchLog.objects.filter(campaign=OuterRef("pk"), status__in=[S.PENDING, S.SENDING])
    for campaign in Campaign.objects.filter(Exists(left), status=Campaign.Status.COMPLETED).order_by("pk"):
        if not campaign.runs.live().exists():
            yield f"campaign {campaign.pk}"
    stranded = DispatchLog.objects.filter(run=OuterRef("pk"), status__in=[S.PENDING, S.SENDING])
    for run in scope.runs().exclude(status=Run.Status.RUNNING).filter(Exists(stranded)).order_by("pk"):
        yield f"run {run.pk} of campaign {run.campaign_id}"


def _fences(scope: Scope) -> Iterator[str]:
    tries = Attempt.objects.filter(log__in=scope.logs())
    for attempt in tries.filter(attempt__gt=F("log__attempt")).order_by("pk"):
        yield f"message {attempt.log_id}: attempt {attempt.attempt} came after the last one"
    earlier = Attempt.objects.filter(
        log=OuterRef("log"), attempt__lt=OuterRef("attempt"), token__gt=OuterRef("token"), session=OuterRef("session")
    )
    for attempt in tries.filter(Exists(earlier)).order_by("pk"):
        yield f"message {attempt.log_id}: attempt {attempt.attempt} has an older token than one before it"


def _waits_for_nobody_knows_what(scope: Scope) -> Iterator[str]:
    """Due for a minute, nothing in its way, and not taken."""
    limit = scope.now - scope.patience
    waiting = DispatchLog.objects.pending().filter(campaign=OuterRef("pk"), available_at__lt=limit)
    due = Q(session__lane__next_send_at__lt=limit, session__lane__owner__isnull=True, session__lane__trouble="")
    campaigns = Campaign.objects.running().filter(
        Exists(waiting), due | Q(session__lane__isnull=True), session__status=Session.Status.CONNECTED
    )
    nobody = not Heartbeat.objects.alive(scope.now).exists()
    for campaign in campaigns.select_related("session__lane").order_by("pk"):
        if not _is_held_back(campaign, scope.now):
            yield f"campaign {campaign.pk} on session {campaign.session}" + (": no scheduler is alive" if nobody else "")


def _is_held_back(campaign: Campaign, now: datetime) -> bool:
    session, lane = campaign.session, getattr(campaign.session, "lane", None)
    today = now.astimezone(ZoneInfo(session.time_zone)).date()
    if session.daily_limit is not None and lane is not None and lane.day == today and lane.day_count >= session.daily_limit:
        return True
    window = campaign.safe_window(now)
    return campaign.safe_hours == Campaign.SafeHours.BLOCK and window is not None and window.opens_at > now


def _missing_occurrences(scope: Scope) -> Iterator[str]:
    numbered = Run.objects.order_by().values("step", "campaign").annotate(first=Min("number"), last=Max("number"), made=Count("pk"))
    for row in numbered.filter(Q(first__gt=1) | ~Q(last=F("made"))).order_by("step"):
        yield f"step {row['step']} of campaign {row['campaign']}: {row['made']} runs, numbered {row['first']} to {row['last']}"
    for step in (
        CampaignStep.objects.exclude(recurrence_type="").filter(scheduled_at__isnull=False).select_related("campaign").order_by("pk")
    ):
        yield from _gaps_of(step)


def _gaps_of(step: CampaignStep) -> Iterator[str]:
    """Only while the step still has the time that its first run had: an edited one begins a series of its own."""
    runs = [(run.scheduled_for, run.reason) for run in step.runs.order_by("scheduled_for") if run.scheduled_for is not None]
    if not runs or runs[0][0] != step.scheduled_at:
        return
    for (before, _), (after, reason) in pairwise(runs):
        following = recurrence.next_occurrence(step.recurrence_type, anchor=step.scheduled_at, zone=step.zone, after=before)
        if following < after and not reason.endswith(EARLIER_ONES_TOO):
            yield f"step {step.pk} of campaign {step.campaign_id}: nothing says what became of {following:%Y-%m-%d %H:%M} UTC"


def _too_close(scope: Scope) -> Iterator[str]:
    """By the moments of the claims, just before each call; what was given back unsent is PENDING again and does not count."""
    human = Lane.objects.filter(rate__isnull=True).values("session")
    left = scope.logs().filter(session__in=human, claimed_at__isnull=False).exclude(status__in=[S.PENDING, S.SKIPPED])
    before = Window(Lag("claimed_at"), partition_by=F("session"), order_by=["claimed_at", "pk"])
    for log in left.annotate(before=before).filter(before__gt=F("claimed_at") - scope.floor).order_by("pk"):
        assert log.claimed_at is not None
        yield f"message {log.pk} on session {log.session_id}, {(log.claimed_at - log.before).total_seconds():.1f} s after another"


CHECKS = [
    Check(
        "accepted-once",
        "No message was accepted twice.",
        "The provider accepted two attempts of one message: that person probably got it twice.",
        "Look at the attempts of the message. If a process was frozen for minutes, that is the stated residual risk; else report it.",
        _accepted_twice,
    ),
    Check(
        "in-flight",
        "Each lane has as many messages on their way as it says, and no more than it may.",
        "The lane and the ledger disagree: the lane may stand still, or send more at once than it should.",
        "Stop the schedulers, run manage.py recover_stuck, start them again. If it comes back, report it.",
        _too_many_in_flight,
    ),
    Check(
        "sending-ends",
        "No message has been on its way for longer than a lease.",
        "A process died or hangs, and nobody recovered what it had.",
        "Start a scheduler (manage.py run_scheduler), or run manage.py recover_stuck.",
        _sending_for_too_long,
    ),
    Check(
        "sum-rule",
        "planned = pending + sending + sent + failed + unconfirmed + skipped, and every count is the count of its rows.",
        "The numbers on the pages are not those of the ledger, and a run may end too early or never.",
        "Rows were changed by hand, or it is a fault of ours: report it with the run's number.",
        _sums,
    ),
    Check(
        "completed-is-done",
        "Nothing that is completed has anything pending or on its way.",
        "Somebody would never get their message.",
        "Report it. The message can be sent by a new campaign.",
        _completed_with_something_left,
    ),
    Check(
        "fences",
        "Attempts are numbered upwards, and so are the tokens of their claims.",
        "A late answer could be taken for a newer one.",
        "A database was restored beside a running engine, or rows were changed by hand. Stop the schedulers before restoring.",
        _fences,
    ),
    Check(
        "taken-when-due",
        "Whatever is due and has nothing in its way is taken within a minute.",
        "Nothing goes out, and no page says why.",
        "Is a scheduler running? Its log says what it is doing. If one is alive and this stays, report it.",
        _waits_for_nobody_knows_what,
    ),
    Check(
        "every-occurrence",
        "Every occurrence of a repeating step is there: sent, or passed over with its reason.",
        "A repetition was lost without a word.",
        "Report it with the step's number. The next occurrences are not affected.",
        _missing_occurrences,
    ),
    Check(
        "floor",
        "Two messages of one human-paced number never leave closer together than the floor.",
        "The number is at risk.",
        "Pause its campaigns and report it with the messages' numbers.",
        _too_close,
    ),
]

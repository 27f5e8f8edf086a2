"""What there is to plan at a moment, each kind a queryset; and whether there is any of it at all, asked in one statement.

The scheduler works by the same querysets, so there is one truth. They are compiled once for the question: to build a dozen of them anew at
each pass took longer than to answer them.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet

from campaigns.models import Campaign
from dispatch import opening
from dispatch.models import DispatchLog, Lane, Run
from sessions_app.models import Session

MARK = datetime(2000, 1, 1, tzinfo=UTC)  # stands for the moment in what is compiled; a time before or after it keeps its distance
RECOVER, ASK = "lanes to recover", "messages to ask about"


def past_lease(now: datetime) -> QuerySet[Lane]:
    return Lane.objects.filter(owner__isnull=False, lease_expires_at__lt=now)


def in_trouble(now: datetime) -> QuerySet[Lane]:
    return Lane.objects.exclude(trouble="")


def unconnected(now: datetime) -> QuerySet[Campaign]:
    """Whoever found the session away (a send, a check, a receipt): what runs on it stops."""
    return Campaign.objects.running().exclude(session__status=Session.Status.CONNECTED).select_related("session")


def not_seen_yet(now: datetime) -> QuerySet[Campaign]:
    return Campaign.objects.due(now).filter(due_seen_at__isnull=True).select_related("session")


def in_turn(now: datetime) -> QuerySet[Campaign]:
    return Campaign.objects.due(now).on_free_sessions().filter(due_seen_at__isnull=False).select_related("session")


def without_run(now: datetime) -> QuerySet[Campaign]:
    return Campaign.objects.running().filter(~Exists(Run.objects.live().filter(campaign=OuterRef("pk"))))


def to_carry_on(now: datetime) -> QuerySet[Run]:
    """Without all their rows, or of a campaign that is not at work."""
    elsewhere = [Campaign.Status.FAILED, Campaign.Status.COMPLETED, Campaign.Status.SCHEDULED]
    return Run.objects.live().filter(Q(campaign__status__in=elsewhere) | Q(rows_complete=False)).select_related("campaign")


def without_person(now: datetime) -> QuerySet[DispatchLog]:
    return DispatchLog.objects.orphaned().filter(run__isnull=False).order_by("campaign_id")


def to_finish(now: datetime) -> QuerySet[Run]:
    return Run.objects.settled().exclude(campaign__status=Campaign.Status.FAILED).select_related("campaign")


def look(now: datetime, *, grace: timedelta) -> set[str]:
    """The kinds of which there is at least one. `grace`: of the policy by which messages in doubt are verified."""
    names, sql, parameters = _compiled(grace)
    with connection.cursor() as cursor:
        cursor.execute(sql, [now + (value - MARK) if isinstance(value, datetime) else value for value in parameters])
        found = cursor.fetchone()
    return {name for name, is_there in zip(names, found, strict=True) if is_there}


@cache
def _compiled(grace: timedelta) -> tuple[list[str], str, list[Any]]:
    kinds: dict[str, Callable[[datetime], QuerySet[Any]]] = {
        RECOVER: past_lease,
        "lanes in trouble": in_trouble,
        "campaigns on sessions that are away": unconnected,
        "campaigns that are due": not_seen_yet,
        "campaigns whose turn it is": in_turn,
        "campaigns without a run": without_run,
        "runs to carry on": to_carry_on,
        "messages without a person": without_person,
        "runs to finish": to_finish,
        "lanes to open": opening.to_open,
        "lanes to shut": opening.to_shut,
        "messages left to a default": lambda now: DispatchLog.objects.left_open(now - grace),
        ASK: DispatchLog.objects.to_verify,
    }
    statements = [_first(kind(MARK)).query.sql_with_params() for kind in kinds.values()]
    sql = "SELECT " + ", ".join(f"({one}) IS NOT NULL" for one, _ in statements)
    return list(kinds), sql, [value for _, values in statements for value in values]


def _first(rows: QuerySet[Any]) -> QuerySet[Any]:
    """In the order that it asks for, which names an index: with EXISTS the planner is free to read the whole ledger, and with old
    statistics it does. The order of the model is for people, and would read a whole table to find nothing.
    """
    return (rows if rows.query.order_by else rows.order_by()).values("pk")[:1]

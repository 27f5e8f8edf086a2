"""What the providers told us on their own: receipts, replies, the state of a session. Stored once, answered at once, applied afterwards."""

import math
from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from django.db import models, transaction
from django.db.models import Case, F, Q, Sum, When
from django.db.models.functions import Now

from sessions_app.models import Session
from sessions_app.providers.base import WebhookItem, event_id_of

REFUSED = "refused"  # a kind of ours: one row for each session and hour, and its tries say how many requests


def plain(value: Any) -> Any:
    """What a column takes, whatever a vendor sent: PostgreSQL has no NUL, no half of a surrogate pair and no infinity."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {plain(str(key)): plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case _:
            return str(value).replace("\0", "").encode("utf-8", "replace").decode()


class WebhookEventQuerySet(models.QuerySet["WebhookEvent"]):
    def failures_since(self, moment: datetime, *, at_most: int | None = None) -> int:
        """Events that could not be applied, and requests that were refused; of so many rows at most."""
        failed = self.filter(state=WebhookEvent.State.FAILED, received_at__gt=moment).order_by()[:at_most]
        each = Case(When(kind=REFUSED, then=F("tries")), default=1, output_field=models.IntegerField())
        return failed.aggregate(number=Sum(each))["number"] or 0

    def due(self, now: datetime) -> "WebhookEventQuerySet":
        """What waits to be applied, in the order it came."""
        return self.filter(state=WebhookEvent.State.RECEIVED, apply_at__lte=now).order_by("apply_at", "pk")

    def take(self, now: datetime, *, until: datetime, at_most: int) -> list["WebhookEvent"]:
        """The next ones that are due: ours until then. What was taken before comes alone: it may be what killed its process."""
        with transaction.atomic():
            due = self.due(now).select_related("session").select_for_update(skip_locked=True, no_key=True, of=("self",))
            rows = list(due[:at_most])
            rows = rows[:1] if rows and rows[0].tries else list(takewhile(lambda row: not row.tries, rows))
            self.filter(pk__in=[row.pk for row in rows]).update(apply_at=until, tries=F("tries") + 1)
        for row in rows:
            row.tries += 1
        return rows

    def give_back(self, rows: Sequence["WebhookEvent"], now: datetime) -> None:
        """As if they had not been taken."""
        if rows:
            self.filter(pk__in=[row.pk for row in rows], state=WebhookEvent.State.RECEIVED).update(apply_at=now, tries=F("tries") - 1)

    def settle(self, pks: Sequence[int], state: "WebhookEvent.State", error: str, *, apply_at: datetime) -> None:
        """What became of them; with RECEIVED they wait until then. Whatever somebody else ended meanwhile stays so."""
        applied_at = None if state == WebhookEvent.State.RECEIVED else Now()
        open_ones = self.filter(pk__in=pks, state=WebhookEvent.State.RECEIVED)
        open_ones.update(state=state, error=error[:500], apply_at=apply_at, applied_at=applied_at)

    def untouched(self, before: datetime) -> "WebhookEventQuerySet":
        """What nobody has taken yet, and came before then."""
        return self.filter(state=WebhookEvent.State.RECEIVED, tries=0, apply_at__lt=before)


class WebhookEvent(models.Model):
    class State(models.TextChoices):
        RECEIVED = "RECEIVED", "Received"  # waits to be applied
        APPLIED = "APPLIED", "Applied"
        IGNORED = "IGNORED", "Ignored"  # of a kind that means nothing to us
        FAILED = "FAILED", "Failed"  # could not be applied; `error` says why

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="webhook_events")
    event_id = models.CharField(max_length=200)  # the provider's own, or a hash of the item where it has none
    kind = models.CharField(max_length=60, blank=True, default="")  # as the provider calls it
    payload = models.JSONField(default=dict)  # one item, not the request: one bad item does not lose the others
    state = models.CharField(max_length=20, choices=State, default=State.RECEIVED)
    error = models.CharField(max_length=500, blank=True, default="")
    tries = models.PositiveSmallIntegerField(default=0)  # how often it was taken; of what was refused, how often it came
    received_at = models.DateTimeField(db_default=Now())
    apply_at = models.DateTimeField(db_default=Now())  # not before: a receipt may come before the answer that it is about
    applied_at = models.DateTimeField(null=True)

    objects = WebhookEventQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(fields=["session", "event_id"], name="one_webhook_event_per_id"),
            models.CheckConstraint(condition=Q(state__in=["RECEIVED", "APPLIED", "IGNORED", "FAILED"]), name="webhook_state_is_known"),
        ]
        indexes = [
            models.Index(fields=["apply_at", "id"], condition=Q(state="RECEIVED"), name="webhook_to_apply"),
            models.Index(fields=["received_at"], condition=Q(state="FAILED"), name="webhook_failed"),
            models.Index(fields=["received_at"], name="webhook_age"),
        ]

    def __str__(self) -> str:
        return f"{self.kind or 'event'} of {self.session}"

    @classmethod
    def of(cls, session: Session, item: WebhookItem, *, apply_at: datetime) -> "WebhookEvent":
        """Not saved. What cannot be kept is FAILED from the beginning, so that it costs nobody else's place."""
        event_id = plain(item.event_id)
        if not 0 < len(event_id) <= 200:
            event_id = event_id_of(event_id or item.payload)
        event = cls(session=session, event_id=event_id, kind=plain(item.kind)[:60], apply_at=apply_at)
        try:
            event.payload = plain(dict(item.payload))
        except (TypeError, ValueError, RecursionError) as error:
            event.state, event.error = cls.State.FAILED, f"could not be stored: {type(error).__name__}"
        return event

"""What providers tell on their own -> the ledger: receipts, replies, the state of a session.

Each stored event is applied in a transaction of its own, so that one bad item costs itself. Receipts come in any order, twice, and before
the answer of the call they are about: times are kept at their earliest, a later state implies the earlier ones, and what names a message
that the ledger does not know yet waits a while.
"""

import logging
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce, Least, Now

from campaigns.models import Campaign
from dispatch import transitions
from dispatch.alerts import alert
from dispatch.models import DispatchLog, InboundMessage, WebhookEvent
from dispatch.providers import Providers
from dispatch.settling import DATABASE_AWAY
from sessions_app import transitions as session_transitions
from sessions_app.clock import database_now
from sessions_app.models import Session
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Event,
    Inbound,
    Receipt,
    ReceiptState,
    StateReport,
    WebhookItem,
)

logger = logging.getLogger("paceline.delivery")

E = WebhookEvent.State
# How long an event waits for a message that is not known yet; after the last it is about none of ours (a person wrote it on the phone).
WAITS = tuple(timedelta(seconds=seconds) for seconds in (5, 30, 120, 600))
RESOLVING_TAKES_AT_MOST = timedelta(seconds=5)
EVENTS_AT_ONCE = 500
SILENT_AFTER = timedelta(seconds=120)
SILENT_IN_A_ROW = 5


@dataclass
class Applied:
    applied: int = 0
    ignored: int = 0
    failed: int = 0
    waiting: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class _NotKnownYet(Exception):
    pass


def store(session: Session, items: tuple[WebhookItem, ...]) -> int:
    """In one statement; what was stored before stays as it is. Returns how many items there were."""
    events = [
        WebhookEvent(session=session, event_id=item.event_id[:200], kind=item.kind[:60], payload=dict(item.payload)) for item in items
    ]
    WebhookEvent.objects.bulk_create(events, ignore_conflicts=True)
    return len(events)


def refused(session: Session, why: str, *, now: datetime | None = None) -> None:
    """One row for each session and hour, however many come: whoever knows the address must not be able to fill the table."""
    hour = (now or database_now()).strftime("refused %Y-%m-%dT%H")
    row = WebhookEvent(session=session, event_id=hour, kind="refused", state=E.FAILED)
    WebhookEvent.objects.bulk_create([row], ignore_conflicts=True)
    WebhookEvent.objects.filter(session=session, event_id=hour).update(tries=Least(F("tries") + 1, 32000), error=why[:500])


def apply_due(*, at_most: int = EVENTS_AT_ONCE, now: datetime | None = None) -> Applied:
    """Everything stored that waits, oldest first. Several may run at once: each event is taken by one."""
    done, providers = Applied(), Providers()
    moment = now or database_now()
    due = WebhookEvent.objects.filter(state=E.RECEIVED, apply_at__lte=moment).order_by("apply_at", "pk").values_list("pk", flat=True)
    for event_id in list(due[:at_most]):
        state = _apply(event_id, providers, moment)
        if state is not None:
            name = {E.APPLIED: "applied", E.IGNORED: "ignored", E.FAILED: "failed", E.RECEIVED: "waiting"}[state]
            setattr(done, name, getattr(done, name) + 1)
    return done


def _apply(event_id: int, providers: Providers, now: datetime) -> WebhookEvent.State | None:
    """None: somebody else has it."""
    row = WebhookEvent.objects.select_related("session").get(pk=event_id)
    provider = providers.of(row.session)
    try:
        events = _read(row, provider)
        with transaction.atomic():
            if not WebhookEvent.objects.select_for_update(skip_locked=True, no_key=True).filter(pk=event_id, state=E.RECEIVED).exists():
                return None
            for event in events:
                _apply_one(event, row)
            return _end(row, E.APPLIED if events else E.IGNORED)
    except _NotKnownYet:
        if row.tries < len(WAITS):
            return _end(row, E.RECEIVED, apply_at=now + WAITS[row.tries])
        return _end(row, E.IGNORED, error="names no message of ours")
    except DATABASE_AWAY:
        raise
    except Exception as error:
        logger.exception("a webhook event could not be applied", extra={"event": event_id, "session": row.session_id})
        return _end(row, E.FAILED, error=f"could not be applied: {type(error).__name__}")


def _end(row: WebhookEvent, state: WebhookEvent.State, **changes: Any) -> WebhookEvent.State:
    applied_at = None if state == E.RECEIVED else Now()
    WebhookEvent.objects.filter(pk=row.pk, state=E.RECEIVED).update(state=state, tries=F("tries") + 1, applied_at=applied_at, **changes)
    return state


def _read(row: WebhookEvent, provider: ChannelProvider | None) -> list[Event]:
    """What it means; senders are resolved here, outside of any transaction, because that asks the provider."""
    if provider is None:
        raise ValueError("the session's provider cannot be made")
    events = provider.read_event(WebhookItem(row.event_id, row.kind, row.payload))
    return [_resolved(event, provider) if isinstance(event, Inbound) and event.needs_resolving else event for event in events]


@dataclass(frozen=True)
class _Resolved(Inbound):
    sender_id: str = ""


def _resolved(event: Inbound, provider: ChannelProvider) -> Inbound:
    try:
        sender = provider.resolve_sender(event.sender, Deadline(RESOLVING_TAKES_AT_MOST))
    except Exception as error:
        logger.warning("a sender could not be resolved", extra={"error": type(error).__name__})
        sender = ""
    facts = {name: getattr(event, name) for name in ("at", "text", "message_id", "name", "message_type")}
    return _Resolved(sender=sender or event.sender, sender_id=event.sender if sender else "", **facts)


def _apply_one(event: Event, row: WebhookEvent) -> None:
    match event:
        case Receipt():
            _apply_receipt(event, row.session_id)
        case Inbound():
            _keep(event, row.session)
        case StateReport():
            _take_state(event, row)


# -- receipts ------------------------------------------------------------------------------------------------------------------


def _apply_receipt(receipt: Receipt, session_id: int) -> None:
    log = _messages_of(receipt, session_id).order_by("-pk").only("pk", "status", "attempt").first()
    if log is None:
        raise _NotKnownYet
    if receipt.state == ReceiptState.FAILED:
        if log.status == DispatchLog.Status.SENDING:
            raise _NotKnownYet  # its answer is on the way, and then this is about a message that was sent
        code = receipt.code or ErrorCode.FATAL
        transitions.failed_by_receipt(log.pk, code=str(code), detail=receipt.detail)
        return
    _note_times(log.pk, receipt)
    if log.status not in {DispatchLog.Status.SENT, DispatchLog.Status.SENDING}:
        transitions.confirmed_by_receipt(log.pk, message_id=receipt.message_id)


def _messages_of(receipt: Receipt, session_id: int) -> QuerySet[DispatchLog]:
    if receipt.client_ref is not None:
        return DispatchLog.objects.filter(client_ref=receipt.client_ref, attempt__gt=0)
    if not receipt.message_id:
        return DispatchLog.objects.none()
    return DispatchLog.objects.filter(session=session_id, provider_message_id=receipt.message_id)


def _note_times(log_id: int, receipt: Receipt) -> None:
    """A later state implies the earlier ones; the earliest time that was told for each is kept."""
    implied = {
        ReceiptState.ACCEPTED: ("acked_at",),
        ReceiptState.DELIVERED: ("acked_at", "delivered_at"),
        ReceiptState.READ: ("acked_at", "delivered_at", "read_at"),
    }[receipt.state]
    DispatchLog.objects.filter(pk=log_id).update(**{name: Least(Coalesce(name, receipt.at), receipt.at) for name in implied})


# -- replies and states --------------------------------------------------------------------------------------------------------


def _keep(event: Inbound, session: Session) -> None:
    last = DispatchLog.objects.filter(address=event.sender, session=session, attempt__gt=0).order_by("-pk").first()
    reply = InboundMessage(
        session=session,
        sender=event.sender[:320],
        sender_id=getattr(event, "sender_id", "")[:320],
        name=event.name.replace("\0", "")[:200],
        message_type=event.message_type[:20],
        text=event.text.replace("\0", ""),
        message_id=event.message_id[:200],
        sent_at=event.at,
        campaign_id=last.campaign_id if last else None,
        recipient_id=last.recipient_id if last else None,
    )
    InboundMessage.objects.bulk_create([reply], ignore_conflicts=True)


def _take_state(event: StateReport, row: WebhookEvent) -> None:
    """Unless the session was asked since: that answer is newer. What runs on it is paused by the scheduler, which says why."""
    session = Session.objects.get(pk=row.session_id)
    if session.checked_at is None or session.checked_at <= row.received_at:
        session_transitions.record_check(session.pk, event.check)


# -- silence -------------------------------------------------------------------------------------------------------------------


def find_silence(*, now: datetime | None = None) -> list[int]:
    """Sessions that send and hear nothing: the last messages were accepted a while ago, and the channel never told that it has one of them,
    although its webhooks work. Such a session is taken for disconnected, so that its campaign pauses. Returns the sessions.
    """
    moment, providers, silent = now or database_now(), Providers(), []
    for campaign in Campaign.objects.running().filter(session__lane__rate__isnull=True).select_related("session"):
        provider = providers.of(campaign.session)
        if provider is None or ReceiptState.ACCEPTED not in provider.receipts or not _webhooks_work(campaign.session_id, moment):
            continue
        if _is_silent(campaign, moment):
            silent.append(campaign.session_id)
            detail = f"The last {SILENT_IN_A_ROW} messages were accepted, and the channel confirmed none of them within two minutes."
            session_transitions.disconnect(campaign.session_id, detail)
            alert("session silent", session=campaign.session_id, detail=detail)
    return silent


def _webhooks_work(session_id: int, now: datetime) -> bool:
    """Something that was signed came within a day."""
    heard = WebhookEvent.objects.filter(session=session_id, received_at__gte=now - timedelta(days=1)).exclude(kind="refused")
    return heard.exists()


def _is_silent(campaign: Campaign, now: datetime) -> bool:
    """Since it was started or resumed: what was silent before a person looked after it does not count again."""
    sent = DispatchLog.objects.filter(campaign=campaign, status=DispatchLog.Status.SENT, session=campaign.session_id)
    since = sent.filter(sent_at__lte=now - SILENT_AFTER, sent_at__gte=campaign.updated_at)
    last = list(since.order_by("-pk").values_list("acked_at", flat=True)[:SILENT_IN_A_ROW])
    return len(last) == SILENT_IN_A_ROW and not any(last)

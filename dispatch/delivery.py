"""What providers tell on their own -> the ledger: receipts, replies, the state of a session.

Each stored event is taken by one process, applied by itself, and safe to apply again, so a bad one costs itself. Receipts come in any
order, twice, and before the answer of the call they are about: the earliest time of each state is kept, a later state implies the earlier
ones, and an event about what is not there yet waits. What a message ends as does not depend on their order: delivered or read makes it
SENT, else a failure makes it FAILED, else an acceptance makes it SENT.

No transaction here holds a message while it waits for another lock: the engine takes run, lane, message.
"""

import logging
import traceback
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple

from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce, Least

from campaigns.models import Campaign
from dispatch import transitions
from dispatch.alerts import alert
from dispatch.models import Attempt, DispatchLog, InboundMessage, KnownAddress, WebhookEvent
from dispatch.models.webhook import REFUSED, plain
from dispatch.providers import Providers, why_not
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
    SessionState,
    StateReport,
    WebhookItem,
)

logger = logging.getLogger("paceline.delivery")

E = WebhookEvent.State
S = DispatchLog.Status
# How long an event waits for what it needs; after the last it is about nothing of ours (a message that a person wrote on the phone).
WAITS = tuple(timedelta(seconds=seconds) for seconds in (5, 30, 120, 600))
LOOKS_AGAIN = 5  # at a message that changes while it is looked at
LEASE = timedelta(minutes=2)  # whoever took an event and died: it is taken again
RESOLVING_TAKES_AT_MOST = timedelta(seconds=5)
APPLYING_TAKES_AT_MOST = timedelta(seconds=50)
ROWS_AT_ONCE = 100
MAY_HAVE_ARRIVED = ("UNCONFIRMED", "LOST", "ACCEPTED")  # outcomes of an attempt
SILENT_AFTER = timedelta(seconds=120)
SILENT_IN_A_ROW = 5
LOOKED_AT_FOR_SILENCE = 50


# -- storing -------------------------------------------------------------------------------------------------------------------


def store(session: Session, items: tuple[WebhookItem, ...]) -> bool:
    """In one statement; what was stored before stays as it is. True when nothing waited before: then somebody has to apply it.

    They are applied in the order of the request, and inserted in one that all requests share, or two of them could wait for each other.
    """
    now = database_now()
    events = [WebhookEvent.of(session, item, apply_at=now + timedelta(microseconds=position)) for position, item in enumerate(items)]
    WebhookEvent.objects.bulk_create(sorted(events, key=lambda event: event.event_id), ignore_conflicts=True)
    # Asked after the commit: whoever applies those looks once more when they are done, and finds these.
    return not WebhookEvent.objects.untouched(now).exists()


def refused(session: Session, why: str, *, now: datetime | None = None) -> None:
    """One row for each session and hour, however many come: whoever knows the address must not be able to fill the table."""
    hour = (now or database_now()).strftime("refused %Y-%m-%dT%H")
    row = WebhookEvent(session=session, event_id=hour, kind=REFUSED, state=E.FAILED)
    WebhookEvent.objects.bulk_create([row], ignore_conflicts=True)
    WebhookEvent.objects.filter(session=session, event_id=hour).update(tries=Least(F("tries") + 1, 32000), error=plain(why)[:500])


# -- applying ------------------------------------------------------------------------------------------------------------------


@dataclass
class Applied:
    applied: int = 0
    ignored: int = 0
    failed: int = 0
    waiting: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class _Later(Exception):
    """What it needs is not there yet. `end` and `str()` are what it comes to when that stays so."""

    def __init__(self, end: WebhookEvent.State, why: str, *, suspicion: dict[str, Any] | None = None) -> None:
        super().__init__(why)
        self.end = end
        self.suspicion = suspicion  # facts of an alert


@dataclass
class _Senders:
    """Who is behind an id that hides it: asked once in a run, and no more of a session that did not answer."""

    known: dict[tuple[int, str], str] = field(default_factory=dict)
    unreachable: set[int] = field(default_factory=set)

    def behind(self, sender: str, session_id: int, provider: ChannelProvider) -> str | None:
        """None: it could not be asked."""
        if session_id not in self.unreachable and (session_id, sender) not in self.known:
            try:
                self.known[session_id, sender] = provider.resolve_sender(sender, Deadline(RESOLVING_TAKES_AT_MOST))
            except Exception as error:
                logger.warning("a sender could not be resolved", extra={"session": session_id, "error": type(error).__name__})
                self.unreachable.add(session_id)
        return self.known.get((session_id, sender))


class _Verdict(NamedTuple):
    state: WebhookEvent.State
    error: str = ""
    wait: timedelta = timedelta(0)  # with RECEIVED


def apply_due(*, now: datetime | None = None) -> Applied:
    """Everything stored that waits, oldest first, until nothing is left or the time is over. Several may run at once.

    What became of a batch is written at its end; when it is cut off before, it is applied once more, which changes nothing.
    """
    done, providers, senders, deadline = Applied(), Providers(), _Senders(), Deadline(APPLYING_TAKES_AT_MOST)
    while not deadline.passed:
        moment = now or database_now()
        rows = WebhookEvent.objects.take(moment, until=moment + LEASE, at_most=ROWS_AT_ONCE)
        if not rows:
            break
        verdicts = {row.pk: _apply(row, providers, senders) for row in rows if not deadline.passed}
        WebhookEvent.objects.give_back([row for row in rows if row.pk not in verdicts], moment)
        for verdict in set(verdicts.values()):
            mine = [pk for pk, one in verdicts.items() if one == verdict]
            WebhookEvent.objects.settle(mine, verdict.state, verdict.error, apply_at=moment + verdict.wait)
            name = {E.APPLIED: "applied", E.IGNORED: "ignored", E.FAILED: "failed", E.RECEIVED: "waiting"}[verdict.state]
            setattr(done, name, getattr(done, name) + len(mine))
    return done


def _apply(row: WebhookEvent, providers: Providers, senders: _Senders) -> _Verdict:
    if row.tries > len(WAITS) + 1:
        return _Verdict(E.FAILED, "whoever applied it was cut off, again and again")
    try:
        events = _read(row, providers, senders)
        for event in events:
            _apply_one(event, row)
        return _Verdict(E.APPLIED if events else E.IGNORED)
    except _Later as later:
        if later.suspicion is not None:
            alert("duplicate suspected", **later.suspicion)
        return _put_off(row, later.end, str(later))
    except (*DATABASE_AWAY, IntegrityError) as error:  # a deadlock, a person deleted at this moment
        if not connection.is_usable():
            raise
        logger.warning("a webhook event has to wait", extra={"event": row.pk, "session": row.session_id, "error": type(error).__name__})
        return _put_off(row, E.FAILED, f"could not be applied: {type(error).__name__}")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]  # its words and its lines may have the text of a message in them
        facts = {"event": row.pk, "session": row.session_id, "error": type(error).__name__, "at": f"{where.filename}:{where.lineno}"}
        logger.error("a webhook event could not be applied", extra=facts)
        return _Verdict(E.FAILED, f"could not be applied: {type(error).__name__}")


def _put_off(row: WebhookEvent, end: WebhookEvent.State, why: str) -> _Verdict:
    return _Verdict(end, why) if _is_last_try(row) else _Verdict(E.RECEIVED, wait=WAITS[row.tries - 1])


def _is_last_try(row: WebhookEvent) -> bool:
    return row.tries > len(WAITS)


@dataclass(frozen=True)
class _Resolved(Inbound):
    sender_id: str = ""


def _read(row: WebhookEvent, providers: Providers, senders: _Senders) -> list[Event]:
    """What it means. Senders are resolved here, outside of any transaction, because that asks the provider."""
    provider = providers.of(row.session)
    if provider is None:  # a key or a channel that is missing now may be back
        raise _Later(E.FAILED, why_not(row.session))
    events = provider.read_event(WebhookItem(row.event_id, row.kind, row.payload))
    return [_resolved(event, row, provider, senders) if isinstance(event, Inbound) else event for event in events]


def _resolved(event: Inbound, row: WebhookEvent, provider: ChannelProvider, senders: _Senders) -> Inbound:
    if not event.needs_resolving:
        return event
    sender = senders.behind(event.sender, row.session_id, provider)
    if sender is None and not _is_last_try(row):
        raise _Later(E.FAILED, "the channel could not be asked who the sender is")
    facts = {name: getattr(event, name) for name in ("at", "text", "message_id", "name", "message_type")}
    return _Resolved(sender=sender or event.sender, sender_id=event.sender if sender else "", **facts)


def _apply_one(event: Event, row: WebhookEvent) -> None:
    match event:
        case Receipt():
            _apply_receipt(event, row.session_id)
        case Inbound():
            _keep(event, row)
        case StateReport():
            _take_state(event, row)


# -- receipts ------------------------------------------------------------------------------------------------------------------


def _apply_receipt(receipt: Receipt, session_id: int) -> None:
    log = _message_of(receipt, session_id)
    if log is None:
        raise _Later(E.IGNORED, "names no message of ours")
    if receipt.state != ReceiptState.FAILED:
        _note_times(log.pk, receipt)  # committed before the status is looked at, so that whoever fails it meanwhile sees them
    for _ in range(LOOKS_AGAIN):
        log.refresh_from_db()
        if _fails(log, receipt) if receipt.state == ReceiptState.FAILED else _confirms(log, receipt):
            return
    raise _Later(E.FAILED, "its message changed again and again")


def _message_of(receipt: Receipt, session_id: int) -> DispatchLog | None:
    """Of those that this session sent: what one session is told says nothing about the messages of another."""
    earlier = Attempt.objects.filter(log=OuterRef("pk"), session=session_id)
    ours = DispatchLog.objects.filter(Q(session=session_id) | Exists(earlier), attempt__gt=0).order_by("-pk")
    log = ours.filter(client_ref=receipt.client_ref).first() if receipt.client_ref is not None else None
    if log is None and receipt.message_id:
        log = ours.filter(provider_message_id=receipt.message_id).first()
    return log


def _note_times(log_id: int, receipt: Receipt) -> None:
    """A later state implies the earlier ones; the earliest time that was told for each is kept."""
    implied = {
        ReceiptState.ACCEPTED: ("acked_at",),
        ReceiptState.DELIVERED: ("acked_at", "delivered_at"),
        ReceiptState.READ: ("acked_at", "delivered_at", "read_at"),
    }[receipt.state]
    DispatchLog.objects.filter(pk=log_id).update(**{name: Least(Coalesce(name, receipt.at), receipt.at) for name in implied})


def _confirms(log: DispatchLog, receipt: Receipt) -> bool:
    """False: it changed meanwhile, and has to be looked at again."""
    if log.status == S.SENT:
        return True
    if log.status == S.SENDING:
        raise _on_its_way(log, receipt)
    if receipt.state == ReceiptState.ACCEPTED and log.attempts.filter(attempt=log.attempt, outcome="FAILED_RECEIPT").exists():
        return True  # it was accepted, and refused after all
    return transitions.confirmed_by_receipt(log.pk, message_id=receipt.message_id)


def _fails(log: DispatchLog, receipt: Receipt) -> bool:
    """False: it changed meanwhile, or is to be looked at once more, since another process may have been told that it was delivered."""
    if log.status == S.SENDING:
        raise _on_its_way(log, receipt)
    if _is_about_an_earlier_try(receipt, log):
        return True
    has_failed = log.status == S.FAILED and log.attempts.filter(attempt=log.attempt, outcome="FAILED_RECEIPT").exists()
    if log.delivered_at is not None:
        return not has_failed or transitions.confirmed_by_receipt(log.pk, message_id=receipt.message_id)
    if not has_failed:
        if log.status != S.SENT:  # what fails so was accepted first
            transitions.confirmed_by_receipt(log.pk, message_id=receipt.message_id)
        transitions.failed_by_receipt(log.pk, code=str(receipt.code or ErrorCode.FATAL), detail=plain(receipt.detail))
    return has_failed


def _is_about_an_earlier_try(receipt: Receipt, log: DispatchLog) -> bool:
    if log.attempt == 1:
        return False
    is_another = bool(receipt.message_id and log.provider_message_id) and receipt.message_id != log.provider_message_id
    return is_another or (log.claimed_at is not None and receipt.at < log.claimed_at)


def _on_its_way(log: DispatchLog, receipt: Receipt) -> _Later:
    """Its own answer comes first. Where an earlier try may be what is told of, the person may get the message twice."""
    suspicion = None
    tried = log.attempts.filter(attempt__lt=log.attempt, outcome__in=MAY_HAVE_ARRIVED)
    if receipt.state != ReceiptState.FAILED and tried.exists():
        detail = f"message {log.pk} is being sent again, at attempt {log.attempt}, and the channel tells that it has it: it may come twice"
        suspicion = {"campaign": log.campaign_id, "log": log.pk, "session": log.session_id, "detail": detail}
    return _Later(E.FAILED, "its message was on its way for too long", suspicion=suspicion)


# -- replies and states --------------------------------------------------------------------------------------------------------


def _keep(event: Inbound, row: WebhookEvent) -> None:
    sender, sender_id = plain(event.sender)[:320], plain(getattr(event, "sender_id", ""))[:320]
    last = _last_message_to([sender, sender_id], row.session)
    reply = InboundMessage(
        session=row.session,
        sender=sender,
        sender_id=sender_id,
        name=plain(event.name)[:200],
        message_type=plain(event.message_type)[:20],
        text=plain(event.text),
        message_id=(plain(event.message_id) or row.event_id)[:200],  # so that it is kept once, whatever happens
        sent_at=event.at,
        campaign_id=last.campaign_id if last else None,
        recipient_id=last.recipient_id if last else None,
    )
    InboundMessage.objects.bulk_create([reply], ignore_conflicts=True)
    if last is not None and last.sent_at is not None and last.sent_at <= event.at:  # who answers has got it, also where no receipt came
        _note_times(last.pk, Receipt(ReceiptState.DELIVERED, event.at))


def _last_message_to(addresses: list[str], session: Session) -> DispatchLog | None:
    """Also under the number that was imported, where the channel reaches the person at another."""
    named = [address for address in addresses if address]
    imported = KnownAddress.objects.filter(channel=session.channel, reached_at__in=named).values_list("address", flat=True)[:20]
    sent = DispatchLog.objects.filter(address__in=[*named, *imported], session=session, attempt__gt=0)
    return sent.only("campaign_id", "recipient_id", "sent_at").order_by("-pk").first()


def _take_state(event: StateReport, row: WebhookEvent) -> None:
    """Unless something newer is known of the session. What runs on it is paused by the scheduler, which says why."""
    with transaction.atomic():
        session = Session.objects.select_for_update(no_key=True).get(pk=row.session_id)
        if session.checked_at is None or session.checked_at <= row.received_at:
            if not session_transitions.says_nothing_new(session, event.check, now=row.received_at, knows_restrictions=False):
                if event.check.state == SessionState.RESTRICTED:
                    session_transitions.restrict(session.pk, event.check.detail, now=row.received_at, until=event.check.until)
                else:
                    session_transitions.record_check(session.pk, event.check)
                if session.status == Session.Status.CONNECTED != event.check.state:
                    alert("session disconnected", session=session.pk, detail=event.check.detail or event.check.state.value.lower())
            Session.objects.filter(pk=session.pk).update(checked_at=row.received_at)  # not now: the next report may have come already


# -- silence -------------------------------------------------------------------------------------------------------------------


def find_silence(*, now: datetime | None = None) -> list[int]:
    """Sessions that send and hear nothing: the last messages were accepted a while ago, and the channel, which tells of others, did not
    tell that it has one of them. Such a session is taken for disconnected, so that its campaign pauses. Returns the sessions.
    """
    moment, providers, silent = now or database_now(), Providers(), []
    human = Campaign.objects.running().filter(session__lane__rate__isnull=True, session__status=Session.Status.CONNECTED)
    for campaign in human.select_related("session"):
        provider = providers.of(campaign.session)
        if provider is None or ReceiptState.ACCEPTED not in provider.receipts or not _is_silent(campaign, moment):
            continue
        if _tells_of_messages(campaign.session_id, provider, moment):
            silent.append(campaign.session_id)
            detail = f"The last {SILENT_IN_A_ROW} messages were accepted, and the channel confirmed none of them within two minutes."
            session_transitions.disconnect(campaign.session_id, detail)
            alert("session silent", session=campaign.session_id, detail=detail)
    return silent


def _is_silent(campaign: Campaign, now: datetime) -> bool:
    """Since it was started, resumed or edited: what was silent before a person looked after it does not count again.

    Only what the channel itself accepted (no reason): what a person or a look-up made SENT waits for no receipt.
    """
    sent = DispatchLog.objects.filter(campaign=campaign, status=S.SENT, session=campaign.session_id, reason="")
    newest = sent.order_by("-pk").values_list("sent_at", "acked_at")[:LOOKED_AT_FOR_SILENCE]
    since = sorted(((at, acked) for at, acked in newest if at and at >= campaign.updated_at), reverse=True, key=lambda row: row[0])
    unheard = [at for at, _ in takewhile(lambda row: row[1] is None, since)]
    return sum(at <= now - SILENT_AFTER for at in unheard) >= SILENT_IN_A_ROW


def _tells_of_messages(session_id: int, provider: ChannelProvider, now: datetime) -> bool:
    """Within a day there was a receipt among its events: webhooks that are set up for replies alone must stop nobody."""
    heard = WebhookEvent.objects.filter(session=session_id, state=E.APPLIED, received_at__gte=now - timedelta(days=1))
    for row in heard.order_by("kind", "-pk").distinct("kind"):
        if any(isinstance(event, Receipt) for event in provider.read_event(WebhookItem(row.event_id, row.kind, row.payload))):
            return True
    return False

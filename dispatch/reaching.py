"""Where a message for an address really goes, on channels that must be asked: once, at the pace of a message, and kept.

Only WhatsApp knows whether a Brazilian account has the ninth digit; a message to the other form is accepted and never arrives.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from dispatch.lanes import Claimed
from dispatch.models import DispatchLog, KnownAddress
from sessions_app.clock import database_now
from sessions_app.providers.base import ChannelProvider, ErrorCode, Reach, Resolution, SendResult

# A number changes hands, an account is made: nothing is believed for ever. What could not be said is asked again soon.
KEPT = {Reach.FOUND: timedelta(days=90), Reach.NOT_FOUND: timedelta(days=7), Reach.UNKNOWN: timedelta(hours=1)}


@dataclass(frozen=True)
class Known:
    reach: Reach
    address: str  # the one to send to; with UNKNOWN the one that was imported


def look_up(channel: str, address: str, *, now: datetime | None = None) -> Known | None:
    """None: the channel has to be asked."""
    row = KnownAddress.objects.filter(channel=channel, address=address).first()
    if row is None or (now or database_now()) - row.checked_at > KEPT[Reach(row.reach)]:
        return None
    return Known(Reach(row.reach), row.reached_at or address)


def where(provider: ChannelProvider, address: str) -> str:
    """The address that a message for it was sent to, as far as is known."""
    if not provider.needs_resolving(address):
        return address
    row = KnownAddress.objects.filter(channel=provider.key, address=address).first()
    return (row.reached_at if row else "") or address


def remember(channel: str, address: str, resolution: Resolution | None, *, now: datetime | None = None) -> None:
    """What the channel said. An answer that is about the session and not about the address says nothing that could be kept."""
    if resolution is None or resolution.code is not None:
        return
    facts = {"reach": resolution.reach.value, "reached_at": resolution.address[:320], "checked_at": now or database_now()}
    KnownAddress.objects.update_or_create(channel=channel, address=address, defaults=facts)


def result_of(resolution: Resolution | None) -> SendResult:
    """What the turn was spent on. The message itself comes with the next one; "could not be asked" is never "does not exist"."""
    if resolution is None:
        return SendResult.unsent("its time was up before a thread was free")
    if resolution.code == ErrorCode.RATE_LIMIT:
        return SendResult.refused(ErrorCode.RATE_LIMIT, resolution.detail, retry_after=resolution.retry_after)
    if resolution.code is not None:
        return SendResult.refused(resolution.code, resolution.detail)
    return SendResult.checked(f"number checked: {resolution.reach.value.lower().replace('_', ' ')}")


def refusal(channel: str, claimed: Claimed, known: Known) -> SendResult | None:
    """Why nothing is sent to it: nobody is there, or the same account got this message under another number of the list."""
    if known.reach == Reach.NOT_FOUND:
        return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "the channel knows nobody at this address")
    if known.reach == Reach.FOUND and _got_it_already(channel, claimed, known.address):
        return SendResult.refused(ErrorCode.INVALID_RECIPIENT, "the same account as another recipient of this campaign")
    return None


def _got_it_already(channel: str, claimed: Claimed, reached_at: str) -> bool:
    same = KnownAddress.objects.filter(channel=channel, reached_at=reached_at).exclude(address=claimed.address)
    others = [*same.values_list("address", flat=True)[:20], *([reached_at] if reached_at != claimed.address else [])]
    if not others:
        return False
    status = DispatchLog.Status
    taken = Q(status__in=[status.SENT, status.UNCONFIRMED]) | Q(status=status.SENDING, pk__lt=claimed.id)  # of two at once, the first
    return DispatchLog.objects.filter(taken, address__in=others, run=claimed.run_id).exclude(pk=claimed.id).exists()

"""What the pages say about a campaign: plain values and escaped markup, made from rows that were read already."""

from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from campaigns import preflight
from campaigns.models import Campaign
from campaigns.wall_clock import spoken_moment, zone_named
from sessions_app.admin import SHOWN_OF_A_REASON, badge
from sessions_app.clock import database_now
from sessions_app.credentials import CredentialsUnreadable
from sessions_app.forms import channel_class
from sessions_app.pacing import Metered
from sessions_app.providers.base import ReceiptState

S = Campaign.Status
STATUS_COLOURS = {S.DRAFT: "", S.SCHEDULED: "info", S.RUNNING: "success", S.PAUSED: "warning", S.COMPLETED: "primary", S.FAILED: "danger"}
# outcome -> what the ledger's filter calls it
OUTCOMES = {"sent": "SENT", "failed": "FAILED", "unconfirmed": "UNCONFIRMED", "skipped": "SKIPPED", "pending": "PENDING"}
COUNTED_UP_TO = 10_000  # of what has no counter
PACING_FIELDS = {"min_interval": "s", "max_interval": "s", "batch_size": "messages", "batch_pause": "s"}


def status_badge(campaign: Campaign, *, room: int | None = SHOWN_OF_A_REASON) -> str:
    reason = campaign.status_reason
    if is_outside_safe_hours(campaign):
        reason = f"sending outside the safe hours ({campaign.safe_from:%H:%M} to {campaign.safe_until:%H:%M}); {reason}"
    return badge(STATUS_COLOURS.get(S(campaign.status), ""), campaign.get_status_display(), reason, room=room)


def is_outside_safe_hours(campaign: Campaign) -> bool:
    """It runs, and its hours only warn."""
    if campaign.status != S.RUNNING or campaign.safe_hours != Campaign.SafeHours.WARN:
        return False
    window = campaign.safe_window(timezone.now())
    return window is not None and window.opens_at > timezone.now()


def totals(campaign: Any) -> dict[str, int]:
    """Of a campaign read by `with_totals()`. `pending` are those that wait or are on their way."""
    counts = {name: getattr(campaign, name, 0) for name in ("sent", "failed", "unconfirmed", "skipped")}
    planned = getattr(campaign, "planned", 0)
    return {**counts, "pending": max(0, planned - sum(counts.values())), "planned": planned}


def percent_done(counts: dict[str, int]) -> int:
    planned = counts["planned"]
    return (planned - counts["pending"]) * 100 // planned if planned else 0


def progress_bar(counts: dict[str, int]) -> str:
    """A bar, and the four numbers under it."""
    if not counts["planned"]:
        return "-"
    percent = percent_done(counts)
    return format_html(
        '<div class="min-w-40"><div class="bg-base-100 flex flex-row overflow-hidden rounded-default dark:bg-base-800" role="progressbar" '
        'aria-valuenow="{}" aria-valuemin="0" aria-valuemax="100">'
        '<div class="h-1.5 bg-primary-600 dark:bg-primary-500" style="width: {}%"></div>'
        '</div><div class="mt-1 text-xs whitespace-nowrap">{} of {}, {}%</div></div>',
        percent,
        percent,
        counts["planned"] - counts["pending"],
        counts["planned"],
        percent,
    )


def next_send(campaign: Campaign) -> str:
    """In the campaign's time zone. The lane is dispatch's side of the relation, read with the session."""
    zone = zone_named(campaign.time_zone)
    if campaign.status == S.SCHEDULED and campaign.due_at:
        return spoken_moment(campaign.due_at, zone)
    lane = getattr(campaign.session, "lane", None)
    if campaign.status != S.RUNNING or lane is None or lane.campaign_id != campaign.pk or not lane.is_open:
        return "-"
    return "now" if lane.next_send_at <= timezone.now() else f"{lane.next_send_at.astimezone(zone):%H:%M:%S} ({zone.key})"


def metered(campaign: Campaign) -> Metered | None:
    provider = channel_class(campaign.session.channel)
    if provider is None:
        return None
    try:
        return campaign.session.make_provider().metered
    except (CredentialsUnreadable, ValueError, KeyError, TypeError):  # the channel cannot be set up yet: what it publishes
        return provider.pacing


def pacing_lines(campaign: Campaign) -> list[str]:
    """The values that will really be used, and why they are not those that were typed."""
    if rate := metered(campaign):
        return [f"This channel is metered: up to {rate.rate:g} messages/s, {rate.burst} at once. The values below are not used on it."]
    in_force = campaign.pacing
    lines = []
    for name, unit in PACING_FIELDS.items():
        typed, used = getattr(campaign, name), getattr(in_force, name)
        label = str(Campaign._meta.get_field(name).verbose_name).removesuffix(" (s)").capitalize()  # type: ignore[union-attr]
        change = "" if typed == used else f": {typed} is {'raised' if used > typed else 'cut'} to {used}"
        lines.append(f"{label} {used} {unit}{change}")
    return lines


def findings(campaign: Campaign) -> list[dict[str, str]]:
    """What the pre-flight found, with a colour for its level."""
    colours = {"error": "danger", "warning": "warning"}
    return [
        {"level": str(found.level), "colour": colours.get(str(found.level).lower(), "info"), "text": found.text}
        for found in preflight.examine(campaign, now=database_now())
    ]


def log_links(campaign: Campaign, counts: dict[str, int]) -> list[dict[str, Any]]:
    base = reverse("admin:dispatch_dispatchlog_changelist")
    return [
        {"label": name, "count": counts[name], "url": f"{base}?campaign__id__exact={campaign.pk}&status__exact={status}"}
        for name, status in OUTCOMES.items()
    ]


def heard_links(campaign: Campaign) -> list[dict[str, Any]]:
    """What the channel and the people told back, as far as this channel tells anything. Read through dispatch's side of the relations."""
    provider = channel_class(campaign.session.channel)
    messages, replies = reverse("admin:dispatch_dispatchlog_changelist"), reverse("admin:dispatch_inboundmessage_changelist")
    found = []
    for state in ReceiptState.DELIVERED, ReceiptState.READ:
        if provider is not None and state in provider.receipts:
            name = state.lower()
            rows = campaign.logs.filter(**{f"{name}_at__isnull": False})
            found.append({"label": name, "count": _capped(rows), "url": f"{messages}?campaign__id__exact={campaign.pk}&heard={name}"})
    if provider is not None and provider.takes_replies:
        url = f"{replies}?campaign__id__exact={campaign.pk}"
        found.append({"label": "replies", "count": _capped(campaign.inbound.all()), "url": url})
    return found


def _capped(rows: QuerySet[Any]) -> str:
    """Costs the same however many there are."""
    count = rows.order_by()[: COUNTED_UP_TO + 1].count()
    return f"{COUNTED_UP_TO}+" if count > COUNTED_UP_TO else str(count)

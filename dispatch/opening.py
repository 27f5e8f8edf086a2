"""Which lanes are open, and with which settings: taken from campaign and session when either was edited, or a window of hours ends."""

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Greatest

from campaigns.models import Campaign
from dispatch.models import DispatchLog, Lane
from dispatch.providers import Providers, why_not
from dispatch.settling import Pacing
from sessions_app.providers.base import ChannelProvider

logger = logging.getLogger("paceline.scheduler")


def to_open(now: datetime) -> QuerySet[Campaign]:
    """RUNNING campaigns whose lane is missing, shut though something waits, another's, set up from older values, or past its hours."""
    waiting = DispatchLog.objects.pending().filter(campaign=OuterRef("pk"), available_at__lte=now)
    edited_at = Greatest("updated_at", "session__updated_at")
    stale = (
        Q(session__lane__isnull=True)
        | Q(session__lane__campaign__isnull=True)
        | ~Q(session__lane__campaign=F("pk"))
        | Q(session__lane__open_until__lte=now)
        | Q(session__lane__configured_from__isnull=True)
        | ~Q(session__lane__configured_from=edited_at)
        | Q(session__lane__is_open=False)
    )
    return Campaign.objects.running().filter(stale, Exists(waiting)).select_related("session")


def to_shut(now: datetime) -> QuerySet[Lane]:
    """Lanes of campaigns that are not RUNNING there need not be looked at. The claim would refuse them anyway."""
    at_work = Campaign.objects.running().filter(pk=OuterRef("campaign"), session=OuterRef("session"))
    return Lane.objects.filter(~Exists(at_work), is_open=True)


def open_lane(campaign: Campaign, providers: Providers, human: Pacing, now: datetime) -> str:
    """Open the lane of a RUNNING campaign. Returns why it cannot be opened, or "".

    One in trouble stays shut until its campaign is paused.
    """
    provider = providers.of(campaign.session)
    if provider is None:
        return why_not(campaign.session)
    with transaction.atomic():
        Lane.objects.get_or_create(session=campaign.session, defaults={"next_send_at": now})
        lane = Lane.objects.select_for_update(no_key=True).get(session=campaign.session)
        if lane.trouble:
            return ""
        _configure(lane, campaign, provider, human, now)
        lane.save()
    return ""


def _configure(lane: Lane, campaign: Campaign, provider: ChannelProvider, human: Pacing, now: datetime) -> None:
    if lane.campaign_id != campaign.pk:
        lane.campaign, lane.epoch = campaign, -1  # no epoch of the new one: it warms up, and starts with a clean streak
    metered = provider.metered
    lane.rate = metered.rate if metered else None
    lane.burst = max(metered.burst if metered else 1, lane.in_flight)
    lane.longest_wait = timedelta(0) if metered else human(campaign).longest_wait
    lane.origin = provider.origin
    lane.configured_from = max(campaign.updated_at, campaign.session.updated_at)
    lane.is_open = True
    _keep_hours(lane, campaign, now)


def _keep_hours(lane: Lane, campaign: Campaign, now: datetime) -> None:
    """BLOCK waits for the window. WARN sends all the same, and says so each time that a window has ended."""
    window = campaign.safe_window(now)
    if window is None:
        lane.open_until = None
    elif campaign.safe_hours == Campaign.SafeHours.BLOCK:
        lane.open_until = window.closes_at
        lane.next_send_at = max(lane.next_send_at, window.opens_at)
    elif window.opens_at > now:
        lane.open_until = window.opens_at  # to look again then
        logger.warning("sending outside the safe hours", extra={"campaign": campaign.pk, "until": window.opens_at.isoformat()})
    else:
        lane.open_until = window.closes_at

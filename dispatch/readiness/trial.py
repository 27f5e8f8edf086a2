"""A message of one's own, the whole way: made, scheduled, sent by a scheduler, and waited for."""

import getpass
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep, Recipient
from campaigns.transitions import Refused
from dispatch.health import Status as HealthStatus
from dispatch.models import DispatchLog, Lane
from dispatch.readiness.findings import Verdict, error, ok
from dispatch.readiness.processes import START, component
from dispatch.settling import DATABASE_AWAY
from dispatch.stopping import StopFlag
from sessions_app.addresses import InvalidAddress, canonical, mask
from sessions_app.checking import check_session
from sessions_app.clock import database_now, spoken
from sessions_app.models import Session
from sessions_app.providers.registry import UnknownChannel

DUE_IN = timedelta(minutes=1)
PATIENCE = timedelta(minutes=5)
TIME = "%Y-%m-%d %H:%M:%S %Z"
Status = DispatchLog.Status
FINAL = {Status.SENT, Status.FAILED, Status.UNCONFIRMED, Status.SKIPPED}
OVER = {Campaign.Status.PAUSED, Campaign.Status.FAILED, Campaign.Status.COMPLETED}

Say = Callable[[str], object]


class NotPossible(Exception):
    """Nothing was made. The verdict says why."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.verdict = error(sentence, remedy)


def send_test(
    address: str,
    *,
    session: str,
    stop: StopFlag,
    say: Say,
    due_in: timedelta = DUE_IN,
    patience: timedelta = PATIENCE,
    look_every: timedelta = timedelta(seconds=1),
) -> Iterator[Verdict]:
    """A real message to this address, on this session (a name or a number; "" for the only connected one). Ends with one verdict.

    Whatever did not leave within `patience`, or before `stop` was asked for, does not leave later: its campaign is stopped.
    """
    try:
        campaign = _schedule(address, _session(session), due_in)
    except NotPossible as refusal:
        yield refusal.verdict
        return
    say(f'"{campaign}" to {mask(campaign.recipients.get().address)} on session {campaign.session}.')
    _wait(campaign, stop, say, time.monotonic() + patience.total_seconds(), look_every)
    yield _outcome(campaign, stop, patience)


def _session(wanted: str) -> Session:
    if wanted:
        found = Session.objects.filter(name=wanted).first()
        if found is None and wanted.isascii() and wanted.isdigit():
            found = Session.objects.filter(pk=int(wanted)).first()
        if found is None:
            raise NotPossible(f'There is no session "{wanted}".', "Its name is in the admin, under Sessions.")
        return found
    connected = list(Session.objects.filter(status=Session.Status.CONNECTED).order_by("name")[:4])
    if not connected:
        raise NotPossible("No session is connected.", "Connect one in the admin, under Sessions, and choose Check connection.")
    if len(connected) > 1:
        raise NotPossible(f"Several sessions are connected: {', '.join(map(str, connected[:3]))}.", "Choose one with --session NAME.")
    return connected[0]


def _schedule(address: str, session: Session, due_in: timedelta) -> Campaign:
    value = _canonical(address, session)
    scheduler = component("scheduler")
    if scheduler is None or scheduler.status is not HealthStatus.OK:
        raise NotPossible("No scheduler is alive, so nothing would send it.", START[settings.ENGINE_DRIVER])
    check = check_session(session)  # the network: outside the transaction
    if session.status != Session.Status.CONNECTED:
        raise NotPossible(f"Session {session} is not connected: {check.detail or check.state.value}", "Mend it in the admin first.")
    now = database_now()
    moment = f"{timezone.localtime(now):{TIME}}"
    try:
        with transaction.atomic():
            campaign = Campaign.objects.create(
                name=f"Test message of {moment}", session=session, safe_hours=Campaign.SafeHours.OFF, scheduled_at=now + due_in
            )
            CampaignStep.objects.create(campaign=campaign, text=f"Test message from Paceline, {moment}")
            Recipient.objects.create(campaign=campaign, address=value, address_as_imported=address)
            return transitions.schedule(campaign.pk, by=_me(), now=now)
    except Refused as refusal:
        raise NotPossible(str(refusal), "Mend that, or choose another session with --session NAME.") from None


def _canonical(address: str, session: Session) -> str:
    """As the import does it."""
    try:
        found = canonical(session.provider_class.address_kind, address, region=settings.DEFAULT_REGION)
    except (InvalidAddress, UnknownChannel) as refusal:
        raise NotPossible(str(refusal), "Give the address as in a list that is imported, such as +5511955550101.") from None
    if found.is_group:
        raise NotPossible("This is a group or a channel: many people would read the test.", "Give one person's address.")
    return found.value


def _me() -> str:
    return f"{getpass.getuser()} (ops_readiness)"


def _wait(campaign: Campaign, stop: StopFlag, say: Say, give_up_at: float, look_every: timedelta) -> None:
    said = ""
    while not stop.requested and time.monotonic() < give_up_at:
        try:
            waits = _waits_for(campaign)
        except DATABASE_AWAY:
            connection.close()
            waits = "The database is away; waits for it."
        if not waits:
            return
        if waits != said:
            say(waits)
            said = waits
        stop.sleep(look_every.total_seconds())


def _log(campaign: Campaign) -> DispatchLog | None:
    return DispatchLog.objects.filter(campaign=campaign).first()


def _waits_for(campaign: Campaign) -> str:
    """ "" when there is nothing more to wait for."""
    log = _log(campaign)
    campaign.refresh_from_db()
    if (log is not None and log.status in FINAL) or campaign.status in OVER:
        return ""
    if campaign.status == Campaign.Status.SCHEDULED:
        if campaign.due_seen_at:
            return f"Due; {campaign.status_reason}."
        return f"Waits for its time, {_time(campaign.scheduled_at)}."
    if log is not None and log.status == Status.SENDING:
        return "On its way; waits for the answer of the channel."
    lane = Lane.objects.filter(session=campaign.session_id, next_send_at__gt=database_now()).first()
    return "Started; waits for the scheduler." if lane is None else f"Started; the session's pace lets it go at {_time(lane.next_send_at)}."


def _time(moment: datetime | None) -> str:
    return f"{timezone.localtime(moment):%H:%M:%S}"


def _outcome(campaign: Campaign, stop: StopFlag, patience: timedelta) -> Verdict:
    campaign.refresh_from_db()
    log = _log(campaign)
    if (log is None or log.status not in FINAL) and campaign.status != Campaign.Status.COMPLETED:
        late = f"It was not sent within {spoken(patience)}"
        why = "It was interrupted" if stop.requested else "It did not go out" if campaign.status in OVER else late
        reason = f" ({campaign.status_reason})" if campaign.status_reason else ""
        return error(f"{why}{reason}. {_give_up(campaign)}", "The admin shows the campaign; the scheduler's log says what it did.")
    assert log is not None
    match log.status:
        case Status.SENT:
            assert log.sent_at and campaign.scheduled_at
            return ok(f"The test message was sent, {spoken(log.sent_at - campaign.scheduled_at)} after its time.")
        case Status.UNCONFIRMED:
            return error(
                "Nobody knows whether the test message arrived.", "Look at the phone; then decide it in the admin, under Messages."
            )
        case Status.SKIPPED:
            return error(f"The test message was taken out: {log.reason}", "Somebody stopped it; send another.")
    return error(f"The test message was refused: {log.error_code}: {log.error_text}", "The admin shows it, under Messages.")


def _give_up(campaign: Campaign) -> str:
    try:
        transitions.stop(campaign.pk, by=_me())
    except Refused as refusal:
        return str(refusal)
    log = _log(campaign)
    if log is not None and log.status in {Status.SENDING, *FINAL}:
        return "It was on its way already: the admin will say what became of it."
    return "Its campaign was stopped: it will not be sent."

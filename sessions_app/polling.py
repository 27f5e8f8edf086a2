"""Whether sessions are still connected, asked now and then without anybody pressing a button.

The network in a few threads, the database in the caller's. What an answer took too long for is left: whoever wrote meanwhile knows better.
"""

from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, Q, QuerySet

from sessions_app import transitions
from sessions_app.checking import ask
from sessions_app.clock import database_now
from sessions_app.credentials import CredentialsUnreadable
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider, SessionCheck, SessionState
from sessions_app.providers.registry import UnknownChannel, provider_class

STALE_AFTER = timedelta(minutes=4)  # shorter than the schedule of five, so that each turn finds the sessions of the one before
SESSIONS_AT_MOST = 50
ASKED_AT_ONCE = 8  # each call may take ten seconds: a turn in which nobody answers takes 140

S = Session.Status
MAY_CHANGE_BY_ITSELF = [S.CONNECTED, S.CONNECTING, S.NEEDS_PAIRING, S.RESTRICTED]


def due(now: datetime) -> QuerySet[Session]:
    """Sessions that something waits for, or that were alive, and were not asked lately; the longest unasked first.

    One that is disconnected and that no campaign waits for is left alone until a person asks. So are those of channels that have nothing to
    ask: their answer is always "connected", and would wipe out what the engine learned from a refused key.
    """
    mute = [key for key in settings.CHANNELS if provider_class(key).check_session is ChannelProvider.check_session]
    C = Session.campaigns.rel.related_model.Status  # type: ignore[attr-defined]
    awaited = Session.campaigns.rel.related_model.objects.filter(status__in=[C.RUNNING, C.SCHEDULED, C.PAUSED])  # type: ignore[attr-defined]
    wanted = Q(pk__in=awaited.values("session")) | Q(status__in=MAY_CHANGE_BY_ITSELF)
    stale = Q(checked_at__isnull=True) | Q(checked_at__lt=now - STALE_AFTER)
    return Session.objects.filter(wanted, stale).exclude(channel__in=mute).order_by(F("checked_at").asc(nulls_first=True), "pk")


def poll(*, now: datetime | None = None) -> dict[str, Any]:
    """One turn. Returns how many were asked, how many now stand in each state, and what changed: {"session", "was", "now"}."""
    now = now or database_now()
    sessions = list(due(now)[:SESSIONS_AT_MOST])
    counts: dict[str, Any] = {"asked": len(sessions), "overtaken": 0, "states": {}, "changed": []}
    with ThreadPoolExecutor(max_workers=ASKED_AT_ONCE, thread_name_prefix="poll") as pool:
        asked = {pool.submit(_answer, _provider(session)): session for session in sessions}
        for future in as_completed(asked):
            _write_down(asked[future], future.result(), counts, now)
    return counts


def _provider(session: Session) -> ChannelProvider | str:
    """Or why there is none. What is stored may be wrong in ways that only its channel's code finds out."""
    try:
        return session.make_provider()
    except (CredentialsUnreadable, UnknownChannel) as error:
        return str(error)
    except Exception as error:
        return f"The channel cannot be used as this session is stored: {type(error).__name__}. Open the session and save its fields."


def _answer(provider: ChannelProvider | str) -> SessionCheck:
    """Asked once more before it is believed that something is wrong: a campaign would pause for one answer that was lost."""
    if isinstance(provider, str):
        return SessionCheck(SessionState.DISCONNECTED, provider)
    check = ask(provider)
    return check if check.state == SessionState.CONNECTED else ask(provider)


def _write_down(session: Session, check: SessionCheck, counts: dict[str, Any], now: datetime) -> None:
    stands = Session.objects.filter(pk=session.pk, checked_at=session.checked_at, updated_at=session.updated_at)
    if not stands.exists():  # the engine, a person or another turn wrote meanwhile, or the session was edited or deleted
        counts["overtaken"] += 1
        return
    state = str(check.state)
    if transitions.says_nothing_new(session, check, now=now):
        state = session.status
        transitions.note_checked(session.pk)
    else:
        transitions.record_check(session.pk, check)
    counts["states"][state] = counts["states"].get(state, 0) + 1
    if state != session.status:
        counts["changed"].append({"session": session.name, "was": session.status, "now": state})

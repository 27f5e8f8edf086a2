"""Every way a session changes status. Nothing else writes Session.status."""

from datetime import datetime, timedelta

from django.db.models.functions import Now

from sessions_app.models import Session
from sessions_app.providers.base import SessionCheck, SessionState

RESTRICTED_FOR = timedelta(hours=24)  # when a send was refused for it, and nobody said for how long


def _set(session_id: int, status: Session.Status, detail: str, *, until: datetime | None = None) -> None:
    # update(): one statement, so a status never overwrites what a form is saving; updated_at stays, because nothing was edited
    detail = detail[:500]
    Session.objects.filter(pk=session_id).update(status=status, status_detail=detail, checked_at=Now(), restricted_until=until)


def connect(session_id: int, detail: str = "") -> None:
    _set(session_id, Session.Status.CONNECTED, detail)


def disconnect(session_id: int, detail: str) -> None:
    _set(session_id, Session.Status.DISCONNECTED, detail)


def restrict(session_id: int, detail: str, *, now: datetime, until: datetime | None = None) -> None:
    """Until that moment, or for a day. Gateways go on saying that such an account works, so only a person ends it sooner, by asking."""
    _set(session_id, Session.Status.RESTRICTED, detail, until=until or now + RESTRICTED_FOR)


def note_checked(session_id: int) -> None:
    """It was asked, and what it said changes nothing."""
    Session.objects.filter(pk=session_id).update(checked_at=Now())


def is_held_back(session: Session, check: SessionCheck, *, now: datetime) -> bool:
    """Restricted for some time yet, whatever the gateway says of the connection, which it makes anew without a word of the account."""
    restricted = session.status == Session.Status.RESTRICTED and session.restricted_until is not None and session.restricted_until > now
    return restricted and check.state in {SessionState.CONNECTED, SessionState.CONNECTING}


def says_nothing_new(session: Session, check: SessionCheck, *, now: datetime, knows_restrictions: bool = True) -> bool:
    """What an answer that nobody asked for must not overwrite.

    Gateways lose their socket and start again within seconds, which is no reason to pause a campaign: if it lasts, the next message finds
    out. A report that an account works says nothing of a restriction; whoever asks about it is told.
    """
    if session.status == Session.Status.CONNECTED and check.state == SessionState.CONNECTING:
        return True
    works = session.status == Session.Status.RESTRICTED and check.state == SessionState.CONNECTED
    return (works and not knows_restrictions) or is_held_back(session, check, now=now)


def record_check(session_id: int, check: SessionCheck) -> None:
    """Take over what the provider said about the session."""
    _set(session_id, Session.Status(check.state.value), check.detail)

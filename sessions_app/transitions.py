"""Every way a session changes status. Nothing else writes Session.status."""

from django.db.models.functions import Now

from sessions_app.models import Session
from sessions_app.providers.base import SessionCheck, SessionState


def _set(session_id: int, status: Session.Status, detail: str) -> None:
    # update(): one statement, so a status never overwrites what a form is saving; updated_at stays, because nothing was edited
    Session.objects.filter(pk=session_id).update(status=status, status_detail=detail[:500], checked_at=Now())


def connect(session_id: int, detail: str = "") -> None:
    _set(session_id, Session.Status.CONNECTED, detail)


def disconnect(session_id: int, detail: str) -> None:
    _set(session_id, Session.Status.DISCONNECTED, detail)


def restrict(session_id: int, detail: str) -> None:
    _set(session_id, Session.Status.RESTRICTED, detail)


def says_nothing_new(was: str, check: SessionCheck, *, knows_restrictions: bool = True) -> bool:
    """What an answer that nobody asked for must not overwrite.

    Gateways lose their socket and start again within seconds, which is no reason to pause a campaign: if it lasts, the next message finds
    out. A report that an account works says nothing of a restriction; whoever asks about it is told.
    """
    passes = was == Session.Status.CONNECTED and check.state == SessionState.CONNECTING
    return passes or (was == Session.Status.RESTRICTED and check.state == SessionState.CONNECTED and not knows_restrictions)


def record_check(session_id: int, check: SessionCheck) -> None:
    """Take over what the provider said about the session."""
    _set(session_id, Session.Status(check.state.value), check.detail)

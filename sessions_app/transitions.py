"""Every way a session changes status. Nothing else writes Session.status."""

from django.db.models.functions import Now

from sessions_app.models import Session
from sessions_app.providers.base import SessionCheck


def _set(session_id: int, status: Session.Status, detail: str) -> None:
    # update(): one statement, so a status never overwrites what a form is saving; updated_at stays, because nothing was edited
    Session.objects.filter(pk=session_id).update(status=status, status_detail=detail[:500], checked_at=Now())


def connect(session_id: int, detail: str = "") -> None:
    _set(session_id, Session.Status.CONNECTED, detail)


def disconnect(session_id: int, detail: str) -> None:
    _set(session_id, Session.Status.DISCONNECTED, detail)


def restrict(session_id: int, detail: str) -> None:
    _set(session_id, Session.Status.RESTRICTED, detail)


def record_check(session_id: int, check: SessionCheck) -> None:
    """Take over what the provider said about the session."""
    _set(session_id, Session.Status(check.state.value), check.detail)

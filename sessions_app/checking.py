"""Ask the provider whether a session can send, and write down what it said."""

from datetime import timedelta

from sessions_app import transitions
from sessions_app.credentials import CredentialsUnreadable
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider, Deadline, SessionCheck, SessionState

CHECK_TAKES_AT_MOST = timedelta(seconds=10)


def check_session(session: Session) -> SessionCheck:
    """One call to the provider, outside any transaction. The session is refreshed with the answer."""
    try:
        provider = session.make_provider()
    except CredentialsUnreadable as error:
        check = SessionCheck(SessionState.DISCONNECTED, str(error))
    else:
        check = ask(provider)
    transitions.record_check(session.pk, check)
    session.refresh_from_db()
    return check


def ask(provider: ChannelProvider) -> SessionCheck:
    """The call alone, without the database: safe in a thread. A provider's bug reads as disconnected, never as an error page."""
    try:
        return provider.check_session(Deadline(CHECK_TAKES_AT_MOST))
    except Exception as error:
        return SessionCheck(SessionState.DISCONNECTED, f"The check failed inside {provider.label}: {type(error).__name__}")

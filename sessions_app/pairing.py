"""A session and its vendor: pairing it with a phone, the vendor's own buttons, and where the vendor sends receipts.

Every call goes out with no transaction open and with one deadline. What goes wrong is a `Refused`, whose text is for the person who asked.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction

from sessions_app import transitions
from sessions_app.credentials import CredentialsUnreadable
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider, Deadline, NotPossible, Pairing, SessionCheck
from sessions_app.providers.http import NoAnswer, NotSent
from sessions_app.providers.registry import UnknownChannel

logger = logging.getLogger("paceline.sessions")

CALL_TAKES_AT_MOST = timedelta(seconds=10)
CUTS_THE_CAMPAIGN_OFF = {"stop": "stop", "logout": "log out"}
ADDRESS, SECRET = "callback_url", "webhook_secret"  # what channels call them in their settings and credentials


class Refused(Exception):
    """Nothing came of it. `str()` says why, and what to do."""


def look(session: Session, *, phone: str = "", only_state: bool = False) -> Pairing:
    """What the vendor shows now: its state with the QR code or, for a phone, the code to type in. The state is written down.

    `only_state` asks for neither: for while somebody types a code in, which asking for another might void.
    """
    provider = _provider(session)
    deadline = Deadline(CALL_TAKES_AT_MOST)
    with _in_words(provider):
        pairing = Pairing(provider.check_session(deadline)) if only_state else provider.pair(deadline, phone=phone)
    _write_down(session, pairing.check)
    return pairing


def apply(session: Session, verb: str) -> SessionCheck:
    """One of create, start, stop, restart, logout at the vendor. What would cut a running campaign off is refused.

    It is created with the address for receipts, so that they need no restart right after the pairing.
    """
    running = session.campaigns.running().first() if verb in CUTS_THE_CAMPAIGN_OFF else None
    if running is not None:
        raise Refused(f'"{running}" is being sent from "{session}". Pause that campaign first, then {CUTS_THE_CAMPAIGN_OFF[verb]}.')
    if verb == "create" and session.provider_class.takes_webhooks:
        _keep(session, webhook_address(session))
    provider = _provider(session)
    with _in_words(provider):
        check = provider.manage(verb, Deadline(CALL_TAKES_AT_MOST))
    _write_down(session, check)
    return check


def own_address(session: Session) -> str:
    """Where webhooks of this session arrive, as this instance calls itself."""
    return f"{settings.PUBLIC_URL}/api/webhooks/{session.uuid}/"


def webhook_address(session: Session) -> str:
    """What the vendor is told. Where a person can type another one into the session, as for a vendor behind the same proxy, that one."""
    typed = str(session.settings.get(ADDRESS) or "") if ADDRESS in session.provider_class.settings_form.base_fields else ""
    return typed or own_address(session)


def is_local(address: str) -> bool:
    """Only programs on this machine reach it."""
    return urlsplit(address).hostname in {"127.0.0.1", "::1", "localhost"}


def set_up_receipts(session: Session) -> str:
    """Have the vendor tell us what becomes of messages: a secret is made if one is needed, the address is stored, the vendor is told."""
    if not session.provider_class.takes_webhooks:
        raise Refused(f"{session.provider_class.label} sends no receipts.")
    address = webhook_address(session)
    _keep(session, address)
    provider = _provider(session)
    try:
        with _in_words(provider):
            provider.set_webhook(address, Deadline(CALL_TAKES_AT_MOST))
    except Refused as refusal:
        raise Refused(f"The address for receipts is stored in the session. {refusal}") from None
    return f"{provider.label} sends receipts to the webhook address of this session from now on."


def _keep(session: Session, address: str) -> None:
    """Under the row's lock, so that two people at once make one secret. An edit like any other: engines make their provider anew."""
    with transaction.atomic():
        locked = Session.objects.select_for_update().get(pk=session.pk)
        before = (locked.settings, locked.sealed_credentials)
        if SECRET in locked.provider_class.credentials_form.base_fields:
            try:
                stored = locked.credentials
            except CredentialsUnreadable as error:
                raise Refused(str(error)) from None
            if not stored.get(SECRET):
                locked.credentials = {**stored, SECRET: secrets.token_urlsafe(32)}
        locked.settings = {**locked.settings, ADDRESS: address}
        if (locked.settings, locked.sealed_credentials) != before:
            locked.save(update_fields=["settings", "sealed_credentials", "updated_at"])
    session.refresh_from_db()


def _write_down(session: Session, check: SessionCheck) -> None:
    transitions.record_check(session.pk, check)
    session.refresh_from_db()


def _provider(session: Session) -> ChannelProvider:
    try:
        return session.make_provider()
    except (CredentialsUnreadable, UnknownChannel) as error:
        raise Refused(str(error)) from None


@contextmanager
def _in_words(provider: ChannelProvider) -> Iterator[None]:
    """Whatever goes wrong in a call, as a sentence. Of a bug only the name is told: its text may carry a secret."""
    try:
        yield
    except NotPossible as error:
        raise Refused(str(error)) from None
    except NotSent:
        raise Refused(f"{provider.label} cannot be reached, so nothing was done. Check its address, and whether it runs.") from None
    except NoAnswer:
        raise Refused(f"{provider.label} gave no answer. It may have done it all the same: check the connection.") from None
    except Exception as error:
        logger.error("a provider failed", extra={"provider": provider.key, "error": type(error).__name__})
        raise Refused(f"{provider.label} could not be asked: its channel failed with {type(error).__name__}. Report it.") from None

"""The templates that a vendor approved for a session -> MessageTemplate. Nothing else writes it."""

import logging
from datetime import timedelta
from typing import Protocol, cast

from django.conf import settings
from django.db import DataError, transaction
from django.db.models import F, Min

from sessions_app.clock import database_now
from sessions_app.credentials import CredentialsUnreadable
from sessions_app.models import MessageTemplate, Session
from sessions_app.providers.base import ChannelProvider, Deadline, NotPossible
from sessions_app.providers.registry import UnknownChannel, provider_class
from sessions_app.providers.whatsapp_cloud_answers import Template

SYNC_TAKES_AT_MOST = timedelta(seconds=20)
ALL_TAKE_AT_MOST = timedelta(seconds=500)  # a task has ten minutes; whoever waited longest is first at the next turn
_COLUMNS = ["status", "category", "components", "body_parameters", "header_parameters"]

logger = logging.getLogger("paceline.sessions")


class HasTemplates(Protocol):
    """What a channel with `has_templates = True` can do."""

    def list_templates(self, deadline: Deadline) -> list[Template]:
        """All there are, in every status. Raises NotPossible, also where it got only a part."""


def has_templates(provider: type[ChannelProvider] | None) -> bool:
    """Only a few channels do, so the contract does not speak of it."""
    return bool(getattr(provider, "has_templates", False))


def sync(session: Session) -> dict[str, int]:
    """Ask, then store what was listed and remove what was not. Raises NotPossible with a sentence, and then nothing has changed.

    Not to be called inside a transaction: the vendor has twenty seconds to answer.
    """
    listed = _ask(session)
    try:
        with transaction.atomic():
            return _store(session, listed)
    except DataError:
        raise NotPossible("One of the listed templates cannot be stored: a part of it is too long, or no text.") from None


def sync_and_say(session: Session) -> str:
    """For the button: what happened, in a sentence, whether it worked or not."""
    try:
        counts = sync(session)
    except NotPossible as refusal:
        return f'The templates of "{session}" stay as they were. {str(refusal).rstrip(".")}.'
    approved = session.templates.filter(status=MessageTemplate.APPROVED).count()
    changes = f"{counts['added']} new, {counts['changed']} changed, {counts['removed']} removed"
    return f'"{session}" has {counts["listed"]} templates, {approved} of them approved ({changes}).'


def sync_all() -> dict[str, int]:
    """Every session on a channel that has templates, the one that was synced longest ago first."""
    channels = [key for key in settings.CHANNELS if has_templates(_class(key))]
    oldest = Session.objects.filter(channel__in=channels).annotate(synced_at=Min("templates__synced_at"))
    counts = {"synced": 0, "failed": 0, "left": 0}
    deadline = Deadline(ALL_TAKE_AT_MOST)
    for session in oldest.order_by(F("synced_at").asc(nulls_first=True), "pk"):
        if deadline.passed:
            counts["left"] += 1
            continue
        try:
            sync(session)
            counts["synced"] += 1
        except NotPossible as refusal:
            counts["failed"] += 1
            logger.warning("templates not synced", extra={**session.facts(), "reason": str(refusal)})
    return counts


def _class(key: str) -> type[ChannelProvider] | None:
    try:
        return provider_class(key)
    except UnknownChannel:
        return None


def _ask(session: Session) -> list[Template]:
    """The call alone. A provider's bug reads as a refusal, never as an error page."""
    if not has_templates(_class(session.channel)):
        raise NotPossible(f'Channel "{session.channel}" has no templates.')
    try:
        provider = session.make_provider()
        return cast(HasTemplates, provider).list_templates(Deadline(SYNC_TAKES_AT_MOST))
    except CredentialsUnreadable as error:
        raise NotPossible(str(error)) from None
    except NotPossible:
        raise
    except Exception as error:
        raise NotPossible(f"The call failed inside {session.provider_class.label}: {type(error).__name__}.") from error


def _store(session: Session, listed: list[Template]) -> dict[str, int]:
    if not Session.objects.select_for_update(no_key=True).filter(pk=session.pk).exists():  # two syncs of one session: one after the other
        raise NotPossible("The session is not there any more.")
    now = database_now()
    rows = {  # a page that shifted while it was read may name one twice
        (one.name, one.language): MessageTemplate(
            session=session,
            name=one.name,
            language=one.language,
            status=one.status,
            category=one.category,
            components=list(one.components),
            body_parameters=one.body_parameters,
            header_parameters=one.header_parameters,
            synced_at=now,
        )
        for one in listed
    }
    stored = {(one.name, one.language): one for one in session.templates.all()}
    gone = [one.pk for key, one in stored.items() if key not in rows]
    session.templates.filter(pk__in=gone).delete()
    MessageTemplate.objects.bulk_create(
        rows.values(),
        update_conflicts=True,
        unique_fields=["session", "name", "language"],
        update_fields=[*_COLUMNS, "synced_at"],
    )
    changed = [key for key in rows.keys() & stored.keys() if any(getattr(rows[key], c) != getattr(stored[key], c) for c in _COLUMNS)]
    return {"listed": len(rows), "added": len(rows.keys() - stored.keys()), "changed": len(changed), "removed": len(gone)}

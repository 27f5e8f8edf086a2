"""The providers of the sessions that are sending, made once and kept while their session is not edited; and messages as runs froze them."""

import logging
from dataclasses import asdict
from typing import Any

from dispatch.models import Run
from sessions_app.credentials import CredentialsUnreadable
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider, Message, MessageType
from sessions_app.providers.registry import UnknownChannel

logger = logging.getLogger("paceline.engine")


class Providers:
    """A cache for one engine, in the thread that has the database."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, ChannelProvider]] = {}

    def of(self, session: Session) -> ChannelProvider | None:
        """None: the session cannot be used as it is stored; `why_not` says why. Never raises for what is stored."""
        kept = self._made.get(session.pk)
        if kept is not None and kept[0] == session.updated_at:
            return kept[1]
        try:
            provider = session.make_provider()
        except (CredentialsUnreadable, UnknownChannel):
            return None
        except Exception:
            logger.exception("a provider cannot be made", extra={"session": session.pk})
            return None
        self._made[session.pk] = (session.updated_at, provider)
        return provider

    def by_id(self, session_id: int, version: Any) -> ChannelProvider | None:
        kept = self._made.get(session_id)
        if kept is not None and kept[0] == version:
            return kept[1]
        return self.of(Session.objects.get(pk=session_id))

    def why_not(self, session_id: int) -> str:
        return why_not(Session.objects.get(pk=session_id))


def why_not(session: Session) -> str:
    """The sentence for a session whose provider cannot be made."""
    try:
        session.make_provider()
    except (CredentialsUnreadable, UnknownChannel) as error:
        return str(error)
    except Exception as error:
        return f"its provider cannot be made ({type(error).__name__}); see the log"
    return ""


def freeze(message: Message) -> dict[str, Any]:
    """As Run.message keeps it."""
    return asdict(message)


def frozen_message(run: Run) -> Message:
    fields = dict(run.message)
    fields["type"] = MessageType(fields["type"])
    fields["template_components"] = tuple(fields["template_components"])
    return Message(**fields)

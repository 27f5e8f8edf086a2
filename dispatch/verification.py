"""Messages whose outcome nobody knows: the provider is asked, with back-off, whether it has them.

Present is believed at any time. Absent is believed only past the grace, and only where the provider declares that absence is proof: a call
that is still on its way would otherwise be sent twice. Everything else stays UNCONFIRMED, for a person or the campaign's default to decide;
its verify_at becomes null once the last answer was heard, so that nothing is decided while a provider is still being asked.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import transaction

from campaigns import rendering
from dispatch import reaching, transitions
from dispatch.models import DispatchLog
from dispatch.providers import Providers, frozen_message
from sessions_app.clock import database_now
from sessions_app.providers.base import ChannelProvider, Deadline, Message, Presence, SentMessage, Verification

logger = logging.getLogger("paceline.verification")
ASKING_TAKES_AT_MOST = timedelta(seconds=15)
LAST_ANSWER_IS_LOST_AFTER = timedelta(minutes=1)  # whoever asked for the last time has died: it is asked once more


@dataclass(frozen=True)
class VerifyPolicy:
    """When the provider is asked, counted from the moment the message became UNCONFIRMED or was asked about last."""

    backoff: Sequence[timedelta] = (
        timedelta(seconds=15),
        timedelta(minutes=1),
        timedelta(minutes=5),
        timedelta(minutes=10),
        timedelta(hours=1),
        timedelta(hours=6),
        timedelta(hours=24),
    )
    grace: timedelta = timedelta(seconds=600)  # longer than any credible stall of a process between its last look and the first byte

    @property
    def first(self) -> timedelta:
        return self.backoff[0]

    def next_after(self, verifications: int) -> timedelta | None:
        return self.backoff[verifications] if verifications < len(self.backoff) else None


class Conclusion(StrEnum):
    PRESENT = "PRESENT"
    REQUEUED = "REQUEUED"
    OPEN = "OPEN"


@dataclass(frozen=True)
class Question:
    log_id: int
    attempt: int
    unconfirmed_at: datetime
    asked_at: datetime  # a moment before the provider looks; its answer may be heard much later, by a process that was frozen meanwhile
    provider: ChannelProvider
    sent: SentMessage
    turn: int
    is_last: bool

    def ask(self) -> Verification:
        """The call alone, without the database: safe in a thread."""
        try:
            return self.provider.verify(self.sent, Deadline(ASKING_TAKES_AT_MOST))
        except Exception as error:
            logger.error("a provider failed to verify", extra={"log": self.log_id, "error": type(error).__name__})
            return Verification(Presence.UNKNOWN, detail=type(error).__name__)


def take_due(providers: Providers, policy: VerifyPolicy, *, limit: int, now: datetime | None = None) -> list[Question]:
    """The next rows to ask about. Their next turn is set before anything is asked, so several processes share the work."""
    moment = now or database_now()
    questions = []
    with transaction.atomic():
        due = DispatchLog.objects.to_verify(moment).filter(run__isnull=False).select_related("session", "run", "recipient", "step")
        for log in due.select_for_update(skip_locked=True, no_key=True, of=("self",))[:limit]:
            provider = providers.of(log.session)
            wait = policy.next_after(log.verifications + 1)
            is_asked = provider is not None and provider.can_verify
            if wait is None and is_asked:
                log.verify_at = moment + LAST_ANSWER_IS_LOST_AFTER
            elif wait is None or (provider is not None and not is_asked):
                log.verify_at = None
            else:  # also when the provider cannot be made now: its credentials may be mended until the next turn
                log.verify_at = moment + wait
            log.verifications += 1
            log.save(update_fields=["verify_at", "verifications"])
            if provider is not None and is_asked:
                try:
                    questions.append(_question(log, provider, moment, is_last=wait is None))
                except Exception:  # what it was sent as cannot be read any more: it stays for a person
                    logger.exception("a message could not be asked about", extra={"log": log.pk})
    return questions


def _question(log: DispatchLog, provider: ChannelProvider, now: datetime, *, is_last: bool) -> Question:
    sent = SentMessage(
        address=reaching.where(provider, log.address),
        message=_as_sent(log),
        client_ref=log.client_ref,
        claimed_at=log.claimed_at or log.created_at,
        provider_message_id=log.provider_message_id,
    )
    return Question(log.pk, log.attempt, log.unconfirmed_at or now, now, provider, sent, log.verifications, is_last)


def _as_sent(log: DispatchLog) -> Message:
    """The stored body; rendered once more when the process died before it could store it."""
    assert log.run is not None
    message = frozen_message(log.run)
    if log.body is not None:
        return message.with_body(log.body)
    if log.recipient is None:
        return message
    try:
        return rendering.render_message(message, log.recipient.variables)
    except rendering.RenderError:
        return message


def conclude(question: Question, answer: Verification, policy: VerifyPolicy, *, now: datetime | None = None) -> Conclusion:
    """Write down what the answer proves, if anything."""
    if answer.presence == Presence.PRESENT:
        found = transitions.verified_present(question.log_id, attempt=question.attempt, message_id=answer.message_id)
        return Conclusion.PRESENT if found else Conclusion.OPEN
    past_grace = question.asked_at - question.unconfirmed_at >= policy.grace
    if answer.presence == Presence.ABSENT and past_grace and question.provider.absence_is_proof:
        back = transitions.verified_absent(question.log_id, attempt=question.attempt, now=now or database_now())
        return Conclusion.REQUEUED if back else Conclusion.OPEN
    if question.is_last:
        this_turn = DispatchLog.objects.unconfirmed().filter(pk=question.log_id, attempt=question.attempt, verifications=question.turn)
        this_turn.update(verify_at=None)
    return Conclusion.OPEN

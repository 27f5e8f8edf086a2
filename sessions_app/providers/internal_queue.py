"""A task of the company's own: each message is put into the queue of the background tasks (django-q2), with a function to run.

    def deliver(*, address: str, message: dict[str, Any], client_ref: str) -> None: ...

`message` has the fields of sessions_app.providers.base.Message. SENT means that it is queued: what the task does with it, and whether it
fails, stands under Background tasks. Whoever may edit sessions chooses what code runs here, so leave that to superusers.
"""

import inspect
import uuid
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from math import ceil
from typing import Any, ClassVar

from django import db, forms
from django.db import transaction
from django.utils.module_loading import import_string

from sessions_app.pacing import Metered
from sessions_app.providers import http
from sessions_app.providers.base import (
    ChannelProvider,
    Deadline,
    ErrorCode,
    Message,
    MessageType,
    Presence,
    SendResult,
    SentMessage,
    SessionCheck,
    SessionState,
    Verification,
)

DEFAULT_RATE = 10
LOOKS_AT_MOST_AT = 1000  # waiting tasks, each of which has to be unpacked


class _DeadlinePassed(Exception):
    """Rolls the INSERT back."""


def load(path: str) -> Callable[..., Any]:
    """The function itself. Raises ValueError with a sentence for people."""
    try:
        function = import_string(path)
    except ImportError:
        raise ValueError(f'There is no "{path}" to import. Write the whole path of a function, such as orders.tasks.deliver.') from None
    except Exception as error:
        raise ValueError(f'"{path}" cannot be imported: its module fails with {type(error).__name__}.') from None
    if not inspect.isfunction(function):
        raise ValueError(f'"{path}" is not a function written in Python.')
    signature = inspect.signature(function)
    try:
        signature.bind(address="", message={}, client_ref="")
        is_meant_for_it = {"address", "message", "client_ref"} <= signature.parameters.keys()  # a **kwargs is not: half the library has one
    except TypeError:
        is_meant_for_it = False
    if not is_meant_for_it:
        raise ValueError(f'"{path}" does not take exactly address, message and client_ref by name.')
    return function


class InternalQueueSettings(forms.Form):
    function = forms.CharField(
        label="Task function",
        help_text="Its path, such as orders.tasks.deliver. It is called with address, message and client_ref. "
        "It runs with all the rights of this application: only superusers should edit this session.",
    )
    rate = forms.FloatField(
        label="Messages per second",
        required=False,
        min_value=0.01,
        max_value=50,
        help_text=f"How fast tasks are queued, not how fast they run. Empty: {DEFAULT_RATE}.",
    )

    def clean_function(self) -> str:
        path = self.cleaned_data["function"].strip()
        try:
            load(path)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None
        return path


class InternalQueueProvider(ChannelProvider):
    key = "internal_queue"
    label = "Own task (internal queue)"
    address_kind = "any"
    pacing: ClassVar[Metered] = Metered(rate=50, burst=8)
    message_types = frozenset(MessageType)
    takes = frozenset({"subject", "html", "filename"})
    uncaptioned = frozenset({MessageType.IMAGE, MessageType.VIDEO, MessageType.AUDIO, MessageType.DOCUMENT})
    settings_form: ClassVar[type[forms.Form]] = InternalQueueSettings
    can_verify = True
    absence_is_proof = False  # django-q2 forgets old tasks that succeeded (its save_limit), so one that ran long ago is not there either

    @property
    def metered(self) -> Metered:
        rate = self.config.settings.get("rate")
        if not isinstance(rate, (int, float)) or not 0 < rate <= self.pacing.rate:
            rate = DEFAULT_RATE
        return Metered(rate=rate, burst=min(self.pacing.burst, ceil(rate)))

    @property
    def path(self) -> str:
        return str(self.config.settings.get("function") or "")

    @cached_property
    def misconfiguration(self) -> str:
        if not self.path:
            return "The task function is missing. Enter it in the session."
        try:
            load(self.path)
        except ValueError as error:
            return str(error)
        return ""

    def send(self, address: str, message: Message, client_ref: uuid.UUID, deadline: Deadline) -> SendResult:
        """One INSERT and its commit. The one provider that uses the ORM: the queue is a table, and django-q2 writes it with the ORM."""
        if self.misconfiguration:
            return SendResult.refused(ErrorCode.MISCONFIGURED, self.misconfiguration)
        inserted = False
        hidden = [address, message.text, message.caption]
        try:
            with transaction.atomic(using=_alias(), durable=True):
                _look_at(deadline)
                task_id = self._queue(address, message, client_ref)
                inserted = True
                if _is_a_table():
                    _look_at(deadline)  # the COMMIT is what counts, and it can still be left out
        except _DeadlinePassed:
            return SendResult.unsent("The deadline had passed before the task was queued")
        except db.Error as error:
            words = http.scrub(f"{type(error).__name__}: {error}", hidden)
            if inserted:
                return SendResult.refused(ErrorCode.UNCONFIRMED, f"The database was lost while it stored the task. {words}"[:500])
            return SendResult.refused(ErrorCode.TRANSIENT, f"The database did not take the task. {words}"[:500])
        finally:
            _let_go()
        return SendResult.accepted(task_id)

    def _queue(self, address: str, message: Message, client_ref: uuid.UUID) -> str:
        from django_q.tasks import async_task  # its models need the applications, and a provider may be loaded before them

        payload = asdict(message) | {"type": message.type.value, "template_components": list(message.template_components)}
        options = {"task_name": str(client_ref), "group": f"channel {self.key}"}
        return async_task(self.path, address=address, message=payload, client_ref=str(client_ref), q_options=options)

    def check_session(self, deadline: Deadline) -> SessionCheck:
        if self.misconfiguration:
            return SessionCheck(SessionState.DISCONNECTED, self.misconfiguration)
        return SessionCheck(SessionState.CONNECTED, "The function is there. Whether the background tasks run is shown on the dashboard.")

    def verify(self, sent: SentMessage, deadline: Deadline) -> Verification:
        """By the task's name, which is our reference: among those that ran, then among those that wait."""
        name = str(sent.client_ref)
        try:
            found = _among_those_that_ran(name) or _among_those_that_wait(name)
            seen_all = _is_a_table() and _queue_size() <= LOOKS_AT_MOST_AT
        except db.Error as error:
            return Verification(Presence.UNKNOWN, detail=f"The database could not be asked: {type(error).__name__}.")
        finally:
            _let_go()
        if found:
            return Verification(Presence.PRESENT, found, "The task is in the queue, or ran.")
        if not seen_all:
            return Verification(Presence.UNKNOWN, detail="Not every waiting task could be looked at.")
        return Verification(Presence.ABSENT, detail="No task of this message waits or is remembered.")


def _look_at(deadline: Deadline) -> None:
    if deadline.passed:
        raise _DeadlinePassed


def _is_a_table() -> bool:
    """False with Redis as the broker: what was pushed there cannot be taken back."""
    from django_q.conf import Conf

    return bool(Conf.ORM)


def _alias() -> str:
    from django_q.conf import Conf

    return Conf.ORM or db.DEFAULT_DB_ALIAS


def _among_those_that_ran(name: str) -> str:
    from django_q.models import Task

    return Task.objects.filter(name=name).values_list("id", flat=True).first() or ""


def _among_those_that_wait(name: str) -> str:
    from django_q.models import OrmQ

    waiting = OrmQ.objects.using(_alias()).order_by("-pk")[:LOOKS_AT_MOST_AT]
    tasks = (one.task for one in waiting.iterator())
    return next((str(task.get("id", "")) for task in tasks if task.get("name") == name), "")


def _queue_size() -> int:
    from django_q.models import OrmQ

    return OrmQ.objects.using(_alias()).count()


def _let_go() -> None:
    """Send runs in a thread of a pool, where nobody else would ever close the connection that Django opened for it.

    Within a transaction it belongs to the caller: `manage.py` and the admin, which close theirs themselves.
    """
    connection = db.connections[_alias()]
    if not connection.in_atomic_block:
        connection.close()

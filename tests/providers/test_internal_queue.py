import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django_q.models import OrmQ, Task

from sessions_app.providers import internal_queue
from sessions_app.providers.base import (
    Answer,
    Deadline,
    ErrorCode,
    Message,
    MessageType,
    Presence,
    SendResult,
    SentMessage,
    SessionConfig,
    SessionState,
)
from sessions_app.providers.internal_queue import InternalQueueProvider, InternalQueueSettings
from tests.providers.contract import REF, TEXT, ChannelContract, soon

DELIVER = f"{__name__}.deliver"
not_a_function = 5


def deliver(*, address: str, message: dict[str, Any], client_ref: str) -> str:
    return f"{address} {message['text']} {client_ref}"


def deliver_anything(**everything: Any) -> None: ...


def deliver_otherwise(address: str, text: str) -> None: ...


@pytest.mark.django_db(transaction=True)
class TestInternalQueue(ChannelContract):
    provider = InternalQueueProvider
    address = "order-4711"
    settings = {"function": DELIVER}

    def send(self, deadline: Any = None, **settings: Any) -> SendResult:
        return self.make(**settings).send(self.address, self.message(), REF, deadline or soon())

    def look_up(self) -> Presence:
        return self.make().verify(SentMessage(self.address, self.message(), REF, datetime.now(UTC)), soon()).presence

    def test_a_task_is_queued_as_said(self) -> None:
        result = self.send()
        [queued] = OrmQ.objects.all()
        assert (result.answer, result.message_id) == (Answer.ACCEPTED, queued.task["id"])
        assert (queued.task["name"], queued.task["func"], queued.task["args"]) == (str(REF), DELIVER, ())
        kwargs = queued.task["kwargs"]
        assert kwargs.keys() == {"address", "message", "client_ref"}
        assert (kwargs["address"], kwargs["client_ref"]) == (self.address, str(REF))
        assert (kwargs["message"]["type"], kwargs["message"]["text"]) == ("TEXT", TEXT)
        assert {type(value) for value in kwargs["message"].values()} <= {str, bool, list}
        assert deliver(**kwargs) == f"{self.address} {TEXT} {REF}"

    def test_every_type_can_be_handed_over(self) -> None:
        for type in MessageType:
            assert self.make().send(self.address, self.message(type), uuid.uuid4(), soon()).answer == Answer.ACCEPTED
        types = {queued.task["kwargs"]["message"]["type"] for queued in OrmQ.objects.all()}
        assert types == {type.value for type in InternalQueueProvider.message_types} == set(MessageType)

    def test_a_thread_leaves_no_connection_behind(self) -> None:
        open_before = self.connections()
        threads = [threading.Thread(target=self.send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert OrmQ.objects.count() == 4
        assert self.connections() == open_before

    def connections(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'")
            return cursor.fetchone()[0]

    def test_a_deadline_that_passes_before_the_commit(self) -> None:
        class Passing(Deadline):
            looks = 0

            @property
            def passed(self) -> bool:
                self.looks += 1
                return self.looks > 1

        deadline = Passing(timedelta(seconds=5))
        assert self.send(deadline).answer == Answer.UNSENT
        assert (deadline.looks, OrmQ.objects.count()) == (2, 0)

    def test_the_database_refuses_the_row(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_q_ormq ADD CONSTRAINT no_room CHECK (false) NOT VALID")
        try:
            result = self.send()
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE django_q_ormq DROP CONSTRAINT no_room")
        assert (result.code, OrmQ.objects.count()) == (ErrorCode.TRANSIENT, 0)
        assert TEXT.splitlines()[0] not in result.detail and self.address not in result.detail

    def test_the_database_is_lost_before_and_during_the_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lost(*_: object, **__: object) -> None:
            raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(connection, "connect", lost)
        connection.close()
        assert self.send().code == ErrorCode.TRANSIENT
        monkeypatch.undo()
        monkeypatch.setattr(connection, "commit", lost)
        assert self.send().code == ErrorCode.UNCONFIRMED

    def test_a_transaction_of_the_caller_is_not_mistaken_for_a_commit(self) -> None:
        with pytest.raises(RuntimeError), transaction.atomic():
            self.send()
        assert OrmQ.objects.count() == 0

    def test_it_is_found_while_it_waits_and_after_it_ran(self) -> None:
        assert self.look_up() == Presence.ABSENT
        self.send()
        assert self.look_up() == Presence.PRESENT
        task = OrmQ.objects.get().task
        OrmQ.objects.all().delete()
        now = datetime.now(UTC)
        Task.objects.create(id=task["id"], name=task["name"], func=DELIVER, started=now, stopped=now, success=False)
        assert self.look_up() == Presence.PRESENT

    def test_absence_is_no_proof(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Old tasks are forgotten, and of very many waiting ones some are not looked at."""
        assert not InternalQueueProvider.absence_is_proof
        monkeypatch.setattr(internal_queue, "LOOKS_AT_MOST_AT", 1)
        for _ in range(2):
            self.make().send(self.address, self.message(), uuid.uuid4(), soon())
        assert self.look_up() == Presence.UNKNOWN

    def test_the_database_cannot_be_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lost(name: str) -> str:
            raise DatabaseError

        monkeypatch.setattr(internal_queue, "_among_those_that_ran", lost)
        assert self.look_up() == Presence.UNKNOWN

    def test_the_check(self) -> None:
        assert self.make().check_session(soon()).state == SessionState.CONNECTED
        check = InternalQueueProvider(SessionConfig()).check_session(soon())
        assert (check.state, "missing" in check.detail) == (SessionState.DISCONNECTED, True)


WRONG = {
    "empty": "",
    "no such module": "no.such.module",
    "no such name": f"{__name__}.nothing",
    "no path": "deliver",
    "not callable": f"{__name__}.not_a_function",
    "a class": f"{__name__}.TestInternalQueue",
    "written in C": "os.system",
    "other arguments": f"{__name__}.deliver_otherwise",
    "anything by name": f"{__name__}.deliver_anything",
    "of the standard library": "subprocess.run",
    "fails at import": "antlr.nowhere.x",
}


@pytest.mark.parametrize("path", WRONG.values(), ids=WRONG.keys())
def test_functions_that_cannot_be_called(path: str) -> None:
    assert not InternalQueueSettings({"function": path}).is_valid()
    provider = InternalQueueProvider(SessionConfig(settings={"function": path}))
    result = provider.send("a", Message(MessageType.TEXT, text="x"), REF, soon())  # would fail here if it asked the database
    assert result.code == ErrorCode.MISCONFIGURED


@pytest.fixture
def broken_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "broken_tasks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "broken_tasks.deliver"


def test_a_module_that_fails(broken_module: str) -> None:
    form = InternalQueueSettings({"function": broken_module})
    assert not form.is_valid()
    assert "ZeroDivisionError" in str(form.errors)


def test_the_form() -> None:
    form = InternalQueueSettings({"function": f" {DELIVER} "})
    assert form.is_valid() and form.cleaned_data["function"] == DELIVER
    assert not InternalQueueSettings({"function": DELIVER, "rate": "51"}).is_valid()

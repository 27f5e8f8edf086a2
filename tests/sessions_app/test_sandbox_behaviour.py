"""How the people of the stand-in behave, and when it tells of it: without a network."""

import threading
from random import Random

import pytest

from sessions_app.sandbox.agenda import Agenda
from sessions_app.sandbox.behaviour import Behaviour, plan
from sessions_app.sandbox.faults import EVENT_KINDS, BadFault, Faults
from sessions_app.sandbox.hooks import Hook, ulid
from sessions_app.sandbox.state import Accepted

READER = "12025550101@c.us"


def message(chat: str = READER, n: int = 1) -> Accepted:
    return Accepted(n=n, session="demo", chat_id=chat, text="Hello", raw_id=f"3EB0{n}", client_id=None, time=0.0, double=False)


def test_people_are_always_the_same() -> None:
    chats = [f"1202555{n:04}@c.us" for n in range(1, 2001)]
    plans = [plan(Behaviour(), message(chat)) for chat in chats]
    assert plans == [plan(Behaviour(), message(chat, n=7)) for chat in chats]
    read = sum(len(one.acks) == 3 for one in plans)
    assert 1500 < read < 1700
    assert 140 < sum(one.reply is not None for one in plans) < 260
    assert {one.acks[:2] for one in plans} == {((0.2, 1), (0.8, 2))}


def test_shuffled_acks_are_never_in_order() -> None:
    shuffled = {tuple(ack for _, ack in plan(Behaviour(), message(n=n), fault="shuffle-acks").acks) for n in range(100)}
    assert len(shuffled) == 5
    assert (1, 2, 3) not in shuffled
    moments = [after for after, _ in plan(Behaviour(), message(), fault="shuffle-acks").acks]
    assert moments == sorted(moments)


@pytest.mark.parametrize("kind", sorted(EVENT_KINDS))
def test_faults_of_events_leave_the_calls_alone(kind: str) -> None:
    faults = Faults()
    faults.add({"kind": kind, "count": 2})
    faults.add({"probability": 1, "kinds": [kind]})
    assert faults.take("send", "demo", READER) is None
    assert [fault.kind for _ in range(3) if (fault := faults.take("events", "demo", READER))] == [kind] * 3
    with pytest.raises(BadFault):
        faults.add({"probability": 1, "kinds": [kind, "429"]})


def test_back_off() -> None:
    def waits(policy: str) -> list[float]:
        return [Hook("", frozenset(), policy=policy, delay=2).back_off(attempt, Random(1)) for attempt in (1, 2, 3, 4)]

    assert waits("constant") == [2, 2, 2, 2]
    assert waits("linear") == [2, 4, 6, 8]
    for waited, plain in zip(waits("exponential"), [2, 4, 8, 16], strict=True):
        assert 0.8 * plain <= waited <= 1.2 * plain


def test_ids_of_events() -> None:
    first, second = ulid(), ulid()
    assert len(first) == 26
    assert first != second
    assert first[:8] == second[:8]


def test_the_agenda_keeps_the_order_and_survives_an_error(caplog: pytest.LogCaptureFixture) -> None:
    agenda, made, done = Agenda(), [], threading.Event()
    agenda.later(0.06, done.set)
    agenda.later(0.03, lambda: made.append("later"))
    agenda.later(0.01, lambda: 1 / 0)
    agenda.later(0, lambda: made.append("now"))
    assert done.wait(5)
    agenda.stop()
    assert made == ["now", "later"]
    assert "an event of the sandbox failed" in caplog.text
    assert not agenda.later(0, done.set)

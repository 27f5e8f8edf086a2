"""The database goes away at the worst moments: no answer is lost, nothing is sent twice, nobody is taken for dead."""

import pytest
from django.db import OperationalError, close_old_connections, connection, connections

from campaigns import transitions
from campaigns.models import Campaign
from dispatch.engine import Engine
from dispatch.loop import Loop, run_scheduler, start_heart
from dispatch.models import Attempt, DispatchLog, Heartbeat, Lane
from dispatch.scheduler import DATABASE_AWAY, run_pass
from dispatch.stopping import StopFlag
from sessions_app.providers.base import SendResult
from tests.dispatch.conftest import START, make_ready, statuses
from tests.fakes import FakeProvider

pytestmark = pytest.mark.django_db(transaction=True)


def cut_the_connection_of_the_engine() -> None:
    """From another thread, as a restart or a failover does it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    connections.close_all()


def test_an_answer_that_came_while_the_database_was_away_is_settled_when_it_is_back(fake, drive):
    campaign = make_ready(people=2)

    def answer(address, message):
        cut_the_connection_of_the_engine()
        return SendResult.accepted("kept")

    FakeProvider.answers(answer)
    transitions.start(campaign.pk, by="ana", now=START)
    run_pass(drive.engine)
    drive.engine.wait(5)
    with pytest.raises(DATABASE_AWAY):
        for _ in range(3):
            run_pass(drive.engine)
    assert len(drive.engine.unsettled) == 1
    close_old_connections()
    run_pass(drive.engine)
    first = DispatchLog.objects.order_by("pk").first()
    assert (first.status, first.provider_message_id) == ("SENT", "kept")
    drive.until_done()
    assert statuses(campaign) == ["SENT", "SENT"]
    assert len(FakeProvider.calls) == 2
    assert Campaign.objects.get().status == Campaign.Status.COMPLETED


def lose_the_answer_of_a_claim(execute, sql, params, many, context):
    result = execute(sql, params, many, context)
    if "leased AS" in sql:
        raise OperationalError("the connection was lost")
    return result


def test_a_claim_whose_commit_was_not_acknowledged_is_given_back_unsent(fake, drive):
    """The statement ran, the answer was lost. Not a byte has left, so nobody needs to be asked and no campaign paused."""
    campaign = make_ready(people=2)
    transitions.start(campaign.pk, by="ana", now=START)

    with connection.execute_wrapper(lose_the_answer_of_a_claim), pytest.raises(OperationalError):
        run_pass(drive.engine)
    assert statuses(campaign)[0] == "SENDING"
    assert FakeProvider.calls == []
    drive.until_done()
    assert statuses(campaign) == ["SENT", "SENT"]
    assert len(FakeProvider.calls) == 2
    assert Attempt.objects.filter(outcome="UNSENT").count() == 1
    assert Lane.objects.get().in_flight == 0
    assert Campaign.objects.get().status == Campaign.Status.COMPLETED


def test_a_settle_whose_commit_was_not_acknowledged_is_repeated_and_changes_nothing(fake, drive):
    campaign = make_ready(people=2)
    transitions.start(campaign.pk, by="ana", now=START)
    run_pass(drive.engine)
    drive.engine.wait(5)

    def lose_the_answer_of_a_settle(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if "settled AS" in sql:
            raise OperationalError("the connection was lost")
        return result

    with connection.execute_wrapper(lose_the_answer_of_a_settle), pytest.raises(OperationalError):
        run_pass(drive.engine)
    assert statuses(campaign)[0] == "SENT"
    drive.until_done()
    assert statuses(campaign) == ["SENT", "SENT"]
    assert campaign.runs.get().sent == 2


def test_so_it_is_when_the_process_is_told_to_stop_before_its_next_claim(fake):
    """A restart of the database in the middle of a deploy: nobody is left in doubt about a message that never left."""
    campaign = make_ready(people=2)
    heart = start_heart(Heartbeat.Kind.SCHEDULER)
    engine = Engine(owner=heart.pk)
    transitions.start(campaign.pk, by="ana")
    with connection.execute_wrapper(lose_the_answer_of_a_claim), pytest.raises(OperationalError):
        run_pass(engine)
    assert statuses(campaign) == ["SENDING", "PENDING"]
    stop = StopFlag()
    stop.requested = True
    assert Loop(heart=heart, engine=engine, stop=stop).run() == 0
    assert statuses(campaign) == ["PENDING", "PENDING"]
    assert [attempt.outcome for attempt in Attempt.objects.all()] == ["UNSENT"]
    assert Lane.objects.get().owner is None
    assert FakeProvider.calls == []


def test_what_is_claimed_when_a_claim_breaks_off_for_another_reason_is_given_back_too(fake, drive, monkeypatch):
    campaign = make_ready(channel="fake_metered", people=3)
    transitions.start(campaign.pk, by="ana", now=START)
    submit = Engine._submit

    def break_off(*args):
        monkeypatch.setattr(Engine, "_submit", submit)
        raise MemoryError

    monkeypatch.setattr(Engine, "_submit", break_off)
    with pytest.raises(MemoryError):
        run_pass(drive.engine)
    assert "SENDING" in statuses(campaign)
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 3
    assert len(FakeProvider.calls) == 3


def test_one_pass_that_breaks_off_writes_down_what_is_on_its_way(fake, monkeypatch):
    """`run_scheduler --once`: the error is told, and the answer that comes meanwhile is not thrown away."""
    campaign = make_ready(people=2)
    transitions.start(campaign.pk, by="ana")
    wait = Engine.wait

    def break_off(*args):
        monkeypatch.setattr(Engine, "wait", wait)
        raise RuntimeError("a bug")

    monkeypatch.setattr(Engine, "wait", break_off)
    with pytest.raises(RuntimeError):
        run_scheduler(StopFlag(), interval=1, once=True)
    assert statuses(campaign) == ["SENT", "PENDING"]

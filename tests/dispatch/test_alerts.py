"""What is alerted is stored once per kind and subject, told once an hour, and never in the way of the sending."""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F

from campaigns import transitions
from campaigns.models import Campaign
from dispatch import alerts, loop, settling
from dispatch import transitions as log_transitions
from dispatch.alerts import Notice, Teller, alert, say, store
from dispatch.engine import Engine
from dispatch.models import Alert, DispatchLog, Heartbeat, Lane
from dispatch.settling import Answered
from dispatch.stopping import StopFlag
from sessions_app import transitions as session_transitions
from sessions_app.providers.base import ErrorCode, SendResult
from tests.dispatch.conftest import START, Drive, make_engine, make_ready, statuses
from tests.dispatch.invariants import ready, recover, take, together
from tests.fakes import FakeProvider, refused, repeat
from tests.processes import processes, until
from tests.providers.scripted_server import HANG, ScriptedServer, reply

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")]  # by Apprise's plugins
committed = pytest.mark.django_db(transaction=True)

SECRETS = ("s3cret-path", "s3cret-password", "s3cret-token")


@pytest.fixture
def receiver(settings) -> Iterator[ScriptedServer]:
    with ScriptedServer(usual=reply(200, b"ok")) as server:
        settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL = f"{server.url}/hook/s3cret-path"
        yield server


@pytest.fixture
def closed_port() -> int:
    with ScriptedServer() as server:
        return server.port


def told(server: ScriptedServer) -> list[tuple[str, str, int]]:
    return [(body["kind"], body["subject"], body["times_since"]) for body in (request.json() for request in server.requests)]


def pass_by(by: timedelta) -> None:
    """Every row becomes older by so much."""
    moments = ("first_at", "last_at", "told_at", "tell_at")
    Alert.objects.update(**{name: F(name) - by for name in moments})


# -- stored --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "subject", "detail"),
    [
        ({"campaign": 7, "reason": "paused: the list looks wrong"}, "campaign 7", "paused: the list looks wrong"),
        ({"session": 3, "detail": "logged out"}, "session 3", "logged out"),
        ({"log": 9, "answer": "ACCEPTED"}, "message 9", "answer: ACCEPTED"),
        ({"campaign": 7, "session": 3, "log": 9, "detail": "odd"}, "campaign 7", "odd"),
        ({"messages": 2, "campaigns_paused": 1}, "", "messages: 2, campaigns paused: 1"),
        ({}, "", ""),
    ],
    ids=["campaign", "session", "message", "the first of them", "facts in words", "nothing"],
)
def test_an_alert_is_a_row_about_something(facts, subject, detail):
    store("it broke", facts)
    row = Alert.objects.get()
    assert (row.kind, row.subject, row.detail, row.facts, row.times) == ("it broke", subject, detail, facts, 1)


@committed
def test_the_same_again_is_counted_and_the_last_words_are_kept():
    for number in range(3):
        alert("it broke", campaign=7, reason=f"reason {number}")
    alert("it broke", campaign=8)
    assert list(Alert.objects.order_by("subject").values_list("subject", "times")) == [("campaign 7", 3), ("campaign 8", 1)]
    assert Alert.objects.get(subject="campaign 7").detail == "reason 2"


@committed
def test_eight_processes_at_once_make_one_row_and_lose_no_count():
    together(*[lambda: [alert("it broke", campaign=7) for _ in range(5)]] * 8)
    assert Alert.objects.get().times == 40


@committed
def test_a_row_waits_for_the_commit_and_a_rollback_leaves_the_line_alone(caplog):
    with transaction.atomic():
        alert("it broke", campaign=7)
        assert not Alert.objects.exists()
    assert Alert.objects.count() == 1
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        alert("it was undone", campaign=7)
        raise ValueError("no")
    assert Alert.objects.count() == 1
    assert "it was undone" in caplog.text


@committed
def test_it_holds_no_lock_in_the_transaction_it_is_raised_in():
    alert("it broke", campaign=7)
    with transaction.atomic():
        alert("it broke", campaign=7)
        together(lambda: alert("it broke", campaign=7))  # would wait for ever
    assert Alert.objects.get().times == 3


def break_statements(execute, sql, params, many, context):
    raise OperationalError("server closed the connection; password=s3cret-password")


@committed
def test_a_broken_database_costs_the_row_and_nothing_else(caplog, monkeypatch):
    with connection.execute_wrapper(break_statements):
        alert("it broke", campaign=7)
    connection.close()
    with monkeypatch.context() as away:
        away.setattr(connection, "connect", partial(break_statements, *[None] * 5))
        alert("it broke again", campaign=7)
    assert caplog.messages == ["it broke", "an alert could not be stored", "it broke again", "an alert could not be stored"]
    assert "s3cret" not in str([vars(record) for record in caplog.records])
    assert not Alert.objects.exists()


@pytest.mark.parametrize(
    "facts",
    [{"message": "a", "name": "b"}, {"detail": "\0 \ud800", "session": 3}, {"at": START, "x": {}, "half": 0.5}],
    ids=["names of the log", "bytes", "types"],
)
def test_whatever_the_facts_are_it_does_not_raise_and_is_stored(facts):
    say("k", facts)
    store("k" * 100, facts)
    assert Alert.objects.get().times == 1


# -- told ----------------------------------------------------------------------------------------------------------------------


def test_it_is_told_at_once_and_then_once_an_hour_with_its_number(receiver):
    store("campaign paused", {"campaign": 7, "reason": "paused: <!channel> & co"})
    assert alerts.tell_waiting() == 1
    body = receiver.requests[0].json()
    assert body["text"].endswith("campaign paused (campaign 7): paused: &lt;!channel&gt; &amp; co")
    assert (body["detail"], body["times"], body["facts"]["campaign"]) == ("paused: <!channel> & co", 1, 7)
    for _ in range(12):
        store("campaign paused", {"campaign": 7, "reason": "paused"})
    pass_by(timedelta(minutes=59))
    assert alerts.tell_waiting() == 0
    store("campaign paused", {"campaign": 8, "reason": "another subject is told at once"})
    assert alerts.tell_waiting() == 1
    pass_by(timedelta(minutes=1, seconds=1))
    assert alerts.tell_waiting() == 1
    assert told(receiver) == [
        ("campaign paused", "campaign 7", 1),
        ("campaign paused", "campaign 8", 1),
        ("campaign paused", "campaign 7", 12),
    ]
    assert "paused; 12 times since " in receiver.requests[-1].json()["text"]
    pass_by(timedelta(hours=2))
    assert alerts.tell_waiting() == 0, "nothing new happened"


def test_a_receiver_that_fails_is_tried_again_ever_later_and_then_gets_the_whole_number(receiver):
    receiver.usual = reply(503, b"down")
    store("it broke", {})
    waits = []
    for _ in range(8):
        assert alerts.tell_waiting() == 0
        row = Alert.objects.get()
        assert row.error == "webhook: it answered 503"
        waits.append(round((row.tell_at - datetime.now(UTC)).total_seconds() / 60))
        assert alerts.take() == []
        store("it broke", {})
        Alert.objects.update(tell_at=F("tell_at") - timedelta(hours=1, seconds=1))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    receiver.usual = reply(204)
    assert alerts.tell_waiting() == 1
    assert told(receiver)[-1] == ("it broke", "", 9)
    row = Alert.objects.get()
    assert (row.failures, row.error, row.times_told) == (0, "", 9)


@committed
def test_two_processes_never_tell_the_same_one(receiver):
    for number in range(12):
        alert("it broke", campaign=number)
    assert sum(together(*[alerts.tell_waiting] * 4)) == 12
    assert len(receiver.requests) == 12
    assert set(Counter(told(receiver)).values()) == {1}


def test_what_a_teller_that_died_had_taken_is_told_after_its_lease_and_its_late_word_counts_no_more(receiver):
    store("it broke", {})
    (first,) = alerts.take()
    assert alerts.take() == []
    pass_by(timedelta(minutes=5, seconds=1))
    assert alerts.tell_waiting() == 1
    alerts.record(first, "it came too late")
    assert Alert.objects.get().error == ""


def test_what_happens_while_it_is_being_told_is_told_the_next_time(receiver):
    store("it broke", {})
    (notice,) = alerts.take()
    store("it broke", {})
    alerts.record(notice, alerts.send(notice))
    pass_by(timedelta(hours=1, seconds=1))
    assert alerts.tell_waiting() == 1
    assert told(receiver) == [("it broke", "", 1), ("it broke", "", 1)]


def test_at_most_twenty_are_taken_at_once(receiver):
    for number in range(23):
        store("it broke", {"campaign": number})
    assert [len(alerts.take()), len(alerts.take())] == [20, 3]


def test_without_a_channel_nothing_is_taken_and_old_news_is_not_told_later(receiver, settings):
    url, settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL = settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL, ""
    store("it broke", {})
    assert alerts.take() == []
    settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL = url
    pass_by(timedelta(days=1, seconds=1))
    assert alerts.take() == []
    store("it broke", {})
    assert [notice.times_since for notice in alerts.take()] == [2]


def test_apprise_addresses_are_told_too_and_one_that_fails_does_not_repeat_the_others(receiver, settings, closed_port, caplog):
    settings.ALERT_URLS = [f"json://127.0.0.1:{closed_port}/s3cret-token", f"json://127.0.0.1:{receiver.port}/s3cret-token"]
    store("session disconnected", {"session": 3, "detail": "logged out"})
    assert alerts.tell_waiting() == 1
    hook, apprised = receiver.requests
    assert hook.path == "/hook/s3cret-path"
    assert apprised.path == "/s3cret-token"
    assert (apprised.json()["title"].partition(": ")[2], apprised.json()["message"]) == ("session disconnected (session 3)", "logged out")
    assert Alert.objects.get().times_told == 1
    assert [record.error for record in caplog.records if record.message == "an alert was not told everywhere"] == [
        "ALERT_URLS 1 (json): it was not taken"
    ]
    assert alerts.tell_waiting() == 0
    assert len(receiver.requests) == 2


def test_no_secret_of_an_address_is_in_a_log_an_error_or_a_repr(receiver, settings, closed_port, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    settings.CAMPAIGN_RETRY_ALERT_WEBHOOK_URL = f"http://ana:s3cret-password@127.0.0.1:{closed_port}/s3cret-path?t=s3cret-token"
    settings.ALERT_URLS = [
        f"json://ana:s3cret-password@127.0.0.1:{closed_port}/s3cret-path?+token=s3cret-token",
        f"json://ana:s3cret-password@127.0.0.1:{receiver.port}/s3cret-path",
        "nosuchscheme://ana:s3cret-password@s3cret-path",
        "slack://s3cret-token",
    ]
    receiver.usual = reply(500, b"s3cret-token is wrong")
    store("it broke", {"campaign": 7})
    (notice,) = alerts.take()
    error = alerts.send(notice)
    alerts.record(notice, error)
    assert error.count(": ") == 5, "each of the five says what is wrong"
    said = [error, repr(notice), str(notice.payload()), Alert.objects.get().error, *capfd.readouterr()]
    assert not logging.getLogger("apprise").propagate  # what it says itself goes to no handler of ours; only pytest listens there
    ours = [record for record in caplog.records if not record.name.startswith(("django.db", "apprise"))]
    said += [f"{record.getMessage()} {vars(record)}" for record in ours]
    for secret in SECRETS:
        assert not [text for text in said if secret in text]


# -- from the loop -------------------------------------------------------------------------------------------------------------


class Until(StopFlag):
    """Asks to stop when it is true, or when it took too long for it ever to be."""

    def __init__(self, true: Callable[[], bool]) -> None:
        super().__init__()
        self._true, self._deadline = true, time.monotonic() + 20

    def sleep(self, seconds: float) -> None:
        time.sleep(0.01)
        self.requested = self._true() or time.monotonic() > self._deadline


def everybody_has_it() -> bool:
    return not DispatchLog.objects.exclude(status="SENT").exists()


@committed
def test_a_receiver_that_hangs_delays_neither_the_sending_nor_the_end(receiver, settings, fake, monkeypatch):
    receiver.usual = HANG
    settings.ALERT_URLS = [f"json://127.0.0.1:{receiver.port}/"]
    alert("it broke", campaign=7)
    campaign = make_ready(channel="fake_metered", people=40)
    transitions.start(campaign.pk, by="ana")
    heart = loop.start_heart(Heartbeat.Kind.SCHEDULER)
    began = time.monotonic()
    assert loop.Loop(heart=heart, engine=Engine(owner=heart.pk), stop=Until(everybody_has_it), interval=0.0).run() == 0
    took = time.monotonic() - began
    assert statuses(campaign) == ["SENT"] * 40
    assert len(receiver.requests) == 1
    assert took < 3, took
    assert Alert.objects.get().times_told == 0


@committed
def test_the_loop_tells_and_writes_down_what_became_of_it(receiver, monkeypatch):
    monkeypatch.setattr(alerts, "LOOKED_EVERY", 0.05)
    alert("it broke", campaign=7)
    teller = Teller()
    until(lambda: teller.look() or Alert.objects.get().times_told == 1, "the telling", 5)
    assert told(receiver) == [("it broke", "campaign 7", 1)]
    receiver.usual = reply(500)
    alert("something else")
    until(lambda: teller.look() or Alert.objects.filter(failures=1).exists(), "the failure", 5)
    teller.close()


@committed
def test_a_teller_without_its_database_says_so_and_tells_later(receiver, monkeypatch, caplog):
    alert("it broke")
    teller = Teller()
    with connection.execute_wrapper(break_statements):
        teller.look()
    assert "alerts could not be told" in caplog.text
    monkeypatch.setattr(teller, "_look_at", 0.0)
    until(lambda: teller.look() or Alert.objects.get().times_told == 1, "the telling", 5)
    teller.close()


@committed
def test_a_scheduler_that_is_told_to_stop_does_not_wait_for_who_is_told(receiver, tmp_path):
    """Also not at the end of the interpreter, which joins every thread that is no daemon."""
    receiver.usual = HANG
    alert("it broke")
    with processes(tmp_path) as start:
        process = start("run_scheduler", ALERT_URLS=f"json://127.0.0.1:{receiver.port}/")
        until(lambda: receiver.requests, "the telling")
        process.signal(15)
        began = time.monotonic()
        assert process.wait() == 0
        assert time.monotonic() - began < 2
        assert "Traceback" not in process.said


class AwayForAWhile(Engine):
    """The database does not answer the first passes."""

    passes = 30

    def collect(self) -> None:
        super().collect()
        self.passes -= 1
        if self.passes >= 0:
            raise OperationalError("gone")


@committed
def test_a_database_that_stays_away_is_told_past_it_once_and_noted_when_it_is_back(receiver, monkeypatch, caplog):
    monkeypatch.setattr(loop, "AN_OUTAGE_IS_TOLD_AFTER", timedelta(seconds=0.1))
    heart = loop.start_heart(Heartbeat.Kind.SCHEDULER)
    assert loop.Loop(heart=heart, engine=AwayForAWhile(owner=heart.pk), stop=Until(Alert.objects.exists), interval=0.0).run() == 0
    assert told(receiver) == [("database away", "", 1)]
    assert "OperationalError; nothing is sent meanwhile" in receiver.requests[0].json()["text"]
    row = Alert.objects.get()
    assert (row.kind, row.times, row.times_told) == ("database away", 1, 1)
    assert [record.message for record in caplog.records if record.name == "paceline.alerts"] == ["database away"]
    assert alerts.tell_waiting() == 0


def test_a_short_absence_of_the_database_is_no_alert_and_an_untold_one_is_told_later(receiver, monkeypatch):
    teller = Teller()
    outage = loop.Outage(teller)
    outage.goes_on(OperationalError(), "we wait")
    outage.ends()
    assert not Alert.objects.exists()
    monkeypatch.setattr(loop, "AN_OUTAGE_IS_TOLD_AFTER", timedelta(0))
    receiver.usual = reply(500)
    for _ in range(5):
        outage.goes_on(OperationalError(), "we wait")
        until(lambda: not teller._is_busy(), "the call", 5)
    outage.ends()
    assert len(receiver.requests) == 1, "again only after a minute"
    receiver.usual = reply(200)
    assert alerts.tell_waiting() == 1


def test_a_notice_that_is_told_directly_is_told_once_an_hour(receiver):
    teller = Teller()
    for _ in range(3):
        teller.tell_directly(Notice.unstored("database away", {"detail": "for 60 s"}))
        until(lambda: not teller._is_busy(), "the call", 5)
    assert told(receiver) == [("database away", "", 1)]


# -- raised by the engine ------------------------------------------------------------------------------------------------------


def kinds(caplog, kind: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "paceline.alerts" and record.message == kind]


def test_rate_limits_in_a_row_are_alerted_at_the_third_once_in_a_streak(fake, drive, caplog):
    limit = refused(ErrorCode.RATE_LIMIT)
    FakeProvider.answers(*repeat(limit, 2), None, *repeat(limit, 5), None, *repeat(limit, 3))
    campaign = make_ready(people=3)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 3
    assert [record.session for record in kinds(caplog, "repeated rate limits")] == [campaign.session_id] * 2


def test_rate_limits_that_come_back_together_count_too(fake, drive, caplog):
    FakeProvider.answers(*repeat(refused(ErrorCode.RATE_LIMIT), 9))
    campaign = make_ready(channel="fake_metered", people=4)
    transitions.start(campaign.pk, by="ana", now=START)
    drive.until_done()
    assert statuses(campaign) == ["SENT"] * 4
    assert len(kinds(caplog, "repeated rate limits")) == 1


def write(*answers: Answered) -> None:
    settling.write(answers, verify_after=timedelta(seconds=15), human=settling.rules.human_of, rng=Random(1), now=None)


def accepted(claimed, message_id: str = "id") -> Answered:
    return Answered(claimed, "Hello", SendResult.accepted(message_id))


@pytest.fixture
def sent_again() -> tuple:
    """One message, claimed twice: the first attempt's worker was lost, and a person had it sent again."""
    ready(1)
    (first,) = take(owner := uuid.uuid4(), now=None)
    recover(owner, now=None)
    log_transitions.send_again(first.id, by="ana")
    Lane.objects.update(is_open=True, next_send_at=START)
    (second,) = take(uuid.uuid4(), now=None)
    return first, second


@committed
def test_a_late_acceptance_of_an_earlier_attempt_is_a_suspected_duplicate(sent_again, caplog):
    first, second = sent_again
    write(accepted(second))
    assert not kinds(caplog, "duplicate suspected")
    write(accepted(first, "late"))
    (record,) = kinds(caplog, "duplicate suspected")
    assert record.detail == f"message {first.id} was accepted late, at attempt 1, and its attempt 2 is sent: the person may get it twice"
    assert Alert.objects.get(kind="duplicate suspected").subject == f"campaign {first.campaign_id}"


def test_also_when_both_come_back_at_once_or_the_later_one_is_still_on_its_way(sent_again, caplog):
    first, second = sent_again
    write(accepted(first, "late"))
    assert "its attempt 2 is sending" in kinds(caplog, "duplicate suspected")[0].detail
    write(accepted(second), accepted(first, "late"))
    assert len(kinds(caplog, "duplicate suspected")) == 2


def test_an_answer_that_is_written_twice_is_no_duplicate(fake, drive, caplog):
    ready(1)
    (claimed,) = take(uuid.uuid4(), now=None)
    write(accepted(claimed))
    write(accepted(claimed))
    write(accepted(claimed), accepted(claimed))
    assert DispatchLog.objects.get().status == "SENT"
    assert not kinds(caplog, "duplicate suspected")


def test_a_settle_stands_when_what_it_means_cannot_be_looked_up(sent_again, caplog):
    def break_look_ups(execute, sql, params, many, context):
        if sql.startswith('SELECT "dispatch_dispatchlog"'):
            raise OperationalError("gone")
        return execute(sql, params, many, context)

    first, second = sent_again
    with connection.execute_wrapper(break_look_ups):
        write(accepted(second))
        write(accepted(first))
    assert DispatchLog.objects.get().status == "SENT"
    assert "what a settle means could not be looked up" in caplog.text


@committed
def test_a_broken_token_for_an_hour_is_one_row_for_each_subject_and_two_tellings(receiver, fake, caplog):
    """Somebody resumes it each five minutes, and each time the first message finds the token broken."""
    drive = Drive(make_engine(), [])
    campaign = make_ready(people=1000)
    FakeProvider.answers(*repeat(refused(ErrorCode.DISCONNECTED, "the token is wrong"), 12))
    transitions.start(campaign.pk, by="ana", now=drive.now)
    for _ in range(12):
        drive.until_done()
        alerts.tell_waiting()
        drive.forward(timedelta(minutes=5))
        if Campaign.objects.get().status == Campaign.Status.PAUSED and len(FakeProvider.calls) < 12:
            session_transitions.connect(campaign.session_id)
            transitions.resume(campaign.pk, by="ana", now=drive.now)
    drive.engine.close()
    assert len(FakeProvider.calls) == 12
    rows = {(row.kind, row.subject): row.times for row in Alert.objects.all()}
    assert rows == {("session disconnected", f"session {campaign.session_id}"): 12, ("campaign paused", f"campaign {campaign.pk}"): 12}
    pass_by(timedelta(hours=1))
    alerts.tell_waiting()
    assert Counter((kind, number) for kind, _, number in told(receiver)) == {
        ("session disconnected", 1): 1,
        ("campaign paused", 1): 1,
        ("session disconnected", 11): 1,
        ("campaign paused", 11): 1,
    }
    lines = [record for record in caplog.records if record.name.startswith("paceline") and record.levelno >= logging.WARNING]
    assert len(lines) <= 3 * 12  # the message, the session, the campaign: each time that something changed

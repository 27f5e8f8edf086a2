"""Sessions are asked by themselves: which, how many, and what is written down of the answers."""

import threading
from datetime import timedelta

import pytest
from cryptography.fernet import Fernet
from django.db import connection
from django.utils import timezone

from sessions_app import polling, transitions
from sessions_app.checking import check_session
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider, SendResult, SessionCheck, SessionState
from tests.factories import make_campaign, make_session

LONG_AGO = timedelta(minutes=10)


class Line(ChannelProvider):
    key = "line"
    label = "Line"
    address_kind = "any"

    answer = SessionCheck(SessionState.CONNECTED)
    asked = []
    meet = None  # a barrier: as many as it takes must be asked at once
    meanwhile = None  # what somebody else does while the vendor thinks

    def send(self, address, message, client_ref, deadline):
        return SendResult.accepted()

    def check_session(self, deadline):
        Line.asked.append(self.config.settings.get("n"))
        if Line.meet:
            Line.meet.wait(10)
        if Line.meanwhile:
            Line.meanwhile()
        if isinstance(Line.answer, Exception):
            raise Line.answer
        return Line.answer


class Mute(ChannelProvider):
    key = "mute"
    label = "Mute"
    address_kind = "any"

    def send(self, address, message, client_ref, deadline):
        return SendResult.accepted()


@pytest.fixture(autouse=True)
def line(settings, db):
    settings.CHANNELS = {**settings.CHANNELS, "line": f"{__name__}.Line"}
    Line.answer, Line.asked, Line.meet, Line.meanwhile = SessionCheck(SessionState.CONNECTED), [], None, None


def make_line(**fields) -> Session:
    return make_session(**{"channel": "line", "checked_at": timezone.now() - LONG_AGO, **fields})


@pytest.mark.parametrize(
    ("status", "campaign", "is_asked"),
    [
        ("CONNECTED", None, True),
        ("CONNECTING", None, True),
        ("NEEDS_PAIRING", None, True),
        ("RESTRICTED", None, True),
        ("DISCONNECTED", None, False),
        ("DISCONNECTED", "RUNNING", True),
        ("DISCONNECTED", "SCHEDULED", True),
        ("DISCONNECTED", "PAUSED", True),
        ("DISCONNECTED", "DRAFT", False),
        ("DISCONNECTED", "COMPLETED", False),
        ("DISCONNECTED", "FAILED", False),
    ],
)
def test_who_is_asked(status, campaign, is_asked):
    session = make_line(status=status)
    for _ in range(2 if campaign in {"SCHEDULED", "PAUSED"} else 1):  # two campaigns make one question
        if campaign:
            make_campaign(session=session, status=campaign)
    assert polling.poll()["asked"] == is_asked
    assert len(Line.asked) == is_asked


def test_a_channel_that_has_nothing_to_ask_keeps_what_the_engine_learned(settings):
    settings.CHANNELS = {**settings.CHANNELS, "mute": f"{__name__}.Mute"}
    session = make_line(channel="mute", status="DISCONNECTED", status_detail="the key was refused")
    make_campaign(session=session, status="PAUSED")
    assert polling.poll()["asked"] == 0


def test_who_was_asked_lately_is_left_alone():
    make_line(checked_at=timezone.now() - timedelta(minutes=3, seconds=50))
    assert polling.poll()["asked"] == 0
    assert polling.poll(now=timezone.now() + timedelta(seconds=20))["asked"] == 1


def test_the_end_of_a_restriction_is_noticed_and_counted():
    session = make_line(name="Ana", status="RESTRICTED", status_detail="until Monday")
    counts = polling.poll()
    assert counts["changed"] == [{"session": "Ana", "was": "RESTRICTED", "now": "CONNECTED"}]
    assert counts["states"] == {"CONNECTED": 1}
    session.refresh_from_db()
    assert (session.status, session.status_detail) == ("CONNECTED", "")
    assert timezone.now() - session.checked_at < timedelta(seconds=10)


def test_a_gateway_that_says_all_is_well_does_not_end_a_restriction_before_its_time():
    """It cannot know: the account works, and may start no new chats."""
    session = make_line(name="Ana", status="RESTRICTED", status_detail="463", restricted_until=timezone.now() + timedelta(hours=1))
    counts = polling.poll()
    assert (counts["changed"], counts["states"]) == ([], {"RESTRICTED": 1})
    session.refresh_from_db()
    assert (session.status, session.status_detail) == ("RESTRICTED", "463")
    assert timezone.now() - session.checked_at < timedelta(seconds=10)
    assert polling.poll(now=timezone.now() + timedelta(hours=2))["changed"] == [{"session": "Ana", "was": "RESTRICTED", "now": "CONNECTED"}]
    session.refresh_from_db()
    assert session.restricted_until is None


def test_nor_does_a_gateway_that_starts_again():
    session = make_line(status="RESTRICTED", status_detail="463", restricted_until=timezone.now() + timedelta(hours=1))
    for number, state in enumerate((SessionState.CONNECTING, SessionState.CONNECTED)):
        Line.answer = SessionCheck(state)
        assert polling.poll(now=timezone.now() + number * timedelta(minutes=6))["asked"] == 1
        session.refresh_from_db()
        assert (session.status, session.status_detail) == ("RESTRICTED", "463")


def test_it_does_not_hide_that_the_session_is_gone_meanwhile():
    session = make_line(status="RESTRICTED", restricted_until=timezone.now() + timedelta(hours=1))
    Line.answer = SessionCheck(SessionState.NEEDS_PAIRING, "logged out on the phone")
    polling.poll()
    session.refresh_from_db()
    assert (session.status, session.restricted_until) == ("NEEDS_PAIRING", None)


def test_a_person_who_asks_ends_it():
    session = make_line(status="RESTRICTED", restricted_until=timezone.now() + timedelta(hours=1))
    check_session(session)
    assert (session.status, session.restricted_until) == ("CONNECTED", None)


def test_one_answer_that_is_lost_is_not_believed():
    session = make_line()
    Line.answer = SessionCheck(SessionState.DISCONNECTED, "no answer in time")
    Line.meanwhile = lambda: len(Line.asked) == 2 and setattr(Line, "answer", SessionCheck(SessionState.CONNECTED))
    assert polling.poll()["states"] == {"CONNECTED": 1}
    session.refresh_from_db()
    assert session.status == "CONNECTED"


def test_a_gateway_that_starts_again_pauses_nobody():
    session = make_line()
    Line.answer = SessionCheck(SessionState.CONNECTING, "starting")
    assert polling.poll()["changed"] == []
    session.refresh_from_db()
    assert session.status == "CONNECTED"
    assert timezone.now() - session.checked_at < timedelta(seconds=10)


def test_what_stays_as_it_was_is_no_change():
    make_line()
    counts = polling.poll()
    assert (counts["asked"], counts["changed"], counts["states"]) == (1, [], {"CONNECTED": 1})


def test_the_longest_unasked_come_first_and_a_turn_has_an_end(monkeypatch):
    monkeypatch.setattr(polling, "SESSIONS_AT_MOST", 3)
    monkeypatch.setattr(polling, "ASKED_AT_ONCE", 1)
    now = timezone.now()
    for n, minutes in enumerate([10, 30, 20, None, 15]):
        make_line(settings={"n": n}, checked_at=now - timedelta(minutes=minutes) if minutes else None)
    assert polling.poll()["asked"] == 3
    assert Line.asked == [3, 1, 2]
    polling.poll()
    assert Line.asked == [3, 1, 2, 4, 0]


def test_the_calls_run_beside_each_other():
    for _ in range(4):
        make_line()
    Line.meet = threading.Barrier(4)  # in a row they would wait for each other until it breaks, and be counted as disconnected
    assert polling.poll()["states"] == {"CONNECTED": 4}


@pytest.mark.django_db(transaction=True)
def test_no_transaction_is_open_and_no_thread_has_the_database():
    make_line()
    seen = []
    Line.meanwhile = lambda: seen.append((connection.in_atomic_block, connection.connection))
    polling.poll()
    assert seen == [(False, None)]


def test_what_cannot_be_asked_is_disconnected_with_a_sentence_and_holds_nobody_up(settings):
    unreadable = make_line(credentials={"key": "x"})
    pigeon, good = make_line(channel="pigeon"), make_line()
    settings.CREDENTIALS_KEYS = [Fernet.generate_key().decode()]
    counts = polling.poll()
    assert counts["states"] == {"DISCONNECTED": 2, "CONNECTED": 1}
    for session, words in ((unreadable, "cannot be read"), (pigeon, 'no channel "pigeon"'), (good, "")):
        session.refresh_from_db()
        assert words in session.status_detail
        assert session.checked_at > timezone.now() - timedelta(minutes=1)


def test_a_bug_in_a_channel_costs_only_its_own_session():
    make_line()
    Line.answer = RuntimeError("s3cret")
    assert polling.poll()["states"] == {"DISCONNECTED": 1}
    assert Session.objects.get().status_detail == "The check failed inside Line: RuntimeError"


def written_by_the_engine(session):
    transitions.disconnect(session.pk, "refused just now")


def edited(session):
    session.save()


def deleted(session):
    session.delete()


@pytest.mark.parametrize("other", [written_by_the_engine, edited, deleted])
def test_an_answer_that_somebody_overtook_is_dropped(monkeypatch, other):
    session = make_line()

    def after_the_asking(futures):  # in this thread: the test's transaction is seen by no other connection
        other(session)
        return list(futures)

    monkeypatch.setattr(polling, "as_completed", after_the_asking)
    counts = polling.poll()
    assert (counts["overtaken"], counts["states"], counts["changed"]) == (1, {}, [])
    assert [row.status for row in Session.objects.all()] in ([], ["DISCONNECTED"], ["CONNECTED"])

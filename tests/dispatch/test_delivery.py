"""Receipts, replies and states that a provider tells by itself: in any order, twice, too early, too late, and beside a running engine."""

import uuid
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from django.db import OperationalError
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from campaigns import transitions as campaign_transitions
from campaigns.models import Campaign
from dispatch import delivery, transitions
from dispatch.models import Alert, DispatchLog, InboundMessage, KnownAddress, Lane, WebhookEvent
from dispatch.scheduler import run_until_idle
from sessions_app.clock import database_now
from sessions_app.models import Session
from sessions_app.providers.base import Deadline, ErrorCode, SendResult, WebhookItem
from tests.dispatch.conftest import make_engine
from tests.dispatch.invariants import NOW, assert_sum_rule, bring_back, ready, take, together
from tests.factories import make_campaign, make_lane, make_log, make_run, make_session, make_step
from tests.fakes import FakeHooks, refused

S = DispatchLog.Status
E = WebhookEvent.State
NOON = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
HOOKS = {"channel": "fake_hooks", "credentials": {"webhook_secret": FakeHooks.SECRET}}
_ids = count(1)


@pytest.fixture(autouse=True)
def hooks(settings, fake):
    settings.CHANNELS = {**settings.CHANNELS, "fake_hooks": "tests.fakes.FakeHooks"}
    return FakeHooks


@pytest.fixture
def run(db):
    return make_run(make_step(make_campaign(session=make_session(**HOOKS))), rows_complete=True)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def item(kind: str, **told) -> WebhookItem:
    event_id = f"evt-{next(_ids)}"
    return WebhookItem(event_id, kind, {"id": event_id, "kind": kind, **told})


def receipt(state: str, log: DispatchLog | str, *, minute: float = 0, **told) -> WebhookItem:
    """By the id of the provider; or with a string of one that the ledger may not know yet."""
    return item("receipt", state=state, at=at(minute).isoformat(), message_id=getattr(log, "provider_message_id", log), **told)


def by_ref(state: str, log: DispatchLog, *, minute: float = 0, **told) -> WebhookItem:
    return item("receipt", state=state, at=at(minute).isoformat(), client_ref=str(log.client_ref), **told)


def tell(session: Session, *items: WebhookItem, after: float = 0) -> dict[str, int]:
    """Stored, and applied so many seconds later."""
    delivery.store(session, items)
    return apply(after)


def apply(after: float = 0) -> dict[str, int]:
    done = delivery.apply_due(now=database_now() + timedelta(seconds=after + 0.1))
    return {name: number for name, number in done.as_dict().items() if number}


def outcomes(log: DispatchLog) -> list[str]:
    return list(log.attempts.values_list("outcome", flat=True))


# -- any order, any repetition -------------------------------------------------------------------------------------------------

BEFORE = {
    S.SENT: {"provider_message_id": "p-1"},
    S.UNCONFIRMED: {"provider_message_id": "p-1"},
    S.FAILED: {"provider_message_id": "p-1", "error_code": "TRANSIENT", "retry_at": NOON},
    S.PENDING: {"provider_message_id": "p-1", "attempt": 1, "token": 1, "claimed_at": NOON - timedelta(hours=1)},
    S.SKIPPED: {"provider_message_id": "p-1", "attempt": 1, "token": 1, "claimed_at": NOON - timedelta(hours=1)},
}
RECEIPTS = st.tuples(st.sampled_from(["ACCEPTED", "DELIVERED", "READ", "FAILED"]), st.integers(0, 9))


def expected(before: str, told: set[tuple[str, int]]) -> dict[str, object]:
    """From the set alone: neither order nor repetition is in it."""
    states = {state for state, _ in told}
    first = {state: min((minute for one, minute in told if one == state), default=None) for state in ("ACCEPTED", "DELIVERED", "READ")}

    def earliest(*names: str) -> datetime | None:
        return min((at(first[name]) for name in names if first[name] is not None), default=None)

    status = S.FAILED if "FAILED" in states else S.SENT if states else before
    if states & {"DELIVERED", "READ"}:
        status = S.SENT
    return {
        "status": status,
        "acked_at": earliest("ACCEPTED", "DELIVERED", "READ"),
        "delivered_at": earliest("DELIVERED", "READ"),
        "read_at": earliest("READ"),
    }


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.sampled_from(sorted(BEFORE)), told=st.lists(RECEIPTS, min_size=1, max_size=6), at_once=st.booleans())
def test_any_order_and_repetition_of_receipts_ends_the_same(run, before, told, at_once):
    run.refresh_from_db()
    log = make_log(run, **{**BEFORE[before], "status": before, "provider_message_id": f"p-{next(_ids)}"})
    items = [receipt(state, log, minute=minute) for state, minute in told]
    if at_once:
        tell(run.campaign.session, *items)
    else:
        for one in items:
            tell(run.campaign.session, one)
    log.refresh_from_db()
    wanted = expected(before, set(told))
    assert {name: getattr(log, name) for name in wanted} == wanted
    assert_sum_rule(run.campaign)
    if log.status in {S.SENT, S.FAILED}:
        assert log.retry_at is None


def test_a_later_state_implies_the_earlier_ones_and_the_earliest_time_is_kept(run):
    log = make_log(run, status=S.SENT)
    tell(run.campaign.session, receipt("READ", log, minute=9))
    tell(run.campaign.session, receipt("DELIVERED", log, minute=4), receipt("READ", log, minute=12), receipt("ACCEPTED", log, minute=5))
    log.refresh_from_db()
    assert (log.acked_at, log.delivered_at, log.read_at) == (at(4), at(4), at(9))


# -- what a receipt settles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [receipt, by_ref], ids=["message id", "client ref"])
def test_a_receipt_settles_what_nobody_knew(run, name):
    log = make_log(run, status=S.UNCONFIRMED, provider_message_id="p-1")
    assert tell(run.campaign.session, name("ACCEPTED", log)) == {"applied": 1}
    log.refresh_from_db()
    assert (log.status, log.sent_at, log.verify_at, log.unconfirmed_at) == (S.SENT, log.claimed_at, None, None)
    assert outcomes(log) == ["RECEIPT"]
    assert_sum_rule(run.campaign)


def test_a_reference_that_the_vendor_made_up_leaves_the_message_id(run):
    log = make_log(run, status=S.UNCONFIRMED, provider_message_id="p-1")
    tell(run.campaign.session, receipt("ACCEPTED", log, client_ref=str(uuid.uuid4())))
    log.refresh_from_db()
    assert log.status == S.SENT


def test_a_negative_receipt_makes_it_failed_and_is_never_tried_again_by_itself(run):
    log = make_log(run, status=S.SENT)
    told = {"code": "INVALID_RECIPIENT", "detail": "not on this channel\0"}
    assert tell(run.campaign.session, receipt("FAILED", log, **told)) == {"applied": 1}
    log.refresh_from_db()
    assert (log.status, log.error_code, log.error_text, log.retry_at) == (S.FAILED, "INVALID_RECIPIENT", "not on this channel", None)
    assert outcomes(log) == ["FAILED_RECEIPT"]
    run.refresh_from_db()
    assert (run.sent, run.failed) == (0, 1)
    assert_sum_rule(run.campaign)


def test_what_was_delivered_does_not_fail_any_more(run):
    log = make_log(run, status=S.SENT, delivered_at=at(1))
    tell(run.campaign.session, receipt("FAILED", log))
    log.refresh_from_db()
    assert log.status == S.SENT


def test_of_another_session_nothing_is_believed(run):
    """Whoever has the secret of one session could otherwise settle the messages of another."""
    log = make_log(run, status=S.UNCONFIRMED, provider_message_id="p-1")
    stranger = make_session(**HOOKS)
    assert tell(stranger, receipt("ACCEPTED", log), by_ref("ACCEPTED", log)) == {"waiting": 2}
    log.refresh_from_db()
    assert (log.status, log.acked_at) == (S.UNCONFIRMED, None)


def test_the_session_that_tried_before_is_believed(run):
    """The campaign was moved, and the next attempt left from another number."""
    first, log = run.campaign.session, make_log(run, status=S.UNCONFIRMED, attempt=2, session=make_session(**HOOKS))
    log.attempts.create(attempt=1, token=1, session=first, outcome="UNCONFIRMED")
    assert tell(first, by_ref("DELIVERED", log)) == {"applied": 1}
    log.refresh_from_db()
    assert log.status == S.SENT


# -- too early, and while it is tried again ------------------------------------------------------------------------------------


@pytest.fixture
def lane(db):
    """A campaign on a human lane with one message in flight: (campaign, what was claimed)."""
    campaign = ready(1, session=HOOKS)
    return campaign, take(uuid.uuid4())


def test_an_ack_that_comes_before_the_answer_is_kept_and_applied(lane):
    """The ledger does not know the id yet: only the answer brings it."""
    campaign, claimed = lane
    assert tell(campaign.session, receipt("DELIVERED", "id-9", minute=1)) == {"waiting": 1}
    assert apply(4) == {}, "not before its time"
    bring_back(claimed, SendResult.accepted("id-9"))
    assert apply(6) == {"applied": 1}
    log = DispatchLog.objects.get()
    assert (log.status, log.acked_at, log.delivered_at) == (S.SENT, at(1), at(1))
    assert_sum_rule(campaign)


@pytest.mark.parametrize("state", ["ACCEPTED", "FAILED"])
@pytest.mark.parametrize("answer", ["accepted", "unconfirmed", "rate limit"])
def test_a_receipt_by_our_reference_waits_for_the_answer_and_decides_whatever_it_is(lane, state, answer):
    campaign, claimed = lane
    log = DispatchLog.objects.get()
    assert tell(campaign.session, by_ref(state, log)) == {"waiting": 1}
    assert DispatchLog.objects.get().status == S.SENDING
    results = {
        "accepted": SendResult.accepted("id-9"),
        "unconfirmed": refused(ErrorCode.UNCONFIRMED),
        "rate limit": refused(ErrorCode.RATE_LIMIT),
    }
    bring_back(claimed, results[answer])
    assert apply(6) == {"applied": 1}
    assert DispatchLog.objects.get().status == {"ACCEPTED": S.SENT, "FAILED": S.FAILED}[state]
    assert_sum_rule(campaign)
    assert not Alert.objects.filter(kind="duplicate suspected").exists()


def test_what_names_no_message_of_ours_is_ignored_after_a_while(run):
    """A person wrote from the phone."""
    delivery.store(run.campaign.session, (receipt("READ", "written by hand"),))
    for seconds in (0, 6, 40, 170):
        assert apply(seconds) == {"waiting": 1}
    assert apply(800) == {"ignored": 1}
    event = WebhookEvent.objects.get()
    assert (event.state, event.tries, event.error) == (E.IGNORED, 5, "names no message of ours")


def doubtful(campaign: Campaign) -> DispatchLog:
    """Taken for absent, and waiting to be sent again."""
    log = DispatchLog.objects.get(campaign=campaign)
    assert transitions.verified_absent(log.pk, attempt=1, now=NOW)
    log.refresh_from_db()
    assert log.status == S.PENDING
    return log


def test_a_receipt_for_what_waits_to_be_sent_again_spares_the_person_a_second_one(lane):
    campaign, claimed = lane
    bring_back(claimed, refused(ErrorCode.UNCONFIRMED))
    log = doubtful(campaign)
    tell(campaign.session, by_ref("DELIVERED", log))
    log.refresh_from_db()
    assert log.status == S.SENT
    assert take(uuid.uuid4(), now=NOW + timedelta(hours=1)) == []
    assert_sum_rule(campaign)


@pytest.mark.django_db(transaction=True)
def test_a_receipt_for_what_is_being_sent_again_is_told_as_a_duplicate_and_stops_a_third_one(settings):
    campaign = ready(1, session=HOOKS)
    bring_back(take(uuid.uuid4()), refused(ErrorCode.UNCONFIRMED))
    log = doubtful(campaign)
    later = NOW + timedelta(hours=1)
    again = take(uuid.uuid4(), now=later)
    assert [one.attempt for one in again] == [2]
    assert tell(campaign.session, by_ref("DELIVERED", log, minute=1)) == {"waiting": 1}
    found = Alert.objects.get(kind="duplicate suspected")
    assert (found.subject, found.facts["log"]) == (f"campaign {campaign.pk}", log.pk)
    assert DispatchLog.objects.get().delivered_at == at(1)

    bring_back(again, refused(ErrorCode.RATE_LIMIT), now=later)
    assert apply(6) == {"applied": 1}
    assert DispatchLog.objects.get().status == S.SENT, "a third one would be certain to double"
    assert_sum_rule(campaign)


def test_a_retry_that_was_provably_refused_before_is_no_duplicate(lane):
    campaign, claimed = lane
    bring_back(claimed, refused(ErrorCode.RATE_LIMIT))
    later = NOW + timedelta(hours=1)
    again = take(uuid.uuid4(), now=later)
    assert tell(campaign.session, by_ref("ACCEPTED", DispatchLog.objects.get(), minute=60)) == {"waiting": 1}
    bring_back(again, SendResult.accepted("id-9"), now=later)
    assert apply(6) == {"applied": 1}
    assert not Alert.objects.exists()


@pytest.mark.parametrize("name", ["time", "id"])
def test_a_failure_of_an_earlier_try_does_not_fail_the_later_one(run, name):
    log = make_log(run, status=S.SENT, attempt=2, claimed_at=at(0), provider_message_id="second")
    told = {"time": by_ref("FAILED", log, minute=-5), "id": by_ref("FAILED", log, minute=5, message_id="first")}
    tell(run.campaign.session, told[name])
    log.refresh_from_db()
    assert log.status == S.SENT
    tell(run.campaign.session, by_ref("FAILED", log, minute=5, message_id="second"))
    log.refresh_from_db()
    assert log.status == S.FAILED


# -- one bad thing costs itself ------------------------------------------------------------------------------------------------


def test_a_poison_event_costs_itself_and_says_where_it_went_wrong(run, caplog):
    log = make_log(run, status=S.SENT)
    poison = WebhookItem("poison", "receipt", {"kind": "receipt", "state": "ACCEPTED", "at": "the secret text"})
    assert tell(run.campaign.session, poison, receipt("READ", log)) == {"applied": 1, "failed": 1}
    log.refresh_from_db()
    assert log.read_at
    assert WebhookEvent.objects.get(event_id="poison").error == "could not be applied: ValueError"
    assert "the secret text" not in caplog.text
    assert apply(3600) == {}


def test_what_kills_its_process_is_given_up(run):
    delivery.store(run.campaign.session, (receipt("READ", "x"),))
    WebhookEvent.objects.update(tries=len(delivery.WAITS) + 1)
    assert apply() == {"failed": 1}


def test_what_a_process_took_and_did_not_end_is_taken_again(run):
    log = make_log(run, status=S.SENT)
    delivery.store(run.campaign.session, (receipt("READ", log),))
    now = database_now()
    assert WebhookEvent.objects.take(now, until=now + delivery.LEASE, at_most=100)
    assert apply() == {}
    assert apply(delivery.LEASE.total_seconds() + 1) == {"applied": 1}


def test_what_the_database_refuses_for_a_moment_is_tried_again(run, monkeypatch):
    log = make_log(run, status=S.UNCONFIRMED, provider_message_id="p-1")
    with monkeypatch.context() as patched:
        patched.setattr(transitions, "confirmed_by_receipt", lambda *_, **__: (_ for _ in ()).throw(OperationalError("deadlock detected")))
        assert tell(run.campaign.session, receipt("ACCEPTED", log)) == {"waiting": 1}
    assert apply(6) == {"applied": 1}


HOSTILE = {
    "NUL": {"text": "a\0b"},
    "half a surrogate pair": {"text": "\ud83d"},
    "infinite": {"number": float("inf")},
    "not JSON": {"when": NOON, "what": {1, 2}},
    "hostile key": {"a\0\ud83d": 1},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_the_database_cannot_hold_loses_neither_itself_nor_its_neighbours(run, name):
    log = make_log(run, status=S.SENT)
    message = item("message", sender="120255501", at=NOON.isoformat(), **HOSTILE[name])
    assert tell(run.campaign.session, message, receipt("READ", log)) == {"applied": 2}
    assert "\0" not in InboundMessage.objects.get().text


def test_what_cannot_be_kept_at_all_is_marked_and_its_neighbours_are_applied(run):
    log, deep = make_log(run, status=S.SENT), []
    for _ in range(100_000):
        deep = [deep]
    assert tell(run.campaign.session, WebhookItem("deep", "x", {"deep": deep}), receipt("READ", log)) == {"applied": 1}
    assert WebhookEvent.objects.get(event_id="deep").error == "could not be stored: RecursionError"


def test_long_ids_that_begin_alike_stay_apart(run):
    delivery.store(run.campaign.session, tuple(WebhookItem("x" * 200 + end, "x", {}) for end in "ab"))
    assert WebhookEvent.objects.count() == 2


def test_a_kind_that_means_nothing_is_counted_and_no_error(run):
    assert tell(run.campaign.session, item("presence.update"), item("poll.vote")) == {"ignored": 2}
    assert set(WebhookEvent.objects.values_list("state", "error")) == {(E.IGNORED, "")}


def test_a_key_that_is_missing_for_a_while_loses_nothing(run, settings):
    log = make_log(run, status=S.SENT)
    channels = settings.CHANNELS
    settings.CHANNELS = {name: path for name, path in channels.items() if name != "fake_hooks"}
    assert tell(run.campaign.session, receipt("READ", log)) == {"waiting": 1}
    settings.CHANNELS = channels
    assert apply(6) == {"applied": 1}


def test_told_again_it_changes_nothing(run):
    log = make_log(run, status=S.SENT)
    told = (receipt("READ", log, minute=3), item("message", sender="1", at=NOON.isoformat(), text="yes"))
    assert tell(run.campaign.session, *told) == {"applied": 2}
    assert tell(run.campaign.session, *told) == {}
    assert (WebhookEvent.objects.count(), InboundMessage.objects.count()) == (2, 1)


def test_somebody_is_asked_to_apply_only_when_nothing_waited_before(run):
    session = run.campaign.session
    assert delivery.store(session, (item("x"),))
    assert not delivery.store(session, (item("x"),))
    assert apply() == {"ignored": 2}
    assert delivery.store(session, (receipt("READ", "unknown"),))
    assert apply() == {"waiting": 1}
    assert delivery.store(session, (item("x"),)), "what waits for its time keeps nobody from asking"


def test_a_run_goes_on_until_nothing_is_left(run, monkeypatch):
    monkeypatch.setattr(delivery, "ROWS_AT_ONCE", 3)
    assert tell(run.campaign.session, *(item("x") for _ in range(10))) == {"ignored": 10}


def test_a_run_ends_with_its_time_and_gives_the_rest_back(run, monkeypatch):
    class Passing(Deadline):
        looks = 0

        @property
        def passed(self) -> bool:
            Passing.looks += 1
            return Passing.looks > 3

    monkeypatch.setattr(delivery, "Deadline", Passing)
    assert tell(run.campaign.session, *(item("x") for _ in range(10))) == {"ignored": 2}
    monkeypatch.undo()
    assert set(WebhookEvent.objects.filter(state=E.RECEIVED).values_list("tries", flat=True)) == {0}
    assert apply() == {"ignored": 8}


def test_what_may_have_killed_its_process_costs_its_neighbours_one_try(run):
    """Taken once more it comes alone."""
    delivery.store(run.campaign.session, tuple(item("x") for _ in range(10)))
    now = database_now()
    assert len(WebhookEvent.objects.take(now, until=now, at_most=100)) == 10
    assert [len(WebhookEvent.objects.take(now, until=now + delivery.LEASE, at_most=100)) for _ in range(11)] == [1] * 10 + [0]


# -- replies -------------------------------------------------------------------------------------------------------------------


def message(sender: str, **told) -> WebhookItem:
    return item("message", sender=sender, at=NOON.isoformat(), **told)


def test_a_reply_is_kept_with_whom_it_answers(run):
    log = make_log(run, status=S.SENT)
    make_log(run, address=log.address, recipient=None)  # still waits: nothing was sent that could be answered
    tell(run.campaign.session, message(log.address, text="Yes <b>please</b>", message_id="m-1", name="Ana"))
    reply = InboundMessage.objects.get()
    assert (reply.text, reply.name, reply.message_id, reply.sent_at) == ("Yes <b>please</b>", "Ana", "m-1", NOON)
    assert (reply.campaign_id, reply.recipient_id) == (run.campaign_id, log.recipient_id)


def test_a_reply_from_the_number_the_channel_knows_belongs_to_the_one_that_was_imported(run):
    log = make_log(run, status=S.SENT, address="5511955550101@c.us")
    KnownAddress.objects.create(channel="fake_hooks", address=log.address, reach="FOUND", reached_at="551155550101@c.us", checked_at=NOON)
    tell(run.campaign.session, message("551155550101@c.us"))
    assert InboundMessage.objects.get().recipient_id == log.recipient_id


@pytest.mark.parametrize(("minutes", "is_delivered"), [(-1, True), (1, False)], ids=["after it was sent", "before"])
def test_who_answers_has_got_the_message(run, minutes, is_delivered):
    log = make_log(run, address="120255501", status=S.SENT, sent_at=at(minutes))
    tell(run.campaign.session, message("120255501", text="thanks"))
    log.refresh_from_db()
    assert (log.delivered_at, log.acked_at) == ((NOON, NOON) if is_delivered else (None, None))
    assert log.read_at is None


def test_a_reply_of_a_stranger_is_kept_without_a_campaign(run):
    make_log(run, status=S.SENT, address="1@c.us", session=make_session(**HOOKS))
    tell(run.campaign.session, message("1@c.us"))
    assert InboundMessage.objects.get().campaign is None


def test_the_same_message_under_two_events_is_kept_once(run):
    tell(run.campaign.session, message("1@c.us", message_id="m-1"), message("1@c.us", message_id="m-1"))
    assert InboundMessage.objects.count() == 1


def test_a_hidden_sender_is_resolved_once_in_a_run(run, hooks):
    log = make_log(run, status=S.SENT)
    hooks.senders = {"77@lid": log.address}
    tell(run.campaign.session, *(message("77@lid", needs_resolving=True) for _ in range(3)))
    assert hooks.asked == ["77@lid"]
    assert set(InboundMessage.objects.values_list("sender", "sender_id", "recipient")) == {(log.address, "77@lid", log.recipient_id)}


def test_a_hidden_sender_that_the_channel_does_not_know_stays_as_it_came(run):
    assert tell(run.campaign.session, message("77@lid", needs_resolving=True)) == {"applied": 1}
    assert InboundMessage.objects.values_list("sender", "sender_id").get() == ("77@lid", "")


def test_a_channel_that_does_not_answer_is_asked_once_and_the_replies_wait_but_not_for_ever(run, hooks):
    hooks.senders = {"77@lid": TimeoutError(), "78@lid": TimeoutError()}
    delivery.store(run.campaign.session, tuple(message(sender, needs_resolving=True) for sender in ("77@lid", "78@lid")))
    assert apply() == {"waiting": 2}
    assert len(hooks.asked) == 1
    for seconds in (6, 40, 170):
        assert apply(seconds) == {"waiting": 2}
    assert apply(800) == {"applied": 2}
    assert set(InboundMessage.objects.values_list("sender", flat=True)) == {"77@lid", "78@lid"}


# -- states of the session -----------------------------------------------------------------------------------------------------


def state(word: str, detail: str = "", **more: str) -> WebhookItem:
    return item("state", state=word, detail=detail, **more)


def status_of(session: Session) -> tuple[str, str]:
    return Session.objects.values_list("status", "status_detail").get(pk=session.pk)


@pytest.fixture
def session(db):
    return make_session(**HOOKS, checked_at=database_now() - timedelta(hours=1))


def test_the_last_of_several_reports_counts(session):
    tell(session, state("NEEDS_PAIRING"), state("CONNECTING"), state("RESTRICTED", "until tomorrow"))
    assert status_of(session) == ("RESTRICTED", "until tomorrow")


def test_a_socket_that_is_lost_for_seconds_and_a_restriction_outlive_what_says_nothing_of_them(session):
    tell(session, state("CONNECTING"))
    assert status_of(session)[0] == "CONNECTED"
    tell(session, state("RESTRICTED", "until tomorrow"), state("CONNECTED"))
    assert status_of(session) == ("RESTRICTED", "until tomorrow")


@pytest.mark.parametrize("named", [True, False])
def test_a_restriction_lasts_until_its_end_or_for_a_day(session, named):
    end = timezone.now().replace(microsecond=0) + timedelta(hours=5)
    tell(session, state("RESTRICTED", "463", **({"until": end.isoformat()} if named else {})))
    until = Session.objects.get().restricted_until
    assert until == end if named else abs(until - timezone.now() - timedelta(days=1)) < timedelta(minutes=1)
    tell(session, state("DISCONNECTED", "gone"))
    assert Session.objects.get().restricted_until is None


def test_a_session_that_says_it_is_gone_is_told(session, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        tell(session, state("DISCONNECTED", "logged out on the phone"))
        tell(session, state("NEEDS_PAIRING"))
    (alert,) = Alert.objects.all()
    assert (alert.kind, alert.subject, alert.detail, alert.times) == (
        "session disconnected",
        f"session {session.pk}",
        "logged out on the phone",
        1,
    )


@pytest.mark.django_db(transaction=True)
def test_a_report_that_came_while_an_earlier_one_was_applied_counts(session):
    """Both were received before the first was applied: the moment of that must not make the second look old."""
    delivery.store(session, (state("NEEDS_PAIRING"),))
    delivery.store(session, (state("CONNECTED"),))
    apply()
    assert status_of(session)[0] == "CONNECTED"


def test_a_report_from_before_the_last_check_says_nothing_new(session):
    delivery.store(session, (state("DISCONNECTED"),))
    Session.objects.update(checked_at=database_now() + timedelta(seconds=1))
    assert apply() == {"applied": 1}
    assert status_of(session)[0] == "CONNECTED"


@pytest.mark.django_db(transaction=True)
def test_a_session_that_says_it_is_gone_pauses_its_campaign():
    campaign = ready(3, session=HOOKS)
    Session.objects.update(checked_at=database_now() - timedelta(hours=1))
    tell(campaign.session, state("DISCONNECTED", "logged out on the phone"))
    engine = make_engine(now=None)
    try:
        run_until_idle(engine)
    finally:
        engine.close()
    campaign.refresh_from_db()
    assert campaign.status == Campaign.Status.PAUSED
    assert "logged out on the phone" in campaign.status_reason
    assert FakeHooks.calls == []


def test_one_item_may_say_several_things(run):
    log = make_log(run, status=S.SENT)
    told = [
        {"kind": "receipt", "state": "FAILED", "at": NOON.isoformat(), "message_id": log.provider_message_id},
        {"kind": "state", "state": "RESTRICTED", "detail": "463"},
    ]
    Session.objects.update(checked_at=None)
    assert tell(run.campaign.session, item("several", events=told)) == {"applied": 1}
    log.refresh_from_db()
    assert (log.status, status_of(run.campaign.session)) == (S.FAILED, ("RESTRICTED", "463"))


# -- silence -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def quiet(db):
    """Running for an hour; five were accepted ten minutes ago, none confirmed; yesterday's campaign had its receipts."""
    campaign = make_campaign(session=make_session(**HOOKS), status=Campaign.Status.RUNNING)
    make_lane(campaign.session, campaign=campaign)
    old = make_log(make_run(make_step(make_campaign(session=campaign.session))), status=S.SENT)
    tell(campaign.session, receipt("ACCEPTED", old))
    run = make_run(make_step(campaign))
    for _ in range(5):
        make_log(run, status=S.SENT, sent_at=ago(10))
    Campaign.objects.filter(pk=campaign.pk).update(updated_at=ago(60))
    return campaign


def ago(minutes: float) -> datetime:
    return database_now() - timedelta(minutes=minutes)


def newest(campaign: Campaign) -> DispatchLog:
    return DispatchLog.objects.filter(campaign=campaign).first()


def test_a_session_that_hears_nothing_any_more_is_disconnected_and_told(quiet, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        assert delivery.find_silence() == [quiet.session_id]
    assert status_of(quiet.session)[0] == "DISCONNECTED"
    assert Alert.objects.get(kind="session silent").subject == f"session {quiet.session_id}"
    assert delivery.find_silence() == [], "told once"


def the_newest(**changes):
    return lambda quiet: DispatchLog.objects.filter(pk=newest(quiet).pk).update(**{name: ago(past) for name, past in changes.items()})


def told_of_replies_alone(quiet):
    WebhookEvent.objects.update(payload={"kind": "message", "sender": "1", "at": NOON.isoformat()})


NO_SILENCE = {
    "one was confirmed": the_newest(acked_at=9),
    "one is too young": the_newest(sent_at=1),
    "a newer one was confirmed": lambda quiet: make_log(newest(quiet).run, status=S.SENT, sent_at=ago(0.1), acked_at=ago(0)),
    "resumed since": lambda quiet: Campaign.objects.filter(pk=quiet.pk).update(updated_at=ago(5)),
    "a person decided": lambda quiet: DispatchLog.objects.filter(campaign=quiet).update(reason="marked as sent by ana"),
    "its webhooks never told anything": lambda quiet: WebhookEvent.objects.all().delete(),
    "its webhooks told nothing for a day": lambda quiet: WebhookEvent.objects.update(received_at=ago(60 * 25)),
    "its webhooks are for replies": told_of_replies_alone,
    "metered": lambda quiet: Lane.objects.update(rate=10, burst=5),
    "not running": lambda quiet: Campaign.objects.filter(pk=quiet.pk).update(status=Campaign.Status.PAUSED),
}


@pytest.mark.parametrize("name", NO_SILENCE)
def test_what_is_no_silence(quiet, name):
    NO_SILENCE[name](quiet)
    assert delivery.find_silence() == []
    assert status_of(quiet.session)[0] == "CONNECTED"


def test_a_channel_without_receipts_is_never_silent(quiet, monkeypatch):
    monkeypatch.setattr(FakeHooks, "receipts", frozenset())
    assert delivery.find_silence() == []


def test_a_resumed_campaign_is_not_silent_at_once_but_later(quiet, fake):
    assert delivery.find_silence() == [quiet.session_id]
    campaign_transitions.pause(quiet.pk, reason="the session is silent")
    Session.objects.update(status=Session.Status.CONNECTED, checked_at=database_now())
    DispatchLog.objects.create(campaign=quiet, session=quiet.session, step=newest(quiet).step, run=newest(quiet).run, address="1@c.us")
    campaign_transitions.resume(quiet.pk, by="ana")
    assert delivery.find_silence() == []
    for _ in range(5):
        make_log(newest(quiet).run, status=S.SENT, sent_at=database_now())
    assert delivery.find_silence() == []
    assert delivery.find_silence(now=database_now() + timedelta(minutes=3)) == [quiet.session_id]


# -- beside a running engine ---------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_receipts_and_answers_at_once_lock_nobody_out(monkeypatch):
    """Late answers of all rows in one statement, and two who apply receipts of the same rows in the opposite order."""
    monkeypatch.setattr(delivery, "ROWS_AT_ONCE", 5)
    for _ in range(3):
        campaign = ready(24, rate=1000, burst=24, next_send_at=NOW - timedelta(minutes=1), session=HOOKS)
        claimed = take(uuid.uuid4(), rows=24)
        bring_back(claimed, refused(ErrorCode.UNCONFIRMED))
        logs = list(DispatchLog.objects.filter(campaign=campaign))
        assert len(claimed) == len(logs) == 24
        delivery.store(campaign.session, tuple(by_ref(word, log) for log in logs for word in ("ACCEPTED", "DELIVERED", "FAILED")))
        together(
            lambda: [bring_back([one], SendResult.accepted(f"id-{one.id}")) for one in claimed],  # noqa: B023
            lambda: [bring_back(claimed, SendResult.accepted("id")) for _ in range(10)],  # noqa: B023
            apply,
            apply,
        )
        assert set(WebhookEvent.objects.values_list("state", "tries")) == {(E.APPLIED, 1)}
        assert set(DispatchLog.objects.filter(campaign=campaign).values_list("status", flat=True)) == {S.SENT}
        assert_sum_rule(campaign)


def test_what_is_delivered_while_it_is_failed_ends_as_delivered(run, monkeypatch):
    """Another process has noted the time, and saw the message as SENT still: whoever fails it has to look once more."""
    log = make_log(run, status=S.SENT)
    fail = transitions.failed_by_receipt

    def fail_later(log_id: int, **told) -> bool:
        DispatchLog.objects.filter(pk=log_id).update(acked_at=at(1), delivered_at=at(1))
        return fail(log_id, **told)

    monkeypatch.setattr(transitions, "failed_by_receipt", fail_later)
    assert tell(run.campaign.session, receipt("FAILED", log)) == {"applied": 1}
    log.refresh_from_db()
    assert log.status == S.SENT
    assert_sum_rule(run.campaign)


def test_what_is_claimed_between_the_look_and_the_receipt_waits_for_its_answer(run, monkeypatch):
    log = make_log(run, status=S.PENDING, attempt=1, token=1, claimed_at=NOON)
    confirm = transitions.confirmed_by_receipt

    def confirm_later(log_id: int, **told) -> bool:
        DispatchLog.objects.filter(pk=log_id).update(status=S.SENDING, attempt=2)
        return confirm(log_id, **told)

    monkeypatch.setattr(transitions, "confirmed_by_receipt", confirm_later)
    assert tell(run.campaign.session, by_ref("ACCEPTED", log)) == {"waiting": 1}


@pytest.mark.django_db(transaction=True)
def test_the_same_items_in_two_requests_at_once_are_stored_once_and_wait_for_nobody():
    for _ in range(5):
        session = make_session(**HOOKS)
        items = tuple(item("x") for _ in range(50))
        together(lambda: delivery.store(session, items), lambda: delivery.store(session, items[::-1]))  # noqa: B023
        assert WebhookEvent.objects.filter(session=session).count() == 50


@pytest.mark.django_db(transaction=True)
def test_each_event_is_applied_by_one(monkeypatch):
    monkeypatch.setattr(delivery, "ROWS_AT_ONCE", 5)
    session = make_session(**HOOKS)
    delivery.store(session, tuple(item("x") for _ in range(30)))
    done = together(apply, apply, apply)
    assert sum(one.get("ignored", 0) for one in done) == 30

"""What staff decide about single messages, and how they find them."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dispatch.models import DispatchLog
from tests.factories import make_campaign, make_log, make_run, make_step

S = DispatchLog.Status
LIST = reverse("admin:dispatch_dispatchlog_changelist")
CONFIRMED = {"_form_submitted": "True"}
DECISIONS = [
    ("mark_sent", S.UNCONFIRMED, S.SENT),
    ("send_again", S.UNCONFIRMED, S.PENDING),
    ("give_up", S.UNCONFIRMED, S.FAILED),
    ("remove", S.PENDING, S.SKIPPED),
]


@pytest.fixture
def run(db):
    return make_run(make_step(make_campaign()))


def url_of(verb: str, log: DispatchLog) -> str:
    return reverse(f"admin:dispatch_dispatchlog_{verb}", args=[log.pk])


def status_of(log: DispatchLog) -> str:
    return DispatchLog.objects.values_list("status", flat=True).get(pk=log.pk)


@pytest.mark.parametrize(("verb", "origin", "target"), DECISIONS)
def test_a_decision_is_carried_out_with_the_name_of_who_made_it(admin_client, run, said, verb, origin, target):
    log = make_log(run, status=origin)
    response = admin_client.post(url_of(verb, log), CONFIRMED)
    log.refresh_from_db()
    assert (log.status, log.decided_by) == (target, "admin")
    assert f"Message {log.pk} is {target.label.lower()}" in said(response)[0]
    run.refresh_from_db()
    assert run.counts()[{S.SENT: "sent", S.PENDING: "waiting", S.FAILED: "failed", S.SKIPPED: "skipped"}[target]] == 1


@pytest.mark.parametrize(("verb", "origin", "target"), DECISIONS)
def test_looking_at_a_decision_decides_nothing(admin_client, run, verb, origin, target):
    log = make_log(run, status=origin)
    assert admin_client.get(url_of(verb, log)).status_code == 200
    assert status_of(log) == origin


@pytest.mark.parametrize(("verb", "origin", "target"), DECISIONS)
def test_a_decision_needs_its_permission_and_a_csrf_token(staff, admin_user, run, verb, origin, target):
    log = make_log(run, status=origin)
    viewer = staff("dispatch.view_dispatchlog")
    assert viewer.post(url_of(verb, log), CONFIRMED).status_code == 403
    viewer.post(LIST, {"action": f"{verb}_selected", "_selected_action": [log.pk], "confirmed": "yes"})
    assert url_of(verb, log) not in viewer.get(reverse("admin:dispatch_dispatchlog_change", args=[log.pk])).content.decode()
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert strict.post(url_of(verb, log), CONFIRMED).status_code == 403
    assert status_of(log) == origin


@pytest.mark.parametrize(("verb", "origin", "target"), DECISIONS)
def test_a_decision_that_came_too_late_is_refused_with_a_sentence(admin_client, run, said, verb, origin, target):
    log = make_log(run, status=S.SENT)
    assert "somebody or something decided it meanwhile" in said(admin_client.post(url_of(verb, log), CONFIRMED))[0]
    assert status_of(log) == S.SENT


@pytest.mark.parametrize(("verb", "origin", "target"), DECISIONS)
def test_several_are_decided_from_the_list(admin_client, run, said, verb, origin, target):
    one, two, done = make_log(run, status=origin), make_log(run, status=origin), make_log(run, status=S.SENT)
    chosen = [one.pk, two.pk, done.pk]
    response = admin_client.post(LIST, {"action": f"{verb}_selected", "_selected_action": chosen, "confirmed": "yes"})
    assert [status_of(log) for log in (one, two, done)] == [target, target, S.SENT]
    left = f"1 left alone: not {origin.label.lower()}, or decided by somebody or something meanwhile."
    assert said(response) == ["2 message(s) decided.", left]


def test_sending_again_says_first_that_it_may_double(admin_client, run):
    log = make_log(run, status=S.UNCONFIRMED)
    assert "gets the message twice" in admin_client.get(url_of("send_again", log)).content.decode()
    text = admin_client.post(LIST, {"action": "send_again_selected", "_selected_action": [log.pk]}).content.decode()
    assert "gets the message twice" in text and log.address in text
    assert status_of(log) == S.UNCONFIRMED


@pytest.mark.parametrize("status", S)
def test_a_state_shows_the_decisions_that_fit_it(admin_client, run, status):
    log = make_log(run, status=status)
    text = admin_client.get(reverse("admin:dispatch_dispatchlog_change", args=[log.pk])).content.decode()
    assert {verb for verb, _, _ in DECISIONS if url_of(verb, log) in text} == {verb for verb, origin, _ in DECISIONS if origin == status}


def test_a_message_is_found_by_the_beginning_of_its_address_and_by_its_whole_id(admin_client, run):
    log = make_log(run, status=S.SENT, address="12025550142@c.us", provider_message_id="true_123@c.us_ABC")
    make_log(run, address="12025550199@c.us")

    def found(term: str) -> list[int]:
        return [row.pk for row in admin_client.get(LIST, {"q": term}).context["cl"].result_list]

    assert found("1 202 555 0142") == [log.pk]
    assert found("true_123@c.us_ABC") == [log.pk]
    assert found("5550142") == []
    assert found("ABC") == []


def test_the_list_counts_no_further_than_its_cap(admin_client, run):
    make_log(run)
    with CaptureQueriesContext(connection) as captured:
        admin_client.get(LIST)
    counts = [query["sql"] for query in captured if "COUNT(" in query["sql"] and "dispatch_dispatchlog" in query["sql"]]
    assert counts and all("LIMIT 10000" in sql for sql in counts)


def test_the_page_of_a_message_says_everything_about_it(admin_client, run):
    told = {"reason": "refused", "error_code": "FATAL", "error_text": "template unknown", "http_status": 422}
    log = make_log(run, status=S.FAILED, body="Hello Ana", **told)
    log.attempts.create(attempt=1, token=1, session=log.session, outcome="FATAL", detail="what the vendor said")
    text = admin_client.get(reverse("admin:dispatch_dispatchlog_change", args=[log.pk])).content.decode()
    for shown in ("Hello Ana", "refused", "FATAL", "template unknown", "422", log.address, str(log.client_ref), "what the vendor said"):
        assert shown in text

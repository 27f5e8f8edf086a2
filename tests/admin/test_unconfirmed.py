"""Thousands of messages in doubt, and one member of staff who decides them."""

import time
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from campaigns.models import Campaign
from dispatch import transitions
from dispatch.models import DispatchLog, Run
from tests.dispatch.invariants import assert_sum_rule
from tests.factories import make_campaign, make_log, make_run, make_step, make_unconfirmed

S = DispatchLog.Status
LIST = reverse("admin:dispatch_dispatchlog_changelist")
DOUBTFUL = f"{LIST}?status__exact=UNCONFIRMED"
VERBS = {"mark_sent": S.SENT, "send_again": S.PENDING, "give_up": S.FAILED}


@pytest.fixture
def run(db) -> Run:
    return make_unconfirmed(70, make_run(make_step(make_campaign(name="June")), rows_complete=True))


def ask(client, verb: str, *, url: str = DOUBTFUL) -> Any:
    """The page that asks, for the whole list over all its pages: what the browser posts for "select all"."""
    first = DispatchLog.objects.latest("pk").pk
    return client.post(url, {"action": f"{verb}_selected", "_selected_action": [first], "select_across": "1", "index": "0"})


def confirm(client, asked: Any, *, url: str = DOUBTFUL) -> Any:
    """Press the button of the page that asked."""
    data: dict[str, list[Any]] = {}
    for name, value in asked.context["hidden"]:
        data.setdefault(name, []).append(value)
    return client.post(url, data)


def left_in_doubt() -> int:
    return DispatchLog.objects.unconfirmed().count()


# -- deciding ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "target"), VERBS.items())
def test_the_whole_list_is_decided_over_all_its_pages_after_a_page_that_names_the_number(admin_client, run, said, verb, target):
    other = make_unconfirmed(5)
    url = f"{DOUBTFUL}&campaign__id__exact={run.campaign_id}"
    asked = ask(admin_client, verb, url=url)
    text = asked.content.decode()
    assert "70 unconfirmed messages." in text and "and 60 more" in text
    assert {"mark_sent": "Mark as sent: 70", "send_again": "Send again: 70", "give_up": "Give up: 70"}[verb] in text
    assert ("may double" in text) == (verb == "send_again")
    assert left_in_doubt() == 75
    response = confirm(admin_client, asked, url=url)
    assert said(response) == ["70 message(s) decided."]
    assert response.url == url
    assert set(run.logs.values_list("status", "decided_by")) == {(target, "admin")}
    assert other.logs.unconfirmed().count() == 5
    assert_sum_rule()


def test_single_ones_are_confirmed_too_and_those_that_do_not_fit_are_named(admin_client, run, said):
    one = run.logs.first()
    sent = make_log(run, status=S.SENT)
    asked = admin_client.post(LIST, {"action": "mark_sent_selected", "_selected_action": [one.pk, sent.pk]})
    text = asked.content.decode()
    assert "1 unconfirmed message." in text and "1 of those you chose are left alone: not unconfirmed." in text
    assert one.address in text and left_in_doubt() == 70
    left = "1 left alone: not unconfirmed, or decided by somebody or something meanwhile."
    assert said(confirm(admin_client, asked, url=LIST)) == ["1 message(s) decided.", left]
    assert left_in_doubt() == 69


def test_where_none_fits_there_is_nothing_to_press(admin_client, run):
    sent = make_log(run, status=S.SENT)
    asked = admin_client.post(LIST, {"action": "give_up_selected", "_selected_action": [sent.pk]})
    assert "0 unconfirmed messages." in asked.content.decode()
    assert "Give up: 0" not in asked.content.decode()


def test_what_somebody_decided_meanwhile_is_left_alone_and_counted_apart(admin_client, run, said):
    asked = ask(admin_client, "give_up")
    for log_id in run.logs.values_list("pk", flat=True)[:3]:
        transitions.mark_sent(log_id, by="ben")
    left = "3 left alone: not unconfirmed, or decided by somebody or something meanwhile."
    assert said(confirm(admin_client, asked)) == ["67 message(s) decided.", left]
    assert run.logs.filter(status=S.SENT, decided_by="ben").count() == 3
    assert_sum_rule(run.campaign)


def test_what_fell_into_doubt_after_the_page_asked_is_not_decided_with_the_rest(admin_client, run, said):
    asked = ask(admin_client, "send_again")
    later = make_log(run, status=S.UNCONFIRMED)
    DispatchLog.objects.filter(pk=later.pk).update(unconfirmed_at=timezone.now() + timedelta(seconds=1))
    assert said(confirm(admin_client, asked)) == ["70 message(s) decided."]
    assert list(DispatchLog.objects.unconfirmed()) == [later]


def test_ten_thousand_in_one_request(admin_client, said):
    run = make_unconfirmed(10_000)
    asked = ask(admin_client, "give_up")
    assert "10000 unconfirmed messages." in asked.content.decode()
    began = time.monotonic()
    response = confirm(admin_client, asked)
    assert time.monotonic() - began < 10
    assert said(response) == ["10000 message(s) decided."]
    assert_sum_rule(run.campaign)


def test_what_one_request_has_no_time_for_is_said_and_left(admin_client, run, said, monkeypatch):
    monkeypatch.setattr("dispatch.deciding.ROWS_AT_ONCE", 50)
    monkeypatch.setattr("dispatch.deciding.decide_all.__kwdefaults__", {"takes_at_most": timedelta(0)})
    assert said(confirm(admin_client, ask(admin_client, "give_up"))) == [
        "50 message(s) decided.",
        "There was no time for all of them. Do the same again for the rest.",
    ]
    assert said(confirm(admin_client, ask(admin_client, "give_up"))) == ["20 message(s) decided."]


@pytest.mark.parametrize("verb", VERBS)
def test_looking_decides_nothing_and_deciding_needs_its_permission(admin_client, staff, run, verb):
    hidden = dict(ask(admin_client, verb).context["hidden"])
    admin_client.get(DOUBTFUL, {**hidden, "status__exact": "UNCONFIRMED"})
    viewer = staff("dispatch.view_dispatchlog")
    assert f"{verb}_selected" not in viewer.get(DOUBTFUL).content.decode()
    viewer.post(DOUBTFUL, hidden)
    assert staff(name="eve").post(DOUBTFUL, hidden).status_code == 403
    assert left_in_doubt() == 70
    confirm(staff("dispatch.view_dispatchlog", "dispatch.change_dispatchlog", name="ben"), ask(admin_client, verb))
    assert left_in_doubt() == 0


@pytest.mark.parametrize(("rubbish", "answer"), [
    ({"shown_at": "yesterday"}, 400), ({"shown_at": "2026-13-45T00:00"}, 400), ({"shown_at": "2026-06-10T12:00"}, 400),
    ({"counted": "-1"}, 302), ({"counted": "many"}, 302),
])  # fmt: skip
def test_what_a_browser_would_not_post_is_survived(admin_client, run, rubbish, answer):
    data = {**dict(ask(admin_client, "give_up").context["hidden"]), **rubbish}
    assert admin_client.post(DOUBTFUL, data).status_code == answer
    assert left_in_doubt() == (70 if answer == 400 else 0)


# -- who decided ---------------------------------------------------------------------------------------------------------------


def test_who_decided_is_in_the_list_the_filter_and_on_the_page(admin_client, run):
    one, two = run.logs.order_by("-pk")[:2]
    transitions.mark_sent(one.pk, by="ana")
    transitions.decide_by_default(run.campaign_id, [two.pk], now=timezone.now())
    Campaign.objects.update(unconfirmed_default=Campaign.UnconfirmedDefault.GIVE_UP)
    transitions.decide_by_default(run.campaign_id, [two.pk], now=timezone.now())
    text = admin_client.get(LIST).content.decode()
    assert 'href="?decided_by=ana"' in text and 'href="?decided_by=default+of+the+campaign"' in text
    for name, log in (("ana", one), (transitions.DEFAULT, two)):
        found = admin_client.get(LIST, {"decided_by": name}).context["cl"].result_list
        assert [row.pk for row in found] == [log.pk]
        page = admin_client.get(reverse("admin:dispatch_dispatchlog_change", args=[log.pk])).content.decode()
        assert name in page and f"by {name}" in page
    assert admin_client.get(LIST, {"decided_by": "an"}).context["cl"].result_count == 0


# -- finding them --------------------------------------------------------------------------------------------------------------


def test_the_first_page_and_the_campaigns_page_lead_to_them(admin_client, run):
    make_unconfirmed(2)
    fact = next(fact for fact in admin_client.get(reverse("admin:index")).context["facts"] if fact["label"] == "Unconfirmed messages")
    assert (fact["value"], fact["url"]) == (72, DOUBTFUL)
    assert admin_client.get(fact["url"]).context["cl"].result_count == 72
    page = admin_client.get(reverse("admin:campaigns_campaign_change", args=[run.campaign_id]))
    link = next(link for link in page.context["overview"]["links"] if link["label"] == "unconfirmed")
    assert link["count"] == 70
    assert admin_client.get(link["url"]).context["cl"].result_count == 70


def test_the_list_says_since_when_and_who_is_asked_next(admin_client, run):
    make_log(run, status=S.UNCONFIRMED, verifications=2, verify_at=timezone.now() + timedelta(hours=1))
    text = admin_client.get(DOUBTFUL).content.decode()
    assert "asked 2 time(s), asked again" in text and "asked 7 time(s), waits for a decision" in text
    assert "In doubt since" in text and "In doubt since" not in admin_client.get(LIST).content.decode()


def opened(client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return [query["sql"] for query in captured]


def test_with_twenty_thousand_of_them_a_list_opens_with_as_many_queries_each_on_an_index(admin_client, run):
    lists = {
        "log_unconfirmed": DOUBTFUL,
        "log_failed": f"{LIST}?status__exact=FAILED",
        "log_by_decider": f"{LIST}?decided_by=ana",
        "": f"{DOUBTFUL}&campaign__id__exact={run.campaign_id}",
    }
    make_unconfirmed(5000, run, status=S.FAILED)
    make_unconfirmed(60, run, status=S.SENT, decided_by="ana")
    before = {name: len(opened(admin_client, url)) for name, url in lists.items()}
    make_unconfirmed(20_000)
    make_unconfirmed(20_000, status=S.SENT)  # the newest: without an index these would be read first
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")  # the small tables too: a join is planned by what is known of both sides
        for index, url in lists.items():
            queries = opened(admin_client, url)
            assert len(queries) == before[index]
            rows = [sql for sql in queries if "dispatch_dispatchlog" in sql and "LIMIT" in sql]
            assert len(rows) >= 2  # the count and the page
            for sql in rows:
                cursor.execute(f"EXPLAIN {sql}")
                plan = "\n".join(line for (line,) in cursor.fetchall())
                assert "Seq Scan on dispatch_dispatchlog" not in plan, plan
                assert index in plan or "COUNT(*)" in sql, plan
    assert "Select all 20070 messages" in " ".join(admin_client.get(DOUBTFUL).content.decode().split())


def test_the_page_of_twenty_thousand_stays_small(admin_client):
    make_unconfirmed(5000, body="x" * 2000)
    admin_client.get(DOUBTFUL)
    tracemalloc.start()
    try:
        ask(admin_client, "send_again")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000  # the texts alone are 10 MB


# -- the default ---------------------------------------------------------------------------------------------------------------


def test_the_default_is_chosen_on_the_campaigns_page_which_says_what_it_risks(admin_client, run):
    text = admin_client.get(reverse("admin:campaigns_campaign_change", args=[run.campaign_id])).content.decode()
    assert 'name="unconfirmed_default"' in text and "Sending again may double" in text


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_select_all_in_a_browser(page, live_server):
    from django.contrib.auth.models import User

    User.objects.create_superuser("ana", password="secret word")
    make_unconfirmed(60)
    page.goto("/")
    page.fill("#id_username", "ana")
    page.fill("#id_password", "secret word")
    page.click("text=Log in")
    page.wait_for_selector("text=Schedulers alive")
    page.goto(DOUBTFUL)
    page.check("#action-toggle")
    page.click("text=Select all 60 messages")
    page.select_option("select[name=action]", "give_up_selected")
    page.click("button[name=index]")
    page.wait_for_selector("text=60 unconfirmed messages.")
    page.click("text=Give up: 60")
    page.wait_for_selector("text=60 message(s) decided.")
    assert not DispatchLog.objects.unconfirmed().exists()

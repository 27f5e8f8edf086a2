"""The buttons of a campaign: they call the verbs, by POST only, for those who may, and say why when a verb refuses."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from campaigns.admin.actions import BUTTONS
from campaigns.models import Campaign
from dispatch.models import DispatchLog
from sessions_app.models import Session
from tests.factories import make_campaign, make_log, make_recipient, make_run, make_session, make_step

S = Campaign.Status
LIST = reverse("admin:campaigns_campaign_changelist")
CONFIRMED = {"_form_submitted": "True"}
CASES = [  # verb, from, to
    ("start", S.DRAFT, S.RUNNING),
    ("schedule", S.DRAFT, S.SCHEDULED),
    ("pause", S.RUNNING, S.PAUSED),
    ("resume", S.PAUSED, S.RUNNING),
    ("stop", S.RUNNING, S.FAILED),
]


@pytest.fixture
def ready(db):
    def make(status=S.DRAFT, **changes) -> Campaign:
        campaign = make_campaign(status=status, scheduled_at=timezone.now() + timedelta(days=1), safe_hours="OFF", **changes)
        make_step(campaign)
        make_recipient(campaign)
        return campaign

    return make


def url_of(verb: str, campaign: Campaign) -> str:
    return reverse(f"admin:campaigns_campaign_{verb}", args=[campaign.pk])


def status_of(campaign: Campaign) -> str:
    return Campaign.objects.values_list("status", flat=True).get(pk=campaign.pk)


@pytest.mark.parametrize(("verb", "origin", "target"), CASES)
def test_a_button_applies_its_verb_and_says_so(admin_client, ready, said, verb, origin, target):
    campaign = ready(origin, name="June")
    response = admin_client.post(url_of(verb, campaign), CONFIRMED)
    assert status_of(campaign) == target
    assert said(response) == [f'"June" is {target.label.lower()}.']
    assert response.headers["Location"] == reverse("admin:campaigns_campaign_change", args=[campaign.pk])
    assert Campaign.objects.get().status_reason.endswith("by admin")


@pytest.mark.parametrize(("verb", "origin", "target"), CASES)
def test_looking_at_a_button_changes_nothing(admin_client, ready, verb, origin, target):
    campaign = ready(origin)
    response = admin_client.get(url_of(verb, campaign))
    assert response.status_code == 200 and "csrfmiddlewaretoken" in response.content.decode()
    assert status_of(campaign) == origin


@pytest.mark.parametrize(("verb", "origin", "target"), CASES)
def test_a_button_needs_the_change_permission(staff, ready, verb, origin, target):
    campaign = ready(origin)
    client = staff("campaigns.view_campaign")
    assert client.post(url_of(verb, campaign), CONFIRMED).status_code == 403
    client.post(LIST, {"action": f"{verb}_selected", "_selected_action": [campaign.pk], "confirmed": "yes"})
    assert status_of(campaign) == origin
    assert url_of(verb, campaign) not in client.get(reverse("admin:campaigns_campaign_change", args=[campaign.pk])).content.decode()


@pytest.mark.parametrize(("verb", "origin", "target"), CASES)
def test_a_button_needs_a_csrf_token(admin_user, ready, verb, origin, target):
    campaign = ready(origin)
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(url_of(verb, campaign), CONFIRMED).status_code == 403
    assert client.post(LIST, {"action": f"{verb}_selected", "_selected_action": [campaign.pk]}).status_code == 403
    assert status_of(campaign) == origin


@pytest.mark.parametrize(("verb", "origin", "target"), CASES)
def test_the_lists_action_applies_the_verb_to_each_and_says_what_each_said(admin_client, ready, said, verb, origin, target):
    campaign, stopped = ready(origin, name="June"), ready(S.FAILED, name="May", status_reason="stopped by bob")
    chosen = [campaign.pk, stopped.pk]
    response = admin_client.post(LIST, {"action": f"{verb}_selected", "_selected_action": chosen, "confirmed": "yes"})
    assert status_of(campaign) == target
    assert said(response)[0] == f'"June" is {target.label.lower()}.'
    assert '"May" is Stopped' in said(response)[1]
    assert status_of(stopped) == S.FAILED


def test_stopping_from_the_list_asks_first(admin_client, ready):
    campaign = ready(S.RUNNING, name="June")
    response = admin_client.post(LIST, {"action": "stop_selected", "_selected_action": [campaign.pk]})
    text = response.content.decode()
    assert "cannot be started again" in text and "June" in text and 'name="confirmed"' in text
    assert re.search(r"<button[^>]*>\s*Stop for good\s*</button>", text)
    assert status_of(campaign) == S.RUNNING


def test_a_dialog_that_was_not_submitted_changes_nothing(admin_client, ready):
    campaign = ready(S.RUNNING)
    admin_client.post(url_of("stop", campaign), {})
    assert status_of(campaign) == S.RUNNING


def test_htmx_is_sent_on_by_its_own_header(admin_client, ready):
    campaign = ready(S.RUNNING)
    response = admin_client.post(url_of("pause", campaign), CONFIRMED, headers={"HX-Request": "true"})
    assert (response.status_code, response.headers["HX-Redirect"]) == (204, reverse("admin:campaigns_campaign_change", args=[campaign.pk]))


def test_what_is_not_ready_is_refused_with_every_reason(admin_client, said):
    campaign = make_campaign(name="Empty")
    sentence = said(admin_client.post(url_of("start", campaign), CONFIRMED))[0]
    assert '"Empty" cannot go out yet' in sentence and "no recipients" in sentence and "no steps" in sentence
    assert status_of(campaign) == S.DRAFT


def test_a_session_that_is_away_is_refused_with_its_state(admin_client, ready, said):
    campaign = ready(session=make_session(status=Session.Status.NEEDS_PAIRING, status_detail="scan the code", name="Sales"))
    answer = said(admin_client.post(url_of("start", campaign), CONFIRMED))[0]
    assert 'Session "Sales" is not connected: needs pairing (scan the code)' in answer


def test_a_busy_session_is_refused_with_the_campaign_that_holds_it(admin_client, ready, said):
    session = make_session(name="Sales")
    ready(S.RUNNING, session=session, name="May")
    campaign = ready(session=session)
    assert 'Session "Sales" is busy with "May"' in said(admin_client.post(url_of("start", campaign), CONFIRMED))[0]
    assert status_of(campaign) == S.DRAFT


def test_a_deleted_campaign_leads_back_to_the_list(admin_client, ready, said):
    campaign = ready()
    url = url_of("start", campaign)
    Campaign.objects.all().delete()
    response = admin_client.post(url, CONFIRMED)
    assert "There is no campaign" in said(response)[0]
    assert response.headers["Location"] == LIST


@pytest.mark.parametrize("status", S)
def test_a_state_shows_the_buttons_that_fit_it(admin_client, ready, status):
    campaign = ready(status, **({"due_at": "2099-01-01T00:00Z"} if status == S.SCHEDULED else {}))
    text = admin_client.get(reverse("admin:campaigns_campaign_change", args=[campaign.pk])).content.decode()
    shown = {verb for verb in ("start", "schedule", "pause", "resume", "stop", "move") if url_of(verb, campaign) in text}
    assert shown == BUTTONS[status]


def test_a_campaign_moves_to_another_session_of_its_channel(admin_client, ready, said):
    campaign = ready(S.PAUSED, name="June")
    target, foreign = make_session(name="Second"), make_session(name="Foreign", channel="waha")
    text = admin_client.get(url_of("move", campaign)).content.decode()
    assert "Second" in text and "Foreign" not in text
    refused = admin_client.post(url_of("move", campaign), {**CONFIRMED, "session": foreign.pk})
    assert "Select a valid choice" in refused.content.decode()
    response = admin_client.post(url_of("move", campaign), {**CONFIRMED, "session": target.pk})
    assert said(response) == ['"June" was moved to "Second".']
    assert Campaign.objects.get(pk=campaign.pk).session == target


def test_a_running_campaign_does_not_move(admin_client, ready, said):
    campaign = ready(S.RUNNING)
    response = admin_client.post(url_of("move", campaign), {**CONFIRMED, "session": make_session().pk})
    assert "Pause it first" in said(response)[0]


@pytest.mark.parametrize("status", [S.SCHEDULED, S.RUNNING, S.PAUSED])
def test_a_live_campaign_is_not_deleted(admin_client, ready, said, status):
    campaign = ready(status, name="June")
    url = reverse("admin:campaigns_campaign_delete", args=[campaign.pk])
    sentence = f'"June" is {status.label.lower()} and cannot be deleted. Stop it first.'
    assert said(admin_client.post(url, {"post": "yes"})) == [sentence]
    bulk = {"action": "delete_selected", "_selected_action": [campaign.pk], "post": "yes"}
    assert said(admin_client.post(LIST, bulk))[-1] == sentence
    assert Campaign.objects.filter(pk=campaign.pk).exists()


def test_a_draft_is_deleted_with_what_belongs_to_it(admin_client, ready):
    campaign, other = ready(), ready(S.COMPLETED)
    url = reverse("admin:campaigns_campaign_delete", args=[campaign.pk])
    assert "Recipients" in admin_client.get(url).content.decode()
    admin_client.post(url, {"post": "yes"})
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"})
    assert not Campaign.objects.exists()


def test_a_campaign_with_a_message_on_its_way_is_not_deleted(admin_client, ready, said):
    campaign = ready(S.FAILED, name="June")
    log = make_log(make_run(campaign.steps.get()), status=DispatchLog.Status.SENDING)
    url = reverse("admin:campaigns_campaign_delete", args=[campaign.pk])
    assert said(admin_client.post(url, {"post": "yes"})) == ['"June" has a message on its way. Wait until it has arrived, then delete it.']
    log.delete()
    admin_client.post(url, {"post": "yes"})
    assert not Campaign.objects.exists()

"""What staff type into a campaign and its steps: taken as meant, or refused with a sentence; and what a run has begun with stays."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from campaigns import transitions
from campaigns.models import Campaign, CampaignStep
from tests.factories import make_campaign, make_lane, make_log, make_recipient, make_run, make_session, make_step

S = Campaign.Status
ADD = reverse("admin:campaigns_campaign_add")
LIST = reverse("admin:campaigns_campaign_changelist")


def change(campaign: Campaign) -> str:
    return reverse("admin:campaigns_campaign_change", args=[campaign.pk])


def posted(*steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The form as the browser sends it. A step without `id` is a new one."""
    values = {
        "name": "June",
        "tenant": "",
        "time_zone": "America/Sao_Paulo",
        "min_interval": "8",
        "max_interval": "25",
        "batch_size": "10",
        "batch_pause": "120",
        "safe_hours": "WARN",
        "safe_from": "07:00",
        "safe_until": "22:00",
        "steps-TOTAL_FORMS": len(steps),
        "steps-INITIAL_FORMS": sum("id" in step for step in steps),
        **changes,
    }
    for number, step in enumerate(steps):
        for name, value in {"order": number + 1, "message_type": "TEXT", "text": "Hello", "link_preview_quality": "LOW", **step}.items():
            values[f"steps-{number}-{name}"] = value
        values.setdefault(f"steps-{number}-template_components", "[]")
        values.setdefault(f"steps-{number}-link_preview", "on")
    return values


def kept(step: CampaignStep, **changes: Any) -> dict[str, Any]:
    return {"id": step.pk, "campaign": step.campaign_id, "order": step.order, "text": step.text, **changes}


@pytest.fixture
def session(db):
    return make_session(name="Sales")


def test_a_campaign_is_made_with_its_steps_and_its_maker(admin_client, admin_user, session):
    response = admin_client.post(ADD, posted({"text": "One"}, {"text": "Two", "delay_after_previous": "2 00:00:00"}, session=session.pk))
    assert response.status_code == 302, response.context["errors"]
    campaign = Campaign.objects.get()
    assert (campaign.created_by, campaign.status) == (admin_user, S.DRAFT)
    assert [step.text for step in campaign.steps.order_by("order")] == ["One", "Two"]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("min_interval", "abc", "Enter a whole number."),
        ("min_interval", "0", "greater than or equal to 1"),
        ("min_interval", "-1", "greater than or equal to"),
        ("min_interval", "99999999999", "less than or equal to 2147483647"),
        ("max_interval", "3", "is below the shortest"),
        ("batch_size", "", "This field is required."),
        ("time_zone", "Mars/Olympus", "is not a time zone"),
        ("safe_hours", "SOMETIMES", "SOMETIMES is not one of the available choices"),
        ("safe_from", "25:00", "Enter a valid time."),
        ("scheduled_at", "tomorrow", "Write a date and a time"),
        ("scheduled_at", "0001-01-01T00:00", "cannot be right"),
        ("session", "0", "That choice is not one of the available choices"),
        ("name", "", "This field is required."),
        ("name", "null\x00byte", "Null characters are not allowed."),
        ("grace_seconds", "-1", "greater than or equal to 0"),
    ],
)
def test_a_bad_value_is_refused_with_a_sentence(admin_client, session, field, value, sentence):
    response = admin_client.post(ADD, posted({}, session=session.pk, **({} if field == "session" else {field: value})) | {field: value})
    assert response.status_code == 200
    assert sentence in response.content.decode()
    assert not Campaign.objects.exists()


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        ({"text": "", "name": "Hello"}, "Write the text of this step."),
        ({"text": "Hello {{ name"}, "{{"),
        ({"text": "Hello {{ name|upper }}"}, "upper"),
        ({"message_type": "TEMPLATE", "template_name": "x", "template_language": "en"}, "Sales channel"),
        ({"recurrence_type": "fortnightly"}, "&quot;fortnightly&quot; is not a recurrence"),
        ({"recurrence_count": "3"}, "Say how often it repeats"),
        ({"scheduled_at": "2027-03-01T09:00", "delay_after_previous": "1 00:00:00"}, "not both"),
        ({"delay_after_previous": "-1 00:00:00"}, "cannot be negative"),
        ({"delay_after_previous": "soon"}, "Enter a valid duration."),
        ({"time_zone": "Mars/Olympus"}, "is not a time zone"),
        ({"time_zone": "Europe/Lisbon", "scheduled_at": "2027-03-28T01:30"}, "does not exist in Europe/Lisbon"),
        ({"order": "-1"}, "greater than or equal to 0"),
        ({"template_components": "{"}, "Enter a valid JSON."),
        ({"template_components": '{"a": 1}'}, "Write a list"),
        ({"message_type": "TEMPLATE"}, "Give the name of the template"),
        ({"subject": "News"}, "does not send this"),
        ({"html": "<b>News</b>"}, "does not send this"),
        ({"filename": "news.pdf"}, "does not send this"),
        ({"subject": "News {{ name"}, "is never closed"),
    ],
)
def test_a_bad_step_is_refused_with_a_sentence(admin_client, settings, step, sentence):
    channel = "waha" if sentence == "Sales channel" else "mock"
    refused = "WhatsApp (WAHA) cannot send this type of message. It sends: Text, Image, Video, Audio, Document."
    sentence = sentence.replace("Sales channel", refused)
    response = admin_client.post(ADD, posted(step, session=make_session(channel=channel).pk))
    assert response.status_code == 200
    assert sentence in response.content.decode()
    assert not Campaign.objects.exists()


def test_two_steps_with_one_order_are_refused_and_two_that_change_places_are_not(admin_client, session):
    response = admin_client.post(ADD, posted({"order": 1}, {"order": 1}, session=session.pk))
    assert "Two steps have the order 1." in response.content.decode()
    campaign = make_campaign(session=session)
    first, second = make_step(campaign, text="One"), make_step(campaign, text="Two")
    assert admin_client.post(change(campaign), posted(kept(first, order=2), kept(second, order=1), session=session.pk)).status_code == 302
    assert [step.text for step in campaign.steps.order_by("order")] == ["Two", "One"]


# --- times on the campaign's clock


def test_the_start_is_typed_and_shown_in_the_campaigns_zone(admin_client, session):
    admin_client.post(ADD, posted({}, session=session.pk, scheduled_at="2027-03-01T09:00"))
    campaign = Campaign.objects.get()
    assert campaign.scheduled_at == datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
    text = admin_client.get(change(campaign)).content.decode()
    assert 'value="2027-03-01T09:00"' in text and "now America/Sao_Paulo" in text


def test_a_start_that_the_clocks_skip_is_refused(admin_client, session):
    response = admin_client.post(ADD, posted({}, session=session.pk, time_zone="Europe/Lisbon", scheduled_at="2027-03-28T01:30"))
    assert "does not exist in Europe/Lisbon" in response.content.decode()


def test_a_steps_time_follows_its_own_zone_and_else_the_campaigns(admin_client, session):
    steps = [{"scheduled_at": "2027-03-01T09:00"}, {"scheduled_at": "2027-03-01T09:00", "time_zone": "Asia/Tokyo"}]
    admin_client.post(ADD, posted(*steps, session=session.pk))
    times = [step.scheduled_at for step in CampaignStep.objects.order_by("order")]
    assert times == [datetime(2027, 3, 1, 12, 0, tzinfo=UTC), datetime(2027, 3, 1, 0, 0, tzinfo=UTC)]


def test_an_untouched_start_keeps_its_seconds(admin_client, session):
    moment = datetime(2027, 11, 7, 6, 30, 17, tzinfo=UTC)  # the second 01:30 of that night in New York
    campaign = make_campaign(session=session, time_zone="America/New_York", scheduled_at=moment)
    data = posted(name="Renamed", session=session.pk, time_zone="America/New_York", scheduled_at="2027-11-07T01:30")
    admin_client.post(change(campaign), data)
    campaign.refresh_from_db()
    assert (campaign.name, campaign.scheduled_at) == ("Renamed", moment)


def test_a_changed_zone_keeps_the_time_on_the_clock(admin_client, session):
    campaign = make_campaign(session=session, time_zone="UTC", scheduled_at=datetime(2027, 3, 1, 9, 0, tzinfo=UTC))
    admin_client.post(change(campaign), posted(session=session.pk, scheduled_at="2027-03-01T09:00"))
    campaign.refresh_from_db()
    assert campaign.scheduled_at == datetime(2027, 3, 1, 12, 0, tzinfo=UTC)


def test_a_changed_zone_of_the_campaign_keeps_its_steps_times_on_the_clock(admin_client, session):
    campaign = make_campaign(session=session, time_zone="UTC")
    step = make_step(campaign, scheduled_at=datetime(2027, 3, 1, 9, 0, tzinfo=UTC))
    own = make_step(campaign, scheduled_at=datetime(2027, 3, 1, 9, 0, tzinfo=UTC), time_zone="UTC")
    steps = [kept(step, scheduled_at="2027-03-01T09:00"), kept(own, scheduled_at="2027-03-01T09:00", time_zone="UTC")]
    assert admin_client.post(change(campaign), posted(*steps, session=session.pk)).status_code == 302
    step.refresh_from_db()
    own.refresh_from_db()
    assert step.scheduled_at == datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
    assert own.scheduled_at == datetime(2027, 3, 1, 9, 0, tzinfo=UTC)


# --- beside a running engine


@pytest.fixture
def running(session):
    campaign = make_campaign(session=session, status=S.RUNNING, name="June")
    step = make_step(campaign, text="Begun")
    make_log(make_run(step))
    return campaign


def test_pacing_of_a_running_campaign_may_be_edited_and_nothing_else_is_written(admin_client, running):
    step = running.steps.get()
    data = posted({"id": step.pk, "campaign": running.pk}, min_interval="30", max_interval="60", name="Renamed")
    for name in [name for name in data if name.startswith("steps-0-") and name not in {"steps-0-id", "steps-0-campaign"}]:
        del data[name]  # the browser does not send what is disabled
    response = admin_client.post(change(running), data)
    assert response.status_code == 302, response.context["errors"]
    running.refresh_from_db()
    assert (running.min_interval, running.name, running.status, running.epoch) == (30, "Renamed", S.RUNNING, 1)


def test_the_text_of_a_step_that_has_begun_is_frozen(admin_client, running):
    step = running.steps.get()
    assert "disabled" in admin_client.get(change(running)).content.decode()
    response = admin_client.post(change(running), posted(kept(step, text="Changed")))
    assert "its text and times are frozen" in response.content.decode()
    step.refresh_from_db()
    assert step.text == "Begun"


def test_a_step_that_has_begun_is_not_deleted(admin_client, running):
    step = running.steps.get()
    response = admin_client.post(change(running), posted(kept(step, DELETE="on")))
    assert "has messages in the log and cannot be deleted" in response.content.decode()
    assert running.steps.exists()


def test_a_step_may_be_added_after_one_that_has_begun_and_not_before(admin_client, running):
    step = running.steps.get()
    CampaignStep.objects.update(order=5)
    step.refresh_from_db()
    response = admin_client.post(change(running), posted(kept(step), {"order": 2}))
    assert "A new step cannot come before step 5" in response.content.decode()
    assert admin_client.post(change(running), posted(kept(step), {"order": 6, "text": "Later"})).status_code == 302
    assert running.steps.count() == 2


def test_a_step_that_has_not_begun_is_edited_and_deleted(admin_client, running):
    later, spare = make_step(running), make_step(running)
    begun = running.steps.get(order=1)
    data = posted(kept(begun), kept(later, text="Edited"), kept(spare, DELETE="on"))
    assert admin_client.post(change(running), data).status_code == 302
    assert list(running.steps.order_by("order").values_list("text", flat=True)) == ["Begun", "Edited"]


def test_the_time_of_a_step_that_has_its_time_already_is_refused(admin_client, session):
    campaign = make_campaign(session=session, status=S.PAUSED)
    step = make_step(campaign, status=CampaignStep.Status.SCHEDULED)
    response = admin_client.post(change(campaign), posted(kept(step, scheduled_at="2027-03-01T09:00")))
    assert "can no longer be changed" in response.content.decode()


def test_the_session_and_the_start_are_fixed_once_they_are_in_use(admin_client, session):
    campaign = make_campaign(session=session, status=S.SCHEDULED, scheduled_at=datetime(2027, 3, 1, 9, 0, tzinfo=UTC))
    admin_client.post(change(campaign), posted(session=make_session().pk, scheduled_at="2028-01-01T00:00"))
    campaign.refresh_from_db()
    assert (campaign.name, campaign.session, campaign.scheduled_at) == ("June", session, datetime(2027, 3, 1, 9, 0, tzinfo=UTC))
    draft = make_campaign(session=session)
    make_recipient(draft)
    admin_client.post(change(draft), posted(session=make_session(channel="waha").pk))
    draft.refresh_from_db()
    assert (draft.name, draft.session) == ("June", session)


def test_an_edit_never_writes_back_a_status_that_moved_meanwhile(admin_user, running):
    opened = Campaign.objects.get(pk=running.pk)
    transitions.pause(running.pk, reason="paused by the engine")
    request = RequestFactory().post("/")
    request.user = admin_user

    class Form:
        cleaned_data = {"name": "Renamed"}

    opened.name = "Renamed"
    admin.site._registry[Campaign].save_model(request, opened, Form, change=True)
    running.refresh_from_db()
    assert (running.name, running.status, running.status_reason) == ("Renamed", S.PAUSED, "paused by the engine")


# --- what the page shows


def test_the_pacing_that_will_be_used_stands_beside_what_was_typed(admin_client, session):
    campaign = make_campaign(session=session, min_interval=3, max_interval=4, batch_size=50, batch_pause=10)
    text = admin_client.get(change(campaign)).content.decode()
    for line in ("Shortest interval 8 s: 3 is raised to 8", "Longest interval 13 s: 4 is raised to 13"):
        assert line in text
    for line in ("Batch size 20 messages: 50 is cut to 20", "Pause after a batch 60 s: 10 is raised to 60"):
        assert line in text


def test_a_metered_channel_says_that_it_uses_none_of_them(admin_client):
    campaign = make_campaign(session=make_session(channel="sandbox", settings={"base_url": "http://127.0.0.1:3900", "session": "default"}))
    text = admin_client.get(change(campaign)).content.decode()
    assert "This channel is metered: up to" in text and "not used on it" in text


def test_what_keeps_it_from_starting_stands_on_its_page(admin_client, session):
    campaign = make_campaign(session=session)
    make_step(campaign, text="Hello {{ city }}")
    make_recipient(campaign)
    text = admin_client.get(change(campaign)).content.decode()
    assert "1 of 1 recipients have no value for &quot;city&quot;" in text


def test_the_counts_lead_to_the_messages_they_count(admin_client, running):
    url = reverse("admin:dispatch_dispatchlog_changelist") + f"?campaign__id__exact={running.pk}&status__exact=PENDING"
    assert url.replace("&", "&amp;") in admin_client.get(change(running)).content.decode()
    assert [log.pk for log in admin_client.get(url).context["cl"].result_list] == [running.logs.get().pk]


def test_the_list_shows_state_counts_and_the_next_send(admin_client, session):
    campaign = make_campaign(session=session, status=S.RUNNING, status_reason="started by ana", time_zone="America/Sao_Paulo")
    run = make_run(make_step(campaign))
    for status in ("SENT", "SENT", "FAILED", "UNCONFIRMED", "PENDING"):
        make_log(run, status=status)
    moment = datetime(2099, 1, 1, 12, 0, tzinfo=UTC)
    make_lane(session, campaign=campaign, next_send_at=moment)
    make_campaign(status=S.SCHEDULED, due_at=moment + timedelta(days=1), session=session)
    text = admin_client.get(LIST).content.decode()
    for shown in ("2 sent, 1 failed", "1 unconfirmed, 1 pending", "4 of 5, 80%", "started by ana"):
        assert shown in text
    for shown in ("09:00:00 (America/Sao_Paulo)", "02 Jan 2099 12:00 (UTC)"):
        assert shown in text


@pytest.mark.parametrize(("query", "found"), [("status__exact=DRAFT", "Draft one"), ("q=bakery", "Draft one"), ("q=Other", "Other one")])
def test_the_list_is_filtered_and_searched(admin_client, session, query, found):
    make_campaign(name="Draft one", tenant="Bakery", session=session)
    make_campaign(name="Other one", status=S.COMPLETED, session=session)
    text = admin_client.get(f"{LIST}?{query}").content.decode()
    assert {"Draft one", "Other one"} & {name for name in ("Draft one", "Other one") if name in text} == {found}


def test_an_edit_waits_for_the_verbs_and_they_for_it(admin_client, running):
    """The form decides from a row that it holds: a start or a pause cannot slip in between."""
    with CaptureQueriesContext(connection) as captured:
        admin_client.post(change(running), posted())
    first = next(query["sql"] for query in captured if 'FROM "campaigns_campaign"' in query["sql"] and "FOR UPDATE" in query["sql"])
    statements = [query["sql"] for query in captured]
    assert statements.index(first) < next(number for number, sql in enumerate(statements) if '"campaigns_campaignstep"' in sql)

"""A template is chosen from the synced list and filled with lines; what is stored comes back as it was, and what was by hand wins."""

import json
import re

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from campaigns.models import Campaign
from sessions_app.models import MessageTemplate
from sessions_app.providers.mock import MockProvider
from tests.admin.test_campaign_form import change, posted
from tests.factories import make_campaign, make_log, make_run, make_session, make_step

PARCEL = [{"type": "HEADER", "format": "TEXT", "text": "Parcel {{1}}"}, {"type": "BODY", "text": "Dear {{1}}, <b> it is in {{2}}."}]
LINK = {"type": "BUTTONS", "buttons": [{"type": "URL", "url": "https://example.com/{{1}}"}]}
PHOTO = [{"type": "HEADER", "format": "IMAGE"}, {"type": "BODY", "text": "Hi {{1}}"}]
CAROUSEL = [{"type": "CAROUSEL", "cards": []}]
NAMED = {"template_name": "parcel", "template_language": "en_US"}
BY_HAND = [{"type": "body", "parameters": [{"type": "currency", "currency": {"code": "BRL", "amount_1000": 1}}]}]
PICTURE = "https://example.com/a.png"


def sent(heading, *body):
    def text(value):
        return {"type": "text", "text": value}

    return [{"type": "header", "parameters": [text(heading)]}, {"type": "body", "parameters": [text(value) for value in body]}]


def photo(name, url=PICTURE):
    link = {"type": "image", "image": {"link": url}}
    return [{"type": "header", "parameters": [link]}, {"type": "body", "parameters": [{"type": "text", "text": name}]}]


def make_template(session, name="parcel", language="en_US", status="APPROVED", components=PARCEL):
    return MessageTemplate.objects.create(
        session=session, name=name, language=language, status=status, components=components, synced_at=timezone.now()
    )


@pytest.fixture
def campaign(db):
    session = make_session(name="Shop", channel="whatsapp_cloud")
    make_template(session)
    make_template(session, language="pt_BR", components=[*PARCEL, LINK])
    make_template(session, "plain", components=[])
    make_template(session, "photo", components=PHOTO)
    make_template(session, "cards", components=CAROUSEL)
    make_template(session, "bad", status="REJECTED")
    make_template(make_session(channel="whatsapp_cloud"), "of another session")
    return make_campaign(session=session, name="June")


def template_step(campaign, **fields):
    return make_step(
        campaign, **{"message_type": "TEMPLATE", "text": "", **NAMED, "template_components": sent("4711", "Ana", "Rio"), **fields}
    )


def shown(client, campaign, number=0):
    """The step as a browser would send it back untouched: what the page shows, and lines ended as browsers do."""
    response = client.get(change(campaign))
    formset = response.context["inline_admin_formsets"][0].formset
    form, page = formset.forms[number], response.content.decode()
    values = {}
    for name in form.fields:
        if f'name="{form.add_prefix(name)}"' in page and not form.fields[name].disabled:
            values[name] = form[name].value()
            if name == "template_components":
                values[name] = json.loads(values[name])
    return form, {name: value for name, value in values.items() if value is not None or name not in {"id", "campaign"}}


def post(client, campaign, values, **changes):
    step = {**values, **changes}
    data = {name: "" if value is None else value for name, value in step.items() if value is not False}
    data["template_components"] = json.dumps(data["template_components"])
    for name in {"parameters", "text", "caption", "html"} & set(data):
        data[name] = str(data[name]).replace("\n", "\r\n")
    return client.post(change(campaign), posted(data, session=campaign.session_id, time_zone="UTC"))


def saved(client, campaign, values, **changes):
    response = post(client, campaign, values, **changes)
    assert response.status_code == 302, errors(response)
    return campaign.steps.get()


def errors(response):
    return {name: list(found) for form in response.context["inline_admin_formsets"][0].formset.forms for name, found in form.errors.items()}


def stored(step):
    return step.template_name, step.template_language, step.template_components


# --- choosing and filling


def test_only_approved_ones_of_the_session_are_offered_with_what_they_take(admin_client, campaign):
    form, _ = shown(admin_client, campaign)
    assert form.fields["template"].choices == [
        ("", "Choose a template"),
        ("en_US:cards", "cards (en_US), 0 parameters, a carousel"),
        ("en_US:parcel", "parcel (en_US), 3 parameters (1 in the heading, 2 in the text)"),
        ("pt_BR:parcel", "parcel (pt_BR), 4 parameters (1 in the heading, 2 in the text, 1 in a button)"),
        ("en_US:photo", "photo (en_US), 1 parameter, an image"),
        ("en_US:plain", "plain (en_US), 0 parameters"),
    ]


def test_a_new_step_is_made_from_a_choice_and_lines(admin_client, campaign):
    _, values = shown(admin_client, campaign)
    step = saved(
        admin_client, campaign, values, message_type="TEMPLATE", text="", template="en_US:parcel", parameters=" 4711 \n{{ name }}\n\nRio\n"
    )
    assert stored(step) == ("parcel", "en_US", sent("4711", "{{ name }}", "Rio"))


def test_the_language_follows_the_choice_and_the_button_is_filled(admin_client, campaign):
    template_step(campaign)
    _, values = shown(admin_client, campaign)
    assert values["template"] == "en_US:parcel" and values["parameters"] == "4711\nAna\nRio"
    step = saved(admin_client, campaign, values, template="pt_BR:parcel", parameters="4711\nAna\nRio\nt/1")
    button = {"type": "button", "sub_type": "url", "index": "0", "parameters": [{"type": "text", "text": "t/1"}]}
    assert stored(step) == ("parcel", "pt_BR", [*sent("4711", "Ana", "Rio"), button])


def test_the_file_above_the_text_is_that_of_the_step(admin_client, campaign):
    _, values = shown(admin_client, campaign)
    values |= {"message_type": "TEMPLATE", "text": "", "template": "en_US:photo", "parameters": "Ana"}
    response = post(admin_client, campaign, values)
    assert errors(response) == {"media_url": ["The template has an image above its text: give the address of that file, or upload it."]}
    step = saved(admin_client, campaign, values, media_url=PICTURE)
    assert step.template_components == photo("Ana")
    _, values = shown(admin_client, campaign)
    step = saved(admin_client, campaign, values, media_url="https://example.com/b.png")
    assert step.template_components == photo("Ana", "https://example.com/b.png"), "also when the file alone changed"


def test_a_file_that_was_written_by_hand_stays(admin_client, campaign):
    by_hand = photo("Ana", "https://example.com/{{ name }}.png")
    template_step(campaign, template_name="photo", template_components=by_hand)
    _, values = shown(admin_client, campaign)
    assert saved(admin_client, campaign, values, media_url=PICTURE).template_components == by_hand


@pytest.mark.parametrize(
    ("changes", "name", "sentence"),
    [
        (
            {"parameters": "a\nb"},
            "parameters",
            "This template takes 3 parameters (1 in the heading, 2 in the text), one a line; there are 2",
        ),
        ({"parameters": ""}, "parameters", "there is none. Write the missing ones."),
        ({"parameters": "a\nb\n{{ c"}, "parameters", "Line 3, character 1: {{ is never closed"),
        ({"template": "en_US:plain"}, "parameters", "takes 0 parameters, one a line; there are 3 lines. Take out what is too much."),
        ({"template": "en_US:cards"}, "parameters", "This template has a carousel, which lines cannot fill. Write its components below"),
        ({"template": ""}, "template", "Choose the template that the parameters are for, or empty them too."),
        ({"template": "", "parameters": ""}, "template", "Choose the template."),
        ({"template": "en_US:bad"}, "template", "This template is not among the synced templates. Sync them on the session's page"),
        ({"template": "en_US:of another session"}, "template", "is not among the synced templates"),
        ({"message_type": "TEXT", "text": "Hi", "parameters": "x"}, "parameters", "A step of this type sends no template."),
        ({"message_type": "TEXT", "text": "Hi", "template": "en_US:plain"}, "template", "Choose the type Template, or leave this empty."),
    ],
    ids=["two", "none", "brace", "too many", "carousel", "no template", "nothing", "rejected", "another's", "text 1", "text 2"],
)
def test_what_does_not_fit_is_refused_with_a_sentence(admin_client, campaign, changes, name, sentence):
    before = stored(template_step(campaign))
    _, values = shown(admin_client, campaign)
    response = post(admin_client, campaign, values, **changes)
    assert response.status_code == 200
    (found,) = errors(response)[name]
    assert sentence in found
    assert stored(campaign.steps.get()) == before


def test_a_step_that_becomes_a_text_keeps_or_loses_its_template(admin_client, campaign):
    before = stored(template_step(campaign))
    _, values = shown(admin_client, campaign)
    step = saved(admin_client, campaign, values, message_type="TEXT", text="Hi")
    assert (step.message_type, stored(step)) == ("TEXT", before)
    step = saved(admin_client, campaign, values, message_type="TEXT", text="Hi", template="", parameters="")
    assert stored(step) == ("", "", [])


# --- what is stored


STORED = {
    "lines": {},
    "holes": {"template_components": sent("{{ a }}", '{{ b|default:"x" }}', "ção")},
    "too few": {"template_components": sent("4711", "Ana")},
    "by hand": {"template_components": BY_HAND},
    "two lines in one": {"template_components": sent("a\nb", " c ", "d")},
    "empty": {"template_components": []},
    "gone": {"template_name": "gone", "template_language": "de"},
    "without language": {"template_language": ""},
    "rejected": {"template_name": "bad"},
    "carousel": {"template_name": "cards", "template_components": [{"type": "carousel", "cards": [{"card_index": 0}]}]},
    "photo": {"template_name": "photo", "media_url": PICTURE, "template_components": photo("Ana")},
    "other photo": {"template_name": "photo", "media_url": PICTURE, "template_components": photo("Ana", "https://example.com/b.png")},
    "text": {"message_type": "TEXT", "text": "Hi"},
}


@pytest.mark.parametrize("fields", STORED.values(), ids=STORED)
def test_what_is_stored_and_saved_untouched_stays_to_the_letter(admin_client, campaign, fields):
    step = template_step(campaign, **fields)
    _, values = shown(admin_client, campaign)
    assert {"template", "parameters", "template_components"} <= set(values) and "template_name" not in values
    kept = saved(admin_client, campaign, values)
    assert {name: value for name, value in vars(kept).items() if name != "_state"} == {
        name: value for name, value in vars(step).items() if name not in {"_state", "_campaign_cache"}
    }
    assert stored(saved(admin_client, campaign, values, name="Renamed")) == stored(step), "and while something else changes"


@pytest.mark.parametrize(
    ("fields", "label", "sentence"),
    [
        ({"template_name": "gone"}, "gone (en_US), not in the list", '"gone (en_US)" is not among the synced templates.'),
        ({"template_name": "bad"}, "bad (en_US), rejected: cannot be sent", '"bad (en_US)" is rejected and cannot be sent now.'),
        ({}, "parcel (en_US), 3 parameters (1 in the heading, 2 in the text)", 'The approved ones of "Shop" as of'),
    ],
    ids=["gone", "rejected", "approved"],
)
def test_what_is_stored_stays_visible_with_a_sentence(admin_client, campaign, fields, label, sentence):
    template_step(campaign, **fields)
    form, values = shown(admin_client, campaign)
    assert dict(form.fields["template"].choices)[values["template"]] == label
    assert sentence.replace('"', "&quot;") in form.fields["template"].help_text


def test_the_parameters_of_one_that_is_gone_are_shown_and_not_changed(admin_client, campaign):
    template_step(campaign, template_name="gone")
    _, values = shown(admin_client, campaign)
    assert values["parameters"] == "4711\nAna\nRio"
    response = post(admin_client, campaign, values, parameters="4711\nBob\nRio")
    assert "Until then its parameters stay as they are." in errors(response)["parameters"][0]


def test_the_text_of_the_template_is_shown_escaped(admin_client, campaign):
    template_step(campaign)
    page = admin_client.get(change(campaign)).content.decode()
    assert "Dear {{1}}, &lt;b&gt; it is in {{2}}." in page and "<b> it is" not in page


# --- by hand


def test_components_that_were_changed_by_hand_win(admin_client, campaign):
    template_step(campaign)
    _, values = shown(admin_client, campaign)
    step = saved(admin_client, campaign, values, template_components=BY_HAND, parameters="only one line")
    assert stored(step) == ("parcel", "en_US", BY_HAND)
    form, values = shown(admin_client, campaign)
    assert values["parameters"] == "" and "are written by hand" in form.fields["parameters"].help_text
    step = saved(admin_client, campaign, values, template="en_US:cards", template_components=CAROUSEL)
    assert stored(step) == ("cards", "en_US", CAROUSEL)
    _, values = shown(admin_client, campaign)
    step = saved(admin_client, campaign, values, template="en_US:parcel", parameters="1\n2\n3")
    assert stored(step) == ("parcel", "en_US", sent("1", "2", "3")), "lines replace what was by hand"


# --- where there is nothing to choose from


def test_without_synced_templates_the_name_is_typed(admin_client, campaign):
    MessageTemplate.objects.filter(session=campaign.session).delete()
    form, values = shown(admin_client, campaign)
    assert "template" not in values and "Sync templates" in form.fields["template_name"].help_text
    values |= {"message_type": "TEMPLATE", "text": ""}
    assert errors(post(admin_client, campaign, values)) == {"template_name": ["Give the name of the template."]}
    step = saved(admin_client, campaign, values, template_name="typed", template_language="de", template_components=BY_HAND)
    assert stored(step) == ("typed", "de", BY_HAND)


def test_other_channels_and_new_campaigns_have_the_typed_fields(admin_client, campaign):
    for address in (change(make_campaign()), reverse("admin:campaigns_campaign_add")):
        page = admin_client.get(address).content.decode()
        assert 'name="steps-0-template_name"' in page and 'name="steps-0-template"' not in page
        assert "Sync templates" not in page
    data = posted({"message_type": "TEMPLATE", "text": "", "template_name": "plain", "template_language": "en_US"})
    admin_client.post(reverse("admin:campaigns_campaign_add"), {**data, "name": "July", "session": campaign.session_id})
    assert stored(Campaign.objects.get(name="July").steps.get()) == ("plain", "en_US", [])


def test_a_name_that_is_typed_while_the_session_changes_is_taken(admin_client, campaign):
    other = make_campaign(name="July")
    _, values = shown(admin_client, other)
    values |= {"message_type": "TEMPLATE", "text": "", "template_name": "plain", "template_language": "en_US"}
    other.session = campaign.session
    assert errors(post(admin_client, other, values, order="-1")), "and the page is shown again as it was"
    assert stored(saved(admin_client, other, values)) == ("plain", "en_US", [])


def test_a_session_without_templates_takes_the_place_of_one_with_them(admin_client, campaign):
    template_step(campaign)
    _, values = shown(admin_client, campaign)
    campaign.session = make_session(channel="twilio")
    assert "cannot send this type" in errors(post(admin_client, campaign, values))["message_type"][0]
    step = saved(admin_client, campaign, values, message_type="TEXT", text="Hi")
    assert (step.message_type, step.template_name) == ("TEXT", "parcel")


def test_a_page_that_was_opened_before_the_first_sync_is_taken(admin_client, campaign):
    _, values = shown(admin_client, campaign)
    typed = {name: value for name, value in values.items() if name not in {"template", "parameters"}}
    typed |= {"message_type": "TEMPLATE", "text": "", "template_name": "plain", "template_language": "en_US"}
    assert stored(saved(admin_client, campaign, typed)) == ("plain", "en_US", [])


def test_who_may_only_look_sees_what_is_stored(staff, campaign):
    template_step(campaign)
    client = staff("campaigns.view_campaign", "campaigns.view_campaignstep", "campaigns.change_campaignstep")
    page = client.get(change(campaign)).content.decode()
    assert "parcel" in page and 'name="steps-0-template"' not in page


def test_a_step_that_has_begun_is_shown_frozen_and_the_campaign_is_saved(admin_client, campaign):
    step = template_step(campaign)
    make_log(make_run(step))
    Campaign.objects.update(status="RUNNING")
    form, _ = shown(admin_client, campaign)
    assert form.fields["template"].disabled and form["parameters"].value() == "4711\nAna\nRio"
    data = posted({"id": step.pk, "campaign": campaign.pk}, min_interval="30", max_interval="60")
    for name in [name for name in data if name.startswith("steps-0-") and name not in {"steps-0-id", "steps-0-campaign"}]:
        del data[name]  # the browser does not send what is disabled
    response = admin_client.post(change(campaign), data)
    assert response.status_code == 302, errors(response)
    assert stored(campaign.steps.get()) == stored(step)
    response = admin_client.post(change(campaign), {**data, "steps-0-template": "en_US:plain"})
    assert "its text and times are frozen" in response.content.decode()


# --- SMS


class SMSProvider(MockProvider):
    counts_segments = True


def test_the_number_of_sms_stands_on_the_campaigns_page(admin_client, settings):
    settings.CHANNELS = {**settings.CHANNELS, "sms": f"{__name__}.SMSProvider"}
    campaign = make_campaign(session=make_session(channel="sms"))
    make_step(campaign, text="ã" * 71)
    make_step(campaign, text="Hello")
    page = admin_client.get(change(campaign)).content.decode()
    assert "Step 1: about 2 SMS for each person (UCS-2, because of &quot;ã&quot;; 71 characters)." in page
    assert "Step 2: about 1 SMS for each person (GSM-7; 5 characters)." in page


# --- in a browser


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_template_is_chosen_and_filled_in_a_browser(page, campaign):
    User.objects.create_superuser("ana", password="secret word")
    page.goto("/")
    page.fill("#id_username", "ana")
    page.fill("#id_password", "secret word")
    page.click("text=Log in")
    page.wait_for_selector("text=Schedulers alive")
    page.goto(change(campaign))
    page.select_option("#id_steps-0-message_type", "TEMPLATE")
    page.locator("summary", has_text=re.compile(r"^\s*Template\s*$")).first.click()
    page.select_option("#id_steps-0-template", "en_US:parcel")
    page.fill("#id_steps-0-parameters", "4711\n{{ name }}")
    page.click("button[name=_continue]")
    page.wait_for_selector("text=there are 2 lines. Write the missing ones.")
    page.fill("#id_steps-0-parameters", "4711\n{{ name }}\nRio")
    page.click("button[name=_continue]")
    page.wait_for_selector("text=was changed successfully")
    assert stored(campaign.steps.get()) == ("parcel", "en_US", sent("4711", "{{ name }}", "Rio"))
    page.click("button[name=_continue]")
    page.wait_for_selector("text=was changed successfully")
    assert stored(campaign.steps.get()) == ("parcel", "en_US", sent("4711", "{{ name }}", "Rio"))
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("summary", has_text=re.compile(r"^\s*Template\s*$")).first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

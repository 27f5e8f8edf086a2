from datetime import UTC, date, datetime, time, timedelta

import pytest

from campaigns import rendering
from campaigns.models import Campaign, CampaignStep, Recipient
from campaigns.preflight import Finding, blockers, examine
from sessions_app.models import MessageTemplate
from sessions_app.pacing import Metered
from sessions_app.providers.base import MessageType
from sessions_app.providers.mock import MockProvider
from tests import factories

pytestmark = pytest.mark.django_db
NOON = datetime(2027, 6, 10, 12, tzinfo=UTC)


class ShortTextProvider(MockProvider):
    label = "Short texts"
    message_types = frozenset({MessageType.TEXT})
    max_text_length = 10


class TemplateProvider(MockProvider):
    has_templates = True


class SMSProvider(MockProvider):
    address_kind = "phone"
    counts_segments = True


class MeteredProvider(MockProvider):
    pacing = Metered(rate=10, burst=4)


def ready(people=3, **fields):
    """A campaign that nothing is wrong with, but for what `fields` change."""
    campaign = factories.make_campaign(**fields)
    factories.make_recipients(people, campaign)
    return campaign


def found(campaign, level, now=NOON):
    return [finding.text for finding in examine(campaign, now=now) if finding.level == level]


def test_nothing_is_wrong():
    campaign = ready()
    factories.make_step(campaign, text='Hello {{ name }} of {{ city|default:"here" }}, {{ address }}')
    assert examine(campaign, now=NOON) == []
    assert blockers(campaign, now=NOON) == []


def test_an_empty_campaign():
    campaign = factories.make_campaign()
    assert blockers(campaign, now=NOON) == [
        "The campaign has no recipients. Import a list or add people.",
        "The campaign has no steps. Add a step with its text.",
    ]


def test_errors_come_first_and_warnings_do_not_block():
    campaign = factories.make_campaign(min_interval=3)
    levels = [finding.level for finding in examine(campaign, now=NOON)]
    assert levels == ["error", "error", "warning"]
    assert len(blockers(campaign, now=NOON)) == 2


def test_a_variable_that_some_lack_is_named_with_how_many():
    campaign = ready(4)
    step = factories.make_step(campaign, text="{{ City }} {{ city }} {{ shop }} {{ name }}", caption='{{ shop|default:"x" }}')
    first, second, third, _ = campaign.recipients.all()
    Recipient.objects.filter(pk=first.pk).update(metadata={"city": "Rio"})
    Recipient.objects.filter(pk=second.pk).update(metadata={"city": " "})
    Recipient.objects.filter(pk=third.pk).update(name="\u00a0", metadata={"city": "0"})
    assert blockers(campaign, now=NOON) == [
        f'{step}: 2 of 4 recipients have no value for "city". Fill it in, or write {{{{ city|default:"..." }}}}.',
        f'{step}: 1 of 4 recipients have no value for "name". Fill it in, or write {{{{ name|default:"..." }}}}.',
        f'{step}: 4 of 4 recipients have no value for "shop". The first recipient has: address, city, name. '
        'Fill it in, or write {{ shop|default:"..." }}.',
    ]


def test_variables_count_in_captions_and_template_components(django_assert_num_queries):
    campaign = ready()
    factories.make_step(
        campaign,
        message_type="TEMPLATE",
        text="",
        template_name="hello",
        caption="{{ a }}",
        template_components=[{"type": "body", "parameters": [{"type": "text", "text": "{{ b }} {{ a }}"}]}],
    )
    factories.make_step(campaign, text="{{ a }} {{ b }}")
    texts = blockers(campaign, now=NOON)
    assert [text.split('"')[1] for text in texts] == ["a", "b", "a", "b"]
    # steps, the number of people, one count for each variable, and the first person for each sentence that names the known ones
    with django_assert_num_queries(8):
        examine(campaign, now=NOON)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"text": " \u200b\n"}, "the text is empty"),
        ({"text": "Hi {{ name"}, "Line 1, character 4: {{ is never closed"),
        ({"text": "Hi {{{name}}}"}, "3 braces"),
        ({"text": "Hi", "caption": "{{ a.b }}"}, "part of a value"),
        ({"message_type": "TEMPLATE", "text": ""}, "no template is named"),
        ({"message_type": "IMAGE", "text": "", "caption": "x"}, "there is no file to send"),
    ],
)
def test_what_is_wrong_with_a_text(fields, sentence):
    campaign = ready()
    factories.make_step(campaign, name="Greeting", **fields)
    texts = blockers(campaign, now=NOON)
    assert any(text.startswith("Greeting: ") and sentence in text for text in texts), texts


def test_what_the_channel_cannot_send(settings):
    settings.CHANNELS = {"short": f"{__name__}.ShortTextProvider"}
    campaign = ready(session=factories.make_session(channel="short"))
    factories.make_step(campaign, message_type="IMAGE", media_url="https://example.com/a.png", text="")
    factories.make_step(campaign, text="01234567890")
    factories.make_step(campaign, text="0123456789")
    assert blockers(campaign, now=NOON) == ["Step 1: Short texts cannot send IMAGE. It can send: TEXT."]
    assert found(campaign, "warning") == ["Step 2: the text has 11 characters, and Short texts takes 10. Shorten it."]


# --- templates


@pytest.fixture
def shop(settings):
    settings.CHANNELS = {"templates": f"{__name__}.TemplateProvider"}
    return factories.make_session(name="Shop", channel="templates")


PARCEL = {"message_type": "TEMPLATE", "text": "", "template_name": "parcel", "template_language": "en_US"}
FILLED = [{"type": "body", "parameters": [{"type": "text", "text": "{{ name }}"}]}]


def make_template(session, **fields):
    values = {"name": "parcel", "language": "en_US", "status": "APPROVED", "components": [{"type": "BODY", "text": "Dear {{1}}."}]}
    return MessageTemplate.objects.create(session=session, synced_at=NOON, **{**values, **fields})


def test_a_template_that_is_approved_and_filled_is_no_finding(shop):
    make_template(shop)
    campaign = ready(session=shop)
    factories.make_step(campaign, **PARCEL, template_components=FILLED)
    assert examine(campaign, now=NOON) == []


def test_a_session_that_was_never_synced_is_a_warning_that_says_how(shop):
    make_template(factories.make_session(channel="templates"))
    campaign = ready(session=shop)
    factories.make_step(campaign, **PARCEL)
    factories.make_step(campaign, **PARCEL)
    assert blockers(campaign, now=NOON) == []
    assert found(campaign, "warning") == [
        'There are no synced templates of session "Shop", so nobody can say whether those of the steps will be taken. '
        'Open the session and press "Sync templates".'
    ]
    campaign.steps.update(message_type="TEXT", text="Hello")
    assert examine(campaign, now=NOON) == [], "nobody misses templates where no step has one"


@pytest.mark.parametrize(
    ("fields", "step", "sentence"),
    [
        ({"name": "other"}, {}, 'is not among those of session "Shop". Sync them on'),
        ({"language": "pt_BR"}, {}, 'is not among those of session "Shop". It is there in pt_BR. Sync them on'),
        ({"language": "pt_BR"}, {"template_language": ""}, '"parcel" (no language) is not among'),
        (
            {"status": "PAUSED"},
            {},
            "is paused and cannot be sent. People block or report it: improve it, or choose another; after a change",
        ),
        ({"status": "REJECTED"}, {}, "is rejected and cannot be sent. Change it and hand it in again"),
        ({"status": "PENDING_DELETION"}, {}, "is pending deletion and cannot be sent. Choose another;"),
        ({"status": "SOMETHING_NEW"}, {}, "is something new and cannot be sent. Choose another;"),
        ({}, {"template_components": []}, "does not fit: its text takes 1 parameter and gets 0. Open the step and fill in its parameters."),
        ({"components": []}, {}, "does not fit: its text takes no parameters and gets 1."),
    ],
)
def test_what_is_wrong_with_a_template(shop, fields, step, sentence):
    make_template(shop, **fields)
    campaign = ready(session=shop)
    factories.make_step(campaign, **{**PARCEL, "template_components": FILLED, **step})
    (text,) = blockers(campaign, now=NOON)
    assert text.startswith('Step 1: the template "parcel" (') and sentence in text


# --- how many SMS


def test_the_sms_of_a_step_are_counted_and_shown(settings, django_assert_num_queries):
    settings.CHANNELS = {"sms": f"{__name__}.SMSProvider"}
    campaign = ready(session=factories.make_session(channel="sms"))
    Recipient.objects.filter(order=1).update(name="João")
    factories.make_step(campaign, text="Hi {{ name }}" + "." * 64)
    factories.make_step(campaign, text="Hi")
    factories.make_step(campaign, message_type="IMAGE", text="", media_url="https://example.com/a.png")
    assert found(campaign, "warning") == ['Step 1: about 2 SMS for each person (UCS-2, because of "ã"; 71 characters).']
    assert found(campaign, "note") == ["Step 2: about 1 SMS for each person (GSM-7; 2 characters)."]
    assert [finding.level for finding in examine(campaign, now=NOON)] == ["warning", "note"]
    with django_assert_num_queries(4):  # steps, the first recipients once, the number of people, those without a name
        examine(campaign, now=NOON)


def test_sms_are_counted_over_the_first_hundred(settings):
    settings.CHANNELS = {"sms": f"{__name__}.SMSProvider"}
    campaign = ready(101, session=factories.make_session(channel="sms"))
    Recipient.objects.filter(order=100).update(name="João" * 50)
    factories.make_step(campaign, text="Hi {{ name }}")
    assert found(campaign, "note") == ["Step 1: about 1 SMS for each person (GSM-7; 13 characters)."]
    Recipient.objects.filter(order=99).update(name="João" * 50)
    assert "about 4 SMS" in found(campaign, "warning")[0]


def test_an_unknown_channel():
    campaign = ready(session=factories.make_session(channel="pigeon"))
    factories.make_step(campaign, text="{{ x }}")
    texts = blockers(campaign, now=NOON)
    assert "Known channels" in texts[0]
    assert len(texts) == 2, "what does not depend on the channel is examined all the same"


def test_pacing_that_is_brought_back_to_its_floor_is_shown_on_a_human_channel(settings):
    fields = {"min_interval": 2, "max_interval": 5, "batch_size": 100, "batch_pause": 10}
    campaign = ready(**fields)
    factories.make_step(campaign)
    assert found(campaign, "warning") == [
        "Shortest interval (s): 2 is outside what keeps a number safe; 8 will be used.",
        "Longest interval (s): 5 is outside what keeps a number safe; 13 will be used.",
        "Batch size: 100 is outside what keeps a number safe; 20 will be used.",
        "Pause after a batch (s): 10 is outside what keeps a number safe; 60 will be used.",
    ]
    settings.CHANNELS = {"metered": f"{__name__}.MeteredProvider"}
    campaign = ready(session=factories.make_session(channel="metered"), **fields)
    factories.make_step(campaign)
    assert found(campaign, "warning") == []


@pytest.mark.parametrize(
    ("fields", "now", "sentence"),
    [
        ({}, NOON, None),
        ({}, NOON.replace(hour=3), "begin at 2027-06-10 07:00 UTC"),
        ({}, NOON.replace(hour=22), "begin at 2027-06-11 07:00 UTC"),
        ({"time_zone": "Asia/Tokyo"}, NOON.replace(hour=14), "begin at 2027-06-11 07:00 Asia/Tokyo"),
        ({"safe_hours": Campaign.SafeHours.BLOCK}, NOON.replace(hour=3), "nothing is sent before 2027-06-10 07:00 UTC"),
        ({"safe_hours": Campaign.SafeHours.OFF}, NOON.replace(hour=3), None),
        ({"safe_from": time(9), "safe_until": time(9)}, NOON.replace(hour=3), None),
        ({"scheduled_at": NOON}, NOON.replace(hour=3), None),  # the start is what counts
        ({"scheduled_at": NOON.replace(hour=23)}, NOON, "begin at 2027-06-11 07:00 UTC"),
    ],
)
def test_a_start_outside_the_safe_hours_is_a_warning(fields, now, sentence):
    campaign = ready(**fields)
    factories.make_step(campaign)
    warnings = found(campaign, "warning", now)
    assert (sentence is None and not warnings) or (len(warnings) == 1 and sentence in warnings[0]), warnings
    assert blockers(campaign, now=now) == []


@pytest.mark.parametrize(
    ("scheduled_at", "until", "blocks"),
    [
        (NOON, date(2027, 6, 9), True),
        (NOON, date(2027, 6, 10), False),
        (None, date(2027, 6, 9), True),
        (None, date(2027, 6, 11), False),
        (NOON.replace(hour=23), date(2027, 6, 10), True),  # in Berlin that is the 11th
    ],
)
def test_a_repetition_that_ends_before_it_begins(scheduled_at, until, blocks):
    campaign = ready(time_zone="Europe/Berlin")
    factories.make_step(campaign, recurrence_type="daily", recurrence_until=until, scheduled_at=scheduled_at)
    assert [("before its first run" in text) for text in blockers(campaign, now=NOON)] == ([True] if blocks else [])


def test_a_time_that_has_passed_is_a_warning_until_the_step_has_run():
    campaign = ready()
    step = factories.make_step(campaign, scheduled_at=NOON - timedelta(hours=1))
    assert found(campaign, "warning") == ["Step 1: its time (2027-06-10 11:00 UTC) has passed. It goes out as soon as it is reached."]
    CampaignStep.objects.filter(pk=step.pk).update(runs_made=1, recurrence_type="daily", recurrence_until=NOON - timedelta(days=3))
    assert examine(campaign, now=NOON) == []


def test_a_finding_is_a_sentence():
    campaign = factories.make_campaign(min_interval=1)
    factories.make_step(campaign, text="{{ a|upper }} {{{ b")
    assert all(isinstance(finding, Finding) and finding.text.endswith((".", "?")) for finding in examine(campaign, now=NOON))


NAMES = [
    "city",
    "a__b",
    "a.b",
    "1",
    "0",
    "-1",
    "len",
    "regex",
    "isnull",
    "preço",
    "it's",
    'q"uote',
    "100%",
    "%s",
    "a\\b",
    "नाम",
    "metadata",
]


@pytest.mark.parametrize("name", NAMES)
def test_lacking_reads_the_key_as_it_is(name):
    campaign = factories.make_campaign()
    values = [{name: "x"}, {name: "0"}, {}, {name: ""}, {name: None}, {name: " \u00a0\u3000\n"}, {name: "\u200b\ufeff"}, {"other": "x"}]
    for order, metadata in enumerate(values):
        factories.make_recipient(campaign, name=f"{order}", metadata=metadata)
    lacking = set(campaign.recipients.lacking(name).values_list("name", flat=True))
    assert lacking == {"2", "3", "4", "5", "6", "7"}


def test_lacking_agrees_with_what_the_renderer_calls_blank():
    campaign = factories.make_campaign()
    spaces = [c for c in rendering.BLANK if c != "\x00"]
    people = factories.make_recipients(len(spaces), campaign)
    for person, character in zip(people, spaces, strict=True):
        person.metadata = {"v": character}
        person.name = character
    Recipient.objects.bulk_update(people, ["metadata", "name"])
    assert campaign.recipients.lacking("v").count() == campaign.recipients.lacking("name").count() == len(spaces)
    assert campaign.recipients.lacking("address").count() == 0

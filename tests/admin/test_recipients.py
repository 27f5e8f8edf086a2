"""Recipients: one by one in their form, and many from a file, with a report of what became of each row."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from campaigns.admin.paging import CappedPaginator
from campaigns.models import Campaign, Recipient
from tests.factories import make_campaign, make_log, make_recipient, make_recipients, make_run, make_session, make_step

ADD = reverse("admin:campaigns_recipient_add")
LIST = reverse("admin:campaigns_recipient_changelist")
GOOD = b"phone;name;city\n+12025550177;Ana;Recife\n+12025550178;Bob;Rome\n"


@pytest.fixture
def campaign(db) -> Campaign:
    return make_campaign(name="June")


def change(recipient: Recipient) -> str:
    return reverse("admin:campaigns_recipient_change", args=[recipient.pk])


def test_an_address_is_stored_as_its_channel_writes_it(admin_client, campaign):
    make_recipient(campaign, order=4)
    typed = {"address": "+1 (202) 555-0177", "name": "Ana", "metadata": '{"City": "Recife"}'}
    response = admin_client.post(ADD, {"campaign": campaign.pk, **typed})
    assert response.status_code == 302, response.context["errors"]
    ana = Recipient.objects.get(name="Ana")
    assert (ana.address, ana.address_as_imported) == ("12025550177@c.us", "+1 (202) 555-0177")
    assert (ana.metadata, ana.order) == ({"city": "Recife"}, 5)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"address": ""}, "This field is required."),
        ({"address": "ana"}, "There is a letter (&quot;a&quot;) in this phone number."),
        ({"address": "+12025550100"}, "is in &quot;June&quot; already"),
        ({"address": "12036302@g.us1"}, "is no ending of a chat id"),
        ({"address": "120363021234567890@g.us"}, "This is a group or a channel."),
        ({"metadata": "[1]"}, "Write names and texts, each in quotes"),
        ({"metadata": '{"points": 12}'}, "Write names and texts, each in quotes"),
        ({"metadata": "{"}, "Enter a valid JSON."),
        ({"metadata": '{"a": "\\u0000"}'}, "There is a null character"),
        ({"campaign": "0"}, "That choice is not one of the available choices"),
        ({"order": "-1"}, "greater than or equal to 0"),
    ],
)
def test_a_bad_value_is_refused_with_a_sentence(admin_client, campaign, values, sentence):
    make_recipient(campaign)
    response = admin_client.post(ADD, {"campaign": campaign.pk, "address": "+12025550177", "name": "Ana", "metadata": "{}", **values})
    assert response.status_code == 200
    assert sentence in response.content.decode()
    assert not Recipient.objects.filter(name="Ana").exists()


def test_a_group_may_be_added_where_groups_are_allowed(admin_client, campaign):
    Campaign.objects.update(allow_groups=True)
    admin_client.post(ADD, {"campaign": campaign.pk, "address": "120363021234567890@g.us", "metadata": "{}"})
    assert campaign.recipients.get().address == "120363021234567890@g.us"


def test_a_recipient_of_an_unknown_channel_is_refused_with_its_name(admin_client):
    campaign = make_campaign(session=make_session(channel="pigeon"))
    response = admin_client.post(ADD, {"campaign": campaign.pk, "address": "+12025550177", "metadata": "{}"})
    assert "channel &quot;pigeon&quot;, which this instance does not know" in response.content.decode()


def test_a_name_is_edited_without_the_address_being_read_again(admin_client, campaign):
    odd = make_recipient(campaign, address="0@lid", address_as_imported="as it came")
    admin_client.post(change(odd), {"address": "0@lid", "name": "Renamed", "metadata": "{}", "order": "0"})
    odd.refresh_from_db()
    assert (odd.name, odd.address_as_imported) == ("Renamed", "as it came")


def test_while_it_is_sent_recipients_are_frozen_but_may_be_deleted(admin_client, campaign):
    Campaign.objects.update(status=Campaign.Status.RUNNING)
    person = make_recipient(campaign)
    log = make_log(make_run(make_step(campaign)), recipient=person)
    for url, data in ((ADD, {"campaign": campaign.pk}), (change(person), {})):
        response = admin_client.post(url, {"address": "+12025550177", "metadata": "{}", "order": "0", **data})
        assert "its recipients are frozen until it is done" in response.content.decode()
    admin_client.post(reverse("admin:campaigns_recipient_delete", args=[person.pk]), {"post": "yes"})
    log.refresh_from_db()
    assert not Recipient.objects.exists() and log.recipient_id is None


def test_the_list_is_searched_by_address_and_inside_a_campaign_by_name(admin_client, campaign):
    make_recipients(3, campaign)
    other = make_recipient(make_campaign(), name="Person 1 elsewhere")

    def found(query: str) -> set[str]:
        return {row.name for row in admin_client.get(f"{LIST}?{query}").context["cl"].result_list}

    assert found("q=1202 555 0101") == {"Person 2"}
    assert found("q=Person") == set()
    assert found(f"q=person 3&campaign__id__exact={campaign.pk}") == {"Person 3"}
    assert found(f"q=0100&campaign__id__exact={other.campaign_id}") == {other.name}


def test_a_long_list_is_counted_only_up_to_its_cap(campaign, django_assert_num_queries):
    class Small(CappedPaginator):
        cap = 5

    make_recipients(8, campaign)
    with django_assert_num_queries(1) as captured:
        assert Small(Recipient.objects.all(), 2).num_pages == 3
    assert "LIMIT 5" in captured[0]["sql"]


# --- from a file


def page(campaign: Campaign) -> str:
    return reverse("admin:campaigns_campaign_import_recipients", args=[campaign.pk])


def upload(client, campaign, content: bytes, **changes):
    return client.post(page(campaign), {"file": SimpleUploadedFile("people.csv", content), "region": "", **changes})


def test_a_file_becomes_recipients(admin_client, campaign):
    text = upload(admin_client, campaign, GOOD).content.decode()
    assert "2 rows read, 2 recipients" in text and "added." in text
    assert list(campaign.recipients.values_list("address", "name", "metadata")) == [
        ("12025550177@c.us", "Ana", {"city": "Recife"}),
        ("12025550178@c.us", "Bob", {"city": "Rome"}),
    ]


def test_a_look_imports_nothing(admin_client, campaign):
    text = upload(admin_client, campaign, GOOD, dry_run="on").content.decode()
    assert "would be added" in text and "Nothing was imported" in text
    assert not campaign.recipients.exists()


def test_each_row_that_was_not_taken_is_told_with_its_line_and_reason(admin_client, campaign):
    rows = GOOD + b"abc;Eve <script>alert(1)</script>;X\n+1 202 555 0177;Ana again;Rome\n"
    text = upload(admin_client, campaign, rows).content.decode()
    assert "Rejected: 1" in text and "There is a letter" in text and ">4<" in text.replace(" ", "")
    assert "Repeated: 1" in text and "The same address as line 2" in text
    assert "<script>alert" not in text
    assert campaign.recipients.count() == 2


def test_the_region_is_used(admin_client, campaign):
    upload(admin_client, campaign, b"phone\n11 96123-4567\n", region="BR")
    assert campaign.recipients.get().address == "5511961234567@c.us"


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x01\x02\xff\xfe" * 50, b"phone;name\n", b"a;a;a;a;a\n1;2;3;4;5\n", GOOD.decode().encode("utf-16")]
)
def test_a_file_that_is_none_is_refused_with_a_sentence(admin_client, campaign, content):
    response = upload(admin_client, campaign, content)
    assert response.status_code == 200
    assert response.context["form"].errors["file"][0].endswith(".")
    assert not campaign.recipients.exists()


def test_no_file_and_no_region_of_that_name(admin_client, campaign):
    response = admin_client.post(page(campaign), {"region": "ZZ"})
    assert "This field is required." in response.content.decode() and "ZZ is not one of the available choices" in response.content.decode()


def test_a_running_campaign_takes_no_file(admin_client, campaign):
    Campaign.objects.update(status=Campaign.Status.RUNNING)
    text = upload(admin_client, campaign, GOOD).content.decode()
    assert "its recipients are frozen" in text
    assert not campaign.recipients.exists()


def test_who_may_not_change_campaigns_and_add_recipients_may_not_import(staff, campaign):
    for number, permissions in enumerate((["campaigns.change_campaign"], ["campaigns.add_recipient", "campaigns.view_campaign"])):
        client = staff(*permissions, name=f"user{number}")
        assert client.get(page(campaign)).status_code == 403
        assert upload(client, campaign, GOOD).status_code == 403
    allowed = staff("campaigns.change_campaign", "campaigns.add_recipient", name="allowed")
    assert upload(allowed, campaign, GOOD).status_code == 200
    assert campaign.recipients.count() == 2


def test_a_deleted_campaign_takes_no_file(admin_client, campaign, said):
    url = page(campaign)
    campaign.delete()
    assert said(admin_client.get(url)) == ["That campaign is not there any more."]

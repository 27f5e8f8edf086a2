"""Recipients picked from the groups and contacts of the session."""

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from campaigns import picking
from campaigns.models import Campaign, Recipient
from sessions_app.providers.base import ChannelProvider, Chat, NotPossible, SendResult
from tests.factories import make_campaign, make_recipient, make_run, make_session, make_step

GROUPS = [Chat(f"12036302123456{n:04}@g.us", f"Group {n}", is_group=True, members=n) for n in range(3)]
PEOPLE = [Chat(f"1202555{n:04}@c.us", f"Person {n:03}") for n in range(100, 220)]


class Book(ChannelProvider):
    key = "book"
    label = "Book"
    address_kind = "whatsapp"
    lists_chats = True

    trouble = None
    asked = []

    def send(self, address, message, client_ref, deadline):
        return SendResult.accepted()

    def list_chats(self, deadline, *, groups, search="", offset=0, limit=50):
        assert 0 < deadline.remaining <= 10
        Book.asked.append((groups, search, offset, limit))
        if Book.trouble:
            raise Book.trouble
        return [chat for chat in (GROUPS if groups else PEOPLE) if search.lower() in chat.name.lower()][offset : offset + limit]


@pytest.fixture(autouse=True)
def book(settings):
    settings.CHANNELS = {**settings.CHANNELS, "book": f"{__name__}.Book"}
    Book.trouble, Book.asked = None, []


@pytest.fixture
def campaign(db) -> Campaign:
    return make_campaign(name="June", session=make_session(channel="book"))


def url(campaign, name: str = "pick_recipients") -> str:
    return reverse(f"admin:campaigns_campaign_{name}", args=[campaign.pk])


def pick(client, campaign, *chats: Chat, **names):
    return client.post(url(campaign), {"chat": [chat.address for chat in chats], **{f"name-{c.address}": c.name for c in chats}, **names})


def test_a_page_of_contacts_with_fifty_and_a_way_on(admin_client, campaign):
    text = admin_client.get(url(campaign)).content.decode()
    assert text.count('name="chat"') == 50
    assert "Person 100" in text and "Person 149" in text and "Person 150" not in text and "page=2" in text
    text = admin_client.get(url(campaign), {"page": "3"}).content.decode()
    assert text.count('name="chat"') == 20 and "page=4" not in text and "page=2" in text
    assert Book.asked == [(False, "", 0, 51), (False, "", 100, 51)]


def test_a_search_reaches_the_channel(admin_client, campaign):
    text = admin_client.get(url(campaign), {"q": "Person 17", "kind": "contacts"}).content.decode()
    assert text.count('name="chat"') == 10
    assert Book.asked == [(False, "Person 17", 0, 51)]


@pytest.mark.parametrize("query", [{"page": "0"}, {"page": "x"}, {"kind": "enemies"}, {"q": "P" * 200}], ids=str)
def test_an_odd_address_shows_the_first_page_of_contacts(admin_client, campaign, query):
    assert admin_client.get(url(campaign), query).status_code == 200
    assert Book.asked == [(False, "", 0, 51)]


def test_ticked_people_come_after_the_last_with_their_names(admin_client, campaign, said):
    make_recipient(campaign, address="12025550100@c.us", order=7)
    response = pick(admin_client, campaign, PEOPLE[0], PEOPLE[5], PEOPLE[6])
    assert said(response) == ["2 recipients added, 1 was there already."]
    added = Recipient.objects.filter(order__gt=7).order_by("order").values_list("address", "name", "order", "address_as_imported")
    assert list(added) == [
        ("12025550105@c.us", "Person 105", 8, "12025550105@c.us"),
        ("12025550106@c.us", "Person 106", 9, "12025550106@c.us"),
    ]


def test_one_person_in_two_forms_is_one_recipient(admin_client, campaign, said):
    response = pick(admin_client, campaign, PEOPLE[0], Chat("12025550100@s.whatsapp.net", "Again"))
    assert said(response) == ["1 recipient added."]
    assert said(pick(admin_client, campaign, Chat("12025550100@s.whatsapp.net", "Again")))[-1] == "0 recipients added, 1 was there already."


def test_who_is_there_already_cannot_be_ticked(admin_client, campaign):
    make_recipient(campaign, address="12025550101@c.us")
    text = admin_client.get(url(campaign)).content.decode()
    assert text.count("in the campaign already") == 1
    assert 'value="12025550101@c.us" disabled' in " ".join(text.split())


def test_groups_are_taken_only_where_they_are_allowed(admin_client, campaign, said):
    assert picking.NO_GROUPS in admin_client.get(url(campaign), {"kind": "groups"}).content.decode()
    assert Book.asked == []
    response = pick(admin_client, campaign, GROUPS[0], PEOPLE[0])
    assert said(response) == ["1 recipient added.", f'"Group 0": {picking.NO_GROUPS}']
    Campaign.objects.update(allow_groups=True)
    text = admin_client.get(url(campaign), {"kind": "groups"}).content.decode()
    assert "Group 2" in text and "2 members" in text
    pick(admin_client, campaign, *GROUPS)
    assert Recipient.objects.filter(address__endswith="@g.us").count() == 3


@pytest.mark.parametrize(
    ("name", "kept"),
    [("+1 (202) 555-0100", ""), ("12025550100", ""), ("Ana\0\n Lima ", "Ana Lima"), ("A" * 300, "A" * 200), ("007", "007"), ("", "")],
    ids=["spoken number", "digits", "blanks", "long", "other digits", "none"],
)
def test_a_name_that_only_repeats_the_number_is_none(campaign, name, kept):
    picking.add_picked(campaign, {"12025550100@c.us": name})
    assert Recipient.objects.get().name == kept


def test_what_is_no_address_is_told_and_the_rest_is_added(admin_client, campaign, said):
    bad = Chat("status@broadcast", "Status")
    response = pick(admin_client, campaign, bad, PEOPLE[0])
    assert said(response) == [
        "1 recipient added.",
        '"Status": A broadcast list or status cannot be written to. Give a person\'s number.',
    ]


def test_nothing_ticked_is_said(admin_client, campaign, said):
    assert said(pick(admin_client, campaign)) == ["Nobody was ticked."]


@pytest.mark.parametrize("status", ["SCHEDULED", "RUNNING", "COMPLETED", "FAILED"])
def test_only_for_drafts_and_paused_campaigns(admin_client, campaign, said, status):
    campaign = make_campaign(name="July", session=make_session(channel="book"), status=status)
    response = pick(admin_client, campaign, PEOPLE[0])
    assert response.status_code == 302 and "recipients are picked for drafts and paused campaigns" in said(response)[0]
    assert url(campaign) not in admin_client.get(url(campaign, "change")).content.decode()
    assert not Recipient.objects.exists()


def test_a_paused_run_goes_on_with_the_people_it_has(admin_client, said):
    campaign = make_campaign(name="June", session=make_session(channel="book"), status="PAUSED")
    assert "1 recipient added." in said(pick(admin_client, campaign, PEOPLE[0]))
    make_run(make_step(campaign))
    assert said(pick(admin_client, campaign, PEOPLE[1]))[-1] == (
        '"June" is being sent: its recipients are frozen until it is done. Pick them for another campaign.'
    )


def test_a_campaign_that_was_started_meanwhile_takes_nobody(campaign):
    opened = Campaign.objects.get()
    Campaign.objects.update(status="RUNNING")
    with pytest.raises(picking.PickingRefused, match="is running"):
        picking.add_picked(opened, {"12025550100@c.us": "Ana"})
    assert not Recipient.objects.exists()


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (NotPossible("The phone <b>sleeps</b>."), "The phone &lt;b&gt;sleeps&lt;/b&gt;."),
        (KeyError("s3cret"), "could not be asked (KeyError)"),
    ],
    ids=["not possible", "bug"],
)
def test_a_channels_trouble_is_a_sentence(admin_client, campaign, trouble, sentence):
    Book.trouble = trouble
    response = admin_client.get(url(campaign))
    assert response.status_code == 200
    assert sentence in response.content.decode() and "s3cret" not in response.content.decode()


def test_a_channel_without_a_list_has_no_such_page(admin_client, said):
    campaign = make_campaign(session=make_session(name="Dry", channel="mock"))
    assert url(campaign) not in admin_client.get(url(campaign, "change")).content.decode()
    assert said(admin_client.get(url(campaign))) == ['The channel of "Dry" has no list of groups or contacts.']


def test_hostile_names_are_escaped(admin_client, campaign, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PEOPLE", [Chat("12025550100@c.us", '"><script>alert(1)</script>')])
    text = admin_client.get(url(campaign), {"q": ""}).content.decode()
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert "<script>alert" not in admin_client.get(url(campaign), {"q": "<script>alert"}).content.decode()


def test_it_needs_both_permissions_and_a_csrf_token(staff, admin_user, campaign):
    rights = ["campaigns.view_campaign", "campaigns.change_campaign"]
    assert staff(*rights, name="no recipients").get(url(campaign)).status_code == 403
    assert staff("campaigns.view_campaign", "campaigns.add_recipient", name="no change").get(url(campaign)).status_code == 403
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert pick(strict, campaign, PEOPLE[0]).status_code == 403
    assert staff(*rights, "campaigns.add_recipient", name="both").get(url(campaign)).status_code == 200
    assert not Recipient.objects.exists()


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_person_ticks_and_adds(page, settings):
    User.objects.create_superuser("ana", password="secret word")
    campaign = make_campaign(name="June", session=make_session(channel="book"))
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(url(campaign))
    page.fill("#id_username", "ana")
    page.fill("#id_password", "secret word")
    page.click("text=Log in")
    page.check("text=Person 101")
    page.click("text=Add as recipients")
    page.wait_for_selector("text=1 recipient added.")
    page.check("text=All on this page")
    page.click("text=Add as recipients")
    page.wait_for_selector("text=49 recipients added.")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert campaign.recipients.count() == 50

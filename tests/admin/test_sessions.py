"""The session's form is built for its channel, keeps its secrets, and its buttons ask the provider."""

import pytest
from cryptography.fernet import Fernet
from django import forms
from django.contrib import admin
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from sessions_app import transitions
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider, SendResult, SessionCheck, SessionState
from tests.factories import make_campaign, make_lane, make_log, make_run, make_session, make_step

LIST = reverse("admin:sessions_app_session_changelist")
ADD = reverse("admin:sessions_app_session_add")


class PostalSettings(forms.Form):
    office = forms.CharField(label="Post office")
    stamps = forms.IntegerField(min_value=1, initial=3)
    express = forms.BooleanField(required=False)
    speed = forms.ChoiceField(choices=[("slow", "Slow"), ("fast", "Fast")], initial="slow")

    def clean(self):
        if self.cleaned_data.get("express") and self.cleaned_data.get("speed") == "slow":
            raise forms.ValidationError("Express is never slow.")
        return self.cleaned_data


class PostalCredentials(forms.Form):
    seal = forms.CharField(label="Seal")
    motto = forms.CharField(required=False)


class Postal(ChannelProvider):
    key = "postal"
    label = "Letters"
    address_kind = "any"
    settings_form = PostalSettings
    credentials_form = PostalCredentials

    def send(self, address, message, client_ref, deadline):
        return SendResult.accepted()

    def check_session(self, deadline):
        if self.config.settings.get("office") == "closed":
            return SessionCheck(SessionState.DISCONNECTED, "The office is closed.")
        return SessionCheck(SessionState.CONNECTED)


@pytest.fixture(autouse=True)
def postal(settings, db):
    settings.CHANNELS = {**settings.CHANNELS, "postal": f"{__name__}.Postal"}


@pytest.fixture
def session():
    return make_session(
        name="Letters", channel="postal", settings={"office": "Rua 1", "stamps": 3, "speed": "slow"}, credentials={"seal": "s3cret-wax"}
    )


def change(session) -> str:
    return reverse("admin:sessions_app_session_change", args=[session.pk])


def posted(session, **changes):
    values = {"name": session.name, "time_zone": "UTC", "setting__office": "Rua 1", "setting__stamps": "3", "setting__speed": "slow"}
    return {name.replace("__", "-"): value for name, value in (values | changes).items()}


def test_a_new_session_goes_on_to_the_fields_of_its_channel(admin_client):
    response = admin_client.post(ADD, {"name": "New", "channel": "postal", "time_zone": "America/Sao_Paulo"})
    session = Session.objects.get(name="New")
    assert response.headers["Location"].endswith(change(session))
    text = admin_client.get(change(session)).content.decode()
    assert "Post office" in text and "Seal" in text and "Not set." in text
    assert session.status == Session.Status.DISCONNECTED


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("channel", "pigeon", "pigeon is not one of the available choices"),
        ("time_zone", "Mars/Olympus", "&quot;Mars/Olympus&quot; is not a time zone"),
        ("time_zone", "../../etc/passwd", "is not a time zone"),
        ("daily_limit", "abc", "Enter a whole number"),
        ("daily_limit", "-1", "greater than or equal to 0"),
        ("daily_limit", "0", "Use 1 or more, or leave it empty"),
        ("name", "", "This field is required"),
    ],
)
def test_a_bad_value_is_refused_with_a_sentence(admin_client, field, value, sentence):
    response = admin_client.post(ADD, {"name": "New", "channel": "postal", "time_zone": "UTC", field: value})
    assert response.status_code == 200
    assert sentence in response.content.decode()
    assert not Session.objects.filter(name="New").exists()


def test_the_channels_settings_are_stored_as_its_form_cleans_them(admin_client, session):
    typed = {"setting__office": "Rua 2", "setting__stamps": "7", "setting__express": "on", "setting__speed": "fast"}
    admin_client.post(change(session), posted(session, **typed))
    session.refresh_from_db()
    assert session.settings == {"office": "Rua 2", "stamps": 7, "express": True, "speed": "fast"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"setting__stamps": "0"}, "greater than or equal to 1"),
        ({"setting__office": ""}, "This field is required"),
        ({"setting__express": "on"}, "Express is never slow."),
        ({"setting__speed": "warp"}, "warp is not one of the available choices"),
    ],
)
def test_what_the_channels_form_refuses_is_not_stored(admin_client, session, changes, sentence):
    response = admin_client.post(change(session), posted(session, name="Renamed", **changes))
    assert sentence in response.content.decode()
    assert response.content.decode().count(sentence) == 1
    session.refresh_from_db()
    assert (session.name, session.settings["office"]) == ("Letters", "Rua 1")


def test_the_channel_cannot_be_changed(admin_client, session):
    admin_client.post(change(session), posted(session, channel="mock"))
    session.refresh_from_db()
    assert session.channel == "postal"


def test_a_secret_is_in_no_page(admin_client, session):
    for url in (change(session), LIST, reverse("admin:sessions_app_session_history", args=[session.pk]), reverse("admin:index")):
        text = admin_client.get(url).content.decode()
        assert "s3cret" not in text, url
        assert session.sealed_credentials not in text, url
    refused = admin_client.post(change(session), posted(session, credential__seal="another-s3cret", name=""))
    assert "another-s3cret" not in refused.content.decode()


def test_an_empty_secret_keeps_what_is_stored_and_a_typed_one_replaces_it(admin_client, session):
    admin_client.post(change(session), posted(session, credential__seal=""))
    assert Session.objects.get().credentials == {"seal": "s3cret-wax"}
    admin_client.post(change(session), posted(session, credential__seal="new wax", credential__motto="ora"))
    assert Session.objects.get().credentials == {"seal": "new wax", "motto": "ora"}
    assert "Set. Leave empty to keep it." in admin_client.get(change(session)).content.decode()


def test_a_ticked_box_removes_a_secret(admin_client, session):
    admin_client.post(change(session), posted(session, clear__seal="on"))
    assert Session.objects.get().credentials == {}


def test_a_secret_that_is_needed_is_asked_for(admin_client):
    session = make_session(channel="postal")
    assert "This field is required" in admin_client.post(change(session), posted(session)).content.decode()


def test_secrets_that_no_key_opens_survive_an_edit(admin_client, session, settings):
    sealed, settings.CREDENTIALS_KEYS = session.sealed_credentials, [Fernet.generate_key().decode()]
    assert "not readable" in admin_client.get(change(session)).content.decode()
    admin_client.post(change(session), posted(session, name="Renamed"))
    stored = Session.objects.get()
    assert (stored.name, stored.sealed_credentials) == ("Renamed", sealed)


def test_an_unknown_channel_breaks_no_page(admin_client):
    session = make_session(channel="pigeon")
    make_step(make_campaign(session=session))
    campaign = reverse("admin:campaigns_campaign_change", args=[session.campaigns.get().pk])
    for url in (LIST, change(session), campaign, reverse("admin:campaigns_campaign_changelist"), reverse("admin:index")):
        assert admin_client.get(url).status_code == 200, url
    assert "pigeon (unknown channel)" in admin_client.get(LIST).content.decode()
    admin_client.post(change(session), {"name": "Renamed", "time_zone": "UTC"})
    assert Session.objects.get().name == "Renamed"


def test_an_unreadable_zone_in_the_database_breaks_no_page(admin_client):
    session = make_session(time_zone="Mars/Olympus")
    make_campaign(session=session, time_zone="Mars/Olympus")
    for url in (LIST, change(session), reverse("admin:campaigns_campaign_changelist")):
        assert admin_client.get(url).status_code == 200, url


def test_an_edit_never_writes_back_a_status_that_moved_meanwhile(admin_user, session):
    opened = Session.objects.get(pk=session.pk)
    transitions.restrict(session.pk, "blocked by the vendor", now=timezone.now())
    request = RequestFactory().post("/")
    request.user = admin_user
    admin.site._registry[Session].save_model(request, opened, None, change=True)
    assert Session.objects.get(pk=session.pk).status == Session.Status.RESTRICTED


# --- asking the provider


def check(session) -> str:
    return reverse("admin:sessions_app_session_check_connection", args=[session.pk])


def test_the_check_says_in_a_sentence_what_the_provider_said(admin_client, session, said):
    session.settings = {"office": "closed"}
    session.save()
    response = admin_client.post(check(session), {"_form_submitted": "True"})
    assert said(response) == ['Session "Letters" is disconnected: The office is closed.']
    assert Session.objects.get().status == Session.Status.DISCONNECTED


def test_how_long_a_restriction_is_believed_stands_on_the_page(admin_client, session):
    assert "Restricted until" not in admin_client.get(change(session)).content.decode()
    transitions.restrict(session.pk, "463", now=timezone.now())
    page = admin_client.get(change(session)).content.decode()
    assert "Restricted until" in page
    assert "nothing but a check of the connection by hand ends the restriction" in page


def test_looking_at_the_check_checks_nothing(admin_client, session):
    Session.objects.update(status=Session.Status.CONNECTING)
    assert "Check now" in admin_client.get(check(session)).content.decode()
    assert Session.objects.get().status == Session.Status.CONNECTING


def test_the_check_needs_the_change_permission_and_a_csrf_token(staff, admin_user, session):
    Session.objects.update(status=Session.Status.CONNECTING)
    assert staff("sessions_app.view_session").post(check(session), {"_form_submitted": "True"}).status_code == 403
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert strict.post(check(session), {"_form_submitted": "True"}).status_code == 403
    assert Session.objects.get().status == Session.Status.CONNECTING


def test_the_check_of_several_from_the_list(admin_client, session, said):
    pigeon = make_session(name="Pigeons", channel="pigeon")
    response = admin_client.post(LIST, {"action": "check_selected", "_selected_action": [session.pk, pigeon.pk]})
    assert said(response) == [
        'Session "Letters" is connected.',
        'Session "Pigeons" is on channel "pigeon", which this instance does not know.',
    ]


def test_too_many_checks_at_once_are_refused(admin_client, said):
    many = [make_session().pk for _ in range(11)]
    response = admin_client.post(LIST, {"action": "check_selected", "_selected_action": many})
    assert said(response) == ["Choose at most 10 sessions at once: each check can take ten seconds."]


def test_the_check_of_a_deleted_session_says_so(admin_client, session, said):
    url = check(session)
    session.delete()
    assert said(admin_client.post(url, {"_form_submitted": "True"})) == ["That session is not there any more."]


# --- deleting


def test_a_session_with_campaigns_is_not_deleted(admin_client, session, said):
    make_campaign(session=session, name="June")
    sentence = 'Session "Letters" cannot be deleted: campaigns use it ("June"). Move or delete them first.'
    url = reverse("admin:sessions_app_session_delete", args=[session.pk])
    assert set(said(admin_client.get(url))) == {sentence}
    assert set(said(admin_client.post(url, {"post": "yes"}))) == {sentence}
    bulk = {"action": "delete_selected", "_selected_action": [session.pk], "post": "yes"}
    assert said(admin_client.post(LIST, bulk)) == [sentence] * 3
    assert Session.objects.filter(pk=session.pk).exists()


def test_a_session_that_sent_messages_is_not_deleted(admin_client, session, said):
    run = make_run(make_step(make_campaign()))
    make_log(run, session=session)
    response = admin_client.post(reverse("admin:sessions_app_session_delete", args=[session.pk]), {"post": "yes"})
    assert "messages were sent from it" in said(response)[0]
    assert Session.objects.filter(pk=session.pk).exists()


def test_an_unused_session_is_deleted_with_its_lane(admin_client, session):
    make_lane(session)
    admin_client.post(reverse("admin:sessions_app_session_delete", args=[session.pk]), {"post": "yes"})
    other = make_session()
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"})
    assert not Session.objects.exists()


def test_the_list_shows_what_runs_and_how_much_went_out_today(admin_client, session):
    Session.objects.update(daily_limit=500)
    campaign = make_campaign(session=session, name="June", status="RUNNING")
    make_lane(session, campaign=campaign, day=timezone.now().date(), day_count=17)
    text = admin_client.get(LIST).content.decode()
    assert "17 of 500" in text
    assert reverse("admin:campaigns_campaign_change", args=[campaign.pk]) in text

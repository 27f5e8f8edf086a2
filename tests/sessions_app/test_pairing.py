"""Pairing, the vendor's buttons and the address for receipts, against a vendor that a test scripts."""

import threading

import pytest
from cryptography.fernet import Fernet
from django import forms
from django.db import connection

from sessions_app import pairing
from sessions_app.models import Session
from sessions_app.providers.base import ChannelProvider, NotPossible, Pairing, SendResult, SessionCheck, SessionState
from sessions_app.providers.http import NoAnswer, NotSent
from sessions_app.sandbox import qr
from tests.factories import make_campaign, make_session

QR = qr.picture("a code")
TOLD = "Phone sends receipts to the webhook address of this session from now on."


class PhoneSettings(forms.Form):
    callback_url = forms.CharField(required=False)


class PhoneCredentials(forms.Form):
    webhook_secret = forms.CharField(required=False)


class Phone(ChannelProvider):
    """A vendor that is paired. What a call does is in `script`: an answer, or an error to raise."""

    key = "phone"
    label = "Phone"
    address_kind = "any"
    can_pair = True
    takes_webhooks = True
    settings_form = PhoneSettings
    credentials_form = PhoneCredentials

    script = None
    calls = []

    @classmethod
    def reset(cls):
        Phone.script, Phone.calls = None, []

    def note(self, name, deadline, *details):
        self.calls.append((name, *details))
        assert 0 < deadline.remaining <= 10
        assert Phone.in_transaction is None or connection.in_atomic_block is Phone.in_transaction
        if isinstance(Phone.script, Exception):
            raise Phone.script
        return Phone.script

    in_transaction = None  # set by the test that looks

    def send(self, address, message, client_ref, deadline):
        return SendResult.accepted()

    def check_session(self, deadline):
        return self.note("check", deadline) or SessionCheck(SessionState.CONNECTED)

    def pair(self, deadline, *, phone=""):
        return self.note("pair", deadline, phone) or Pairing(SessionCheck(SessionState.NEEDS_PAIRING, "Scan it."), qr_png=QR)

    def manage(self, verb, deadline):
        return self.note(verb, deadline) or SessionCheck(SessionState.CONNECTING, "it starts")

    def set_webhook(self, url, deadline):
        self.note("webhook", deadline, url, self.config.credentials.get("webhook_secret", ""))


class Plain(ChannelProvider):
    """A vendor where a person enters the address, and which names it with each message."""

    key = "plain"
    label = "Plain"
    address_kind = "any"
    takes_webhooks = True

    def send(self, address, message, client_ref, deadline):
        return SendResult.accepted()


@pytest.fixture(autouse=True)
def phone(settings):
    settings.CHANNELS = {**settings.CHANNELS, "phone": f"{__name__}.Phone", "plain": f"{__name__}.Plain"}
    settings.PUBLIC_URL = "https://paceline.example"
    Phone.reset()
    yield Phone
    Phone.reset()


@pytest.fixture
def session(db):
    return make_session(name="Ana's phone", channel="phone", status="DISCONNECTED")


def test_looking_writes_the_state_down_and_returns_the_qr_code(session):
    found = pairing.look(session)
    assert (found.qr_png, session.status, session.status_detail) == (QR, "NEEDS_PAIRING", "Scan it.")
    assert Session.objects.get().status == "NEEDS_PAIRING"
    assert Phone.calls == [("pair", "")]


def test_while_a_code_is_typed_in_only_the_state_is_asked_for(session):
    assert pairing.look(session, only_state=True).check.state == "CONNECTED"
    assert Phone.calls == [("check",)]


TROUBLES = {
    "not possible": (NotPossible("The vendor has no phone."), "The vendor has no phone."),
    "not sent": (NotSent("refused"), "Phone cannot be reached, so nothing was done. Check its address, and whether it runs."),
    "no answer": (NoAnswer("cut"), "Phone gave no answer. It may have done it all the same: check the connection."),
    "bug": (KeyError("s3cret"), "Phone could not be asked: its channel failed with KeyError. Report it."),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("call", [pairing.look, lambda session: pairing.apply(session, "start")], ids=["look", "apply"])
def test_every_trouble_is_a_sentence_and_changes_no_state(session, call, trouble):
    Phone.script, sentence = TROUBLES[trouble]
    with pytest.raises(pairing.Refused) as refusal:
        call(session)
    assert str(refusal.value) == sentence
    assert Session.objects.get().status == "DISCONNECTED"


def test_a_session_that_cannot_be_used_as_it_is_stored_is_refused_with_a_sentence(session, settings):
    with pytest.raises(pairing.Refused, match=r'There is no channel "pigeon"'):
        pairing.look(make_session(channel="pigeon"))
    session.credentials = {"webhook_secret": "x" * 20}
    settings.CREDENTIALS_KEYS = [Fernet.generate_key().decode()]
    for call in (pairing.look, pairing.set_up_receipts):
        with pytest.raises(pairing.Refused, match="cannot be read"):
            session.save()
            call(session)
    assert Phone.calls == []


@pytest.mark.django_db(transaction=True)
def test_no_transaction_is_open_while_the_vendor_is_asked():
    session = make_session(channel="phone")
    Phone.in_transaction = False
    try:
        pairing.look(session)
        pairing.apply(session, "restart")
        pairing.set_up_receipts(session)
    finally:
        Phone.in_transaction = None
    assert [call[0] for call in Phone.calls] == ["pair", "restart", "webhook"]


# -- the vendor's buttons


@pytest.mark.parametrize("verb", ["create", "start", "stop", "restart", "logout"])
def test_a_button_asks_the_vendor_and_writes_down_what_it_says(session, verb):
    check = pairing.apply(session, verb)
    assert (check.detail, session.status, Phone.calls) == ("it starts", "CONNECTING", [(verb,)])


def test_a_session_is_created_with_the_address_for_receipts(session):
    pairing.apply(session, "start")
    assert Session.objects.get().settings == {}
    pairing.apply(session, "create")
    stored = Session.objects.get()
    assert stored.settings == {"callback_url": pairing.own_address(session)} and stored.credentials["webhook_secret"]


@pytest.mark.parametrize(("verb", "spoken"), [("stop", "stop"), ("logout", "log out")])
def test_what_would_cut_a_running_campaign_off_is_refused(session, verb, spoken):
    make_campaign(session=session, name="June", status="RUNNING")
    with pytest.raises(pairing.Refused) as refusal:
        pairing.apply(session, verb)
    assert str(refusal.value) == f'"June" is being sent from "Ana\'s phone". Pause that campaign first, then {spoken}.'
    assert Phone.calls == []


@pytest.mark.parametrize(("verb", "status"), [("stop", "PAUSED"), ("logout", "COMPLETED"), ("restart", "RUNNING"), ("start", "RUNNING")])
def test_what_cuts_nothing_off_is_done(session, verb, status):
    make_campaign(session=session, status=status)
    make_campaign(status="RUNNING")
    pairing.apply(session, verb)
    assert Phone.calls == [(verb,)]


# -- receipts


def test_setting_up_makes_a_secret_once_stores_the_address_and_tells_the_vendor(session):
    address = f"https://paceline.example/api/webhooks/{session.uuid}/"
    assert pairing.set_up_receipts(session) == TOLD
    secret = Session.objects.get().credentials["webhook_secret"]
    assert len(secret) >= 32
    edited = Session.objects.get().updated_at
    pairing.set_up_receipts(session)
    assert Phone.calls == [("webhook", address, secret)] * 2
    stored = Session.objects.get()
    assert (stored.settings["callback_url"], stored.credentials["webhook_secret"], stored.updated_at) == (address, secret, edited)


def test_a_stored_secret_and_other_credentials_stay(session):
    session.credentials = {"webhook_secret": "my own word of choice", "api_key": "k"}
    session.save()
    pairing.set_up_receipts(session)
    assert Session.objects.get().credentials == {"webhook_secret": "my own word of choice", "api_key": "k"}


def test_an_address_that_a_person_typed_is_the_one_the_vendor_is_told(session):
    session.settings = {"callback_url": "http://web:8000/api/webhooks/x/"}
    session.save()
    pairing.set_up_receipts(session)
    assert Phone.calls[0][1] == "http://web:8000/api/webhooks/x/"


def test_where_nobody_can_type_one_an_old_address_is_replaced_and_the_rest_is_done_by_hand(db, settings):
    session = make_session(channel="plain", settings={"callback_url": "https://old.example/", "sender": "1"})
    with pytest.raises(pairing.Refused) as refusal:
        pairing.set_up_receipts(session)
    address = f"https://paceline.example/api/webhooks/{session.uuid}/"
    assert str(refusal.value) == f"The address for receipts is stored in the session. Enter this address at Plain by hand: {address}"
    stored = Session.objects.get()
    assert (stored.settings, stored.sealed_credentials) == ({"callback_url": address, "sender": "1"}, "")


def test_a_channel_without_webhooks_is_left_alone(db):
    session = make_session(channel="mock")
    with pytest.raises(pairing.Refused, match="sends no receipts"):
        pairing.set_up_receipts(session)
    assert Session.objects.get().settings == {}


@pytest.mark.django_db(transaction=True)
def test_two_people_at_once_make_one_secret():
    session = make_session(channel="phone")
    start = threading.Barrier(2)

    def press():
        start.wait()
        try:
            pairing.set_up_receipts(Session.objects.get(pk=session.pk))
        finally:
            connection.close()

    people = [threading.Thread(target=press) for _ in range(2)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert {call[2] for call in Phone.calls} == {Session.objects.get().credentials["webhook_secret"]}

"""The pairing page and the address for receipts: what staff see and press. What the calls do is tested beside sessions_app."""

import base64

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from sessions_app.models import Session
from sessions_app.providers.base import NotPossible, Pairing, SessionCheck, SessionState
from sessions_app.sandbox import Sandbox
from tests.factories import make_campaign, make_session
from tests.processes import until
from tests.sessions_app.test_pairing import QR, TOLD, Phone, phone  # noqa: F401 - the fixture registers the channel

PICTURE = base64.b64encode(QR).decode()
HTMX = {"HX-Request": "true"}
CONNECTED = Pairing(SessionCheck(SessionState.CONNECTED))
WAITING = Pairing(SessionCheck(SessionState.NEEDS_PAIRING, "Type it in."), code="ABCD-1234")
VERBS = {"start": "Start", "restart": "Restart", "stop": "Stop", "create": "Create", "logout": "Log out"}


@pytest.fixture
def session(db):
    return make_session(name="Ana's phone", channel="phone", status="NEEDS_PAIRING")


def url(session, name: str = "pair") -> str:
    return reverse(f"admin:sessions_app_session_{name}", args=[session.pk])


def ask(client, session, **values):
    """What the page posts to itself."""
    return client.post(url(session), {"shown": "NEEDS_PAIRING", "code": "", **values}, headers=HTMX)


def test_opening_the_page_asks_the_vendor_nothing_and_begins_to_look(admin_client, session):
    text = admin_client.get(url(session)).content.decode()
    assert Phone.calls == []
    assert 'hx-trigger="load, every 3s' in text
    assert all(url(session, f"{verb}_there") in text for verb in VERBS)


def test_the_qr_code_is_in_the_page_and_nowhere_else(admin_client, session):
    response = ask(admin_client, session)
    text = response.content.decode()
    assert f"data:image/png;base64,{PICTURE}" in text
    assert "Scan it." in text and "Needs pairing" in text
    assert 'hx-trigger="every 3s' in text
    assert "no-store" in response["Cache-Control"]
    assert "<html" not in text
    stored = Session.objects.get()
    assert PICTURE not in repr([vars(stored), list(LogEntry.objects.values())])


def test_without_scripts_the_whole_page_comes_back(admin_client, session):
    text = admin_client.post(url(session), {"shown": "NEEDS_PAIRING"}).content.decode()
    assert PICTURE in text and "<html" in text and "<noscript>" in text


def test_a_code_for_a_phone_is_asked_for_once_and_stays_while_it_is_typed_in(admin_client, session, settings):
    settings.DEFAULT_REGION = "BR"
    Phone.script = WAITING
    assert "ABCD-1234" in ask(admin_client, session, phone="(11) 91234-5678").content.decode()
    Phone.script = SessionCheck(SessionState.NEEDS_PAIRING)
    assert "ABCD-1234" in ask(admin_client, session, code="ABCD-1234").content.decode()
    assert Phone.calls == [("pair", "+5511912345678"), ("check",)]


def test_a_code_is_shown_no_longer_than_somebody_waits_for_it(admin_client, session):
    Phone.script = SessionCheck(SessionState.DISCONNECTED, "It gave up.")
    text = ask(admin_client, session, code="ABCD-1234").content.decode()
    assert "It gave up." in text and "ABCD-1234" not in text


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"phone": "ana"}, "There is a letter (&quot;a&quot;) in this phone number."),
        ({"shown": "HAPPY"}, "Load this page again."),
        ({"code": "<script>alert(1)</script>"}, "Enter a valid value."),
        ({"code": "ABCD-1234\n<b>"}, "Enter a valid value."),
    ],
)
def test_what_cannot_be_read_is_a_sentence_and_asks_nothing(admin_client, session, values, sentence):
    text = ask(admin_client, session, **values).content.decode()
    assert sentence in text and "<script>" not in text and "<b>" not in text
    assert Phone.calls == []


def test_a_vendors_trouble_is_a_sentence_and_the_page_goes_on_looking(admin_client, session):
    Phone.script = NotPossible("The vendor <b>sleeps</b>.")
    response = ask(admin_client, session)
    text = response.content.decode()
    assert response.status_code == 200
    assert "The vendor &lt;b&gt;sleeps&lt;/b&gt;." in text and "every 3s" in text


def test_once_connected_it_says_so_stops_looking_and_sets_receipts_up_by_itself(admin_client, session):
    Phone.script = CONNECTED
    text = ask(admin_client, session).content.decode()
    address = f"https://paceline.example/api/webhooks/{session.uuid}/"
    assert "Connected: this session can send." in text and TOLD in text
    assert "every 3s" not in text and reverse("admin:sessions_app_session_change", args=[session.pk]) in text
    assert [call[0] for call in Phone.calls] == ["pair", "webhook"]
    assert Session.objects.get().settings == {"callback_url": address}


def test_looking_at_a_session_that_was_connected_all_the_time_sets_nothing_up(admin_client, session):
    Phone.script = CONNECTED
    text = ask(admin_client, session, shown="CONNECTED").content.decode()
    assert "Connected" in text and Phone.calls == [("pair", "")]


def test_receipts_that_cannot_be_set_up_after_a_pairing_are_a_message(admin_client, session, monkeypatch):
    def refuse(self, url, deadline):
        raise NotPossible("The vendor takes no address.")

    monkeypatch.setattr(Phone, "set_webhook", refuse)
    Phone.script = CONNECTED
    text = ask(admin_client, session).content.decode()
    assert "Connected: this session can send." in text and "Receipts are not set up yet." in text and "takes no address" in text


@pytest.mark.parametrize("verb", VERBS)
def test_a_button_is_a_dialog_and_a_post(admin_client, session, said, verb):
    button = url(session, f"{verb}_there")
    assert 'id="dialog"' in admin_client.get(button).content.decode()
    assert Phone.calls == []
    response = admin_client.post(button, {"_form_submitted": "True"}, headers=HTMX)
    assert response["HX-Redirect"] == url(session)
    assert said(response) == [f"{VERBS[verb]}: done. it starts"]
    assert Phone.calls == [(verb,)]


def test_a_button_that_is_refused_says_why(admin_client, session, said):
    make_campaign(session=session, name="June", status="RUNNING")
    response = admin_client.post(url(session, "logout_there"), {"_form_submitted": "True"})
    assert said(response) == ['"June" is being sent from "Ana\'s phone". Pause that campaign first, then log out.']


def test_everything_here_needs_the_change_permission_and_a_csrf_token(staff, admin_user, session):
    viewer = staff("sessions_app.view_session")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    names = ["pair", "set_up_receipts", *(f"{verb}_there" for verb in VERBS)]
    for name in names:
        assert viewer.get(url(session, name)).status_code == 403, name
        assert viewer.post(url(session, name), {"_form_submitted": "True", "shown": "NEEDS_PAIRING"}).status_code == 403, name
        assert strict.post(url(session, name), {"_form_submitted": "True", "shown": "NEEDS_PAIRING"}).status_code == 403, name
    assert Phone.calls == []


def test_pages_of_sessions_that_cannot_be_paired_lead_away(admin_client, session, said):
    mock, pigeon = make_session(name="Mock"), make_session(name="Pigeon", channel="pigeon")
    for other in (mock, pigeon):
        response = admin_client.get(url(other))
        assert response.status_code == 302
        assert said(response)[-1] == f'Session "{other}" is on a channel that is not paired with a phone.'
    gone = url(session)
    session.delete()
    response = admin_client.post(gone, {"shown": "CONNECTED"}, headers=HTMX)
    assert response["HX-Redirect"] and said(response)[-1] == "That session is not there any more."


def test_the_sessions_page_has_the_buttons_and_the_address_that_its_channel_has(admin_client, session):
    address = f"https://paceline.example/api/webhooks/{session.uuid}/"
    text = admin_client.get(url(session, "change")).content.decode()
    assert url(session) in text and url(session, "set_up_receipts") in text and f'value="{address}"' in text
    assert url(session, "logout_there") not in text
    mock = make_session()
    text = admin_client.get(url(mock, "change")).content.decode()
    assert url(mock) not in text and url(mock, "set_up_receipts") not in text and "/api/webhooks/" not in text


def test_the_page_says_when_nobody_outside_reaches_the_address(admin_client, session, settings):
    assert "Only programs on this machine" not in admin_client.get(url(session, "change")).content.decode()
    settings.PUBLIC_URL = "http://127.0.0.1:8000"
    assert "Only programs on this machine" in admin_client.get(url(session, "change")).content.decode()


def test_setting_receipts_up_by_hand(admin_client, session, said):
    response = admin_client.post(url(session, "set_up_receipts"), {"_form_submitted": "True"})
    assert said(response) == [TOLD]
    secret = Session.objects.get().credentials["webhook_secret"]
    for page in (url(session, "change"), url(session), url(session, "history")):
        assert secret not in admin_client.get(page).content.decode()
    Phone.script = NotPossible("Enter it by hand.")
    response = admin_client.post(url(session, "set_up_receipts"), {"_form_submitted": "True"})
    assert "The address for receipts is stored in the session. Enter it by hand." in said(response)[-1]


def test_a_check_that_finds_it_unpaired_says_what_to_press(admin_client, session, said):
    Phone.script = SessionCheck(SessionState.NEEDS_PAIRING, "The phone was unlinked. It happened today.")
    response = admin_client.post(url(session, "check_connection"), {"_form_submitted": "True"})
    sentence = (
        'Session "Ana\'s phone" needs pairing: The phone was unlinked. It happened today. The button "Pair" connects it with the phone.'
    )
    assert said(response) == [sentence]


def test_a_long_answer_is_shown_whole(admin_client, session, said):
    detail = " ".join(f"Sentence {n} of the vendor." for n in range(18))
    Phone.script = SessionCheck(SessionState.DISCONNECTED, detail)
    response = admin_client.post(url(session, "check_connection"), {"_form_submitted": "True"})
    assert said(response) == [f'Session "Ana\'s phone" is disconnected: {detail}']
    assert detail in admin_client.get(url(session, "change")).content.decode()


# -- with the stand-in, over HTTP


def test_from_nothing_to_a_connected_session_and_its_contacts(admin_client, said, settings):
    settings.PUBLIC_URL = "http://127.0.0.1:9"  # the stand-in calls nobody else; nobody is there
    with Sandbox(open_sessions=False) as sandbox:
        values = {"base_url": sandbox.url, "session": "ana", "engine": "NOWEB"}
        session = make_session(name="Ana", channel="sandbox", settings=values, status="DISCONNECTED")

        def press(verb):
            return said(admin_client.post(url(session, f"{verb}_there"), {"_form_submitted": "True"}))[-1]

        def look():
            shown = Session.objects.get().status
            return ask(admin_client, session, shown=shown).content.decode()

        assert "has no session &quot;ana&quot;" in look()
        assert press("create").startswith("Create: done.")
        until(lambda: "data:image/png;base64," in look(), "a QR code")
        (hook,) = sandbox.accounts.get("ana").config["webhooks"]
        assert hook["url"] == f"http://127.0.0.1:9/api/webhooks/{session.uuid}/"
        assert hook["hmac"]["key"] == Session.objects.get().credentials["webhook_secret"]
        sandbox.accounts.scan("ana")
        assert "sends receipts to the webhook address" in look()
        assert Session.objects.get().status == "CONNECTED"
        assert sandbox.accounts.status("ana") == "WORKING"  # it was created with the address, and not restarted for it

        campaign = make_campaign(session=session)
        text = admin_client.get(reverse("admin:campaigns_campaign_pick_recipients", args=[campaign.pk])).content.decode()
        assert text.count('name="chat"') > 1
        assert press("logout").startswith("Log out: done.")
        until(lambda: "data:image/png;base64," in look(), "a QR code")


# -- in a browser


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_person_pairs_a_session(page, settings):
    User.objects.create_superuser("ana", password="secret word")
    session = make_session(name="Ana's phone with quite a long name for such a small screen", channel="phone", status="DISCONNECTED")
    page.goto(url(session))
    page.fill("#id_username", "ana")
    page.fill("#id_password", "secret word")
    page.click("text=Log in")

    page.wait_for_selector("#pairing-state img")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    Phone.script = WAITING
    page.fill("#id_phone", "+55 11 91234-5678")
    page.click("text=Get a code")
    page.wait_for_selector("#pairing-code")
    assert page.inner_text("#pairing-code") == "ABCD-1234"
    Phone.script = SessionCheck(SessionState.CONNECTED)
    page.wait_for_selector("text=Connected: this session can send.")
    assert page.locator("#id_phone").count() == 0
    assert page.locator("#pairing-state").get_attribute("hx-post") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

    page.locator("#pairing a", has_text="Log out").click()
    Phone.script = None
    page.locator("#dialog").get_by_role("button", name="Log out").click()
    page.wait_for_selector("text=Log out: done. it starts")
    page.wait_for_selector("#pairing-state img")
    assert ("logout",) in Phone.calls

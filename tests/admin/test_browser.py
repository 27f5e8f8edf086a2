"""The way of a member of staff through a real browser: session, campaign, file, start, pause, resume, stop."""

import re

import pytest
from django.contrib.auth.models import User

from campaigns.models import Campaign
from tests.factories import make_campaign, make_log, make_run, make_step

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PEOPLE = "phone;name;city\n" + "".join(f"+120255501{number:02};Person {number};City {number}\n" for number in range(20))


@pytest.fixture
def signed_in(page):
    User.objects.create_superuser("ana", password="secret word")
    page.goto("/")
    page.fill("#id_username", "ana")
    page.fill("#id_password", "secret word")
    page.click("text=Log in")
    page.wait_for_selector("text=Schedulers alive")
    return page


def press(page, button: str, confirm: str) -> None:
    """A button above the form, and the one that confirms in its dialog."""
    page.locator("li > a", has_text=re.compile(rf"{button}\s*$")).click()
    page.locator("#dialog").get_by_role("button", name=confirm).click()


def test_from_the_login_to_a_stopped_campaign(signed_in):
    page = signed_in

    page.goto("/admin/sessions_app/session/add/")
    page.fill("#id_name", "Dry run")
    page.select_option("#id_channel", "mock")
    page.click("button[name=_save]")
    page.wait_for_selector("text=Dry run (sends nothing)")
    press(page, "Check connection", "Check now")
    page.wait_for_selector('text=Session "Dry run" is connected.')

    page.goto("/admin/campaigns/campaign/add/")
    page.fill("#id_name", "June")
    page.click(".select2-selection")
    page.fill(".select2-search__field", "Dry")
    page.click(".select2-results__option:has-text('Dry run')")
    page.fill("#id_time_zone", "America/Sao_Paulo")
    page.fill("#id_steps-0-text", 'Hello {{ name }} of {{ city|default:"your town" }}')
    page.click("button[name=_continue]")
    page.wait_for_selector("text=The campaign has no recipients.")

    page.click("text=import a CSV file")
    page.set_input_files("#id_file", {"name": "people.csv", "mimeType": "text/csv", "buffer": PEOPLE.encode()})
    page.click("button[name=_import]")
    page.wait_for_selector("text=20 rows read, 20 recipients added.")
    page.click("text=Back to the campaign")
    page.wait_for_selector("text=20 recipients")
    campaign = Campaign.objects.get()
    assert campaign.recipients.count() == 20
    assert campaign.time_zone == "America/Sao_Paulo"

    for button, confirm, shown, status in (
        ("Start", "Start", '"June" is running.', "RUNNING"),
        ("Pause", "Pause", '"June" is paused.', "PAUSED"),
        ("Resume", "Resume", '"June" is running.', "RUNNING"),
        ("Stop", "Stop for good", '"June" is stopped.', "FAILED"),
    ):
        press(page, button, confirm)
        page.wait_for_selector(f"text={shown}")
        campaign.refresh_from_db()
        assert campaign.status == status
    assert campaign.status_reason == "stopped by ana"


def test_a_dialog_that_is_cancelled_changes_nothing(signed_in):
    campaign = make_campaign(status=Campaign.Status.RUNNING)
    signed_in.goto(f"/admin/campaigns/campaign/{campaign.pk}/change/")
    signed_in.locator("li > a", has_text=re.compile(r"Stop\s*$")).click()
    signed_in.wait_for_selector("text=Stop for good?")
    signed_in.click("#dialog >> text=Cancel")
    campaign.refresh_from_db()
    assert campaign.status == Campaign.Status.RUNNING


def test_pacing_of_a_running_campaign_is_saved_though_its_steps_are_shown_frozen(signed_in):
    campaign = make_campaign(status=Campaign.Status.RUNNING)
    make_log(make_run(make_step(campaign)))
    signed_in.goto(f"/admin/campaigns/campaign/{campaign.pk}/change/")
    assert signed_in.locator("#id_steps-0-text").is_disabled()
    signed_in.fill("#id_min_interval", "12")
    signed_in.click("button[name=_continue]")
    signed_in.wait_for_selector("text=was changed successfully")
    campaign.refresh_from_db()
    assert campaign.min_interval == 12


def test_nothing_is_wider_than_a_phone(signed_in):
    make_log(make_run(make_step(make_campaign(status=Campaign.Status.RUNNING, name="A campaign with quite a long name " * 3))))
    signed_in.set_viewport_size({"width": 390, "height": 844})
    for address in ("/admin/", "/admin/campaigns/campaign/", "/admin/dispatch/dispatchlog/", "/admin/campaigns/campaign/add/"):
        signed_in.goto(address)
        assert signed_in.evaluate("document.documentElement.scrollWidth") <= 390, address

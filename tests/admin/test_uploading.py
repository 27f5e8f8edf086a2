"""A file from somebody's computer: kept with the step, fetched by the channel, refused with a sentence when it cannot be sent."""

from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from campaigns import uploading
from campaigns.models import Campaign, CampaignStep, UploadedFile
from dispatch import runs, tasks
from dispatch.models import Run
from dispatch.providers import frozen_message
from tests.admin.test_campaign_form import ADD, change, kept, posted
from tests.factories import make_campaign, make_run, make_session, make_step

PNG = b"\x89PNG\r\n\x1a\n" + bytes(200)
HOST = "https://paceline.example.org"


@pytest.fixture(autouse=True)
def site(settings):
    settings.PUBLIC_URL = HOST


@pytest.fixture
def session(db):
    return make_session(name="Sales")


def file(name: str = "price list.png", content: bytes = PNG) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content)


def image(**values):
    return {"message_type": "IMAGE", "text": "", "caption": "Hi", **values}


def path_of(url: str) -> str:
    assert url.startswith(f"{HOST}/files/")
    return url.removeprefix(HOST)


def test_it_is_kept_and_whoever_knows_its_address_may_fetch_it(admin_client, client, session):
    response = admin_client.post(ADD, posted(image(upload=file()), session=session.pk))
    assert response.status_code == 302, response.context["errors"]
    step = CampaignStep.objects.get()
    assert step.media_url.endswith("/price%20list.png")
    assert step.message.media_url == step.media_url
    fetched = client.get(path_of(step.media_url))  # nobody is logged in
    assert (fetched.status_code, fetched.content, fetched["Content-Type"]) == (200, PNG, "image/png")
    assert fetched["Content-Disposition"] == 'attachment; filename="price list.png"'
    assert fetched["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert fetched["X-Content-Type-Options"] == "nosniff"
    assert client.head(path_of(step.media_url)).status_code == 200
    assert client.post(path_of(step.media_url)).status_code == 405


def test_nobody_guesses_it(client, db):
    one, other = (UploadedFile.objects.create(name="a.png", content_type="image/png", content=PNG) for _ in range(2))
    assert len(one.token) == 32 and one.token != other.token
    for path in (path_of(one.url) + "x", path_of(one.url).replace(one.token, one.token[:-1]), "/files//a.png", "/files/a.png"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (image(upload=file(content=b"")), "The submitted file is empty."),
        (image(upload=file("list.pdf")), "is no image by its name"),
        ({"message_type": "VIDEO", "text": "", "upload": file()}, "is no video by its name"),
        ({"message_type": "AUDIO", "text": "", "upload": file()}, "is no audio by its name"),
        ({"upload": file()}, "A text goes without a file."),
        (image(upload=file(), media_url="https://example.org/a.png"), "Give an address or upload a file, not both."),
        (image(), "Give the address of the file to send, or upload it."),
    ],
)
def test_what_cannot_be_sent_is_refused(admin_client, session, step, sentence):
    for field in [value for value in step.values() if isinstance(value, SimpleUploadedFile)]:
        field.seek(0)
    response = admin_client.post(ADD, posted(step, session=session.pk))
    assert response.status_code == 200
    assert sentence in response.content.decode()
    assert not UploadedFile.objects.exists()


def test_a_file_of_the_largest_size_is_taken_and_a_larger_one_is_not(admin_client, session, monkeypatch):
    monkeypatch.setattr(uploading, "AT_MOST", len(PNG))
    assert admin_client.post(ADD, posted(image(upload=file()), session=session.pk)).status_code == 302
    response = admin_client.post(ADD, posted(image(upload=file(content=PNG + b"x")), session=session.pk))
    assert "Put it on a web server and give its address." in response.content.decode()
    assert UploadedFile.objects.count() == 1


def test_it_takes_the_place_of_the_address_that_was_there(admin_client, session):
    step = make_step(make_campaign(session=session), message_type="IMAGE", media_url="https://example.org/a.png", text="")
    response = admin_client.post(
        change(step.campaign), posted(kept(step, **image(upload=file("b.png")), media_url=step.media_url), session=session.pk)
    )
    assert response.status_code == 302, response.context["errors"]
    step.refresh_from_db()
    assert step.media_url == UploadedFile.objects.get().url
    response = admin_client.post(change(step.campaign), posted(kept(step, **image(text=""), media_url=step.media_url), session=session.pk))
    step.refresh_from_db()
    assert step.media_url == UploadedFile.objects.get().url  # saved again without a file, it stays


@pytest.mark.parametrize("name", ["../../etc/pass\x07wd.png", "preço maio 20% off?#1.png", "a" * 200 + ".png", "..png"])
def test_any_name_can_be_fetched_again(client, db, name):
    made = uploading.kept(file(name))
    made.save()
    assert client.get(path_of(made.url)).content == PNG
    assert made.name.isprintable() and len(made.name) <= 150
    assert not set(made.name) & set("/\\?#%")


def test_the_text_of_a_step_that_has_begun_is_frozen_and_so_is_its_file(admin_client, session):
    campaign = make_campaign(session=session, status=Campaign.Status.RUNNING)
    step = make_step(campaign, message_type="IMAGE", media_url="https://example.org/a.png", text="")
    make_run(step)
    data = {"id": step.pk, "campaign": campaign.pk, "upload": file()}
    values = posted(data, min_interval="30", max_interval="60")
    for name in [name for name in values if name.startswith("steps-0-") and name.rpartition("-")[2] not in data]:
        del values[name]
    response = admin_client.post(change(campaign), values)
    assert "its text and times are frozen" in response.content.decode()
    assert not UploadedFile.objects.exists()


def test_who_may_only_look_sees_its_address(staff, session):
    campaign = make_campaign(session=session)
    make_step(campaign, message_type="IMAGE", media_url="https://example.org/a.png", text="")
    page = staff("campaigns.view_campaign", "campaigns.view_campaignstep").get(change(campaign)).content.decode()
    assert "https://example.org/a.png" in page
    assert "upload a file" not in page


def test_a_run_sends_the_file_that_its_step_had(session):
    step = make_step(make_campaign(session=session), message_type="IMAGE", text="")
    made = uploading.kept(file())
    made.save()
    CampaignStep.objects.update(media_url=made.url)
    step.campaign.status = Campaign.Status.RUNNING
    step.campaign.save()
    CampaignStep.objects.update(status="SCHEDULED", next_run_at=timezone.now())
    runs.advance(step.campaign_id, timezone.now())
    assert frozen_message(Run.objects.get()).media_url == made.url


def test_a_file_that_nobody_names_is_removed_after_a_month(session):
    def old(name: str) -> UploadedFile:
        made = uploading.kept(file(name))
        made.save()
        UploadedFile.objects.filter(pk=made.pk).update(created_at=timezone.now() - timedelta(days=31))
        return made

    campaign = make_campaign(session=session)
    names = ["a.png", "b.png", "c.png", "d.png", "e.png", "f.png"]
    of_step, of_components, of_run, of_late_run, of_done_run, of_nobody = map(old, names)
    make_step(campaign, order=1, media_url=of_step.url)
    header = {"type": "header", "parameters": [{"type": "image", "image": {"link": of_components.url}}]}
    step = make_step(campaign, order=2, template_components=[header])
    make_run(step, number=1, message={"media_url": of_run.url})
    make_run(step, number=2, message={"media_url": of_done_run.url}, status=Run.Status.COMPLETED)
    Run.objects.update(created_at=timezone.now() - timedelta(days=31))
    make_run(step, number=3, message={"media_url": of_late_run.url}, status=Run.Status.COMPLETED)
    uploading.kept(file("new.png")).save()
    assert tasks.keep_house()["uploaded_files"] == 2
    assert {one.name for one in UploadedFile.objects.all()} == {"a.png", "b.png", "c.png", "d.png", "new.png"}
    assert of_nobody not in UploadedFile.objects.all()

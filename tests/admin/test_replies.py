"""What the channel and the people told back: on the pages of replies, of events, of a message and of a campaign."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from campaigns.admin import overview
from dispatch.models import DispatchLog, InboundMessage, WebhookEvent
from tests.factories import make_campaign, make_log, make_run, make_session, make_step

S = DispatchLog.Status
HOSTILE = "<script>alert(1)</script>"
REPLIES = reverse("admin:dispatch_inboundmessage_changelist")
EVENTS = reverse("admin:dispatch_webhookevent_changelist")
MESSAGES = reverse("admin:dispatch_dispatchlog_changelist")
KINDS = ["inboundmessage", "webhookevent"]


@pytest.fixture(autouse=True)
def hooks(settings):
    settings.CHANNELS = {**settings.CHANNELS, "fake": "tests.fakes.FakeProvider", "fake_hooks": "tests.fakes.FakeHooks"}


@pytest.fixture
def run(db):
    return make_run(make_step(make_campaign(session=make_session(channel="fake_hooks"))))


def reply(run, **fields) -> InboundMessage:
    values = {"session": run.campaign.session, "campaign": run.campaign, "sender": "12025550142@c.us", "sent_at": timezone.now(), **fields}
    return InboundMessage.objects.create(**values)


def event(run, event_id: str = "evt-1", **fields) -> WebhookEvent:
    return WebhookEvent.objects.create(**{"session": run.campaign.session, "event_id": event_id, "kind": "message", **fields})


def listed(client, url: str, **query) -> list[int]:
    return [row.pk for row in client.get(url, query).context["cl"].result_list]


def page(client, row) -> str:
    answer = client.get(reverse(f"admin:dispatch_{row._meta.model_name}_change", args=[row.pk]))
    assert answer.status_code == 200
    return answer.content.decode()


# -- replies -------------------------------------------------------------------------------------------------------------------


def test_replies_come_newest_first_and_by_campaign_session_and_sender(admin_client, run):
    other = make_run(make_step(make_campaign()))
    first, second = reply(run), reply(run, sender="4477009@c.us")
    third = reply(other)
    assert listed(admin_client, REPLIES) == [third.pk, second.pk, first.pk]
    assert listed(admin_client, REPLIES, campaign__id__exact=run.campaign_id) == [second.pk, first.pk]
    assert listed(admin_client, REPLIES, session__id__exact=other.campaign.session_id) == [third.pk]
    assert listed(admin_client, REPLIES, q="1 202 555") == [third.pk, first.pk]
    assert listed(admin_client, REPLIES, q="202") == []


def test_a_reply_without_words_says_what_it_is(admin_client, run):
    reply(run, message_type="IMAGE")
    assert "image" in admin_client.get(REPLIES).content.decode()


@pytest.mark.parametrize("url", [REPLIES, EVENTS], ids=KINDS)
def test_a_list_of_fifty_costs_as_many_queries_as_one_of_ten(admin_client, run, url):
    def cost() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(url).status_code == 200
        return len(captured)

    def fill(numbers: range) -> None:
        for number in numbers:
            another = make_run(make_step(make_campaign()))
            reply(another)
            event(another, str(number))

    fill(range(10))
    cost()
    few = cost()
    fill(range(10, 50))
    assert cost() == few


def test_the_list_of_events_reads_no_payload(admin_client, run):
    event(run, payload={"text": "long"})
    with CaptureQueriesContext(connection) as captured:
        admin_client.get(EVENTS)
    assert not [query for query in captured if '"payload"' in query["sql"]]


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_read_only(admin_client, staff, run, kind):
    row = {"inboundmessage": reply, "webhookevent": event}[kind](run)
    assert admin_client.get(reverse(f"admin:dispatch_{kind}_add")).status_code == 403
    for verb in ("change", "delete"):
        assert admin_client.post(reverse(f"admin:dispatch_{kind}_{verb}", args=[row.pk]), {"post": "yes"}).status_code == 403
    url = reverse(f"admin:dispatch_{kind}_change", args=[row.pk])
    assert staff(name="nobody").get(url).status_code == 403
    assert staff(f"dispatch.view_{kind}", name="reader").get(url).status_code == 200


def test_hostile_text_is_escaped(admin_client, run):
    rows = [
        reply(run, sender=HOSTILE, sender_id=HOSTILE, name=HOSTILE, text=HOSTILE, message_id=HOSTILE, message_type="<script>"),
        event(run, event_id=HOSTILE, kind=HOSTILE, payload={HOSTILE: HOSTILE}, error=HOSTILE, state="FAILED"),
    ]
    texts = [*(page(admin_client, row) for row in rows), *(admin_client.get(url).content.decode() for url in (REPLIES, EVENTS))]
    for text in texts:
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


def test_an_event_shows_what_came_and_why_it_failed(admin_client, run):
    text = page(admin_client, event(run, payload={"text": "São Paulo"}, state="FAILED", error="could not be applied: ValueError"))
    assert "São Paulo" in text and "could not be applied: ValueError" in text


# -- a message -----------------------------------------------------------------------------------------------------------------


def test_messages_are_found_by_what_was_told_about_them(admin_client, run):
    now = timezone.now()
    silent = make_log(run, status=S.SENT, acked_at=now)
    delivered = make_log(run, status=S.SENT, delivered_at=now)
    read = make_log(run, status=S.SENT, delivered_at=now, read_at=now)
    make_log(run)
    assert listed(admin_client, MESSAGES, heard="delivered") == [read.pk, delivered.pk]
    assert listed(admin_client, MESSAGES, heard="read") == [read.pk]
    assert listed(admin_client, MESSAGES, heard="nothing") == [silent.pk]
    assert len(listed(admin_client, MESSAGES, heard="nonsense")) == 4


def test_a_message_says_when_it_was_delivered_and_read_and_by_what_it_was_settled(admin_client, run):
    noon = timezone.now().replace(hour=12, minute=0, second=0)
    times = {"acked_at": noon, "delivered_at": noon + timedelta(minutes=1), "read_at": noon + timedelta(minutes=2)}
    log = make_log(run, status=S.SENT, **times)
    for outcome in ("RECEIPT", "FAILED_RECEIPT", "LOST"):
        log.attempts.create(attempt=1, token=1, session=log.session, outcome=outcome)
    text = page(admin_client, log)
    for shown in ("Acked at", "Delivered at", "Read at", "Receipt", "Negative receipt", "LOST"):
        assert shown in text
    assert f"read {timezone.localtime(times['read_at']):%d %b %H:%M:%S}" in admin_client.get(MESSAGES).content.decode()


# -- a campaign ----------------------------------------------------------------------------------------------------------------


def links(client, campaign) -> dict[str, dict[str, str]]:
    shown = client.get(reverse("admin:campaigns_campaign_change", args=[campaign.pk])).context["overview"]["links"]
    return {link["label"]: link for link in shown}


def test_a_campaign_says_what_was_heard_and_leads_there(admin_client, run):
    now = timezone.now()
    make_log(run, status=S.SENT, delivered_at=now, read_at=now)
    make_log(run, status=S.SENT, delivered_at=now)
    reply(run)
    reply(make_run(make_step(make_campaign(session=run.campaign.session))))
    found = links(admin_client, run.campaign)
    assert {name: found[name]["count"] for name in ("delivered", "read", "replies")} == {"delivered": "2", "read": "1", "replies": "1"}
    for name, number in (("delivered", 2), ("read", 1), ("replies", 1)):
        assert len(admin_client.get(found[name]["url"]).context["cl"].result_list) == number


def test_a_channel_that_tells_nothing_shows_no_zeros(admin_client, db):
    assert not {"delivered", "read", "replies"} & set(links(admin_client, make_campaign(session=make_session(channel="fake"))))
    assert "sent" in links(admin_client, make_campaign(session=make_session(channel="taken out")))


def test_a_campaign_counts_no_further_than_its_cap(admin_client, run, monkeypatch):
    monkeypatch.setattr(overview, "COUNTED_UP_TO", 2)
    for _ in range(4):
        reply(run)
    with CaptureQueriesContext(connection) as captured:
        assert links(admin_client, run.campaign)["replies"]["count"] == "2+"
    ours = ("dispatch_inboundmessage", '_at" IS NOT NULL')
    counts = [query["sql"] for query in captured if query["sql"].startswith("SELECT COUNT(") and any(part in query["sql"] for part in ours)]
    assert len(counts) == 3 and all("LIMIT 3" in sql for sql in counts)

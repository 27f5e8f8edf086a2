"""Every page opens, tells nothing to whom it should not, escapes what people typed, and costs the same for one row and for fifty."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.template.loader import get_template
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from campaigns.models import Campaign
from dispatch.models import Alert, Attempt, DispatchLog, Heartbeat, InboundMessage, Job, WebhookEvent
from tests.factories import make_campaign, make_lane, make_log, make_recipient, make_run, make_session, make_step

HOSTILE = "<script>alert(1)</script>"
OURS = [
    f"{model._meta.app_label}_{model._meta.model_name}"
    for model in admin.site._registry
    if model._meta.app_label in {"campaigns", "dispatch", "sessions_app"}
]
OTHERS = [f"{m._meta.app_label}_{m._meta.model_name}" for m in admin.site._registry if m._meta.app_label in {"auth", "django_q"}]


@pytest.fixture
def ledger(db) -> dict[str, Any]:
    """One row of each kind, with hostile text in every column that people or providers fill."""
    session = make_session(name=HOSTILE, status_detail=HOSTILE)
    campaign = make_campaign(name=HOSTILE, tenant=HOSTILE, status_reason=HOSTILE, session=session, status=Campaign.Status.RUNNING)
    step = make_step(campaign, name=HOSTILE, text=HOSTILE, caption=HOSTILE, template_name=HOSTILE)
    recipient = make_recipient(campaign, address=HOSTILE, address_as_imported=HOSTILE, name=HOSTILE, metadata={"city": HOSTILE})
    run = make_run(step, reason=HOSTILE, pacing={"note": HOSTILE})
    log = make_log(
        run,
        recipient=recipient,
        status=DispatchLog.Status.UNCONFIRMED,
        body=HOSTILE,
        reason=HOSTILE,
        error_code="<script>",
        error_text=HOSTILE,
        provider_message_id=HOSTILE,
        decided_by=HOSTILE,
        attempt=1,
        token=1,
    )
    Attempt.objects.create(log=log, attempt=1, token=1, session=session, outcome="<script>", detail=HOSTILE)
    make_lane(session, campaign=campaign, trouble=HOSTILE, trouble_code="<script>", origin=HOSTILE)
    beat = Heartbeat.objects.create(
        kind=Heartbeat.Kind.SCHEDULER, host=HOSTILE, host_identity=HOSTILE, pid=1, version=HOSTILE, interval=timedelta(seconds=30)
    )
    alert = Alert.objects.create(kind=HOSTILE, subject=HOSTILE, detail=HOSTILE, facts={HOSTILE: HOSTILE}, failures=1, error=HOSTILE)
    later = timezone.now() + timedelta(minutes=5)
    job = {"holder_label": HOSTILE, "locked_until": later, "started_at": later, "counts": {HOSTILE: HOSTILE}, "error": HOSTILE}
    reply = InboundMessage.objects.create(
        session=session,
        campaign=campaign,
        recipient=recipient,
        sender=HOSTILE,
        sender_id=HOSTILE,
        name=HOSTILE,
        text=HOSTILE,
        message_id=HOSTILE,
        message_type="<script>",
        sent_at=timezone.now(),
    )
    event = WebhookEvent.objects.create(
        session=session, event_id=HOSTILE, kind=HOSTILE, payload={HOSTILE: HOSTILE}, error=HOSTILE, state=WebhookEvent.State.FAILED
    )
    return {
        "dispatch_inboundmessage": reply.pk,
        "dispatch_webhookevent": event.pk,
        "dispatch_alert": alert.pk,
        "dispatch_job": Job.objects.create(name="campaign-retry", **job).pk,
        "sessions_app_session": session.pk,
        "campaigns_campaign": campaign.pk,
        "campaigns_recipient": recipient.pk,
        "dispatch_run": run.pk,
        "dispatch_dispatchlog": log.pk,
        "dispatch_lane": session.pk,
        "dispatch_heartbeat": beat.pk,
    }


def pages_of(ledger) -> list[str]:
    lists = [reverse(f"admin:{name}_changelist") for name in ledger]
    details = [reverse(f"admin:{name}_change", args=[pk]) for name, pk in ledger.items()]
    campaign = ledger["campaigns_campaign"]
    return [
        reverse("admin:index"),
        *lists,
        *details,
        *(reverse(f"admin:{name}_history", args=[pk]) for name, pk in ledger.items()),
        reverse("admin:campaigns_campaign_import_recipients", args=[campaign]),
        *(reverse(f"admin:campaigns_campaign_{verb}", args=[campaign]) for verb in ("start", "pause", "stop", "move")),
        *(reverse(f"admin:{name}_add") for name in ("sessions_app_session", "campaigns_campaign", "campaigns_recipient")),
    ]


def test_every_kind_of_row_has_its_page_here(ledger):
    assert set(ledger) == set(OURS)


def test_hostile_text_is_escaped_on_every_page(admin_client, ledger):
    for url in pages_of(ledger):
        response = admin_client.get(url)
        assert response.status_code == 200, url
        assert "<script>alert" not in response.content.decode(), url


def test_hostile_text_is_escaped_in_messages_and_confirmations(admin_client, ledger):
    campaign, message = ledger["campaigns_campaign"], ledger["dispatch_dispatchlog"]
    posts = [
        (reverse("admin:campaigns_campaign_resume", args=[campaign]), {"_form_submitted": "True"}),
        (reverse("admin:campaigns_campaign_changelist"), {"action": "stop_selected", "_selected_action": [campaign]}),
        (reverse("admin:sessions_app_session_delete", args=[ledger["sessions_app_session"]]), {"post": "yes"}),
        (reverse("admin:dispatch_dispatchlog_changelist"), {"action": "send_again_selected", "_selected_action": [message]}),
    ]
    for url, data in posts:
        text = admin_client.post(url, data, follow=True).content.decode()
        assert "&lt;script&gt;alert" in text, url
        assert "<script>alert" not in text, url


@pytest.mark.parametrize("name", OTHERS)
def test_pages_of_other_packages_open_in_our_clothes(admin_client, name):
    response = admin_client.get(reverse(f"admin:{name}_changelist"))
    assert response.status_code == 200
    model = next(m for m in admin.site._registry if f"{m._meta.app_label}_{m._meta.model_name}" == name)
    assert any(base.__module__ == "unfold.admin" for base in type(admin.site._registry[model]).__mro__)


def test_staff_without_permissions_are_refused_everywhere(staff, ledger):
    client = staff()
    for url in pages_of(ledger)[1:]:
        assert client.get(url).status_code == 403, url
    index = client.get(reverse("admin:index")).content.decode()
    assert "alert(1)" not in index
    assert reverse("admin:campaigns_campaign_changelist") not in index


def test_staff_who_may_look_see_every_page_and_change_nothing(staff, ledger):
    client = staff(*(f"{app}.view_{model}" for app, model in (name.rsplit("_", 1) for name in ledger)))
    for name, pk in ledger.items():
        url = reverse(f"admin:{name}_change", args=[pk])
        assert client.get(url).status_code == 200, url
        assert client.post(url, {"name": "changed"}).status_code == 403, url


def test_strangers_are_sent_to_the_login(client, ledger):
    for url in pages_of(ledger):
        assert client.get(url).status_code == 302, url


def test_the_login_page_is_unfolds_with_our_name(client, db):
    text = client.get(reverse("admin:login")).content.decode()
    assert "Paceline" in text and "<title>" in text
    assert "unfold" in get_template("admin/login.html").template.origin.name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["dispatch_run", "dispatch_dispatchlog", "dispatch_lane", "dispatch_heartbeat", "dispatch_alert", "dispatch_job"]
)
def test_the_ledger_is_read_only(admin_client, ledger, name):
    assert admin_client.get(reverse(f"admin:{name}_add")).status_code == 403
    assert admin_client.post(reverse(f"admin:{name}_change", args=[ledger[name]]), {}).status_code == 403
    assert admin_client.post(reverse(f"admin:{name}_delete", args=[ledger[name]]), {"post": "yes"}).status_code == 403


def queries(client, url) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return len(captured)


def fill(number: int) -> None:
    for _ in range(number):
        campaign = make_campaign(status=Campaign.Status.RUNNING, name="X")
        run = make_run(make_step(campaign))
        make_lane(campaign.session, campaign=campaign)
        make_log(run)
        Alert.objects.create(kind="campaign paused", subject=f"campaign {campaign.pk}")
        Job.objects.create(name=f"job {campaign.pk}")


@pytest.mark.parametrize("name", sorted(set(OURS) - {"dispatch_heartbeat"}))
def test_a_list_of_fifty_costs_as_many_queries_as_one_of_ten(admin_client, name):
    url = reverse(f"admin:{name}_changelist")
    fill(10)
    admin_client.get(url)
    few = queries(admin_client, url)
    fill(40)
    assert queries(admin_client, url) == few


def test_the_dashboard_costs_the_same_for_ten_and_fifty_campaigns(admin_client):
    fill(10)
    admin_client.get(reverse("admin:index"))
    few = queries(admin_client, reverse("admin:index"))
    fill(40)
    assert queries(admin_client, reverse("admin:index")) == few


def test_a_campaign_with_five_thousand_recipients_opens_as_fast(admin_client):
    from campaigns.models import Recipient

    campaign = make_campaign()
    url = reverse("admin:campaigns_campaign_change", args=[campaign.pk])
    make_recipient(campaign)
    admin_client.get(url)
    before = queries(admin_client, url)
    Recipient.objects.bulk_create(Recipient(campaign=campaign, address=f"+1{number}", order=number) for number in range(5000))
    assert queries(admin_client, url) == before
    assert len(admin_client.get(url).content) < 300_000


def test_the_dashboard_says_what_needs_a_person(admin_client, ledger):
    text = admin_client.get(reverse("admin:index")).content.decode()
    for label in ("Schedulers alive", "Running campaigns", "Unconfirmed messages", "Sessions not connected"):
        assert label in text


def test_the_dashboard_says_that_nothing_is_sent_without_a_scheduler(admin_client, db):
    assert "Nothing is sent until one runs" in admin_client.get(reverse("admin:index")).content.decode()
    Heartbeat.objects.create(kind=Heartbeat.Kind.SCHEDULER, host="h", host_identity="h", pid=1, version="1", interval=timedelta(seconds=30))
    assert "Nothing is sent until one runs" not in admin_client.get(reverse("admin:index")).content.decode()


def test_a_campaign_of_ten_steps_costs_as_many_queries_as_one_of_two(admin_client):
    campaign = make_campaign()
    url = reverse("admin:campaigns_campaign_change", args=[campaign.pk])
    for _ in range(2):
        make_step(campaign)
    admin_client.get(url)
    few = queries(admin_client, url)
    for _ in range(8):
        make_step(campaign)
    assert queries(admin_client, url) == few


def test_the_first_address_leads_to_the_admin(client):
    assert client.get("/").headers["Location"] == reverse("admin:index")


# -- alerts and jobs -----------------------------------------------------------------------------------------------------------


def test_the_dashboard_shows_the_alerts_of_a_day_with_what_they_are_about(staff, db):
    campaign, log = make_campaign(), make_log()
    about = {
        f"campaign {campaign.pk}": reverse("admin:campaigns_campaign_change", args=[campaign.pk]),
        f"session {campaign.session_id}": reverse("admin:sessions_app_session_change", args=[campaign.session_id]),
        f"message {log.pk}": reverse("admin:dispatch_dispatchlog_change", args=[log.pk]),
    }
    for subject in about:
        Alert.objects.create(kind="it broke", subject=subject, detail="what happened to it", times=12)
    Alert.objects.create(kind="too old", last_at=timezone.now() - timedelta(hours=25))
    Alert.objects.create(kind="of everything")
    index = reverse("admin:index")
    text = staff("dispatch.view_alert").get(index).content.decode()
    for words in ("Alerts of the last 24 hours", "it broke", "what happened to it", "of everything", *about.values()):
        assert words in text
    assert "too old" not in text
    assert "it broke" not in staff("campaigns.view_campaign", name="ben").get(index).content.decode()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"times": 2, "times_told": 2}, "Told"),
        ({"times": 2, "times_told": 1}, "Waits"),
        ({"failures": 3, "error": "webhook: it answered 503"}, "webhook: it answered 503"),
    ],
    ids=["told", "waits", "failed"],
)
def test_an_alert_says_whether_anybody_was_told(admin_client, settings, fields, words):
    settings.ALERT_URLS = ["json://127.0.0.1"]
    Alert.objects.create(kind="it broke", **fields)
    assert words in admin_client.get(reverse("admin:dispatch_alert_changelist")).content.decode()


def test_an_alert_says_that_there_is_no_channel(admin_client):
    Alert.objects.create(kind="it broke")
    assert "No channel" in admin_client.get(reverse("admin:dispatch_alert_changelist")).content.decode()


def test_a_job_says_who_holds_it_and_what_became_of_the_last_run(admin_client):
    now = timezone.now()
    lock = {"holder_label": "process 7 on mercury", "started_at": now}
    Job.objects.create(name="running", locked_until=now + timedelta(minutes=1), **lock)
    Job.objects.create(name="died", locked_until=now - timedelta(minutes=1), **lock)
    Job.objects.create(name="failed", error="OSError: no", counts={"queued": 3, "left_over": 4})
    pages = {job.pk: admin_client.get(reverse("admin:dispatch_job_change", args=[job.pk])).content.decode() for job in Job.objects.all()}
    assert "held by process 7 on mercury since" in pages["running"]
    assert "process 7 on mercury did not end it; the next run takes over" in pages["died"]
    assert "OSError: no" in pages["failed"]
    assert "queued: 3, left over: 4" in pages["failed"]

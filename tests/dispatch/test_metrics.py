"""What is counted while sending, and what /metrics makes of it and of the database."""

import json
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from bench.at_a_million import fill
from campaigns.models import Campaign
from dispatch import health, jobs, measures, metrics
from dispatch.models import Alert, Heartbeat, Job, WebhookEvent
from sessions_app.models import Session
from sessions_app.providers.base import ErrorCode, SendResult
from tests.dispatch.conftest import make_ready
from tests.factories import make_campaign, make_lane, make_log, make_run, make_session, make_step

pytestmark = pytest.mark.django_db
S = Campaign.Status
TOKEN = "s3cret-s3cret-s3cret"


@pytest.fixture(autouse=True)
def counted_from_zero() -> Iterator[None]:
    measures.reset()
    yield
    measures.reset()


def scraped() -> dict[str, dict[tuple, float]]:
    """Sample name -> {labels: value}, as Prometheus reads it. No series may be there twice, and each must say what it is."""
    found: dict[str, dict[tuple, float]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        assert family.name.startswith("paceline_")
        assert family.documentation.endswith(".")
        assert family.type in {"counter", "gauge", "histogram"}
        for sample in family.samples:
            series = tuple(sorted(sample.labels.items()))
            assert series not in found.setdefault(sample.name, {}), f"{sample.name} {series} twice"
            found[sample.name][series] = sample.value
    return found


def value(name: str, **labels: str) -> float:
    return scraped()[name][tuple(sorted(labels.items()))]


def beat(**fields) -> Heartbeat:
    values = {"kind": "SCHEDULER", "host": "ana-laptop", "host_identity": "x", "pid": 7, "version": "1", "interval": timedelta(seconds=10)}
    return Heartbeat.objects.create(**values | fields)


def event(session: Session, number: int, state: str, minutes: int) -> None:
    WebhookEvent.objects.create(session=session, event_id=str(number), state=state, received_at=timezone.now() - timedelta(minutes=minutes))


# -- what is counted -----------------------------------------------------------------------------------------------------------


def sample(name: str, **labels: str) -> float:
    return next((value for found, value in measures.snapshot().get(name, []) if found == labels), 0)


def test_each_claim_send_and_answer_is_counted_once(drive, fake):
    fake.answers(None, SendResult.refused(ErrorCode.TRANSIENT, "busy"), None)
    campaign = make_ready(people=3)
    Campaign.objects.filter(pk=campaign.pk).update(status=S.RUNNING, epoch=1)
    drive.until_done()
    assert sample("paceline_claims_total") == 3
    assert sample("paceline_settles_total", channel="fake", outcome="ACCEPTED") == 2
    assert sample("paceline_settles_total", channel="fake", outcome="TRANSIENT") == 1
    assert sample("paceline_send_duration_seconds_count", channel="fake") == 3
    assert sample("paceline_send_lateness_seconds_count", channel="fake") == 3
    assert 0 < sample("paceline_send_lateness_seconds_sum", channel="fake") < 30
    assert abs(sample("paceline_last_send_timestamp_seconds") - time.time()) < 60


def test_what_cannot_be_prepared_is_counted_as_answered_and_not_as_sent(drive, fake):
    campaign = make_ready(people=1)
    campaign.recipients.update(name="")
    campaign.steps.update(text="Hello {{ city }}")
    Campaign.objects.filter(pk=campaign.pk).update(status=S.RUNNING, epoch=1)
    drive.until_done()
    assert sample("paceline_settles_total", channel=measures.NOBODY, outcome="FATAL") == 1
    assert sample("paceline_send_duration_seconds_count", channel="fake") == 0


def test_a_snapshot_is_json_and_a_reset_begins_anew():
    measures.settled([("waha", "ACCEPTED")])
    assert json.loads(json.dumps(measures.snapshot())) == measures.snapshot()
    measures.reset()
    assert measures.snapshot() == {"paceline_claims_total": [[{}, 0]], "paceline_last_send_timestamp_seconds": [[{}, 0]]}


def test_counting_costs_nothing_that_a_send_would_notice():
    """Some 10 microseconds of a send, which has the database written twice; the bound is for a machine under load."""
    began = time.perf_counter()
    for _ in range(2000):
        measures.claims.inc()
        measures.began("waha", after=timedelta(milliseconds=5))
        with measures.send_seconds.labels("waha").time():
            pass
        measures.settled([("waha", "ACCEPTED")])
    assert (time.perf_counter() - began) / 2000 < 0.0005


# -- what is told --------------------------------------------------------------------------------------------------------------


def test_the_counts_of_each_process_come_with_its_heartbeat():
    measures.claims.inc(3)
    measures.settled([("waha", "ACCEPTED"), ("waha", "RATE_LIMIT")])
    with measures.send_seconds.labels("waha").time():
        pass
    beat(measures=measures.snapshot())
    measures.claims.inc(2)
    beat(pid=8, kind="SCHEDULE", measures=measures.snapshot())
    beat(pid=9, measures=measures.snapshot(), beat_at=timezone.now() - timedelta(minutes=11))
    beat(pid=10, measures={})
    beat(pid=11, measures={"paceline_of_another_release_total": [[{}, 1]]})
    mine = {"process": "ana-laptop:7", "kind": "SCHEDULER"}
    assert scraped()["paceline_claims_total"] == {
        (("kind", "SCHEDULER"), ("process", "ana-laptop:7")): 3,
        (("kind", "SCHEDULE"), ("process", "ana-laptop:8")): 5,
    }
    assert value("paceline_settles_total", channel="waha", outcome="RATE_LIMIT", **mine) == 1
    assert value("paceline_send_duration_seconds_bucket", channel="waha", le="+Inf", **mine) == 1


def test_a_process_that_drives_in_turns_is_one_series():
    now = timezone.now()
    for minutes in (3, 2, 1):
        measures.claims.inc()
        beat(kind="SCHEDULE", beat_at=now - timedelta(minutes=minutes), measures=measures.snapshot())
    assert value("paceline_claims_total", process="ana-laptop:7", kind="SCHEDULE") == 3


def test_messages_by_channel_and_outcome():
    run = make_run(make_step(make_campaign(session=make_session(channel="waha"))))
    for status in ("SENT", "SENT", "FAILED", "UNCONFIRMED", "SKIPPED", "PENDING", "SENDING"):
        make_log(run, status=status)
    make_log(make_run(make_step(make_campaign())), status="SENT")
    counted = {outcome: value("paceline_messages", channel="waha", outcome=outcome) for outcome in (*metrics.OUTCOMES, "waiting")}
    assert counted == {"sent": 2, "failed": 1, "unconfirmed": 1, "skipped": 1, "waiting": 2}
    assert value("paceline_messages", channel="mock", outcome="sent") == 1


def test_lanes_that_are_due_and_lanes_in_flight():
    long_ago = timezone.now() - timedelta(minutes=7)

    def lane(campaign: dict | None = None, session: dict | None = None, **fields):
        made = make_campaign(**{"status": S.RUNNING, "session": make_session(**session or {}), **(campaign or {})})
        Campaign.objects.filter(pk=made.pk).update(updated_at=long_ago)
        make_lane(made.session, campaign=made, **{"next_send_at": long_ago, **fields})

    assert value("paceline_oldest_due_age_seconds") == 0
    lane()
    lane(next_send_at=timezone.now() + timedelta(seconds=20))
    lane(is_open=False)
    lane(trouble="logged out")
    lane(campaign={"status": S.PAUSED})
    lane(session={"status": Session.Status.DISCONNECTED})
    lane(session={"daily_limit": 5}, day=timezone.now().date(), day_count=5)
    owned = {"owner": "7b4b86ab-7a7c-4f2e-b1e1-95a8a3e9d3a4", "lease_expires_at": timezone.now() + timedelta(minutes=1)}
    lane(in_flight=2, burst=2, rate=1.0, **owned)
    assert value("paceline_lanes_due") == 1
    assert value("paceline_lanes_in_flight") == 1
    assert value("paceline_messages_in_flight") == 2
    assert value("paceline_oldest_due_age_seconds") == pytest.approx(420, abs=5)


def test_sessions_campaigns_jobs_alerts_and_schedulers():
    make_campaign(status=S.RUNNING)
    make_session(status=Session.Status.NEEDS_PAIRING)
    Job.objects.create(name=jobs.RETRY, runs=5, failures=2, succeeded_at=timezone.now())
    Job.objects.create(name=jobs.WATCH)
    Alert.objects.create(kind="campaign paused", subject="campaign 1", times=3)
    Alert.objects.create(kind="campaign paused", subject="campaign 2")
    assert "paceline_scheduler_heartbeat_age_seconds" not in scraped(), "there never was one"
    beat(beat_at=timezone.now() - timedelta(seconds=12))
    beat(beat_at=timezone.now() - timedelta(minutes=9), pid=8)
    assert value("paceline_sessions", channel="mock", state="CONNECTED") == 1
    assert value("paceline_sessions", channel="mock", state="NEEDS_PAIRING") == 1
    assert value("paceline_campaigns", status="RUNNING") == 1
    assert value("paceline_campaigns", status="FAILED") == 0
    assert value("paceline_job_runs_total", job="campaign-retry") == 5
    assert value("paceline_job_failures_total", job="campaign-retry") == 2
    assert value("paceline_job_last_success_timestamp_seconds", job="campaign-retry") == pytest.approx(time.time(), abs=60)
    assert value("paceline_alerts_total", kind="campaign paused") == 4
    assert value("paceline_schedulers_alive") == 1
    assert value("paceline_scheduler_heartbeat_age_seconds") == pytest.approx(12, abs=5)


def test_webhook_events_of_the_last_hour(monkeypatch):
    session = make_session()
    for number, (state, minutes) in enumerate([("APPLIED", 3), ("APPLIED", 2), ("RECEIVED", 1), ("FAILED", 59), ("FAILED", 61)]):
        event(session, number, state, minutes)

    def counts() -> dict[str, float]:
        return {state: value("paceline_webhook_events_last_hour", state=state) for state in WebhookEvent.State.values}

    assert counts() == {"RECEIVED": 1, "APPLIED": 2, "IGNORED": 0, "FAILED": 1}
    monkeypatch.setattr(metrics, "EVENTS_LOOKED_AT", 2)
    assert counts() == {"RECEIVED": 1, "APPLIED": 1, "IGNORED": 0, "FAILED": 1}


def test_nothing_at_all_is_a_valid_answer_too():
    assert scraped()["paceline_lanes_due"] == {(): 0}


def test_it_never_reads_the_ledger():
    fill(3, running=2, heartbeats=20, events=100)
    with CaptureQueriesContext(connection) as captured:
        assert value("paceline_messages", channel="mock", outcome="unconfirmed") > 0
    assert not [query["sql"] for query in captured.captured_queries if "dispatch_dispatchlog" in query["sql"]]


# -- over HTTP -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def told(settings, monkeypatch):
    settings.HEALTHCHECK_TOKEN = TOKEN
    monkeypatch.setattr("dispatch.views.health.examine", lambda: health.Health(health.look()))


@pytest.mark.parametrize("query", ["", "?token=wrong"])
def test_it_takes_the_token(told, query):
    answer = Client().get(reverse("metrics") + query)
    assert answer.status_code == 401
    assert b"paceline_" not in answer.content
    assert answer.headers["Cache-Control"]


def test_it_is_prometheus_text_that_nobody_keeps(told):
    for answer in (
        Client().get(reverse("metrics"), headers={"Authorization": f"Bearer {TOKEN}"}),
        Client().get(reverse("metrics") + f"?token={TOKEN}"),
    ):
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "no-store" in answer.headers["Cache-Control"]
        assert list(text_string_to_metric_families(answer.content.decode()))

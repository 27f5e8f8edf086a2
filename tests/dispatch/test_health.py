"""Each component made bad and seen; what everybody is told and what the token adds; and an answer while the database says nothing."""

import json
import os
import socket
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from bench.at_a_million import fill
from campaigns.models import Campaign
from dispatch import delivery, health, jobs, recovery
from dispatch.models import Heartbeat, Job, Lane, WebhookEvent
from sessions_app.models import Session
from tests.factories import make_campaign, make_lane, make_log, make_run, make_session, make_step, make_unconfirmed

S = Campaign.Status
TOKEN = "s3cret-s3cret-s3cret"
MINUTE = timedelta(minutes=1)
NOW = timedelta(0)
NO_PID = 2**22 + 1  # Linux gives none above 2**22


def ago(**span: float) -> datetime:
    return timezone.now() - timedelta(**span)


def moments(fields: dict) -> dict:
    """A span of a parameter becomes the moment that long ago; when the parameters are made, the test may be minutes away."""
    return {name: timezone.now() - value if isinstance(value, timedelta) else value for name, value in fields.items()}


def beat(**fields) -> Heartbeat:
    """Of a scheduler of this host, alive: its pid is the test's."""
    now = timezone.now()
    values = {"kind": "SCHEDULER", "host": "here", "host_identity": recovery.host_identity(), "pid": os.getpid(), "version": "1"}
    values |= {"interval": timedelta(seconds=10), "beat_at": now, "last_pass_at": now}
    return Heartbeat.objects.create(**values | fields)


def job(name: str, **fields) -> Job:
    now = timezone.now()
    return Job.objects.create(name=name, **{"started_at": now, "finished_at": now, "succeeded_at": now, "runs": 1, **fields})


def all_well() -> None:
    """An installation with nothing to do: everything alive."""
    beat()
    job(jobs.WATCH)
    job(jobs.RETRY)


def waiting(*, since: datetime, lane: dict | None = None, **campaign) -> Campaign:
    """RUNNING, with one message that has been due since then on a lane that nobody took."""
    made = make_campaign(**{"status": S.RUNNING, "safe_hours": "OFF", **campaign})
    make_log(make_run(make_step(made)), available_at=since)
    if lane is not None:
        make_lane(made.session, campaign=made, **{"next_send_at": since, **lane})
    Campaign.objects.filter(pk=made.pk).update(updated_at=since)
    return made


def component(name: str) -> health.Component:
    found = health.Health(health.look()).of(name)
    assert found is not None
    return found


def statuses() -> dict[str, str]:
    return {found.name: str(found.status) for found in health.look()}


def overall() -> str:
    return str(health.Health(health.look()).status)


# -- nothing wrong -------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_nothing_to_do_for_a_day_is_fine():
    all_well()
    assert set(statuses().values()) == {"ok"}
    names = ["database", "migrations", "scheduler", "background_tasks", "retry_worker", "sessions", "webhooks", "oldest_due", "unconfirmed"]
    assert list(statuses()) == names


@pytest.mark.django_db
def test_a_scheduler_that_rests_for_a_minute_does_not_look_dead():
    all_well()
    waiting(since=ago(minutes=30), lane={"next_send_at": timezone.now() + timedelta(seconds=60)})
    assert overall() == "ok"


# -- the scheduler -------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    "fields",
    [{"beat_at": 5 * MINUTE}, {"stopped_at": NOW}, {"pid": NO_PID}],
    ids=["silent for five minutes", "stopped", "killed a moment ago"],
)
@pytest.mark.parametrize(
    ("to_do", "status"),
    [({"status": S.RUNNING}, "down"), ({"status": S.SCHEDULED}, "down"), ({"status": S.DRAFT}, "degraded")],
    ids=["running", "due", "nothing to send"],
)
def test_a_dead_scheduler(fields, to_do, status):
    all_well()
    Heartbeat.objects.update(**moments(fields))
    make_campaign(**to_do)
    assert component("scheduler").status == status
    assert "manage.py run_scheduler" in component("scheduler").detail
    assert overall() == status


@pytest.mark.django_db
def test_one_living_scheduler_is_enough():
    all_well()
    make_campaign(status=S.RUNNING)
    for _ in range(3):
        beat(pid=NO_PID)
    beat(beat_at=ago(hours=1))
    assert component("scheduler").status == "ok"
    assert component("scheduler").facts["alive"] == 1


@pytest.mark.django_db
def test_of_another_host_only_the_silence_counts():
    all_well()
    make_campaign(status=S.RUNNING)
    Heartbeat.objects.update(host_identity="elsewhere", pid=NO_PID, beat_at=ago(seconds=25))
    assert component("scheduler").status == "ok"
    Heartbeat.objects.update(beat_at=ago(seconds=35))
    assert component("scheduler").status == "down"


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["SCHEDULE", "JOB"])
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"beat_at": MINUTE, "stopped_at": MINUTE}, "ok"),
        ({"beat_at": 6 * MINUTE, "stopped_at": 6 * MINUTE}, "down"),
        ({"pid": NO_PID}, "down"),
    ],
    ids=["between two turns", "no turn for six minutes", "killed in its turn"],
)
def test_what_is_lent_for_a_while_lives_between_its_turns(settings, kind, fields, status):
    settings.ENGINE_DRIVER = "schedule"
    job(jobs.WATCH)
    job(jobs.RETRY)
    beat(kind=kind, interval=MINUTE, **moments(fields))
    make_campaign(status=S.RUNNING)
    assert component("scheduler").status == status
    if status == "down":
        assert "manage.py worker" in component("scheduler").detail


@pytest.mark.django_db
def test_when_it_did_what_last():
    at = ago(minutes=2).replace(microsecond=0)
    beat(last_pass_at=at, measures={"paceline_last_send_timestamp_seconds": [[{}, (at - timedelta(hours=1)).timestamp()]]})
    beat(last_pass_at=None, measures={"paceline_last_send_timestamp_seconds": [[{}, 0.0]]})
    facts = component("scheduler").facts
    assert facts["last_pass_at"] == at.isoformat()
    assert facts["last_send_at"] == (at - timedelta(hours=1)).astimezone(UTC).isoformat()
    assert 0 <= facts["heartbeat_age_seconds"] < 5


# -- the jobs ------------------------------------------------------------------------------------------------------------------

BUSY = {"locked_until": -60 * MINUTE, "started_at": MINUTE, "finished_at": 180 * MINUTE}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "of", "fields", "status", "says"),
    [
        ("background_tasks", jobs.WATCH, None, "degraded", "never run"),
        ("background_tasks", jobs.WATCH, {"finished_at": 4 * MINUTE}, "ok", "4 min"),
        ("background_tasks", jobs.WATCH, {"finished_at": 6 * MINUTE}, "degraded", "manage.py worker"),
        ("background_tasks", jobs.WATCH, BUSY, "ok", "1 min"),
        ("retry_worker", jobs.RETRY, None, "degraded", "never run"),
        ("retry_worker", jobs.RETRY, {"finished_at": 29 * MINUTE}, "ok", "29 min"),
        ("retry_worker", jobs.RETRY, {"finished_at": 31 * MINUTE}, "degraded", "campaign_retry --daemon"),
        ("retry_worker", jobs.RETRY, {"error": "ValueError: of Ana"}, "degraded", "ValueError"),
        ("retry_worker", jobs.RETRY, BUSY, "ok", "1 min"),
        ("retry_worker", jobs.RETRY, {**BUSY, "locked_until": MINUTE}, "degraded", "3 h"),
    ],
    ids=[
        "tasks never", "tasks fresh", "tasks stale", "tasks busy", "retry never", "retry fresh", "retry stale", "retry failed",
        "retry busy", "retry crashed",
    ],
)  # fmt: skip
def test_a_job(name, of, fields, status, says):
    all_well()
    Job.objects.filter(pk=of).delete()
    if fields is not None:
        job(of, **moments(fields))
    found = component(name)
    assert (found.status, overall()) == (status, status)
    assert says in found.detail
    assert "Ana" not in found.detail


@pytest.mark.django_db
def test_how_long_the_retry_worker_may_be_silent_is_a_setting(settings):
    job(jobs.RETRY, finished_at=ago(minutes=31))
    settings.RETRY_WORKER_STALE_MINUTES = 40
    assert component("retry_worker").status == "ok"


# -- sessions, webhooks, messages ----------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "since", "expected"),
    [
        (S.RUNNING, NOW, "degraded"),
        (S.SCHEDULED, NOW, "degraded"),
        (S.PAUSED, NOW, "degraded"),
        (S.PAUSED, timedelta(days=2), "ok"),
        (S.DRAFT, NOW, "ok"),
        (S.COMPLETED, NOW, "ok"),
    ],
    ids=["running", "scheduled", "paused for it just now", "paused long ago", "draft", "completed"],
)
def test_a_session_that_is_not_connected_matters_when_something_should_go_out_on_it(status, since, expected):
    all_well()
    make_session(status=Session.Status.DISCONNECTED)
    campaign = make_campaign(status=status, session=make_session(status=Session.Status.NEEDS_PAIRING))
    Campaign.objects.filter(pk=campaign.pk).update(updated_at=timezone.now() - since)
    found = component("sessions")
    assert found.status == expected
    assert found.facts == {"not_connected": 2, "needed": int(expected == "degraded")}
    assert overall() == expected


@pytest.mark.django_db
def test_webhooks_that_fail(settings):
    settings.WEBHOOK_FAILURE_RATE_THRESHOLD_PER_HOUR = 3
    all_well()
    session = make_session()

    def event(number, **fields):
        WebhookEvent.objects.create(session=session, event_id=str(number), **{"state": "FAILED", "received_at": ago(minutes=59), **fields})

    event(1, received_at=ago(minutes=61))
    event(2, state="APPLIED")
    event(3)
    event(4)
    assert component("webhooks").status == "ok"
    event(5)
    assert component("webhooks").status == overall() == "degraded"
    assert component("webhooks").facts == {"failed_in_the_last_hour": 3, "threshold": 3}


@pytest.mark.django_db
def test_each_webhook_that_was_refused_counts_though_they_share_a_row(settings):
    """A wrong secret refuses every receipt: that must not look like one failure an hour."""
    settings.WEBHOOK_FAILURE_RATE_THRESHOLD_PER_HOUR = 3
    all_well()
    session = make_session()
    for _ in range(3):
        delivery.refused(session, "the signature is missing or wrong")
    assert component("webhooks").facts == {"failed_in_the_last_hour": 3, "threshold": 3}
    assert component("webhooks").status == "degraded"


@pytest.mark.django_db
def test_a_due_message_that_nobody_takes():
    all_well()
    since = ago(minutes=6)
    waiting(since=since, lane={})
    found = component("oldest_due")
    assert found.status == overall() == "degraded"
    assert found.facts["age_seconds"] == pytest.approx(360, abs=5)
    assert "6 min" in found.detail


@pytest.mark.django_db
def test_a_due_message_of_a_campaign_that_has_no_lane_yet():
    all_well()
    waiting(since=ago(minutes=6))
    assert component("oldest_due").status == "degraded"


HOUR = 60 * MINUTE
OWNED = {"owner": "7b4b86ab-7a7c-4f2e-b1e1-95a8a3e9d3a4", "lease_expires_at": -HOUR}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("since", "lane", "campaign", "session"),
    [
        (4 * MINUTE, {}, {}, {}),
        (HOUR, {"next_send_at": MINUTE}, {}, {}),
        (HOUR, OWNED, {}, {}),
        (HOUR, {"trouble": "logged out"}, {}, {}),
        (HOUR, {}, {"status": S.PAUSED}, {}),
        (HOUR, {}, {}, {"status": Session.Status.DISCONNECTED}),
    ],
    ids=["for a moment", "pacing", "on its way", "in trouble", "paused", "not connected"],
)
def test_what_is_in_the_way_of_a_message_is_no_trouble(since, lane, campaign, session):
    waiting(since=timezone.now() - since, lane=moments(lane), session=make_session(**session), **campaign)
    assert component("oldest_due").status == "ok"


@pytest.mark.django_db
def test_nor_is_a_day_that_is_used_up():
    waiting(since=ago(hours=1), lane={"day": timezone.now().date(), "day_count": 10}, session=make_session(daily_limit=10))
    assert component("oldest_due").status == "ok"


@pytest.mark.django_db
def test_nor_are_safe_hours():
    now = timezone.now()
    waiting(since=ago(hours=1), lane={}, safe_hours="BLOCK", safe_from=(now + 2 * HOUR).time(), safe_until=(now - 2 * HOUR).time())
    assert component("oldest_due").status == "ok"


@pytest.mark.django_db
def test_a_resumed_campaign_is_not_late_for_the_time_it_was_paused():
    campaign = waiting(since=ago(days=2), lane={})
    campaign.save()  # as each start does
    assert component("oldest_due").status == "ok"


def test_at_midnight_nothing_is_late_for_yesterdays_limit():
    now = datetime(2026, 6, 10, 0, 3, tzinfo=UTC)
    session = Session(time_zone="UTC", daily_limit=5)
    campaign = Campaign(session=session, safe_hours="OFF")
    campaign.since = now - timedelta(hours=9)
    session.lane = Lane(day=datetime(2026, 6, 9, tzinfo=UTC).date(), day_count=5)
    assert health._due_since(campaign, now) == datetime(2026, 6, 10, tzinfo=UTC)
    session.lane.day_count = 4
    assert health._due_since(campaign, now) == campaign.since


@pytest.mark.django_db
def test_unconfirmed_messages_are_counted_up_to_a_thousand():
    all_well()
    make_unconfirmed(30)
    assert component("unconfirmed").status == "ok"
    assert component("unconfirmed").facts["count"] == 30
    make_unconfirmed(1000)
    assert component("unconfirmed").status == overall() == "degraded"
    assert component("unconfirmed").facts["count"] == 1000


# -- the database --------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_migration_that_is_not_applied(monkeypatch):
    all_well()
    monkeypatch.setattr(health, "_all_applied", False)
    MigrationRecorder(connection).migration_qs.filter(app="dispatch").order_by("-pk").first().delete()
    assert statuses() == {"database": "ok", "migrations": "down"}
    assert "manage.py migrate" in component("migrations").detail


@contextmanager
def silent_server():
    """Takes connections and says nothing; at the end it hangs up."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def take() -> None:
            try:
                while True:
                    taken.append(listening.accept()[0])
            except OSError:
                pass

        thread = threading.Thread(target=take)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in taken:
            one.close()


@contextmanager
def database_at(port: int):
    before = connections.settings["default"]
    address = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": port, "OPTIONS": {"sslmode": "disable"}}
    connections.settings["default"] = {**before, **address}
    try:
        yield
    finally:
        connections.settings["default"] = before


def looks() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "health"]


def test_a_database_that_says_nothing_and_one_thread_that_waits_for_it(db):
    with silent_server() as port, database_at(port):
        for _ in range(5):
            found = health.examine(within=timedelta(seconds=0.1))
            assert found.status == "down"
            assert "did not answer within" in found.components[0].detail
        assert len(looks()) == 1
    for thread in looks():
        thread.join(10)
    assert health.examine().of("database").status == "ok"


def test_a_database_that_is_not_there(db):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with database_at(port):
        found = health.examine()
    assert [(one.name, one.status) for one in found.components] == [("database", "down")]
    assert "OperationalError" in found.components[0].detail
    assert str(port) not in found.components[0].detail


@pytest.mark.django_db(transaction=True)
def test_a_statement_that_hangs_is_given_up(transactional_db):
    all_well()
    assert health.examine().status == "ok"
    other = connections["default"].copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN; LOCK TABLE dispatch_heartbeat IN ACCESS EXCLUSIVE MODE")
        found = health.examine(within=timedelta(seconds=0.2))
        for thread in looks():
            thread.join(10)
        assert not looks(), "the server itself gives it up"
    finally:
        other.close()
    assert found.status == "down"
    assert health.examine().status == "ok"


@pytest.mark.django_db(transaction=True)
def test_a_look_cannot_write(monkeypatch):
    monkeypatch.setattr(health, "look", lambda: beat() and [])
    found = health.examine()
    assert found.status == "down"
    assert not Heartbeat.objects.exists()


# -- over HTTP -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def told(settings, monkeypatch):
    """The views, over a look on the test's own connection."""
    settings.HEALTHCHECK_TOKEN = TOKEN
    monkeypatch.setattr("dispatch.views.health.examine", lambda: health.Health(health.look()))


def get(name: str, query: str = "", **headers: str):
    return Client().get(reverse(name) + query, headers=headers)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "headers", "details"),
    [
        ("", {}, False),
        ("", {"Authorization": f"Bearer {TOKEN}"}, True),
        (f"?token={TOKEN}", {}, True),
        ("", {"Authorization": "Bearer wrong"}, False),
        ("?token=w%C3%B6rong", {}, False),
        ("?token=", {}, False),
    ],
    ids=["none", "bearer", "query", "wrong", "wrong and not ASCII", "empty"],
)
def test_the_status_is_for_everybody_and_the_rest_for_the_token(told, query, headers, details):
    all_well()
    make_session(name="Ana's number", status=Session.Status.DISCONNECTED)
    answer = get("health", query, **headers)
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"
    body = answer.json()
    assert body["status"] == "ok"
    assert set(body) == ({"status", "components"} if details else {"status"})
    assert "Ana" not in json.dumps(body)


@pytest.mark.django_db
def test_down_is_503_and_degraded_is_200(told):
    all_well()
    make_campaign(status=S.RUNNING, session=make_session(status=Session.Status.DISCONNECTED))
    assert (get("health").status_code, get("health").json()) == (200, {"status": "degraded"})
    Heartbeat.objects.update(pid=NO_PID)
    assert (get("health").status_code, get("health").json()) == (503, {"status": "down"})


@pytest.mark.django_db
@pytest.mark.parametrize("debug", [True, False])
def test_without_a_token_in_the_settings_only_a_development_instance_tells_more(told, settings, debug):
    settings.HEALTHCHECK_TOKEN, settings.DEBUG = "", debug
    assert ("components" in get("health").json()) is debug
    assert "components" not in get("health", Authorization="Bearer ").json() or debug
    assert get("metrics").status_code == (200 if debug else 503)


@pytest.mark.django_db
def test_the_scheduler_has_an_address_of_its_own(told):
    at = ago(minutes=3).replace(microsecond=0)
    assert (get("scheduler-health").status_code, get("scheduler-health").json()) == (503, {"status": "down", "lastProcessed": None})
    beat(last_pass_at=at)
    answer = get("scheduler-health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "lastProcessed": at.isoformat()})
    Heartbeat.objects.update(beat_at=ago(minutes=5))
    assert get("scheduler-health").status_code == 503, "also when there is nothing to send"


def test_the_scheduler_of_a_database_that_is_away(settings, monkeypatch):
    monkeypatch.setattr("dispatch.views.health.examine", lambda: health._no_database("away"))
    answer = get("scheduler-health")
    assert (answer.status_code, answer.json()) == (503, {"status": "down", "lastProcessed": None})
    settings.HEALTHCHECK_TOKEN = TOKEN
    answer = get("metrics", Authorization=f"Bearer {TOKEN}")
    assert (answer.status_code, answer.content) == (503, b"database: away\n")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["health", "scheduler-health", "metrics"])
def test_head_works_and_nothing_else(told, name):
    beat()
    url = reverse(name) + f"?token={TOKEN}"
    head = Client().head(url)
    assert (head.status_code, head.content) == (200, b"")
    for method in ("post", "put", "patch", "delete"):
        assert getattr(Client(enforce_csrf_checks=True), method)(url).status_code == 405


# -- at size -------------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_it_never_reads_the_ledger_from_end_to_end():
    """20,000 rows; bench/at_a_million.py measures a million."""
    fill(20, running=5, heartbeats=200, events=200)
    with CaptureQueriesContext(connection) as captured:
        found = {one.name: one for one in health.look()}
    assert found["oldest_due"].status == "degraded"
    assert found["unconfirmed"].facts["count"] == 175
    asked = [query["sql"] for query in captured.captured_queries]
    assert sum("dispatch_dispatchlog" in sql for sql in asked) == 2
    assert_no_scan(asked)


def assert_no_scan(statements: list[str]) -> None:
    for sql in statements:
        if sql.startswith("SELECT"):
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN " + sql)
                plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Seq Scan on dispatch_dispatchlog" not in plan, plan

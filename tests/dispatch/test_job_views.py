"""The jobs over HTTP: what a caller may ask, what is answered, and that an answer may be asked for again; then a real server."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cryptography.fernet import Fernet
from django.conf import settings as project
from django.core.cache import cache
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign
from dispatch import driving, jobs, retry
from dispatch.models import DispatchLog, Heartbeat, Job, JobAnswer
from sessions_app.sandbox import Sandbox
from tests.dispatch.test_run_scheduler import assert_everybody_once, make_ready
from tests.factories import make_campaign, make_log, make_run, make_step
from tests.processes import Process, environment, until

URL = "/api/jobs/campaign-retry"
PASS_URL = "/api/jobs/scheduler"
TOKEN = "s3cret-s3cret-s3cret"


@pytest.fixture(autouse=True)
def token(settings):
    settings.CAMPAIGN_RETRY_JOB_TOKEN = TOKEN
    cache.clear()
    return settings


def make_failed(count: int, **campaign) -> Campaign:
    """A completed campaign with so many messages that failed and have waited long enough."""
    made = make_campaign(**{"name": "Winter sale", "status": Campaign.Status.COMPLETED, **campaign})
    run = make_run(make_step(made), rows_complete=True)
    due = timezone.now() - timedelta(minutes=1)
    for _ in range(count):
        make_log(run, status="FAILED", error_code="TRANSIENT", error_text="connection refused", transients=1, retry_at=due)
    return made


def statuses() -> Counter[str]:
    return Counter(DispatchLog.objects.values_list("status", flat=True))


@pytest.fixture
def call(client):
    def call(method: str, url: str = URL, body: object = b"", content_type: str = "application/json", **headers: str):
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.generic(method, url, sent, content_type=content_type, headers={"x-cron-token": TOKEN} | names)

    return call


@pytest.fixture
def batches(monkeypatch) -> list[dict]:
    """What the job was asked, instead of running it."""
    asked: list[dict] = []

    def run_batch(scope, **options):
        asked.append({"scope": scope, **options})
        return {"queued": len(asked)}

    monkeypatch.setattr(retry, "run_batch", run_batch)
    return asked


# -- state and run -------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("url", [URL, URL + "/"])
def test_the_state_then_a_run_then_the_state(call, url):
    make_failed(3)
    before = call("GET", url)
    assert before.json()["pending"] == {"due": 3, "waiting": 0, "by_reason": {"connection refused": 3}}
    assert before.json()["last_started_at"] is None
    ran = call("POST", url)
    assert ran.status_code == 200
    assert ran.json()["status"] == "done"
    assert ran.json()["counts"]["queued"] == 3
    assert statuses() == {"PENDING": 3}
    after = call("GET", url).json()
    assert after["pending"]["due"] == 0
    assert after["last_counts"] == ran.json()["counts"]
    assert after["running"] is False
    for answer in (before, ran, call("GET", url)):
        assert answer["Cache-Control"] == "no-store"
        assert "Winter sale" not in answer.content.decode()


@pytest.mark.django_db
def test_head_is_get_without_its_body(call):
    answer = call("HEAD")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.django_db
def test_the_body_narrows_the_run(call, batches, token):
    token.CAMPAIGN_RETRY_CAMPAIGN_ID, token.CAMPAIGN_RETRY_TENANT_ID = 4, "north"
    everything = {"campaign": 7, "tenant": "", "session": 2, "errorCode": "TRANSIENT", "maxAgeHours": 1.5}
    sizes = {"batchSize": 10, "maxCampaigns": 2, "dryRun": True}
    call("POST", body=everything | sizes)
    call("POST", body={"session": 2})
    scope = retry.Scope(campaign_id=7, tenant="", session_id=2, error_code="TRANSIENT", max_age=timedelta(minutes=90))
    assert batches == [
        {"scope": scope, "batch_size": 10, "max_campaigns": 2, "dry_run": True},
        {"scope": retry.Scope(campaign_id=4, tenant="north", session_id=2), "batch_size": None, "max_campaigns": None, "dry_run": False},
    ]


@pytest.mark.django_db
def test_a_dry_run_changes_nothing(call):
    make_failed(2)
    counts = call("POST", body={"dryRun": True}).json()["counts"]
    assert (counts["queued"], counts["left"], counts["dry_run"]) == (0, 2, True)
    assert statuses() == {"FAILED": 2}


@pytest.mark.django_db
def test_beside_another_run_it_says_so(call):
    make_failed(1)
    with jobs.running(jobs.RETRY, ttl=timedelta(minutes=1)):
        answer = call("POST")
        assert call("GET").json()["running"] is True
    since = Job.objects.get(pk=jobs.RETRY).started_at.isoformat()
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["since"]) == ("already running", since)
    assert statuses() == {"FAILED": 1}


@pytest.mark.django_db
def test_an_error_is_told_without_what_it_was_about(call, monkeypatch):
    def fail(scope, now):
        raise RuntimeError("row (12025550100, Winter sale) is bad")

    monkeypatch.setattr(retry, "_let_go", lambda now: fail(None, now))
    answer = call("POST")
    assert answer.status_code == 500
    state = call("GET")
    assert state.json()["last_error"] == "RuntimeError"
    assert "Winter" not in answer.content.decode() + state.content.decode()


# -- what is refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("url", [URL, PASS_URL])
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods(call, batches, method, url):
    answer = call(method, url)
    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD, POST")
    assert answer.json()["error"]


WRONG_BODIES = {
    "no JSON": (b"{", "valid JSON"),
    "no text": (b"\xff\xfe", "valid JSON"),
    "not a number": (b'{"maxAgeHours": NaN}', "maxAgeHours must be a number"),
    "endless": (b'{"maxAgeHours": Infinity}', "maxAgeHours must be a number"),
    "too deep": (b"[" * 60_000, "valid JSON"),
    "a list": (b"[]", "must be a JSON object"),
    "null": (b"null", "must be a JSON object"),
    "unknown key": ({"camapign": 1}, "'camapign' is not known here; known: campaign, tenant"),
    "its own name": ({"dry_run": True}, "'dry_run' is not known here"),
    "campaign as text": ({"campaign": "7"}, "campaign must be a whole number"),
    "campaign beyond the column": ({"campaign": 2**63}, "campaign must be a whole number"),
    "session as truth": ({"session": True}, "session must be a whole number"),
    "tenant as number": ({"tenant": 7}, "tenant must be a text"),
    "tenant with NUL": ({"tenant": "a\0"}, "tenant must be a text"),
    "half a character": (b'{"tenant": "\\ud800"}', "tenant must be a text"),
    "nothing for a code": ({"errorCode": None}, "errorCode must be a text"),
    "age of nothing": ({"maxAgeHours": 0}, "maxAgeHours must be a number"),
    "batch of nobody": ({"batchSize": 0}, "batchSize must be a whole number"),
    "batch of half a person": ({"batchSize": 1.5}, "batchSize must be a whole number"),
    "campaigns below zero": ({"maxCampaigns": -1}, "maxCampaigns must be a whole number"),
    "dry run as text": ({"dryRun": "false"}, "dryRun must be true or false"),
    "code that stays unknown": ({"errorCode": "UNCONFIRMED"}, "UNCONFIRMED is never queued again"),
    "campaign that is gone": ({"campaign": 987654}, "There is no campaign 987654"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", WRONG_BODIES)
def test_a_body_that_cannot_be_meant_is_refused_by_name(call, name):
    body, words = WRONG_BODIES[name]
    answer = call("POST", body=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert not Job.objects.exclude(started_at=None).exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        pytest.param(b"{}", "application/json; charset=utf-8", 200, id="JSON with its charset"),
        pytest.param(b"", "text/plain", 200, id="nothing as text"),
        pytest.param(b"", "", 200, id="nothing"),
        pytest.param(b"{}", "text/plain", 415, id="text"),
        pytest.param(b"{}", "", 415, id="of no type"),
        pytest.param(b"campaign=1", "application/x-www-form-urlencoded", 415, id="form"),
        pytest.param(b" " * (64 * 1024) + b"{}", "application/json", 413, id="too large"),
        pytest.param(b"{}" + b" " * (64 * 1024 - 2), "application/json", 200, id="just not too large"),
    ],
)
def test_type_and_size_of_the_body(call, batches, body, content_type, status):
    answer = call("POST", body=body, content_type=content_type)
    assert answer.status_code == status
    assert len(batches) == (status == 200)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("allowed", "method", "query", "status", "runs"),
    [
        pytest.param(True, "GET", f"?token={TOKEN}&run=true", 200, 1, id="token in the query"),
        pytest.param(True, "GET", "?run=True", 200, 1, id="token in a header"),
        pytest.param(True, "GET", "?run=yes", 400, 0, id="another word"),
        pytest.param(True, "HEAD", "?run=true", 405, 0, id="HEAD never runs"),
        pytest.param(True, "POST", f"?token={TOKEN}", 200, 1, id="POST"),
        pytest.param(False, "GET", "?run=true", 405, 0, id="not allowed"),
    ],
)
def test_a_run_by_address_alone(call, batches, token, allowed, method, query, status, runs):
    token.CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN = allowed
    headers = {"x_cron_token": ""} if "token=" in query else {}
    answer = call(method, URL + query, **headers)
    assert (answer.status_code, len(batches)) == (status, runs)
    if status == 405:
        assert answer["Allow"] == "POST"


# -- Idempotency-Key -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_same_key_gets_the_same_answer_and_runs_nothing(call, batches):
    first = call("POST", body={"campaign": 1, "tenant": "a"}, Idempotency_Key="k1")
    again = call("POST", body=b'{ "tenant": "a", "campaign": 1 }', Idempotency_Key="k1")
    assert first.json() == again.json() == {"status": "done", "counts": {"queued": 1}}
    assert "Idempotency-Replayed" not in first
    assert again["Idempotency-Replayed"] == "true"
    other = call("POST", body={"campaign": 2}, Idempotency_Key="k1")
    assert other.status_code == 422
    assert len(batches) == 1
    assert call("POST", Idempotency_Key="k2").json()["counts"] == {"queued": 2}


@pytest.mark.django_db
def test_a_key_belongs_to_one_job(call, batches, monkeypatch):
    monkeypatch.setattr(jobs, "running", None)
    call("POST", Idempotency_Key="k1")
    assert call("POST", PASS_URL, body={}, Idempotency_Key="k1").status_code == 500  # it ran, and nothing was kept
    assert JobAnswer.objects.count() == 1


@pytest.mark.django_db
def test_while_the_first_is_on_its_way_the_second_waits(call, batches, token):
    key = {"job": jobs.RETRY, "key": "k1", "fingerprint": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}  # of {}
    JobAnswer.objects.create(**key)
    answer = call("POST", Idempotency_Key="k1")
    assert (answer.status_code, answer["Retry-After"]) == (409, "5")
    assert batches == []
    JobAnswer.objects.update(created_at=timezone.now() - timedelta(minutes=6))  # its process died
    assert call("POST", Idempotency_Key="k1").status_code == 200
    assert len(batches) == 1


@pytest.mark.django_db
def test_only_a_run_that_was_done_is_kept(call, monkeypatch):
    make_failed(1)
    with jobs.running(jobs.RETRY, ttl=timedelta(minutes=1)):
        assert call("POST", Idempotency_Key="k1").json()["status"] == "already running"
    with monkeypatch.context() as patch:
        patch.setattr(retry, "_let_go", None)
        assert call("POST", Idempotency_Key="k1").status_code == 500
    assert not JobAnswer.objects.exists()
    assert call("POST", Idempotency_Key="k1").json()["counts"]["queued"] == 1
    assert call("POST", Idempotency_Key="k1").json()["counts"]["queued"] == 1


@pytest.mark.django_db
def test_answers_are_forgotten_after_a_day_a_few_at_a_time(call, batches, monkeypatch):
    monkeypatch.setattr("dispatch.views.jobs.OLD_ANSWERS_FORGOTTEN_AT_ONCE", 2)
    old = timezone.now() - timedelta(hours=24, minutes=1)
    for number in range(4):
        JobAnswer.objects.create(job="x", key=f"old {number}", fingerprint="", status=200, created_at=old)
    JobAnswer.objects.create(job=jobs.RETRY, key="k1", fingerprint="another", status=200, body={}, created_at=timezone.now())
    JobAnswer.objects.create(job=jobs.RETRY, key="k2", fingerprint="another", status=200, body={}, created_at=timezone.now())
    JobAnswer.objects.filter(key="k1").update(created_at=old)
    assert call("POST", Idempotency_Key="k1").status_code == 200  # past its day, so the key is free
    assert call("POST", Idempotency_Key="k2").status_code == 422
    assert set(JobAnswer.objects.values_list("key", flat=True)) == {"k1", "k2"}


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb"])
def test_a_key_that_cannot_be_kept(call, batches, key):
    assert call("POST", Idempotency_Key=key).status_code == 400
    assert batches == []


# -- the scheduler's job -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_one_pass_over_http(call, monkeypatch):
    monkeypatch.setattr(driving, "drive_once", lambda: {"claimed": 2})
    assert call("POST", PASS_URL).json() == {"status": "done", "counts": {"claimed": 2}}
    assert call("POST", PASS_URL + "/", body={}).status_code == 200
    assert call("POST", PASS_URL, body={"campaign": 1}).json()["error"] == "the key 'campaign' is not known here; known: none"
    assert call("GET", PASS_URL).json()["running"] is False
    assert call("GET", PASS_URL, x_cron_token="wrong").status_code == 401


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["/api/health", "/api/health/", "/health/scheduler", "/health/scheduler/", "/metrics", "/metrics/"])
def test_what_monitoring_asks_is_there(client, url):
    assert client.get(url).status_code in {200, 503}


# -- a real server -------------------------------------------------------------------------------------------------------------


class Server(Process):
    """gunicorn as in production, with an access log on top, on a free port."""

    def __init__(self, log, **variables: str) -> None:
        self.log = log
        production = {
            "DEBUG": "false",
            "SECRET_KEY": "x" * 60,
            "CREDENTIALS_KEYS": Fernet.generate_key().decode(),
            "ALLOWED_HOSTS": "cron.example",
            "CAMPAIGN_RETRY_JOB_TOKEN": TOKEN,
        }
        config = ["-c", str(project.BASE_DIR / "deploy/gunicorn.conf.py"), "--access-logfile", "-", "--bind", "127.0.0.1:0"]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "config.wsgi", "--no-control-socket", "--workers", "2", "--threads", "8", *config],
                cwd=project.BASE_DIR,
                env=environment(**production | variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until(lambda: self.said.count("Booting worker") == 2 or not self.runs, "two workers")
        found = re.search(r"Listening at: http://127\.0\.0\.1:(\d+)", self.said)
        assert found, self.said[-3000:]
        self.port = int(found[1])

    def call(self, method: str, url: str, body: bytes | None = None, **headers: str) -> tuple[int, dict, dict]:
        sent = {"Host": "cron.example"} | {name.replace("_", "-"): value for name, value in headers.items()}
        line = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            line.request(method, url, body, sent)
            answer = line.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text.startswith(b"{") else {}, dict(answer.headers)
        finally:
            line.close()


@contextmanager
def running_server(tmp_path, **variables: str) -> Iterator[Server]:
    server = Server(tmp_path / "gunicorn.log", **variables)
    try:
        yield server
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextmanager
def tracker() -> Iterator[tuple[str, list[bytes]]]:
    """Where Sentry's events would go: its DSN, and what it got."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://key@127.0.0.1:{server.server_port}/1", got
        finally:
            server.shutdown()
            thread.join()


BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_twenty_at_once_queue_every_message_once(tmp_path):
    for _ in range(4):
        make_failed(10, name="Winter sale")
    with running_server(tmp_path) as server, ThreadPoolExecutor(20) as pool:
        answers = [one.result() for one in [pool.submit(server.call, "POST", URL, **BEARER) for _ in range(20)]]
        assert {status for status, _, _ in answers} == {200}
        done = [body["counts"]["queued"] for _, body, _ in answers if body["status"] == "done"]
        told = [body for _, body, _ in answers if body["status"] == "already running"]
        assert len(done) + len(told) == 20
        assert sum(done) == 40
        same = [
            pool.submit(server.call, "POST", URL, b"{}", Content_Type="application/json", Idempotency_Key="k", **BEARER) for _ in range(20)
        ]
        assert {one.result()[0] for one in same} <= {200, 409}
    assert statuses() == {"PENDING": 40}
    assert Job.objects.get(pk=jobs.RETRY).failures == 0


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_host_without_a_long_running_process_sends_through_its_web_process(tmp_path):
    with Sandbox() as sandbox, running_server(tmp_path) as server, ThreadPoolExecutor(4) as pool:
        campaign = make_ready(sandbox, 12, rate=20)
        transitions.start(campaign.pk, by="ana")
        answers = [one.result() for one in [pool.submit(server.call, "POST", PASS_URL, **BEARER) for _ in range(4)]]
        assert {status for status, _, _ in answers} == {200}
        assert sum(body["counts"]["sent"] for _, body, _ in answers if body["status"] == "done") == 12
        assert server.call("GET", PASS_URL, **BEARER)[1]["running"] is False
        assert_everybody_once(sandbox, campaign)
    assert not Heartbeat.objects.exclude(kind=Heartbeat.Kind.JOB, stopped_at__isnull=False).exists()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_server_in_production(tmp_path):
    make_failed(2)
    with tracker() as (dsn, got), running_server(tmp_path, CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN="true", SENTRY_DSN=dsn) as server:
        assert server.call("GET", f"{URL}?token={TOKEN}&run=true", Host="elsewhere.example")[0] == 400
        assert server.call("GET", f"{URL}?token={TOKEN}x&run=true")[0] == 401
        assert server.call("POST", URL, b'{"dryRun": true}', Content_Type="text/plain", **BEARER)[0] == 415
        assert server.call("POST", URL, b"x" * 70_000, Content_Type="application/json", **BEARER)[0] == 413
        chunked = {"Transfer_Encoding": "chunked", "Content_Type": "application/json"}
        assert server.call("POST", URL, b'10\r\n{"dryRun": true}\r\n0\r\n\r\n', **chunked, **BEARER)[0] == 411
        assert server.call("DELETE", URL, **BEARER)[0] == 405
        assert statuses() == {"FAILED": 2}
        status, body, headers = server.call("GET", f"{URL}?token={TOKEN}&run=true")
        assert (status, body["counts"]["queued"], headers["Cache-Control"]) == (200, 2, "no-store")
        until(lambda: any(b"Invalid HTTP_HOST" in envelope for envelope in got), "the event about the unknown host")
    assert f"GET {URL}" in server.said  # there is an access log
    assert TOKEN not in server.said
    assert b"campaign-retry" in b"".join(got)
    assert TOKEN.encode() not in b"".join(got)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_server_without_a_token_is_closed_and_one_behind_tls_takes_a_token_beyond_ascii(tmp_path):
    accented = "schlüssel-für-das-tor-€"
    with running_server(tmp_path, CAMPAIGN_RETRY_JOB_TOKEN="") as server:
        status, body, _ = server.call("POST", URL, **BEARER)
        assert (status, "CAMPAIGN_RETRY_JOB_TOKEN" in body["error"]) == (503, True)
    with running_server(tmp_path, CAMPAIGN_RETRY_JOB_TOKEN=accented, SECURE_SSL_REDIRECT="true") as server:
        header = {"x_cron_token": accented.encode().decode("latin-1")}
        assert server.call("POST", URL, **header)[0] == 301
        assert server.call("POST", URL, X_Forwarded_Proto="https", **header)[0] == 200
        assert server.call("POST", URL, X_Forwarded_Proto="https", x_cron_token="schl\xfcssel")[0] == 401

"""The retry job from outside: the command, the call of a deployment, and the daemon as a real process against servers that come and go."""

import http.server
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from io import StringIO
from random import Random
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.utils import timezone

from campaigns.models import Campaign
from dispatch import jobs, retry, retry_daemon
from dispatch.models import DispatchLog, Job, Run
from dispatch.retry import Scope
from dispatch.retry_daemon import JobReply, Outcome, Request, call_job, job_url, run_daemon, run_here
from dispatch.stopping import StopFlag
from tests.factories import make_campaign, make_log, make_run, make_step
from tests.processes import A_BUSY_MACHINE, manage, processes, until

TOKEN = "t0ken-that-nobody-may-ever-see"
COUNTS = {"queued": 2, "campaigns": 1, "requeued_campaigns": 1, "left": 3, "failed": 0, "by_reason": {"away": 2}, "dry_run": False}
DONE = {"status": "done", "counts": COUNTS}
SECONDS = timedelta(seconds=5)
OTHERS_OUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@dataclass
class Deployment:
    """A server that answers every POST the same way, and keeps what it was asked."""

    port: int = 0
    status: int = 200
    body: bytes = json.dumps(DONE).encode()
    headers: dict[str, str] = field(default_factory=dict)
    hangs: float = 0
    calls: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def up(self) -> Iterator["Deployment"]:
        """On the same port each time."""
        deployment = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                deployment.calls.append((self.path, dict(self.headers), json.loads(sent)))
                time.sleep(deployment.hangs)
                self.send_response(deployment.status)
                for name, value in {"Content-Length": str(len(deployment.body)), **deployment.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(deployment.body)
                except OSError:
                    pass  # it did not want to read that much

            def log_message(self, *arguments: Any) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", self.port), Handler)
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with Deployment().up() as deployment:
        yield deployment


@pytest.fixture
def start(tmp_path):
    with processes(tmp_path) as run:

        def daemon(*arguments: str, **variables: str):
            quick = {"CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS": "1", "CAMPAIGN_RETRY_JOB_TOKEN": TOKEN}
            process = run("campaign_retry", "--daemon", "--no-jitter", *arguments, **quick | variables)
            process.until_says("retry daemon started")
            return process

        yield daemon


def due(count: int = 1) -> Run:
    run = make_run(make_step(make_campaign(status=Campaign.Status.RUNNING)), rows_complete=True)
    for _ in range(count):
        make_log(run, status="FAILED", error_code="TRANSIENT", error_text="away", retry_at=timezone.now(), transients=1)
    return run


def queued() -> int:
    return DispatchLog.objects.pending().count()


def run_command(*arguments: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("campaign_retry", *arguments, stdout=out, stderr=err)
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


# -- calling a deployment ------------------------------------------------------------------------------------------------------


def test_a_call_sends_the_token_and_the_scope_and_brings_the_counts_back(deployment):
    request = Request(
        Scope(campaign_id=7, tenant="x", session_id=3, error_code="TRANSIENT", max_age=timedelta(hours=24)),
        batch_size=100,
        max_campaigns=20,
        dry_run=True,
    )
    reply = call_job(job_url(deployment.url), TOKEN, timeout=SECONDS, body=request.body())
    assert (reply.outcome, reply.counts, reply.status, reply.exit_code) == (Outcome.DONE, COUNTS, 200, 0)
    assert reply.sentence == "Queued again: 2 (campaigns: 1). Campaigns that take their turn anew: 1. Still due: 3.\n      2  away"
    [(path, headers, body)] = deployment.calls
    assert (path, headers["Authorization"], headers["Content-Type"]) == (
        "/api/jobs/campaign-retry",
        f"Bearer {TOKEN}",
        "application/json",
    )
    assert body == {
        "campaign": 7,
        "tenant": "x",
        "session": 3,
        "errorCode": "TRANSIENT",
        "maxAgeHours": 24,
        "batchSize": 100,
        "maxCampaigns": 20,
        "dryRun": True,
    }


def test_what_was_not_said_is_not_sent(deployment):
    call_job(job_url(deployment.url), "", timeout=SECONDS, body=Request(Scope()).body())
    [(_, headers, body)] = deployment.calls
    assert body == {}
    assert "Authorization" not in headers


def test_a_token_that_is_not_ascii_arrives_as_its_bytes(deployment):
    assert call_job(deployment.url, "schlüssel-für-☃-und-mehr", timeout=SECONDS).is_fine
    [(_, headers, _)] = deployment.calls
    assert headers["Authorization"].encode("latin-1").decode() == "Bearer schlüssel-für-☃-und-mehr"


def answers(status: int, body: Any, words: str, outcome: Outcome, exit_code: int, **headers: str) -> Any:
    text = body if isinstance(body, str) else json.dumps(body)
    return pytest.param(status, text, headers, words, outcome, exit_code, id=f"{status} {outcome.lower()}")


@pytest.mark.parametrize(
    ("status", "body", "headers", "words", "outcome", "exit_code"),
    [
        answers(200, {"status": "already running", "since": "then"}, "already running there, since then", Outcome.BUSY, 0),
        answers(200, "<html>Log in</html>", "is this the address of a Paceline?", Outcome.REFUSED, 1),
        answers(302, "", "the server sends the call elsewhere (302)", Outcome.REFUSED, 1, Location="/elsewhere"),
        answers(400, {"error": "batchSize must be"}, "the call is refused (400): batchSize must be", Outcome.WRONG, 2),
        answers(401, {"error": f"not {TOKEN}"}, "the token is refused (401): set CAMPAIGN_RETRY_JOB_TOKEN", Outcome.REFUSED, 1),
        answers(404, "", "there is no such job at this address (404)", Outcome.REFUSED, 1),
        answers(409, {"error": "on its way"}, "the server could not run it (409): on its way", Outcome.AWAY, 1),
        answers(500, {"error": f"about {TOKEN} in it"}, "the server could not run it (500): about [hidden] in it", Outcome.AWAY, 1),
        answers(503, "[]", "the server could not run it (503)", Outcome.AWAY, 1),
    ],
)
def test_every_answer_is_put_into_words(deployment, status, body, headers, words, outcome, exit_code):
    deployment.status, deployment.body, deployment.headers = status, body.encode(), headers
    reply = call_job(job_url(deployment.url), TOKEN, timeout=SECONDS)
    assert (reply.outcome, reply.exit_code, reply.status) == (outcome, exit_code, status)
    assert words in reply.sentence
    assert TOKEN not in repr(reply)
    assert len(deployment.calls) == 1  # a redirect is not followed: the token goes nowhere else


def test_no_server_and_one_that_hangs_and_one_that_never_stops_talking(deployment):
    deployment.body = b" " * 3_000_000
    reply = call_job(deployment.url, TOKEN, timeout=SECONDS)
    assert (reply.outcome, reply.sentence.rpartition(": ")[2]) == (Outcome.AWAY, "The answer is too large")
    deployment.hangs = 0.5
    reply = call_job(deployment.url, TOKEN, timeout=timedelta(seconds=0.2))
    assert reply.sentence == "the server did not answer, and may have run the batch: No answer in time"
    with Deployment().up() as gone:
        pass
    reply = call_job(gone.url, TOKEN, timeout=SECONDS)
    assert (reply.outcome, reply.sentence) == (Outcome.AWAY, "the server is not reachable: Connection refused")
    assert reply.exit_code == 1


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("https://x.example", "https://x.example/api/jobs/campaign-retry"),
        ("http://x:8000/", "http://x:8000/api/jobs/campaign-retry"),
        ("https://x.example/under/api/jobs/campaign-retry", "https://x.example/under/api/jobs/campaign-retry"),
    ],
    ids=["host", "slash", "path"],
)
def test_the_address_of_a_deployment_is_enough(text, called):
    assert job_url(text) == called


# -- the command ---------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_command_runs_one_batch_here():
    due(3)
    assert run_command("--batch-size", "2") == (0, "Queued again: 2 (campaigns: 1). Still due: 1.\n      2  away\n", "")
    code, out, _ = run_command("--json")
    assert code == 0
    assert json.loads(out) | {"sentence": ""} == {
        "outcome": "DONE",
        "sentence": "",
        "queued": 1,
        "campaigns": 1,
        "requeued_campaigns": 0,
        "failed": 0,
        "left": 0,
        "by_reason": {"away": 1},
        "lock_lost": False,
        "dry_run": False,
    }
    assert queued() == 3


@pytest.mark.django_db
def test_the_command_says_what_it_would_do():
    due(3)
    code, out, _ = run_command("--dry-run")
    assert (code, out) == (0, "Would be queued again: 3 (campaigns: 1). Nothing was changed.\n      3  away\n")
    assert queued() == 0


@pytest.mark.django_db
def test_the_command_says_that_another_run_is_on_its_way():
    with jobs.running(jobs.RETRY, ttl=timedelta(minutes=1)):
        code, out, err = run_command()
    assert (code, err) == (0, "")
    assert out.startswith("already running: process ")


@pytest.mark.django_db
def test_the_options_go_before_the_settings(settings):
    first, second = due().campaign, due(2).campaign
    settings.CAMPAIGN_RETRY_CAMPAIGN_ID = first.pk
    assert run_command()[:2] == (0, "Queued again: 1 (campaigns: 1).\n      1  away\n")
    run_command("--campaign", str(second.pk), "--session", str(second.session_id), "--max-age-hours", "1", "--max-campaigns", "1")
    assert queued() == 3
    assert run_command("--campaign", "999") == (2, "", "There is no campaign 999: it was deleted, or the number is wrong.\n")


@pytest.mark.django_db
def test_a_batch_that_breaks_down_is_a_sentence_and_not_a_traceback(monkeypatch):
    def break_down(*arguments, **more):
        raise KeyError("+12025550101")

    monkeypatch.setattr(retry, "run_batch", break_down)
    assert run_command() == (1, "", "the batch failed: KeyError\n")


def test_the_command_calls_a_deployment(deployment, settings):
    settings.CAMPAIGN_RETRY_JOB_TOKEN, settings.CAMPAIGN_RETRY_TENANT_ID = TOKEN, "acme"
    settings.CAMPAIGN_RETRY_JOB_URL = "http://127.0.0.1:1"
    code, out, err = run_command("--url", deployment.url, "--dry-run")
    assert (code, err, out.splitlines()[0]) == (
        0,
        "",
        "Queued again: 2 (campaigns: 1). Campaigns that take their turn anew: 1. Still due: 3.",
    )
    assert deployment.calls[0][2] == {"tenant": "acme", "dryRun": True}
    code, out, err = run_command()
    assert (code, out, err) == (1, "", "the server is not reachable: Connection refused\n")
    assert json.loads(run_command("--json")[1])["outcome"] == "AWAY"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_command_from_a_shell():
    due(2)
    code, out, err = manage("campaign_retry", "--error-code", "UNCONFIRMED")
    assert (code, out) == (2, "")
    assert "the message may have arrived. Decide about it in the admin." in err
    code, out, _ = manage("campaign_retry", "--daemon", "--once", "--json")
    assert (code, json.loads(out)["queued"], queued()) == (0, 2, 2)


@pytest.mark.django_db(transaction=True)
def test_the_command_and_the_real_view_understand_each_other(live_server, settings):
    settings.CAMPAIGN_RETRY_JOB_TOKEN = TOKEN
    due(2)
    code, out, _ = run_command("--url", live_server.url, "--max-age-hours", "24", "--error-code", "TRANSIENT")
    assert (code, out) == (0, "Queued again: 2 (campaigns: 1).\n      2  away\n")
    assert queued() == 2
    with jobs.running(jobs.RETRY, ttl=timedelta(minutes=1)):
        code, out, _ = run_command("--url", live_server.url)
    assert (code, out[:29]) == (0, "already running there, since ")
    assert run_command("--url", live_server.url, "--campaign", "999")[0] == 2
    reply = call_job(job_url(live_server.url), "another-token-than-the-servers", timeout=SECONDS)
    assert reply.sentence.startswith("the token is refused (401)")


# -- the daemon's loop ---------------------------------------------------------------------------------------------------------


class Rests(StopFlag):
    """Does not rest: keeps how long it would have, and asks to stop after so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.rests = most, list[float]()

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.requested = len(self.rests) >= self.most


def loop(replies: list[JobReply], **more: Any) -> list[float]:
    stop, left = Rests(len(replies)), iter(replies)
    assert run_daemon(stop, lambda: next(left), interval=100, **more) == 0
    return stop.rests


FINE = JobReply(Outcome.DONE, counts=COUNTS)
IDLE = JobReply(Outcome.DONE, counts=COUNTS | {"queued": 0})
AWAY = JobReply(Outcome.AWAY, "the server is not reachable: Connection refused")
REFUSED = JobReply(Outcome.REFUSED, "the token is refused (401)")


def test_the_rest_is_the_interval_up_to_a_fifth_more_or_less():
    rests = loop([IDLE] * 200, rng=Random(1))
    assert 80 <= min(rests) < 84
    assert 116 < max(rests) <= 120
    assert loop([IDLE] * 3, jitter=False) == [100] * 3


def test_an_outage_is_said_once_and_its_end_once(caplog):
    with caplog.at_level(logging.INFO, "paceline"):
        loop([IDLE, *[AWAY] * 50, IDLE, IDLE, REFUSED, REFUSED, FINE, IDLE])
    assert [record.message for record in caplog.records] == [
        "retry daemon started",
        "the retry job cannot be run; trying again",
        "the retry job runs again",
        "the retry job cannot be run; trying again",
        "the retry job runs again",
        "turn",
        "retry daemon stopped",
    ]
    assert [record.why for record in caplog.records if hasattr(record, "why")] == [AWAY.sentence, REFUSED.sentence]


def test_a_bug_is_told_with_its_traceback_once_and_ends_nothing(caplog, monkeypatch):
    def break_down(*arguments, **more):
        raise KeyError("name")

    monkeypatch.setattr(retry, "run_batch", break_down)
    monkeypatch.setattr(retry_daemon, "close_old_connections", lambda: None)
    stop = Rests(3)
    assert run_daemon(stop, lambda: run_here(Request(Scope())), interval=1) == 0
    assert caplog.text.count("KeyError: 'name'") == 1


@pytest.mark.django_db
def test_a_database_that_is_away_is_no_bug(monkeypatch):
    def away(*arguments, **more):
        raise OperationalError("server closed the connection, password=hunter2")

    monkeypatch.setattr(retry, "run_batch", away)
    monkeypatch.setattr(connection, "close", lambda: None)
    reply = run_here(Request(Scope()))
    assert (reply.outcome, reply.sentence) == (Outcome.AWAY, "the database is not reachable or takes no writes: OperationalError")


# -- the daemon as a process ---------------------------------------------------------------------------------------------------


def ends_cleanly(process: Any) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "retry daemon stopped" in process.said


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_daemon_outlives_its_server_and_never_says_its_token(start):
    deployment = Deployment()
    with deployment.up():
        daemon = start("--url", deployment.url, "--json", LOG_LEVEL="DEBUG")
        until(lambda: len(deployment.calls) >= 2, "two calls")
        assert {headers["Authorization"] for _, headers, _ in deployment.calls} == {f"Bearer {TOKEN}"}
    until(lambda: daemon.said.count('"AWAY"') >= 2, "two calls in vain")
    before = len(deployment.calls)
    with deployment.up():
        until(lambda: len(deployment.calls) > before, "a call after the outage")
        daemon.until_says("the retry job runs again")
        ends_cleanly(daemon)
    assert daemon.said.count("the retry job cannot be run; trying again") == 1
    assert daemon.said.count("the retry job runs again") == 1
    assert TOKEN not in daemon.said
    assert "Traceback" not in daemon.said


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_daemon_on_its_own_database_outlives_it(start):
    due(1)
    daemon = start()
    until(lambda: queued() == 1, "the first batch")
    with the_database_closed():
        daemon.until_says("the database is not reachable")
        until(seconds_passed(1.5), "another turn")
    due(1)
    until(lambda: queued() == 2, "a batch after the outage")
    daemon.until_says("the retry job runs again")
    with connection.cursor() as cursor:
        cursor.execute(OTHERS_OUT)  # a restart while it rests: by its next turn nothing is wrong any more, so nothing is said
    due(1)
    until(lambda: queued() == 3, "a batch after the restart")
    ends_cleanly(daemon)
    assert daemon.said.count("the retry job cannot be run; trying again") == 1
    assert "Traceback" not in daemon.said
    assert Job.objects.filter(pk=jobs.RETRY, holder=None, error="").exists()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_daemon_that_rests_for_minutes_ends_within_a_second(start):
    daemon = start("--json", CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS="300")
    daemon.until_says('"DONE"')
    began = time.monotonic()
    ends_cleanly(daemon)
    assert time.monotonic() - began < 1 + A_BUSY_MACHINE


def seconds_passed(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


@contextmanager
def the_database_closed() -> Iterator[None]:
    """To everybody: those in it are thrown out, and nobody comes in. Done from another database, the own one cannot be closed."""
    name = str(connection.settings_dict["NAME"])
    quoted = connection.ops.quote_name(name)
    connection.close()
    with connection._nodb_cursor() as cursor:
        try:
            cursor.execute(f"ALTER DATABASE {quoted} ALLOW_CONNECTIONS false")
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            yield
        finally:
            cursor.execute(f"ALTER DATABASE {quoted} ALLOW_CONNECTIONS true")

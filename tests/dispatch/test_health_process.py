"""A healthy address over a dead worker is the classic lie: real processes are killed, and what monitoring gets over HTTP says so."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import urllib3
from django.conf import settings as project
from django.utils import timezone
from django_q.models import OrmQ
from django_q.tasks import async_task

from campaigns import transitions
from campaigns.models import Campaign
from dispatch import jobs
from dispatch.models import DispatchLog, Heartbeat, Job
from tests.factories import make_campaign, make_recipients, make_session, make_step
from tests.processes import environment, processes, until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
TOKEN = "s3cret-s3cret-s3cret"


@pytest.fixture
def start(tmp_path):
    with processes(tmp_path) as run:
        yield run


@pytest.fixture
def ask(live_server, settings):
    """(status code, body) of an address of a web server that answers for real."""
    settings.HEALTHCHECK_TOKEN = TOKEN
    with urllib3.PoolManager() as pool:

        def get(path: str):
            answer = pool.request("GET", live_server.url + path, headers={"Authorization": f"Bearer {TOKEN}"}, retries=False)
            return answer.status, json.loads(answer.data)

        yield get


def parts(body) -> dict[str, str]:
    return {component["name"]: component["status"] for component in body["components"]}


def a_campaign_that_rests() -> Campaign:
    """One message goes out at once, the next a minute later."""
    campaign = make_campaign(session=make_session(), safe_hours="OFF", min_interval=60, max_interval=60)
    make_step(campaign)
    make_recipients(3, campaign)
    transitions.start(campaign.pk, by="ana")
    return campaign


def test_a_killed_scheduler_is_seen_at_once(start, ask):
    Job.objects.create(name=jobs.WATCH, finished_at=timezone.now())
    Job.objects.create(name=jobs.RETRY, finished_at=timezone.now())
    campaign = a_campaign_that_rests()
    assert ask("/api/health")[0] == 503, "running, and nothing drives it"
    scheduler = start("run_scheduler", "--interval", "0.1")
    until(lambda: DispatchLog.objects.filter(campaign=campaign, status="SENT").exists())
    code, body = ask("/api/health")  # it is in the pause of a minute, and not dead
    assert (code, body["status"], set(parts(body).values())) == (200, "ok", {"ok"})
    code, body = ask("/health/scheduler")
    assert (code, body["status"]) == (200, "ok")
    assert body["lastProcessed"]

    scheduler.kill()
    code, body = ask("/api/health")
    assert (code, body["status"], parts(body)["scheduler"]) == (503, "down", "down")
    assert ask("/health/scheduler")[0] == 503


def test_a_scheduler_of_another_host_is_missed_after_three_intervals(start, ask):
    """Nobody here can look for its pid: the silence tells."""
    a_campaign_that_rests()
    scheduler = start("run_scheduler", "--interval", "0.1")
    until(lambda: Heartbeat.objects.filter(last_pass_at__isnull=False).exists())
    scheduler.kill()
    Heartbeat.objects.update(host_identity="another")
    assert ask("/health/scheduler")[0] == 200, "it may be alive"
    Heartbeat.objects.update(beat_at=timezone.now() - timedelta(seconds=31))
    assert ask("/health/scheduler")[0] == 503
    assert ask("/api/health")[0] == 503


def turn(name: str, *, minutes_ago: int) -> None:
    """The last run was so long ago, and the next one waits in the queue."""
    Job.objects.filter(pk=name).update(finished_at=timezone.now() - timedelta(minutes=minutes_ago))
    async_task({jobs.WATCH: "dispatch.tasks.watch", jobs.RETRY: "dispatch.tasks.retry_campaigns"}[name])


def is_fresh(name: str) -> bool:
    return Job.objects.filter(pk=name, finished_at__gt=timezone.now() - timedelta(minutes=1)).exists()


def test_a_killed_worker_is_seen_by_its_silence(start, ask, settings):
    """With ENGINE_DRIVER=schedule it is also what sends, and there its death is seen at once."""
    settings.ENGINE_DRIVER = "schedule"
    a_campaign_that_rests()
    worker = start("worker", ENGINE_DRIVER="schedule")
    turn(jobs.WATCH, minutes_ago=6)
    turn(jobs.RETRY, minutes_ago=31)
    until(lambda: is_fresh(jobs.WATCH) and is_fresh(jobs.RETRY), "the jobs of the worker")
    async_task("dispatch.tasks.drive")
    until(lambda: Heartbeat.objects.filter(kind="SCHEDULE", last_pass_at__isnull=False).exists(), "a drive")
    code, body = ask("/api/health")
    assert (code, set(parts(body).values())) == (200, {"ok"})

    turn(jobs.WATCH, minutes_ago=6)  # alive: it makes up for it
    until(lambda: is_fresh(jobs.WATCH), "the watch")
    assert parts(ask("/api/health")[1])["background_tasks"] == "ok"

    worker.kill()
    until(lambda: ask("/api/health")[0] == 503, "the drive to be missed", seconds=5)
    turn(jobs.WATCH, minutes_ago=6)
    turn(jobs.RETRY, minutes_ago=31)
    found = parts(ask("/api/health")[1])
    assert (found["background_tasks"], found["retry_worker"], found["scheduler"]) == ("degraded", "degraded", "down")
    assert OrmQ.objects.count() >= 2, "nobody took them"
    Campaign.objects.all().delete()
    assert ask("/api/health")[1]["status"] == "degraded", "nothing to send any more"


@contextmanager
def web(folder: Path, database_url: str) -> Iterator[str]:
    """The web server as the Procfile runs it. Gives its address."""
    log = folder / "web.log"
    words = ["config.wsgi", "--bind", "127.0.0.1:0", "--no-control-socket", "--threads", "4"]
    variables = environment(DATABASE_URL=database_url, HEALTHCHECK_TOKEN=TOKEN)
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *words], cwd=project.BASE_DIR, env=variables, stdout=output, stderr=output
        )
    try:
        until(lambda: "Listening at" in log.read_text() and "Booting worker" in log.read_text(), "gunicorn")
        found = re.search(r"Listening at: (http://\S+)", log.read_text())
        assert found is not None
        yield found[1]
    finally:
        process.terminate()
        process.wait(20)


def test_the_web_server_answers_while_the_database_hangs(tmp_path):
    """A server that takes connections and says nothing; more requests at once than the web server has threads."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        url = f"postgres://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing?sslmode=disable"
        with web(tmp_path, url) as address, urllib3.PoolManager(maxsize=8) as pool:
            answers: list[tuple[int, bytes, float]] = []
            pool.request("GET", f"{address}/no-such-page", retries=False)  # the first request loads the project

            def ask(path: str) -> None:
                began = time.monotonic()
                answer = pool.request("GET", address + path, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20, retries=False)
                answers.append((answer.status, answer.data, time.monotonic() - began))

            asking = [
                threading.Thread(target=ask, args=(path,)) for path in ("/api/health", "/metrics", "/health/scheduler", "/api/health")
            ]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
    assert [code for code, _, _ in answers] == [503] * 4
    assert any(b'"status": "down"' in said and b"did not answer within 2 s" in said for _, said, _ in answers)
    assert max(took for *_, took in answers) < 7  # 2 s, on a machine under load; without the limit it is libpq's ten

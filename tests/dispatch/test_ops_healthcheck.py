"""manage.py ops_healthcheck against a site whose answers are written down beforehand: real HTTP on loopback, and no database."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dispatch.readiness.looking import Look, Trouble, look_at_health, look_at_job, look_at_root, look_at_site
from sessions_app.providers import http
from tests.processes import manage

NOW = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)
TOKEN = "a-token-of-sixteen-characters"
JOB = "/api/jobs/campaign-retry"
NO_DATABASE = "postgres://nobody@127.0.0.1:1/none"


@dataclass(frozen=True)
class Reply:
    body: Any = ""  # text, or what becomes JSON
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False


class Site:
    """Answers each path with what stands in `replies`, else 404; `asked` are the calls, with their Authorization."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.asked: list[tuple[str, str]] = []
        self.url = ""
        self.over = threading.Event()

    def is_well(self) -> None:
        """As Paceline answers with everything in order. The root leads to the first page, and that to the log-in."""
        self.replies["/"] = Reply(status=302, headers={"Location": "/admin/"})
        self.replies["/admin/"] = Reply(status=302, headers={"Location": "/admin/login/?next=/admin/"})
        self.replies["/admin/login/?next=/admin/"] = Reply("<html>Log in</html>")
        self.replies["/api/health"] = Reply(health())
        self.replies[JOB] = Reply(state())


def health(status: str = "ok", *wrong: tuple[str, str, str]) -> dict[str, Any]:
    parts = [{"name": "database", "status": "ok", "detail": "it answers", "facts": {}}]
    return {"status": status, "components": parts + [{"name": name, "status": is_, "detail": says} for name, is_, says in wrong]}


def state(**changes: Any) -> dict[str, Any]:
    last = datetime.now(UTC) - timedelta(minutes=2)
    values = {"running": False, "last_finished_at": last.isoformat(), "last_error": "", "pending": {"due": 3, "waiting": 12}}
    return {**values, **changes}


@contextmanager
def running_site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append((self.path, self.headers.get("Authorization", "")))
            reply = site.replies.get(self.path, Reply({"error": "not found"}, 404))
            if reply.hangs:
                site.over.wait(30)
                return
            content = (reply.body if isinstance(reply.body, str) else json.dumps(reply.body)).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        site.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
        http.forget_connections()


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        site.is_well()
        yield site


@pytest.fixture(autouse=True)
def tokens(settings):
    settings.HEALTHCHECK_TOKEN = settings.CAMPAIGN_RETRY_JOB_TOKEN = TOKEN


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def bad(look: Look) -> tuple[Trouble | None, str]:
    return look.trouble, look.sentence


# -- all is well ---------------------------------------------------------------------------------------------------------------


def test_a_site_that_is_well(site):
    root, health_look, job = look_at_site(f"{site.url}/")
    assert [look.trouble for look in (root, health_look, job)] == [None, None, None]
    assert str(root).startswith("root page (200 in ")
    assert str(root).endswith(" ms)")
    assert health_look.sentence == "ok"
    assert job.sentence == "last run 2 min ago; 3 due, 12 waiting"


def test_each_token_goes_to_its_own_page_and_nowhere_else(site, settings):
    settings.CAMPAIGN_RETRY_JOB_TOKEN = "senha-ção-com-dezesseis-€"
    look_at_site(site.url)
    sent = dict(site.asked)
    assert sent.pop("/api/health") == f"Bearer {TOKEN}"
    assert sent.pop(JOB).encode("latin-1") == "Bearer senha-ção-com-dezesseis-€".encode()
    assert set(sent.values()) == {""}


def test_without_a_token_the_status_alone_will_do(site, settings):
    settings.HEALTHCHECK_TOKEN = ""
    site.replies["/api/health"] = Reply({"status": "ok"})
    assert bad(look_at_health(site.url)) == (None, "ok")


# -- something is wrong --------------------------------------------------------------------------------------------------------


def test_nothing_listens(settings):
    looks = look_at_site(f"http://127.0.0.1:{closed_port()}")
    assert {bad(look) for look in looks} == {(Trouble.NOT_RUNNING, "the application is not running: connection refused")}
    assert [str(look) for look in looks][1] == "/api/health: the application is not running: connection refused"


def test_a_name_that_does_not_exist():
    trouble, sentence = bad(look_at_health("http://paceline.invalid", within=timedelta(seconds=5)))
    assert trouble is Trouble.NO_ANSWER
    assert sentence.startswith("the site cannot be reached: ")


def test_a_site_that_takes_the_call_and_hangs(site):
    site.replies["/api/health"] = Reply(hangs=True)
    look = look_at_health(site.url, within=timedelta(seconds=0.2))
    assert bad(look) == (Trouble.NO_ANSWER, "the site took the call and did not answer: no answer in time")
    assert 150 <= look.milliseconds < 2000


HEALTH = [
    (Reply("<h1>Bad gateway</h1>", 502), Trouble.NOT_RUNNING, "the application is not running: what stands before it answers 502"),
    (Reply("<h1>Unavailable</h1>", 503), Trouble.NOT_RUNNING, "the application is not running: what stands before it answers 503"),
    (
        Reply(health("down", ("scheduler", "down", "none is alive")), 503),
        Trouble.UNHEALTHY,
        "the application runs and is unhealthy: down: scheduler: none is alive",
    ),
    (
        Reply(health("degraded", ("sessions", "degraded", "1 not connected")), 200),
        Trouble.DEGRADED,
        "degraded: sessions: 1 not connected",
    ),
    (
        Reply({"status": "ok"}),
        Trouble.WRONG_TOKEN,
        "ok, but wrong token: HEALTHCHECK_TOKEN here is not the one the site has",
    ),
    (Reply({"error": "no"}, 401), Trouble.WRONG_TOKEN, "wrong token: HEALTHCHECK_TOKEN here is not the one the site has"),
    (Reply({"error": "no"}, 429), Trouble.WRONG_TOKEN, "too many calls with a wrong token; wait a minute"),
    (Reply("<html>Apache</html>"), Trouble.ELSEWHERE, "something else than Paceline answers there: 200, and no JSON"),
    (Reply({"status": "UP"}), Trouble.ELSEWHERE, "something else than Paceline answers there: its JSON has no status that we know"),
    (Reply([1]), Trouble.ELSEWHERE, "something else than Paceline answers there: 200, and no JSON"),
    (Reply({"error": f"broken {TOKEN}"}, 500), Trouble.UNHEALTHY, "answers 500: broken [hidden]"),
    (
        Reply(status=301, headers={"Location": "https://paceline.example.org/api/health"}),
        Trouble.ELSEWHERE,
        "leads away, to https://paceline.example.org: is that the address of the site?",
    ),
]


@pytest.mark.parametrize(("reply", "trouble", "sentence"), HEALTH, ids=[sentence[:40] for _, _, sentence in HEALTH])
def test_what_the_health_page_may_answer(site, reply, trouble, sentence):
    site.replies["/api/health"] = reply
    assert bad(look_at_health(site.url)) == (trouble, sentence)


def test_a_site_that_wants_a_token_we_do_not_have(site, settings):
    settings.CAMPAIGN_RETRY_JOB_TOKEN = ""
    site.replies[JOB] = Reply({"error": "the token is missing or wrong"}, 401)
    sentence = "wrong token: the site wants a token, and CAMPAIGN_RETRY_JOB_TOKEN is not set here"
    assert bad(look_at_job(site.url + JOB)) == (Trouble.WRONG_TOKEN, sentence)


CLOSED = "closed, because no token is set: set CAMPAIGN_RETRY_JOB_TOKEN in the environment (16 characters or more) and restart"
STATES = [
    (Reply({"error": CLOSED}, 503), Trouble.CLOSED, CLOSED),
    (
        Reply(state(last_error="OperationalError")),
        Trouble.UNHEALTHY,
        "its last run failed: OperationalError (3 due, 12 waiting)",
    ),
    (Reply(state(last_finished_at=None)), Trouble.DEGRADED, "it has never run; 3 due, 12 waiting"),
    (Reply(state(last_finished_at="yesterday")), Trouble.DEGRADED, "it has never run; 3 due, 12 waiting"),
    (Reply(state(last_finished_at="2026-06-10T11:29:00Z")), Trouble.DEGRADED, "last run 31 min ago; 3 due, 12 waiting"),
    (Reply(state(last_finished_at="2026-06-10T11:31:00Z")), None, "last run 29 min ago; 3 due, 12 waiting"),
    (Reply(state(running=True, last_finished_at=None)), None, "running now; 3 due, 12 waiting"),
    (Reply(health()), Trouble.ELSEWHERE, "something else than Paceline answers there: its JSON is not the state of the job"),
    (Reply({"error": "not found"}, 404), Trouble.UNHEALTHY, "answers 404: not found"),
]


@pytest.mark.parametrize(
    ("reply", "trouble", "sentence"), STATES, ids=[sentence[:40] + str(n) for n, (_, _, sentence) in enumerate(STATES)]
)
def test_what_the_job_may_answer(site, reply, trouble, sentence):
    site.replies[JOB] = reply
    assert bad(look_at_job(site.url + JOB, now=NOW)) == (trouble, sentence)


ROOTS = [
    (Reply("Bad Request", 400), Trouble.ELSEWHERE, "the site does not know the host name of http://127.0.0.1"),
    (Reply("Server Error", 500), Trouble.UNHEALTHY, "answers 500 instead of a page"),
    (Reply(status=301, headers={"Location": "https://x:y@127.0.0.1/"}), Trouble.ELSEWHERE, "leads away, to https://127.0.0.1: is"),
    (Reply(status=302, headers={"Location": "/"}), Trouble.UNHEALTHY, "answers 302 instead of a page"),
]


@pytest.mark.parametrize(("reply", "trouble", "begins"), ROOTS, ids=[begins[:20] for _, _, begins in ROOTS])
def test_what_the_root_page_may_answer(site, reply, trouble, begins):
    site.replies["/"] = reply
    found = look_at_root(site.url)
    assert found.trouble is trouble
    assert found.sentence.startswith(begins)
    assert len(site.asked) <= 5


# -- the command ---------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db  # for the environment of processes; the command itself is given a database that is not there
def test_the_command_says_a_line_each_and_ends_with_what_it_found(site):
    variables = {"DATABASE_URL": NO_DATABASE, "HEALTHCHECK_TOKEN": TOKEN, "CAMPAIGN_RETRY_JOB_TOKEN": TOKEN}
    code, said, errors = manage("ops_healthcheck", "--base-url", site.url, **variables)
    assert (code, errors) == (0, "")
    first, second, third = said.splitlines()
    assert first.startswith("✓ root page (200 in ")
    assert second.startswith("✓ /api/health: ok (200 in ")
    assert third.startswith("✓ retry job: last run 2 min ")

    site.replies["/api/health"] = Reply(health("degraded", ("sessions", "degraded", "1 not connected")))
    code, said, _ = manage("ops_healthcheck", OPS_BASE_URL=site.url, PYTHONIOENCODING="ascii", **variables)
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()] == ["ok", "!", "ok"]
    code, said, _ = manage("ops_healthcheck", "--strict", "--json", OPS_BASE_URL=site.url, **variables)
    answer = json.loads(said)
    assert (code, answer["ok"]) == (1, False)
    assert [(look["name"], look["ok"], look["trouble"]) for look in answer["looks"]] == [
        ("root page", True, None),
        ("/api/health", False, "degraded"),
        ("retry job", True, None),
    ]
    assert TOKEN not in said


@pytest.mark.django_db
def test_the_command_with_nothing_there_and_with_an_address_that_is_none():
    code, said, _ = manage("ops_healthcheck", "--base-url", f"http://127.0.0.1:{closed_port()}", DATABASE_URL=NO_DATABASE)
    assert code == 1
    assert said.splitlines()[0] == "✗ root page: the application is not running: connection refused"
    code, _, errors = manage("ops_healthcheck", "--base-url", "paceline.example.org", DATABASE_URL=NO_DATABASE)
    assert code == 2
    assert errors.strip().endswith("--base-url is not usable: it must start with http:// or https://.")

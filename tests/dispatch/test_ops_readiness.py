"""manage.py ops_readiness: every finding made bad and seen, and one real message through a real scheduler."""

import json
import re
import signal
from collections import namedtuple
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings as real_settings
from django.core import checks
from django.db import InterfaceError, OperationalError, ProgrammingError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from campaigns import transitions
from campaigns.models import Campaign
from config.environment import new_credentials_key, new_secret_key
from dispatch import health, jobs
from dispatch.models import DispatchLog, Heartbeat, Job
from dispatch.readiness import configuration, ledger, outside, processes, trial
from dispatch.readiness.examining import CHECKS, examine
from dispatch.readiness.findings import Check, Level, Verdict, findings_of, look_at_all, ok
from dispatch.stopping import StopFlag
from sessions_app.clock import database_now
from sessions_app.models import Session
from sessions_app.providers import http
from sessions_app.sandbox import Sandbox
from tests import processes as real
from tests.dispatch.invariants import broken
from tests.dispatch.test_ops_healthcheck import JOB, NO_DATABASE, TOKEN, Reply, closed_port, running_site
from tests.dispatch.test_ops_healthcheck import health as health_answer
from tests.factories import make_session

# Apprise imports a module that Python has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
OTHER_TOKEN = "another-token-of-thirty-characters"


@pytest.fixture
def production(settings, tmp_path):
    """A well-configured one; a test makes one thing bad."""
    values = {
        "ENV_FILE": tmp_path / ".env",
        "VAR": tmp_path,
        "DEBUG": False,
        "SECRET_KEY": new_secret_key(),
        "CREDENTIALS_KEYS": [new_credentials_key()],
        "ALLOWED_HOSTS": ["paceline.example.org", "127.0.0.1"],
        "OPS_BASE_URL": "https://paceline.example.org",
        "RECOVERY_POLICY": "pause",
        "ENGINE_DRIVER": "service",
        "CAMPAIGN_RETRY_JOB_TOKEN": TOKEN,
        "HEALTHCHECK_TOKEN": OTHER_TOKEN,
        "CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN": False,
        "CAMPAIGN_RETRY_JOB_URL": "",
        "CAMPAIGN_RETRY_ALERT_WEBHOOK_URL": "",
        "ALERT_URLS": ["json://127.0.0.1/alerts"],
        "WAHA_API_URL": "",
        "WAHA_API_KEY": "",
    }
    for name, value in values.items():
        setattr(settings, name, value)
    return settings


@pytest.fixture(autouse=True)
def no_connection_is_left():
    yield
    http.forget_connections()


def only(verdicts) -> Verdict:
    found = list(verdicts)
    assert len(found) == 1, found
    return found[0]


def told(verdicts) -> list[tuple[str, str]]:
    return [(verdict.level.value, verdict.sentence) for verdict in verdicts]


# -- settings ------------------------------------------------------------------------------------------------------------------

SETTINGS = [
    (
        "debug",
        {"DEBUG": True},
        "error",
        "DEBUG is on and the site answers to paceline.example.org: its error pages show the code to strangers.",
    ),
    ("debug", {"DEBUG": True, "ALLOWED_HOSTS": ["localhost"]}, "warning", "DEBUG is on: this is a development instance."),
    ("keys", {"SECRET_KEY": "django-insecure-" + "ab1-" * 20}, "error", "SECRET_KEY is short or easily guessed."),
    ("hosts", {"ALLOWED_HOSTS": ["*"]}, "warning", "ALLOWED_HOSTS takes every host name."),
    (
        "hosts",
        {"ALLOWED_HOSTS": ["localhost", "[::1]"]},
        "warning",
        "ALLOWED_HOSTS names this machine only: whoever comes through a proxy under another name is refused.",
    ),
    (
        "base-url",
        {"OPS_BASE_URL": "https://old.example.org"},
        "warning",
        "OPS_BASE_URL leads to old.example.org, which is not in ALLOWED_HOSTS: the site will refuse it.",
    ),
    (
        "base-url",
        {"OPS_BASE_URL": "http://paceline.example.org"},
        "warning",
        "OPS_BASE_URL is not https, and its host is another machine: the tokens travel in the clear.",
    ),
    (
        "recovery-policy",
        {"RECOVERY_POLICY": "continue"},
        "warning",
        "RECOVERY_POLICY=continue: after a crash, campaigns whose own message was not in doubt go on without a person.",
    ),
    (
        "tokens",
        {"CAMPAIGN_RETRY_JOB_TOKEN": ""},
        "warning",
        "CAMPAIGN_RETRY_JOB_TOKEN is empty: what is under /api/jobs/ is refused to everybody.",
    ),
    (
        "tokens",
        {"HEALTHCHECK_TOKEN": ""},
        "warning",
        "HEALTHCHECK_TOKEN is empty: what /api/health says in detail is refused to everybody.",
    ),
    (
        "tokens",
        {"HEALTHCHECK_TOKEN": TOKEN},
        "warning",
        "CAMPAIGN_RETRY_JOB_TOKEN and HEALTHCHECK_TOKEN are the same: whoever may look may also set off work.",
    ),
    (
        "query-token",
        {"CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN": True},
        "warning",
        "CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN is on: the token stands in the access log of every proxy.",
    ),
    ("alerts", {"ALERT_URLS": []}, "warning", "Nobody is told of alerts: they are in the log and the admin only."),
    (
        "alerts",
        {"ALERT_URLS": ["json://127.0.0.1", "slak://secret/b/c"]},
        "error",
        "ALERT_URLS: the one that begins with slak:// is none that Apprise knows.",
    ),
]


@pytest.mark.parametrize(("key", "changes", "level", "sentence"), SETTINGS, ids=[f"{n}-{row[0]}" for n, row in enumerate(SETTINGS)])
def test_a_setting_that_is_risky(production, key, changes, level, sentence):
    find = next(check.find for check in configuration.CHECKS if check.key == key)
    assert only(find()).level is Level.OK
    for name, value in changes.items():
        setattr(production, name, value)
    found = only(find())
    assert (found.level.value, found.sentence) == (level, sentence)
    assert found.remedy


def test_both_addresses_of_this_machine_are_local(production):
    production.ALLOWED_HOSTS = [".example.org", "[::1]", "127.0.0.1"]
    for url in ("http://127.0.0.1:8000", "http://[::1]:8000/", "https://a.example.org"):
        production.OPS_BASE_URL = url
        assert only(configuration.base_url()).level is Level.OK


def test_generated_keys_are_told_from_chosen_ones(production):
    (production.VAR / "secret_key").write_text(production.SECRET_KEY)
    assert only(configuration.keys()).level is Level.OK  # with DEBUG off it was taken over into .env
    production.DEBUG = True
    found = only(configuration.keys())
    assert (found.level, found.sentence) == (Level.WARNING, "SECRET_KEY: generated into var/, which is for development.")


def test_a_line_that_nothing_reads(production):
    assert only(configuration.unread_variables()).level is Level.OK
    production.ENV_FILE.write_text("ALOWED_HOSTS=x\nFROBNICATE=1\n")
    first, second = configuration.unread_variables()
    assert (first.sentence, first.remedy) == (
        "ALOWED_HOSTS in .env is read by nothing.",
        "Write it as ALLOWED_HOSTS in .env. Then restart all services.",
    )
    assert second.remedy.startswith("Take the line out of .env")


def test_djangos_deploy_checks_are_passed_on(production, monkeypatch):
    production.SECURE_SSL_REDIRECT = False
    found = {verdict.sentence.partition(":")[0]: verdict for verdict in configuration.deploy_checks()}
    assert found["security.W008"].level is Level.WARNING
    assert "manage.py check --deploy" in found["security.W008"].remedy
    assert not {key for key in found if key.startswith(("dispatch.", "security.W018"))}  # they have findings of their own
    production.DEBUG = True
    assert told(configuration.deploy_checks()) == [("ok", "Django's checks find nothing.")]
    monkeypatch.setattr(checks, "run_checks", lambda **_: [checks.Error("broken", hint="mend it", id="models.E001")])
    assert told(configuration.deploy_checks()) == [("error", "models.E001: broken")]


def test_static_files_that_were_not_collected(production, monkeypatch):
    class Collected:
        hashed_files: dict[str, str] = {}

    monkeypatch.setattr(configuration, "staticfiles_storage", Collected)
    assert told(configuration.static_files()) == [("error", "The static files were not collected: the admin has no style.")]
    wanted = {name for finder in configuration.get_finders() for name, _ in finder.list([])}
    Collected.hashed_files = dict.fromkeys(wanted, "x")
    assert only(configuration.static_files()).level is Level.OK
    del Collected.hashed_files["config/favicon.svg"]
    found = only(configuration.static_files())
    assert found.sentence == "1 static file was not collected (config/favicon.svg): pages that need what is missing fail."
    assert found.remedy.startswith("manage.py collectstatic --noinput")


def test_the_embedded_database_is_not_for_production(production, monkeypatch):
    monkeypatch.setitem(real_settings.DATABASES["default"], "ENGINE", "config.embedded_postgres")
    found = only(configuration.embedded_database())
    assert found.level is Level.ERROR
    assert "nobody backs it up" in found.sentence
    production.DEBUG = True
    assert only(configuration.embedded_database()).level is Level.OK
    monkeypatch.setitem(real_settings.DATABASES["default"], "ENGINE", "django.db.backends.postgresql")
    assert only(configuration.embedded_database()).sentence == "The database is a PostgreSQL of your own."


# -- the database --------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_old_server(monkeypatch):
    assert only(ledger.version()).level is Level.OK
    monkeypatch.setattr(connection, "get_database_version", lambda: (13, 4))
    assert told(ledger.version()) == [("error", "PostgreSQL 13.4 is too old: 14 is the least.")]


@pytest.mark.django_db
def test_migrations_that_are_missing(monkeypatch):
    assert only(ledger.migrations()).level is Level.OK
    [latest] = MigrationLoader(connection).graph.leaf_nodes("dispatch")
    MigrationRecorder(connection).record_unapplied(*latest)
    found = only(ledger.migrations())
    assert (found.level, found.remedy) == (Level.ERROR, "manage.py migrate")
    assert found.sentence == f"1 migration is not applied: {'.'.join(latest)}."
    monkeypatch.setattr(health, "look", list)
    for find in (processes.scheduler, processes.background_tasks, processes.retry_job):
        assert told(find()) == [("warning", "Not looked at: some migrations are not applied.")]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("off", "level", "says"),
    [
        (0, "ok", "The database's clock and this machine's agree."),
        (-5, "warning", "The database's clock is 5 s ahead of this machine's: campaigns start by the database's."),
        (95, "error", "The database's clock is 1 min 35 s behind this machine's: campaigns start by the database's."),
    ],
)
def test_clocks_that_differ(off, level, says):
    assert told(ledger.clock(lambda: datetime.now(UTC) + timedelta(seconds=off))) == [(level, says)]


@pytest.mark.django_db
def test_a_slow_way_to_the_database_is_no_skew():
    start = database_now()
    moments = iter([start - timedelta(seconds=8), start + timedelta(seconds=1)])
    assert only(ledger.clock(lambda: next(moments))).level is Level.OK


@pytest.mark.django_db
def test_credentials_that_no_key_opens(settings):
    names = [make_session(name=f"s{n}", credentials={"api_key": "x"}).name for n in range(5)]
    assert only(ledger.credentials()).level is Level.OK
    settings.CREDENTIALS_KEYS = [new_credentials_key()]
    found = only(ledger.credentials())
    assert found.level is Level.ERROR
    assert found.sentence == f"No key of CREDENTIALS_KEYS opens the credentials of {', '.join(names[:3])} and 2 more."


@pytest.mark.parametrize(("free", "level"), [(50, "ok"), (1.5, "warning"), (0.1, "error")])
def test_a_disk_that_fills_up(monkeypatch, free, level):
    monkeypatch.setattr(ledger, "is_embedded", lambda: True)
    usage = namedtuple("usage", "free")(int(free * ledger.GIBIBYTE))
    monkeypatch.setattr(ledger.shutil, "disk_usage", lambda folder: usage)
    assert told(ledger.disk()) == [(level, f"{free:.1f} GiB are free where the embedded PostgreSQL has its data.")]
    monkeypatch.setattr(ledger, "is_embedded", lambda: False)
    assert only(ledger.disk()).level is Level.OK


# -- who is alive --------------------------------------------------------------------------------------------------------------


def alive(**fields) -> Heartbeat:
    values = {"kind": Heartbeat.Kind.SCHEDULER, "host": "a", "host_identity": "elsewhere", "pid": 1, "version": real_settings.VERSION}
    return Heartbeat.objects.create(**{**values, "interval": timedelta(seconds=10), **fields})


@pytest.mark.django_db
def test_no_scheduler(settings):
    found = only(processes.scheduler())
    assert found.level is Level.ERROR
    assert found.sentence.startswith("Scheduler: none is alive")
    assert "manage.py run_scheduler" in found.remedy
    settings.ENGINE_DRIVER = "schedule"
    assert "manage.py worker" in only(processes.scheduler()).remedy
    alive()
    assert told(processes.scheduler()) == [("ok", "Scheduler: 1 alive.")]


@pytest.mark.django_db
def test_a_scheduler_of_another_version():
    alive(version="0.0.9", pid=7)
    old, good = processes.scheduler()
    assert old.sentence == f"The scheduler on a (process 7) runs version 0.0.9, and this is {real_settings.VERSION}."
    assert (old.level, good.level) == (Level.WARNING, Level.OK)


@pytest.mark.django_db
def test_background_tasks_that_are_silent():
    assert only(processes.background_tasks()).level is Level.ERROR
    job = Job.objects.create(name=jobs.WATCH, finished_at=timezone.now() - timedelta(minutes=20))
    found = only(processes.background_tasks())
    assert found.level is Level.ERROR
    assert found.sentence.startswith("Background tasks: silent for 20 min")
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now())
    assert only(processes.background_tasks()).level is Level.OK


@pytest.mark.django_db
def test_a_retry_job_that_never_ran_fails_or_is_late():
    assert "never run" in only(processes.retry_job()).sentence
    now = timezone.now()
    job = Job.objects.create(name=jobs.RETRY, finished_at=now, error="OperationalError: gone")
    assert "its last run failed" in only(processes.retry_job()).sentence
    Job.objects.filter(pk=job.pk).update(error="", finished_at=now - timedelta(hours=2))
    found = only(processes.retry_job())
    assert (found.level, found.sentence[:27]) == (Level.WARNING, "Retry job: silent for 2 h: ")
    Job.objects.filter(pk=job.pk).update(finished_at=now)
    assert only(processes.retry_job()).level is Level.OK


# -- outside -------------------------------------------------------------------------------------------------------------------


def test_not_running_unhealthy_and_a_wrong_token_are_told_apart(production):
    production.OPS_BASE_URL = f"http://127.0.0.1:{closed_port()}"
    for find in (outside.site, outside.health_url, outside.retry_url):
        found = only(find())
        assert found.level is Level.ERROR
        assert found.sentence.endswith("the application is not running: connection refused.")
        assert found.remedy.startswith("systemctl start paceline-web")
    with running_site() as site:
        production.OPS_BASE_URL = f"{site.url}/"
        site.is_well()
        assert [only(find()).level.value for find in (outside.site, outside.health_url, outside.retry_url)] == ["ok", "ok", "ok"]
        site.replies["/api/health"] = Reply(health_answer("down", ("scheduler", "down", "none is alive")), 503)
        assert "the application runs and is unhealthy: down: scheduler: none is alive (503 in " in only(outside.health_url()).sentence
        site.replies["/api/health"] = Reply(health_answer("degraded", ("sessions", "degraded", "1 away")))
        assert only(outside.health_url()).level is Level.WARNING
        site.replies[JOB] = Reply({"error": "no"}, 401)
        found = only(outside.retry_url())
        assert "wrong token: CAMPAIGN_RETRY_JOB_TOKEN here is not the one the site has" in found.sentence
        assert found.remedy == "Put one token into .env of both. Then restart all services."
        production.CAMPAIGN_RETRY_JOB_URL = f"{site.url}/elsewhere"
        assert "answers 404" in only(outside.retry_url()).sentence


def test_the_waha_of_the_instance(production):
    assert only(outside.waha()).level is Level.OK
    production.WAHA_API_URL = f"http://127.0.0.1:{closed_port()}"
    assert told(outside.waha()) == [("error", f"WAHA does not answer at {production.WAHA_API_URL}: Connection refused.")]
    production.WAHA_API_URL = "http://user:secret@127.0.0.1"
    found = only(outside.waha())
    assert found.sentence.startswith("WAHA_API_URL is not usable. ")
    assert "secret" not in found.sentence
    with Sandbox(api_key="right") as sandbox:
        production.WAHA_API_URL = sandbox.url
        assert told(outside.waha()) == [("error", f"WAHA at {sandbox.url} refuses WAHA_API_KEY (401).")]
        production.WAHA_API_KEY = "right"
        assert told(outside.waha()) == [("ok", f"WAHA answers at {sandbox.url}.")]
    with running_site() as site:
        production.WAHA_API_URL = site.url
        site.replies["/api/sessions"] = Reply("<html>router</html>")
        assert told(outside.waha()) == [("error", f"What answers at {site.url} is not WAHA (200).")]


@pytest.mark.django_db
def test_sessions_are_asked_and_nothing_is_written_down(settings):
    assert told(outside.sessions()) == [("error", "There is no session: nothing can be sent.")]
    gone = f"http://127.0.0.1:{closed_port()}"
    with Sandbox() as sandbox:
        sandbox.set_session("pairing", "SCAN_QR_CODE")
        make_session(name="a", channel="waha", settings={"base_url": sandbox.url, "session": "pairing"})
        make_session(name="b", channel="waha", settings={"base_url": gone, "session": "default"})
        make_session(name="c", channel="telegraph")
        make_session(name="d", credentials={"token": "x"})
        settings.CREDENTIALS_KEYS = [new_credentials_key()]
        before = list(Session.objects.values())
        first, second, third, fourth, last = outside.sessions()
        assert first.sentence.startswith("Session a is not connected: needs pairing.")
        assert second.sentence == f"Session b is not connected: disconnected. WAHA does not answer at {gone}: Connection refused."
        assert "telegraph" in third.sentence
        assert "no key in CREDENTIALS_KEYS opens them" in fourth.sentence
        assert {first.level, second.level, third.level, fourth.level} == {Level.WARNING}
        assert (last.level, last.sentence) == (Level.ERROR, "No session is connected: nothing can be sent.")
        assert list(Session.objects.values()) == before
        make_session(name="e", status=Session.Status.DISCONNECTED)
        *_, kept, last = outside.sessions()
        assert kept.sentence == "Session e is connected, and is kept as disconnected."
        assert (last.level, last.sentence) == (Level.OK, "1 of 5 sessions are connected.")


# -- all of them ---------------------------------------------------------------------------------------------------------------


def test_one_that_raises_is_a_finding_and_the_others_go_on():
    def breaks(trouble):
        def find():
            yield ok("half")
            raise trouble

        return find

    def found(trouble):
        return [(finding.verdict.level.value, finding.verdict.sentence) for finding in findings_of(Check("x", breaks(trouble)))]

    assert found(RuntimeError("with a secret")) == [("ok", "half"), ("error", "This could not be looked at: RuntimeError.")]
    assert found(InterfaceError("closed.\nmore"))[1][1] == "This could not be looked at: InterfaceError: closed."
    *_, last = findings_of(Check("x", breaks(ProgrammingError("no such table"))))
    assert (last.verdict.remedy, last.section) == ("manage.py migrate", "docs/readiness.md#x")


def test_without_a_database_the_rest_is_still_said():
    def away():
        raise OperationalError("refused")
        yield

    asked = []
    after = [Check("needs", lambda: asked.append("needs") or [], needs_database=True), Check("free", lambda: [ok("said")])]
    found = list(look_at_all([Check("before", lambda: [ok("first")])], Check("database", away), after))
    assert [(finding.key, finding.verdict.level.value) for finding in found] == [
        ("before", "ok"),
        ("database", "error"),
        ("database", "warning"),
        ("free", "ok"),
    ]
    assert found[2].verdict.sentence == "Not looked at without a database: needs."
    assert asked == []


def test_every_finding_has_its_section_and_every_section_its_finding():
    page = (real_settings.BASE_DIR / "docs" / "readiness.md").read_text()
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == [*(check.key for check in CHECKS), "test-message"]


@pytest.mark.django_db
def test_all_of_it_says_each_key(production):
    production.OPS_BASE_URL = f"http://127.0.0.1:{closed_port()}"
    assert list(dict.fromkeys(finding.key for finding in examine())) == [check.key for check in CHECKS]


@pytest.mark.django_db(transaction=True)
def test_the_command_in_json_with_a_site_and_a_database():
    make_session(name="ana")
    with running_site() as site:
        site.is_well()
        tokens = {"HEALTHCHECK_TOKEN": TOKEN, "CAMPAIGN_RETRY_JOB_TOKEN": TOKEN}
        code, said, _ = real.manage("ops_readiness", "--json", DEBUG="true", OPS_BASE_URL=site.url, **tokens)
    levels = {finding["key"]: finding["level"] for finding in json.loads(said)}
    assert code == 1
    assert {key for key, level in levels.items() if level == "error"} == {"scheduler", "background-tasks"}
    assert levels["site"] == levels["health-url"] == levels["retry-url"] == levels["sessions"] == levels["database"] == "ok"
    assert TOKEN not in said


@pytest.mark.django_db
def test_the_command_with_the_database_down():
    code, said, errors = real.manage("ops_readiness", DATABASE_URL=NO_DATABASE, OPS_BASE_URL=f"http://127.0.0.1:{closed_port()}")
    assert (code, errors) == (1, "")
    assert re.search(r"^error    database: The database cannot be reached: .*[Cc]onnection refused", said, re.MULTILINE)
    assert "More: docs/readiness.md#database\n" in said
    assert re.search(r"^warning  database: Not looked at without a database: database-version, migrations, ", said, re.MULTILINE)
    for key in ("debug", "static-files", "disk", "site", "waha"):
        assert f" {key}: " in said
    assert real.manage("ops_readiness", "--session", "ana", DATABASE_URL=NO_DATABASE)[0] == 2


# -- a message of one's own ----------------------------------------------------------------------------------------------------


def try_message(address="+12025550101", *, session="", stop=None, say=None, **changes) -> tuple[Verdict, list[str]]:
    said: list[str] = []

    def hear(sentence: str) -> None:
        said.append(sentence)
        if say:
            say(sentence)

    values = {"due_in": timedelta(minutes=1), "patience": timedelta(seconds=25), "look_every": timedelta(seconds=0.05), **changes}
    return only(trial.send_test(address, session=session, stop=stop or StopFlag(), say=hear, **values)), said


@pytest.mark.django_db
def test_what_keeps_a_test_message_from_being_made(fake):
    def refused(*arguments, **options):
        verdict, said = try_message(*arguments, **options)
        assert (verdict.level, said) == (Level.ERROR, [])
        assert not Campaign.objects.exists()
        return verdict.sentence

    assert refused() == "No session is connected."
    make_session(name="ana", channel="fake")
    assert refused() == "No scheduler is alive, so nothing would send it."
    alive()
    assert refused("12") == "This phone number has no country code. Write it with + and the country code, or choose a default region."
    assert refused(session="bea") == 'There is no session "bea".'
    make_session(name="bea", channel="waha", settings={"base_url": f"http://127.0.0.1:{closed_port()}", "session": "default"})
    assert refused() == "Several sessions are connected: ana, bea."
    assert refused("12025550101-1612345678@g.us", session="bea").startswith("This is a group or a channel")
    assert refused(session="bea").startswith("Session bea is not connected: WAHA does not answer at ")
    make_session(name="old", channel="telegraph")
    assert "telegraph" in refused(session="old")


@pytest.mark.django_db
def test_it_is_stopped_when_it_takes_too_long_when_somebody_interrupts_and_when_it_is_paused(fake):
    session = make_session(name="ana", channel="fake")
    alive()
    verdict, said = try_message(session=str(session.pk), patience=timedelta(seconds=0.1))
    assert re.fullmatch(r"Waits for its time, \d\d:\d\d:\d\d\.", said[1])
    assert said[0].endswith(" to +120****0101 on session ana.")
    assert verdict.sentence.startswith("It was not sent within 0 s (scheduled by ")
    assert verdict.sentence.endswith("Its campaign was stopped: it will not be sent.")

    stop = StopFlag()
    verdict, _ = try_message(stop=stop, say=lambda sentence: setattr(stop, "requested", sentence.startswith("Waits")))
    assert verdict.sentence.startswith("It was interrupted (")

    def pause(sentence: str) -> None:
        if sentence.startswith("Waits"):
            transitions.pause(Campaign.objects.latest("pk").pk, reason="paused: by a test")

    verdict, _ = try_message(say=pause)
    assert verdict.sentence == "It did not go out (paused: by a test). Its campaign was stopped: it will not be sent."
    assert list(Campaign.objects.values_list("status", flat=True)) == [Campaign.Status.FAILED] * 3


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_ctrl_c_stops_it(tmp_path):
    make_session(name="ana")
    alive(interval=timedelta(minutes=1))
    with real.processes(tmp_path) as run:
        command = run("ops_readiness", "--send-test", "+12025550101", OPS_BASE_URL=f"http://127.0.0.1:{closed_port()}")
        command.until_says("Waits for its time")
        command.signal(signal.SIGINT)
        assert command.wait() == 1
    assert re.search(
        r"^error    test-message: It was interrupted .* Its campaign was stopped: it will not be sent", command.said, re.MULTILINE
    )
    assert "Traceback" not in command.said
    assert Campaign.objects.get().status == Campaign.Status.FAILED


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_real_scheduler_sends_it_and_the_outcome_is_said(tmp_path):
    with Sandbox() as sandbox, real.processes(tmp_path) as run:
        config = {"base_url": sandbox.url, "session": "default", "engine": "NOWEB", "rate": 50}
        make_session(name="ana", channel="sandbox", settings=config)
        run("run_scheduler", "--interval", "0.1").until_says("scheduler started")
        soon = {"due_in": timedelta(seconds=0.6)}

        verdict, said = try_message(**soon)
        assert verdict.level is Level.OK, verdict
        assert re.fullmatch(r"The test message was sent, [0-5] s after its time\.", verdict.sentence)
        assert said[1].startswith("Waits for its time, ")
        [message] = sandbox.messages()
        assert (message["chatId"], message["text"][:31]) == ("12025550101@c.us", "Test message from Paceline, 202")
        campaign = Campaign.objects.get()
        assert re.match(r"Test message of 20\d\d-", campaign.name)
        log = DispatchLog.objects.get()
        assert (log.kind, log.status) == (DispatchLog.Kind.MESSAGE, "SENT")

        sandbox.script("500-no-lid")
        verdict, _ = try_message(**soon)
        assert verdict.sentence.startswith("The test message was refused: INVALID_RECIPIENT: ")
        sandbox.script("500-after-accept")
        verdict, _ = try_message(**soon)
        assert (verdict.level, verdict.sentence) == (Level.ERROR, "Nobody knows whether the test message arrived.")
        real.until(lambda: not Campaign.objects.exclude(status="COMPLETED").exists(), "completion")
    assert broken() == []

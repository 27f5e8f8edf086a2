"""What systemd, Docker, honcho, cron and make are told to run exists, takes the options it is given, and has the time it needs."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import honcho.manager
import pytest
import yaml
from django.conf import settings
from django.core.management import CommandError, get_commands, load_command_class
from gunicorn.config import Config
from honcho.environ import parse_procfile

from config.environment import VARIABLES

BASE: Path = settings.BASE_DIR
DEPLOY = BASE / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ALL_UNITS = DEPLOY / "systemd" / "paceline-.service.d" / "all.conf"
CRONTABS = [DEPLOY / "crontab", DEPLOY / "crontab.processes"]
COMPOSE: dict[str, Any] = yaml.safe_load((BASE / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "paceline"}
NOT_OURS = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "WHATSAPP_DEFAULT_ENGINE"}  # of the images of PostgreSQL and WAHA
EXPOSURE = 15  # tenths; systemd 252 says 1.4 for each unit
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")

by_name = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
by_service = pytest.mark.parametrize("name", sorted(OURS))


def assert_can_run(command: str) -> None:
    """`command` as a shell reads it: each part of it is a command of manage.py, gunicorn or a file of ours, with options that it takes."""
    for part in re.split(r"&&|\|", command):
        words = [word for word in shlex.split(part) if word != "exec"]
        if "manage.py" in words:
            assert_manage_takes(words[words.index("manage.py") + 1 :])
        elif "gunicorn" in words:
            Config().parser().parse_args(words[words.index("gunicorn") + 1 :])  # exits when it does not know an option
            assert (BASE / words[words.index("--config") + 1]).exists()
        elif words and words[0].endswith("python") and words[1].endswith(".py"):
            assert (BASE / words[1]).exists()


def assert_manage_takes(words: list[str]) -> None:
    name, *options = [re.sub(r"^>.*|^\d>.*", "", word) for word in words]
    assert name in get_commands(), name
    app = get_commands()[name]
    command = load_command_class(app, name) if isinstance(app, str) else app
    command.create_parser("manage.py", name).parse_args([option for option in options if option])


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def value(unit: Path, key: str) -> str:
    found = re.findall(rf"^{key}=(.+)$", unit.read_text() + ALL_UNITS.read_text(), re.MULTILINE)
    assert len(found) == 1, (unit.name, key, found)
    return found[0]


def test_a_command_that_is_not_there_or_takes_no_such_option_is_found():
    for wrong in ("python manage.py no_such_thing", "python manage.py run_scheduler --twice", "python -m gunicorn config.wsgi --no-such"):
        with pytest.raises((AssertionError, SystemExit, CommandError)):
            assert_can_run(wrong)


# -- make and honcho -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Procfile", "Makefile"])
def test_every_command_of_development_exists(name):
    called = re.findall(r"(?:manage\.py|\$\(MANAGE\)) ([a-z_]+)", (BASE / name).read_text())
    assert called
    assert not set(called) - set(get_commands())


def test_the_procfile_of_production_starts_what_the_units_start():
    lines = parse_procfile((DEPLOY / "Procfile.production").read_text()).processes
    assert {f"paceline-{name}" for name in lines} == {unit.stem for unit in UNITS} - {"paceline-retry"}
    for name, line in lines.items():
        assert_can_run(line)
        wanted = value(DEPLOY / "systemd" / f"paceline-{name}.service", "ExecStart").removeprefix("/opt/paceline/")
        assert line.split("exec ")[-1] == wanted
    assert "recover_stuck && exec" in lines["scheduler"]


def test_run_all_gives_a_message_the_time_to_end(monkeypatch):
    """honcho reads its patience when it stops things, and the file sets it before."""
    assert "KILL_WAIT" in honcho.manager.Manager.loop.__code__.co_names
    program = "import runpy, sys, honcho.command, honcho.manager as m; honcho.command.main = lambda: print(m.KILL_WAIT, *sys.argv[1:]);"
    program += "sys.argv[0] = 'deploy/run_all.py'; runpy.run_path('deploy/run_all.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], cwd=BASE, capture_output=True, text=True, check=True)
    patience, *words = done.stdout.split()
    assert int(patience) > settings.SEND_DEADLINE_SECONDS + 30
    assert Path(words[words.index("--procfile") + 1]) == DEPLOY / "Procfile.production"


# -- gunicorn ------------------------------------------------------------------------------------------------------------------


def test_gunicorn_takes_the_configuration():
    done = subprocess.run(
        [sys.executable, "-m", "gunicorn", "config.wsgi", "--config", "deploy/gunicorn.conf.py", "--check-config"],
        cwd=BASE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_access_log_never_has_the_query_of_a_call():
    """Where a hosted cron that can only GET a URL puts its token."""
    atoms = set(re.findall(r"%\((.+?)\)s", runpy.run_path(str(DEPLOY / "gunicorn.conf.py"))["access_log_format"]))
    assert "U" in atoms
    assert not atoms & {"r", "q", "f", "a"}  # request line, query, referer; the agent is of no use
    assert not [atom for atom in atoms if atom.startswith("{")]


# -- systemd -------------------------------------------------------------------------------------------------------------------


@by_name
def test_every_command_of_a_unit_exists(unit):
    commands = re.findall(r"^Exec\w+=/opt/paceline/(.+)$", unit.read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        assert_can_run(command)


@by_name
def test_a_unit_comes_back_and_ends_in_order(unit):
    assert (value(unit, "Restart"), value(unit, "KillMode"), value(unit, "StartLimitIntervalSec")) == ("always", "mixed", "0")


def test_systemd_waits_longer_than_the_work_may_take():
    def patience(name: str) -> int:
        return int(value(DEPLOY / "systemd" / f"paceline-{name}.service", "TimeoutStopSec"))

    assert patience("scheduler") > settings.SEND_DEADLINE_SECONDS + 30
    assert patience("worker") > settings.Q_CLUSTER["timeout"]
    assert patience("retry") * 1000 > settings.CAMPAIGN_RETRY_DAEMON_TIMEOUT_MS
    assert patience("web") > runpy.run_path(str(DEPLOY / "gunicorn.conf.py"))["graceful_timeout"]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as they would lie in /etc/systemd/system, with an interpreter that exists on this machine."""
    folder = tmp_path / "system"
    shutil.copytree(DEPLOY / "systemd", folder)
    for unit in folder.glob("*.service"):
        unit.write_text(unit.read_text().replace("/opt/paceline/.venv/bin/python", sys.executable))
    return folder


def analyze(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", "--no-pager", *map(str, words)], capture_output=True, text=True, check=False)


@needs_systemd
@by_name
def test_systemd_understands_every_line_of_a_unit(installed, unit):
    done = analyze("verify", "--recursive-errors=no", installed / unit.name)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("file", ["paceline-web.service", "paceline-.service.d/all.conf"])
def test_a_line_that_systemd_does_not_understand_is_found(installed, file):
    broken = installed / file
    broken.write_text(broken.read_text().replace("[Service]", "[Service]\nRestartt=always"))
    assert "Restartt" in analyze("verify", "--recursive-errors=no", installed / "paceline-web.service").stderr


@needs_systemd
@by_name
def test_a_unit_may_do_little(installed, unit):
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", installed / unit.name)
    assert done.returncode == 0, done.stdout
    (installed / "paceline-.service.d" / "all.conf").unlink()
    assert analyze("security", "--offline=true", f"--threshold={EXPOSURE}", installed / unit.name).returncode != 0


# -- Docker --------------------------------------------------------------------------------------------------------------------


def commands_of(service: dict[str, Any]) -> str:
    words = service["command"]
    return words[2] if words[:2] == ["sh", "-c"] else shlex.join(words)


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest), with continued lines joined and comments dropped."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (BASE / "Dockerfile").read_text(), flags=re.MULTILINE))
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line.strip()]


@by_service
def test_every_command_of_compose_exists(name):
    assert_can_run(commands_of(OURS[name]))


def test_compose_runs_what_systemd_runs():
    assert {f"paceline-{name}" for name in OURS} - {"paceline-migrate"} == {unit.stem for unit in UNITS}
    for unit in UNITS:
        words = value(unit, "ExecStart").split()[1:]
        assert commands_of(OURS[unit.stem.removeprefix("paceline-")]).split("python ")[-1].startswith(" ".join(words))
    assert commands_of(OURS["scheduler"]).startswith("python manage.py recover_stuck && exec ")


def test_compose_waits_as_long_as_systemd():
    for unit in UNITS:
        assert seconds(OURS[unit.stem.removeprefix("paceline-")]["stop_grace_period"]) == int(value(unit, "TimeoutStopSec"))


@by_service
def test_a_container_may_do_little_and_comes_back(name):
    service = OURS[name]
    assert (service["read_only"], service["cap_drop"], service["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])
    assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")
    if name != "migrate":
        assert service["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_only_the_site_is_published_and_only_to_this_machine():
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert published == {"web": ["127.0.0.1:8000:8000"]}


def test_every_volume_of_compose_is_declared():
    used = {volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])


def test_every_variable_of_compose_is_read_by_somebody():
    set_there = {name for service in COMPOSE["services"].values() for name in service.get("environment", {})}
    example = set(re.findall(r"^([A-Z_]+)=", (DEPLOY / "compose.env.example").read_text(), re.MULTILINE))
    interpolated = set(re.findall(r"\$\{([A-Z_]+)", (BASE / "compose.yaml").read_text()))
    assert (set_there | example) - set(VARIABLES) == NOT_OURS
    assert interpolated <= example
    assert {"SECRET_KEY", "CREDENTIALS_KEYS", "HEALTHCHECK_TOKEN", "CAMPAIGN_RETRY_JOB_TOKEN"} <= example


def test_no_secret_stands_in_compose_or_in_the_image():
    """The values of .env alone; what the Dockerfile sets is for one command, and nothing is kept of it."""
    for service in COMPOSE["services"].values():
        for name, given in service.get("environment", {}).items():
            if re.search("PASSWORD|KEY|TOKEN|DATABASE_URL", name):
                assert "${" in given
    kept = [rest for instruction, rest in dockerfile() if instruction in {"ENV", "ARG"}]
    assert kept == ["PYTHONUNBUFFERED=1"]


def test_the_health_checks_are_calls_that_hear_a_bad_answer():
    """The program of each is run against a server that says 200, and one that says 503."""
    for name, path in {"web": "/api/health", "scheduler": "/health/scheduler"}.items():
        _, _, flag, program, url = OURS[name]["healthcheck"]["test"]
        assert url.endswith(path) and flag == "-c"
        for status in (200, 503):
            with answering(status) as (base, calls):
                done = subprocess.run([sys.executable, "-c", program, base + path], capture_output=True, check=False)
            assert (done.returncode == 0) == (status == 200)
            assert calls[0][0:2] == ("GET", path)
            assert calls[0][2]["X-Forwarded-Proto"] == "https"


def test_the_hosts_that_the_health_checks_name_are_allowed():
    hosts = {re.search(r"http://([\w.]+):8000/", OURS[name]["healthcheck"]["test"][-1])[1] for name in ("web", "scheduler")}
    assert hosts <= set(OURS["web"]["environment"]["ALLOWED_HOSTS"].split(","))


def context() -> list[Path]:
    """What .dockerignore lets through, for the few kinds of line that it has."""
    lines = [line for line in (BASE / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*" and lines[-1] == "**/__pycache__" and all(line.startswith("!") for line in lines[1:-1])
    return [BASE / line[1:] for line in lines[1:-1]]


def test_the_image_has_what_it_needs_and_nothing_else(tmp_path):
    """The files of the build's context alone: collectstatic as the Dockerfile says, every command of compose, and no key left behind."""
    for path in context():
        target = tmp_path / path.relative_to(BASE)
        target.parent.mkdir(parents=True, exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(path, target, ignore=ignored) if path.is_dir() else shutil.copy(path, target)
    sources = [rest.split()[:-1] for instruction, rest in dockerfile() if instruction == "COPY"]
    assert all((tmp_path / source).exists() for words in sources for source in words)
    run = next(rest for instruction, rest in dockerfile() if instruction == "RUN" and "collectstatic" in rest)
    bare = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", run], cwd=tmp_path, env=bare, check=True, capture_output=True, text=True)
    assert (tmp_path / "staticfiles" / "staticfiles.json").exists()
    assert not (tmp_path / "var").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {
        *("manage.py", "requirements.txt", "config", "sessions_app", "campaigns", "dispatch", "templates", "deploy", "staticfiles"),
        "__pycache__",
    }
    production = dict(re.findall(r"(\w+)=(\S+)", run.partition(" python ")[0])) | {"DATABASE_URL": "postgres://a:b@127.0.0.1:1/c"}
    _, *starts = yaml.safe_load(dict(dockerfile())["CMD"])
    for words in (["manage.py", "check"], [*starts, "--check-config"]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=bare | production, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    folders = [Path(folder) for folder in settings.TEMPLATES[0]["DIRS"]]
    assert all((tmp_path / folder.relative_to(BASE)).is_dir() for folder in folders)


def test_the_image_does_not_run_as_root():
    instructions = dockerfile()
    assert instructions.index(("USER", "paceline")) > max(n for n, (instruction, _) in enumerate(instructions) if instruction == "RUN")
    assert_can_run(" ".join(yaml.safe_load(dict(instructions)["CMD"])))


# -- cron ----------------------------------------------------------------------------------------------------------------------


def lines_of(crontab: Path) -> list[tuple[str, str]]:
    """(when, command) of each line."""
    lines = [line for line in crontab.read_text().splitlines() if line and not line.startswith("#")]
    return [(" ".join(line.split()[:5]), line.split(maxsplit=5)[5]) for line in lines]


@pytest.mark.parametrize("crontab", CRONTABS, ids=lambda crontab: crontab.name)
def test_every_line_of_a_crontab_can_be_run(crontab):
    assert lines_of(crontab)
    for when, command in lines_of(crontab):
        assert re.fullmatch(r"((\*|\d+-\d+|\d+)(/\d+)? ?){5}", when)
        assert "%" not in command  # cron takes it for a new line
        if "curl" not in command:
            assert command.startswith("cd /opt/paceline && ")
            flock = re.sub(r"^flock --nonblock \S+ ", "", command.removeprefix("cd /opt/paceline && "))
            assert_can_run(re.sub(r"2>&1|>/dev/null", "", flock))


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[tuple[str, str, dict[str, str]]]]]:
    """A server that answers every call with one status: (its address, the calls it got)."""
    calls: list[tuple[str, str, dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append((self.command, self.path, dict(self.headers)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", calls
        server.shutdown()


@needs_curl
@pytest.mark.parametrize("status", [200, 401, 503])
def test_the_call_of_cron_sends_its_token_from_a_file_and_hears_a_refusal(tmp_path, status):
    (tmp_path / "job-token").write_text("Authorization: Bearer a-token-of-sixteen\n")
    command = next(command for _, command in lines_of(DEPLOY / "crontab") if command.startswith("curl"))
    with answering(status) as (base, calls):
        here = command.replace("http://127.0.0.1:8000", base).replace("/opt/paceline/var", str(tmp_path))
        done = subprocess.run(shlex.split(here), capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (status == 200)
    assert bool(done.stdout + done.stderr) == (status != 200)  # cron mails what is written
    ((method, path, headers),) = calls
    assert (method, path, headers["Authorization"]) == ("POST", "/api/jobs/scheduler", "Bearer a-token-of-sixteen")


def test_the_paths_of_the_units_are_one_folder():
    """A unit that was moved in part starts half of an installation."""
    everything = "".join(file.read_text() for file in (*UNITS, ALL_UNITS, *CRONTABS))
    assert set(re.findall(r"/opt/(\w+)", everything)) == {"paceline"}

"""What docs/operations.md says of alerts, metrics and backups is so: the names are those of the code, and the commands are run."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from django.conf import settings
from django.db import connection
from django.urls import resolve

from config.embedded_postgres import server
from dispatch import alerts, jobs
from dispatch.loop import DATABASE_IS_AWAY
from dispatch.metrics import exposition
from dispatch.models import Alert, DispatchLog, Job
from tests.factories import make_campaign, make_log, make_run, make_step
from tests.processes import database_url, manage

BASE: Path = settings.BASE_DIR
PAGE = (BASE / "docs" / "operations.md").read_text()


def part(heading: str) -> str:
    level = "#" * (2 if f"\n## {heading}\n" in PAGE else 3)
    return re.split(rf"\n#{{2,{len(level)}}} ", PAGE.split(f"\n{level} {heading}\n")[1])[0]


def blocks(heading: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.+?)^```", part(heading), re.MULTILINE | re.DOTALL)


# -- alerts --------------------------------------------------------------------------------------------------------------------


def kinds_in_the_code() -> set[str]:
    code = "".join(file.read_text() for file in (BASE / "dispatch").rglob("*.py"))
    return {*re.findall(r'\balert\(\s*"([^"]+)"', code), DATABASE_IS_AWAY}


def test_the_policy_names_every_alert_and_no_other():
    rows = re.findall(r"^\| `([a-z ]+)` \| .+ \| (wake|day)", part("Alert policy"), re.MULTILINE)
    assert [kind for kind, _ in rows if kind not in kinds_in_the_code()] == []
    assert kinds_in_the_code() - {kind for kind, _ in rows} == set()
    assert "scheduler dead" in kinds_in_the_code()


def test_the_policy_says_how_often():
    assert alerts.NOT_AGAIN_FOR.total_seconds() == 3600
    assert "at most once an hour for each subject" in part("Alert policy")


# -- monitoring ----------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_every_metric_of_the_rules_is_there():
    make_log(make_run(make_step(make_campaign(status="RUNNING"))))
    Job.objects.create(name=jobs.RETRY)
    scrape, rules = (yaml.safe_load(block) for block in blocks("Monitoring", "yaml"))
    assert scrape["scrape_configs"][0]["authorization"]["credentials_file"]
    text = exposition().decode()
    families = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    named = {name for expression in expressions for name in re.findall(r"paceline_\w+", expression)}
    assert len(named) >= 5
    assert named - families.keys() == set()
    for expression in expressions:
        for name in re.findall(r"(?:increase|rate)\((paceline_\w+)", expression):
            assert families[name] == "counter"


def test_every_address_that_is_named_is_served():
    for path in set(re.findall(r"`(?:GET |POST )?(/(?:api|health|metrics)[\w/-]*)[?`]", PAGE)):
        assert resolve(path)


# -- backup and restore --------------------------------------------------------------------------------------------------------


@pytest.fixture
def restored() -> Iterator[str]:
    name = f"{connection.settings_dict['NAME']}_restored"
    yield name
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_what_was_backed_up_comes_back_as_it_was(tmp_path, restored):
    """The commands of the page, word for word but for names, folders and the user: dumped, restored, and found sound by the doctor."""
    run = make_run(make_step(make_campaign(status="PAUSED")))
    sent = make_log(run, status=DispatchLog.Status.SENT)
    waiting = make_log(run, status=DispatchLog.Status.PENDING)
    Alert.objects.create(kind="campaign paused", subject=f"campaign {run.campaign_id}")
    database = connection.get_connection_params()
    words = {
        "runuser -u postgres -- ": "",
        "--owner=postgres ": "",
        "/var/backups/paceline": str(tmp_path / "backups"),
        "paceline_restored": restored,
        "--owner=paceline": f"--owner={database['user']}",
        "--role=paceline": f"--role={database['user']}",
        " paceline\n": f" {database['dbname']}\n",
    }
    folder = server.bin_folder()
    address = {"PGHOST": str(database.get("host", "")), "PGPORT": str(database.get("port", "")), "PGUSER": database["user"]}
    login = {name: value for name, value in address.items() if value} | {"PGPASSWORD": database.get("password") or ""}
    for block in blocks("Backup and restore"):
        for written, here in words.items():
            block = block.replace(written, here)
        environment = os.environ | login | {"PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-ec", block], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "backups").stat().st_mode & 0o777 == 0o700
    there = database | {"dbname": restored}
    with psycopg.connect(**{name: there[name] for name in ("host", "port", "user", "dbname", "password") if there.get(name)}) as other:
        rows = other.execute("SELECT id, status FROM dispatch_dispatchlog ORDER BY id").fetchall()
        ((kind,),) = other.execute("SELECT kind FROM dispatch_alert").fetchall()
    assert (rows, kind) == ([(sent.pk, "SENT"), (waiting.pk, "PENDING")], "campaign paused")
    url = database_url().replace(f"/{database['dbname']}", f"/{restored}")
    assert manage("migrate", "--check", DATABASE_URL=url)[0] == 0
    code, said, _ = manage("doctor", DATABASE_URL=url)
    assert (code, "accepted-once" in said) == (0, True), said

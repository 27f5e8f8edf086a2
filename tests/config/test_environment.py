import base64
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from config import checks
from config.environment import VARIABLES, Environment, new_credentials_key, new_secret_key

KEY = base64.urlsafe_b64encode(bytes(32)).decode()  # the same in every process of a run
USABLE = {
    "SECRET_KEY": ["$starts-with-a-dollar"],
    "DEBUG": ["true", "False", "1", "off"],
    "ALLOWED_HOSTS": ["a.example.org, b.example.org"],
    "CSRF_TRUSTED_ORIGINS": ["https://a.example.org,https://b.example.org"],
    "SECURE_SSL_REDIRECT": ["yes"],
    "DATABASE_URL": ["postgres://u:p@h:5432/db", "postgresql://h/db", "postgres://u@:6432/db?host=/run/postgresql"],
    "TIME_ZONE": ["America/Sao_Paulo", "UTC"],
    "LANGUAGE_CODE": ["pt-BR", "en-us", "es"],
    "DEFAULT_REGION": ["BR", ""],
    "CREDENTIALS_KEYS": [KEY, f"{KEY}, {KEY}"],
    "WAHA_API_URL": ["http://127.0.0.1:3900", "https://waha.example.org/base"],
    "WAHA_API_KEY": ["anything"],
    "SCHEDULE_GRACE_SECONDS": ["0", "600"],
    "SEND_DEADLINE_SECONDS": ["1"],
    "RECOVERY_POLICY": ["pause", "continue"],
    "ENGINE_DRIVER": ["service", "schedule"],
    "CAMPAIGN_RETRY_JOB_TOKEN": ["a-token-of-sixteen", "", "senha-ção-com-dezesseis"],
    "CAMPAIGN_RETRY_JOB_URL": ["https://paceline.example.org/api/jobs/campaign-retry", ""],
    "CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN": ["true"],
    "CAMPAIGN_RETRY_BATCH_SIZE": ["1"],
    "CAMPAIGN_RETRY_MAX_CAMPAIGNS": ["1"],
    "CAMPAIGN_RETRY_JOB_LOCK_TTL_SECONDS": ["10"],
    "CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS": ["1"],
    "CAMPAIGN_RETRY_DAEMON_TIMEOUT_MS": ["100"],
    "CAMPAIGN_RETRY_TENANT_ID": ["acme"],
    "CAMPAIGN_RETRY_CAMPAIGN_ID": ["", "7"],
    "CAMPAIGN_RETRY_ALERT_WEBHOOK_URL": ["https://hooks.example.org/a"],
    "CAMPAIGN_RETRY_ALERT_ON_FAILURE": ["false"],
    "ALERT_URLS": ["", "slack://a/b/c, mailto://u:p@example.org?to=a@example.org,b@example.org"],
    "HEALTHCHECK_TOKEN": ["a-token-of-sixteen"],
    "RETRY_WORKER_STALE_MINUTES": ["1"],
    "WEBHOOK_FAILURE_RATE_THRESHOLD_PER_HOUR": ["1"],
    "PUBLIC_URL": ["https://paceline.example.org", ""],
    "OPS_BASE_URL": ["https://paceline.example.org"],
    "REDIS_URL": ["redis://127.0.0.1:6379/0", "unix:///run/redis.sock"],
    "EMAIL_URL": ["smtp+tls://u:p@mail.example.org:587", "consolemail://"],
    "SENTRY_DSN": ["https://key@sentry.example.org/4"],
    "LOG_LEVEL": ["DEBUG"],
}
NOT_USABLE = {
    "SECRET_KEY": [],  # any text is a key
    "DEBUG": ["ture", "", "2"],
    "ALLOWED_HOSTS": [],
    "CSRF_TRUSTED_ORIGINS": ["a.example.org", "https://"],
    "SECURE_SSL_REDIRECT": ["maybe"],
    "DATABASE_URL": ["postgres:/x", "mysql://h/db", "postgres://h", "postgres://u:pass/word@h/db", "postgres://h:port/db", "foo"],
    "TIME_ZONE": ["", "Mars/Phobos", "Europe", "../etc/passwd", "BRT"],
    "LANGUAGE_CODE": ["", "klingon", "xx"],
    "DEFAULT_REGION": ["Brazil", "XX", "+55"],
    "CREDENTIALS_KEYS": ["not-a-key", f"{KEY},short"],
    "WAHA_API_URL": ["127.0.0.1:3900", "http://", "ftp://h"],
    "WAHA_API_KEY": [],
    "SCHEDULE_GRACE_SECONDS": ["abc", "-1", "1.5", "", "1_0"],
    "SEND_DEADLINE_SECONDS": ["0", "abc", "30s"],
    "RECOVERY_POLICY": ["Pause", "restart", ""],
    "ENGINE_DRIVER": ["cron"],
    "CAMPAIGN_RETRY_JOB_TOKEN": ["short", "a token of sixteen characters"],
    "CAMPAIGN_RETRY_JOB_URL": ["paceline.example.org"],
    "CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN": ["perhaps"],
    "CAMPAIGN_RETRY_BATCH_SIZE": ["0", ""],
    "CAMPAIGN_RETRY_MAX_CAMPAIGNS": ["0"],
    "CAMPAIGN_RETRY_JOB_LOCK_TTL_SECONDS": ["9"],
    "CAMPAIGN_RETRY_DAEMON_INTERVAL_SECONDS": ["0"],
    "CAMPAIGN_RETRY_DAEMON_TIMEOUT_MS": ["99"],
    "CAMPAIGN_RETRY_TENANT_ID": [],
    "CAMPAIGN_RETRY_CAMPAIGN_ID": ["0", "abc"],
    "CAMPAIGN_RETRY_ALERT_WEBHOOK_URL": ["hooks"],
    "CAMPAIGN_RETRY_ALERT_ON_FAILURE": [""],
    "ALERT_URLS": ["ops@example.org", "slack://"],
    "HEALTHCHECK_TOKEN": ["short"],
    "RETRY_WORKER_STALE_MINUTES": ["0"],
    "WEBHOOK_FAILURE_RATE_THRESHOLD_PER_HOUR": ["0"],
    "PUBLIC_URL": ["paceline.example.org"],
    "OPS_BASE_URL": ["localhost:8000"],
    "REDIS_URL": ["localhost:6379", "redis://"],
    "EMAIL_URL": ["foo", "http://mail", "smtp://u:p@h:port"],
    "SENTRY_DSN": ["sentry.example.org", "https://sentry.example.org/4"],
    "LOG_LEVEL": ["verbose", "info"],
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def environment(folder: Path) -> Environment:
    return Environment(folder / ".env", folder / "var")


def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=settings.BASE_DIR, env=os.environ | variables, capture_output=True, text=True)


def test_the_tables_above_know_every_variable():
    assert set(USABLE) == set(NOT_USABLE) == set(VARIABLES)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in USABLE.items() for value in values])
def test_usable(name, value, monkeypatch, tmp_path):
    monkeypatch.setenv(name, value)
    environment_of = {"SECRET_KEY": "s", "ALLOWED_HOSTS": "h", "CREDENTIALS_KEYS": KEY} if name == "DEBUG" else {}
    for other, text in environment_of.items():
        monkeypatch.setenv(other, text)
    environment(tmp_path)[name]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NOT_USABLE.items() for value in values])
def test_a_value_that_cannot_be_meant_is_refused_by_name(name, value, monkeypatch, tmp_path):
    monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured, match=rf"^{name} in the environment is not usable: .+; see \.env\.example$"):
        environment(tmp_path)


def test_a_refusal_repeats_no_secret(monkeypatch, tmp_path):
    for name in ("DATABASE_URL", "CREDENTIALS_KEYS", "EMAIL_URL", "REDIS_URL", "SENTRY_DSN"):
        monkeypatch.setenv(name, "foo://user:hunter2/x@host:hunter2")
        with pytest.raises(ImproperlyConfigured) as refusal:
            environment(tmp_path)
        assert "hunter2" not in str(refusal.value)
        monkeypatch.delenv(name)


def test_lists_lose_their_spaces_and_a_dollar_is_a_character(monkeypatch, tmp_path):
    monkeypatch.setenv("ALLOWED_HOSTS", " a.example.org , b.example.org,")
    monkeypatch.setenv("SECRET_KEY", "$HOME")
    found = environment(tmp_path)
    assert found["ALLOWED_HOSTS"] == ["a.example.org", "b.example.org"]
    assert found["SECRET_KEY"] == "$HOME"


def test_the_example_lists_every_variable_with_its_default():
    written = re.findall(r"^([A-Z_]+)=(.*)$", (settings.BASE_DIR / ".env.example").read_text(), re.MULTILINE)
    assert dict(written) == {name: default for name, (default, _) in VARIABLES.items()}
    assert len(written) == len(VARIABLES)


def test_production_names_everything_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("DEBUG", "false")
    with pytest.raises(ImproperlyConfigured, match="SECRET_KEY, ALLOWED_HOSTS, CREDENTIALS_KEYS"):
        environment(tmp_path)
    for name in ("SECRET_KEY", "ALLOWED_HOSTS", "CREDENTIALS_KEYS"):
        monkeypatch.setenv("SECRET_KEY", "s")
        monkeypatch.setenv("ALLOWED_HOSTS", "h")
        monkeypatch.setenv("CREDENTIALS_KEYS", KEY)
        environment(tmp_path)
        monkeypatch.setenv(name, "")
        with pytest.raises(ImproperlyConfigured, match=f"must be set: {name};"):
            environment(tmp_path)
    assert not (tmp_path / "var").exists(), "nothing is generated in production"


def test_the_command_line_gives_one_sentence():
    refused = start("check", RECOVERY_POLICY="restart")
    assert refused.returncode == 1
    assert (
        refused.stderr
        == "paceline: RECOVERY_POLICY in the environment is not usable: it must be one of pause, continue; see .env.example\n"
    )
    assert start("no_such_command", DEBUG="false").stderr.startswith("paceline: with DEBUG=false these must be set: SECRET_KEY")


def test_generated_keys_are_kept_and_private(tmp_path):
    first = environment(tmp_path).secret("SECRET_KEY", new_secret_key)
    keys = environment(tmp_path).secret("CREDENTIALS_KEYS", new_credentials_key)
    assert environment(tmp_path).secret("SECRET_KEY", new_secret_key) == first
    assert environment(tmp_path).secret("CREDENTIALS_KEYS", new_credentials_key) == keys
    assert Fernet(keys[0])
    for file in (tmp_path / "var").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(file.name for file in (tmp_path / "var").iterdir()) == ["credentials_keys", "secret_key"]


@pytest.mark.parametrize("content", ["", "rubbish"])
def test_a_damaged_key_file_is_named_and_left_alone(content, tmp_path):
    kept = tmp_path / "var" / "credentials_keys"
    kept.parent.mkdir()
    kept.write_text(content)
    with pytest.raises(ImproperlyConfigured, match=re.escape(str(kept))):
        environment(tmp_path).secret("CREDENTIALS_KEYS", new_credentials_key)
    assert kept.read_text() == content


def test_processes_that_start_together_agree_on_one_key(tmp_path):
    script = """
import sys, pathlib
from config.environment import Environment
folder = pathlib.Path(sys.argv[1])
environment = Environment(folder / ".env", folder / "var")
print("ready", flush=True)
sys.stdin.readline()
import secrets
print(environment.secret("SECRET_KEY", lambda: secrets.token_hex(16)))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=settings.BASE_DIR, **pipes) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all of them wait here
        process.stdin.write("\n")
        process.stdin.flush()
    assert len({process.communicate()[0] for process in processes}) == 1


def test_env_file_is_read_and_the_process_goes_first(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("TIME_ZONE=Europe/Lisbon\nLOG_LEVEL=ERROR\n")
    monkeypatch.setenv("LOG_LEVEL", "DEBUG")
    found = environment(tmp_path)
    del os.environ["TIME_ZONE"]  # read_env put it there
    assert (found["TIME_ZONE"], found["LOG_LEVEL"]) == ("Europe/Lisbon", "DEBUG")


def test_a_misspelt_name_in_env_is_pointed_at(tmp_path, settings):
    settings.ENV_FILE = tmp_path / ".env"
    assert checks.unread_settings() == []
    settings.ENV_FILE.write_text("# ALOWED=1\n\nDEBUG=true\nexport TIME_ZONE=UTC\nALOWED_HOSTS=x\nFROBNICATE=1\nSECRET_KEY = spaced\n")
    found = [(warning.msg, warning.hint) for warning in checks.unread_settings()]
    assert [message for message, _ in found] == [
        f"{name} in .env is read by nothing" for name in ("ALOWED_HOSTS", "FROBNICATE", "SECRET_KEY")
    ]
    assert found[0][1] == "Did you mean ALLOWED_HOSTS?"
    assert "written NAME=value" in found[1][1]


def test_django_runs_the_check():
    from django.core.checks import registry

    assert checks.unread_settings in registry.registry.registered_checks

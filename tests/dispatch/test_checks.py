"""What manage.py check says about the jobs over HTTP and the alerts; and that a good installation hears nothing."""

import pytest

from config.environment import new_credentials_key, new_secret_key
from dispatch.checks import TAG, operations
from tests.processes import manage

WELL = {
    "DEBUG": False,
    "CAMPAIGN_RETRY_JOB_TOKEN": "a-token-of-sixteen",
    "HEALTHCHECK_TOKEN": "another-of-sixteen",
    "CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN": False,
    "ALERT_URLS": ["json://127.0.0.1"],
    "CAMPAIGN_RETRY_ALERT_WEBHOOK_URL": "",
}
CASES = {
    "all is well": ({}, []),
    "no token of the jobs": ({"CAMPAIGN_RETRY_JOB_TOKEN": ""}, ["dispatch.W001"]),
    "no token of the health": ({"HEALTHCHECK_TOKEN": ""}, ["dispatch.W002"]),
    "tokens in the query": ({"CAMPAIGN_RETRY_ALLOW_QUERY_TOKEN": True}, ["dispatch.W003"]),
    "nobody is told": ({"ALERT_URLS": []}, ["dispatch.W004"]),
    "the webhook is told": ({"ALERT_URLS": [], "CAMPAIGN_RETRY_ALERT_WEBHOOK_URL": "https://hooks.example.org/a"}, []),
    "development needs no tokens": ({"DEBUG": True, "CAMPAIGN_RETRY_JOB_TOKEN": "", "HEALTHCHECK_TOKEN": ""}, []),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_warned_about(name, settings):
    changes, expected = CASES[name]
    for variable, value in (WELL | changes).items():
        setattr(settings, variable, value)
    found = operations()
    assert [message.id for message in found] == expected
    assert all(message.hint for message in found)


@pytest.mark.django_db
def test_the_command_warns_on_deploy_alone_and_is_silent_when_all_is_set():
    empty = {"CAMPAIGN_RETRY_JOB_TOKEN": "", "HEALTHCHECK_TOKEN": "", "ALERT_URLS": "", "CAMPAIGN_RETRY_ALERT_WEBHOOK_URL": ""}
    assert manage("check", "--fail-level", "WARNING", DEBUG="true", **empty)[0] == 0

    secrets = {"SECRET_KEY": new_secret_key(), "CREDENTIALS_KEYS": new_credentials_key()}
    production = {"DEBUG": "false", "ALLOWED_HOSTS": "paceline.example.org", "SECURE_SSL_REDIRECT": "true", **secrets}
    arguments = ("check", "--deploy", "--tag", TAG, "--fail-level", "WARNING")
    code, _, errors = manage(*arguments, **production, **empty)
    assert code == 1
    assert [f"dispatch.W00{n}" in errors for n in (1, 2, 3, 4)] == [True, True, False, True]
    well = {"CAMPAIGN_RETRY_JOB_TOKEN": "a-token-of-sixteen", "HEALTHCHECK_TOKEN": "another-of-sixteen", "ALERT_URLS": "json://127.0.0.1"}
    assert manage(*arguments, **production, **well)[0] == 0

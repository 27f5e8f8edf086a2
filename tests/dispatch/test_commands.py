"""The commands as scripts see them: real processes, exit codes, what is on stdout and what on stderr."""

import json
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from campaigns.models import Campaign
from tests.factories import make_campaign, make_log, make_recipients, make_run, make_session, make_step
from tests.processes import database_url, manage

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
S = Campaign.Status
KEYS = {"id", "name", "session", "status", "reason", "due_at", "planned", "sent", "failed", "unconfirmed", "skipped", "pending"}


def answered(*arguments: object) -> str:
    code, out, err = manage(*arguments)
    assert (code, err) == (0, "")
    return out


def refused(code: int, *arguments: object) -> str:
    """What is on stderr; nothing is on stdout."""
    found, out, err = manage(*arguments)
    assert (found, out) == (code, "")
    return err


@pytest.fixture
def campaign() -> Campaign:
    """On the dry-run channel, nothing missing."""
    session = make_session(name="Ana's phone", checked_at=timezone.now() + timedelta(minutes=1))
    campaign = make_campaign(name="Spring letter", session=session)
    make_step(campaign)
    make_recipients(2, campaign)
    return campaign


def test_a_campaign_from_start_to_stop(campaign):
    pk = campaign.pk
    assert json.loads(answered("campaign", "show", pk, "--json")).keys() == KEYS
    for verb, status in (("start", S.RUNNING), ("pause", S.PAUSED), ("resume", S.RUNNING), ("stop", S.FAILED)):
        shown = json.loads(answered("campaign", verb, pk, "--json"))
        assert (shown["id"], shown["name"], shown["session"], shown["status"]) == (pk, "Spring letter", "Ana's phone", status)
        assert "(command line)" in shown["reason"]
        assert Campaign.objects.get().status == status
    said = refused(1, "campaign", "resume", pk)
    assert '"Spring letter" is Stopped' in said
    assert "resume works from Paused" in said
    assert "stopped by" in said


def test_list_and_show_count_what_became_of_the_messages(campaign):
    run = make_run(campaign.steps.get(), rows_complete=True)
    for status in ("SENT", "UNCONFIRMED", "PENDING"):
        make_log(run, status=status)
    other = make_campaign()
    rows = json.loads(answered("campaign", "list", "--json"))
    assert [row["id"] for row in rows] == [campaign.pk, other.pk]
    assert {name: rows[0][name] for name in ("planned", "sent", "failed", "unconfirmed", "skipped", "pending")} == {
        "planned": 3, "sent": 1, "failed": 0, "unconfirmed": 1, "skipped": 0, "pending": 1,
    }  # fmt: skip
    text = answered("campaign", "list")
    assert len(text.splitlines()) == 2
    assert "Spring letter (Ana's phone)" in text
    assert "1/3 sent" in answered("campaign", "show", campaign.pk)


def test_nothing_to_list_is_no_error():
    assert json.loads(answered("campaign", "list", "--json")) == []


@pytest.mark.parametrize("verb", ["show", "start", "stop"])
def test_a_campaign_that_is_not_there_is_refused_with_a_sentence(verb):
    assert "There is no campaign 424242" in refused(1, "campaign", verb, 424242)


def test_what_cannot_start_says_why(campaign):
    campaign.recipients.all().delete()
    assert "no recipients" in refused(1, "campaign", "start", campaign.pk, "--json")
    assert Campaign.objects.get().status == S.DRAFT


@pytest.mark.parametrize("arguments", [("start",), ("list", "1"), ("show", "abc"), ("fly", "1"), ()], ids=str)
def test_wrong_usage(arguments):
    assert "campaign" in refused(2, "campaign", *arguments)


def test_recover_stuck_with_nothing_stuck():
    assert answered("recover_stuck") == "Nothing was stuck.\n"
    assert json.loads(answered("recover_stuck", "--json")) == {
        "campaigns_paused": 0, "steps_paused": 0, "logs_verified": 0, "logs_unconfirmed": 0, "logs_requeued": 0,
    }  # fmt: skip
    assert "unrecognized arguments" in refused(2, "recover_stuck", "--now")


@pytest.mark.parametrize(
    "words", [["run_scheduler", "--once"], ["recover_stuck"], ["campaign", "list"], ["import_recipients", "1", "manage.py"]]
)
def test_a_database_that_is_away_or_empty_is_one_sentence(words):
    code, said, complaint = manage(*words, DATABASE_URL="postgres://nobody@127.0.0.1:1/nothing")
    assert (code, said) == (1, "")
    assert complaint.startswith("paceline: the database cannot be reached: ")
    assert complaint.count("\n") == 1


def test_a_database_without_tables_is_one_sentence_that_says_what_to_run():
    empty = re.sub(r"/[^/?]+(?=\?|$)", "/template1", database_url())
    code, said, complaint = manage("campaign", "list", DATABASE_URL=empty)
    assert (code, said) == (1, "")
    assert complaint.startswith("paceline: the database is not up to date")
    assert complaint.endswith("run manage.py migrate first\n")

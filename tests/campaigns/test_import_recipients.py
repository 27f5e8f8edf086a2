import json

import pytest
from django.core.management import CommandError, call_command

from tests import factories

pytestmark = pytest.mark.django_db
LIST = "phone,name\n(202) 555-0101,Ana\n+12025550101,Ana\nbad,x\n14155552671,Foreign\n"


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(LIST)
    return path


def run(*arguments):
    return call_command("import_recipients", *map(str, arguments))


def test_it_says_what_became_of_each_row(listed, capsys):
    campaign = factories.make_campaign()
    run(campaign.pk, listed, "--region", "us")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "4 rows: 2 added, 1 repeated, 1 rejected."
    assert "line 4, rejected: 'bad'" in out[1]
    assert "line 3, repeated: '+12025550101'" in out[2]
    assert campaign.recipients.count() == 2


def test_the_region_is_that_of_the_settings_unless_named(listed, settings):
    campaign = factories.make_campaign()
    settings.DEFAULT_REGION = "US"
    run(campaign.pk, listed)
    assert campaign.recipients.first().address == "12025550101@c.us"


def test_json_is_the_whole_report_and_a_dry_run_adds_nobody(listed, capsys):
    campaign = factories.make_campaign()
    run(campaign.pk, listed, "--json", "--dry-run", "--region", "BR")
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["added"], report["dry_run"], report["variables"]) == (4, 2, True, [])
    assert [note["line"] for note in report["rejected"]] == [2, 4]
    assert report["noted"] == [{"line": 5, "value": "14155552671", "reason": "Read with its country code, +1."}]
    assert not campaign.recipients.exists()


def test_a_long_list_of_remarks_is_cut_in_the_text(tmp_path, capsys):
    path = tmp_path / "list.csv"
    path.write_text("phone\n" + "bad\n" * 60)
    run(factories.make_campaign().pk, path)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "60 rows: 0 added, 0 repeated, 60 rejected."
    assert out[-1] == "  and 10 more rejected (all of them with --json)."


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.csv", b"", "is empty"),
        ("list.xlsx", b"PK\x03\x04", "CSV UTF-8"),
        ("missing.csv", None, "cannot be read: No such file"),
        ("", None, "cannot be read: Is a directory"),
    ],
)
def test_what_is_refused_is_one_sentence_and_exit_code_1(tmp_path, name, content, sentence):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CommandError, match=sentence) as refusal:
        run(factories.make_campaign().pk, path)
    assert refusal.value.returncode == 1
    assert "\n" not in str(refusal.value)


def test_an_unknown_campaign_or_region_is_refused(listed):
    with pytest.raises(CommandError, match="There is no campaign 999999999"):
        run(999_999_999, listed)
    with pytest.raises(CommandError, match='"ZZ" is not a region'):
        run(factories.make_campaign().pk, listed, "--region", "zz")
    with pytest.raises(CommandError, match="There is no campaign"):
        run(10**30, listed)

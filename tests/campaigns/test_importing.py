import io
import threading
from pathlib import Path

import pytest
from django.db import connection, transaction

from campaigns.importing import ImportRefused, RowNote, import_recipients
from campaigns.models import Campaign, Recipient
from dispatch.models import Run
from sessions_app.providers.mock import MockProvider
from tests import factories

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

pytestmark = pytest.mark.django_db


class MailProvider(MockProvider):
    address_kind = "email"


class OwnIdsProvider(MockProvider):
    address_kind = "any"


def take(content, campaign=None, *, region="US", **options):
    content = content.encode() if isinstance(content, str) else content
    return import_recipients(campaign or factories.make_campaign(), io.BytesIO(content), region=region, **options)


def people(campaign):
    return list(campaign.recipients.values_list("address", "name", "metadata"))


@pytest.mark.parametrize("mark", ["", "\ufeff", "\ufeff\ufeff"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_each_form_of_csv_that_a_spreadsheet_saves(mark, delimiter, ending):
    campaign = factories.make_campaign()
    lines = ["phone,name,city", "+12025550101,João Açaí,São Paulo", "+12025550102,Zoë Müller,Köln"]
    report = take(mark + ending.join(lines).replace(",", delimiter), campaign)
    assert (report.rows, report.added, report.variables) == (2, 2, ("city",))
    assert people(campaign) == [
        ("12025550101@c.us", "João Açaí", {"city": "São Paulo"}),
        ("12025550102@c.us", "Zoë Müller", {"city": "Köln"}),
    ]


def test_a_mark_before_a_quoted_header_and_values_with_the_other_delimiters():
    campaign = factories.make_campaign()
    report = take('\ufeff"Telefone";"Nome";"Preço, total"\r\n"+12025550101";"Sample, Ana";"R$ 10,50"\r\n', campaign)
    assert report.variables == ("nome", "preço_total")
    assert people(campaign) == [("12025550101@c.us", "Sample, Ana", {"nome": "Sample, Ana", "preço_total": "R$ 10,50"})]


def test_quoted_line_breaks_and_quotes_and_a_file_without_a_last_line_end():
    campaign = factories.make_campaign()
    text = (
        'phone,name,note\n+12025550101,"Sample, Ana","one\ntwo\r\nthree"\n'
        '+12025550102,"He said ""hi""", "x"\r\nbad,Err,\n+12025550103,Caio,end'
    )
    report = take(text, campaign)
    assert [(r.name, r.metadata["note"]) for r in campaign.recipients.all()] == [
        ("Sample, Ana", "one\ntwo\r\nthree"),
        ('He said "hi"', "x"),
        ("Caio", "end"),
    ]
    assert [note.line for note in report.rejected] == [6]  # of the file, not of the records


def test_blank_lines_are_nothing_and_lines_are_those_of_the_file():
    report = take("\r\nphone,name\r\n\r\n+12025550101,Ana\r\n   \r\n,\r\n+12025550102,Bia\r\nnot a phone,Err\r\n\r\n,,\r\n")
    assert (report.rows, report.added) == (3, 2)
    assert [(note.line, note.value) for note in report.rejected] == [(8, "not a phone")]
    assert "letter" in report.rejected[0].reason


def test_one_person_in_many_spellings_is_added_once_and_the_first_row_wins():
    campaign = factories.make_campaign()
    report = take(
        "phone,name,city\n+12025550101,Ana,Rio\n12025550101,Ana,Rio\n(202) 555-0101,Ana Dois,Recife\n"
        "\u202a+1 202 555 0101\u202c,Ana,\n+1.202.555.0101,,Rio\n+52 55 5555 0100,Dora,\n+5215555550100,Dora,\n",
        campaign,
    )
    assert people(campaign) == [("12025550101@c.us", "Ana", {"city": "Rio"}), ("525555550100@c.us", "Dora", {})]
    assert (report.rows, report.added) == (7, 2)
    assert [(note.line, note.reason) for note in report.repeated] == [
        (3, "The same address as line 2, which is used."),
        (4, "The same address as line 2, which is used. Different here, and not taken over: city, name."),
        (5, "The same address as line 2, which is used. Different here, and not taken over: city."),
        (6, "The same address as line 2, which is used. Different here, and not taken over: name."),
        (8, "The same address as line 7, which is used."),
    ]


def test_the_same_list_twice_adds_nobody_and_says_what_would_differ():
    campaign = factories.make_campaign()
    take("phone,name,city\n+12025550101,Ana,Rio\n+12025550102,Bia,\n", campaign)
    before = people(campaign)
    report = take("phone,name,city\n2025550102,Bia,\n+1 202 555 0101,Ana,Recife\n+12025550103,Caio,\n", campaign)
    assert report.added == 1
    assert [(note.line, note.reason) for note in report.repeated] == [
        (2, "In the campaign already."),
        (3, "In the campaign already. Different here, and not taken over: city."),
    ]
    assert people(campaign)[:2] == before
    assert list(campaign.recipients.values_list("order", flat=True)) == [0, 1, 2]


def test_the_same_people_may_be_in_two_campaigns():
    take("phone\n+12025550101\n")
    assert take("phone\n+12025550101\n").added == 1


def test_the_order_continues_after_the_last():
    campaign = factories.make_campaign()
    factories.make_recipient(campaign, address="12025550177@c.us", order=41)
    take("phone\n+12025550102\n+12025550101\n", campaign)
    assert list(campaign.recipients.values_list("order", "address")) == [
        (41, "12025550177@c.us"),
        (42, "12025550102@c.us"),
        (43, "12025550101@c.us"),
    ]


def test_damaged_and_tricky_cells():
    campaign = factories.make_campaign()
    text = 'phone,name\n5.51196E+12,Lost\n5511955550101.0,Dot\n="5511955550103",Formula\n\'+5511955550104,Apostrophe\n14155552671,Foreign\n'
    report = take(text, campaign, region="BR")
    assert [address for address, *_ in people(campaign)] == [
        "5511955550101@c.us",
        "5511955550103@c.us",
        "5511955550104@c.us",
        "14155552671@c.us",
    ]
    assert [note.line for note in report.rejected] == [2]
    assert report.noted == (RowNote(6, "14155552671", "Read with its country code, +1."),)


@pytest.mark.parametrize(
    "header",
    [
        "phone",
        "Phone Number",
        "TELEFONE",
        "Telefone celular",
        "Teléfono",
        "Móvil",
        "WhatsApp",
        "Número",
        "numero",
        "chat id",
        "chat_id",
        "Address",
        "Celular",
    ],
)
def test_each_name_of_the_address_column(header):
    campaign = factories.make_campaign()
    report = take(f"name,{header},code\nAna,+12025550101,7\n", campaign)
    assert (report.added, report.variables) == (1, ("code",))
    assert people(campaign) == [("12025550101@c.us", "Ana", {"code": "7"})]


def test_the_surest_column_is_the_address_and_the_others_are_variables():
    campaign = factories.make_campaign()
    take("number,phone,e-mail,whatsapp\n12,(21) 5555-0101,ana@example.com,+12025550101\n", campaign)
    assert people(campaign) == [("12025550101@c.us", "", {"number": "12", "phone": "(21) 5555-0101", "e_mail": "ana@example.com"})]


def test_an_email_channel_takes_the_email_column(settings):
    settings.CHANNELS = {"mail": f"{__name__}.MailProvider"}
    campaign = factories.make_campaign(session=factories.make_session(channel="mail"))
    report = take("phone,E-mail,nombre\n+12025550101,Ana@EXAMPLE.com,Ana\n,two@example.com three@example.com,\n", campaign)
    assert people(campaign) == [("Ana@example.com", "Ana", {"phone": "+12025550101", "nombre": "Ana"})]
    assert len(report.rejected) == 1


def test_a_channel_with_ids_of_its_own(settings):
    settings.CHANNELS = {"own": f"{__name__}.OwnIdsProvider"}
    campaign = factories.make_campaign(session=factories.make_session(channel="own"))
    assert take("user id,name\nU0123ABC,Ana\n", campaign).added == 1
    with pytest.raises(ImportRefused, match="No column names the address"):
        take("U0123ABC,Ana\nU0456,Bia\n", campaign)


@pytest.mark.parametrize("group", ["120363000000000201@g.us", "12025550101-1601467283@g.us", "120363000000000201@newsletter"])
def test_groups_and_channels_need_a_permission(group):
    campaign = factories.make_campaign()
    report = take(f"phone\n{group}\n", campaign)
    assert report.added == 0
    assert "group or a channel" in report.rejected[0].reason
    campaign.allow_groups = True
    assert take(f"phone\n{group}\n", campaign).added == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("+12025550101,Sample, Ana", "3 values under 2 columns"),
        (f"+12025550101,{'x' * 201}", "201 characters"),
        (",Ana", "empty"),
        ("120363000000000201,Ana", "group id"),
        ("2025550101/2025550102,Ana", "more than one"),
    ],
)
def test_a_bad_row_is_told_and_the_others_go_in(row, reason):
    campaign = factories.make_campaign()
    report = take(f"phone,name\n{row}\n+12025550109,Bia\n", campaign)
    assert [name for _, name, _ in people(campaign)] == ["Bia"]
    assert (report.rejected[0].line, reason in report.rejected[0].reason) == (2, True)


def test_a_short_row_lacks_its_last_values_and_blank_values_are_none():
    campaign = factories.make_campaign()
    take("phone,name,a,b\n+12025550101\n+12025550102,,\u00a0,0\n", campaign)
    assert [metadata for *_, metadata in people(campaign)] == [{}, {"b": "0"}]


def test_columns_without_a_name_are_ignored_while_they_are_empty():
    assert take("phone,name,,\n+12025550101,Ana,,\n").variables == ()


def test_the_line_that_excel_writes_for_its_separator_is_no_header():
    campaign = factories.make_campaign()
    report = take("sep=;\r\nphone;name\r\n+12025550101;Ana\r\nbad;x\r\n", campaign)
    assert (report.added, report.rejected[0].line) == (1, 4)


def sheet(*lines):
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b" \r\n\r\n", "is empty"),
        (b",,\n , \n", "no header line"),
        (b"phone,name\r\n", "no people below"),
        (b"phone,name\n\n , \n", "no people below"),
        ("phone\n+12025550101".encode("utf-16"), "UTF-16"),
        ("phone\n+12025550101".encode("utf-16-le"), "UTF-16"),
        ("phone\n+12025550101".encode("utf-16-be"), "UTF-16"),
        ("phone;name\n+12025550101;João".encode("cp1252"), "Line 2 is not UTF-8"),
        (b"PK\x03\x04\x14\x00", "XLSX"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "XLS"),
        (b"%PDF-1.7", "PDF"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)), "binary"),
        (b"phone,name\n+12025550101,A\x00na", "Line 2 contains a null"),
        (b"phone,name\n+12025550101,A\x07na", "binary"),
        (b"phone|name\n+12025550101|Ana", "not separated by"),
        (b"who,name\n+12025550101,Ana", "The header has: who, name"),
        (b"name\nAna", "No column names the address"),
        (b"e-mail,name\nana@example.com,Ana", "No column names the address"),
        (b"+12025550101,Ana\n+12025550102,Bia", "first line is a person"),
        (b"+12025550101\n+12025550102", "first line is a person"),
        (b"Ana;2025550101\nBia;2025550102", "first line is a person"),
        (b"12025550101@c.us,Ana\n", "first line is a person"),
        (b"phone,phone,phone,phone,phone\n1,2,3,4,5", "Several columns are called phone"),
        (b"phone,city,City\n+12025550101,a,b", "Several columns are called city"),
        (b"phone,first name,First_Name\n+12025550101,a,b", "Several columns are called first_name"),
        (b"phone,celular\n+12025550101,+12025550102", "Several columns may be the address: phone, celular"),
        (b"phone,address\n+12025550101,1 High Street", 'so "address" needs another name'),
        (b"phone,***\n+12025550101,a", "Column 2"),
        (b"phone,\n+12025550101,a", "Column 2 has no name, and line 2"),
        (b'phone,name\n+12025550101,"Ana\n+12025550102,Bia\n', "quotes on line 2"),
        (b'phone,name\n+12025550101,"Ana" x\n', "quotes on line 2"),
        (b'phone,"name\n+12025550101,Ana\n', "quotes on line 1"),
        (b"phone,name\n+12025550101," + b"x" * 5001, "5001 characters"),
        (b"phone,name\n+12025550101," + b"x" * 200_000, "line 2 is longer"),
        ((",".join(["phone", *(f"c{n}" for n in range(100))]) + "\n+12025550101\n").encode(), "101 columns"),
    ],
)  # fmt: skip
def test_what_is_no_list_is_refused_with_a_sentence_and_nothing_is_imported(content, sentence):
    campaign = factories.make_campaign()
    with pytest.raises(ImportRefused) as refusal:
        take(content, campaign)
    assert sentence in str(refusal.value)
    assert str(refusal.value).endswith((".", "?"))
    assert not people(campaign)


@pytest.mark.parametrize("tail", ['+12025550103,"Caio\n', "+12025550103," + "x" * 6000])
def test_a_fault_late_in_the_file_leaves_nothing_half_imported(tail):
    campaign = factories.make_campaign()
    factories.make_recipient(campaign)
    with pytest.raises(ImportRefused):
        take(f"phone,name\n+12025550101,Ana\n+12025550102,Bia\n{tail}", campaign)
    assert campaign.recipients.count() == 1


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (Campaign.Status.RUNNING, "frozen"),
        (Campaign.Status.FAILED, "stopped"),
        (Campaign.Status.DRAFT, None),
        (Campaign.Status.SCHEDULED, None),
        (Campaign.Status.PAUSED, None),
        (Campaign.Status.COMPLETED, None),
    ],
)
def test_only_a_campaign_that_stands_still_takes_people(status, sentence):
    campaign = factories.make_campaign(status=status)
    campaign.status = Campaign.Status.DRAFT  # what the caller holds may be old: the row decides
    if sentence is None:
        assert take("phone\n+12025550101\n", campaign).added == 1
        return
    for dry_run in (True, False):
        with pytest.raises(ImportRefused, match=sentence):
            take("phone\n+12025550101\n", campaign, dry_run=dry_run)
    assert not people(campaign)


def test_a_paused_run_goes_on_with_the_people_it_has():
    campaign = factories.make_campaign(status=Campaign.Status.PAUSED)
    run = factories.make_run(factories.make_step(campaign))
    with pytest.raises(ImportRefused, match="frozen"):
        take("phone\n+12025550101\n", campaign)
    Run.objects.filter(pk=run.pk).update(status=Run.Status.COMPLETED)
    assert take("phone\n+12025550101\n", campaign).added == 1


def test_a_dry_run_says_the_same_and_changes_nothing():
    campaign = factories.make_campaign()
    factories.make_recipient(campaign, address="12025550102@c.us")
    text = "phone,name\n+12025550101,Ana\n+12025550102,Bia\nbad,x\n2025550101,Ana\n"
    dry = take(text, campaign, dry_run=True)
    assert campaign.recipients.count() == 1
    wet = take(text, campaign)
    assert dry.dry_run
    assert not wet.dry_run
    assert {**dry.as_dict(), "dry_run": None} == {**wet.as_dict(), "dry_run": None}
    assert (wet.rows, wet.added, len(wet.repeated), len(wet.rejected)) == (4, 1, 2, 1)


def test_an_unknown_channel_region_or_campaign_is_a_sentence():
    with pytest.raises(ImportRefused, match="Known channels"):
        take("phone\n+12025550101\n", factories.make_campaign(session=factories.make_session(channel="pigeon")))
    with pytest.raises(ImportRefused, match='"XX" is not a region'):
        take("phone\n2025550101\n", region="xx")
    gone = factories.make_campaign()
    Campaign.objects.filter(pk=gone.pk).delete()
    with pytest.raises(ImportRefused, match="not there any more"):
        take("phone\n+12025550101\n", gone)


def test_many_rows_are_few_statements(django_assert_max_num_queries):
    campaign = factories.make_campaign()
    lines = [f"+1202{200 + n // 10_000}{n % 10_000:04},Person {n}" for n in range(5_000)]
    with django_assert_max_num_queries(14):
        report = take(sheet("phone,name", *lines), campaign)
    assert (report.rows, report.added) == (5_000, 5_000)
    assert list(campaign.recipients.values_list("order", flat=True)) == list(range(5_000))
    assert take(sheet("phone,name", *lines), campaign).added == 0


@pytest.mark.parametrize(("name", "rows"), [("people.csv", 30), ("clientes.csv", 12), ("contacts.tsv", 8)])
def test_the_examples_import_whole(name, rows):
    content = (EXAMPLES / name).read_bytes()
    report = take(content)
    assert (report.rows, report.added, report.rejected, report.repeated) == (rows, rows, (), ())
    assert all(address.startswith("120255501") for address in Recipient.objects.values_list("address", flat=True))


def import_in_thread(campaign, text):
    outcome: list[object] = []

    def importing():
        try:
            outcome.append(take(text, campaign))
        except ImportRefused as refusal:
            outcome.append(str(refusal))
        finally:
            connection.close()

    thread = threading.Thread(target=importing)
    thread.start()
    return thread, outcome


@pytest.mark.django_db(transaction=True)
def test_a_start_that_commits_meanwhile_is_seen():
    """The import waits for the row lock, and reads the status under it."""
    campaign = factories.make_campaign()
    with transaction.atomic():
        Campaign.objects.select_for_update().get(pk=campaign.pk)
        thread, outcome = import_in_thread(campaign, "phone\n+12025550101\n")
        thread.join(0.3)
        assert thread.is_alive(), "it did not wait for the lock"
        Campaign.objects.filter(pk=campaign.pk).update(status=Campaign.Status.RUNNING)
    thread.join(10)
    assert "frozen" in str(outcome[0])
    assert not people(campaign)


@pytest.mark.django_db(transaction=True)
def test_an_address_that_is_typed_by_hand_meanwhile_refuses_the_whole_list():
    campaign = factories.make_campaign()
    person = factories.make_recipient(campaign, address="12025550177@c.us")
    with transaction.atomic():
        Recipient.objects.filter(pk=person.pk).update(address="12025550102@c.us")
        thread, outcome = import_in_thread(campaign, "phone\n+12025550101\n+12025550102\n")
        thread.join(0.3)
        assert thread.is_alive(), "it did not meet the other row"
    thread.join(10)
    assert "at the same moment" in str(outcome[0])
    assert campaign.recipients.count() == 1

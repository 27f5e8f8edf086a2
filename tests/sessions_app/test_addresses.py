import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.addresses import KINDS, InvalidAddress, UnknownKind, canonical, mask

READ = [
    ("+1 (202) 555-0102", "BR", "+12025550102"),  # a plus wins over the region
    ("(+1) 202 555 0102", "BR", "+12025550102"),
    ("+1.202.555.0102", "", "+12025550102"),
    ("202.555.0102", "US", "+12025550102"),
    ("2025550102", "us", "+12025550102"),
    ("tel:+1-202-555-0102", "", "+12025550102"),
    ("whatsapp:+12025550102", "", "+12025550102"),
    ("https://wa.me/12025550102", "", "+12025550102"),
    ("12025550102@c.us", "", "+12025550102"),
    ("12025550102:4@s.whatsapp.net", "", "+12025550102"),
    # exit codes, by region
    ("0012025550102", "PT", "+12025550102"),
    ("0012025550102", "BR", "+12025550102"),
    ("005511955550102", "BR", "+5511955550102"),
    ("0055 51 95555-0102", "BR", "+5551955550102"),  # with carrier code 55 it would be Peru
    ("011 55 11 95555 0102", "US", "+5511955550102"),
    ("0011 1 202 555 0102", "AU", "+12025550102"),
    ("010 1 202 555 0102", "JP", "+12025550102"),
    # trunk zeros, carrier codes, trunk eights
    ("0 11 95555-0102", "BR", "+5511955550102"),
    ("0 15 11 95555-0102", "BR", "+5511955550102"),
    ("+44 (0)20 7946 0102", "", "+442079460102"),
    ("8 (495) 555-01-02", "RU", "+74955550102"),
    ("+84955550102", "RU", "+84955550102"),
    ("491570157", "AU", "+61491570157"),  # the sheet dropped the zero
    ("+39 06 5555 0102", "", "+390655550102"),  # Italy keeps its zero
    # Brazil is never rewritten
    ("557155550103", "BR", "+557155550103"),
    ("5584955550104", "BR", "+5584955550104"),
    ("551185550104", "BR", "+551185550104"),  # old mobile, eight digits
    ("1195550104", "BR", "+551195550104"),
    ("+55 11 7555-0104", "", "+551175550104"),
    # Mexico: the 1 is gone
    ("5215555550102", "MX", "+525555550102"),
    ("+52 1 55 5555 0102", "", "+525555550102"),
    ("+52 044 55 5555 0102", "US", "+525555550102"),
    ("045 55 5555 0102", "MX", "+525555550102"),
    ("01 55 5555 0102", "MX", "+525555550102"),
    # Argentina: 9 or 15 make it a mobile, neither is invented
    ("+54 11 15 5555 0102", "", "+5491155550102"),
    ("011 15-5555-0102", "AR", "+5491155550102"),
    ("+54 9 11 15 5555 0102", "", "+5491155550102"),
    ("541155550102", "AR", "+541155550102"),
    # spreadsheets
    ("5511955550102.0", "BR", "+5511955550102"),
    ("551155550102.0", "BR", "+551155550102"),
    ("5511955550102,00", "BR", "+5511955550102"),
    ("5.511955550102E+12", "BR", "+5511955550102"),
    ("5,511955550102e12", "BR", "+5511955550102"),
    ('="5511955550102"', "BR", "+5511955550102"),
    ("'+5511955550102", "", "+5511955550102"),
    ("\u2019+5511955550102", "", "+5511955550102"),
    # other scripts and what nobody sees
    ("٢٠٢٥٥٥٠١٠٢", "US", "+12025550102"),
    ("+۱۲۰۲۵۵۵۰۱۰۲", "", "+12025550102"),
    ("+१ २०२ ५५५ ०१०२", "", "+12025550102"),
    ("＋１（２０２）５５５－０１０２", "", "+12025550102"),
    ("\u202a+1 202 555 0102\u202c", "", "+12025550102"),
    ("\u2066\u200e+1\u00a0202\u2009555\u20110102\u2069", "", "+12025550102"),
    ("\ufeff+1 202\u00ad555\u200b0102", "", "+12025550102"),
    ("+1 202 555 \u2212 0102", "", "+12025550102"),
    ("+1 202 555 0102;", "", "+12025550102"),
    ("07700 900103", "GB", "+447700900103"),  # kept for fiction
]
REFUSED = [
    ("", "US", "empty"),
    ("\u200b \ufeff", "US", "empty"),
    ("-", "US", "no phone number"),
    ("n/a", "US", "letter"),
    ("5.51196E+12", "BR", "last digits are lost"),
    ("5,51196e+12", "BR", "last digits are lost"),
    ("1.2E+10", "US", "last digits are lost"),
    ("551195555010.5", "BR", "decimals"),
    ("2025550102,2025550103", "US", "more than one"),
    ("2025550102 / 03", "US", "more than one"),
    ("2025550102; 2025550103", "US", "more than one"),
    ("2025550102\n2025550103", "US", "more than one"),
    ("2025550102 ou 2025550103", "US", "more than one"),
    ("+1 202 555 0102 +1 202 555 0103", "", "more than one"),
    ("2025550102 2025550103", "US", "too many"),
    ("+1 202 555 0102 ext. 5", "", "extension"),
    ("+1 202 555 0102 x5", "", "extension"),
    ("(11) 5555-0102 ramal 12", "BR", "extension"),
    ("+1-800-FLOWERS", "", "letter"),
    ("²025550102", "US", "does not belong"),
    ("202*5550102", "US", "does not belong"),
    ("0000000000", "US", "No such phone number"),
    ("99999999999", "BR", "filler"),
    ("2025550102", "", "no country code"),
    ("51955550102", "", "no country code"),  # Peru, or Porto Alegre
    ("07700900103", "", "no country code"),
    ("2025550102", "BR", "in the region BR"),
    ("+5510955550102", "", "country code and the count"),
    ("+99912345678", "", "country code and the count"),
    ("ana@example.com", "US", "e-mail"),
    ("120363000000000201@g.us", "US", "chat id"),
    ("1" * 321, "US", "320"),
]


@pytest.mark.parametrize(("text", "region", "e164"), READ)
def test_a_phone_becomes_e164_and_a_chat_id(text, region, e164):
    assert canonical("phone", text, region=region).value == e164
    assert canonical("whatsapp", text, region=region).value == f"{e164[1:]}@c.us"


@pytest.mark.parametrize(("text", "region", "why"), REFUSED)
def test_what_is_no_phone_number_is_refused_with_a_sentence(text, region, why):
    with pytest.raises(InvalidAddress, match=re.escape(why)) as refusal:
        canonical("phone", text, region=region)
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "region", "note"),
    [
        ("14155552671", "BR", "Read with its country code, +1."),
        ("5511955550102", "", "Read with its country code, +55."),
        ("12025550102", "", "Read with its country code, +1."),
        ("5215555550102", "MX", "Mexico: read without the old mobile prefix."),
        ("551185550104", "BR", "Brazil: an old mobile number of eight digits, kept as written."),
        ("5511955550102", "BR", ""),
        ("+12025550102", "BR", ""),
    ],
)
def test_the_reading_that_won_is_named(text, region, note):
    assert canonical("phone", text, region=region).note == note


@pytest.mark.parametrize(
    ("text", "chat_id", "is_group"),
    [
        ("12025550102@c.us", "12025550102@c.us", False),
        ("+12025550102@C.US ", "12025550102@c.us", False),
        ("12025550102:17@s.whatsapp.net", "12025550102@c.us", False),
        ("12025550102.0:17@s.whatsapp.net", "12025550102@c.us", False),
        ("١٢٠٢٥٥٥٠١٠٢@c.us", "12025550102@c.us", False),
        ("551185550104@c.us", "551185550104@c.us", False),  # ids that the numbering plan gave up stay as they are
        ("5215555550102@c.us", "5215555550102@c.us", False),
        ("12025550102-1601467283@g.us", "12025550102-1601467283@g.us", True),
        ("120363000000000201@g.us", "120363000000000201@g.us", True),
        ("120363000000000201@newsletter", "120363000000000201@newsletter", True),
        ("100000000000102@lid", "100000000000102@lid", False),
        ("100000000000102:3@lid", "100000000000102@lid", False),
    ],
)
def test_a_chat_id_passes_as_it_is(text, chat_id, is_group):
    address = canonical("whatsapp", text, region="BR")
    assert (address.value, address.is_group) == (chat_id, is_group)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("120363000000000201", "looks like a group id"),
        ("12025550102-1601467283", "looks like a group id"),
        ("100000000000102", "No such phone number"),  # hidden id without its ending
        ("100000000000102@c.us", "hidden id"),
        ("234567890123456@c.us", "hidden id"),
        ("120363000000000201@c.us", "7 to 15 digits"),
        ("02025550102@c.us", "7 to 15 digits"),
        ("12025550102@c.us@c.us", "no ending of a chat id"),
        ("status@broadcast", "broadcast"),
        ("12025550102@broadcast", "broadcast"),
        ("ana@example.com", "no ending of a chat id"),
        ("ana@g.us", "not an id of that kind"),
        ("abc@lid", "not an id of that kind"),
    ],
)
def test_what_is_no_chat_id_is_refused(text, why):
    with pytest.raises(InvalidAddress, match=why):
        canonical("whatsapp", text, region="US")


def test_a_local_number_with_one_hyphen_is_not_taken_for_a_group():
    assert canonical("whatsapp", "202-5550102", region="US").value == "12025550102@c.us"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (" Ana.Silva+x@EXAMPLE.com ", "Ana.Silva+x@example.com"),
        ("mailto:ana@example.com", "ana@example.com"),
        ("ana@m\u00fcnchen.example", "ana@xn--mnchen-3ya.example"),
        ("o'neil@example.com.", "o'neil@example.com"),
        ("\u200bana@example.com\ufeff", "ana@example.com"),
    ],
)
def test_an_email_is_tidied(text, address):
    assert canonical("email", text, region="").value == address


@pytest.mark.parametrize(
    "text",
    [
        "ana", "ana@", "@example.com", "ana@example", "ana@@example.com", "a@example.com,b@example.com", "a@example.com b@example.com",
        "a@example.com;b@example.com", "ana@example.com\r\nBcc: eve@example.com", "Ana <ana@example.com>", "ana..silva@example.com",
        ".ana@example.com", "jo\u00e3o@example.com", "ana@-example.com", "ana@exa_mple.com", "ana@example..com", "ana@10.0.0.1",
        "ana@stra\u00dfe.example", f"{'a' * 65}@example.com", f"ana@{'a' * 64}.com", "ana\u2013b@example.com",
    ],
)  # fmt: skip
def test_what_is_no_single_email_is_refused(text):
    with pytest.raises(InvalidAddress):
        canonical("email", text, region="")


def test_any_text_on_one_line_is_an_address_of_a_channel_with_ids_of_its_own():
    assert canonical("any", " U0123ABC ", region="").value == "U0123ABC"
    with pytest.raises(InvalidAddress, match="line break"):
        canonical("any", "U01\n23", region="")


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(UnknownKind, match="any, email, phone, telegram, whatsapp"):
        canonical("pigeon", "x", region="")


TYPED = st.text(max_size=40) | st.text("0123456789+-() .@,;٠١٢EecusgxX'=\"", max_size=40)
REGIONS = st.sampled_from(["", "BR", "US", "MX", "AR", "GB"])


@given(text=TYPED, kind=st.sampled_from(sorted(KINDS)), region=REGIONS)
def test_any_text_gives_a_plain_address_or_a_sentence(text, kind, region):
    try:
        value = canonical(kind, text, region=region).value
    except InvalidAddress as refusal:
        assert str(refusal).endswith(".")
        return
    assert canonical(kind, value, region=region).value == value, "reading an address again must not change it"
    if kind == "phone":
        assert re.fullmatch(r"\+[1-9][0-9]{6,14}", value, re.ASCII)
    if kind == "whatsapp":
        assert re.fullmatch(r"[0-9-]+@(?:c\.us|g\.us|lid|newsletter)", value, re.ASCII)


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("+5511955550101", "+55119****0101"),
        ("+12025550101", "+120****0101"),
        ("5511955550101@c.us", "55119****0101@c.us"),
        ("12025550100-1601467283@g.us", "12025****7283@g.us"),
        ("ana@example.com", "a****@example.com"),
        ("+12345678", "+****5678"),
        ("+1234", "+****"),
        ("U0123ABCDE", "U0****"),
        ("abc", "****"),
        ("", "****"),
    ],
)
def test_an_address_is_masked_for_logs(address, masked):
    assert mask(address) == masked

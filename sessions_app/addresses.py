"""What people type -> the one canonical address per kind. Pure.

Whoever is wrong here writes to a stranger, so nothing is guessed: what cannot be read with certainty is refused with a sentence.
Numbering plans come from `phonenumbers`; the few rules of our own beside it say why they exist.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import phonenumbers

LONGEST = 320
_INVITES = re.compile(r"^(?:tel:|sms:|callto:|whatsapp:|(?:https?://)?(?:www\.)?wa\.me/)", re.IGNORECASE)
_EXTENSION = re.compile(r"\d\D*(?:ext|extn|extension|ramal|anexo|int|x|#)\W*\d+\s*$", re.IGNORECASE)
_SCIENTIFIC = re.compile(r"^\+?(\d)(?:[.,](\d+))?e\+?(\d{1,2})$", re.IGNORECASE)
_LIST_MARKS = re.compile(r"[,;/|\n\r\t]|\s(?:or|ou|and|e|y|o|und|oder)\s", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    value: str
    is_group: bool = False  # many people read it: a group or a channel
    note: str = ""  # set when the text could be read in more than one way: which reading won


class InvalidAddress(ValueError):
    """Its text is a sentence: what is wrong and what to do."""


class UnknownKind(LookupError):
    def __init__(self, kind: str) -> None:
        super().__init__(f'There is no kind of address "{kind}". Known kinds: {", ".join(sorted(KINDS))}.')


def canonical(kind: str, text: str, *, region: str) -> Address:
    """The address that `text` means. `region` ("BR", or "" for none) decides how a phone without its country code is read."""
    try:
        read = KINDS[kind]
    except KeyError:
        raise UnknownKind(kind) from None
    tidy = _tidy(text)
    if not tidy:
        raise InvalidAddress("The address is empty. Fill it in, or delete the row.")
    if len(tidy) > LONGEST:
        raise InvalidAddress(f"The address has {len(tidy)} characters, and {LONGEST} is the most. Check that the columns are not shifted.")
    return read(tidy, region.upper())


def mask(address: str) -> str:
    """For logs: +55119****0101. At least four characters are hidden, and only a domain or a suffix after @ stays readable."""
    name, at, rest = address.partition("@")
    if not re.fullmatch(r"\+?\d[\d-]*", name):
        return f"{name[:1]}****{at}{rest}" if at else f"{name[:2] if len(name) > 8 else ''}****"
    sign, digits = ("+", name[1:]) if name.startswith("+") else ("", name)
    head, tail = min(5, max(len(digits) - 8, 0)), min(4, max(len(digits) - 4, 0))
    return f"{sign}{digits[:head]}****{digits[len(digits) - tail :]}{at}{rest}"


def _tidy(text: str) -> str:
    """Without what spreadsheets and contact apps add: text-cell tricks, and marks nobody sees (direction, joiners, byte order)."""
    tidy = "".join(character for character in text if unicodedata.category(character) != "Cf").strip()
    if formula := re.fullmatch(r'="(.*)"', tidy, re.DOTALL):
        tidy = formula[1].strip()
    return tidy.lstrip("'\u2018\u2019`").strip()


def _in_ascii(text: str) -> str:
    """Digits and punctuation of every script as ASCII. Python's \\d and isdigit() take them all, so a pattern alone is no guard."""
    kept = []
    for character in text:
        category = unicodedata.category(character)
        if category == "Nd":
            kept.append(str(unicodedata.digit(character)))
        elif category == "Pd" or character == "\u2212":
            kept.append("-")
        elif category[0] in "PSZ":
            kept.append(unicodedata.normalize("NFKC", character))
        else:
            kept.append(character)
    return "".join(kept).strip()


def _phone(text: str, region: str) -> Address:
    text = _in_ascii(text)
    if "@" in text:
        name, _, suffix = text.partition("@")
        if suffix.lower() not in {"c.us", "s.whatsapp.net"}:
            raise InvalidAddress("This is an e-mail address or a chat id, not a phone number. This channel needs a phone number.")
        text = f"+{name.partition(':')[0].lstrip('+')}"
    number, note = _read_number(text, region)
    return Address(phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164), note=note)


def _read_number(text: str, region: str) -> tuple[phonenumbers.PhoneNumber, str]:
    text = _undamaged(_INVITES.sub("", text).strip())
    _refuse_what_is_no_single_number(text)
    digits = re.sub(r"\D", "", text)
    if not digits:
        raise InvalidAddress("There is no phone number in this cell. Fill it in, or delete the row.")
    if len(digits) > (20 if digits.startswith("0") else 15):  # an exit code such as 00 or 0011 may stand before the 15
        raise InvalidAddress(f"{len(digits)} digits are too many for a phone number (15 at most). One number per row.")
    # strict readings first: a number that exists beats one that only could
    readings = list(_readings(text, digits, region))
    for is_good in (_exists, _is_tolerated):
        for number, note in readings:
            if number and (remark := is_good(number)) is not None:
                if len(set(str(number.national_number))) == 1:
                    raise InvalidAddress("The same digit all along is filler, not a phone number. Fill in the number, or delete the row.")
                return number, " ".join(filter(None, (note, remark)))
    raise InvalidAddress(_why_not(text, region))


def _undamaged(text: str) -> str:
    """Numbers that a spreadsheet took for quantities. Digits that were lost are never made up."""
    if science := _SCIENTIFIC.match(text):
        digits = science[1] + (science[2] or "")
        if len(digits) != int(science[3]) + 1:
            raise InvalidAddress(
                "The spreadsheet shortened this number: its last digits are lost. Format the column as text, fill it in again."
            )
        return digits
    if re.fullmatch(r"\+?\d{7,}[.,]0{1,2}", text):
        return re.split(r"[.,]", text)[0]
    if re.fullmatch(r"\+?\d{8,}[.,]\d+", text) and "," not in text:
        raise InvalidAddress("This is a number with decimals, not a phone number. Format the column as text and fill it in again.")
    return text


def _refuse_what_is_no_single_number(text: str) -> None:
    if sum(any(c.isdigit() for c in part) for part in _LIST_MARKS.split(text)) > 1 or "+" in text.lstrip("+( "):
        raise InvalidAddress("There is more than one number in this cell. One number per row.")
    if _EXTENSION.search(text):
        raise InvalidAddress("A number with an extension cannot receive messages. Give a direct number.")
    if letter := next(filter(str.isalpha, text), ""):
        raise InvalidAddress(f'There is a letter ("{letter}") in this phone number. Write it in digits.')
    if odd := re.search(r"[^\d+().\-\s\[\],;/|]", text):
        raise InvalidAddress(f'"{odd[0]}" does not belong in a phone number. Write it in digits.')


_Reading = tuple[phonenumbers.PhoneNumber | None, str]


def _readings(text: str, digits: str, region: str) -> Iterator[_Reading]:
    """What the digits may mean, the likelier first, each with the note that it deserves when it wins."""
    if text.lstrip("( [").startswith("+"):  # a plus wins over every region
        yield _international(digits)
    elif digits.startswith("00"):
        # Always the international prefix: where carriers have codes (Brazil), libphonenumber takes a carrier out of the country code.
        yield _international(digits[2:])
        yield _local(digits, region), "Read with the carrier code of the region."
    else:
        yield _local(digits, region), ""
        # Short ones are local numbers of somewhere. Without a region so are 11 digits, unless the country code has one digit (1, 7).
        if len(digits) >= 12 or (len(digits) == 11 and (region or digits[0] in "17")):
            number, note = _international(digits)
            if number:
                yield number, note or f"Read with its country code, +{number.country_code}."


def _parse(text: str, region: str | None) -> phonenumbers.PhoneNumber | None:
    try:
        return phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException:
        return None


def _international(digits: str) -> _Reading:
    if mexican := re.fullmatch(r"52(?:1|01|044|045)(\d{10})", digits):
        # The 1 left the numbering plan in 2019 and lives on in sheets and in chat ids.
        return _parse(f"+52{mexican[1]}", None), "Mexico: read without the old mobile prefix."
    if argentine := re.fullmatch(r"549(\d{2,4}15\d{6,8})", digits):
        number = _parse(f"+{digits}", None)
        if number is None or not phonenumbers.is_valid_number(number):  # both the 9 and the domestic 15, which mean the same
            return _parse(f"+54{argentine[1]}", None), "Argentina: read with the 9 and without the 15."
    return _parse(f"+{digits}", None), ""


def _local(digits: str, region: str) -> phonenumbers.PhoneNumber | None:
    if not region:
        return None
    if region == "MX" and (mexican := re.fullmatch(r"(?:044|045|01)(\d{10})", digits)):  # prefixes abolished in 2019
        return _parse(f"+52{mexican[1]}", None)
    return _parse(digits, region)


def _exists(number: phonenumbers.PhoneNumber) -> str | None:
    return "" if phonenumbers.is_valid_number(number) else None


def _is_tolerated(number: phonenumbers.PhoneNumber) -> str | None:
    """Forms that the metadata calls invalid and that are in use. Never rewritten: only the network knows which form an account has."""
    e164 = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
    if old := re.fullmatch(r"\+55(\d\d)([689]\d{7})", e164):
        modern = _parse(f"+55{old[1]}9{old[2]}", None)
        if modern and phonenumbers.is_valid_number(modern):
            return "Brazil: an old mobile number of eight digits, kept as written."
    if re.fullmatch(r"\+447700900\d{3}", e164):
        return "A British number reserved for fiction."
    return None


def _why_not(text: str, region: str) -> str:
    if text.startswith("+"):
        return "No such phone number exists: check its country code and the count of its digits."
    if not region:
        return "This phone number has no country code. Write it with + and the country code, or choose a default region."
    return f"No such phone number exists in the region {region}. Check its digits, or write it with + and the country code."


def _whatsapp(text: str, region: str) -> Address:
    text = _in_ascii(text)
    if "@" in text:
        return _chat_id(text)
    bare = _INVITES.sub("", text).strip()
    if not bare.startswith(("+", "00")) and re.fullmatch(r"[1-9]\d*(?:-\d+)?", bare) and len(bare.replace("-", "")) > 15:
        raise InvalidAddress("This looks like a group id: a phone number has at most 15 digits. Write a group with its ending, @g.us.")
    phone = _phone(text, region)
    return Address(f"{phone.value[1:]}@c.us", note=phone.note)


def _chat_id(text: str) -> Address:
    name, _, suffix = text.partition("@")
    suffix = suffix.strip().lower()
    # 12025550101:17@s.whatsapp.net: the device after the colon is not part of who it is, nor is the agent after a dot
    name = re.sub(r"(?:\.\d+)?:\d+$", "", name.strip())
    if suffix in {"c.us", "s.whatsapp.net"}:
        return Address(f"{_account_number(name.removeprefix('+'))}@c.us")
    forms = {"g.us": r"\d{10,25}|\d{5,15}-\d{5,15}", "newsletter": r"\d{10,25}", "lid": r"\d{5,20}"}
    if suffix == "broadcast":
        raise InvalidAddress("A broadcast list or status cannot be written to. Give a person's number.")
    if suffix not in forms:
        raise InvalidAddress(f'"@{suffix}" is no ending of a chat id. Use a phone number, or an id in @c.us, @g.us, @lid or @newsletter.')
    if not re.fullmatch(forms[suffix], name):
        raise InvalidAddress(f"The part before @{suffix} is not an id of that kind. Copy the whole id again.")
    return Address(f"{name}@{suffix}", is_group=suffix in {"g.us", "newsletter"})


def _account_number(digits: str) -> str:
    """Unchanged, since accounts keep numbers that the numbering plan gave up. Refused when no country has numbers of that form."""
    if not re.fullmatch(r"[1-9]\d{6,14}", digits):
        raise InvalidAddress("Before @c.us belongs a phone number with its country code, 7 to 15 digits. Groups end in @g.us.")
    number = _parse(f"+{digits}", None)
    is_known = number is not None and (
        phonenumbers.is_valid_number(number) or (len(digits) <= 13 and phonenumbers.is_possible_number(number))
    )
    if not is_known and not re.fullmatch(r"521\d{10}", digits):  # Mexican accounts are still named with the old 1
        raise InvalidAddress("No phone number has these digits. If it is a hidden id, it ends in @lid.")
    return digits


def _email(text: str, region: str) -> Address:
    text = re.sub(r"^mailto:", "", text, flags=re.IGNORECASE)
    if text.count("@") > 1 or re.search(r"[,;\s]", text):
        raise InvalidAddress("Only one e-mail address fits in a cell, without a name, spaces or commas.")
    name, at, domain = text.partition("@")
    if not at:
        raise InvalidAddress("An e-mail address needs an @, as in ana@example.com.")
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*", name) or len(name) > 64:
        raise InvalidAddress("The part before @ is not one that mail servers accept. Check it for accents, dots and missing letters.")
    return Address(f"{name}@{_domain(domain)}")


def _domain(text: str) -> str:
    wrong = InvalidAddress("The part after @ is not a domain such as example.com. Check it for missing dots and letters.")
    if re.search(r"[\u00df\u03c2]", text):  # the standard library maps these to another domain than today's rules do
        raise InvalidAddress("Write this domain in its ASCII form (xn--...): its letters are read differently by different programs.")
    try:
        domain = text.removesuffix(".").lower().encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise wrong from None
    labels = domain.split(".")
    if len(labels) < 2 or labels[-1].isdigit() or len(domain) > 253:
        raise wrong
    if not all(re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", label) for label in labels):
        raise wrong
    return domain


def _any(text: str, region: str) -> Address:
    if any(unicodedata.category(c) == "Cc" for c in text):
        raise InvalidAddress("There is a line break or a control character in this address. Write it on one line.")
    return Address(text)


_TELEGRAM = re.compile(r"-?[1-9]\d{0,15}|@[A-Za-z]\w{3,31}", re.ASCII)


def _telegram(text: str, region: str) -> Address:
    """The number of a chat, or @name of a public channel or group."""
    text = re.sub(r"[\u2010-\u2015\u2212]", "-", text)
    text = re.sub(r"^(?:https?://)?(?:www\.)?(?:t|telegram)\.me/(?=[^/?#]+/?$)", "@", text, flags=re.IGNORECASE).rstrip("/")
    if text.startswith("@+") or "/joinchat/" in text.lower():
        raise InvalidAddress("An invite link names no chat to a bot. Add the bot to the group and use the group's number.")
    if text.startswith("+"):
        raise InvalidAddress("A bot cannot write to a phone number. Use the number that Telegram gives the person once they start the bot.")
    if _TELEGRAM.fullmatch(text):
        return Address(text.lower(), is_group=text.startswith(("-", "@")))
    if _TELEGRAM.fullmatch(f"@{text}"):
        raise InvalidAddress("Write a channel or public group with an @ before its name. A person is reached by their number only.")
    raise InvalidAddress("Not a Telegram chat: write its number (a group's begins with -), or @name of a public channel or group.")


# A channel names one of these as its address_kind; a later channel may add its own.
KINDS: dict[str, Callable[[str, str], Address]] = {
    "phone": _phone,
    "whatsapp": _whatsapp,
    "email": _email,
    "telegram": _telegram,
    "any": _any,
}

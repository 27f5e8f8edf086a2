"""A file that staff saved from a spreadsheet -> columns and rows. Pure; what cannot be read without guessing is refused with a sentence."""

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from campaigns.rendering import is_blank, variable_name
from sessions_app.addresses import InvalidAddress, canonical

MOST_BYTES = 50 * 1024 * 1024
MOST_COLUMNS = 100
LONGEST_CELL = 5_000
DELIMITERS = ",;\t"

_PHONE = {
    "phone",
    "phones",
    "phone_number",
    "telephone",
    "telephone_number",
    "tel",
    "mobile",
    "mobile_phone",
    "mobile_number",
    "cell",
    "cellphone",
    "cell_phone",
    "msisdn",
    "telefone",
    "telefones",
    "numero_de_telefone",
    "telefone_celular",
    "celular",
    "numero_de_celular",
    "fone",
    "telefono",
    "numero_de_telefono",
    "movil",
    "telefon",
    "handy",
}
_WHATSAPP = {"whatsapp", "whatsapp_number", "numero_whatsapp", "numero_de_whatsapp", "whatsapp_id", "wa_id", "chat_id", "chatid", "chat"}
_EMAIL = {"email", "e_mail", "mail", "email_address", "e_mail_address", "endereco_de_email", "correo", "correo_electronico"}
_GENERAL = {"address", "number", "numero", "recipient", "destinatario", "contact", "contato", "contacto"}
# kind of address -> names of its column, the surest first: a column "number" beside a column "phone" is a variable
_ADDRESS_NAMES = {"phone": (_PHONE, _WHATSAPP, _GENERAL), "whatsapp": (_WHATSAPP, _PHONE, _GENERAL), "email": (_EMAIL, _GENERAL)}
_EVERY_ADDRESS_NAME = (_WHATSAPP | _PHONE | _EMAIL | _GENERAL | {"id", "user_id"},)
_NAMES = ("name", "nome", "nombre")

_SIGNATURES = {
    b"PK\x03\x04": "This is a spreadsheet file (such as XLSX) or a ZIP. Save it as CSV UTF-8 and import that.",
    b"\xd0\xcf\x11\xe0": "This is an old Excel file (XLS). Save it as CSV UTF-8 and import that.",
    b"%PDF": "This is a PDF. Save the list as CSV UTF-8 and import that.",
    b"\xff\xfe": "This file is UTF-16. Save it as CSV UTF-8 and import that.",
    b"\xfe\xff": "This file is UTF-16. Save it as CSV UTF-8 and import that.",
}


class ImportRefused(ValueError):
    """Nothing was imported. Its text says what is wrong with the file and what to do."""


@dataclass(frozen=True)
class Columns:
    count: int
    address: int
    name: int | None
    variables: dict[int, str]  # position -> variable, in the order of the file


@dataclass(frozen=True)
class Row:
    line: int  # of the file, where the record begins
    cells: list[str]

    def cell(self, position: int | None) -> str:
        """Trimmed; "" where the row is too short."""
        return self.cells[position].strip() if position is not None and position < len(self.cells) else ""


def read_list(file: BinaryIO, kind: str) -> tuple[Columns, Iterator[Row]]:
    """The columns, and the rows that are not blank. `kind` is the kind of address to find a column for.

    Raises ImportRefused, also from within the rows: use none of them before all of them were read.
    """
    text = _decode(file.read(MOST_BYTES + 1))
    delimiter, header = _find_header(text, kind)
    columns = _columns(header, kind)
    return columns, _rows(text, delimiter, header, columns)


def _decode(content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise ImportRefused(f"The file is larger than {MOST_BYTES // 1024 // 1024} MB. Split it and import the parts one after another.")
    for signature, sentence in _SIGNATURES.items():
        if content.startswith(signature):
            raise ImportRefused(sentence)
    sample = content[:4096]
    if max(sample[0::2].count(0), sample[1::2].count(0)) > len(sample) // 5:  # every second byte, nearly
        raise ImportRefused("This file is UTF-16. Save it as CSV UTF-8 and import that.")
    if re.search(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]", content):
        raise ImportRefused("This is not a list but a binary file. Save the list as CSV UTF-8 and import that.")
    try:
        text = content.decode("utf-8-sig").lstrip("\ufeff")
    except UnicodeDecodeError as error:
        if b"\x00" in content:
            raise ImportRefused("This is not a list but a binary file. Save the list as CSV UTF-8 and import that.") from None
        line = content.count(b"\n", 0, error.start) + 1
        raise ImportRefused(
            f"Line {line} is not UTF-8, so its accents cannot be read. Save the list as CSV UTF-8 and import that."
        ) from None
    if "\x00" in text:
        raise ImportRefused(
            f"Line {text.count(chr(10), 0, text.index(chr(0))) + 1} contains a null character. Save the list again as CSV UTF-8."
        )
    if is_blank(text):
        raise ImportRefused("The file is empty. Save the list as CSV UTF-8, with a header line, and import that.")
    return text


def _records(text: str, delimiter: str) -> Iterator[Row]:
    """All that are not blank. Strict, so that a quote which is never closed does not swallow the people after it."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "field limit" in str(error):
                raise ImportRefused(f"A cell on line {line} is longer than {LONGEST_CELL} characters. Is a quote missing there?") from None
            raise ImportRefused(f"The quotes on line {line} do not match: one opens and does not close. Mend the line.") from None
        if longest := max((len(cell) for cell in cells if len(cell) > LONGEST_CELL), default=0):
            raise ImportRefused(
                f"A cell on line {line} has {longest} characters, and {LONGEST_CELL} is the most. Is a quote missing there?"
            )
        if not all(is_blank(cell) for cell in cells):
            yield Row(line, cells)


def _find_header(text: str, kind: str) -> tuple[str, Row]:
    """The first line that is not blank, cut by the delimiter that gives an address column and the most columns."""
    found: list[tuple[bool, int, str, Row]] = []
    refusal: ImportRefused | None = None
    for delimiter in DELIMITERS:
        try:
            row = next(row for row in _records(text, delimiter) if not row.cells[0].lower().startswith("sep="))  # Excel's own first line
        except ImportRefused as error:
            refusal = refusal or error
        except StopIteration:
            raise ImportRefused("The file has no header line. Add one that names the columns, such as phone,name.") from None
        else:
            found.append((bool(_address_columns(row.cells, kind)), len(row.cells), delimiter, row))
    if refusal and not any(has_address for has_address, *_ in found):
        raise refusal
    # max() takes the first of equals: the comma
    _, _, delimiter, header = max(found, key=lambda candidate: candidate[:2])
    return delimiter, header


def _plain(cell: str) -> str:
    """For comparing names of columns: as a variable, without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", variable_name(cell)) if unicodedata.category(c) != "Mn")


def _address_columns(cells: list[str], kind: str) -> list[int]:
    """Those of the surest names that occur; more than one is for a person to decide."""
    for names in _ADDRESS_NAMES.get(kind, _EVERY_ADDRESS_NAME):
        if positions := [position for position, cell in enumerate(cells) if _plain(cell) in names]:
            return positions
    return []


def _columns(header: Row, kind: str) -> Columns:
    cells = header.cells
    if len(cells) > MOST_COLUMNS:
        raise ImportRefused(f"The header has {len(cells)} columns, and {MOST_COLUMNS} is the most. Remove those that no text needs.")
    addresses = _address_columns(cells, kind)
    if not addresses:
        raise ImportRefused(_no_address_column(cells, kind))
    names = [variable_name(cell) for cell in cells]
    if repeated := sorted(name for name, count in Counter(filter(None, names)).items() if count > 1):
        raise ImportRefused(f"Several columns are called {', '.join(repeated)} (case does not matter). Give each column its own name.")
    for number, (cell, usable) in enumerate(zip(cells, names, strict=True), start=1):
        if not usable and not is_blank(cell):
            raise ImportRefused(f'Column {number} is called "{cell.strip()[:40]}", which has no letter or digit. Give it a name.')
    if len(addresses) > 1:
        several = ", ".join(cells[position].strip() for position in addresses)
        raise ImportRefused(
            f"Several columns may be the address: {several}. Keep the right one, and rename the others (landline, for instance)."
        )
    address = addresses[0]
    if "address" in names and names.index("address") != address:
        raise ImportRefused(f'The address is taken from "{cells[address].strip()}", so "address" needs another name, such as street.')
    name = next((names.index(known) for known in _NAMES if known in names), None)
    # {{ nome }} works too when that is what the column is called
    variables = {position: names[position] for position in range(len(cells)) if names[position] not in {"", "name"} and position != address}
    return Columns(len(cells), address, name, variables)


def _no_address_column(cells: list[str], kind: str) -> str:
    for cell in cells:
        if kind in _ADDRESS_NAMES and _is_address(cell, kind):
            return "The first line is a person, not a header. Put a line above it that names the columns, such as phone,name."
    shown = ", ".join(cell.strip()[:40] or "(no name)" for cell in cells[:20])
    if len(cells) == 1 and re.search(r"[|:^~]", cells[0]):
        return f'The columns of "{shown}" are not separated by a comma, a semicolon or a tab. Save the list as CSV UTF-8.'
    wanted = {"email": "email", "telegram": "chat"}.get(kind, "phone")
    return f'No column names the address. The header has: {shown}. Call the right one "{wanted}" or "address".'


def _is_address(cell: str, kind: str) -> bool:
    for region in ("", "US", "BR"):  # any region will do: no name of a column is a number
        try:
            canonical(kind, cell, region=region)
        except InvalidAddress:
            continue
        return True
    return bool(re.fullmatch(r"[\d\s()+.-]{7,}", cell.strip()))


def _rows(text: str, delimiter: str, header: Row, columns: Columns) -> Iterator[Row]:
    unnamed = [position for position, cell in enumerate(header.cells) if is_blank(cell)]
    for row in _records(text, delimiter):
        if row.line <= header.line:
            continue
        for position in unnamed:
            if row.cell(position):
                raise ImportRefused(
                    f"Column {position + 1} has no name, and line {row.line} has a value there. Name the column, or empty it."
                )
        yield row

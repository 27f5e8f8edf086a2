"""A list of people -> recipients of a campaign. A bad row is told by its line; what is wrong with the file refuses it whole."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import phonenumbers
from django.db import IntegrityError, transaction
from django.db.models import Max

from campaigns.models import Campaign, Recipient
from campaigns.reading import Columns, ImportRefused, Row, read_list
from campaigns.rendering import is_blank
from sessions_app.addresses import InvalidAddress, canonical
from sessions_app.providers.registry import UnknownChannel

__all__ = ["ImportRefused", "ImportReport", "RowNote", "import_recipients"]

BATCH = 2_000
LONGEST_NAME = 200


@dataclass(frozen=True)
class RowNote:
    line: int  # of the file, where the record begins
    value: str  # the address as typed, shortened
    reason: str


@dataclass(frozen=True)
class ImportReport:
    """What became of each row: rows = added + repeated + rejected. In a dry run `added` is what would be."""

    rows: int
    added: int
    repeated: tuple[RowNote, ...]
    rejected: tuple[RowNote, ...]
    noted: tuple[RowNote, ...]  # added, and worth a look: which reading of an address won
    variables: tuple[str, ...]
    dry_run: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Person:
    line: int
    typed: str
    address: str
    name: str
    metadata: dict[str, str]
    note: str

    def differs_from(self, name: str, metadata: dict[str, str]) -> str:
        mine, theirs = {**self.metadata, "name": self.name}, {**metadata, "name": name}
        names = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key, "") != theirs.get(key, ""))
        return f" Different here, and not taken over: {', '.join(names)}." if names else ""


def import_recipients(campaign: Campaign, file: BinaryIO, *, region: str, dry_run: bool = False) -> ImportReport:
    """Add the good rows, in the order of the file, in one transaction. The first of several rows with one canonical address wins.

    Raises ImportRefused, and then nothing was added.
    """
    kind = _address_kind(campaign)
    region = _known_region(region)
    columns, rows = read_list(file, kind)
    people: dict[str, _Person] = {}
    repeated: list[RowNote] = []
    rejected: list[RowNote] = []
    count = 0
    for row in rows:
        count += 1
        try:
            person = _person(row, columns, kind, region, campaign.allow_groups)
        except InvalidAddress as refusal:
            rejected.append(RowNote(row.line, row.cell(columns.address)[:80], str(refusal)))
            continue
        first = people.setdefault(person.address, person)
        if first is not person:
            different = person.differs_from(first.name, first.metadata)
            repeated.append(RowNote(row.line, person.typed[:80], f"The same address as line {first.line}, which is used.{different}"))
    if not count:
        raise ImportRefused("The file has a header and no people below it. Add a line for each person.")
    added, known = _add(campaign, people, dry_run)
    return ImportReport(
        rows=count,
        added=len(added),
        repeated=tuple(sorted([*repeated, *known], key=lambda note: note.line)),
        rejected=tuple(rejected),
        noted=tuple(RowNote(person.line, person.typed[:80], person.note) for person in added if person.note),
        variables=tuple(columns.variables.values()),
        dry_run=dry_run,
    )


def _address_kind(campaign: Campaign) -> str:
    try:
        return campaign.session.provider_class.address_kind
    except UnknownChannel as unknown:
        raise ImportRefused(f'The session "{campaign.session}" cannot say what an address is. {unknown}') from None


def _known_region(region: str) -> str:
    region = region.strip().upper()
    if region and region not in phonenumbers.SUPPORTED_REGIONS:
        raise ImportRefused(f'"{region}" is not a region. Use a two-letter country code such as BR, or leave it empty.')
    return region


def _add(campaign: Campaign, people: dict[str, _Person], dry_run: bool) -> tuple[list[_Person], list[RowNote]]:
    """Those added, and a note for each that is in the campaign already."""
    try:
        with transaction.atomic():
            # under the lock: a start that commits meanwhile would leave the new people out of its run
            locked = Campaign.objects.select_for_update().filter(pk=campaign.pk).first()
            _refuse_frozen(locked)
            known = list(_notes_on_known(campaign, people))
            taken = {note.line for note in known}
            added = [person for person in people.values() if person.line not in taken]
            if not dry_run:
                _insert(campaign, added)
    except IntegrityError:
        raise ImportRefused("Somebody else changed the recipients of this campaign at the same moment. Import the file again.") from None
    return added, known


def _refuse_frozen(campaign: Campaign | None) -> None:
    if campaign is None:
        raise ImportRefused("This campaign is not there any more.")
    if campaign.status == Campaign.Status.FAILED:
        raise ImportRefused(f'"{campaign}" was stopped. Import the list into another campaign.')
    # `runs` is dispatch's side of the relation; a paused run goes on with the people it has
    if campaign.status == Campaign.Status.RUNNING or campaign.runs.live().exists():
        raise ImportRefused(
            f'"{campaign}" is being sent, and its recipients are frozen until it is done. Import then, or into another campaign.'
        )


def _notes_on_known(campaign: Campaign, people: dict[str, _Person]) -> Iterator[RowNote]:
    addresses = list(people)
    for start in range(0, len(addresses), BATCH):
        known = campaign.recipients.filter(address__in=addresses[start : start + BATCH])
        for address, name, metadata in known.values_list("address", "name", "metadata"):
            person = people[address]
            yield RowNote(person.line, person.typed[:80], f"In the campaign already.{person.differs_from(name, metadata)}")


def _insert(campaign: Campaign, people: list[_Person]) -> None:
    last = campaign.recipients.aggregate(last=Max("order"))["last"]
    Recipient.objects.bulk_create(
        (
            Recipient(
                campaign_id=campaign.pk,
                address=person.address,
                address_as_imported=person.typed,
                name=person.name,
                metadata=person.metadata,
                order=order,
            )
            for order, person in enumerate(people, start=0 if last is None else last + 1)
        ),
        batch_size=BATCH,
    )


def _person(row: Row, columns: Columns, kind: str, region: str, allow_groups: bool) -> _Person:
    """Raises InvalidAddress for whatever is wrong with this row alone."""
    if any(not is_blank(cell) for cell in row.cells[columns.count :]):
        raise InvalidAddress(
            f"{len(row.cells)} values under {columns.count} columns. Put quotes around a value that contains the separator."
        )
    typed = row.cell(columns.address)
    address = canonical(kind, typed, region=region)
    if address.is_group and not allow_groups:
        raise InvalidAddress("This is a group or a channel. Allow them on the campaign, or give a person's address.")
    name = row.cell(columns.name)
    if len(name) > LONGEST_NAME:
        raise InvalidAddress(f"The name has {len(name)} characters, and {LONGEST_NAME} is the most. Shorten it.")
    values = ((variable, row.cell(index)) for index, variable in columns.variables.items())
    metadata = {variable: value for variable, value in values if not is_blank(value)}
    return _Person(row.line, typed, address.value, name, metadata, address.note)

"""Groups and contacts of a campaign's session -> recipients, by the rules that a typed address has."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Max

from campaigns.models import Campaign, Recipient
from sessions_app.addresses import InvalidAddress, canonical
from sessions_app.credentials import CredentialsUnreadable
from sessions_app.models import Session
from sessions_app.providers.base import Chat, Deadline, NotPossible
from sessions_app.providers.registry import UnknownChannel

logger = logging.getLogger("paceline.campaigns")

PAGE = 50
LISTING_TAKES_AT_MOST = timedelta(seconds=10)
MAY_BE_PICKED_FOR = {Campaign.Status.DRAFT, Campaign.Status.PAUSED}
LONGEST_NAME = 200
NO_GROUPS = "This campaign takes no groups and channels. Allow them on its page first."


class PickingRefused(Exception):
    """Nothing was listed or added; the text says why and what to do."""


@dataclass(frozen=True)
class Picked:
    added: int
    known: int  # in the campaign already
    refused: tuple[str, ...]  # a sentence for each that no recipient can be made of

    def sentences(self) -> list[str]:
        """What was added, and what was not."""
        there = f", {self.known} {'was' if self.known == 1 else 'were'} there already" if self.known else ""
        return [f"{self.added} recipient{'' if self.added == 1 else 's'} added{there}.", *self.refused]


def list_chats(session: Session, *, groups: bool, search: str = "", page: int = 1) -> tuple[list[Chat], bool]:
    """One page, and whether there is another. One call to the provider, outside any transaction. Raises PickingRefused."""
    try:
        provider = session.make_provider()
    except (CredentialsUnreadable, UnknownChannel) as error:
        raise PickingRefused(str(error)) from None
    try:
        found = provider.list_chats(Deadline(LISTING_TAKES_AT_MOST), groups=groups, search=search, offset=(page - 1) * PAGE, limit=PAGE + 1)
    except NotPossible as error:
        raise PickingRefused(str(error)) from None
    except Exception as error:  # its text may carry a secret
        logger.error("a provider failed to list chats", extra={**session.facts(), "error": type(error).__name__})
        raise PickingRefused(f"{provider.label} could not be asked ({type(error).__name__}). Check the session's connection.") from None
    return found[:PAGE], len(found) > PAGE


def known_addresses(campaign: Campaign, chats: Sequence[Chat]) -> set[str]:
    """Of these chats, the addresses, as the channel gave them, that are recipients already."""
    kind = _address_kind(campaign)
    read = {chat.address: value for chat in chats if (value := _value(kind, chat.address))}
    known = set(campaign.recipients.filter(address__in=read.values()).values_list("address", flat=True))
    return {address for address, value in read.items() if value in known}


def add_picked(campaign: Campaign, names: Mapping[str, str]) -> Picked:
    """Those chats, address -> name, after the last recipient, in one transaction. Raises PickingRefused, and then nothing was added."""
    people: dict[str, tuple[str, str]] = {}
    refused = []
    kind = _address_kind(campaign)
    for typed, name in names.items():
        try:
            address = canonical(kind, typed, region=settings.DEFAULT_REGION)
        except InvalidAddress as error:
            refused.append(f"{_shown(name, typed)}: {error}")
            continue
        if address.is_group and not campaign.allow_groups:
            refused.append(f"{_shown(name, typed)}: {NO_GROUPS}")
        else:
            people.setdefault(address.value, (typed, _name_for_a_text(name, address.value)))
    try:
        with transaction.atomic():
            added, known = _add(campaign, people)
    except IntegrityError:
        raise PickingRefused("Somebody else added recipients to this campaign at the same moment. Add them again.") from None
    return Picked(added, known, tuple(refused))


def why_not(campaign: Campaign | None) -> str:
    """Why nobody can be picked for it now; "" when somebody can."""
    if campaign is None:
        return "This campaign is not there any more."
    if campaign.status not in MAY_BE_PICKED_FOR:
        return f'"{campaign}" is {campaign.get_status_display().lower()}: recipients are picked for drafts and paused campaigns.'
    if campaign.runs.live().exists():  # dispatch's side of the relation; a paused run goes on with the people it has
        return f'"{campaign}" is being sent: its recipients are frozen until it is done. Pick them for another campaign.'
    return ""


def _add(campaign: Campaign, people: Mapping[str, tuple[str, str]]) -> tuple[int, int]:
    # under the lock: a start that commits meanwhile would leave the new people out of its run
    locked = Campaign.objects.select_for_update().filter(pk=campaign.pk).first()
    if reason := why_not(locked):
        raise PickingRefused(reason)
    known = set(campaign.recipients.filter(address__in=people).values_list("address", flat=True))
    last = campaign.recipients.aggregate(last=Max("order"))["last"]
    new = [address for address in people if address not in known]
    Recipient.objects.bulk_create(
        Recipient(campaign_id=campaign.pk, address=address, address_as_imported=people[address][0], name=people[address][1], order=order)
        for order, address in enumerate(new, start=0 if last is None else last + 1)
    )
    return len(new), len(known)


def _address_kind(campaign: Campaign) -> str:
    try:
        return campaign.session.provider_class.address_kind
    except UnknownChannel as error:
        raise PickingRefused(str(error)) from None


def _value(kind: str, typed: str) -> str:
    try:
        return canonical(kind, typed, region=settings.DEFAULT_REGION).value
    except InvalidAddress:
        return ""


def _name_for_a_text(name: str, address: str) -> str:
    """ "" for a name that only repeats the number: a text that greets by name would read it out, and a missing name is warned of."""
    tidy = " ".join(name.replace("\0", "").split())[:LONGEST_NAME]
    digits = re.sub(r"[\s().+-]", "", tidy)
    return "" if digits.isdecimal() and digits == address.partition("@")[0].lstrip("+") else tidy


def _shown(name: str, typed: str) -> str:
    return f'"{" ".join(name.split())[:60] or typed[:60]}"'

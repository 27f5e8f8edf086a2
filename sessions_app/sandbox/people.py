"""Who can be reached by the stand-in. Pure: the same number is always the same person, and nothing is kept."""

import hashlib
import re
from typing import Any

# WhatsApp keeps mobile numbers of Brazil with or without the ninth digit, by how old the account is. Up to DDD 30 always with it.
_BRAZILIAN = re.compile(r"55(?P<ddd>3[1-9]|[4-9][0-9])(?P<nine>9?)(?P<rest>[0-9]{8})")
_LID = re.compile(r"2(?P<reversed>[0-9]{7,15})@lid")
GROUPS = 23
CONTACTS = 130  # more than one page of a hundred
_FIRST = ("Ana", "Bruno", "Carla", "Diego", "Elisa", "Fábio", "Gita", "Hugo", "Iris", "João")
_LAST = ("Almeida", "Brown", "Costa", "Dias", "Evans", "Farias", "Gomes", "Hill", "Ito", "Jones", "Klein", "Lima", "Mota")


def share(what: str, whose: str) -> float:
    """From 0 to 1, and always the same for the same person."""
    return int.from_bytes(hashlib.sha256(f"{what} {whose}".encode()).digest()[:4]) / 2**32


def chat_of(digits: str) -> str | None:
    """Where messages to this number have to go; None when nobody has it, as with all that end in 0000."""
    if digits.endswith("0000"):
        return None
    found = _BRAZILIAN.fullmatch(digits)
    if found is None or (not found["nine"] and found["rest"][0] in "012345"):  # eight digits without a mobile's first: a landline
        return f"{digits}@c.us"
    nine = "" if share("from before the ninth digit", found["ddd"] + found["rest"]) < 0.5 else "9"
    return f"55{found['ddd']}{nine}{found['rest']}@c.us"


def lid_of(digits: str) -> str | None:
    """The id that hides a number."""
    chat = chat_of(digits)
    return None if chat is None else f"2{chat.partition('@')[0][::-1]}@lid"


def phone_of(lid: str) -> str | None:
    """The chat behind such an id, as <digits>@c.us."""
    found = _LID.fullmatch(lid)
    return chat_of(found["reversed"][::-1]) if found else None


def is_reached(chat: str) -> bool:
    """False where WhatsApp takes a message and nobody ever gets it: no such number, or its other form."""
    who, _, server = chat.partition("@")
    if server == "lid":
        return phone_of(chat) is not None
    return server != "c.us" or chat_of(who) == chat


def groups(engine: str, *, with_participants: bool) -> list[dict[str, Any]]:
    """In each engine's own shape, by name."""
    shown: list[dict[str, Any]] = []
    for number in range(GROUPS):
        chat, name = f"1203630250000{number:05}@g.us", f"Group {number + 1:02}"
        people = [contact_id(one) for one in range(number, number + 3 + number % 5)]
        if engine == "GOWS":
            group: dict[str, Any] = {
                "JID": chat,
                "Name": name,
                "Topic": "",
                "Participants": [{"JID": one, "IsAdmin": False} for one in people],
            }
            hidden = "Participants"
        elif engine == "NOWEB":
            group = {"id": chat, "subject": name, "size": len(people), "participants": [{"id": one, "admin": None} for one in people]}
            hidden = "participants"
        else:
            whole = {"server": "g.us", "user": chat.partition("@")[0], "_serialized": chat}
            members = [{"id": {"_serialized": one}, "isAdmin": False} for one in people]
            group, hidden = (
                {"id": whole, "name": name, "isGroup": True, "groupMetadata": {"id": whole, "participants": members}},
                "groupMetadata",
            )
        shown.append(group if with_participants else {key: value for key, value in group.items() if key != hidden})
    return shown


def contact_id(number: int) -> str:
    return f"1{202 + number // 100}55501{number % 100:02}@c.us"  # numbers that belong to nobody


def contacts() -> list[dict[str, Any]]:
    """By name."""
    named = sorted((f"{_FIRST[number % 10]} {_LAST[number % 13]}", contact_id(number)) for number in range(CONTACTS))
    return [
        {
            "id": chat,
            "number": chat.partition("@")[0],
            "name": name,
            "pushname": name.partition(" ")[0],
            "isGroup": False,
            "isMyContact": True,
        }
        for name, chat in named
    ]

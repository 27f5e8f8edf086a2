"""What an approved template asks for; the texts of a step, one a line -> the components that are sent, and back. Pure.

The shapes are those of WhatsApp's own API: upper case as it lists a template, lower case as it takes one. They are from Meta's pages; no
account was called.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_MEDIA = {"IMAGE": "image", "VIDEO": "video", "DOCUMENT": "document"}
# What a line of text cannot fill, as it is spoken of.
_PARTS_BY_HAND = {"CAROUSEL": "a carousel", "LIMITED_TIME_OFFER": "a limited-time offer"}
_BUTTONS_BY_HAND = {"COPY_CODE": "a coupon code", "MPM": "a list of products", "SPM": "a product"}

Key = tuple[str, str]  # part, and the button's position; as ("body", "") and ("button", "0")


@dataclass(frozen=True)
class Place:
    """One line of text goes here."""

    part: str  # "header", "body" or "button"
    name: str = ""  # of a named parameter; "" where they are numbered
    button: str = ""  # its position among all buttons

    @property
    def key(self) -> Key:
        return self.part, self.button


@dataclass(frozen=True)
class Needs:
    places: tuple[Place, ...] = ()  # in the order of the lines
    media: str = ""  # "image", "video" or "document" above the text
    by_hand: tuple[str, ...] = ()

    def spoken(self) -> str:
        """As in "3 parameters (2 in the text, 1 in a button), an image"."""
        where = {"header": "in the heading", "body": "in the text", "button": "in a button"}
        count = Counter(place.part for place in self.places)
        said = f"{len(self.places)} {'parameter' if len(self.places) == 1 else 'parameters'}"
        if set(count) - {"body"}:
            said += f" ({', '.join(f'{count[part]} {words}' for part, words in where.items() if count[part])})"
        return ", ".join([said, *([self.media_spoken] if self.media else []), *self.by_hand])

    @property
    def media_spoken(self) -> str:
        return f"{'an' if self.media == 'image' else 'a'} {self.media}"


def needs_of(listed: Sequence[Any]) -> Needs:
    """From the components of a template as the vendor lists them. What is odd in them asks for nothing."""
    by_type = {str(one.get("type", "")).upper(): one for one in listed if isinstance(one, Mapping)}
    header, body = by_type.get("HEADER", {}), by_type.get("BODY", {})
    shape = str(header.get("format") or "TEXT").upper()
    buttons = [one for one in by_type.get("BUTTONS", {}).get("buttons") or () if isinstance(one, Mapping)]
    kinds = [str(one.get("type", "")).upper() for one in buttons]
    places = [Place("header", name) for name in _names(header.get("text"))] if shape == "TEXT" else []
    places += [Place("body", name) for name in _names(body.get("text"))]
    places += [
        Place("button", button=str(position))
        for position, (kind, button) in enumerate(zip(kinds, buttons, strict=True))
        if kind == "URL" and _PLACE.search(str(button.get("url", "")))
    ]
    by_hand = [words for part, words in _PARTS_BY_HAND.items() if part in by_type]
    by_hand += [words for kind, words in _BUTTONS_BY_HAND.items() if kind in kinds]
    return Needs(tuple(places), _MEDIA.get(shape, ""), (*(["a place on the map"] if shape == "LOCATION" else []), *by_hand))


def _names(text: Any) -> list[str]:
    """The names of its parameters, each once; "" for numbered ones, in the order of their numbers."""
    found = list(dict.fromkeys(_PLACE.findall(str(text or ""))))
    return ["" for _ in found] if all(name.isdigit() for name in found) else found


def components(needs: Needs, lines: Sequence[str], *, media_url: str = "", filename: str = "") -> list[dict[str, Any]]:
    """What is sent. There must be one line for each place."""
    filled: dict[Key, list[dict[str, Any]]] = {}
    if needs.media:
        content = {"link": media_url} | ({"filename": filename} if filename and needs.media == "document" else {})
        filled["header", ""] = [{"type": needs.media, needs.media: content}]
    for place, line in zip(needs.places, lines, strict=True):
        named = {"parameter_name": place.name} if place.name else {}
        filled.setdefault(place.key, []).append({"type": "text", **named, "text": line})
    return [
        {"type": part, **({"sub_type": "url", "index": position} if part == "button" else {}), "parameters": parameters}
        for (part, position), parameters in filled.items()
    ]


def lines_of(sent: Sequence[Any]) -> list[str] | None:
    """The texts inside stored components, one a line. None where they hold anything that lines cannot say."""
    lines = []
    for parameter in (one for component in sent for one in _parameters(component)):
        kind = parameter.get("type")
        if kind in _MEDIA.values():
            continue
        text = parameter.get("text")
        if kind != "text" or not isinstance(text, str) or tidy(text) != [text]:
            return None
        lines.append(text)
    return lines


def tidy(text: str) -> list[str]:
    """The lines of a text, without blanks around them and without empty ones: the vendor takes neither."""
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def why_lines_do_not_fit(needs: Needs, lines: Sequence[str]) -> str:
    """A sentence, or "" where they do."""
    if needs.by_hand:
        return f"This template has {' and '.join(needs.by_hand)}, which lines cannot fill. Write its components below, for experts."
    if len(lines) != len(needs.places):
        return f"This template takes {Needs(needs.places).spoken()}, one a line; {_lines(len(lines))}. {_remedy(len(lines), needs)}"
    return ""


def _lines(count: int) -> str:
    return {0: "there is none", 1: "there is 1 line"}.get(count, f"there are {count} lines")


def _remedy(count: int, needs: Needs) -> str:
    return "Write the missing ones." if count < len(needs.places) else "Take out what is too much."


def mismatches(needs: Needs, sent: Sequence[Any]) -> Iterator[str]:
    """What the vendor would refuse for everybody, as in "its text takes 2 parameters and gets 1". Not what is made by hand."""
    words = {"header": "heading", "body": "text", "button": "button"}
    wanted = Counter(place.key for place in needs.places)
    given: dict[Key, list[Mapping[str, Any]]] = {}
    for component in (one for one in sent if isinstance(one, Mapping)):
        part = str(component.get("type", "")).lower()
        position = str(component.get("index", "")) if part == "button" else ""
        given.setdefault((part, position), []).extend(_parameters(component))
    if needs.media:
        kinds = [one.get("type") for one in given.pop(("header", ""), [])]
        if kinds != [needs.media]:
            yield f"it needs {needs.media_spoken} above its text"
    for key in sorted({*wanted, *given}):
        if key[0] not in words or (needs.by_hand and key not in wanted):
            continue
        if wanted[key] != len(given.get(key, [])):
            where = f"button {int(key[1]) + 1}" if key[1].isdigit() else words[key[0]]
            yield f"its {where} takes {_spoken_count(wanted[key])} and gets {len(given.get(key, []))}"
    named = {place.name for place in needs.places if place.name}
    if named and (lost := named - {str(one.get("parameter_name", "")) for parameters in given.values() for one in parameters}):
        yield f"its parameters have names, and {', '.join(sorted(lost))} is not among those of the step"


def _spoken_count(count: int) -> str:
    return "no parameters" if not count else f"{count} parameter{'' if count == 1 else 's'}"


def _parameters(component: Any) -> list[Mapping[str, Any]]:
    inside = component.get("parameters") if isinstance(component, Mapping) else None
    return [one for one in inside if isinstance(one, Mapping)] if isinstance(inside, list) else []

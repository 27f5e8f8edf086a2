"""How many SMS a text becomes, over what it is filled with. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from campaigns import rendering
from sessions_app.providers.twilio_answers import GSM_7, GSM_7_ESCAPED, segments


@dataclass(frozen=True)
class Size:
    segments: int
    characters: int
    encoding: str  # "GSM-7" or "UCS-2"
    because_of: str = ""  # the first sign that made it UCS-2, which holds less than half as much

    def spoken(self) -> str:
        """As in "about 2 SMS for each person (UCS-2, because of "ã"; 71 characters)"."""
        reason = f', because of "{self.because_of}"' if self.because_of else ""
        return f"about {self.segments} SMS for each person ({self.encoding}{reason}; {self.characters} characters)"


def size_of(text: str) -> Size:
    number, encoding = segments(text)
    foreign = next((sign for sign in text if sign not in GSM_7 and sign not in GSM_7_ESCAPED), "")
    seen = foreign if foreign.isprintable() and not foreign.isspace() else f"U+{ord(foreign):04X}"
    return Size(number, len(text), encoding, seen)


def largest(text: str, people: Iterable[Mapping[str, Any]]) -> Size | None:
    """Of the texts for these people, or with its defaults alone where there are none. None where it cannot be filled for any of them."""
    sizes = []
    for values in list(people) or [{}]:
        try:
            sizes.append(size_of(rendering.render(text, values)))
        except rendering.RenderError:  # said elsewhere, and for all recipients
            continue
    return max(sizes, key=lambda size: (size.segments, size.characters), default=None)

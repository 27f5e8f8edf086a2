"""Text with holes -> the text for one person. Pure: a flat substitution, one pass over a dict of strings.

`{{ name }}` or `{{ name|default:"there" }}`. Nothing else is a language here: no attributes, no tags, no other filter. What was filled in
is never looked at again, so a recipient's data cannot name another variable. Values are escaped where the text is HTML, and nowhere else.
"""

import html
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sessions_app.providers.base import Message

LONGEST_TEXT = 65_536
# opening quote -> what may close it; word processors and other languages have their own
_QUOTES = {'"': '"', "'": "'", "“": "”", "”": "”", "‘": "’", "’": "’", "„": "“”", "«": "»"}
# What no reader sees: whitespace of every script, control characters, marks without a width.
BLANK = "".join(
    character
    for character in map(chr, (*range(0x3100), 0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080)))
    if character.isspace() or unicodedata.category(character) in {"Cf", "Cc"}
)
# Braces in runs: two make a hole, a run of any other length above one is a slip of the keyboard.
_BRACES = re.compile(r"\{{2,}|\}{2,}")
_TAG = re.compile(r"\{%.*?%\}", re.DOTALL)


@dataclass(frozen=True)
class Variable:
    name: str  # as `variable_name` gives it
    default: str | None = None


class RenderError(ValueError):
    """This text cannot be sent to this person. Its text is a sentence."""


class MissingVariable(RenderError):
    def __init__(self, name: str) -> None:
        super().__init__(f'There is no value for "{name}", and the text gives no default.')
        self.name = name


class MalformedText(RenderError):
    """The text should not have been saved: its text is the first problem that `check` finds."""


class TextTooLong(RenderError):
    pass


@dataclass(frozen=True)
class _Hole:
    variable: Variable


@dataclass(frozen=True)
class _Problem:
    sentence: str


@lru_cache(maxsize=4096)
def variable_name(header: str) -> str:
    """How a column is called in a text: case and composed forms do not matter, everything but letters and digits is one underscore.

    "" when nothing is left of it. Columns and texts both go through here, so `{{ First Name }}` finds the column "first-name".
    """
    folded = unicodedata.normalize("NFC", header.casefold())
    visible = "".join(character for character in folded if unicodedata.category(character) != "Cf")
    return re.sub(r"_+", "_", "".join(c if unicodedata.category(c)[0] in "LMN" else "_" for c in visible)).strip("_")


def is_blank(value: str) -> bool:
    return not value.strip(BLANK)


def variables(text: str) -> set[Variable]:
    """The holes of a text. One name may appear with a default and without."""
    return {piece.variable for piece in _pieces(text) if isinstance(piece, _Hole)}


def required(message: Message) -> set[str]:
    """The names that a recipient must have a value for: those that stand somewhere without a default."""
    return {hole.name for text in texts_of(message) for hole in variables(text) if hole.default is None}


def check(text: str) -> list[str]:
    """What is wrong with a text, one sentence each, to be shown when it is saved; empty when `render` can only lack values."""
    return [piece.sentence for piece in _pieces(text) if isinstance(piece, _Problem)]


def render(text: str, values: Mapping[str, Any]) -> str:
    """The text for one person. Raises a RenderError: never a text with a hole, a placeholder or "None" in it.

    A value that is absent, None or blank is missing; "0" is a value. The keys of `values` may be written like headers.
    """
    known = {variable_name(name): value for name, value in values.items()}
    filled: list[str] = []
    for piece in _pieces(text):
        if isinstance(piece, _Problem):
            raise MalformedText(piece.sentence)
        filled.append(_fill(piece.variable, known) if isinstance(piece, _Hole) else piece)
    result = _tidy("".join(filled))
    if len(result) > LONGEST_TEXT:
        raise TextTooLong(f"Filled in, the text has {len(result)} characters, and {LONGEST_TEXT} is the most.")
    return result


def texts_of(message: Message) -> Iterator[str]:
    """Every text of a message that may have holes."""
    yield from (message.text, message.caption, message.subject, message.html, message.filename)
    yield from _strings(message.template_components)


def render_message(message: Message, values: Mapping[str, Any]) -> Message:
    """The message for one person: every text of it, and all strings inside the template's components. Raises as `render` does.

    Only in the HTML are values escaped; a subject or a file name is one line whatever is filled in.
    """
    return replace(
        message,
        text=render(message.text, values),
        caption=render(message.caption, values),
        subject=_one_line(render(message.subject, values)),
        html=render(message.html, {name: _escaped(value) for name, value in values.items()}),
        filename=_one_line(render(message.filename, values)),
        template_components=tuple(_render_inside(component, values) for component in message.template_components),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(value: Any) -> Any:
    return value if value is None else html.escape(str(value))


def _render_inside(component: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(component, str):
        return render(component, values)
    if isinstance(component, Mapping):
        return {key: _render_inside(value, values) for key, value in component.items()}
    if isinstance(component, list | tuple):
        return [_render_inside(value, values) for value in component]
    return component


def _strings(component: Any) -> Iterator[str]:
    if isinstance(component, str):
        yield component
    elif isinstance(component, Mapping):
        for value in component.values():
            yield from _strings(value)
    elif isinstance(component, list | tuple):
        for value in component:
            yield from _strings(value)


def _fill(variable: Variable, known: Mapping[str, Any]) -> str:
    value = known.get(variable.name)
    if value is not None and not is_blank(filled := str(value)):
        return filled
    if variable.default is None:
        raise MissingVariable(variable.name)
    return variable.default


def _tidy(text: str) -> str:
    """Browsers post CR LF, channels want LF; PostgreSQL stores no NUL. All other characters leave as they came."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")


@lru_cache(maxsize=1024)
def _pieces(text: str) -> tuple[str | _Hole | _Problem, ...]:
    """The text cut into what is literal, what is to be filled, and what is wrong."""
    pieces: list[str | _Hole | _Problem] = [
        _Problem(f"{_where(text, tag.start())}: tags such as {tag[0][:20]} do not work here. Only {{{{ name }}}} is filled in.")
        for tag in _TAG.finditer(text)
    ]
    at = 0
    opened: int | None = None
    for braces in _BRACES.finditer(text):
        run, start = braces[0], braces.start()
        if len(run) > 2:
            pieces.append(_Problem(f"{_where(text, start)}: {len(run)} braces in a row. Two open a variable and two close it."))
            opened, at = None, braces.end()
        elif run == "{{":
            if opened is not None:
                pieces.append(_Problem(f"{_where(text, opened)}: {{{{ is not closed before the next one. Write {{{{ name }}}}."))
            else:
                pieces.append(text[at:start])
            opened = start
        elif opened is None:
            pieces.append(_Problem(f"{_where(text, start)}: }}}} closes nothing. Write {{{{ name }}}}."))
            at = braces.end()
        else:
            pieces.append(_hole(text[opened + 2 : start], _where(text, opened)))
            opened, at = None, braces.end()
    if opened is not None:
        pieces.append(_Problem(f"{_where(text, opened)}: {{{{ is never closed. Write {{{{ name }}}}."))
    pieces.append(text[at:])
    return tuple(pieces)


def _hole(inside: str, where: str) -> _Hole | _Problem:
    name, bar, rest = inside.partition("|")
    name = "".join(c for c in name if unicodedata.category(c) != "Cf").strip()
    if not name:
        return _Problem(f"{where}: the braces are empty. Write the name of a column between them.")
    if "." in name or "[" in name or "(" in name:
        return _Problem(f'{where}: "{name}" asks for a part of a value. Only whole columns can be named, without dots or brackets.')
    if not variable_name(name) or any(unicodedata.category(c)[0] not in "LMNZ" and c not in "_-\t\n\r" for c in name):
        return _Problem(f'{where}: "{name}" is not the name of a column. Use letters, digits, spaces and underscores.')
    if not bar:
        return _Hole(Variable(variable_name(name)))
    keyword, _, quoted = rest.partition(":")
    quoted = quoted.strip()
    if keyword.strip().lower() != "default":
        return _Problem(f'{where}: "{keyword.strip()}" is not known here. The only one is {{{{ {name}|default:"there" }}}}.')
    if len(quoted) < 2 or quoted[-1] not in _QUOTES.get(quoted[0], "") or any(end in quoted[1:-1] for end in _QUOTES[quoted[0]]):
        return _Problem(f'{where}: the default needs quotes around it, as in {{{{ {name}|default:"there" }}}}.')
    return _Hole(Variable(variable_name(name), quoted[1:-1]))


def _where(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"Line {line}, character {position - (text.rfind(chr(10), 0, position) + 1) + 1}"

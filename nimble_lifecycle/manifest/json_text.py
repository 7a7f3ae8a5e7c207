"""Edits of JSON text that leave every other character as it is.

The text is never written anew from parsed values, so numbers, escapes, spacing and line ends of
what is not ours survive. Every function takes text that is known to parse.
"""

import json
import re
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from nimble_lifecycle.protocol import Json

Place: TypeAlias = tuple[str | int, ...]
"""Keys of objects and indexes of arrays that lead to a value."""

_SPACE = re.compile(r"[ \t\r\n\ufeff]*")  # some editors of Windows begin a file with the last
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Member:
    """Positions of one `"key": value` of an object, or one value of an array."""

    key: str | int
    start: int
    value: int
    end: int


def set_value(text: str, path: tuple[str, ...], value: Json, place: Place = ()) -> str:
    """Set the member at `path` of the object at `place`, which exists.

    Objects on the way are made, and new members come last.
    """
    start = _start(text, place)
    for depth, key in enumerate(path):
        member = _find(text, start, key)
        if member is None:
            made = reduce(lambda inner, name: {name: inner}, reversed(path[depth + 1 :]), value)
            return _insert(text, start, key, made)
        start, end = member.value, member.end
    return text[:start] + json.dumps(value, ensure_ascii=False) + text[end:]


def remove(text: str, path: tuple[str, ...], place: Place = ()) -> str:
    """Remove the member at `path` of the object at `place`; both exist."""
    start = _start(text, (*place, *path[:-1]))
    members = _members(text, start)
    at = [member.key for member in members].index(path[-1])
    gone = members[at]
    if at > 0:
        return text[: members[at - 1].end] + text[gone.end :]
    if len(members) > 1:
        return text[: gone.start] + text[members[1].start :]
    return text[: start + 1] + text[_skip(text, gone.end) :]


def _insert(text: str, start: int, key: str, value: Json) -> str:
    """Append a member to the object at `start`, laid out as its siblings or its document are."""
    members = _members(text, start)
    if not members:
        end, unit = _skip(text, start + 1), _unit(text)
        outer = _indentation(text, start)
        newline = newline_of(text)
        inside = _layout(text, None if unit is None else outer + unit, key, value)
        closing = "" if unit is None else newline + outer
        return text[: start + 1] + inside + closing + text[end:]
    gap = text[start + 1 : members[0].start]
    indentation = gap.rpartition("\n")[2] if "\n" in gap else None
    inside = _layout(text, indentation, key, value)
    comma = ", " if indentation is None else ","
    return text[: members[-1].end] + comma + inside + text[members[-1].end :]


def _layout(text: str, indentation: str | None, key: str, value: Json) -> str:
    """Write a member: in one line where `indentation` is None, else on lines of its own."""
    if indentation is None:
        return json.dumps({key: value}, ensure_ascii=False)[1:-1]
    newline = newline_of(text)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text) or "").split("\n")
    body = (newline + indentation).join(lines)
    return f"{newline}{indentation}{json.dumps(key, ensure_ascii=False)}: {body}"


def _start(text: str, place: Place) -> int:
    """Give where the value at `place` begins, which exists."""
    start = _skip(text, 0)
    for key in place:
        member = _find(text, start, key)
        if member is None:
            raise KeyError(key)
        start = member.value
    return start


def _find(text: str, start: int, key: str | int) -> _Member | None:
    """Find a member; of doubled keys the last, as parsers do."""
    return {member.key: member for member in _members(text, start)}.get(key)


def _members(text: str, start: int) -> list[_Member]:
    """List the members of the object or array that begins at `start`."""
    members: list[_Member] = []
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        key, value = (len(members), at) if text[start] == "[" else _key(text, at)
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key, at, value, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return members


def _key(text: str, at: int) -> tuple[str, int]:
    """Read the key at a position, and give where its value begins."""
    key, colon = _DECODER.raw_decode(text, at)
    return key, _skip(text, _skip(text, colon) + 1)


def _unit(text: str) -> str | None:
    """Give the indentation of one level: that of the first member; None: all in one line."""
    start = _skip(text, 0)
    members = _members(text, start)
    if not members:
        return "  "
    gap = text[start + 1 : members[0].start]
    return gap.rpartition("\n")[2] if "\n" in gap else None


def _indentation(text: str, position: int) -> str:
    """Give the white space that begins the line of `position`."""
    line = text.rfind("\n", 0, position) + 1
    return text[line : _skip(text, line)]


def newline_of(text: str) -> str:
    """Give the line end a text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def _skip(text: str, position: int) -> int:
    """Give the position of the next character that is not white space."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def loaded(text: str) -> Json:
    """Read a JSON document; raises ValueError."""
    content: Json = json.loads(text.removeprefix("\ufeff"))
    return content

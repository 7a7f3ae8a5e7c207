"""Edits of YAML text that leave every other character as it is, comments included.

PyYAML says where each node of the document stands; the text is never written anew from parsed
values. Every function takes text that is known to parse to a mapping.
"""

import re
from collections.abc import Sequence

import yaml

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.manifest.json_text import Place, newline_of
from nimble_lifecycle.protocol import Json

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_UNIT = "  "

_Member = tuple[yaml.ScalarNode, yaml.Node]


def set_value(text: str, path: tuple[str, ...], value: str, place: Place = ()) -> str:
    """Set the member at `path` of the mapping at `place`, which exists.

    Mappings on the way are made, and new members come last. Raises ConfigurationError where the
    member stands somewhere else, behind an alias.
    """
    node = _node(text, place)
    for depth, key in enumerate(path):
        found = _member(node, key)
        if found is None or _is_empty(found[1]):
            return _insert(text, node, found, path[depth:], value)
        node = found[1]
    return text[: node.start_mark.index] + _scalar(value) + text[node.end_mark.index :]


def remove(text: str, path: tuple[str, ...], place: Place = ()) -> str:
    """Remove the member at `path` of the mapping at `place`; both exist.

    A mapping that loses its last member is `{}`, but for the outermost.
    """
    node = _node(text, (*place, *path[:-1]))
    members = _members(node)
    at = [key.value for key, _ in members].index(path[-1])
    flow = _is_flow(node)
    if len(members) == 1 and len(path) > 1:
        start = node.start_mark.index
        before = text[:start] if flow else text[:start].rstrip() + " "
        return before + "{}" + text[_end(node) :]
    if flow:
        return _remove_from_flow(text, members, at)
    name, gone = members[at]
    before = text[: _line_start(text, name.start_mark.index)]
    after = text[_next_line(text, _end(gone)) :]
    ends_bare = not after and not text.endswith("\n")
    return (before.removesuffix("\n").removesuffix("\r") if ends_bare else before) + after


def loaded(text: str) -> Json:
    """Read a YAML document as JSON would have it; raises yaml.YAMLError."""
    return _unshared(yaml.safe_load(text))


def _unshared(value: Json) -> Json:
    """Write out what aliases stand for, so that each place has a value of its own."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unshared(inner) for inner in value]
    return value


def _remove_from_flow(text: str, members: Sequence[_Member], at: int) -> str:
    if at > 0:
        return text[: _end(members[at - 1][1])] + text[_end(members[at][1]) :]
    return text[: members[0][0].start_mark.index] + text[members[1][0].start_mark.index :]


def _insert(
    text: str, node: yaml.Node, found: _Member | None, path: Sequence[str], value: str
) -> str:
    """Append `path` to the mapping `node`, or fill the empty member that was found there."""
    if found is not None:
        return _fill(text, found, path[1:], value, in_flow=_is_flow(node))
    members = _members(node)
    if _is_flow(node):
        last = _end(members[-1][1]) if members else node.start_mark.index + 1
        comma = ", " if members else ""
        return f"{text[:last]}{comma}{_scalar(path[0])}: {_flow(path[1:], value)}{text[last:]}"
    last_key, last_value = members[-1]
    indentation = " " * last_key.start_mark.column
    return _after_line(text, _end(last_value), _block(path, value, indentation))


def _fill(text: str, found: _Member, rest: Sequence[str], value: str, *, in_flow: bool) -> str:
    """Put something where a member has `{}`, null or nothing."""
    key, empty = found
    colon = text.index(":", key.end_mark.index) + 1
    before, after = text[:colon], text[max(_end(empty), colon) :]
    if in_flow or not rest:
        return f"{before} {_flow(rest, value)}{after}"
    indentation = " " * key.start_mark.column + _UNIT
    return _after_line(before + after, colon, _block(rest, value, indentation))


def _after_line(text: str, position: int, lines: Sequence[str]) -> str:
    """Add lines after the one of `position`, whatever comment ends that."""
    newline = newline_of(text)
    if text[:position].endswith("\n"):  # as a block scalar ends
        return text[:position] + "".join(line + newline for line in lines) + text[position:]
    end = _line_end(text, position)
    return text[:end] + "".join(newline + line for line in lines) + text[end:]


def _block(path: Sequence[str], value: str, indentation: str) -> list[str]:
    *outer, last = path
    lines = [f"{indentation}{_UNIT * depth}{_scalar(key)}:" for depth, key in enumerate(outer)]
    return [*lines, f"{indentation}{_UNIT * len(outer)}{_scalar(last)}: {_scalar(value)}"]


def _flow(path: Sequence[str], value: str) -> str:
    if not path:
        return _scalar(value)
    return f"{{{_scalar(path[0])}: {_flow(path[1:], value)}}}"


def _scalar(value: str) -> str:
    """Write a text as YAML reads it back as a text: bare where it is safe, else in quotes."""
    bare = _PLAIN.fullmatch(value) and isinstance(yaml.safe_load(value), str)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return value if bare else f'"{escaped}"'


def _node(text: str, place: Place) -> yaml.Node:
    """Give the node at `place`, which exists."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert node is not None  # noqa: S101  # its content was read before
    for key in place:
        node = _inside(node, key)
    return node


def _inside(node: yaml.Node, key: str | int) -> yaml.Node:
    if isinstance(node, yaml.SequenceNode):
        items: Sequence[yaml.Node] = node.value
        return items[int(key)]
    found = _member(node, str(key))
    if found is None:
        raise KeyError(key)
    return found[1]


def _members(node: yaml.Node) -> list[_Member]:
    members: list[_Member] = node.value if isinstance(node, yaml.MappingNode) else []
    return members


def _is_flow(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and bool(node.flow_style)


def _member(node: yaml.Node, key: str) -> _Member | None:
    """Find a member; of doubled keys the last, as parsers do."""
    found = {name.value: (name, value) for name, value in _members(node)}
    member = found.get(key)
    if member is not None and not _stands_at(member):
        raise ConfigurationError(f"{key} is an alias of something else: write it out first")
    return member


def _stands_at(member: _Member) -> bool:
    """Whether the value stands behind its key, and not where an alias points to."""
    key, value = member
    return bool(value.start_mark.index >= key.end_mark.index)


def _is_empty(node: yaml.Node) -> bool:
    if isinstance(node, yaml.MappingNode):
        return not node.value
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _end(node: yaml.Node) -> int:
    """Give where a node's own text ends: a block's mark is where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)


def _line_start(text: str, position: int) -> int:
    return text.rfind("\n", 0, position) + 1


def _line_end(text: str, position: int) -> int:
    """Give where the line of `position` ends, before its line end."""
    end = text.find("\n", position)
    if end < 0:
        return len(text)
    return end - 1 if text[end - 1 : end] == "\r" and end > position else end


def _next_line(text: str, position: int) -> int:
    if text[:position].endswith("\n"):  # as a block scalar ends
        return position
    end = text.find("\n", position)
    return len(text) if end < 0 else end + 1

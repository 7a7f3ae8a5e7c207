"""The lifecycle block, and what a host would read of a server to fill it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from fastmcp import FastMCP
from fastmcp.utilities.versions import dedupe_with_versions
from mcp.server import MCPServer
from mcp_types import Tool

from nimble_lifecycle.mounted import local_tools
from nimble_lifecycle.protocol import LIFECYCLE_ID, Event, marked_event

Server: TypeAlias = FastMCP[Any] | MCPServer[Any]
"""A server object: FastMCP's, or the official SDK's."""

MAX_NAME = 128
"""Longest name of a tool, in characters (MCP revision 2025-11-25, server/tools, tool names)."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A tool as its author registered it, whether clients see it or not."""

    name: str
    server: str
    event: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server as its clients see them, and as they were registered."""

    wire: Sequence[Tool]
    registered: Sequence[Registered] = ()


@dataclass(frozen=True, slots=True)
class Handlers:
    """The marked tools of a server: a name for each event, and why hosts would refuse them.

    Where `findings` is not empty, `names` must not be written anywhere. `listed` has the names of
    every tool that clients see.
    """

    names: Mapping[Event, str] = field(default_factory=dict)
    findings: Sequence[str] = ()
    listed: frozenset[str] = frozenset()


async def listing_of(server: Server) -> Listing:
    """List the tools of a server without running it."""
    if isinstance(server, MCPServer):
        return Listing(await server.list_tools())  # all that are registered: none can be hidden
    newest = dedupe_with_versions(list(await server.list_tools()), lambda tool: tool.name)
    registered = [
        Registered(tool.name, owner.name, marked_event(tool.meta))
        for owner, tools in groupby(await local_tools(server), itemgetter(0))
        for tool in dedupe_with_versions([tool for _, tool in tools], lambda tool: tool.name)
    ]
    return Listing([tool.to_mcp_tool() for tool in newest], registered)


def find_handlers(listing: Listing) -> Handlers:
    """Find the tool marked for each event, and everything for which a host would refuse one."""
    marked: dict[Event, list[Tool]] = {event: [] for event in Event}
    findings: list[str] = []
    for tool in listing.wire:
        if LIFECYCLE_ID not in (tool.meta or {}):
            continue
        event = marked_event(tool.meta)
        if event in list(Event):
            marked[Event(event)].append(tool)
            findings += _refusals(tool)
        else:
            findings.append(
                f'tool "{tool.name}" is marked for an event no host knows: '
                f"the marker's event must be {' or '.join(Event)}"
            )
    for event, several in marked.items():
        if len(several) > 1:
            names = ", ".join(f'"{tool.name}"' for tool in several)
            findings.append(f'event "{event}" is marked on {names}: hosts call none; keep one')
    findings += _unseen(listing)
    names_found = {event: found[0].name for event, found in marked.items() if found}
    return Handlers(names_found, findings, frozenset(tool.name for tool in listing.wire))


def _refusals(tool: Tool) -> Iterator[str]:
    if required := tool.input_schema.get("required"):
        yield (
            f'tool "{tool.name}" requires {", ".join(map(str, required))}: '
            "hosts call it without arguments; give each parameter a default"
        )
    support = tool.execution.task_support if tool.execution else None
    if support in ("optional", "required"):
        yield f'tool "{tool.name}" has task support "{support}": hosts refuse it; set task=False'
    if len(tool.name) > MAX_NAME:
        yield (
            f'tool "{tool.name}" has a name of {len(tool.name)} characters: '
            f"clients may refuse more than {MAX_NAME}; give it a shorter name or namespace"
        )


def _unseen(listing: Listing) -> Iterator[str]:
    """Say which marked tools no host will ever see as such."""
    seen = Counter(marked_event(tool.meta) for tool in listing.wire)
    made = Counter(tool.event for tool in listing.registered)
    for tool in listing.registered:
        if tool.event not in list(Event) or seen[tool.event] >= made[tool.event]:
            continue
        same = [wire for wire in listing.wire if wire.name.endswith(tool.name)]
        if any(marked_event(wire.meta) == tool.event for wire in same):
            continue
        label = f'tool "{tool.name}" of "{tool.server}" is marked for "{tool.event}"'
        if same:
            yield (
                f'{label}, but listed as "{same[0].name}" without its marker: a proxy, transform '
                "or later tool of that name drops its _meta; keep it"
            )
        else:
            yield (
                f"{label}, but not listed: it is hidden by a tag, disabled, or needs a right that "
                "a host without a token lacks; show it to everybody"
            )

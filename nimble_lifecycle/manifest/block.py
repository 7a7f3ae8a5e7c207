"""The lifecycle block, and what a host would read of a server to fill it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from fastmcp import FastMCP
from fastmcp.tools import Tool as FastMCPTool
from fastmcp.utilities.versions import dedupe_with_versions, max_version
from mcp.server import MCPServer
from mcp_types import Tool

from nimble_lifecycle.mounted import local_tools, servers_of
from nimble_lifecycle.protocol import LIFECYCLE_ID, Event, marked_event
from nimble_lifecycle.target import one_line

Server: TypeAlias = FastMCP[Any] | MCPServer[Any]
"""A server object: FastMCP's, or the official SDK's."""

MAX_NAME = 128
"""Longest name of a tool, in characters (MCP revision 2025-11-25, server/tools, tool names)."""


@runtime_checkable
class HandlesTools(Protocol):
    """What `Lifecycle` shows of its handlers, on whichever server of a tree it is a provider."""

    def handles(self, tool_name: str) -> bool:
        """Whether a tool name is that of one of the handlers."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A tool as its author registered it, whether clients see it or not.

    It `replaces` a handler where one of its name was registered before, which is then gone.
    """

    name: str
    server: str
    event: str | None
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server as its clients see them, and as they were registered.

    `unheard` says of each provider that could not be asked for its tools what it raised.
    """

    wire: Sequence[Tool]
    registered: Sequence[Registered] = ()
    unheard: Sequence[str] = ()


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
        Registered(tool.name, owner.name, marked_event(tool.meta), _replaces(owner, tool))
        for owner, tool in _newest(await local_tools(server))
    ]
    return Listing([tool.to_mcp_tool() for tool in newest], registered, await _unheard(server))


def _newest(tools: Sequence[tuple[FastMCP, FastMCPTool]]) -> list[tuple[FastMCP, FastMCPTool]]:
    """Leave out older versions, which no host sees; a server mounted twice still counts twice."""
    newest: dict[tuple[int, str], str | None] = {}
    for owner, tool in tools:
        key = id(owner), tool.name
        newest[key] = max_version(newest.get(key), tool.version)
    return [(owner, tool) for owner, tool in tools if newest[id(owner), tool.name] == tool.version]


def _replaces(owner: FastMCP, tool: FastMCPTool) -> bool:
    """Whether a tool, which is no handler itself, has the name of one that was there before."""
    lifecycles = [each for each in owner.providers if isinstance(each, HandlesTools)]
    return marked_event(tool.meta) is None and any(each.handles(tool.name) for each in lifecycles)


async def _unheard(server: FastMCP) -> list[str]:
    """Ask each provider by itself: FastMCP leaves out the tools of one that fails."""
    unheard = []
    for owner in servers_of(server):
        for provider in owner.providers:
            try:
                await provider.list_tools()
            except Exception as error:  # noqa: BLE001  # a provider may raise anything
                unheard.append(f'{provider!r} of "{owner.name}": {one_line(error)}')
    return unheard


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
        findings += _several(event, several, listing) or _unseen(event, listing)
    findings += _replacements(listing)
    names_found = {event: found[0].name for event, found in marked.items() if found}
    return Handlers(names_found, findings, frozenset(tool.name for tool in listing.wire))


def _several(event: Event, wire: Sequence[Tool], listing: Listing) -> list[str]:
    """Say that an event has more than one handler, whether clients see each of them or not."""
    if len(wire) > 1:
        names = ", ".join(f'"{tool.name}"' for tool in wire)
        return [f'event "{event}" is marked on {names}: hosts call none; keep one']
    made = [
        f'"{tool.name}" of "{tool.server}"' for tool in listing.registered if tool.event == event
    ]
    if len(made) > 1:
        names = ", ".join(made)
        return [f'event "{event}" is marked on {names}, seen or not: Lifecycle refuses; keep one']
    return []


def _replacements(listing: Listing) -> list[str]:
    return [
        f'tool "{tool.name}" of "{tool.server}" replaced the lifecycle handler of that name: '
        "the server refuses to start; rename one, or give on_…(name=...)"
        for tool in listing.registered
        if tool.replaces
    ]


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


def _unseen(event: Event, listing: Listing) -> list[str]:
    """Say that no host will ever see the one tool that is marked for an event as such."""
    if any(marked_event(tool.meta) == event for tool in listing.wire):
        return []
    return [_hidden(tool, listing.wire) for tool in listing.registered if tool.event == event]


def _hidden(tool: Registered, wire: Sequence[Tool]) -> str:
    label = f'tool "{tool.name}" of "{tool.server}" is marked for "{tool.event}"'
    same = [each.name for each in wire if each.name.endswith(tool.name)]
    if same:
        return (
            f'{label}, but listed as "{same[0]}" without its marker: a proxy, transform '
            "or later tool of that name drops its _meta; keep it"
        )
    return (
        f"{label}, but not listed: it is hidden by a tag, disabled, or needs a right that "
        "a host without a token lacks; show it to everybody"
    )

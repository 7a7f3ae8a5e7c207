"""Which tools a host calls, and what it refuses, by the rules of its generation. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mcp_types import Tool

from nimble_lifecycle.protocol import LIFECYCLE_ID, Event, Json


class Generation(StrEnum):
    """The generations of hosts in the field, by where they read the handlers."""

    A = "A"
    """The lifecycle block of the catalog entry only."""
    B = "B"
    """The wire where the server advertises the extension, the block elsewhere."""
    C = "C"
    """The wire only: the extension, and a marker on one tool for each event."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A tool a host calls for an event; `sends_reason`: with a `reason` among its arguments."""

    event: Event
    tool: str
    sends_reason: bool


@dataclass(frozen=True, slots=True)
class Handlers:
    """What a host found of a server on one connection.

    `warnings` are the handlers it rejects, and why: an install succeeds in spite of them.
    `from_wire` says whether it looked at the wire or at the block. A server that lists no tools is
    not ready yet (`listed` is false), and then nothing is rejected.
    """

    ready: Handler | None = None
    removing: Handler | None = None
    warnings: Sequence[str] = ()
    from_wire: bool = False
    listed: bool = True

    def of(self, event: Event) -> Handler | None:
        """Give the handler of an event."""
        return self.ready if event is Event.READY else self.removing


def find(
    generation: Generation, tools: Sequence[Tool], block: Mapping[str, Json], *, advertised: bool
) -> Handlers:
    """Find the handlers of a server as a host of that generation does.

    `block` is the host block of the catalog entry, `advertised` whether the connection has the
    extension `ai.nimblebrain/lifecycle`. A block counts for nothing on a connection that has the
    extension, for generation B too and even where no tool is marked.
    """
    from_wire = generation is Generation.C or (generation is Generation.B and advertised)
    if not tools:
        return Handlers(from_wire=from_wire, listed=False)
    if not from_wire:
        named, warnings = _named(block, {tool.name: tool for tool in tools})
    elif advertised:
        named, warnings = _marked(tools)
    else:
        named, warnings = {}, []
    return Handlers(named.get(Event.READY), named.get(Event.REMOVING), warnings, from_wire)


Found = tuple[dict[Event, Handler], list[str]]


def _named(block: Mapping[str, Json], tools: Mapping[str, Tool]) -> Found:
    """Read the block; its `ready` handler gets a reason whether it declares one or not."""
    found: dict[Event, Handler] = {}
    warnings: list[str] = []
    lifecycle = block.get("lifecycle")
    if lifecycle is None:
        return found, warnings
    if not isinstance(lifecycle, Mapping) or not isinstance(block.get("host_version"), str):
        return found, ["the host block needs a host_version, and an object as its lifecycle"]
    for event in Event:
        name = lifecycle.get(event.block_key)
        if name is None:
            continue
        tool = tools.get(name) if isinstance(name, str) else None
        if tool is None:
            warnings.append(f"{event.block_key} names {name!r}, which is not listed")
        elif refusals := list(_refusals(tool, "optional", "required")):
            warnings += refusals
        else:
            found[event] = Handler(event, tool.name, sends_reason=event is Event.READY)
    return found, warnings


def _marked(tools: Sequence[Tool]) -> Found:
    """Read the markers; an event marked twice has no handler."""
    marked: dict[Event, list[Tool]] = {event: [] for event in Event}
    warnings: list[str] = []
    for tool in tools:
        if LIFECYCLE_ID not in (tool.meta or {}):
            continue
        event = _event(tool)
        if event is None:
            warnings.append(f"{tool.name!r} is marked for an event that no host knows")
        else:
            marked[event].append(tool)
    found: dict[Event, Handler] = {}
    for event, several in marked.items():
        names = ", ".join(repr(tool.name) for tool in several)
        if len(several) > 1:
            warnings.append(f"{event} is marked on {names}, and none of them is called")
        elif several and (refusals := list(_refusals(several[0], "required"))):
            warnings += refusals
        elif several:
            sends_reason = event is Event.READY and _declares_reason(several[0])
            found[event] = Handler(event, several[0].name, sends_reason)
    return found, warnings


def _event(tool: Tool) -> Event | None:
    marker = (tool.meta or {}).get(LIFECYCLE_ID)
    word = marker.get("event") if isinstance(marker, Mapping) else None
    return next((event for event in Event if event.value == word), None)


def _declares_reason(tool: Tool) -> bool:
    properties = tool.input_schema.get("properties")
    return isinstance(properties, Mapping) and "reason" in properties


def _refusals(tool: Tool, *supports: str) -> Iterator[str]:
    if required := tool.input_schema.get("required"):
        yield f"{tool.name!r} requires {', '.join(map(str, required))}"
    support = tool.execution.task_support if tool.execution else None
    if support in supports:
        yield f"{tool.name!r} has task support {support!r}"

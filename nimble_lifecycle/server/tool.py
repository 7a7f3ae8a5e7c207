"""The tool a host calls: a constant, flat schema, and no validation between the host and us.

FastMCP refuses undeclared arguments of a function's tool, and hosts add some; so this is a tool of
its own that takes what comes and reads the one argument it knows.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastmcp.tools import Tool, ToolResult
from mcp_types import ToolAnnotations
from pydantic import PrivateAttr

from nimble_lifecycle.protocol import LIFECYCLE_ID, Event, Json, Reason

Answer = Callable[[Mapping[str, object]], Awaitable[str]]
"""Takes the arguments of a call and gives its text, or raises a `ToolError`."""

_DESCRIPTION: Final = {
    Event.READY: "Called by the host when this server becomes reachable in a workspace.",
    Event.REMOVING: "Called by the host just before this server is removed from a workspace.",
}

_REASON: Final[dict[str, Json]] = {
    "type": "string",
    "enum": [reason.value for reason in Reason],
    "default": Reason.RESUME.value,
    "description": "Why the host calls: a person's install, or anything else.",
}


@dataclass(frozen=True, kw_only=True)
class ToolTexts:
    """What the author says about a tool; None leaves it to the function."""

    name: str | None
    title: str | None
    description: str | None
    meta: Mapping[str, Json]


class LifecycleTool(Tool):
    """The tool of one event, marked for hosts that read the wire."""

    _answer: Answer = PrivateAttr()

    @classmethod
    def build(cls, event: Event, answer: Answer, texts: ToolTexts) -> "LifecycleTool":
        """Make the tool; the marker is merged over the author's `meta`."""
        properties = {"reason": _REASON} if event is Event.READY else {}
        tool = cls(
            name=texts.name,
            title=texts.title,
            description=texts.description or _DESCRIPTION[event],
            parameters={"type": "object", "properties": properties},
            annotations=ToolAnnotations(
                read_only_hint=False,
                destructive_hint=event is Event.REMOVING,
                idempotent_hint=True,
                open_world_hint=False,
            ),
            meta={**texts.meta, LIFECYCLE_ID: {"event": event.value}},
        )
        tool._answer = answer
        return tool

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Answer one call of a host."""
        return ToolResult(content=await self._answer(arguments))

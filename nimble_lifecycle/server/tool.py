"""The tool a host calls: no validation between the host and us.

FastMCP refuses undeclared arguments of a function's tool, and hosts add some; so this is a tool of
its own that takes what comes and reads the one argument it knows.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastmcp.tools import Tool, ToolResult
from pydantic import PrivateAttr

from nimble_lifecycle.core.tool import REASON, ToolTexts, annotations_of
from nimble_lifecycle.protocol import Event

Answer = Callable[[Mapping[str, object]], Awaitable[str]]
"""Takes the arguments of a call and gives its text, or raises a `ToolError`."""


class LifecycleTool(Tool):
    """The tool of one event, marked for hosts that read the wire."""

    _answer: Answer = PrivateAttr()

    @classmethod
    def build(cls, event: Event, answer: Answer, texts: ToolTexts) -> "LifecycleTool":
        """Make the tool."""
        properties = {"reason": REASON} if event is Event.READY else {}
        tool = cls(
            name=texts.name,
            title=texts.title,
            description=texts.description,
            parameters={"type": "object", "properties": properties},
            annotations=annotations_of(event),
            meta={**texts.meta},
        )
        tool._answer = answer
        return tool

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Answer one call of a host."""
        return ToolResult(content=await self._answer(arguments))

"""`NotReady` as the SDK passes it on, and the results that callers see."""

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent

from nimble_lifecycle.core import ready


class NotReady(ready.NotReady, ToolError):  # a state, not a fault
    """The workspace's tenancy cannot be used now.

    `phase` is the one shown, `message` a fixed sentence (never the vendor's words),
    `retry_after_seconds` when to call again; None: only another install helps. Raised for the
    parameters of `Lifecycle.ready_tenancy()`; callers see it as a tool error with these three as
    its structured content.
    """

    def result(self) -> CallToolResult:
        """Give the tool error with its structured content."""
        return failed(str(self)).model_copy(update={"structured_content": self.content})


def answered(text: str) -> CallToolResult:
    """Give the result of a call that succeeded."""
    return CallToolResult(content=[TextContent(type="text", text=text)])


def failed(text: str) -> CallToolResult:
    """Give the result of a call that failed."""
    return answered(text).model_copy(update={"is_error": True})


def failed_as(result: object, refusal: CallToolResult) -> bool:
    """Whether a call failed with the words of a refusal, and not for what became of it."""
    if not isinstance(result, CallToolResult) or not result.is_error:
        return False
    return _text(result).endswith(_text(refusal))  # the SDK says before it which tool it was


def _text(result: CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))

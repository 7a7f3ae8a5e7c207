"""`NotReady` as FastMCP passes it on: a tool error, with its structured content."""

import logging

from fastmcp.exceptions import ToolError
from fastmcp.tools import ToolResult

from nimble_lifecycle.core import ready
from nimble_lifecycle.protocol import Phase


class NotReady(ready.NotReady, ToolError):  # a state, not a fault
    """The workspace's tenancy cannot be used now.

    `phase` is the one shown, `message` a fixed sentence (never the vendor's words),
    `retry_after_seconds` when to call again; None: only another install helps. Raised by
    `Lifecycle.ready_tenancy()`; callers see it as a tool error with these three as its structured
    content.
    """

    def __init__(self, phase: Phase) -> None:
        super().__init__(phase)
        self.log_level = logging.INFO

    def result(self) -> ToolResult:
        """Give the tool error with its structured content."""
        return ToolResult(content=str(self), structured_content=self.content, is_error=True)

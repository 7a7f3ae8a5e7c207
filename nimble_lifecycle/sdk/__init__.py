"""The unprivileged half for servers of the official SDK (`mcp.server.MCPServer`), without FastMCP.

The same decorators and promises as `nimble_lifecycle.Lifecycle` has for FastMCP. Importing it opens
nothing and loads no database library.
"""

from nimble_lifecycle.sdk.lifecycle import Lifecycle
from nimble_lifecycle.sdk.ready import NotReady

__all__ = ["Lifecycle", "NotReady"]

"""Advertises `ai.nimblebrain/lifecycle` to hosts of both protocol eras.

FastMCP puts registered extensions into the 2026 `server/discover` result by itself; from the 2025
`initialize` result it drops them, so a middleware puts this one back. Nothing rests on the
extension object: FastMCP runs only the first mounted server's copy.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp_types import InitializeRequest, InitializeResult

from nimble_lifecycle.errors import HandlerError
from nimble_lifecycle.mounted import local_tools
from nimble_lifecycle.protocol import LIFECYCLE_ID, marked_event


class LifecycleExtension(ServerExtension):
    """The extension as FastMCP registers it on every server that serves a handler."""

    identifier = LIFECYCLE_ID
    auto_register = True

    def clone(self) -> "LifecycleExtension":
        """Give a copy for another server; there is no state to copy."""
        return LifecycleExtension()

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Check the whole tree of servers and advertise at its root.

        Raises `HandlerError` when two tools are marked for one event: hosts call neither.
        """
        await refuse_two_handlers(self.server)
        with innermost(self.server, AdvertiseOnInitialize()):
            yield


class AdvertiseOnInitialize(Middleware):
    """Adds the extension to the capabilities of an `initialize` result."""

    async def __call__(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Step aside at once for any other message: FastMCP passes hooks one by one."""
        if context.method != "initialize":
            return await call_next(context)
        return await super().__call__(context, call_next)

    async def on_initialize(
        self,
        context: MiddlewareContext[InitializeRequest],
        call_next: CallNext[InitializeRequest, InitializeResult | None],
    ) -> InitializeResult | None:
        """Pass the result on with this extension in it."""
        result = await call_next(context)
        if result is None:
            return None
        extensions = {**(result.capabilities.extensions or {}), LIFECYCLE_ID: {}}
        capabilities = result.capabilities.model_copy(update={"extensions": extensions})
        return result.model_copy(update={"capabilities": capabilities})


@contextmanager
def innermost(server: FastMCP, middleware: Middleware) -> Generator[None]:
    """Have `middleware` on a server that is starting, inside everything its author added."""
    server.add_middleware(middleware)
    try:
        yield
    finally:
        server.middleware.remove(middleware)


async def refuse_two_handlers(server: FastMCP) -> None:
    """Raise `HandlerError` when a server or those mounted in it mark two tools for one event."""
    handlers: dict[str, str] = {}
    for owner, tool in await local_tools(server):
        event = marked_event(tool.meta)
        if event is None:
            continue
        this = f"{tool.name!r} of {owner.name!r}"
        if event in handlers:
            raise HandlerError(
                f"Two tools answer the lifecycle event {event!r}: {handlers[event]} and"
                f" {this}. Hosts call neither; keep one."
            )
        handlers[event] = this

"""Advertises `ai.nimblebrain/lifecycle` to hosts of both protocol eras.

FastMCP puts registered extensions into the 2026 `server/discover` result by itself; from the 2025
`initialize` result it drops them, so a middleware puts this one back. Nothing rests on the
extension object: FastMCP runs only the first mounted server's copy.
"""

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager

from fastmcp import FastMCP
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers import FastMCPProvider, LocalProvider, Provider
from mcp_types import InitializeRequest, InitializeResult

from nimble_lifecycle.errors import HandlerError
from nimble_lifecycle.protocol import LIFECYCLE_ID
from nimble_lifecycle.server.tool import marked_event


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
    for owner, provider in _local_providers(server):
        for tool in await provider.list_tools():
            event = marked_event(tool)
            if event is None:
                continue
            this = f"{tool.name!r} of {owner.name!r}"
            if event in handlers:
                raise HandlerError(
                    f"Two tools answer the lifecycle event {event!r}: {handlers[event]} and"
                    f" {this}. Hosts call neither; keep one."
                )
            handlers[event] = this


def _local_providers(server: FastMCP) -> Iterator[tuple[FastMCP, LocalProvider]]:
    for provider in map(_unwrapped, server.providers):
        if isinstance(provider, FastMCPProvider):
            yield from _local_providers(provider.server)
        elif isinstance(provider, LocalProvider):
            yield server, provider


def _unwrapped(provider: Provider) -> Provider:
    """Look behind the wrappers a namespace or renamed tools make; they have no public name."""
    while (inner := getattr(provider, "_inner", None)) is not None:
        provider = inner
    return provider

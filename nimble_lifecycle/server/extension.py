"""Advertises `ai.nimblebrain/lifecycle` to hosts of both protocol eras.

FastMCP puts registered extensions into the 2026 `server/discover` result by itself; from the 2025
`initialize` result it drops them, so a middleware puts this one back. Nothing rests on the
extension object: FastMCP runs only the first mounted server's copy.
"""

import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import Tool
from fastmcp.tools.tool_transform import TransformedTool
from mcp_types import CallToolRequestParams, InitializeRequest, InitializeResult

from nimble_lifecycle.errors import HandlerError
from nimble_lifecycle.mounted import local_tools, reachable_tools, servers_of
from nimble_lifecycle.protocol import LIFECYCLE_ID, marked_event
from nimble_lifecycle.server.ready import NotReady


class LifecycleExtension(ServerExtension):
    """The extension as FastMCP registers it on every server that serves a handler."""

    identifier = LIFECYCLE_ID
    auto_register = True

    def clone(self) -> "LifecycleExtension":
        """Give a copy for another server; there is no state to copy."""
        return LifecycleExtension()

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Check the whole tree of servers, advertise at its root, and see to its calls there.

        Raises `HandlerError` for what keeps a host from a handler.
        """
        await refuse_two_handlers(self.server)
        await refuse_cached_handlers(self.server)
        listed = await _listed(self.server)
        await refuse_replaced_handlers(self.server, listed)
        calls = CallsOfTree(listed)
        with innermost(self.server, AdvertiseOnInitialize()), innermost(self.server, calls):
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


class CallsOfTree(Middleware):
    """Sees to calls at the root of a tree of servers, as `listed` there.

    A tool of any server in it may take a tenancy of another, whose middleware does not see the
    call; and FastMCP refuses what a tool does not declare once a mount has given it another name.
    """

    def __init__(self, listed: Sequence[Tool]) -> None:
        self._declared = {
            tool.name: tool.parameters.get("properties", {}).keys()
            for tool in listed
            if isinstance(tool, TransformedTool) and marked_event(tool.meta) is not None
        }

    async def __call__(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Pass a call on, a handler's with what it declares, and show `NotReady` as it is meant."""
        message = context.message
        if not isinstance(message, CallToolRequestParams):
            return await call_next(context)
        declared = self._declared.get(message.name)
        if declared is not None and message.arguments:
            known = {name: each for name, each in message.arguments.items() if name in declared}
            context = context.copy(message=message.model_copy(update={"arguments": known}))
        try:
            return await call_next(context)
        except NotReady as error:
            return error.result()


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


async def refuse_replaced_handlers(server: FastMCP, listed: Sequence[Tool]) -> None:
    """Raise `HandlerError` where another tool of its name stands in a handler's place."""
    shown = {marked_event(tool.meta) for tool in listed}
    for owner, tool in await local_tools(server):
        event = marked_event(tool.meta)
        if event is None or event in shown:
            continue
        # What was transformed may be this very tool, without its marker: for manifests to say.
        others = (each for each in listed if not isinstance(each, TransformedTool))
        if any(tool.name == other.name for other in others):
            raise HandlerError(
                f"Another tool stands in the place of {tool.name!r} of {owner.name!r}, which"
                f" answers the lifecycle event {event!r}. Rename one, or give on_…(name=...)."
            )


async def refuse_cached_handlers(server: FastMCP) -> None:
    """Raise `HandlerError` where FastMCP's own cache would answer a host in a handler's place.

    A host says the same for every install: the second would be answered from the first.
    """
    for each in servers_of(server):
        caches = [cache for cache in map(_cached_by, each.middleware) if cache is not None]
        tools = await _listed(each) if caches else ()
        handlers = [tool.name for tool in tools if marked_event(tool.meta) is not None]
        cached = [name for name in handlers if any(is_cached(name) for is_cached in caches)]
        if cached:
            raise HandlerError(
                f"The ResponseCachingMiddleware of {each.name!r} would answer {', '.join(cached)}"
                " from its cache, and no second install would be heard. Give it"
                f" call_tool_settings={{'excluded_tools': {handlers!r}}}."
            )


async def _listed(server: FastMCP) -> Sequence[Tool]:
    """List what can be listed before any request; nothing where an author's transform needs one."""
    try:
        return await reachable_tools(server)
    except Exception:  # noqa: BLE001  # a check may not keep a server from starting
        return ()


def _cached_by(middleware: Middleware) -> Callable[[str], bool] | None:
    """Say of which tools a middleware caches the results; None where it is no cache."""
    # Whoever has one has loaded its module, which is no part of our own import.
    caching = sys.modules.get("fastmcp.server.middleware.caching")
    if caching is None or not isinstance(middleware, caching.ResponseCachingMiddleware):
        return None
    # Neither is public, and there is no other way to ask.
    if middleware._call_tool_settings.get("enabled") is False:
        return None
    matches: Callable[[str], bool] = middleware._matches_tool_cache_settings
    return matches

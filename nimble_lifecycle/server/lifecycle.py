"""`Lifecycle`: what the author of a server declares, and FastMCP's hooks into it.

It is a FastMCP `Provider`, so that its lifespan runs for every server, served by itself or mounted
at any depth. Nothing is opened before serving starts.
"""

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from typing import Any

from fastmcp import FastMCP
from fastmcp.dependencies import Depends
from fastmcp.server.context import Context
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers import Provider
from fastmcp.tools import Tool, ToolResult
from mcp_types import CallToolRequestParams

from nimble_lifecycle.core.decorator import HandlerDecorator
from nimble_lifecycle.core.handler import Handler
from nimble_lifecycle.core.handlers import Handlers
from nimble_lifecycle.core.identity import EdgeTrust
from nimble_lifecycle.core.ready import usable
from nimble_lifecycle.core.service import Declaration, ParamsSource, Service
from nimble_lifecycle.core.serving import Serving, new_service, refuse_forbidden_env
from nimble_lifecycle.core.tool import ToolTexts
from nimble_lifecycle.errors import ConfigurationError, HandlerError
from nimble_lifecycle.protocol import Event, Tenancy
from nimble_lifecycle.server.ambient import (
    CurrentCall,
    WorkspaceSource,
    as_tool_errors,
    fastmcp_supply,
)
from nimble_lifecycle.server.extension import (
    AdvertiseOnInitialize,
    LifecycleExtension,
    innermost,
)
from nimble_lifecycle.server.ready import NotReady
from nimble_lifecycle.server.tool import LifecycleTool
from nimble_lifecycle.stdout import printed_to_stderr


class Lifecycle(Provider):
    """The lifecycle of one FastMCP server: its two handlers, and the tenancy for its other tools.

    `kind` is what is kept, by default the server's name; it is permanent. `database_url` beats
    `NIMBLE_DATABASE_URL`. `workspace` takes FastMCP's `Context` of a call and gives its
    `Workspace`, replacing the three sources otherwise looked at: the access token's `claims`
    (workspace, tenant), the edge's headers where `trust_edge_headers` says whose to trust (a list
    of networks, a mapping of one or more secret headers to their values, or `True` for loopback
    peers), and `NB_WORKSPACE_ID` where there is no HTTP request. `params` takes a `Workspace` and
    gives a pydantic model, kept as JSON at each `ready`. `deadline` is in seconds, for a whole
    call. With one of the environment variables of `forbidden_env` set, serving is refused with exit
    code 1. Raises `ConfigurationError` for what cannot be meant.
    """

    def __init__(
        self,
        mcp: FastMCP,
        *,
        kind: str | None = None,
        database_url: str | None = None,
        workspace: WorkspaceSource | None = None,
        claims: Sequence[str] = ("workspace_id", "tenant_id"),
        trust_edge_headers: EdgeTrust = False,
        params: ParamsSource | None = None,
        deadline: float = 3.0,
        forbidden_env: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if not isinstance(mcp, FastMCP):
            raise ConfigurationError(
                f"Lifecycle takes a FastMCP server, not {mcp!r}. For an MCPServer of the official"
                " SDK there is nimble_lifecycle.sdk.Lifecycle."
            )
        if any(isinstance(provider, Lifecycle) for provider in mcp.providers):
            raise ConfigurationError(f"The server {mcp.name!r} already has a Lifecycle; use that.")
        self.mcp = mcp
        self.kind = _permanent_name(mcp) if kind is None else kind
        self.on_ready = HandlerDecorator(Event.READY, self._register)
        self.on_removing = HandlerDecorator(Event.REMOVING, self._register)
        self._author = Declaration.read(
            kind=self.kind,
            workspace=workspace,
            claims=claims,
            trust_edge_headers=trust_edge_headers,
            params=params,
            deadline=deadline,
        )
        self._database_url = database_url
        self._forbidden_env = forbidden_env
        self._handlers = Handlers()
        self._serving = Serving(self._new_service)
        mcp.add_provider(self)

    def ready_tenancy(self) -> Tenancy:
        """Give a tool its workspace's ready tenancy, as the default of a parameter.

        Where the tenancy is not ready the tool is not run and its caller gets
        `NotReady`; where none was ever asked for, it is asked for.
        """
        return Depends(self._ready_tenancy)

    async def _ready_tenancy(self) -> Tenancy:
        with as_tool_errors():
            tenancy = await self._serving.service.tenancy(CurrentCall())
        if not usable(tenancy):
            raise NotReady(tenancy.phase)
        return tenancy

    # -- handlers --------------------------------------------------------------------------------

    def _register(self, event: Event, function: Callable[..., object], texts: ToolTexts) -> None:
        handler = Handler.read(event, function, texts.name, fastmcp_supply)
        self._handlers.refuse_second(handler)
        if _registered_tool(self.mcp, handler.name) is not None:
            raise HandlerError(f"{handler.label}: {_name_taken(handler.name, self.mcp)}")
        answer = partial(self._answer, handler)
        self.mcp.add_tool(LifecycleTool.build(event, answer, texts.of(handler)))
        self._handlers.add(handler)

    def handles(self, tool_name: str) -> bool:
        """Whether a tool name is that of one of the handlers."""
        return self._handlers.handles(tool_name)

    async def _answer(self, handler: Handler, arguments: Mapping[str, object]) -> str:
        with as_tool_errors():
            return await self._serving.service.answer(CurrentCall(), handler, arguments)

    async def _refuse_replaced_handlers(self) -> None:
        for tool in await self.mcp.local_provider.list_tools():
            for handler in self._handlers:
                if tool.name == handler.name and not isinstance(tool, LifecycleTool):
                    raise HandlerError(f"{handler.label}: {_name_taken(tool.name, self.mcp)}")

    # -- FastMCP's hooks -------------------------------------------------------------------------

    def required_extensions(self) -> Sequence[ServerExtension]:
        """Ask for the extension while a handler is registered; FastMCP asks again at start."""
        return (LifecycleExtension(),) if self._handlers else ()

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Check what was declared, open the store, serve, and close it.

        Raises `HandlerError` when a handler's tool was replaced, `ConfigurationError` for a
        database URL that cannot be meant.
        """
        serving = AsyncExitStack()
        with self._off_the_wire():
            refuse_forbidden_env(self.mcp.name, self._forbidden_env)
            await self._refuse_replaced_handlers()
            service = await serving.enter_async_context(self._serving.entered())
        try:
            with innermost(self.mcp, _OrdinaryCalls(self, service)), self._advertised():
                yield
        finally:
            with self._off_the_wire():
                await serving.aclose()

    def _off_the_wire(self) -> AbstractContextManager[None]:
        """Keep prints off stdout on stdio, which FastMCP itself does only inside this lifespan."""
        on_stdio = Context(self.mcp).transport == "stdio"
        return printed_to_stderr() if on_stdio else nullcontext()

    def _new_service(self) -> Service:
        return new_service(self._author, self._database_url)

    def _advertised(self) -> AbstractContextManager[None]:
        """Advertise here too: FastMCP runs an extension's lifespan at the root of a tree only."""
        return innermost(self.mcp, AdvertiseOnInitialize()) if self._handlers else nullcontext()


class _OrdinaryCalls(Middleware):
    """Notes that a workspace is in use, and shows `NotReady` with its structured content.

    Innermost, so that an author's middleware sees a result where it would else see an exception.
    """

    def __init__(self, lifecycle: Lifecycle, service: Service) -> None:
        self._lifecycle = lifecycle
        self._service = service

    async def __call__(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Step aside at once for what is no ordinary call: hooks are passed one by one."""
        if self._is_ordinary(context.message):
            return await super().__call__(context, call_next)
        return await call_next(context)

    async def on_call_tool(
        self,
        context: MiddlewareContext[CallToolRequestParams],
        call_next: CallNext[CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        """Pass the call on."""
        self._service.note_use(CurrentCall())
        try:
            return await call_next(context)
        except NotReady as error:
            return error.result()

    def _is_ordinary(self, message: object) -> bool:
        # What does not validate comes as the host sent it, and is refused further in.
        called = message.name if isinstance(message, CallToolRequestParams) else None
        return called is not None and not self._lifecycle.handles(called)


def _permanent_name(mcp: FastMCP) -> str:
    """Give the server's name as the kind, unless FastMCP made it up: the next start has another."""
    if re.fullmatch(rf"{type(mcp).__name__}-[0-9a-f]{{4}}", mcp.name):
        raise ConfigurationError(
            'The server needs a permanent name: FastMCP("acme-outreach"), or Lifecycle(kind=...).'
        )
    return mcp.name


def _registered_tool(mcp: FastMCP, name: str) -> Tool | None:
    """Look a tool up at once; where FastMCP would have to wait, the check at start must do."""
    lookup = mcp.local_provider.get_tool(name)
    try:
        lookup.send(None)
    except StopIteration as found:
        tool: Tool | None = found.value
        return tool
    finally:
        lookup.close()
    return None


def _name_taken(name: str, mcp: FastMCP) -> str:
    return f"{mcp.name!r} has another tool named {name!r}. Rename one, or give on_…(name=...)."

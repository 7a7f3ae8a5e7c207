"""`Lifecycle`: what the author of a server declares, and FastMCP's hooks into it.

It is a FastMCP `Provider`, so that its lifespan runs for every server, served by itself or mounted
at any depth. Nothing is opened before serving starts.
"""

import os
import re
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar, overload

from fastmcp import FastMCP
from fastmcp.dependencies import Depends
from fastmcp.exceptions import ToolError
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers import Provider
from fastmcp.tools import Tool, ToolResult
from mcp_types import CallToolRequestParams

from nimble_lifecycle.errors import ConfigurationError, ForbiddenVariable, HandlerError
from nimble_lifecycle.protocol import Event, Json, Tenancy
from nimble_lifecycle.server.extension import (
    AdvertiseOnInitialize,
    LifecycleExtension,
    innermost,
)
from nimble_lifecycle.server.handler import Handler
from nimble_lifecycle.server.identity import EdgeTrust, Identity
from nimble_lifecycle.server.ready import NotReady
from nimble_lifecycle.server.service import Declaration, ParamsSource, Service, WorkspaceSource
from nimble_lifecycle.server.tool import LifecycleTool, ToolTexts

F = TypeVar("F", bound=Callable[..., object])
Register: TypeAlias = Callable[[Event, Callable[..., object], ToolTexts], None]


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
            raise ConfigurationError(f"Lifecycle takes a FastMCP server, not {mcp!r}")
        for name, function in (("workspace", workspace), ("params", params)):
            if function is not None and not callable(function):
                raise ConfigurationError(f"{name} must be a function, not {function!r}")
        if any(isinstance(provider, Lifecycle) for provider in mcp.providers):
            raise ConfigurationError(f"The server {mcp.name!r} already has a Lifecycle; use that.")
        if not 0 < deadline < float("inf"):
            raise ConfigurationError("deadline must be a positive number of seconds")
        self.mcp = mcp
        self.kind = kind or _permanent_name(mcp)
        self.on_ready = HandlerDecorator(Event.READY, self._register)
        self.on_removing = HandlerDecorator(Event.REMOVING, self._register)
        self._author = Declaration(
            kind=self.kind,
            identity=Identity(claims, trust_edge_headers),
            workspace=workspace,
            params=params,
            deadline=deadline,
        )
        self._database_url = database_url
        self._forbidden_env = (forbidden_env,) if isinstance(forbidden_env, str) else forbidden_env
        self._handlers: dict[Event, Handler] = {}
        self._service: Service | None = None
        mcp.add_provider(self)

    def ready_tenancy(self) -> Tenancy:
        """Give a tool its workspace's ready tenancy, as the default of a parameter.

        Where the tenancy is not ready the tool is not run and its caller gets
        `NotReady`; where none was ever asked for, it is asked for.
        """
        return Depends(self._ready_tenancy)

    async def _ready_tenancy(self) -> Tenancy:
        return await self._serving().ready_tenancy()

    def _serving(self) -> Service:
        if self._service is None:
            raise ToolError("The server is not serving yet: its lifespan has not been entered.")
        return self._service

    # -- handlers --------------------------------------------------------------------------------

    def _register(self, event: Event, function: Callable[..., object], texts: ToolTexts) -> None:
        handler = Handler.read(event, function, texts.name)
        if event in self._handlers:
            raise HandlerError(
                f"{handler.label} is the second one; {self._handlers[event].label} is there"
                " already. A host calls neither of two; keep one."
            )
        if _registered_tool(self.mcp, handler.name) is not None:
            raise HandlerError(f"{handler.label}: {_name_taken(handler.name, self.mcp)}")
        texts = replace(
            texts, name=handler.name, description=texts.description or handler.description
        )
        self.mcp.add_tool(LifecycleTool.build(event, partial(self._answer, handler), texts))
        self._handlers[event] = handler

    def handles(self, tool_name: str) -> bool:
        """Whether a tool name is that of one of the handlers."""
        return any(handler.name == tool_name for handler in self._handlers.values())

    async def _answer(self, handler: Handler, arguments: Mapping[str, object]) -> str:
        return await self._serving().answer(handler, arguments)

    async def _refuse_replaced_handlers(self) -> None:
        for tool in await self.mcp.local_provider.list_tools():
            for handler in self._handlers.values():
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
        self._refuse_forbidden_env()
        await self._refuse_replaced_handlers()
        service = self._new_service()
        await service.open()
        self._service = service
        try:
            with innermost(self.mcp, _OrdinaryCalls(self, service)), self._advertised():
                yield
        finally:
            self._service = None
            await service.close()

    def _new_service(self) -> Service:
        # Only now: these load the database libraries, which an import of the server must not.
        from nimble_lifecycle.settings import ServerSettings  # noqa: PLC0415
        from nimble_lifecycle.store import IntentStore, Threads  # noqa: PLC0415

        url = self._database_url or ServerSettings().database_url.get_secret_value()
        return Service(IntentStore(url), self._author, Threads)

    def _advertised(self) -> AbstractContextManager[None]:
        """Advertise here too: FastMCP runs an extension's lifespan at the root of a tree only."""
        return innermost(self.mcp, AdvertiseOnInitialize()) if self._handlers else nullcontext()

    def _refuse_forbidden_env(self) -> None:
        for name in self._forbidden_env:
            if name in os.environ:
                error = ForbiddenVariable(
                    f"{self.mcp.name!r} must not have {name}: it is for the worker alone. Unset it."
                )
                sys.stderr.write(f"nimble-lifecycle: {error}\n")
                raise SystemExit(1) from error


class HandlerDecorator:
    """`lifecycle.on_ready` and `lifecycle.on_removing`, bare or with arguments.

    The decorated name stays the plain function. The function is called once the host's intent is
    recorded; its text is the answer. `tenancy` and `reason` are given by name, FastMCP's `Context`
    and `Depends` as usual. `name`, `title`, `description` and `meta` are those of the tool, by
    default the function's name and docstring. Raises `HandlerError`.
    """

    def __init__(self, event: Event, register: Register) -> None:
        self._event = event
        self._register = register

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        meta: Mapping[str, Json] | None = None,
    ) -> Callable[[F], F]: ...
    def __call__(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        meta: Mapping[str, Json] | None = None,
    ) -> F | Callable[[F], F]:
        """Register a function as this event's handler."""
        texts = ToolTexts(name=name, title=title, description=description, meta=meta or {})

        def register(function: F) -> F:
            if not callable(function):
                raise HandlerError(f"on_{self._event} decorates a function, not {function!r}")
            self._register(self._event, function, texts)
            return function

        return register if function is None else register(function)


class _OrdinaryCalls(Middleware):
    """Notes that a workspace is in use, and shows `NotReady` with its structured content.

    Innermost, so that an author's middleware sees a result where it would else see an exception.
    """

    def __init__(self, lifecycle: Lifecycle, service: Service) -> None:
        self._lifecycle = lifecycle
        self._service = service

    async def on_call_tool(
        self,
        context: MiddlewareContext[CallToolRequestParams],
        call_next: CallNext[CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        """Pass the call on."""
        if not self._lifecycle.handles(context.message.name):
            self._service.heartbeat.beat()
        try:
            return await call_next(context)
        except NotReady as error:
            return error.result()


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

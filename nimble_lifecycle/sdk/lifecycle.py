"""`Lifecycle` for a server of the official SDK: an `Extension`, and a lifespan around its author's.

The SDK reads an extension when the server is made, so the handlers are registered before that.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Annotated, Any, TypeAlias, TypeVar, overload

from mcp.server import MCPServer, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Context, Extension, Resolve, ToolBinding
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolRequestParams, CallToolResult
from pydantic import WithJsonSchema

from nimble_lifecycle.core.decorator import HandlerDecorator
from nimble_lifecycle.core.handler import Handler
from nimble_lifecycle.core.handlers import Handlers
from nimble_lifecycle.core.identity import EdgeTrust
from nimble_lifecycle.core.ready import usable
from nimble_lifecycle.core.service import (
    Declaration,
    ParamsSource,
    Refused,
    Service,
    refuse_no_kind,
)
from nimble_lifecycle.core.serving import Serving, new_service, refuse_forbidden_env
from nimble_lifecycle.core.tool import REASON, ToolTexts, annotations_of
from nimble_lifecycle.errors import ConfigurationError, HandlerError
from nimble_lifecycle.protocol import LIFECYCLE_ID, Event, Reason, Tenancy, marked_event
from nimble_lifecycle.sdk.ready import NotReady, answered, failed, failed_as
from nimble_lifecycle.sdk.request import ContextCall, WorkspaceSource, sdk_supply
from nimble_lifecycle.stdout import flush_stdout

T = TypeVar("T")
Lifespan: TypeAlias = Callable[[MCPServer[T]], AbstractAsyncContextManager[T]]
"""What `MCPServer` takes as its lifespan; `T` is what its `Context` has as lifespan context."""

_TELLS_CAPABILITIES = ("initialize", "server/discover")
_UNNAMED = "mcp-server"  # what the SDK calls a server without a name


class Lifecycle(Extension):
    """The lifecycle of one `MCPServer`: its two handlers, and the tenancy for its other tools.

    Given to the server twice, once its handlers are registered: `MCPServer("acme-outreach",
    extensions=[lifecycle], lifespan=lifecycle.lifespan())`. The arguments are those of
    `nimble_lifecycle.Lifecycle`; `kind` is by default the server's name, and `workspace` takes the
    SDK's `Context`. Raises `ConfigurationError` for what cannot be meant.
    """

    identifier = LIFECYCLE_ID

    def __init__(
        self,
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
        self.on_ready = HandlerDecorator(Event.READY, self._register)
        self.on_removing = HandlerDecorator(Event.REMOVING, self._register)
        self._author = Declaration.read(
            kind=kind,
            workspace=workspace,
            claims=claims,
            trust_edge_headers=trust_edge_headers,
            params=params,
            deadline=deadline,
        )
        self._database_url = database_url
        self._forbidden_env = forbidden_env
        self._handlers = Handlers()
        self._texts: dict[Event, ToolTexts] = {}
        self._is_read = False
        self._server: MCPServer[Any] | None = None
        self._serving = Serving(self._new_service)
        self._refusals: ContextVar[list[CallToolResult]] = ContextVar("refusals")

    def ready_tenancy(self) -> Resolve:
        """Give a tool its workspace's ready tenancy, in the annotation of a parameter.

        That is `tenancy: Annotated[Tenancy, lifecycle.ready_tenancy()]`. Where the tenancy is not
        ready the tool is not run and its caller gets `NotReady`; where none was ever asked for, it
        is asked for.
        """
        return Resolve(self._ready_tenancy)

    @overload
    def lifespan(self) -> Lifespan[dict[str, Any]]: ...
    @overload
    def lifespan(self, own: Lifespan[T]) -> Lifespan[T]: ...
    def lifespan(self, own: Lifespan[Any] | None = None) -> Lifespan[Any]:
        """Give the server's lifespan: ours, around the author's own, whose context is kept.

        Entering it raises `HandlerError` for handlers that no host could call,
        `ConfigurationError` for a server without a name or a database URL that cannot be meant.
        """

        @asynccontextmanager
        async def around(server: MCPServer[Any]) -> AsyncGenerator[Any]:
            async with self._served(server), (own or _nothing)(server) as context:
                yield context

        return around

    # -- handlers --------------------------------------------------------------------------------

    def _register(self, event: Event, function: Callable[..., object], texts: ToolTexts) -> None:
        handler = Handler.read(event, function, texts.name, sdk_supply)
        if self._is_read:
            raise HandlerError(
                f"{handler.label} is registered after the server was made, which has read its"
                " tools. Move MCPServer(...) below it."
            )
        self._handlers.add(handler)
        self._texts[event] = texts.of(handler)

    async def _answer(
        self, handler: Handler, context: Context[Any, Any], arguments: Mapping[str, object]
    ) -> CallToolResult:
        try:
            service = self._serving.service
            return answered(await service.answer(ContextCall(context), handler, arguments))
        except Refused as error:
            return failed(str(error))

    async def _ready_tenancy(self, context: Context[Any, Any]) -> Tenancy:
        try:
            tenancy = await self._serving.service.tenancy(ContextCall(context))
        except Refused as error:
            self._show(failed(str(error)))
            raise ToolError(str(error)) from None
        if usable(tenancy):
            return tenancy
        refusal = NotReady(tenancy.phase)
        self._show(refusal.result())
        raise refusal

    def _show(self, refusal: CallToolResult) -> None:
        """Leave for `intercept_tool_call` what the SDK makes a bare text of."""
        self._refusals.get([]).append(refusal)

    # -- the SDK's hooks -------------------------------------------------------------------------

    def tools(self) -> Sequence[ToolBinding]:
        """Give the server the tools of the handlers."""
        self._is_read = True
        return [self._tool(handler) for handler in self._handlers]

    def _tool(self, handler: Handler) -> ToolBinding:
        # The SDK leaves out undeclared arguments, and takes any value for an object.
        async def ready(
            context: Context[Any, Any],
            reason: Annotated[object, WithJsonSchema({**REASON})] = Reason.RESUME.value,
        ) -> CallToolResult:
            return await self._answer(handler, context, {"reason": reason})

        async def removing(context: Context[Any, Any]) -> CallToolResult:
            return await self._answer(handler, context, {})

        texts = self._texts[handler.event]
        told = {
            "name": texts.name,
            "title": texts.title,
            "description": texts.description,
            "annotations": annotations_of(handler.event),
            "structured_output": False,
        }
        function = ready if handler.event is Event.READY else removing
        return ToolBinding(function, meta={**texts.meta}, kwargs=told)

    async def intercept_tool_call(
        self,
        params: CallToolRequestParams,
        ctx: ServerRequestContext[Any, Any],
        call_next: CallNext,
    ) -> HandlerResult:
        """Note that a workspace is in use, and show `NotReady` with its structured content."""
        if not self._handlers.handles(params.name):
            context = Context(request_context=ctx, mcp_server=self._server)
            with suppress(Refused):  # nobody serves: the call itself says so where it must
                self._serving.service.note_use(ContextCall(context))
        refusals: list[CallToolResult] = []
        before = self._refusals.set(refusals)
        try:
            result = await call_next(ctx)
        finally:
            self._refusals.reset(before)
        return next((refusal for refusal in refusals if failed_as(result, refusal)), result)

    @asynccontextmanager
    async def _served(self, server: MCPServer[Any]) -> AsyncGenerator[None]:
        refuse_forbidden_env(server.name, self._forbidden_env)
        await self._refuse_unusable(server)
        self._server = server
        flush_stdout()
        async with self._serving.entered():
            server.middleware.append(self._advertise)
            try:
                yield
            finally:
                server.middleware.remove(self._advertise)
                flush_stdout()

    async def _refuse_unusable(self, server: MCPServer[Any]) -> None:
        """Refuse to start where hosts would find another tool than ours, two, or none."""
        if not self._author.kind and server.name == _UNNAMED:
            raise ConfigurationError(
                'The server needs a permanent name: MCPServer("acme-outreach"), or'
                " Lifecycle(kind=...)."
            )
        listed = await server.list_tools()
        for handler in self._handlers:
            marked = [tool.name for tool in listed if marked_event(tool.meta) == handler.event]
            if handler.name not in [tool.name for tool in listed]:
                raise ConfigurationError(
                    f"{server.name!r} does not have {handler.label}:"
                    " MCPServer(extensions=[lifecycle]) registers it."
                )
            if handler.name not in marked:
                raise HandlerError(
                    f"{handler.label}: {server.name!r} has another tool named {handler.name!r}."
                    " Rename one, or give on_…(name=...)."
                )
            if len(marked) > 1:
                raise HandlerError(
                    f"Several tools of {server.name!r} answer the lifecycle event"
                    f" {handler.event.value!r}: {', '.join(marked)}. Hosts call none; keep one."
                )

    async def _advertise(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Advertise the extension on both eras, and only where there is a handler.

        The SDK leaves extensions out of the 2025 `initialize` result.
        """
        result = await call_next(ctx)
        if ctx.method not in _TELLS_CAPABILITIES or not isinstance(result, dict):
            return result
        capabilities = {**(result.get("capabilities") or {})}
        extensions = {**(capabilities.pop("extensions", None) or {})}
        extensions.pop(LIFECYCLE_ID, None)
        if self._handlers:
            extensions[LIFECYCLE_ID] = {}
        if extensions:
            capabilities["extensions"] = extensions
        return {**result, "capabilities": capabilities}

    def _new_service(self) -> Service:
        name = "" if self._server is None else self._server.name
        author = replace(self._author, kind=self._author.kind or name)
        refuse_no_kind(author.kind)
        return new_service(author, self._database_url)


@asynccontextmanager
async def _nothing(_server: MCPServer[Any]) -> AsyncGenerator[dict[str, Any]]:
    """Be the lifespan of an author who has none."""
    yield {}

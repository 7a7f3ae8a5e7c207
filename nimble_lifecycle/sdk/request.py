"""What the SDK knows of a call, and what it gives to handlers."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.utilities.context_injection import find_context_parameter
from starlette.requests import Request

from nimble_lifecycle.core.call import Call
from nimble_lifecycle.core.handler import Supply
from nimble_lifecycle.protocol import Workspace

WorkspaceSource: TypeAlias = Callable[[Context[Any, Any]], Workspace | Awaitable[Workspace]]
"""An author's function from the SDK's `Context` of a call to its `Workspace`, plain or async."""


class ContextCall:
    """A call as its `Context` tells of it; see `nimble_lifecycle.core.call.Call`."""

    def __init__(self, context: Context[Any, Any]) -> None:
        self.context = context

    @property
    def request(self) -> Request | None:
        """The HTTP request, if there is one."""
        request: Request | None = self.context.request_context.request
        return request

    @property
    def claims(self) -> Mapping[str, object] | None:
        """The claims of the access token that came with this request, if there is one."""
        request = self.request
        user = None if request is None else request.scope.get("user")
        return (user.access_token.claims or {}) if isinstance(user, AuthenticatedUser) else None


def sdk_supply(function: Callable[..., object]) -> Supply:
    """Say which parameter of a function is the SDK's `Context`."""
    name = find_context_parameter(function)
    names = () if name is None else (name,)

    @asynccontextmanager
    async def enter(call: Call) -> AsyncGenerator[Mapping[str, object]]:
        yield dict.fromkeys(names, call.context)

    return Supply(names=names, enter=enter, words="and the SDK's `Context`")

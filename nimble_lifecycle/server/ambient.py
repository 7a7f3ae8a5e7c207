"""What FastMCP knows of the current call, and what it gives to functions.

FastMCP keeps both in the context of the task, so there is nothing to pass along.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from fastmcp import Context
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import (
    get_access_token,
    get_context,
    get_http_request,
    resolve_dependencies,
    transform_context_annotations,
)
from starlette.requests import Request
from uncalled_for import get_dependency_parameters

from nimble_lifecycle.core.handler import Supply
from nimble_lifecycle.core.service import Refused
from nimble_lifecycle.protocol import Workspace

WorkspaceSource: TypeAlias = Callable[[Context], Workspace | Awaitable[Workspace]]
"""An author's function from FastMCP's `Context` of a call to its `Workspace`, plain or async."""


class CurrentCall:
    """The call that the current task serves; see `nimble_lifecycle.core.call.Call`."""

    @property
    def context(self) -> Context:
        """FastMCP's `Context`."""
        return get_context()

    @property
    def request(self) -> Request | None:
        """The HTTP request, if there is one."""
        try:
            return get_http_request()
        except RuntimeError:
            return None

    @property
    def claims(self) -> Mapping[str, object] | None:
        """The claims of the access token, if there is one."""
        token = get_access_token()
        return None if token is None else token.claims


def fastmcp_supply(function: Callable[..., object]) -> Supply:
    """Say which parameters of a function FastMCP fills: its `Context`, and those with `Depends`."""
    resolved = transform_context_annotations(function)
    return Supply(
        names=get_dependency_parameters(resolved).keys(),
        enter=lambda _call: resolve_dependencies(resolved, {}),
        words="a FastMCP `Context` and `Depends`",
    )


@contextmanager
def as_tool_errors() -> Generator[None]:
    """Turn `Refused` into FastMCP's tool error."""
    try:
        yield
    except Refused as error:
        raise ToolError(str(error)) from None

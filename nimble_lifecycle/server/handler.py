"""A lifecycle handler as its author wrote it: reading its signature, and calling it.

`tenancy` and `reason` are given by name; FastMCP's `Context` and `Depends` are resolved by FastMCP.
Anything else a host could not supply is refused where it is written.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING

from fastmcp.server.dependencies import (
    resolve_dependencies,
    transform_context_annotations,
)
from mcp.shared.tool_name_validation import validate_tool_name
from uncalled_for import get_dependency_parameters

from nimble_lifecycle.errors import HandlerError
from nimble_lifecycle.protocol import Event
from nimble_lifecycle.server.deadline import Deadline, blamed

if TYPE_CHECKING:
    from nimble_lifecycle.store.ports import Hop

GIVEN = ("tenancy", "reason")
"""Parameters given by name; their annotations are never resolved."""

_UNCALLABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD, Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True)
class Handler:
    """A function that answers one event, under the tool name hosts see."""

    event: Event
    name: str
    function: Callable[..., object]
    given: tuple[str, ...]
    resolved: Callable[..., object]

    @classmethod
    def read(cls, event: Event, function: Callable[..., object], name: str | None) -> "Handler":
        """Read the signature; raises `HandlerError` naming the parameter no host could supply."""
        parameters = inspect.signature(function).parameters
        for parameter in parameters.values():
            if parameter.kind in _UNCALLABLE:
                raise HandlerError(
                    f"{_named(function)} must not take {parameter}: a host passes nothing there."
                    " Remove it."
                )
        given = tuple(name for name in GIVEN if name in parameters)
        resolved = _without(function, given)
        dependencies = get_dependency_parameters(resolved)
        for parameter in inspect.signature(resolved).parameters.values():
            if parameter.default is Parameter.empty and parameter.name not in dependencies:
                raise HandlerError(
                    f"{_named(function)} requires {parameter.name!r}, which no host supplies."
                    " Give it a default or remove it; `tenancy`, `reason`, a FastMCP `Context` and"
                    " `Depends` are supplied."
                )
        name = name or _tool_name(function)
        if not validate_tool_name(name).is_valid:
            raise HandlerError(
                f"{_named(function)}: {name!r} is no name for a tool. Give one: name=..."
            )
        return cls(event, name, function, given, resolved)

    @property
    def label(self) -> str:
        """How logs and errors name this handler."""
        return f"the on_{self.event} handler {_named(self.function)}"

    @property
    def description(self) -> str | None:
        """The function's docstring."""
        return inspect.getdoc(_innermost(self.function))

    async def call(self, given: Mapping[str, object], threads: "Hop", deadline: Deadline) -> object:
        """Call the function with what it asks for; raises as `Deadline.call` does."""
        wanted = {name: given[name] for name in self.given}
        with blamed(self.label):
            async with resolve_dependencies(self.resolved, {}) as dependencies:
                work = partial(self.function, **wanted, **dependencies)
                return await deadline.call(threads, self.label, work)


def _without(function: Callable[..., object], given: tuple[str, ...]) -> Callable[..., object]:
    """Make a stand-in for FastMCP to inspect, with only the parameters it is to resolve.

    FastMCP rewrites the signature of what it inspects and resolves every annotation at once, so the
    author's own function must not be handed to it.
    """

    def stand_in() -> None: ...

    signature = inspect.signature(function)
    kept = [p for name, p in signature.parameters.items() if name not in given]
    stand_in.__name__ = _tool_name(function)
    stand_in.__annotations__ = {
        p.name: p.annotation for p in kept if p.annotation is not Parameter.empty
    }
    vars(stand_in)["__wrapped__"] = _innermost(function)  # where annotations are looked up
    vars(stand_in)["__signature__"] = inspect.Signature(kept)
    return transform_context_annotations(stand_in)


def _innermost(function: Callable[..., object]) -> Callable[..., object]:
    """Give the routine behind wrappers, partials and callable objects."""
    function = inspect.unwrap(function)
    if isinstance(function, partial):
        return _innermost(function.func)
    return function if inspect.isroutine(function) else type(function).__call__


def _tool_name(function: Callable[..., object]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _named(function: Callable[..., object]) -> str:
    code = getattr(_innermost(function), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"{_tool_name(function)}{where}"

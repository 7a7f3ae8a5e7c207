"""A lifecycle handler as its author wrote it: reading its signature, and calling it.

`tenancy` and `reason` are given by name, and the framework may give more. Anything else a host
could not supply is refused where it is written.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import Parameter
from typing import TYPE_CHECKING

from nimble_lifecycle.core.call import Call
from nimble_lifecycle.core.deadline import Deadline, blamed, is_async
from nimble_lifecycle.errors import HandlerError
from nimble_lifecycle.protocol import Event

if TYPE_CHECKING:
    from nimble_lifecycle.store.ports import Hop

GIVEN = ("tenancy", "reason")
"""Parameters given by name; their annotations are never resolved."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")  # MCP revision 2025-11-25, tool names
_UNCALLABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD, Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True)
class Supply:
    """What a framework gives a function: the names of the parameters, and their values for a call.

    `words` say in an error what the framework supplies.
    """

    names: Collection[str]
    enter: Callable[[Call], AbstractAsyncContextManager[Mapping[str, object]]]
    words: str


Framework = Callable[[Callable[..., object]], Supply]
"""Says what a framework gives a function, from a stand-in without the parameters of `GIVEN`."""


@dataclass(frozen=True)
class Handler:
    """A function that answers one event, under the name that its tool has by default."""

    event: Event
    name: str
    function: Callable[..., object]
    given: tuple[str, ...]
    supply: Supply

    @classmethod
    def read(
        cls,
        event: Event,
        function: Callable[..., object],
        name: str | None,
        framework: Framework,
    ) -> "Handler":
        """Read the signature; raises `HandlerError` naming the parameter no host could supply."""
        parameters = inspect.signature(function).parameters
        for parameter in parameters.values():
            if parameter.kind in _UNCALLABLE:
                raise HandlerError(
                    f"{_named(function)} must not take {parameter}: a host passes nothing there."
                    " Remove it."
                )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise HandlerError(
                f"{_named(function)} yields, so that calling it does nothing: return its words."
            )
        given = tuple(name for name in GIVEN if name in parameters)
        stand_in = _without(function, given)
        # Before the framework sees the stand-in: it may rewrite its signature.
        others = inspect.signature(stand_in).parameters.values()
        supply = framework(stand_in)
        for parameter in others:
            if parameter.default is Parameter.empty and parameter.name not in supply.names:
                raise HandlerError(
                    f"{_named(function)} requires {parameter.name!r}, which no host supplies."
                    f" Give it a default or remove it; `tenancy`, `reason`, {supply.words} are"
                    " supplied."
                )
        name = name or _tool_name(function)
        if not _TOOL_NAME.fullmatch(name):
            raise HandlerError(
                f"{_named(function)}: {name!r} is no name for a tool. Give one: name=..."
            )
        return cls(event, name, function, given, supply)

    @cached_property
    def label(self) -> str:
        """How logs and errors name this handler."""
        return f"the on_{self.event} handler {_named(self.function)}"

    @property
    def description(self) -> str | None:
        """The function's docstring."""
        return inspect.getdoc(_innermost(self.function))

    @cached_property
    def is_plain(self) -> bool:
        """Whether it can be called on a thread as it is: no coroutine, nothing to be supplied."""
        return not self.supply.names and not is_async(self.function)

    def speak(self, given: Mapping[str, object]) -> object:
        """Call the plain function, on a thread; raises `AuthorError` when it raises."""
        with blamed(self.label, BaseException):  # no cancellation of ours reaches a thread
            return self.function(**{name: given[name] for name in self.given})

    async def call(
        self, call: Call, given: Mapping[str, object], threads: "Hop", deadline: Deadline
    ) -> object:
        """Call the function with what it asks for; raises as `Deadline.call` does."""
        wanted = {name: given[name] for name in self.given}
        with blamed(self.label):
            async with self.supply.enter(call) as supplied:
                work = partial(self.function, **wanted, **supplied)
                return await deadline.call(threads, self.label, work)


def _without(function: Callable[..., object], given: tuple[str, ...]) -> Callable[..., object]:
    """Make a stand-in for a framework to inspect, with only the parameters it is to resolve.

    Frameworks resolve every annotation at once, and FastMCP rewrites the signature of what it
    inspects, so the author's own function must not be handed to them.
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
    return stand_in


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

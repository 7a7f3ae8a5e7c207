"""`on_ready` and `on_removing`, the same for every framework."""

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar, overload

from nimble_lifecycle.core.tool import ToolTexts
from nimble_lifecycle.errors import HandlerError
from nimble_lifecycle.protocol import Event, Json

F = TypeVar("F", bound=Callable[..., object])
Register: TypeAlias = Callable[[Event, Callable[..., object], ToolTexts], None]


class HandlerDecorator:
    """`lifecycle.on_ready` and `lifecycle.on_removing`, bare or with arguments.

    The decorated name stays the plain function. The function is called once the host's intent is
    recorded; its text is the answer. `tenancy` and `reason` are given by name, the framework's
    `Context` (and FastMCP's `Depends`) as usual. `name`, `title`, `description` and `meta` are
    those of the tool, by default the function's name and docstring. Raises `HandlerError`.
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

"""The handlers that an author has registered: one for each event at most."""

from collections.abc import Iterator

from nimble_lifecycle.core.handler import Handler
from nimble_lifecycle.errors import HandlerError
from nimble_lifecycle.protocol import Event


class Handlers:
    """The handlers of one lifecycle."""

    def __init__(self) -> None:
        self._of: dict[Event, Handler] = {}

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._of.values())

    def __len__(self) -> int:
        return len(self._of)

    def refuse_second(self, handler: Handler) -> None:
        """Raise `HandlerError` where the event has a handler already."""
        if handler.event in self._of:
            raise HandlerError(
                f"{handler.label} is the second one; {self._of[handler.event].label} is there"
                " already. A host calls neither of two; keep one."
            )

    def add(self, handler: Handler) -> None:
        """Keep a handler; raises `HandlerError` where its event has one."""
        self.refuse_second(handler)
        self._of[handler.event] = handler

    def handles(self, tool_name: str) -> bool:
        """Whether a tool name is that of one of the handlers."""
        return any(handler.name == tool_name for handler in self)

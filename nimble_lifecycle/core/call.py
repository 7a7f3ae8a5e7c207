"""What a framework knows of the call it is serving, as far as a lifecycle needs it."""

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import Request


class Call(Protocol):
    """One call of a tool; may be read for as long as the call and what it started last."""

    @property
    def context(self) -> object:
        """The framework's own `Context`."""

    @property
    def request(self) -> Request | None:
        """The HTTP request the call came with; None where there is none (stdio, in memory)."""

    @property
    def claims(self) -> Mapping[str, object] | None:
        """The claims of the verified access token; None where there is no token."""

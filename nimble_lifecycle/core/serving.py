"""The start of serving and its end: what is refused, and the one service while it lasts."""

import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from nimble_lifecycle.core.service import Declaration, Refused, Service
from nimble_lifecycle.errors import ForbiddenVariable


class Serving:
    """Holds the `Service` of a lifecycle for as long as any server serves it.

    A framework may enter the lifespan several times at once, as the SDK does for each connection
    over SSE and in memory. All of them share one service.
    """

    def __init__(self, make: Callable[[], Service]) -> None:
        self._make = make
        self._entered = 0
        self._service: Service | None = None

    @property
    def service(self) -> Service:
        """The service; raises `Refused` outside every lifespan."""
        if self._service is None:
            raise Refused("The server is not serving yet: its lifespan has not been entered.")
        return self._service

    @asynccontextmanager
    async def entered(self) -> AsyncGenerator[Service]:
        """Serve for the length of the block; the first opens the service, the last closes it."""
        self._entered += 1
        try:
            if self._service is None:
                self._service = self._make()
                await self._service.open()
            yield self._service
        finally:
            self._entered -= 1
            if not self._entered:
                await self._closed()

    async def _closed(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            await service.close()


def new_service(author: Declaration, database_url: str | None) -> Service:
    """Make the service over the real store; an argument beats the environment.

    Raises `ConfigurationError` for a database URL that cannot be meant.
    """
    # Only now: these load the database libraries, which an import of the server must not.
    from nimble_lifecycle.settings import ServerSettings  # noqa: PLC0415
    from nimble_lifecycle.store import IntentStore, Threads  # noqa: PLC0415

    url = database_url or ServerSettings().database_url.get_secret_value()
    return Service(IntentStore(url), author, Threads)


def refuse_forbidden_env(server: str, names: Sequence[str]) -> None:
    """End the process with 1 and one line where its environment has one of these variables."""
    for name in (names,) if isinstance(names, str) else names:
        if name in os.environ:
            error = ForbiddenVariable(
                f"{server!r} must not have {name}: it is for the worker alone. Unset it."
            )
            sys.stderr.write(f"nimble-lifecycle: {error}\n")
            raise SystemExit(1) from error

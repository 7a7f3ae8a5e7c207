"""One instant by which a whole call must have answered, and what may hang until then.

Everything a call waits for (a slot, a connection, a statement, a function of the author's) shares
one `Deadline`. What hangs does so on daemon threads and never holds up the answer.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from nimble_lifecycle.errors import NimbleError, WorkspaceUnknown

if TYPE_CHECKING:
    from nimble_lifecycle.store.ports import Clock, Hop, SharedHop

T = TypeVar("T")
U = TypeVar("U")
logger = logging.getLogger(__name__)


class Late(NimbleError):  # read as `raise Late`
    """The deadline of a call has passed."""


class AuthorError(NimbleError):
    """A function of the server's author raised; its stack has been logged."""


class Deadline:
    """The end of one call, `seconds` from now; `until` is an instant of `clock.monotonic`."""

    def __init__(self, seconds: float, clock: "Clock") -> None:
        self._clock = clock
        self.until = clock.monotonic() + seconds

    def check(self) -> None:
        """Raise `Late` once the deadline has passed."""
        if self._clock.monotonic() >= self.until:
            raise Late

    @asynccontextmanager
    async def limit(self) -> AsyncGenerator[None]:
        """Cancel the block at the deadline and raise `Late` from it."""
        timeout = asyncio.timeout(self.until - self._clock.monotonic())
        try:
            async with timeout:
                yield
        except TimeoutError:
            if timeout.expired():
                raise Late from None
            raise

    async def run(self, threads: "Hop", work: Callable[[], T]) -> T:
        """Run blocking `work` on a thread; work whose turn comes too late is not begun."""

        def begin() -> T:
            self.check()
            return work()

        return await threads.run(begin)

    async def run_both(
        self,
        threads: "SharedHop",
        first: Callable[[], T],
        others: "SharedHop",
        second: Callable[[T], U],
    ) -> U:
        """Run blocking work and what follows from it in one hop; each is begun in time only."""

        def begin() -> T:
            self.check()
            return first()

        def go_on(result: T) -> U:
            self.check()
            return second(result)

        return await threads.run_both(begin, others, go_on)

    async def call(self, threads: "Hop", what: str, function: Callable[[], object]) -> object:
        """Run a function of the author's, plain ones on a thread, and give its result.

        `what` names it in the log. Raises `AuthorError` when it raises, `Late` when its turn comes
        too late; `WorkspaceUnknown` passes.
        """
        if is_async(function):
            with blamed(what):
                return await cast("asyncio.Future[object]", function())

        def begin() -> object:
            with blamed(what, BaseException):  # no cancellation of ours reaches a thread
                return function()

        return await awaited(what, await self.run(threads, begin))


async def awaited(what: str, result: object) -> object:
    """Await what a plain function gave, where it gave something to await; blame it as `call`."""
    if not inspect.isawaitable(result):
        return result
    with blamed(what):
        return await result


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling the function gives a coroutine, as far as its definition says."""
    # Python before 3.12 does not look into a partial.
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function)


@contextmanager
def blamed(what: str, *more: type[BaseException]) -> Generator[None]:
    """Log the stack of what the author's code in the block raises and raise `AuthorError`."""
    # A handler's sys.exit() must not end the server.
    faults: tuple[type[BaseException], ...] = (Exception, SystemExit, *more)
    try:
        yield
    except (AuthorError, Late, WorkspaceUnknown):
        raise
    except asyncio.CancelledError:
        if _is_being_cancelled():
            raise
        logger.exception("%s let out a cancellation of its own", what)
        raise AuthorError(f"{what} was cancelled from inside") from None
    except faults:
        logger.exception("%s raised", what)
        raise AuthorError(f"{what} raised") from None


def _is_being_cancelled() -> bool:
    """Whether somebody cancels the call itself; never so on a thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return False
    return task is not None and task.cancelling() > 0

"""Calls an adapter's methods, async or plain, under one limit, and says how each call ended.

Whatever an adapter returns or raises becomes a value here: nothing of it ends the worker. A call
that is over its limit is left behind, not waited for: its outcome is unknown then.
"""

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import CoroutineType
from typing import TypeAlias, TypeGuard

from nimble_lifecycle.errors import (
    ConfigurationError,
    PermanentError,
    TemporaryError,
    UnknownOutcome,
    VendorError,
)
from nimble_lifecycle.protocol import (
    MAX_EXTERNAL_ID_BYTES,
    MAX_EXTERNAL_ID_LENGTH,
    Tenancy,
    is_external_id,
)
from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Released, Vendor
from nimble_lifecycle.store.ports import Clock, Hop, NoThread

Ended: TypeAlias = Provisioned | InProgress | Released | External | Exception | None
"""How a call ended: what the adapter returned or raised."""

Method: TypeAlias = Callable[[Tenancy], Ended | Awaitable[Ended]]
"""A method of an adapter that is about one tenancy."""


class OverrunError(TimeoutError):
    """A vendor call that was not over within its limit; `late` is its result, once there is one."""

    def __init__(self, limit: float, late: "asyncio.Task[Ended]") -> None:
        super().__init__(f"the vendor call took longer than {limit:g} s")
        self.late = late


class UnsentError(TemporaryError):
    """The call was not begun, by this worker's own choice: nothing reached the vendor."""


class RefusedUnsentError(PermanentError):
    """The worker itself refused the row for good: nothing reached the vendor."""


class NoLookUpError(PermanentError):
    """The adapter has no look-up: nothing was asked."""


_AWAITABLE = (CoroutineType, Awaitable)
"""Coroutines, which are nearly all, are told by their type; anything else is asked what it can."""

UNSENT = (UnsentError, RefusedUnsentError)


@asynccontextmanager
async def entered(vendor: Vendor) -> AsyncIterator[None]:
    """Hold an adapter open that is an async context manager.

    Raises VendorError where it cannot be entered or left, or the ConfigurationError it raises.
    """
    if not isinstance(vendor, AbstractAsyncContextManager):
        yield
        return
    try:
        await vendor.__aenter__()
    except ConfigurationError:  # the author's own words to the operator
        raise
    except Exception as error:
        raise VendorError(f"the adapter could not open: {described(error)}") from error
    try:
        yield
    finally:
        try:
            await vendor.__aexit__(None, None, None)
        except Exception as error:
            raise VendorError(f"the adapter could not close: {described(error)}") from error


class Calls:
    """Calls under way, each under the same limit of so many seconds; belongs to one event loop.

    A plain method runs by `hop`. An async one is cancelled at the limit, and what it does then is
    its own; a plain one goes on until it ends. One whose turn comes past the limit is not begun.
    Where this process was suspended past the limit, the call gets the limit once more.
    """

    def __init__(self, *, limit: float, clock: Clock, hop: Hop) -> None:
        self._limit = limit
        self._clock = clock
        self._hop = hop
        self._under_way: dict[_Call, None] = {}  # in the order of their ends
        self._watch: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()

    def begin(self, method: Method, tenancy: Tenancy, over: Callable[[Ended], None]) -> None:
        """Call `method`, and then `over` with what it returned or raised, or `OverrunError`."""
        call = _Call(method, tenancy, over, self._clock, self._clock.monotonic() + self._limit)
        self._under_way[call] = None
        call.task = asyncio.create_task(self._outcome(call))
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._keep_watch())

    def abandon(self) -> "set[asyncio.Task[Ended]]":
        """Cancel whatever is under way, of which nothing more is heard; give the tasks it was."""
        left = {call.task for call in self._under_way}
        self._under_way.clear()
        for task in left:
            task.cancel()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        return left

    async def _outcome(self, call: "_Call") -> Ended:
        """Make the call, and say how it ended unless nobody waits for that any more."""
        try:
            outcome = await call.outcome(self._hop)
        except asyncio.CancelledError:
            self._ended(call, _cancelled())
            raise
        except Exception as error:  # noqa: BLE001  # of the hop: nobody knows what was begun
            outcome = error
        # Not by a callback of the task, which costs another turn of the event loop.
        self._ended(call, outcome)
        return outcome

    def _ended(self, call: "_Call", outcome: Ended) -> None:
        if call in self._under_way:
            del self._under_way[call]
            self._tell(call, outcome)

    def _tell(self, call: "_Call", outcome: Ended) -> None:
        """Say how a call ended, as a callback is told: in our context, not in the adapter's.

        What is raised there neither becomes the call's own end nor ends the watch over the others.
        """
        try:
            self._context.run(call.over, outcome)
        except Exception as error:  # noqa: BLE001  # told as the event loop tells of its callbacks
            told = {"message": "the end of a vendor call was not noted", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)

    async def _keep_watch(self) -> None:
        """Give up calls that are over their limit. One timer, for the one whose limit is next."""
        while self._under_way:
            oldest = next(iter(self._under_way))
            await self._clock.sleep(max(0.0, oldest.end - self._clock.monotonic()))
            if oldest not in self._under_way:
                continue
            if oldest.task.done():  # cancelled before its first step
                self._ended(oldest, outcome_of_task(oldest.task))
            else:
                self._overran(oldest)

    def _overran(self, call: "_Call") -> None:
        now = self._clock.monotonic()
        del self._under_way[call]
        if now - call.end >= self._limit and not call.heard_out:
            # This process itself stood still, and its lease may be lost: what the call made is
            # only known, and never leaked, if its answer is still taken.
            call.end, call.heard_out = now + self._limit, True
            self._under_way[call] = None
            return
        if call.on_loop:
            call.task.cancel()
        self._tell(call, OverrunError(self._limit, call.task))


async def ended(method: Method, tenancy: Tenancy, *, limit: float, clock: Clock, hop: Hop) -> Ended:
    """Call `method` and give what it returned or raised; `OverrunError` past `limit` seconds.

    See `Calls`; cancelling the caller cancels the call.
    """
    calls = Calls(limit=limit, clock=clock, hop=hop)
    over: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
    calls.begin(method, tenancy, lambda end: None if over.done() else over.set_result(end))
    try:
        return await over
    finally:
        calls.abandon()


def outcome_of_task(task: "asyncio.Task[Ended]") -> Ended:
    """Read a finished call; one that was cancelled may have been applied."""
    return _cancelled() if task.cancelled() else task.result()


def _cancelled() -> UnknownOutcome:
    return UnknownOutcome("the call was cancelled from inside the adapter")


def is_mistake(ended: Ended) -> TypeGuard[Exception]:
    """Whether a call ended as no adapter means it to, nor a call that only took too long."""
    meant = (VendorError, TimeoutError)
    return isinstance(ended, Exception) and not isinstance(ended, meant)


class _Call:
    """One call. `on_loop` says whether it waits on the event loop, where it can be cancelled."""

    __slots__ = (
        "_clock",
        "_latest",
        "_method",
        "_tenancy",
        "end",
        "heard_out",
        "on_loop",
        "over",
        "task",
    )

    task: "asyncio.Task[Ended]"

    def __init__(
        self,
        method: Method,
        tenancy: Tenancy,
        over: Callable[[Ended], None],
        clock: Clock,
        end: float,
    ) -> None:
        self._method = method
        self._tenancy = tenancy
        self._clock = clock
        self._latest = end
        self.over = over
        self.end = end
        self.heard_out = False
        self.on_loop = inspect.iscoroutinefunction(method)

    async def outcome(self, hop: Hop) -> Ended:
        result = self._begun() if self.on_loop else await self._begun_on_thread(hop)
        if not isinstance(result, _AWAITABLE):
            return result
        self.on_loop = True
        try:
            return _checked(await result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # an adapter may raise anything
            return _raised(error)

    async def _begun_on_thread(self, hop: Hop) -> Ended | Awaitable[Ended]:
        try:
            return await hop.run(self._begun)
        except NoThread as error:
            return UnsentError(f"the call was not begun: {error}")

    def _begun(self) -> Ended | Awaitable[Ended]:
        if self._clock.monotonic() >= self._latest:
            return UnsentError("the call was not begun: its turn came too late")
        # Caught on the thread: a StopIteration, for one, cannot travel through a future.
        try:
            result = self._method(self._tenancy)
            return result if isinstance(result, _AWAITABLE) else _checked(result)
        except BaseException as error:  # noqa: BLE001  # an adapter may raise anything
            return _raised(error)


def _raised(error: BaseException) -> Exception:
    """Take what would end a program (SystemExit and the like) for any other surprise."""
    if isinstance(error, Exception):
        return error
    surprise = RuntimeError(f"the adapter raised {type(error).__name__}")
    surprise.__cause__ = error
    return surprise


def _checked(result: object) -> Ended:
    """Refuse what the types rule out and no row can hold."""
    match result:
        case Provisioned(external_id=name) | External(external_id=name):
            fine = is_external_id(name)
        case InProgress(operation_id=name):
            fine = is_external_id(name)
        case Released() | None:
            fine = True
        case _:
            return TypeError(f"the adapter returned {type(result).__name__}, which says nothing")
    if fine:
        return result
    return TypeError(
        f"the adapter returned {type(result).__name__} without a usable id: it must be text of"
        f" 1 to {MAX_EXTERNAL_ID_LENGTH} characters ({MAX_EXTERNAL_ID_BYTES} bytes), none of them a"
        " control character"
    )

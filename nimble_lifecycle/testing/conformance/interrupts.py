"""Watches a call of an adapter step by step, and ends it where a crash is wanted."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from nimble_lifecycle.errors import UnknownOutcome
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.calls import Ended, Method

T = TypeVar("T")


class Interrupted(UnknownOutcome):
    """The call was ended by a `Cut`; its outcome is unknown, as after a crash."""


@dataclass(slots=True)
class Cut:
    """Ends the `at`-th wait of a sequence of calls, once; 0: never, only count.

    `answered`: what was waited for arrives first, and the adapter dies with the answer in hand.
    Otherwise it is cancelled while it waits.
    """

    at: int = 0
    answered: bool = False
    waits: int = 0
    """How many waits there were."""

    def __str__(self) -> str:
        return f"{'after' if self.answered else 'during'} wait {self.at}"

    @property
    def met(self) -> bool:
        """Whether the wait was there to be cut."""
        return 0 < self.at <= self.waits

    def due(self) -> bool:
        """Count a wait and say whether this is the one."""
        self.waits += 1
        return self.waits == self.at


@dataclass(slots=True)
class Watch:
    """What was seen of one call."""

    cut: Cut = field(default_factory=Cut)
    returned: object = None
    """What the adapter returned, before anybody looked whether it makes sense."""
    interrupted: bool = False
    swallowed: bool = False
    """Whether it was interrupted and ended as if it had not been."""
    longest_hold: float | None = None
    """Seconds for which it held the event loop at a stretch; None: it ran on a thread."""

    def over(self, method: Method) -> Method:
        """Give the method, watched; plain ones stay plain."""
        if inspect.iscoroutinefunction(method):

            async def on_loop(tenancy: Tenancy) -> Ended:
                called: Awaitable[Ended] = method(tenancy)
                return await self.rest(called)

            return on_loop

        def plain(tenancy: Tenancy) -> "Ended | Awaitable[Ended]":
            result = method(tenancy)
            if isinstance(result, Awaitable):
                return self.rest(result)
            self.returned = result
            return result

        return plain

    async def rest(self, call: Awaitable[T]) -> T:
        """Await what a method gave, watched."""
        result = await _Steps(call, self)
        self.returned = result
        return result

    def held(self, seconds: float) -> None:
        """Note for how long the loop stood still."""
        self.longest_hold = max(seconds, self.longest_hold or 0.0)


class _Steps(Generic[T]):
    """Awaits `call`, one wait after the other."""

    def __init__(self, call: Awaitable[T], watch: Watch) -> None:
        self._call = call
        self._watch = watch

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._call.__await__()
        # What an awaitable yields, and is sent, is a matter between it and the event loop.
        advance: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                waits_for = self._timed(advance)
            except StopIteration as end:
                self._watch.swallowed = self._watch.interrupted
                result: T = end.value
                return result
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._watch.swallowed = self._watch.interrupted
                raise
            advance = yield from self._wait(steps, waits_for)

    def _timed(self, advance: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        try:
            return advance()
        finally:
            self._watch.held(time.monotonic() - begun)

    def _wait(
        self, steps: Generator[Any, Any, T], waits_for: object
    ) -> Generator[Any, Any, Callable[[], Any]]:
        """Wait as the adapter does, and give how to go on with what came of it."""
        if self._watch.cut.due():
            self._watch.interrupted = True
            _cancel(waits_for, answered=self._watch.cut.answered)
        try:
            answer = yield waits_for
        except BaseException as error:  # noqa: BLE001  # handed on, whatever it is
            return partial(steps.throw, error)
        return partial(steps.send, answer)


def _cancel(waits_for: object, *, answered: bool) -> None:
    """Cancel the current task in the wait that it is about to begin, or as soon as that is over."""
    task = asyncio.current_task()
    if task is None:
        return
    if not answered:
        task.cancel()
    elif isinstance(waits_for, asyncio.Future):
        # Before the task's own callback: it is cancelled with the answer waiting for it.
        waits_for.add_done_callback(lambda _: task.cancel())
    else:
        asyncio.get_running_loop().call_soon(task.cancel)

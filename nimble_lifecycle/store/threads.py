"""Daemon threads with a fixed number of slots: the real `Hop`.

A slot is held until the *thread* is done with the work, not until its caller stops waiting, so work
that hangs can never pile up; and since the threads are daemons, hung work never keeps the process
from exiting. (anyio's limiter forgets abandoned threads, and its threads are not daemons.)
"""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

_Job: TypeAlias = Callable[[], None]


class Threads:
    """At most `slots` pieces of blocking work at a time, each on a daemon thread.

    Belongs to one event loop. Threads start when first needed, are kept, and end with `close`.
    """

    def __init__(self, slots: int, name: str) -> None:
        self._free = self._slots = slots
        self._name = name
        self._started = 0
        self._waiting: deque[_Job] = deque()
        self._begun: SimpleQueue[_Job | None] = SimpleQueue()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread as soon as a slot is free.

        Cancelling the caller leaves the work to end by itself, even while it still waits for its
        slot; the slot comes back when it has.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def job() -> None:
            result, error = _outcome_of(context, work)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._ended, done, result, error)

        if self._free:
            self._free -= 1
            self._begin(job)
        else:
            self._waiting.append(job)
        return await done

    def _begin(self, job: _Job) -> None:
        if self._started < self._slots - self._free:  # nobody idles
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._begun.put(job)

    def _serve(self) -> None:
        while (job := self._begun.get()) is not None:
            job()
            del job

    def _ended(
        self, done: "asyncio.Future[Any]", result: object, error: BaseException | None
    ) -> None:
        """Give the slot to whoever waits longest, and the outcome to the caller if it waits."""
        if self._waiting:
            self._begun.put(self._waiting.popleft())
        else:
            self._free += 1
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def close(self) -> None:
        """Let idle threads end; one that hangs ends with the process."""
        for _ in range(self._started):
            self._begun.put(None)


def _outcome_of(
    context: contextvars.Context, work: Callable[[], T]
) -> tuple[T | None, BaseException | None]:
    try:
        return context.run(work), None
    except StopIteration as caught:  # a future refuses it and would never settle
        error = RuntimeError("the work raised StopIteration")
        error.__cause__ = caught
        return None, error
    except BaseException as caught:  # noqa: BLE001  # carried to the caller, whatever it is
        return None, caught

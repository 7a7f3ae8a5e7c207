"""Daemon threads with a fixed number of slots: the real `Hop`.

A slot is held until the *thread* is done with the work, not until its caller stops waiting, so work
that hangs can never pile up; and since the threads are daemons, hung work never keeps the process
from exiting. (anyio's limiter forgets abandoned threads, and its threads are not daemons.)
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

_Job: TypeAlias = "Callable[[], Callable[[], None]]"


class Threads:
    """At most `slots` pieces of blocking work at a time, each on a daemon thread.

    Belongs to one event loop. Threads start when first needed, are kept, and end with `close`.
    """

    def __init__(self, slots: int, name: str) -> None:
        self._free = asyncio.Semaphore(slots)
        self._name = name
        self._work: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = 0
        self._started = 0
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Future[Any]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread as soon as a slot is free.

        Cancelling the caller leaves the work to end by itself, even while it still waits for its
        slot; the slot comes back when it has.
        """
        task = asyncio.ensure_future(self._in_slot(work))
        self._tasks.add(task)
        task.add_done_callback(self._settled)
        return await asyncio.shield(task)

    def _settled(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here: its caller may have stopped waiting

    async def _in_slot(self, work: Callable[[], T]) -> T:
        async with self._free:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[T] = loop.create_future()
            context = contextvars.copy_context()
            self._submit(lambda: self._carry_out(context, work, loop, done))
            return await done

    @staticmethod
    def _carry_out(
        context: contextvars.Context,
        work: Callable[[], T],
        loop: asyncio.AbstractEventLoop,
        done: "asyncio.Future[T]",
    ) -> Callable[[], None]:
        """Do the work and give what tells the loop; only then is the thread free."""
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(work)
        except StopIteration as caught:  # a future refuses it and would never settle
            error = RuntimeError("the work raised StopIteration")
            error.__cause__ = caught
        except BaseException as caught:  # noqa: BLE001  # carried to the caller, whatever it is
            error = caught

        def settle() -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]  # T where error is None
            else:
                done.set_exception(error)

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle)

        return tell

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._idle == 0:
                self._started += 1
                name = f"{self._name}-{self._started}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
            else:
                self._idle -= 1
        self._work.put(job)

    def _serve(self) -> None:
        while (job := self._work.get()) is not None:
            tell = job()
            del job
            with self._lock:
                self._idle += 1
            # After the count: whoever gets the slot finds this thread, and starts no other.
            tell()
            del tell

    def close(self) -> None:
        """Let idle threads end; one that hangs ends with the process."""
        for _ in range(self._started):
            self._work.put(None)

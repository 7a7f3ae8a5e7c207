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
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")

Job: TypeAlias = Callable[[], Callable[[], None]]
"""Work for a thread; gives what is to be called once the thread counts as idle."""


class Pool:
    """Daemon threads: as many as were ever busy at once, kept until `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle = 0
        self._started = 0
        self._closed = False
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

    def begin(self, job: Job) -> None:
        """Have a thread do it at once; raises RuntimeError where the system gives no thread."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                name = f"{self._name}-{self._started + 1}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._started += 1
        self._jobs.put(job)

    def _serve(self) -> None:
        stays = True
        while stays and (job := self._jobs.get()) is not None:
            then = job()
            del job
            stays = self._stays_idle()
            # After the count: whoever gets the slot finds this thread, and starts no other.
            then()
            del then

    def _stays_idle(self) -> bool:
        with self._lock:
            self._idle += not self._closed
            return not self._closed

    def close(self) -> None:
        """Let each thread end once it is idle; one that hangs ends with the process."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._jobs.put(None)


class Threads:
    """At most `slots` pieces of blocking work at a time, each on a daemon thread.

    Belongs to one event loop. Threads start when first needed, are kept, and end with `close`.
    """

    def __init__(self, slots: int, name: str, *, pool: Pool | None = None) -> None:
        self._pool = pool or Pool(name)
        self._free = slots
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()

    def beside(self, slots: int) -> "Threads":
        """Give further slots, counted by themselves, on the same threads."""
        return Threads(slots, "", pool=self._pool)

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread as soon as a slot is free.

        Raises RuntimeError where the system gives no thread; nothing was begun then. Cancelling the
        caller leaves the work to end by itself, even while it still waits for its slot; the slot
        comes back when it has.
        """
        caller: _Caller[T] = _Caller()
        self._take(partial(self._do, caller, work))
        return await caller.answer

    async def run_both(
        self, first: Callable[[], T], others: "Threads", second: Callable[[T], U]
    ) -> U:
        """Run `first`, then `second` with what it gave, in a slot of `others`, which is `beside`.

        The slot of `first` is free from then on. Cancelling the caller does not stop `first`;
        `second` is not begun for a caller who is gone.
        """
        caller: _Caller[U] = _Caller()
        self._take(partial(self._do_first, caller, first, others, second))
        return await caller.answer

    def close(self) -> None:
        """Let each thread end once it is idle; one that hangs ends with the process."""
        self._pool.close()

    def _take(self, job: Job) -> None:
        """Begin the job as soon as a slot is free."""
        if not self._has_slot(job):
            return
        try:
            self._pool.begin(job)
        except RuntimeError:
            self._give()
            raise

    def _has_slot(self, job: Job) -> bool:
        """Take a slot for the job, or have it wait for one."""
        with self._lock:
            if not self._free:
                self._waiting.append(job)
                return False
            self._free -= 1
            return True

    def _give(self) -> None:
        """Give a slot back, or on to whoever waits longest."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            job = self._waiting.popleft()
        try:
            self._pool.begin(job)
        except RuntimeError:  # no thread is to be had: it goes on waiting, for the next slot
            with self._lock:
                self._free += 1
                self._waiting.appendleft(job)

    def _do(self, caller: "_Caller[T]", work: Callable[[], T]) -> Callable[[], None]:
        return self._end(caller, *caller.run(work))

    def _do_first(
        self,
        caller: "_Caller[U]",
        first: Callable[[], T],
        others: "Threads",
        second: Callable[[T], U],
    ) -> Callable[[], None]:
        result, error = caller.run(first)
        if error is not None:
            return self._end(caller, None, error)
        self._give()
        rest = partial(others._do_second, caller, partial(second, cast("T", result)))
        return rest() if others._has_slot(rest) else _nothing

    def _do_second(self, caller: "_Caller[U]", second: Callable[[], U]) -> Callable[[], None]:
        if caller.answer.done():  # gone while it waited for the slot
            return self._end(caller, None, None)
        return self._do(caller, second)

    def _end(
        self, caller: "_Caller[T]", result: T | None, error: BaseException | None
    ) -> Callable[[], None]:
        def end() -> None:
            self._give()
            caller.tell(result, error)

        return end


class _Caller(Generic[T]):
    """Whoever waits on the event loop for what a thread does."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self.answer: asyncio.Future[T] = self._loop.create_future()

    def run(self, work: Callable[[], U]) -> tuple[U | None, BaseException | None]:
        """Do it as if the caller did."""
        try:
            return self._context.run(work), None
        except StopIteration as caught:  # a future refuses it and would never settle
            error = RuntimeError("the work raised StopIteration")
            error.__cause__ = caught
            return None, error
        except BaseException as caught:  # noqa: BLE001  # carried to the caller, whatever it is
            return None, caught

    def tell(self, result: T | None, error: BaseException | None) -> None:
        """Give the answer from a thread, if anybody still waits for it."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: T | None, error: BaseException | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(cast("T", result))
        else:
            self.answer.set_exception(error)


def _nothing() -> None: ...

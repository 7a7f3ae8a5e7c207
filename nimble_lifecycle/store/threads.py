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
from typing import Any, Generic, TypeAlias, TypeVar, cast

from nimble_lifecycle.store.ports import NoThread

T = TypeVar("T")
U = TypeVar("U")

Job: TypeAlias = Callable[[], Callable[[], None]]
"""Work for a thread; gives what is to be called once the thread counts as idle."""


def started(thread: threading.Thread) -> threading.Thread:
    """Start a thread; raises NoThread where the system gives none."""
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThread(str(error)) from error
    return thread


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
        """Have a thread do it at once; raises NoThread if none can be started."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                name = f"{self._name}-{self._started + 1}"
                started(threading.Thread(target=self._serve, name=name, daemon=True))
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

    def __init__(
        self, slots: int, name: str, *, pool: Pool | None = None, drops: bool = False
    ) -> None:
        self._pool = pool or Pool(name)
        self._drops = drops
        self._free = slots
        self._lock = threading.Lock()
        self._waiting: deque[tuple[_Caller[Any], Job]] = deque()

    def beside(self, slots: int) -> "Threads":
        """Give further slots, counted by themselves, on the same threads.

        What waits for one of these is dropped with its caller: it would wait for ever, and more
        with every call, while what has the slots hangs.
        """
        return Threads(slots, "", pool=self._pool, drops=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread as soon as a slot is free.

        Raises NoThread where the system gives none; nothing was begun then. Cancelling the caller
        leaves the work to end by itself, even while it still waits for its slot (but see `beside`);
        the slot comes back when it has.
        """
        caller: _Caller[T] = _Caller()
        self._take(caller, partial(self._do, caller, work))
        try:
            return await caller.answer
        except asyncio.CancelledError:
            self._gone(caller)
            raise

    async def run_both(
        self, first: Callable[[], T], others: "Threads", second: Callable[[T], U]
    ) -> U:
        """Run `first`, then `second` with what it gave, in a slot of `others`, which is `beside`.

        The slot of `first` is free from then on. Cancelling the caller does not stop `first`;
        `second` is not begun for a caller who is gone.
        """
        caller: _Caller[U] = _Caller()
        self._take(caller, partial(self._do_first, caller, first, others, second))
        try:
            return await caller.answer
        except asyncio.CancelledError:
            others._gone(caller)
            raise

    def close(self) -> None:
        """Let each thread end once it is idle; one that hangs ends with the process."""
        self._pool.close()

    def _take(self, caller: "_Caller[T]", job: Job) -> None:
        """Begin the job as soon as a slot is free."""
        if not self._has_slot(caller, job):
            return
        try:
            self._pool.begin(job)
        except NoThread:
            self._give()
            raise

    def _has_slot(self, caller: "_Caller[T]", job: Job) -> bool:
        """Take a slot for the job, or have it wait for one."""
        with self._lock:
            if not self._free:
                self._waiting.append((caller, job))
                return False
            self._free -= 1
            return True

    def _gone(self, caller: "_Caller[T]") -> None:
        """Drop what waits for this caller, where it is to be dropped."""
        if not self._drops:
            return
        with self._lock:
            self._waiting = deque(each for each in self._waiting if each[0] is not caller)

    def _give(self) -> None:
        """Give a slot back, or on to whoever waits longest."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            longest = self._waiting.popleft()
        try:
            self._pool.begin(longest[1])
        except NoThread:  # it goes on waiting, for the next slot
            with self._lock:
                self._free += 1
                self._waiting.appendleft(longest)

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
        if others._has_slot(caller, rest):
            return rest()
        if caller.answer.done():  # gone already, and nobody else would take it out
            others._gone(caller)
        return _nothing

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

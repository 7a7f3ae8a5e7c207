"""Blocking code as the simulation runs it: real functions on real threads, one at a time.

The thread hands the baton back wherever it would wait, so that its waits take virtual time and end
when the world says so.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nimble_lifecycle.store import Threads
from nimble_lifecycle.store.threads import Job, Pool
from tests.simulation.loop import Loop, Process

_here = threading.local()
_pool = ThreadPoolExecutor(256, "simulated")


class Killed(BaseException):
    """The process of this thread was killed."""


class Fiber:
    """One blocking function, which `waits` for futures of the loop in the middle."""

    def __init__(self, loop: Loop, process: Process, work: Callable[[], object]) -> None:
        self._loop = loop
        self._context = process.context
        self._work = work
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._awaited: asyncio.Future[Any] | None = None
        self._killed = False
        self._ended = False
        process.at_death.append(self._kill)
        _pool.submit(self._main)

    def go(self, *_: object) -> None:
        """Let the thread run until it waits or ends (called on the loop)."""
        if self._ended:
            return
        self._awaited = None
        self._go.release()
        self._back.acquire()
        if self._awaited is not None:
            self._awaited.add_done_callback(self.go, context=self._context.copy())

    def wait(self, future: "asyncio.Future[Any]") -> Any:
        """Wait for a future of the loop (called on the thread)."""
        self._awaited = future
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Killed
        return future.result()

    def _kill(self) -> None:
        self._killed = True
        while not self._ended:
            self._awaited = None
            self._go.release()
            self._back.acquire()

    def _main(self) -> None:
        self._go.acquire()
        _here.fiber = self
        try:
            if not self._killed:
                self._work()
        finally:
            _here.fiber = None
            self._ended = True
            self._back.release()


def this_fiber() -> Fiber | None:
    """Give the fiber whose thread asks; None on the loop's own."""
    return getattr(_here, "fiber", None)


class SimulatedPool(Pool):
    """The threads of a simulated process."""

    def __init__(self, loop: Loop, process: Process) -> None:
        super().__init__("simulated")
        self._loop = loop
        self._process = process

    def begin(self, job: Job) -> None:
        """Have a fiber do it in its turn."""
        if not self._process.alive:
            raise Killed

        def whole() -> None:
            job()()

        fiber = Fiber(self._loop, self._process, whole)
        self._loop.call_soon(fiber.go, context=self._process.context.copy())

    def close(self) -> None:
        """Nothing: simulated threads end with their work."""


def simulated_threads(loop: Loop, process: Process, slots: int, name: str) -> Threads:
    """Give the real hop over simulated threads."""
    return Threads(slots, name, pool=SimulatedPool(loop, process))

"""An event loop without real time: time jumps to the next timer, chance orders what is ready.

Everything that runs belongs to a `Process`, which can be killed at any await, or suspended; what
belongs to none is the world's. Tasks that are ready at the same time run in an order the seed
chooses; plain callbacks keep the order asyncio promises.
"""

import asyncio
import heapq
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2030, 1, 1, 12, tzinfo=UTC)

MOST_STEPS = 400_000
"""More callbacks than any schedule needs: something runs in a circle."""

current: "ContextVar[Process | None]" = ContextVar("current", default=None)
"""The process that whatever runs belongs to."""


class StuckError(AssertionError):
    """Nothing can happen any more, or it never ends."""


class Process:
    """What lives and dies together. After its death nothing of it runs, not even a `finally`.

    (Python ends the coroutines, whose cleanup then finds the database and the vendor out of reach.)
    """

    def __init__(self, loop: "Loop", name: str) -> None:
        self.name = name
        self.alive = True
        self.suspended = False
        self.steps = 0
        self.dies_after: int | None = None
        """Killed after so many steps: at an await that the schedule chose."""
        self.died_at = float("inf")
        self.rough = False
        """Whether calls to the database fail though all is healed."""
        self.cut_off_until = 0.0
        """Until then nothing passes between it and the database."""
        self.at_death: list[Callable[[], None]] = []
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._tasks: list[_Task] = []
        self.context = Context()
        self.context.run(current.set, self)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as a part of this process."""
        return self._loop.create_task(coroutine, context=self.context.copy())

    def suspend(self, seconds: float) -> None:
        """Stand still for a while, as on a machine that is asleep."""
        self.suspended = True
        self._loop.later(seconds, self.resume)

    def resume(self) -> None:
        """Go on, with whatever was ready or has come since."""
        self.suspended = False

    def adopt(self, task: "_Task") -> None:
        """Keep a task, to end it with the process."""
        self._tasks.append(task)

    def kill(self) -> None:
        """Die now."""
        if not self.alive:
            return
        self.alive = False
        self.died_at = self._loop.time()
        self._loop.forget(self)
        for react in self.at_death:
            react()
        self._loop.bury(task for task in self._tasks if not task.done())
        self.ended.set_result(None)

    def stepped(self) -> None:
        """Count a step, which may be the last."""
        self.steps += 1
        if self.steps == self.dies_after:
            self.kill()


def _end(coroutine: Any) -> None:
    """Unwind a coroutine that will never go on; cleanup that wants to wait is cut short too."""
    for _ in range(50):
        try:
            coroutine.close()
        except BaseException:  # it waits for something, or stumbles: again
            continue
        return


class _Task(asyncio.Task[Any]):
    number: int
    process: Process | None
    own: Context


class _Handle(asyncio.TimerHandle):
    """A callback; `task` is whose step it is, if it is one."""

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "Loop",
        context: Context | None,
    ) -> None:
        context = copy_context() if context is None else context  # an empty one is false
        super().__init__(when, callback, args, loop, context)
        self.process = context.get(current)
        owner = getattr(callback, "__self__", None)
        self.task = owner if isinstance(owner, _Task) else None

    # Each is itself: asyncio takes two of the same time and callback for one.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Loop(asyncio.AbstractEventLoop):
    """Runs one simulation. `chance` is the only source of choice there is."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.errors: list[str] = []
        self.steps = 0
        self._now = 0.0
        self._ready: list[_Handle] = []
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = count()
        self._world = Context()
        self._dead: list[_Task] = []
        self._over = False

    # -- time and order --------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    @property
    def instant(self) -> datetime:
        """Now, as the database's clock says it: to the millisecond, which both databases keep."""
        return START + timedelta(milliseconds=int(self._now * 1000))

    def run_until_complete(self, future: Any) -> Any:
        """Run the world's `future`; raises StuckError where it cannot end."""
        asyncio.events._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        # A generator of the dead never comes to its end, and nobody is to be told.
        sys.set_asyncgen_hooks(finalizer=lambda _generator: None)
        try:
            main = self.create_task(future, context=self._world.copy())
            while not main.done():
                self._step()
            return main.result()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio.events._set_running_loop(None)

    def _step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise StuckError("the schedule never ends")
        handle = self._next()
        while handle is None:
            self._advance()
            handle = self._next()
        self._ready.remove(handle)
        if handle.cancelled():
            return
        handle._run()
        if handle.process is not None:
            handle.process.stepped()
        self._unwind()

    def _next(self) -> _Handle | None:
        """Choose among the tasks that are ready and the first of the plain callbacks."""
        able = [h for h in self._ready if h.process is None or not h.process.suspended]
        steps = [handle for handle in able if handle.task is not None]
        # Sorted: sets of tasks are ordered by addresses, and so would be what is ready.
        steps.sort(key=lambda handle: handle.task.number)  # type: ignore[union-attr]
        first = next((handle for handle in able if handle.task is None), None)
        choices = steps if first is None else [*steps, first]
        return self.chance.choice(choices) if choices else None

    def _advance(self) -> None:
        if not self._timers:
            raise StuckError("everybody waits, and nothing will happen")
        when, _, handle = heapq.heappop(self._timers)
        self._now = max(self._now, when)
        if not handle.cancelled() and _lives(handle):
            self._ready.append(handle)

    def forget(self, process: Process) -> None:
        """Drop what a process that died had still to do."""
        self._ready = [handle for handle in self._ready if handle.process is not process]

    def bury(self, tasks: Iterable[_Task]) -> None:
        """Unwind the coroutines of the dead once no task is running, which they might touch."""
        self._dead.extend(tasks)

    def _unwind(self) -> None:
        while self._dead:
            task = self._dead.pop()
            task.own.run(_end, task.get_coro())

    # -- what asyncio asks for -------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(self._now, callback, args, self, context)
        if _lives(handle) and not self._over:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # one thread runs at a time

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Handle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Let the world do something: whoever asked for it may be dead by then."""
        self.call_later(delay, callback, *args, context=self._world)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any
    ) -> "asyncio.Task[Any]":
        context = copy_context() if context is None else context  # an empty one is false
        process = context.get(current)
        if self._over or (process is not None and not process.alive):
            coro.close()
            raise RuntimeError("a dead process does nothing")
        task = _Task(coro, loop=self, name=name, context=context)
        task.number, task.process, task.own = next(self._numbers), process, context
        if process is not None:
            process.adopt(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        task = context.get("task") or context.get("future")
        process = getattr(task, "process", None)
        if self._over or (process is not None and not process.alive):
            return
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_task_factory(self) -> None:
        return None

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._over

    def is_closed(self) -> bool:
        return self._over

    def close(self) -> None:
        """End; what is left over does nothing any more."""
        self._over = True
        self._unwind()
        self._ready.clear()
        self._timers.clear()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled timer is dropped when its time comes."""


def _lives(handle: _Handle) -> bool:
    return handle.process is None or handle.process.alive

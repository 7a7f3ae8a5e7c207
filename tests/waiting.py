"""How tests wait, so that a machine that is slow, or stands still for a while, fails none of them.

What should succeed gets `PATIENCE`. What should come about is waited for, not slept for. What
should end soon is timed in looks, not by the wall: while the machine stands still, none is taken.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for anything that should succeed; only what is broken takes that long."""

LOOK = 0.005
"""Seconds between two looks."""


def until(condition: Callable[[], T]) -> T:
    """Wait until a condition holds and give what it gave."""
    end = time.monotonic() + PATIENCE
    while not (holds := condition()):
        assert time.monotonic() < end, "it never came to that"
        time.sleep(LOOK)
    return holds


async def comes(condition: Callable[[], T]) -> T:
    """Wait on the event loop until a condition holds and give what it gave."""
    end = time.monotonic() + PATIENCE
    while not (holds := condition()):
        assert time.monotonic() < end, "it never came to that"
        await asyncio.sleep(LOOK)
    return holds


def within(seconds: float, work: Callable[[], T]) -> T:
    """Run `work` on a thread; it must be over before so many seconds of looks have been taken."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    for _ in range(round(seconds / LOOK)):
        thread.join(LOOK)
        if not thread.is_alive():
            return done.result()
    raise AssertionError(f"not over within {seconds:g} s")


async def soon(seconds: float, work: Awaitable[T]) -> T:
    """Await `work`; it must be over before so many seconds of looks have been taken."""
    task = asyncio.ensure_future(work)
    for _ in range(round(seconds / LOOK)):
        await asyncio.wait({task}, timeout=LOOK)
        if task.done():
            return task.result()
    task.cancel()
    raise AssertionError(f"not over within {seconds:g} s")

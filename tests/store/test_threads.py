"""The hop from the event loop to daemon threads."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from waiting import PATIENCE, comes, until

from nimble_lifecycle.store import Threads


def running(test: Callable[[Threads], Awaitable[None]], slots: int = 1) -> None:
    async def run() -> None:
        threads = Threads(slots, "test-threads")
        try:
            await test(threads)
        finally:
            threads.close()

    asyncio.run(run())


def named() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "test-threads" in thread.name]


def test_results_and_exceptions_travel() -> None:
    async def test(threads: Threads) -> None:
        assert await threads.run(lambda: 41 + 1) == 42
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
        with pytest.raises(SystemExit):
            await threads.run(lambda: (_ for _ in ()).throw(SystemExit(3)))

    running(test)


def test_a_stop_iteration_travels_too_and_costs_no_slot() -> None:
    async def test(threads: Threads) -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(threads.run(lambda: next(iter(()))), PATIENCE)
        assert await threads.run(lambda: "next") == "next"

    running(test)


def test_a_slot_is_kept_until_its_thread_ends() -> None:
    async def test(threads: Threads) -> None:
        release, started = threading.Event(), threading.Event()
        hung = asyncio.ensure_future(threads.run(lambda: (started.set(), release.wait())))
        await comes(started.is_set)
        hung.cancel()
        second = asyncio.ensure_future(threads.run(lambda: "done"))
        await asyncio.sleep(0.05)
        assert hung.cancelled()
        assert not second.done(), "the thread still holds the only slot"
        release.set()
        assert await second == "done"

    running(test)


def test_cancelling_the_caller_lets_the_work_finish_even_before_it_began() -> None:
    async def test(threads: Threads) -> None:
        release, done = threading.Event(), threading.Event()
        first = asyncio.ensure_future(threads.run(release.wait))
        queued = asyncio.ensure_future(threads.run(done.set))
        await asyncio.sleep(0)
        queued.cancel()
        release.set()
        await first
        await threads.run(lambda: None)
        assert done.is_set()

    running(test)


def test_no_more_threads_than_slots_and_they_are_daemons_and_end() -> None:
    async def test(threads: Threads) -> None:
        for _ in range(50):
            await asyncio.gather(*(threads.run(lambda: None) for _ in range(6)))
        assert len(named()) <= 3
        assert all(thread.daemon for thread in named())

    running(test, slots=3)
    until(lambda: named() == [])


def test_context_variables_travel() -> None:
    from contextvars import ContextVar

    variable: ContextVar[str] = ContextVar("variable")

    async def test(threads: Threads) -> None:
        variable.set("value")
        assert await threads.run(variable.get) == "value"

    running(test)


def test_work_that_ends_after_its_loop_is_closed_is_quiet() -> None:
    release, started = threading.Event(), threading.Event()

    async def test(threads: Threads) -> None:
        hung = asyncio.ensure_future(threads.run(lambda: (started.set(), release.wait())))
        await comes(started.is_set)
        hung.cancel()

    running(test)
    release.set()
    until(lambda: named() == [])  # an exception in a thread is an error of the test run

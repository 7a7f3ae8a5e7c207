"""The hop from the event loop to daemon threads."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from waiting import PATIENCE, comes, until

from nimble_lifecycle.store import Threads
from nimble_lifecycle.store.ports import NoThread


def running(test: Callable[[Threads], Awaitable[None]], slots: int = 1) -> None:
    async def run() -> None:
        threads = Threads(slots, "test-threads")
        try:
            await test(threads)
        finally:
            threads.close()

    asyncio.run(run())


class Hung:
    """Work that hangs once it has begun, until it is released; then it gives "late"."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._released = threading.Event()

    def __call__(self, *_: object) -> str:
        self._begun.set()
        self._released.wait()
        return "late"

    async def begun(self) -> None:
        await comes(self._begun.is_set)

    def release(self) -> None:
        self._released.set()


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


def test_what_waits_beside_is_dropped_with_its_caller() -> None:
    async def test(threads: Threads) -> None:
        beside, hung, begun = threads.beside(1), Hung(), threading.Event()
        first = asyncio.ensure_future(beside.run(hung))
        await hung.begun()
        waiting = [
            asyncio.ensure_future(beside.run(begun.set)),
            asyncio.ensure_future(threads.run_both(lambda: 1, beside, lambda _: begun.set())),
        ]
        await asyncio.sleep(0.05)
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        assert not beside._waiting, "or as many would wait as there are calls"
        hung.release()
        assert await first == "late"
        await beside.run(lambda: None)
        assert not begun.is_set()

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


def test_what_follows_goes_on_where_the_first_left_off_with_its_result() -> None:
    async def test(threads: Threads) -> None:
        others = threads.beside(1)
        names = []

        def named_here(result: int) -> int:
            names.append(threading.current_thread().name)
            return result + 1

        assert await threads.run_both(lambda: named_here(1), others, named_here) == 3
        assert len(set(names)) == 1, "in one hop"
        for raising in (lambda: 1 / 0, lambda: None), (lambda: 1, lambda _: 1 / 0):
            with pytest.raises(ZeroDivisionError):
                await threads.run_both(raising[0], others, raising[1])
        assert await threads.run_both(lambda: 1, others, named_here) == 2

    running(test)


def test_what_follows_holds_a_slot_of_its_own_and_no_other() -> None:
    async def test(threads: Threads) -> None:
        others = threads.beside(1)
        hang, order = Hung(), []
        hung = asyncio.ensure_future(threads.run_both(lambda: 1, others, hang))
        await hang.begun()
        assert await threads.run(lambda: "served") == "served", "the first slot is free"
        waiting = asyncio.ensure_future(threads.run_both(lambda: 2, others, order.append))
        assert await threads.run(lambda: "served") == "served", "while that waits for the second"
        await asyncio.sleep(0.05)
        assert order == []
        hang.release()
        assert await hung == "late"
        await waiting
        assert order == [2]

    running(test)


def test_what_follows_is_not_begun_for_a_caller_who_is_gone() -> None:
    async def test(threads: Threads) -> None:
        others = threads.beside(1)
        first, after = Hung(), []
        gone = asyncio.ensure_future(threads.run_both(first, others, after.append))
        await first.begun()
        gone.cancel()
        await asyncio.wait([gone])
        first.release()
        await threads.run(lambda: None)
        assert await others.run(lambda: "free") == "free"
        assert after == []

    running(test)


def test_what_follows_is_not_begun_for_a_caller_who_left_while_it_waited_for_its_slot() -> None:
    async def test(threads: Threads) -> None:
        others = threads.beside(1)
        hang, after = Hung(), []
        hung = asyncio.ensure_future(others.run(hang))
        await hang.begun()
        gone = asyncio.ensure_future(threads.run_both(lambda: None, others, after.append))
        await asyncio.sleep(0)
        await threads.run(lambda: None)  # the first is over: it had the only slot
        gone.cancel()
        await asyncio.wait([gone])
        hang.release()
        await hung
        assert await others.run(lambda: "free") == "free"
        assert after == []

    running(test)


def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give no more threads, as a system does at its limit."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_where_no_thread_can_be_had_the_call_fails_and_costs_no_slot() -> None:
    async def test(threads: Threads) -> None:
        with pytest.MonkeyPatch.context() as patched:
            refusing(patched)
            for _ in range(3):
                with pytest.raises(NoThread, match="new thread"):
                    await asyncio.wait_for(threads.run(lambda: None), PATIENCE)
        assert await asyncio.wait_for(threads.run(lambda: "served"), PATIENCE) == "served"

    running(test)


def test_where_no_thread_can_be_had_what_waits_goes_on_waiting() -> None:
    async def test(threads: Threads) -> None:
        others = threads.beside(1)
        first = Hung()
        with pytest.MonkeyPatch.context() as patched:
            both = asyncio.ensure_future(threads.run_both(first, others, lambda _: "both"))
            await first.begun()
            waiting = asyncio.ensure_future(threads.run(lambda: "waited"))
            await asyncio.sleep(0)
            refusing(patched)
            first.release()
            # Its one thread goes on with the second; the slot it gave back finds no other.
            assert await asyncio.wait_for(both, PATIENCE) == "both"
        assert await asyncio.wait_for(threads.run(lambda: "served"), PATIENCE) == "served"
        assert await asyncio.wait_for(waiting, PATIENCE) == "waited"

    running(test)


def test_what_still_waited_when_the_threads_were_closed_is_done() -> None:
    async def test(threads: Threads) -> None:
        hang, done = Hung(), threading.Event()
        hung = asyncio.ensure_future(threads.run(hang))
        await hang.begun()
        last = asyncio.ensure_future(threads.run(done.set))
        await asyncio.sleep(0)
        threads.close()
        hang.release()
        await asyncio.wait_for(asyncio.gather(hung, last), PATIENCE)
        assert done.is_set()

    running(test)
    until(lambda: named() == [])


@pytest.mark.parametrize("leaves", [False, True])
def test_whoever_did_both_gives_each_slot_back_once(leaves: bool) -> None:
    async def test(threads: Threads) -> None:
        others = threads.beside(1)
        for raising in (lambda: 1, lambda _: 2), (lambda: 1, lambda _: 1 / 0), (lambda: 1 / 0, id):
            both = asyncio.ensure_future(threads.run_both(raising[0], others, raising[1]))
            await asyncio.sleep(0)
            if leaves:
                both.cancel()
            await asyncio.wait([both])
        for slots in threads, others:
            await asyncio.wait_for(slots.run(lambda: None), PATIENCE)
            release, begun = threading.Event(), []
            hung = [
                asyncio.ensure_future(slots.run(lambda b=begun, r=release: (b.append(1), r.wait())))
                for _ in range(2)
            ]
            await comes(lambda b=begun: bool(b))
            await asyncio.sleep(0.05)
            assert begun == [1], "there is one slot"
            release.set()
            await asyncio.gather(*hung)

    running(test)

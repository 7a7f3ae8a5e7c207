"""One call of an adapter: whatever it does, what comes back is a value, and in time."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from uuid import UUID

import pytest
from waiting import PATIENCE

from nimble_lifecycle.errors import TemporaryError, UnknownOutcome
from nimble_lifecycle.protocol import Phase, Tenancy
from nimble_lifecycle.reconciler.calls import Calls, Ended, OverrunError, ended
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Released
from nimble_lifecycle.store import Threads
from nimble_lifecycle.store.ports import NoThread
from nimble_lifecycle.testing import ManualClock

T = TypeVar("T")

TENANCY = Tenancy(
    id=UUID(int=1),
    tenant_id="",
    workspace_id="ws",
    kind="k",
    incarnation=1,
    phase=Phase.PROVISIONING,
    first_seen_at=datetime(2030, 1, 1, tzinfo=UTC),
)


LIMIT = 600.0


async def call(method: Callable[[Tenancy], object], clock: ManualClock | None = None) -> Ended:
    threads = Threads(2, "test")
    clock = clock or ManualClock()
    try:
        return await ended(method, TENANCY, limit=LIMIT, clock=clock, hop=threads)  # type: ignore[arg-type]
    finally:
        threads.close()


def both(answer: Callable[[], object]) -> list[Callable[[Tenancy], object]]:
    async def on_loop(_: Tenancy) -> object:
        return answer()

    def on_thread(_: Tenancy) -> object:
        return answer()

    def wrapped(tenancy: Tenancy) -> Coroutine[object, object, object]:
        return on_loop(tenancy)

    return [on_loop, on_thread, wrapped]


def raising(error: BaseException) -> Callable[[], object]:
    def answer() -> object:
        raise error

    return answer


@pytest.mark.parametrize("style", [0, 1, 2])
@pytest.mark.parametrize(
    "answer", [Provisioned("r"), Released(), InProgress("o"), External("r"), None]
)
def test_what_is_returned_comes_back(style: int, answer: Ended) -> None:
    assert asyncio.run(call(both(lambda: answer)[style])) == answer


@pytest.mark.parametrize("style", [0, 1, 2])
@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        TemporaryError("later"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        UnknownOutcome("?"),
        BaseExceptionGroup("many", [SystemExit()]),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_is_raised_comes_back_as_a_value(style: int, error: BaseException) -> None:
    outcome = asyncio.run(call(both(raising(error))[style]))
    assert isinstance(outcome, Exception)
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        assert outcome is error


def test_a_cancellation_from_inside_is_an_unknown_outcome() -> None:
    async def cancelled(_: Tenancy) -> Released:
        raise asyncio.CancelledError

    assert isinstance(asyncio.run(call(cancelled)), UnknownOutcome)


@pytest.mark.parametrize(
    "answer",
    [
        Provisioned(""),
        Provisioned("  "),
        Provisioned(None),  # type: ignore[arg-type]  # what an adapter may do wrong
        Provisioned(5),  # type: ignore[arg-type]
        Provisioned("a\0b"),
        Provisioned("\ud800"),
        Provisioned("x" * 1025),
        Provisioned("\u4e00" * 1024),
        External(""),
        InProgress(""),
        "done",
        {"external_id": "r"},
        True,
    ],
)
def test_an_answer_no_row_can_hold_is_an_error(answer: object) -> None:
    assert isinstance(asyncio.run(call(both(lambda: answer)[0])), TypeError)


def test_an_async_call_over_its_limit_is_cancelled() -> None:
    ends: list[str] = []
    clock = ManualClock()

    async def hangs(_: Tenancy) -> Released:
        await asyncio.sleep(0)  # only now its time is taken
        clock.advance(LIMIT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        return Released()

    async def scenario() -> None:
        outcome = await asyncio.wait_for(call(hangs, clock), PATIENCE)
        assert isinstance(outcome, OverrunError)
        await asyncio.wait({outcome.late}, timeout=PATIENCE)
        assert outcome.late.cancelled()

    asyncio.run(scenario())
    assert ends == ["cancelled"]


def test_a_plain_call_over_its_limit_goes_on_and_its_result_is_kept() -> None:
    go_on = threading.Event()
    clock = ManualClock()

    def hangs(_: Tenancy) -> Released:
        clock.advance(LIMIT)
        go_on.wait(PATIENCE)
        return Released()

    async def scenario() -> None:
        outcome = await call(hangs, clock)
        assert isinstance(outcome, OverrunError)
        assert not outcome.late.done()
        go_on.set()
        assert await outcome.late == Released()

    asyncio.run(scenario())


def test_cancelling_the_caller_cancels_the_call() -> None:
    ends: list[str] = []
    begun = asyncio.Event()

    async def hangs(_: Tenancy) -> Released:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("ended")
        return Released()

    async def scenario() -> None:
        task = asyncio.ensure_future(call(hangs))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert ends == ["ended"]


def test_a_plain_call_whose_turn_comes_too_late_is_never_begun() -> None:
    begun: list[Tenancy] = []

    async def late() -> None:
        threads = Threads(1, "busy")
        release = threading.Event()
        holding = asyncio.ensure_future(threads.run(release.wait))
        await asyncio.sleep(0)
        clock = ManualClock()
        waiting = asyncio.ensure_future(
            ended(begun.append, TENANCY, limit=LIMIT, clock=clock, hop=threads)  # type: ignore[arg-type]
        )
        while not waiting.done():
            clock.advance(LIMIT)
            await asyncio.sleep(0)
        outcome = await waiting
        assert isinstance(outcome, OverrunError)
        release.set()
        await holding
        assert isinstance(await outcome.late, TemporaryError)
        threads.close()

    asyncio.run(late())
    assert begun == []


def test_a_call_during_which_the_process_stood_still_is_heard_out() -> None:
    clock = ManualClock()

    async def suspended(_: Tenancy) -> Provisioned:
        clock.advance(3.0)
        for _ in range(20):  # the answer that waits in a socket takes a few turns of the loop
            await asyncio.sleep(0)
        return Provisioned("late")

    async def run() -> Ended:
        return await ended(suspended, TENANCY, limit=1.0, clock=clock, hop=Threads(1, "test"))

    assert asyncio.run(run()) == Provisioned("late")


def test_a_call_is_heard_out_once_however_often_the_process_stands_still() -> None:
    clock = ManualClock()

    async def suspended_again_and_again(_: Tenancy) -> Provisioned:
        while True:
            clock.advance(3.0)
            for _ in range(20):
                await asyncio.sleep(0)

    async def run() -> Ended:
        hop = Threads(1, "test")
        call = ended(suspended_again_and_again, TENANCY, limit=1.0, clock=clock, hop=hop)
        return await asyncio.wait_for(call, PATIENCE)

    assert isinstance(asyncio.run(run()), OverrunError)


class NoThreads:
    """A hop on a system that gives no more threads."""

    async def run(self, work: Callable[[], T]) -> T:
        raise NoThread("can't start new thread")

    def close(self) -> None: ...


def test_a_call_for_which_no_thread_can_be_had_was_certainly_not_begun() -> None:
    begun: list[Tenancy] = []

    def method(tenancy: Tenancy) -> None:
        begun.append(tenancy)

    async def run() -> Ended:
        clock = ManualClock()
        return await ended(method, TENANCY, limit=LIMIT, clock=clock, hop=NoThreads())

    outcome = asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert isinstance(outcome, TemporaryError)
    assert begun == []


def test_an_answer_that_cannot_even_be_looked_at_comes_back_as_an_error() -> None:
    class Broken(Provisioned):
        def __getattribute__(self, name: str) -> object:
            raise KeyError(name)

    for method in both(lambda: Broken("r")):
        outcome = asyncio.run(asyncio.wait_for(call(method), PATIENCE))
        assert isinstance(outcome, KeyError)


def test_an_answer_that_comes_as_its_caller_is_cancelled_is_let_be() -> None:
    told: list[object] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        answer: asyncio.Future[Provisioned] = asyncio.get_running_loop().create_future()

        async def method(_: Tenancy) -> Provisioned:
            return await answer

        task = asyncio.ensure_future(call(method))
        for _ in range(5):
            await asyncio.sleep(0)
        answer.set_result(Provisioned("r"))
        await asyncio.sleep(0)  # the call has ended, and nobody was told yet
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert told == []


def test_each_call_is_given_up_at_its_own_limit_and_no_other() -> None:
    clock = ManualClock()
    over: dict[str, Ended] = {}

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def scenario() -> None:
        answered = asyncio.Event()

        async def answers(_: Tenancy) -> Released:
            await answered.wait()
            return Released()

        async def hangs(_: Tenancy) -> Released:
            await asyncio.Event().wait()
            return Released()

        calls = Calls(limit=10.0, clock=clock, hop=Threads(1, "test"))
        calls.begin(answers, TENANCY, partial(over.__setitem__, "first"))
        await turns()
        clock.advance(6.0)
        calls.begin(hangs, TENANCY, partial(over.__setitem__, "second"))
        answered.set()
        await turns()
        assert over == {"first": Released()}
        clock.advance(9.0)
        await turns()
        assert "second" not in over
        clock.advance(1.0)
        await turns()
        assert isinstance(over["second"], OverrunError)
        assert over["first"] == Released()

    asyncio.run(scenario())


def test_of_calls_that_are_abandoned_nothing_more_is_heard() -> None:
    over: list[Ended] = []

    async def hangs(_: Tenancy) -> Released:
        await asyncio.Event().wait()
        return Released()

    async def scenario() -> None:
        calls = Calls(limit=10.0, clock=ManualClock(), hop=Threads(1, "test"))
        calls.begin(hangs, TENANCY, over.append)
        await asyncio.sleep(0)
        left = calls.abandon()
        await asyncio.wait(left, timeout=PATIENCE)
        assert [task.cancelled() for task in left] == [True]

    asyncio.run(scenario())
    assert over == []


WHOSE: ContextVar[str] = ContextVar("whose", default="the worker's")


def test_what_a_method_leaves_in_its_context_is_not_met_where_its_end_is_told() -> None:
    met: list[str] = []

    async def method(_: Tenancy) -> Released:
        WHOSE.set("the adapter's")
        return Released()

    async def scenario() -> None:
        calls = Calls(limit=10.0, clock=ManualClock(), hop=Threads(1, "test"))
        calls.begin(method, TENANCY, lambda _: met.append(WHOSE.get()))
        for _ in range(5):
            await asyncio.sleep(0)
        calls.abandon()

    asyncio.run(scenario())
    assert met == ["the worker's"]


class NoMemory(NoThreads):
    """A hop that fails where nobody can say what was begun."""

    async def run(self, work: Callable[[], T]) -> T:
        raise MemoryError


def plain(_: Tenancy) -> None: ...


@pytest.mark.parametrize("first", ["whoever is told fails", "the hop fails"])
def test_a_call_that_ends_in_trouble_takes_no_limit_from_the_others(first: str) -> None:
    clock, told = ManualClock(), list[object]()
    over: dict[str, Ended] = {}

    async def method(_: Tenancy) -> Released:
        return Released()

    async def hangs(_: Tenancy) -> Released:
        await asyncio.Event().wait()
        return Released()

    def fails(_: Ended) -> None:
        raise LookupError("not noted")

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.append(context["exception"])
        )
        calls = Calls(limit=10.0, clock=clock, hop=NoMemory())
        if first == "the hop fails":
            calls.begin(plain, TENANCY, partial(over.__setitem__, "first"))
        else:
            calls.begin(method, TENANCY, fails)
        calls.begin(hangs, TENANCY, partial(over.__setitem__, "second"))
        for _ in range(2):
            await turns()
            clock.advance(10.0)
        await turns()

    asyncio.run(scenario())
    assert isinstance(over.pop("second"), OverrunError)
    assert [type(each) for each in (*told, *over.values())] == [
        LookupError if first == "whoever is told fails" else MemoryError
    ]

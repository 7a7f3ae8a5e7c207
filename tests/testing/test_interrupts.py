"""A call is cut off where it is told to be, by a real cancellation."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nimble_lifecycle.testing.conformance.interrupts import Cut, Watch


class Steps:
    """Three waits, each for a piece of work that is done while it is waited for."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.answered: list[str] = []

    async def work(self, name: str) -> str:
        await asyncio.sleep(0)
        self.done.append(name)
        return name

    async def __call__(self, _: object = None) -> str:
        for name in "abc":
            answer = await asyncio.ensure_future(self.work(name))
            self.answered.append(answer)
        return "abc"


def watched(call: Callable[[object], Awaitable[object]], cut: Cut) -> Watch:
    """Run a call to its end in a task of its own."""
    watch = Watch(cut)

    async def run() -> None:
        await asyncio.wait([asyncio.ensure_future(watch.rest(call(None)))])

    asyncio.run(run())
    return watch


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("answered", [False, True])
def test_it_dies_in_its_wait_or_with_the_answer_in_hand(at: int, answered: bool) -> None:
    steps = Steps()
    watch = watched(steps, Cut(at, answered))
    assert (watch.interrupted, watch.swallowed, watch.cut.met) == (True, False, True)
    assert steps.answered == list("abc")[: at - 1]
    assert steps.done == list("abc")[: at if answered else at - 1]


@pytest.mark.parametrize("at", [0, 4])
def test_a_wait_that_never_comes_is_not_met(at: int) -> None:
    watch = watched(Steps(), Cut(at))
    assert (watch.interrupted, watch.cut.met, watch.cut.waits) == (False, False, 3)
    assert watch.returned == "abc"


@pytest.mark.parametrize("answered", [False, True])
def test_a_bare_yield_to_the_event_loop_is_a_wait_too(answered: bool) -> None:
    async def naps(_: object) -> None:
        await asyncio.sleep(0)
        pytest.fail("it went on")

    watch = watched(naps, Cut(1, answered))
    assert (watch.interrupted, watch.swallowed) == (True, False)


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_call_that_goes_on_after_its_cancellation_is_noticed(how: str) -> None:
    async def stubborn(_: object) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        if how == "raises":
            raise ValueError("it failed")
        return "done"

    assert watched(stubborn, Cut(1)).swallowed


def test_a_call_that_cleans_up_before_it_dies_is_fine() -> None:
    async def tidy(_: object) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)

    assert not watched(tidy, Cut(1)).swallowed

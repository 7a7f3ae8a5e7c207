"""The clock of the test kit."""

import asyncio
import time
from datetime import timedelta

import pytest
from waiting import PATIENCE

from nimble_lifecycle.testing import ManualClock


def test_it_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock()
    first = clock.instant
    assert clock.instant == first
    clock.advance(1.5)
    assert (clock.instant - first).total_seconds() == 1.5


def test_it_stands_at_a_whole_millisecond_however_it_got_there() -> None:
    clock = ManualClock()
    for _ in range(1000):
        clock.advance(0.001)
        assert clock.instant.microsecond % 1000 == 0
    clock.advance(0.1 + 0.2)
    assert clock.instant == ManualClock().instant + timedelta(seconds=1.3)


def test_it_never_goes_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        ManualClock().advance(-1.0)


def test_its_monotonic_side_advances_as_far() -> None:
    clock = ManualClock()
    started, before = time.monotonic(), clock.monotonic()
    clock.advance(100.0)
    advanced = clock.monotonic() - before
    assert 100.0 <= advanced <= 100.0 + time.monotonic() - started


def test_sleepers_of_a_loop_that_is_gone_are_no_trouble() -> None:
    clock = ManualClock()

    async def run() -> None:
        sleeper = asyncio.ensure_future(clock.sleep(5.0))
        await asyncio.sleep(0)
        sleeper.cancel()

    asyncio.run(run())
    clock.advance(10.0)


def test_sleepers_wake_once_it_was_advanced_that_far() -> None:
    async def run() -> None:
        clock = ManualClock()
        await clock.sleep(0.0)
        sleepers = [asyncio.ensure_future(clock.sleep(seconds)) for seconds in (1.0, 5.0)]
        await asyncio.sleep(0)
        clock.advance(1.0)
        await asyncio.wait_for(sleepers[0], PATIENCE)
        assert not sleepers[1].done()
        clock.advance(4.0)
        await asyncio.wait_for(sleepers[1], PATIENCE)

    asyncio.run(run())

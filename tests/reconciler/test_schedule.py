"""Sweeps beside a worker: when they come, who makes them, and what they may not disturb."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from waiting import PATIENCE

from nimble_lifecycle.reconciler.cases import Wishes
from nimble_lifecycle.reconciler.schedule import CONFIRM, Schedule
from nimble_lifecycle.reconciler.sweep import Ports, Sweep
from nimble_lifecycle.store import Threads
from nimble_lifecycle.store.models import vendor
from nimble_lifecycle.store.sweeps import SweepStore
from nimble_lifecycle.testing import Fault, ManualClock, MemoryVendor

pytestmark = pytest.mark.anyio

MakeFleet = Callable[..., Any]
EVERY = 3600.0


class Counting(MemoryVendor):
    """Counts how often its inventory is asked for."""

    lag = timedelta(seconds=10)

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def inventory(self) -> Any:
        self.asked += 1
        return super().inventory()


class Stopped(ManualClock):
    """Knows how long whoever sleeps on it wants to."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds)


@pytest.fixture
async def fleet(sqlite_fleet: MakeFleet) -> Any:
    made = sqlite_fleet(Counting(), clock=Stopped())
    made.ready("a", "b", "c")
    await made.work()
    made.clock.advance(60)
    return made


@asynccontextmanager
async def scheduled(fleet: Any, *, first: float = 0.0, name: str = "me") -> AsyncIterator[None]:
    """Run a schedule as long as the block."""
    database, lists = Threads(2, "test-store"), Threads(1, "test-list")
    ports = Ports(clock=fleet.clock, database=database, threads=lists)
    sweep = Sweep(fleet.vendor, SweepStore(fleet.store, actor=name), Wishes(), ports)
    fleet.clock.slept.clear()
    task = asyncio.create_task(Schedule(sweep, EVERY, first).run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        database.close()
        lists.close()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def resting(fleet: Any, seconds: float) -> None:
    """Wait until the schedule sleeps for so long, and let that time pass."""
    await until(lambda: fleet.clock.slept and fleet.clock.slept[-1] == seconds)
    fleet.clock.slept.clear()
    fleet.clock.advance(seconds)


async def test_sweeps_come_after_a_part_of_the_interval_and_then_at_each(fleet: Any) -> None:
    async with scheduled(fleet, first=100.0):
        await until(lambda: fleet.clock.slept)
        assert fleet.vendor.asked == 0
        await resting(fleet, 100.0)
        await resting(fleet, EVERY)
        await until(lambda: fleet.vendor.asked == 2)


async def test_what_seems_to_have_vanished_is_looked_at_again_soon(fleet: Any) -> None:
    fleet.world.remove(next(iter(fleet.world.resources)))
    async with scheduled(fleet):
        await resting(fleet, CONFIRM)
        await until(lambda: len(fleet.rows()) == 4)
    assert fleet.vendor.asked == 2
    await fleet.work()
    assert len(fleet.world.resources) == 3


async def test_workers_of_one_database_share_their_sweeps(fleet: Any) -> None:
    async with scheduled(fleet, name="me"):
        await until(lambda: EVERY in fleet.clock.slept)
        async with scheduled(fleet, name="another"):
            await until(lambda: EVERY in fleet.clock.slept)
    assert fleet.vendor.asked == 1


async def test_an_alert_is_told_and_the_next_sweep_comes(
    fleet: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.world.fail("inventory", Fault(raises=RuntimeError("page 2 is missing")))
    with caplog.at_level(logging.INFO, "nimble_reconcile"):
        async with scheduled(fleet):
            await resting(fleet, EVERY)
            await until(lambda: fleet.vendor.asked == 2)
    assert "page 2 is missing" in caplog.text


async def test_a_sweep_that_fails_does_not_end_the_schedule(
    fleet: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def turn(change: str) -> None:
        until_then = fleet.clock.monotonic() + PATIENCE
        fleet.store.writing(until_then, lambda at: at.execute(sa.text(change)).close())

    turn("ALTER TABLE nimble_sighting RENAME TO away")
    async with scheduled(fleet):
        await resting(fleet, EVERY)
        turn("ALTER TABLE away RENAME TO nimble_sighting")
        await until(lambda: EVERY in fleet.clock.slept)
    assert "a sweep ended early" in caplog.text
    assert fleet._read(sa.select(vendor.c.sweep_owner)) == [{"sweep_owner": None}]


async def test_a_worker_sweeps_while_its_adapter_is_open_and_stops_with_it(
    sqlite_fleet: MakeFleet,
) -> None:
    events: list[str] = []

    class Opened(Counting):
        async def __aenter__(self) -> "Opened":
            events.append("opened")
            return self

        async def __aexit__(self, *_: object) -> None:
            events.append("closed")

    fleet = sqlite_fleet(Opened())

    async def beside() -> None:
        events.append("beside")
        worker.stop()
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    from nimble_lifecycle.reconciler.worker import Worker

    stored, plain = Threads(2, "test-store"), Threads(1, "test-vendor")
    worker = Worker(
        fleet.vendor, fleet.store, fleet.limits, database=stored, threads=plain, beside=[beside]
    )
    async with asyncio.timeout(PATIENCE):
        await worker.run()
    stored.close()
    plain.close()
    assert events == ["opened", "beside", "ended", "closed"]

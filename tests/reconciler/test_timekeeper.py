"""A worker while the database's clock is put."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from clocks import HOUR, WrongClock
from waiting import comes

from nimble_lifecycle.errors import TemporaryError
from nimble_lifecycle.testing import Fault

MakeFleet = Callable[..., Any]


async def ready_after(f: Any, worker: Any, ahead: float) -> float:
    """Let a row back off, put the clock, and give the seconds until the row is ready."""
    running = asyncio.ensure_future(worker.run())
    await comes(lambda: f.row()["due_at"] and not f.row()["lease_owner"])
    f.clock.ahead = ahead
    began = f.clock.instant
    f.clock.advance(90.0)  # a worker looks at the clocks each minute
    await f.passing(lambda: f.phases() == {"ready": 1})
    took = f.clock.instant - began
    worker.stop()
    await running
    return took.total_seconds()


@pytest.mark.parametrize(
    ("ahead", "shortest", "longest", "said"),
    [(0.0, 90.0, 93.0, 1), (HOUR - 30.0, 94.0, 105.0, 0)],
    ids=["an hour back", "half a minute back"],
)
def test_no_row_waits_for_the_time_before(
    fleet: MakeFleet,
    caplog: pytest.LogCaptureFixture,
    ahead: float,
    shortest: float,
    longest: float,
    said: int,
) -> None:
    f = fleet(clock=WrongClock())
    f.world.fail("provision", Fault(raises=TemporaryError("later", delay=65.0)))
    f.ready("a")
    took: list[float] = []

    async def scenario(worker: Any) -> None:
        took.append(await ready_after(f, worker, ahead))

    asyncio.run(f.with_worker(scenario))
    assert shortest <= took[0] <= longest
    assert caplog.text.count("was put back by") == said

"""A resource that vanished behind our back, met by an update rather than by a sweep."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from waiting import PATIENCE

from nimble_lifecycle.errors import Gone
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler import InProgress, Provisioned
from nimble_lifecycle.store.models import sighting, tenancy
from nimble_lifecycle.testing import ManualClock, MemoryVendor

MakeFleet = Callable[..., Any]


class Slow(MemoryVendor):
    lag = timedelta(hours=1)


class Forgetting(MemoryVendor):
    """Changes a resource by an operation, and forgets the first three."""

    operations = 0

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        made = await super().provision(tenancy)
        if tenancy.external_id is None:
            return made
        self.operations += 1
        return InProgress(f"change-{self.operations}", poll_after=0.01)

    async def poll(self, tenancy: Tenancy) -> Provisioned:
        if self.operations <= 3:
            raise Gone(f"no operation {tenancy.operation_id}")
        return Provisioned(tenancy.external_id or "")


class Lying(MemoryVendor):
    """Says of the first update of each change that there is no such resource."""

    lied: frozenset[object] = frozenset()

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        size = tenancy.params["size"]
        if tenancy.external_id is not None and size not in self.lied:
            self.lied |= {size}
            raise Gone("no such resource")
        return await super().provision(tenancy)


def vanish(f: Any) -> str:
    """Take the one resource away and change what the workspace wants of it."""
    f.ready("a", size=1)
    asyncio.run(f.work())
    (mine,) = f.world.resources
    f.world.remove(mine)
    f.ready("a", size=2)
    return mine


def test_a_resource_that_an_update_twice_finds_gone_is_made_anew(fleet: MakeFleet) -> None:
    f = fleet()
    gone = vanish(f)
    asyncio.run(f.work())
    (made,) = f.world.resources.values()
    assert made.params == {"size": 2}
    first, second = f.rows()
    assert (first["external_id"], first["reason"]) == (gone, "Vanished")
    assert first["retired_at"] is not None
    assert (second["incarnation"], second["phase"]) == (2, "ready")
    assert second["external_id"] == made.external_id
    assert second["idempotency_key"] != first["idempotency_key"]


def test_two_answers_within_the_vendors_lag_prove_nothing(fleet: MakeFleet) -> None:
    f = fleet(Slow())
    vanish(f)
    updates = 0

    async def until_tried_often(worker: Any) -> None:
        nonlocal updates
        running = asyncio.ensure_future(worker.run())
        while updates < 3:
            await asyncio.sleep(0.01)
            updates = sum(f.store.reading(f.store.clock.monotonic() + PATIENCE, _attempts))
        worker.stop()
        await running

    asyncio.run(f.with_worker(until_tried_often))
    row = f.row()
    assert (row["phase"], row["retired_at"], f.world.created) == ("ready", None, 1)
    seen = f.store.reading(
        f.store.clock.monotonic() + PATIENCE,
        lambda at: at.execute(sighting.select()).mappings().all(),
    )
    assert [each["strikes"] for each in seen] == [1]


def test_an_update_whose_operation_is_forgotten_is_begun_once_more(fleet: MakeFleet) -> None:
    f = fleet(Forgetting())
    f.ready("a", size=1)
    asyncio.run(f.work())
    f.ready("a", size=2)
    asyncio.run(f.work())
    row = f.row()
    assert (row["phase"], row["reason"], row["retired_at"]) == ("ready", None, None)
    (made,) = f.world.resources.values()
    assert made.params == {"size": 2}


def test_two_answers_with_a_success_between_them_prove_nothing(fleet: MakeFleet) -> None:
    f = fleet(Lying(), clock=ManualClock())
    for size in range(4):
        f.ready("a", size=size)
        asyncio.run(f.work_on())
        f.clock.advance(1)
    assert (f.row()["phase"], f.row()["retired_at"]) == ("ready", None)
    (made,) = f.world.resources.values()
    assert made.params == {"size": 3}


def _attempts(at: Any) -> list[int]:
    return list(at.execute(tenancy.select().with_only_columns(tenancy.c.attempts)).scalars())

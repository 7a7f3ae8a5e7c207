"""Creates that land after another worker looked, found nothing and created."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from nimble_lifecycle.errors import PermanentError
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler import InProgress, Provisioned
from nimble_lifecycle.reconciler.limits import policy_of, rules_of
from nimble_lifecycle.reconciler.outcome import settlement
from nimble_lifecycle.store import Claim, WorkStore
from nimble_lifecycle.testing import ManualClock, MemoryVendor

MakeFleet = Callable[..., Any]


class Forgetful(MemoryVendor):
    """Looks up, but makes a second resource for the same key."""

    repeatable = None
    time_limit = timedelta(minutes=10)


class Suspended:
    """A worker that stands still between its claim and its call, for longer than its lease."""

    def __init__(self, fleet: Any) -> None:
        self._fleet = fleet

    def claim(self) -> Claim:
        with closing(WorkStore(self._fleet.url, clock=self._fleet.clock)) as store:
            rules = rules_of(self._fleet.vendor, self._fleet.limits, "suspended")
            (claim,) = store.claim(rules, 1)
        self._fleet.clock.advance(rules.lease)
        return claim

    def goes_on(self, claim: Claim) -> Provisioned | InProgress:
        fleet = self._fleet
        made = fleet.world.provision(claim.tenancy, repeatable=False)
        settled = settlement(claim, made, policy_of(fleet.vendor, fleet.limits))
        with closing(WorkStore(fleet.url, clock=fleet.clock)) as store:
            assert store.settle([settled], actor="suspended") == set()
        return made


@pytest.mark.parametrize("released", [False, True])
def test_a_create_that_lands_late_leaves_exactly_what_is_wanted(
    fleet: MakeFleet, released: bool
) -> None:
    f = fleet(Forgetful(), clock=ManualClock())
    suspended = Suspended(f)
    f.ready("a")
    claim = suspended.claim()
    asyncio.run(f.work_on())
    if released:
        # The release waits until the second create can no longer land.
        f.clock.advance(rules_of(f.vendor, f.limits, "any").lease)
        f.removing("a")
        asyncio.run(f.work_on())
    late = suspended.goes_on(claim)
    assert late.external_id in f.world.resources
    asyncio.run(f.work_on())
    assert f.world.created == 2
    mine = [row["external_id"] for row in f.rows() if row["phase"] == "ready"]
    assert list(f.world.resources) == mine
    assert len(mine) == (0 if released else 1)
    assert [row["phase"] for row in f.rows() if row["origin"] == "surplus"] == ["released"]


def test_an_adapter_that_releases_by_key_cannot_harm_the_rows_resource(fleet: MakeFleet) -> None:
    class ByKey(Forgetful):
        async def release(self, tenancy: Tenancy):
            for found in self.world.of(tenancy.idempotency_key or "no key"):
                self.world.remove(found.external_id)
            raise PermanentError("it knows no key")

    f = fleet(ByKey(), clock=ManualClock())
    suspended = Suspended(f)
    f.ready("a")
    claim = suspended.claim()
    asyncio.run(f.work_on())
    (mine,) = f.world.resources
    suspended.goes_on(claim)
    asyncio.run(f.work_on())
    assert mine in f.world.resources
    assert [row["phase"] for row in f.rows()] == ["ready", "stalled"]

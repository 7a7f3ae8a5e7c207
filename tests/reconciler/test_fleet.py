"""The vendor as a whole: a refused credential, limits shared by workers, suspects, alarms."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from waiting import PATIENCE

from nimble_lifecycle.errors import CredentialError, Unavailable
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler import External, InProgress, Provisioned, Released
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.limits import rules_of
from nimble_lifecycle.reconciler.worker import Worker
from nimble_lifecycle.store import Threads
from nimble_lifecycle.testing import Fault, ManualClock, MemoryVendor, PlainMemoryVendor

T = TypeVar("T")
MakeFleet = Callable[..., Any]
MakeLimits = Callable[..., Any]

LEASE = 30.0


class Refusing(MemoryVendor):
    """Refuses its credential for some workspaces, or for `*`, all of them."""

    def __init__(self, *workspaces: str) -> None:
        super().__init__()
        self.refuses = set(workspaces)
        self.refused: list[str] = []

    def _check(self, tenancy: Tenancy) -> None:
        if self.refuses & {tenancy.workspace_id, "*"}:
            self.refused.append(tenancy.workspace_id)
            raise CredentialError("401")

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        self._check(tenancy)
        return await super().provision(tenancy)

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        self._check(tenancy)
        return await super().release(tenancy)


class Counted:
    """Runs the store's calls, and knows whether any is under way."""

    def __init__(self) -> None:
        self.threads = Threads(4, "counted")
        self.under_way = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.under_way += 1
        try:
            return await self.threads.run(work)
        finally:
            self.under_way -= 1


class Time:
    """Lets a worker on a clock that stands do all there is to do before the clock goes on."""

    def __init__(self, clock: ManualClock, store: Counted) -> None:
        self._clock = clock
        self._store = store

    async def pass_(self, seconds: int) -> None:
        for _ in range(seconds):
            await self._calm()
            self._clock.advance(1)
        await self._calm()

    async def _calm(self) -> None:
        calm = 0
        while calm < 20:
            busy = self._store.under_way > 0
            await asyncio.sleep(0.001 if busy else 0)
            calm = 0 if busy else calm + 1


async def over_time(fleet: Any, clock: ManualClock, scenario: Callable[[Time], Awaitable[None]]):
    """Run a scenario beside a worker; both end with it."""
    store = Counted()

    async def beside(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await scenario(Time(clock, store))
        worker.stop()
        await running

    await fleet.with_worker(beside, database=store)
    store.threads.close()


def names(number: int) -> list[str]:
    return [f"ws-{each:03}" for each in range(number)]


def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    fleet: MakeFleet, limits: MakeLimits, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    f = fleet(clock=clock, limits=limits(poll=1.0))
    f.world.fail("provision", Fault(raises=Unavailable("refused", after=60.0)))

    async def scenario(time: Time) -> None:
        f.ready(*names(3))
        await time.pass_(30)
        assert [r.getMessage().count("left alone") for r in caplog.records] == [1]
        await time.pass_(60)
        assert f.phases() == {"ready": 3}

    asyncio.run(over_time(f, clock, scenario))
    begun, ended = (record.getMessage() for record in caplog.records)
    assert "VendorUnavailable" in begun
    assert "called again" in ended


# -- a refused credential --------------------------------------------------------------------------


def test_a_revoked_credential_is_probed_now_and_then_and_costs_no_attempts(
    fleet: MakeFleet, limits: MakeLimits, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    vendor = Refusing()
    f = fleet(vendor, clock=clock, limits=limits(poll=1.0, grace=0.0, backoff=Backoff()))

    async def scenario(time: Time) -> None:
        f.ready(*names(8))
        await time.pass_(5)
        assert f.phases() == {"ready": 8}
        vendor.refuses.add("*")
        f.removing(*names(8))
        await time.pass_(300)
        assert len(f.world.resources) == 8
        rows = f.rows()
        assert sorted(row["attempts"] for row in rows) == [0] * 7 + [1]
        assert {row["reason"] for row in rows} == {"CredentialRefused"}
        probes = vendor.refused[8:]
        assert 8 <= len(probes) <= 7 + 300 / 60, "one at a time, soon once a minute"
        assert set(probes) == set(names(8)), "they take turns"
        vendor.refuses.clear()
        await time.pass_(90)
        assert (f.phases(), f.world.resources) == ({"released": 8}, {})

    asyncio.run(over_time(f, clock, scenario))
    said = [r.getMessage() for r in caplog.records]
    assert sum("refuses the credential" in text for text in said) == 1
    assert sum("takes the credential again" in text for text in said) == 1


def test_one_row_that_is_refused_for_ever_waits_alone(fleet: MakeFleet, limits: MakeLimits) -> None:
    clock = ManualClock()
    vendor = Refusing("bad")
    f = fleet(vendor, clock=clock, limits=limits(poll=1.0, backoff=Backoff()))

    async def scenario(time: Time) -> None:
        f.ready("bad")
        for number in range(30):
            f.ready(f"ws-{number}")
            await time.pass_(4)
        assert f.phases() == {"ready": 30, "pending": 1}
        (bad,) = (row for row in f.rows() if row["phase"] == "pending")
        assert bad["reason"] == "PermissionDenied"
        assert bad["attempts"] == len(vendor.refused) > 3
        assert f.vendor_row()["halted_at"] is None

    asyncio.run(over_time(f, clock, scenario))


def test_two_rows_that_are_refused_for_ever_do_not_stop_the_others_for_good(
    sqlite_fleet: MakeFleet, limits: MakeLimits
) -> None:
    clock = ManualClock()
    f = sqlite_fleet(
        Refusing("bad-1", "bad-2"), clock=clock, limits=limits(poll=1.0, backoff=Backoff())
    )

    async def scenario(time: Time) -> None:
        f.ready("bad-1", "bad-2", *names(20))
        await time.pass_(180)
        f.ready("late")
        await time.pass_(180)
        assert f.phases() == {"ready": 21, "pending": 2}

    asyncio.run(over_time(f, clock, scenario))


def test_a_worker_that_starts_with_a_mended_credential_goes_on_at_once(
    fleet: MakeFleet,
) -> None:
    f = fleet(Refusing("*"))
    f.ready("a", "b", "c")
    asyncio.run(f.work())
    assert f.vendor_row()["halted_at"] is not None
    assert f.world.created == 0
    f.vendor.refuses.clear()
    asyncio.run(f.work())
    assert (f.phases(), f.world.created) == ({"ready": 3}, 3)


# -- limits shared by workers ----------------------------------------------------------------------


def test_many_due_rows_never_exceed_the_concurrency_the_vendor_declares(fleet: MakeFleet) -> None:
    class Narrow(MemoryVendor):
        max_concurrency = 3

        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            with self.world.call("slow"):
                await asyncio.sleep(0.002)
            return await super().provision(tenancy)

    f = fleet(Narrow())
    f.ready(*names(60))

    async def together() -> None:
        await asyncio.gather(f.work(), f.work())

    asyncio.run(together())
    assert (f.phases(), f.world.created) == ({"ready": 60}, 60)
    assert f.world.most_at_once <= 3


def test_calls_keep_to_the_rate_the_vendor_declares(
    sqlite_fleet: MakeFleet, limits: MakeLimits
) -> None:
    clock = ManualClock()

    calls: list[float] = []

    class Slow(MemoryVendor):
        max_rate = 2.0

        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            calls.append(clock.instant.timestamp())
            return await super().provision(tenancy)

    f = sqlite_fleet(Slow(), clock=clock, limits=limits(poll=10.0))

    async def scenario(time: Time) -> None:
        f.ready(*names(20))
        await time.pass_(25)
        assert f.phases() == {"ready": 20}, "twice a second is looked at as often"

    asyncio.run(over_time(f, clock, scenario))
    assert all(later - first >= 1 for first, later in zip(calls, calls[3:], strict=False))


def test_a_fleet_told_to_go_all_at_once_goes_up_to_the_breaker_and_alarms(
    fleet: MakeFleet, caplog: pytest.LogCaptureFixture
) -> None:
    f = fleet()
    f.ready(*names(15))
    asyncio.run(f.work())
    f.removing(*names(15))
    asyncio.run(f.work())
    asyncio.run(f.work())
    assert (len(f.world.resources), f.world.deleted) == (5, 10)
    assert f.phases() == {"released": 10, "ready": 5}
    said = [record.getMessage() for record in caplog.records]
    assert sum("5 releases wait" in text for text in said) == 2, "each worker says it once"
    assert "nimble-reconcile approve --kind memory" in said[-1]
    f.ready("after")
    asyncio.run(f.work())
    assert f.phases() == {"released": 10, "ready": 6}


def test_invented_workspaces_are_created_up_to_the_cap_and_alarm(
    fleet: MakeFleet, limits: MakeLimits, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    f = fleet(clock=clock, limits=limits(poll=10.0, max_live=4))

    async def scenario(time: Time) -> None:
        f.ready(*names(30))
        await time.pass_(200)
        assert (f.world.created, f.phases()) == (4, {"ready": 4, "pending": 26})

    asyncio.run(over_time(f, clock, scenario))
    (said,) = (record.getMessage() for record in caplog.records)
    assert "26 workspaces wait for a cap" in said


# -- suspects --------------------------------------------------------------------------------------


class Watched(MemoryVendor):
    """Knows how many calls were in progress with each."""

    def __init__(self) -> None:
        super().__init__()
        self.beside: dict[str, int] = {}
        self.order: list[str] = []
        self._now = 0

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        return await self._watch(tenancy, super().provision)

    async def find(self, tenancy: Tenancy) -> Any:
        return await self._watch(tenancy, super().find)

    async def _watch(self, tenancy: Tenancy, method: Callable[[Tenancy], Awaitable[T]]) -> T:
        self._now += 1
        self.order.append(tenancy.workspace_id)
        try:
            for _ in range(5):
                self.beside[tenancy.workspace_id] = max(
                    self._now, self.beside.get(tenancy.workspace_id, 0)
                )
                await asyncio.sleep(0.001)
            return await method(tenancy)
        finally:
            self._now -= 1


def left_behind(f: Any, clock: ManualClock, number: int) -> list[str]:
    """Let a worker end while it has rows, and give the workspaces."""
    f.ready(*names(number))
    rules = rules_of(f.vendor, f.limits, "killed")
    taken = f.store.claim(rules, number)
    clock.advance(LEASE + 1)
    return [claim.tenancy.workspace_id for claim in taken]


def test_suspects_run_one_after_the_other_with_nothing_beside_them(
    fleet: MakeFleet, limits: MakeLimits
) -> None:
    clock = ManualClock()
    f = fleet(Watched(), clock=clock, limits=limits())
    suspects = left_behind(f, clock, 7)
    others = [f"new-{number}" for number in range(10)]
    f.ready(*others)
    asyncio.run(f.work())
    assert f.phases() == {"ready": 17}
    assert (f.world.created, len(f.world.resources)) == (17, 17)
    assert {f.vendor.beside[name] for name in suspects} == {1}
    assert max(f.vendor.beside[name] for name in others) > 1
    assert all(row["reclaims"] == 0 for row in f.rows())


def test_a_suspect_waits_for_what_is_in_flight_and_all_else_for_the_suspect(
    sqlite_fleet: MakeFleet, limits: MakeLimits
) -> None:
    clock = ManualClock()
    f = sqlite_fleet(Watched(), clock=clock, limits=limits(poll=1.0))
    f.ready("suspect")
    f.store.claim(replace(rules_of(f.vendor, f.limits, "killed"), lease=3.0), 1)

    async def scenario(time: Time) -> None:
        f.world.fail("provision", Fault(hangs=True))
        f.ready("slow")
        while f.vendor.order != ["slow"]:
            await time.pass_(0)
        await time.pass_(5)
        f.ready("third")
        await time.pass_(2)
        assert f.vendor.order == ["slow"]
        f.world.thaw()
        while f.phases() != {"ready": 3}:
            await asyncio.sleep(0.01)
            await time.pass_(0)
        assert f.vendor.order.index("suspect") < f.vendor.order.index("third")
        assert f.vendor.beside["suspect"] == 1

    asyncio.run(over_time(f, clock, scenario))


class Unfindable(MemoryVendor):
    """Its look-up takes its time, and fails."""

    repeatable = None

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.looks: list[str] = []

    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        self.looks.append(tenancy.workspace_id)
        if len(self.looks) > 100:
            return await super().find(tenancy)
        self.clock.advance(LEASE / 4)
        raise ConnectionError("reset")


def test_suspects_that_come_to_no_result_leave_the_others_their_turn(
    sqlite_fleet: MakeFleet, limits: MakeLimits
) -> None:
    clock = ManualClock()
    f = sqlite_fleet(Unfindable(clock), clock=clock, limits=limits())
    left_behind(f, clock, 20)
    f.ready("healthy")

    async def until_healthy(worker: Worker) -> None:
        running = asyncio.ensure_future(worker.run())
        await f.passing(lambda: f.phases().get("ready"))
        worker.stop()
        await running

    asyncio.run(f.with_worker(until_healthy))
    assert len(f.vendor.looks) <= 10


def test_suspects_come_in_an_order_that_chance_gives(
    sqlite_fleet: MakeFleet, limits: MakeLimits
) -> None:
    clock = ManualClock()
    f = sqlite_fleet(Watched(), clock=clock, limits=limits())
    suspects = left_behind(f, clock, 12)

    async def with_chance() -> None:
        store = Threads(4, "store")
        worker = Worker(
            f.vendor, f.store, f.limits, database=store, threads=store, chance=random.Random(3)
        )
        await worker.run(until_idle=True)
        store.close()

    asyncio.run(with_chance())
    once = list(dict.fromkeys(f.vendor.order))
    assert sorted(once) == sorted(suspects)
    by_id = [row["workspace_id"] for row in sorted(f.rows(), key=lambda row: row["id"].hex)]
    assert once not in (suspects, suspects[::-1], by_id)


def test_suspects_that_were_taken_over_before_come_last(
    sqlite_fleet: MakeFleet, limits: MakeLimits
) -> None:
    clock = ManualClock()
    f = sqlite_fleet(Watched(), clock=clock, limits=limits())
    left_behind(f, clock, 6)
    rules = rules_of(f.vendor, f.limits, "killed too")
    twice = [f.store.claim_only(rules, row["id"]).tenancy.workspace_id for row in f.rows()[:3]]
    clock.advance(LEASE + 1)
    asyncio.run(f.work())
    once = list(dict.fromkeys(f.vendor.order))
    assert set(once[3:]) == set(twice)
    assert f.phases() == {"ready": 6}


def test_two_workers_share_suspects_and_make_no_resource_twice(
    fleet: MakeFleet, limits: MakeLimits
) -> None:
    clock = ManualClock()
    f = fleet(clock=clock, limits=limits())
    left_behind(f, clock, 12)

    async def together() -> None:
        await asyncio.gather(f.work(), f.work())

    asyncio.run(together())
    assert (f.phases(), f.world.created, len(f.world.resources)) == ({"ready": 12}, 12, 12)


def test_a_slot_that_is_lost_for_ever_does_not_keep_suspects_waiting(
    sqlite_fleet: MakeFleet, limits: MakeLimits
) -> None:
    class Hasty(PlainMemoryVendor):
        time_limit = timedelta(seconds=0.3)

    f = sqlite_fleet(Hasty(), limits=limits(concurrency=2))
    f.world.fail("provision", Fault(hangs=True))
    f.ready("hangs")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        while f.phases() != {"ready": 1}:
            await asyncio.sleep(0.01)
        # Its thread still hangs and has a slot. Now another worker leaves a row behind.
        f.ready("suspect")
        change = "UPDATE nimble_tenancy SET lease_expires_at = first_seen_at WHERE phase <> 'ready'"
        f.store.writing(
            f.store.clock.monotonic() + PATIENCE, lambda at: at.exec_driver_sql(change).close()
        )
        while f.phases() != {"ready": 2}:
            await asyncio.sleep(0.01)
        assert f.world.most_at_once == 2
        f.world.thaw()
        worker.stop()
        await running

    asyncio.run(f.with_worker(work))


# -- cancellation ----------------------------------------------------------------------------------


class Cancelling:
    """Runs the store's calls and cancels the worker before or after one of them."""

    def __init__(self, at: int, *, before: bool) -> None:
        self.threads = Threads(4, "cancelling")
        self.worker: asyncio.Future[None] | None = None
        self._at = at
        self._before = before
        self._calls = 0

    async def run(self, work: Callable[[], T]) -> T:
        self._calls += 1
        mine = self._calls == self._at
        if mine and self._before:
            self._cancel()
            await asyncio.sleep(0)
        result = await self.threads.run(work)
        if mine and not self._before:
            self._cancel()
            await asyncio.sleep(0)
        return result

    def _cancel(self) -> None:
        assert self.worker is not None
        self.worker.cancel()


@pytest.mark.parametrize("before", [True, False])
def test_cancelled_at_each_call_of_the_store_no_row_is_kept_longer_than_its_lease(
    fleet: MakeFleet, limits: MakeLimits, before: bool
) -> None:
    clock = ManualClock()
    f = fleet(clock=clock, limits=limits(concurrency=2))
    cut = 0
    for at in range(1, 13):
        f.ready(f"ws-{at}-a", f"ws-{at}-b")
        hop = Cancelling(at, before=before)

        async def cancelled(worker: Any, hop: Cancelling = hop) -> None:
            nonlocal cut
            hop.worker = asyncio.ensure_future(worker.run(until_idle=True))
            try:
                await hop.worker
            except asyncio.CancelledError:
                cut += 1

        asyncio.run(f.with_worker(cancelled, database=hop))
        hop.threads.close()
        latest = clock.instant + timedelta(seconds=LEASE)
        assert all((row["lease_expires_at"] or latest) <= latest for row in f.rows())
        clock.advance(LEASE + 1)
        asyncio.run(f.work())
        assert f.phases() == {"ready": 2 * at}
        assert (f.world.created, len(f.world.resources)) == (2 * at, 2 * at)
    assert cut >= 8

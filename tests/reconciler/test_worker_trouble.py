"""Hanging calls, lost leases, a database that goes away, adapters that misbehave."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from waiting import LOOK, comes

from nimble_lifecycle.errors import StoreUnavailable, TemporaryError, UnknownOutcome
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler import InProgress, Provisioned, Vendor
from nimble_lifecycle.reconciler.limits import LEASES_PER_LIMIT, rules_of
from nimble_lifecycle.store import Claim, Rules, Threads, WorkStore
from nimble_lifecycle.testing import Fault, ManualClock, MemoryVendor, PlainMemoryVendor

T = TypeVar("T")
MakeFleet = Callable[..., Any]

HANGS = Fault(hangs=True)
STUBBORN = Fault(hangs=True, stubborn=True)
LIMIT = 600.0
LEASE = LIMIT * LEASES_PER_LIMIT


class Async(MemoryVendor):
    """On a clock of the test's own, so that no call is late but by the test's wish."""

    time_limit = timedelta(seconds=LIMIT)


class Plain(PlainMemoryVendor):
    time_limit = timedelta(seconds=LIMIT)


class Blind(Plain):
    repeatable = None
    find = Vendor.find


async def until_over_its_limit(f: Any, calls: int = 1) -> None:
    """Wait until so many calls hang, and let their time run out."""
    await f.passing(lambda: f.world.in_progress == calls)
    f.clock.advance(LIMIT)


@pytest.mark.parametrize("adapter", [Async, Plain])
def test_a_call_that_hangs_is_of_unknown_outcome_and_settled_later(
    fleet: MakeFleet, adapter: type[MemoryVendor]
) -> None:
    f = fleet(adapter(), clock=ManualClock())
    f.world.fail("provision", HANGS)
    f.ready("a")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run(until_idle=True))
        await until_over_its_limit(f)
        await f.passing(lambda: f.row()["phase"] == "ready")
        f.world.thaw()
        await f.passing(running.done)
        await running

    asyncio.run(f.with_worker(work))
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)
    assert "OverrunError" in str(f.journal()[0]["note"])


def test_what_a_hanging_call_made_late_is_noted_and_becomes_the_rows(fleet: MakeFleet) -> None:
    f = fleet(Blind(), clock=ManualClock())
    f.world.fail("provision", HANGS)
    f.ready("a")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run(until_idle=True))
        await until_over_its_limit(f)
        await comes(lambda: f.row()["phase"] == "stalled")
        assert "OverrunError" in f.row()["last_error"]
        assert f.row()["reason"] == "CreateOutcomeUnknown"
        f.world.thaw()
        await f.passing(running.done)
        await running

    asyncio.run(f.with_worker(work))
    late = f.journal()[-1]
    assert (late["outcome"], late["settled"]) == ("late: provisioned", False)
    assert late["seconds"] >= f.vendor.time_limit.total_seconds()
    assert f.row()["external_id"] == late["external_id"]
    assert (f.row()["phase"], f.row()["last_error"]) == ("ready", None)
    assert list(f.world.resources) == [late["external_id"]]


@pytest.mark.parametrize("fault", [HANGS, STUBBORN])
@pytest.mark.parametrize("adapter", [Async, Plain])
def test_a_slot_lost_to_a_hanging_call_leaves_the_others(
    sqlite_fleet: MakeFleet, limits: Callable[..., Any], adapter: type[MemoryVendor], fault: Fault
) -> None:
    f = sqlite_fleet(adapter(), limits=limits(concurrency=2), clock=ManualClock())
    f.world.fail("provision", fault)
    f.ready(*(f"ws-{n}" for n in range(10)))

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await f.passing(lambda: f.phases().get("ready") == 9)
        f.clock.advance(LIMIT)
        await f.passing(lambda: f.phases() == {"ready": 10})
        assert not worker.all_slots_lost
        f.world.thaw()
        worker.stop()
        await running

    asyncio.run(f.with_worker(work))
    assert f.world.created == 10


@pytest.mark.parametrize(("adapter", "fault"), [(Async, STUBBORN), (Plain, HANGS)])
def test_a_worker_that_lost_all_its_slots_ends(
    sqlite_fleet: MakeFleet, limits: Callable[..., Any], adapter: type[MemoryVendor], fault: Fault
) -> None:
    f = sqlite_fleet(adapter(), limits=limits(concurrency=2), clock=ManualClock())
    f.world.fail("provision", *[fault] * 2)
    f.ready("a", "b", "c")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await until_over_its_limit(f, calls=2)
        await comes(lambda: f.phases() == {"unresolved": 2, "pending": 1})
        while not running.done():  # each look: those that wait for their calls may not do so yet
            f.clock.advance(LIMIT)
            await asyncio.sleep(LOOK)
        await running
        f.world.thaw()

    worker = asyncio.run(f.with_worker(work))
    assert worker.all_slots_lost
    assert "ready" not in f.phases()


def test_async_calls_that_take_their_cancellation_cost_no_slots(
    sqlite_fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    f = sqlite_fleet(Async(), limits=limits(concurrency=2), clock=ManualClock())
    f.world.fail("provision", *[HANGS] * 4)
    f.ready("a", "b")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run(until_idle=True))
        for _ in range(2):
            await until_over_its_limit(f, calls=2)
            await comes(lambda: f.phases() == {"unresolved": 2})
        await f.passing(running.done)
        await running

    worker = asyncio.run(f.with_worker(work))
    assert not worker.all_slots_lost
    assert (f.phases(), f.world.created) == ({"ready": 2}, 2)


@pytest.mark.parametrize("late", [Provisioned("late"), TemporaryError("late")])
def test_a_worker_that_lost_its_lease_changes_no_status(fleet: MakeFleet, late: object) -> None:
    class Overtaken(Async):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            if self.world.created:
                return await super().provision(tenancy)
            made = self.world.provision(tenancy, repeatable=True)
            clock.advance(LEASE)
            rules = rules_of(self, f.limits, "another-worker")
            assert other.claim_only(rules, tenancy.id) is not None
            if isinstance(late, Exception):
                raise late
            return made

    clock = ManualClock()
    f = fleet(Overtaken(), clock=clock)
    other = WorkStore(f.url, clock=clock)
    f.ready("a")

    async def until_overtaken(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await comes(f.journal)
        row = f.row()
        worker.stop()
        await running
        assert (row["lease_owner"], row["phase"]) == ("another-worker", "provisioning")
        assert row["last_error"] is None

    asyncio.run(f.with_worker(until_overtaken))
    assert not f.journal()[0]["settled"]
    other.close()
    clock.advance(LEASE)
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)
    assert f.row()["external_id"] in f.world.resources


class Gate:
    """Runs the store's calls, and refuses them while it is shut."""

    def __init__(self) -> None:
        self.threads = Threads(4, "gate")
        self.shut = False
        self.refused = 0

    async def run(self, work: Callable[[], T]) -> T:
        if self.shut:
            self.refused += 1
            raise StoreUnavailable("the database is down")
        return await self.threads.run(work)


def test_what_ended_while_the_database_was_away_is_written_once_it_is_back(
    fleet: MakeFleet, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    class Cuts(MemoryVendor):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            gate.shut = True
            return await super().provision(tenancy)

    f = fleet(Cuts())
    f.ready("a", "b", "c")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run(until_idle=True))
        await comes(lambda: gate.refused >= 3)
        assert f.phases() == {"provisioning": 3}
        gate.shut = False
        await running

    asyncio.run(f.with_worker(work, database=gate))
    gate.threads.close()
    assert (f.phases(), f.world.created) == ({"ready": 3}, 3)
    assert {entry["action"] for entry in f.journal()} == {"create"}
    said = [record.getMessage() for record in caplog.records]
    once = ["the database is down; trying again", "the database is back"]
    assert said == once * (len(said) // 2)


def test_a_settlement_the_database_refuses_harms_no_other_row(
    sqlite_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    f = sqlite_fleet()
    settle = f.store.settle
    bad: list[object] = []

    def refusing(batch: list[Any], *, actor: str) -> object:
        bad.extend([] if bad else [batch[0].id])
        if any(item.id in bad and item.attempts == 0 for item in batch):
            raise ArithmeticError("token=hunter2")
        return settle(batch, actor=actor)

    f.ready(*(f"ws-{n}" for n in range(9)))
    monkeypatch.setattr(f.store, "settle", refusing)

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await comes(lambda: f.phases().get("ready") == 8)
        worker.stop()
        await running

    asyncio.run(f.with_worker(work))
    assert f.phases() == {"ready": 8, "provisioning": 1}
    assert "not recorded; its lease will expire: ArithmeticError" in caplog.text
    assert "hunter2" not in caplog.text


class Mistaken(MemoryVendor):
    """Has no way to settle an unknown create, and a mistake in its own code."""

    repeatable = None
    find = Vendor.find
    raised: BaseException = ValueError("token=hunter2")

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        plan = dict(tenancy.params)
        raise self.raised from KeyError(len(plan))


@pytest.mark.parametrize("raised", [ValueError("token=hunter2"), SystemExit("token=hunter2")])
def test_a_mistake_of_the_adapter_is_told_once_with_its_stack_and_no_secret(
    fleet: MakeFleet, caplog: pytest.LogCaptureFixture, raised: BaseException
) -> None:
    f = fleet(Mistaken())
    f.vendor.raised = raised
    f.ready("a", plan="params-value")
    asyncio.run(f.work())
    (record,) = caplog.records
    told = record.getMessage()
    assert f"the adapter's provision for row {f.row()['id']}" in told
    assert "test_worker_trouble.py" in told
    assert "in provision: raise self.raised" in told
    assert f"{type(raised).__name__}" in told
    assert "KeyError: 1" in told
    assert "hunter2" not in told
    assert "params-value" not in told
    (shown,) = f.store.status()
    assert shown["reason"] == "CreateOutcomeUnknown"
    assert str(shown["last_error"]) in str(shown["message"])


def test_an_operation_that_nobody_can_poll_is_told(
    sqlite_fleet: MakeFleet, caplog: pytest.LogCaptureFixture
) -> None:
    class Unpolled(Mistaken):
        poll = Vendor.poll

        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            return InProgress("op")

    f = sqlite_fleet(Unpolled())
    f.ready("a")
    asyncio.run(f.work())
    assert "no method poll" in caplog.text
    (shown,) = f.store.status()
    assert "no method poll" in str(shown["message"])


@pytest.mark.parametrize("raised", [UnknownOutcome("reset"), TimeoutError("token=hunter2")])
def test_what_an_adapter_means_and_what_takes_too_long_is_no_mistake(
    sqlite_fleet: MakeFleet, caplog: pytest.LogCaptureFixture, raised: Exception
) -> None:
    f = sqlite_fleet(Mistaken())
    f.vendor.raised = raised
    f.ready("a")
    asyncio.run(f.work())
    assert f.row()["phase"] == "stalled"
    assert caplog.records == []


def test_an_adapter_that_blocks_the_event_loop_only_makes_it_slow(sqlite_fleet: MakeFleet) -> None:
    class Blocks(Async):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            f.clock.advance(LIMIT + 1)  # and nothing else ran meanwhile
            return await super().provision(tenancy)

    f = sqlite_fleet(Blocks(), clock=ManualClock())
    f.ready("a", "b")
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 2}, 2)


def test_stop_lets_a_call_in_flight_end_and_writes_it(
    sqlite_fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    f = sqlite_fleet(limits=limits(concurrency=1))  # nothing is claimed before the call has ended
    f.world.fail("provision", HANGS)
    f.ready("a")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await comes(lambda: f.world.in_progress)
        worker.stop()
        f.ready("b")
        f.world.thaw()
        await running

    asyncio.run(f.with_worker(work))
    assert [row["phase"] for row in f.rows()] == ["ready", "pending"]


@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
def test_a_call_longer_than_the_drain_keeps_its_lease_and_is_disowned(
    sqlite_fleet: MakeFleet, limits: Callable[..., Any], adapter: type[MemoryVendor]
) -> None:
    f = sqlite_fleet(adapter(), limits=limits(drain=0.05))
    f.world.fail("provision", HANGS)
    f.ready("a")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await comes(lambda: f.world.in_progress)
        worker.stop()
        await running

    asyncio.run(f.with_worker(work))
    f.world.thaw()
    row = f.row()
    assert row["phase"] == "provisioning"
    assert row["lease_expires_at"] is not None, "nobody may have it before"
    assert row["lease_owner"] is None, "and its end will say nothing against the row"


def test_a_killed_step_is_taken_up_when_its_lease_is_over(fleet: MakeFleet) -> None:
    f = fleet(Async(), clock=ManualClock())
    f.world.fail("provision", Fault(raises=UnknownOutcome("killed"), applied=True))
    f.ready("a")
    rules = rules_of(f.vendor, f.limits, "killed-worker")
    (claim,) = f.store.claim(rules, 1)
    f.world.provision(claim.tenancy, repeatable=True)  # applied, and nobody was left to write it
    f.clock.advance(LEASE - 1)
    assert f.store.claim(rules, 1) == []
    f.clock.advance(1)
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)


def test_two_workers_share_the_rows(fleet: MakeFleet) -> None:
    class Meeting(MemoryVendor):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            with self.world.call("wait"):  # for the other worker to have claimed as well
                await comes(lambda: self.world.most_at_once > f.limits.concurrency)
            return await super().provision(tenancy)

    f = fleet(Meeting())
    f.ready(*(f"ws-{n}" for n in range(200)))

    async def together() -> None:
        await asyncio.gather(f.work(), f.work())

    asyncio.run(together())
    assert (f.phases(), f.world.created, len(f.world.resources)) == ({"ready": 200}, 200, 200)
    assert len({entry["actor"] for entry in f.journal()}) == 2


def test_a_claim_whose_answer_was_long_on_the_way_begins_no_call(sqlite_fleet: MakeFleet) -> None:
    f = sqlite_fleet(Async(), clock=ManualClock())
    f.ready("a")
    claim = f.store.claim

    def slow(rules: Rules, limit: int) -> list[Claim]:
        f.store.claim = claim  # type: ignore[method-assign]
        taken = claim(rules, limit)
        f.clock.advance(LEASE - 2 * LIMIT + 1)  # what is left is too little for two calls
        return taken

    f.store.claim = slow  # type: ignore[method-assign]
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)
    assert "was not begun" in str(f.journal()[0]["note"])

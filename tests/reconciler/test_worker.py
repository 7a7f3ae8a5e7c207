"""The straight path and plain failures: what the world and the rows are like afterwards."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydantic import BaseModel
from waiting import LOOK, comes

from nimble_lifecycle.errors import (
    CredentialError,
    ForeignDatabase,
    Gone,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
    UnknownOutcome,
    VendorError,
)
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler import External, InProgress, Provisioned, Released, Vendor
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.limits import rules_of
from nimble_lifecycle.reconciler.settler import Settler
from nimble_lifecycle.store import Threads
from nimble_lifecycle.testing import (
    Fault,
    ManualClock,
    MemoryVendor,
    PlainMemoryVendor,
    World,
)

MakeFleet = Callable[..., Any]
DAY = 86400.0


class OnlyRepeats(MemoryVendor):
    find = Vendor.find


class Brief(OnlyRepeats):
    """Its leases are over soon."""

    time_limit = timedelta(seconds=0.2)


class Forgetting(MemoryVendor):
    """Forgets an operation as soon as it has ended; its look-up lags 20 s behind."""

    repeatable = None
    lag = timedelta(seconds=20)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(World(polls=3))
        self.clock = clock
        self.seen_from = 0.0

    async def poll(self, tenancy: Tenancy) -> Provisioned | Released | InProgress:
        polled = await super().poll(tenancy)
        if isinstance(polled, InProgress):
            return InProgress(polled.operation_id, poll_after=60)
        self.seen_from = self.clock.monotonic() + self.lag.total_seconds()
        raise Gone("no such operation")

    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        seen = self.clock.monotonic() >= self.seen_from
        return await super().find(tenancy) if seen else None


class OnlyFinds(MemoryVendor):
    repeatable = None
    time_limit = timedelta(minutes=10)


class InTwoSteps(OnlyFinds):
    """Makes a resource by its key alone, and applies the params by a second request."""

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        made = tenancy
        if tenancy.external_id is None:
            bare = await super().provision(replace(tenancy, params={}))
            assert isinstance(bare, Provisioned)
            made = replace(tenancy, external_id=bare.external_id)
            await self._call("apply", lambda: None)
        return await super().provision(made)


class Blind(MemoryVendor):
    repeatable = None
    find = Vendor.find


class Plan(BaseModel):
    plan: str


class Checks(MemoryVendor):
    params_model = Plan


class Keeps(MemoryVendor):
    on_release = "keep"


# -- create ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
@pytest.mark.parametrize("polls", [0, 3])
def test_each_workspace_gets_one_resource(
    fleet: MakeFleet, adapter: type[MemoryVendor], polls: int
) -> None:
    f = fleet(adapter(World(polls=polls)))
    f.ready("a", "b", "c", plan="free")
    asyncio.run(f.work())
    assert f.phases() == {"ready": 3}
    assert sorted(r.workspace_id for r in f.world.resources.values()) == ["a", "b", "c"]
    for row in f.rows():
        (mine,) = f.world.of(row["idempotency_key"])
        assert (row["external_id"], row["details"]) == (mine.external_id, {"name": mine.name})
        assert (row["generation"], row["observed_generation"]) == (1, 1)
        assert (row["lease_owner"], row["due_at"], row["attempts"]) == (None, None, 0)
        assert mine.params == {"plan": "free"}


def test_a_second_worker_goes_on_with_the_operation_of_the_first(fleet: MakeFleet) -> None:
    f = fleet(MemoryVendor(World(polls=8)), clock=ManualClock())
    f.ready("a")

    async def until_polling(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await comes(lambda: f.row()["operation_id"])
        worker.stop()
        await running

    asyncio.run(f.with_worker(until_polling))
    assert f.row()["phase"] == "provisioning"
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)
    assert len({entry["operation_id"] for entry in f.journal() if entry["operation_id"]}) == 1


@pytest.mark.parametrize("adapter", [MemoryVendor, OnlyRepeats, OnlyFinds])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("error", [UnknownOutcome("reset"), ConnectionResetError("peer")])
def test_a_create_of_unknown_outcome_ends_with_exactly_one_resource(
    fleet: MakeFleet, adapter: type[MemoryVendor], applied: bool, error: Exception
) -> None:
    f = fleet(adapter(), clock=ManualClock())
    f.world.fail("provision", Fault(raises=error, applied=applied))
    f.ready("a")
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)
    assert f.row()["external_id"] in f.world.resources


@pytest.mark.parametrize("fails", ["provision", "apply"])
def test_what_a_look_up_found_half_made_is_brought_to_its_params(
    fleet: MakeFleet, fails: str
) -> None:
    f = fleet(InTwoSteps(), clock=ManualClock())
    f.world.fail(fails, Fault(raises=UnknownOutcome("reset"), applied=True))
    f.ready("a", size="large")
    asyncio.run(f.work_on())
    (made,) = f.world.resources.values()
    assert made.params == {"size": "large"}
    assert (f.row()["phase"], f.row()["observed_generation"]) == ("ready", 1)


@pytest.mark.parametrize("applied", [True, False])
def test_without_look_up_or_repetition_an_unknown_create_waits_for_a_person(
    sqlite_fleet: MakeFleet, applied: bool
) -> None:
    f = sqlite_fleet(Blind())
    f.world.fail("provision", Fault(raises=UnknownOutcome("reset"), applied=applied))
    f.ready("a")
    asyncio.run(f.work())
    f.ready("a", plan="other")
    asyncio.run(f.work())
    row = f.row()
    assert (row["phase"], row["reason"]) == ("stalled", "CreateOutcomeUnknown")
    assert f.world.created == int(applied)
    assert row["creates"] == 1


def test_a_row_begins_five_creates_at_most(fleet: MakeFleet) -> None:
    f = fleet(OnlyFinds(), clock=ManualClock())
    unknown = Fault(raises=UnknownOutcome("reset"))
    f.world.fail("provision", *[unknown] * 10)
    f.ready("a")
    asyncio.run(f.work_on())
    row = f.row()
    assert (row["phase"], row["reason"], row["creates"]) == ("stalled", "CreateOutcomeUnknown", 5)
    assert [entry["action"] for entry in f.journal()].count("create") == 5


@pytest.mark.parametrize("vendor", [OnlyRepeats, MemoryVendor])
@pytest.mark.parametrize("applied", [False, True])
def test_an_outage_of_many_unknown_creates_heals_by_itself(
    sqlite_fleet: MakeFleet, vendor: type[MemoryVendor], applied: bool
) -> None:
    f = sqlite_fleet(vendor())
    f.world.fail("provision", *[Fault(raises=UnknownOutcome("503"), applied=applied)] * 10)
    f.ready("a")
    asyncio.run(f.work())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)


@pytest.mark.parametrize(
    "error", [TemporaryError("later"), CredentialError("401"), Unavailable(after=0.05)]
)
def test_a_create_that_was_not_applied_is_tried_again(
    sqlite_fleet: MakeFleet, error: Exception
) -> None:
    f = sqlite_fleet(Blind())
    f.world.fail("provision", Fault(raises=error), Fault(raises=error))
    f.ready("a")
    asyncio.run(f.work())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)


@pytest.mark.parametrize("adapter", [OnlyFinds, Blind])
def test_a_name_that_is_anothers_is_left_alone(
    fleet: MakeFleet, adapter: type[MemoryVendor]
) -> None:
    f = fleet(adapter(World(unique_names=True)))
    theirs = f.world.add("a")
    f.ready("a")
    asyncio.run(f.work())
    row = f.row()
    assert (row["phase"], row["reason"], row["external_id"]) == ("stalled", "NameConflict", None)
    assert f.world.resources == {theirs.external_id: theirs}


@pytest.mark.parametrize("error", [NameConflict("taken"), PermanentError("no", reason="Full")])
def test_a_repeated_create_that_is_refused_again_after_a_lease_was_never_applied(
    fleet: MakeFleet, error: Exception
) -> None:
    f = fleet(OnlyRepeats(), clock=ManualClock())
    f.world.fail("provision", Fault(raises=UnknownOutcome("reset"), applied=False))
    f.world.fail("provision", Fault(raises=error), Fault(raises=error), Fault(raises=error))
    f.ready("a")
    begun = f.clock.instant
    asyncio.run(f.work_on())
    waited = (f.clock.instant - begun).total_seconds()
    assert waited >= rules_of(f.vendor, f.limits, "any").lease, "the first may still land"
    assert f.row()["phase"] == "stalled"
    assert f.row()["reason"] in ("NameConflict", "Full")
    assert f.world.resources == {}


def test_a_name_that_is_ours_by_its_mark_is_adopted(fleet: MakeFleet) -> None:
    f = fleet(OnlyFinds(World(unique_names=True)), clock=ManualClock())
    # The vendor lies: it was applied. The next create finds the name taken, by us.
    f.world.fail("provision", Fault(raises=TemporaryError("busy"), applied=True))
    f.ready("a")
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)


def test_a_new_tenancy_waits_for_the_name_of_its_predecessor(fleet: MakeFleet) -> None:
    f = fleet(MemoryVendor(World(unique_names=True, release_polls=5)), clock=ManualClock())
    f.ready("a")
    asyncio.run(f.work())
    f.removing("a")

    async def reinstall(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run(until_idle=True))
        await comes(lambda: f.rows()[0]["phase"] == "releasing")
        f.ready("a")
        await comes(lambda: f.rows()[-1]["reason"] == "WaitingForPredecessor")
        await f.passing(running.done)
        await running

    asyncio.run(f.with_worker(reinstall))
    assert [(r["incarnation"], r["phase"]) for r in f.rows()] == [(1, "released"), (2, "ready")]
    assert [r.key for r in f.world.resources.values()] == [f.rows()[1]["idempotency_key"]]


def test_an_id_that_another_row_has_is_a_shared_resource(fleet: MakeFleet) -> None:
    class Shares(MemoryVendor):
        async def provision(self, tenancy: Tenancy) -> Provisioned:
            return Provisioned("fresh" if tenancy.workspace_id == "c" else "the-one")

    f = fleet(Shares())
    f.ready("a", "b", "c")
    asyncio.run(f.work())
    assert f.phases() == {"ready": 2, "stalled": 1}
    (shared,) = (row for row in f.rows() if row["phase"] == "stalled")
    assert (shared["reason"], shared["external_id"]) == ("SharedResource", None)


class Shares(MemoryVendor):
    """Gives every tenancy the resource of the first."""

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        return Provisioned("the-one")

    async def find(self, tenancy: Tenancy) -> External:
        return External("the-one")


class Another(MemoryVendor):
    """Knows whose a name is, and says so."""

    async def find(self, tenancy: Tenancy) -> External | None:
        taken = any(found.name == tenancy.workspace_id for found in self.world.resources.values())
        if taken and not self.world.of(tenancy.idempotency_key):
            raise NameConflict("it is another's")
        return None


@pytest.mark.parametrize(
    ("adapter", "reason", "looks"), [(Shares, "SharedResource", 0), (Another, "NameConflict", 1)]
)
def test_a_row_that_met_what_is_anothers_is_released_and_that_is_left_alone(
    fleet: MakeFleet, adapter: type[MemoryVendor], reason: str, looks: int
) -> None:
    f = fleet(adapter(World(unique_names=True)))
    theirs = f.world.add("b")
    f.ready("a")
    asyncio.run(f.work())
    f.ready("b")
    asyncio.run(f.work())
    assert f.rows()[1]["reason"] == reason
    f.removing("b")
    asyncio.run(f.work())
    assert [row["phase"] for row in f.rows()] == ["ready", "released"]
    assert sum(entry["action"] == "find" for entry in f.journal()) == looks
    assert f.world.resources[theirs.external_id] == theirs
    assert f.world.deleted == 0


def test_an_operation_without_a_poll_method_is_an_unknown_create(sqlite_fleet: MakeFleet) -> None:
    class NoPoll(Blind):
        poll = Vendor.poll

    f = sqlite_fleet(NoPoll(World(polls=1)))
    f.ready("a")
    asyncio.run(f.work())
    assert f.row()["reason"] == "CreateOutcomeUnknown"
    assert "no method poll" in f.row()["last_error"]


# -- params ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("polls", [0, 2])
def test_changed_params_change_the_resource_there_is(fleet: MakeFleet, polls: int) -> None:
    f = fleet(MemoryVendor(World(polls=polls)))
    f.ready("a", plan="free")
    asyncio.run(f.work())
    f.ready("a", plan="paid")
    asyncio.run(f.work())
    (resource,) = f.world.resources.values()
    assert (resource.params, f.world.created) == ({"plan": "paid"}, 1)
    assert (f.row()["phase"], f.row()["observed_generation"]) == ("ready", 2)


@pytest.mark.parametrize(
    "error", [TemporaryError("later"), RateLimited(after=0.01), UnknownOutcome("reset")]
)
def test_an_update_that_failed_is_done_later(sqlite_fleet: MakeFleet, error: Exception) -> None:
    f = sqlite_fleet()
    f.ready("a", plan="free")
    asyncio.run(f.work())
    f.world.fail("provision", Fault(raises=error))
    f.ready("a", plan="paid")
    asyncio.run(f.work())
    (resource,) = f.world.resources.values()
    assert (resource.params, f.world.created) == ({"plan": "paid"}, 1)
    assert (f.row()["phase"], f.row()["observed_generation"]) == ("ready", 2)


def test_invalid_params_stall_until_they_are_changed(fleet: MakeFleet) -> None:
    f = fleet(Checks())
    f.ready("a", size=3)
    asyncio.run(f.work())
    row = f.row()
    assert (row["phase"], row["reason"], f.world.created) == ("stalled", "InvalidParams", 0)
    assert "plan" in row["message"]
    f.ready("a", plan="free")
    asyncio.run(f.work())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)


# -- release ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("release_polls", [0, 3])
@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
def test_a_release_removes_the_resource_and_only_that(
    fleet: MakeFleet, adapter: type[MemoryVendor], release_polls: int
) -> None:
    f = fleet(adapter(World(release_polls=release_polls)))
    f.ready("a", "b")
    asyncio.run(f.work())
    f.removing("a")
    asyncio.run(f.work())
    assert [row["phase"] for row in f.rows()] == ["released", "ready"]
    assert [r.workspace_id for r in f.world.resources.values()] == ["b"]
    assert f.rows()[0]["released_at"] is not None


def test_a_release_waits_for_its_grace_and_is_undone_within(
    fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    clock = ManualClock()
    f = fleet(clock=clock, limits=limits(grace=DAY))

    async def scenario() -> None:
        f.ready("a", "b")
        await f.work()
        f.removing("a", "b")
        clock.advance(
            5 * DAY
        )  # nobody was there to see it: the grace starts with the worker's sight
        await f.work()
        clock.advance(DAY - 60)
        await f.work()
        assert (len(f.world.resources), f.phases()) == (2, {"ready": 2})
        f.ready("b")
        clock.advance(120)
        await f.work()
        assert [row["phase"] for row in f.rows()] == ["released", "ready"]
        assert [r.workspace_id for r in f.world.resources.values()] == ["b"]
        assert f.world.created == 2

    asyncio.run(scenario())


def test_use_holds_a_release_until_one_grace_after_it_stops(
    fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    clock = ManualClock()
    f = fleet(clock=clock, limits=limits(grace=DAY))

    async def scenario() -> None:
        f.ready("a")
        await f.work()
        f.removing("a")
        for _ in range(4):
            await f.work()
            clock.advance(DAY / 2)
            f.use("a")
        clock.advance(DAY / 2)
        await f.work()
        assert len(f.world.resources) == 1
        clock.advance(DAY / 2 + 1)
        await f.work()
        assert (f.world.resources, f.phases()) == ({}, {"released": 1})

    asyncio.run(scenario())


def test_what_was_never_created_is_released_without_the_vendor(
    fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    f = fleet(limits=limits(grace=DAY))
    f.ready("a")
    f.removing("a")
    asyncio.run(f.work())
    assert (f.phases(), f.journal(), f.world.created) == ({"released": 1}, [], 0)


LIES = [
    TemporaryError("busy"),
    PermanentError("quota"),
    NameConflict("the domain is taken"),
    CredentialError("no right to add a domain"),
    RateLimited("slow down"),
    Unavailable("maintenance"),
]
"""What an adapter may say of its second step, after its first has made something."""


@pytest.mark.parametrize("adapter", [MemoryVendor, OnlyFinds])
@pytest.mark.parametrize("polls", [0, 2])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: type(lie).__name__)
def test_what_a_create_left_that_was_said_not_to_be_applied_is_found_and_released(
    fleet: MakeFleet,
    limits: Callable[..., Any],
    adapter: type[MemoryVendor],
    polls: int,
    lie: Exception,
) -> None:
    clock, hours = ManualClock(), Backoff(3600.0, 3600.0, max)
    f = fleet(adapter(World(polls=polls)), clock=clock, limits=limits(grace=0.0, backoff=hours))
    f.world.fail("provision", Fault(raises=lie, applied=True))
    if isinstance(lie, NameConflict):  # a look-up at once does not show it yet
        f.world.fail("find", Fault(raises=NameConflict("not ours")))
    f.ready("a")
    asyncio.run(f.work())
    assert f.row()["external_id"] is None
    f.removing("a")
    clock.advance(1801)
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.resources) == ({"released": 1}, {})
    assert (f.world.created, f.world.deleted) == (1, 1)
    f.ready("a")
    asyncio.run(f.work_on())
    assert len(f.world.resources) == 1


def test_what_was_refused_before_it_was_sent_is_released_without_the_vendor(
    fleet: MakeFleet,
) -> None:
    f = fleet(Checks())
    f.ready("a", size=3)
    asyncio.run(f.work())
    f.removing("a")
    asyncio.run(f.work())
    assert (f.phases(), f.world.most_at_once) == ({"released": 1}, 0)


def test_a_removal_during_an_unknown_create_releases_what_is_found(fleet: MakeFleet) -> None:
    f = fleet(OnlyFinds(), clock=ManualClock())
    f.world.fail("provision", Fault(raises=UnknownOutcome("reset"), applied=True))
    f.world.fail("find", *[Fault(raises=TemporaryError("down"))] * 3)
    f.ready("a")

    async def remove_when_unknown(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run(until_idle=True))
        await comes(lambda: f.row()["phase"] == "unresolved")
        f.removing("a")
        await f.passing(running.done)
        await running

    asyncio.run(f.with_worker(remove_when_unknown))
    assert (f.phases(), f.world.resources) == ({"released": 1}, {})
    assert (f.world.created, f.world.deleted) == (1, 1)


def test_releasing_what_is_gone_already_succeeds(fleet: MakeFleet) -> None:
    f = fleet()
    f.ready("a")
    asyncio.run(f.work())
    f.world.remove(f.row()["external_id"])
    f.removing("a")
    asyncio.run(f.work())
    assert f.phases() == {"released": 1}


def test_a_release_that_fails_for_good_is_stalled_and_never_called_released(
    fleet: MakeFleet,
) -> None:
    f = fleet()
    f.ready("a")
    asyncio.run(f.work())
    f.world.fail("release", Fault(raises=PermanentError("has children", reason="NotEmpty")))
    f.removing("a")
    asyncio.run(f.work())
    row = f.row()
    assert (row["phase"], row["reason"], row["released_at"]) == ("stalled", "NotEmpty", None)
    assert row["external_id"] in f.world.resources


@pytest.mark.parametrize("error", [TemporaryError("later"), UnknownOutcome("reset"), OSError("x")])
@pytest.mark.parametrize("applied", [True, False])
def test_a_release_that_failed_is_tried_until_the_resource_is_gone(
    sqlite_fleet: MakeFleet, error: Exception, applied: bool
) -> None:
    f = sqlite_fleet()
    f.ready("a")
    asyncio.run(f.work())
    f.world.fail("release", Fault(raises=error, applied=applied))
    f.removing("a")
    asyncio.run(f.work())
    assert (f.phases(), f.world.resources) == ({"released": 1}, {})


def test_an_adapter_that_keeps_is_never_asked_to_release(fleet: MakeFleet) -> None:
    f = fleet(Keeps())
    f.ready("a")
    asyncio.run(f.work())
    f.removing("a")
    asyncio.run(f.work())
    assert (f.phases(), len(f.world.resources)) == ({"kept": 1}, 1)


# -- back-off and pauses ---------------------------------------------------------------------------


def test_back_off_survives_a_new_worker_and_a_duplicate_ready(
    sqlite_fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    clock = ManualClock()
    f = sqlite_fleet(clock=clock, limits=limits(backoff=Backoff(60.0, 3600.0)))

    async def scenario() -> None:
        f.world.fail("provision", *[Fault(raises=TemporaryError("later"))] * 6)
        f.ready("a")
        waits = []
        for attempt in range(1, 7):
            await f.work()
            f.ready("a")
            await f.work()
            assert f.row()["attempts"] == attempt
            waits.append((f.row()["due_at"] - clock.instant).total_seconds())
            clock.advance(waits[-1] + 1)
        assert waits[0] < 121
        assert all(60 <= wait < 60 * 2**n + 1 for n, wait in enumerate(waits, start=1))
        await f.work()
        assert (f.row()["attempts"], f.phases()) == (0, {"ready": 1})

    asyncio.run(scenario())


def test_a_rate_limit_holds_back_the_whole_kind(
    fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    clock = ManualClock()
    f = fleet(clock=clock, limits=limits(concurrency=1))

    async def scenario() -> None:
        f.world.fail("provision", Fault(raises=RateLimited(after=120.0)))
        f.ready("a", "b", "c")
        await f.work()
        assert (f.world.created, f.phases()) == (0, {"pending": 3})
        assert {row["reason"] for row in f.rows()} == {None, "RateLimited"}
        assert all(row["attempts"] == 0 for row in f.rows())
        clock.advance(125)
        await f.work()
        assert (f.world.created, f.phases()) == (3, {"ready": 3})

    asyncio.run(scenario())


def test_calls_in_flight_never_exceed_the_concurrency(
    sqlite_fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    class Slow(MemoryVendor):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            with self.world.call("slow"):
                await asyncio.sleep(0.01)
            return await super().provision(tenancy)

    f = sqlite_fleet(Slow(), limits=limits(concurrency=3))
    f.ready(*(f"ws-{n}" for n in range(20)))
    asyncio.run(f.work())
    assert (f.phases(), f.world.most_at_once) == ({"ready": 20}, 3)


class HeldSettlements:
    """Runs what a worker asks of the store; its settlements wait until they are let go."""

    def __init__(self, fleet: Any) -> None:
        self.let_go = asyncio.Event()
        self._settle = fleet.store.settle
        self._threads = Threads(4, "test-held")

    async def run(self, work: Callable[[], Any]) -> Any:
        if getattr(work, "func", None) == self._settle:
            await self.let_go.wait()
        return await self._threads.run(work)

    def close(self) -> None:
        self._threads.close()


def test_a_slot_is_free_once_its_call_is_over_and_as_many_rows_wait_for_the_database_at_most(
    sqlite_fleet: MakeFleet, limits: Callable[..., Any]
) -> None:
    f = sqlite_fleet(limits=limits(concurrency=3))
    f.ready(*(f"ws-{n}" for n in range(20)))

    async def scenario() -> None:
        held = HeldSettlements(f)

        async def run(worker: Any) -> None:
            working = asyncio.ensure_future(worker.run(until_idle=True))
            await comes(lambda: len(f.world.resources) == 6)
            for _ in range(5):
                worker.wake()
                await held.run(lambda: None)
            assert len(f.world.resources) == 6
            held.let_go.set()
            await working

        await f.with_worker(run, database=held)
        held.close()

    asyncio.run(scenario())
    assert f.phases() == {"ready": 20}


# -- the adapter's manners -------------------------------------------------------------------------


def test_rows_of_other_kinds_are_left_alone(fleet: MakeFleet) -> None:
    f = fleet()
    f.ready("a", kind="other")
    before = dict(f.row())
    asyncio.run(f.work())
    assert dict(f.row()) == before


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
def test_whatever_an_adapter_raises_the_worker_goes_on(
    sqlite_fleet: MakeFleet, adapter: type[MemoryVendor], error: BaseException
) -> None:
    f = sqlite_fleet(adapter())
    f.world.fail("provision", Fault(raises=error), Fault(raises=error, applied=True))
    f.ready("a", "b", "c")
    asyncio.run(f.work())
    assert (f.phases(), f.world.created) == ({"ready": 3}, 3)


def test_a_secret_in_an_exception_never_reaches_the_database(sqlite_fleet: MakeFleet) -> None:
    f = sqlite_fleet(Blind())
    text = "cannot reach postgresql://admin:hunter2@acme/db with token=hunter2"
    f.world.fail("provision", Fault(raises=RuntimeError(text)))
    f.ready("a")
    asyncio.run(f.work())
    stored = str([dict(f.row()), *map(dict, f.journal())])
    assert "RuntimeError" in f.row()["last_error"]
    assert "hunter2" not in stored


def test_an_async_context_manager_is_entered_once_and_left_after_the_drain(
    sqlite_fleet: MakeFleet,
) -> None:
    events: list[str] = []

    class Managed(MemoryVendor):
        async def __aenter__(self) -> "Managed":
            events.append("entered")
            return self

        async def __aexit__(self, *_: object) -> None:
            events.append("left")

        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            made = await super().provision(tenancy)
            await asyncio.sleep(0.05)
            events.append("provisioned")
            return made

    f = sqlite_fleet(Managed())
    f.ready("a", "b")

    async def stop_in_the_middle(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await comes(lambda: len(f.world.resources) == 2)
        worker.stop()
        await running

    asyncio.run(f.with_worker(stop_in_the_middle))
    assert events == ["entered", "provisioned", "provisioned", "left"]
    assert f.phases() == {"ready": 2}


def test_a_worker_that_fails_lets_its_calls_end_before_it_leaves_the_adapter(
    sqlite_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Managed(MemoryVendor):
        async def __aenter__(self) -> "Managed":
            return self

        async def __aexit__(self, *_: object) -> None:
            events.append("left")

        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            await asyncio.sleep(0.05)
            events.append("provisioned")
            return await super().provision(tenancy)

    f = sqlite_fleet(Managed())
    f.ready("a")
    claim = f.store.claim

    def claim_once(*given: Any) -> Any:
        monkeypatch.setattr(f.store, "claim", refuse)
        return claim(*given)

    def refuse(*_: object) -> Any:
        raise ForeignDatabase("it was given away")

    monkeypatch.setattr(f.store, "claim", claim_once)
    with pytest.raises(ForeignDatabase):
        asyncio.run(f.work())
    assert events == ["provisioned", "left"]
    assert f.phases() == {"ready": 1}


def test_a_worker_that_can_write_no_more_ends_and_the_next_goes_on(
    fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = fleet(Brief())
    f.limits = replace(f.limits, drain=0.05)
    f.ready("a")
    with monkeypatch.context() as broken:
        broken.setattr(Settler, "_write", AsyncMock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError):
            asyncio.run(f.work())
    asyncio.run(f.work())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)


def test_stopping_workers_in_the_middle_of_a_call_quarantines_no_row(fleet: MakeFleet) -> None:
    f = fleet(Brief())
    f.limits = replace(f.limits, drain=0.01)
    f.world.fail("provision", *[Fault(hangs=True)] * 4)
    f.ready("a")

    async def stop_in_the_middle(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await comes(lambda: f.row()["lease_owner"])
        worker.stop()
        await running

    for _ in range(4):
        f.world.freeze()
        asyncio.run(f.with_worker(stop_in_the_middle))
    assert f.row()["reclaims"] == 0
    asyncio.run(f.work())
    assert (f.phases(), len(f.world.resources)) == ({"ready": 1}, 1)


def test_a_worker_that_is_stopped_disowns_nothing_of_another(fleet: MakeFleet) -> None:
    f = fleet(MemoryVendor())
    f.ready("a", "b")
    mine, others = (replace(rules_of(f.vendor, f.limits, name)) for name in ("me", "another"))
    assert len(f.store.claim(mine, 1)) == len(f.store.claim(others, 1)) == 1
    f.store.disown(mine)
    assert sorted(str(row["lease_owner"]) for row in f.rows()) == ["None", "another"]


def test_an_adapter_that_cannot_open_ends_the_worker_in_one_sentence(
    sqlite_fleet: MakeFleet,
) -> None:
    class Broken(MemoryVendor):
        async def __aenter__(self) -> "Broken":
            raise ConnectionRefusedError("https://u:hunter2@acme.test")

        async def __aexit__(self, *_: object) -> None: ...

    f = sqlite_fleet(Broken())
    f.ready("a")
    with pytest.raises(VendorError, match="could not open: ConnectionRefusedError") as caught:
        asyncio.run(f.work())
    assert "hunter2" not in str(caught.value)
    assert f.phases() == {"pending": 1}


def test_a_refused_name_without_answer_from_the_look_up_is_tried_again(
    sqlite_fleet: MakeFleet,
) -> None:
    f = sqlite_fleet(OnlyFinds(), clock=ManualClock())
    f.world.fail("provision", Fault(raises=NameConflict("taken")))
    f.world.fail("find", Fault(raises=ValueError("not JSON")))
    f.ready("a")
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)


def test_what_a_forgotten_operation_made_is_looked_for_until_the_lag_is_over(
    fleet: MakeFleet,
) -> None:
    clock = ManualClock()
    f = fleet(Forgetting(clock), clock=clock)
    f.ready("a")

    async def work(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        while f.phases() != {"ready": 1}:
            await comes(lambda: not f.row()["lease_owner"])
            clock.advance(1)
            await asyncio.sleep(LOOK)
        worker.stop()
        await running

    asyncio.run(f.with_worker(work))
    assert f.world.created == 1
    assert "not found yet" in [entry["outcome"] for entry in f.journal()]


def test_a_refused_name_that_may_be_ours_is_not_forgotten_by_a_removal(fleet: MakeFleet) -> None:
    f = fleet(OnlyFinds(), clock=ManualClock())
    f.world.fail("provision", Fault(raises=NameConflict("sent twice"), applied=True))
    f.world.fail("find", Fault(raises=ConnectionError("reset")))
    f.ready("a")

    async def until_refused(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        await comes(f.journal)
        worker.stop()
        await running

    asyncio.run(f.with_worker(until_refused))
    f.removing("a")
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created, f.world.resources) == ({"released": 1}, 1, {})


def test_a_refused_name_of_an_operation_of_ours_is_waited_for(fleet: MakeFleet) -> None:
    f = fleet(OnlyFinds(World(polls=3)), clock=ManualClock())
    f.world.fail("provision", Fault(raises=NameConflict("sent twice"), applied=True))
    f.ready("a")
    asyncio.run(f.work_on())
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)
    assert [entry["action"] for entry in f.journal()] == ["create", "poll", "poll", "poll"]


def test_a_release_needs_no_answer_but_released(sqlite_fleet: MakeFleet) -> None:
    class Mute(MemoryVendor):
        answers = iter([None, True, "gone", Released()])

        async def release(self, tenancy: Tenancy) -> Released:
            return next(self.answers)  # type: ignore[return-value]  # what an adapter may do wrong

    clock = ManualClock()
    f = sqlite_fleet(Mute(), clock=clock)
    f.ready("a")
    asyncio.run(f.work())
    f.removing("a")
    started = clock.instant
    asyncio.run(f.work_on())
    assert f.phases() == {"released": 1}
    assert [e["outcome"] for e in f.journal()][-4:] == ["failed"] * 3 + ["released"]
    assert clock.instant - started < timedelta(seconds=5)

"""Sweeps over rows and a world: what is found, what is done about it, and what never is."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from waiting import LOOK, PATIENCE

from nimble_lifecycle.errors import CredentialError, SweepBusy, UnknownOutcome
from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.reconciler import External, Vendor
from nimble_lifecycle.reconciler.cases import Wishes
from nimble_lifecycle.reconciler.findings import Finding, Outcome, Report
from nimble_lifecycle.reconciler.sweep import Ports, Sweep
from nimble_lifecycle.store import Threads, WorkStore
from nimble_lifecycle.store.models import journal, sighting, tenancy, vendor
from nimble_lifecycle.store.sightings import Sort
from nimble_lifecycle.store.standing import Notice
from nimble_lifecycle.store.sweeps import SweepStore
from nimble_lifecycle.store.types import base32_of
from nimble_lifecycle.testing import Fault, ManualClock, MemoryVendor, PlainMemoryVendor, World

pytestmark = pytest.mark.anyio

MakeFleet = Callable[..., Any]
HOUR = 3600.0
DAY = 86400.0
LAG = 10.0


class Lagging(MemoryVendor):
    lag = timedelta(seconds=LAG)
    time_limit = timedelta(seconds=5)


class Blind(MemoryVendor):
    inventory = Vendor.inventory


class Rig:
    """A fleet on a clock of its own, and sweeps over it."""

    def __init__(self, fleet: Any) -> None:
        self.fleet = fleet
        self.clock: Any = fleet.store.clock
        self.world: World = fleet.world
        self.store = SweepStore(fleet.store, actor="sweeper")

    async def installed(self, *names: str) -> None:
        """Bring these workspaces to ready tenancies, older than any lag."""
        self.fleet.ready(*names)
        await self.fleet.work()
        self.clock.advance(60)

    async def sweep(
        self, *, dry_run: bool = False, only_drift: bool = False, **wishes: object
    ) -> Report:
        database, lists = Threads(2, "test-store"), Threads(1, "test-list")
        ports = Ports(clock=self.clock, database=database, threads=lists)
        sweep = Sweep(self.fleet.vendor, self.store, Wishes(**wishes), ports)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(PATIENCE):
                return await sweep.run(dry_run=dry_run, only_drift=only_drift)
        finally:
            self.world.thaw()
            database.close()
            lists.close()

    def left(self) -> list[Notice]:
        """Give what `status` says of the whole kind."""
        return list(self.fleet.store.notices())

    def key(self) -> str:
        """Give a whole key of ours, of a row that is not there."""
        return f"{self.store.owner_id()}-{base32_of(uuid4())}"

    def days_ago(self, days: float) -> datetime:
        return self.clock.instant - timedelta(days=days)

    def resource(self, workspace: str) -> str:
        (found,) = [r for r in self.world.resources.values() if r.workspace_id == workspace]
        return found.external_id

    def everything(self) -> list[list[dict[str, object]]]:
        """Give every row that tells something, but not whose turn it is."""
        tables = (tenancy, journal, sighting)
        return [[dict(row) for row in self.fleet._read(sa.select(each))] for each in tables]

    def vendor_row(self) -> dict[str, object]:
        (row,) = self.fleet._read(sa.select(vendor))
        return dict(row)

    def incarnations(self) -> dict[str, list[str]]:
        """Give the phases of each workspace's lives; one that was retired says so."""
        lives: dict[str, list[str]] = {}
        for row in self.fleet.rows():
            phase = "retired" if row["retired_at"] else row["phase"]
            lives.setdefault(row["workspace_id"], []).append(phase)
        return lives


@pytest.fixture
def rig(fleet: MakeFleet) -> Rig:
    return Rig(fleet(Lagging(), clock=ManualClock()))


@pytest.fixture
def sqlite_rig(sqlite_fleet: MakeFleet) -> Callable[..., Rig]:
    """Make rigs where the kind of database makes no difference."""
    return lambda vendor=None: Rig(sqlite_fleet(vendor or Lagging(), clock=ManualClock()))


def of(report: Report, sort: Sort) -> list[Finding]:
    return [finding for finding in report.findings if finding.sort is sort]


def outcomes(report: Report, sort: Sort) -> list[str]:
    return [finding.outcome.value for finding in of(report, sort)]


def listing(*named: object) -> Callable[[], AsyncIterator[object]]:
    async def installations() -> AsyncIterator[object]:
        for each in named:
            yield each

    return installations


# -- nothing new -----------------------------------------------------------------------------------


async def test_a_sweep_that_finds_nothing_writes_no_row(rig: Rig) -> None:
    await rig.installed("a", "b")
    before = rig.everything()
    report = await rig.sweep(release_orphans=True, release_stale_after=30 * DAY)
    assert (report.findings, report.complete, report.alerts) == ([], True, [])
    assert rig.everything() == before


async def test_a_sweep_that_finds_nothing_new_writes_no_row(rig: Rig) -> None:
    await rig.installed("a", "b", "c")
    rig.world.add("stray", key=rig.key(), created_at=rig.days_ago(1))
    rig.clock.advance(40 * DAY)
    for _ in range(2):
        await rig.sweep(release_stale_after=90 * DAY)
        rig.clock.advance(HOUR)
    before = rig.everything()
    report = await rig.sweep(release_stale_after=90 * DAY)
    assert len(report.findings) == 4
    assert rig.everything() == before


async def test_one_sweep_of_a_kind_at_a_time(rig: Rig) -> None:
    await rig.installed("a")
    other = SweepStore(rig.fleet.store, actor="another")
    assert other.take_turn("memory", 600.0)
    with pytest.raises(SweepBusy):
        await rig.sweep()
    assert (await rig.sweep(dry_run=True)).complete  # which needs no turn
    rig.clock.advance(600)  # the other died
    assert (await rig.sweep()).complete
    assert rig.vendor_row()["sweep_owner"] is None


async def test_a_turn_is_given_back_when_a_sweep_fails(rig: Rig) -> None:
    await rig.installed("a")

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    rig.store.members = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        await rig.sweep()
    assert rig.vendor_row()["sweep_owner"] is None


# -- stale -----------------------------------------------------------------------------------------


async def test_a_workspace_silent_for_ninety_days_is_listed_and_not_released(rig: Rig) -> None:
    await rig.installed("a", "b")
    rig.clock.advance(90 * DAY)
    rig.fleet.use("b")
    before = rig.everything()
    for _ in range(3):
        report = await rig.sweep()
        rig.clock.advance(2 * HOUR)
    (stale,) = report.findings
    assert (stale.sort, stale.outcome, stale.workspace_id) == ("stale", "reported", "a")
    assert "90 days" in stale.why
    assert report.needs_person
    assert rig.everything() == before
    assert len(rig.world.resources) == 2


async def test_a_stale_workspace_is_released_after_two_sweeps_where_the_operator_said_so(
    rig: Rig,
) -> None:
    await rig.installed("a", "b")
    rig.clock.advance(40 * DAY)
    rig.fleet.use("b")
    wishes = {"release_stale_after": 35 * DAY}
    assert outcomes(await rig.sweep(**wishes), Sort.STALE) == ["waiting"]
    rig.clock.advance(HOUR - 1)
    assert outcomes(await rig.sweep(**wishes), Sort.STALE) == ["waiting"]
    rig.clock.advance(1)
    assert outcomes(await rig.sweep(**wishes), Sort.STALE) == ["done"]
    await rig.fleet.work()
    assert rig.incarnations() == {"a": ["released"], "b": ["ready"]}
    assert [r.workspace_id for r in rig.world.resources.values()] == ["b"]


async def test_a_workspace_heard_from_between_two_sweeps_is_not_released(rig: Rig) -> None:
    await rig.installed("a")
    rig.clock.advance(40 * DAY)
    wishes = {"release_stale_after": 7 * DAY}
    await rig.sweep(**wishes)
    rig.fleet.use("a")
    rig.clock.advance(HOUR)
    assert (await rig.sweep(**wishes)).findings == []
    rig.clock.advance(8 * DAY)
    assert outcomes(await rig.sweep(**wishes), Sort.STALE) == ["waiting"]  # from the beginning


# -- drift -----------------------------------------------------------------------------------------


async def test_a_resource_missing_twice_is_made_anew_under_a_new_key(rig: Rig) -> None:
    await rig.installed("a", "b", "c")
    lost = rig.resource("a")
    key = rig.world.resources[lost].key
    rig.world.remove(lost)
    first = await rig.sweep()
    assert outcomes(first, Sort.DRIFT) == ["waiting"]
    assert first.unconfirmed
    rig.clock.advance(LAG)
    assert outcomes(await rig.sweep(only_drift=True), Sort.DRIFT) == ["done"]
    assert rig.incarnations() == {"a": ["retired", "pending"], "b": ["ready"], "c": ["ready"]}
    await rig.fleet.work()
    assert rig.incarnations()["a"] == ["retired", "ready"]
    made = rig.world.resources[rig.resource("a")]
    assert made.key not in (None, key)
    assert len(rig.world.resources) == 3
    assert (await rig.sweep()).findings == []


async def test_two_sightings_sooner_than_the_lag_are_one(rig: Rig) -> None:
    await rig.installed("a", "b", "c")
    rig.world.remove(rig.resource("a"))
    await rig.sweep()
    rig.clock.advance(LAG - 1)
    assert outcomes(await rig.sweep(), Sort.DRIFT) == ["waiting"]
    assert rig.incarnations()["a"] == ["ready"]


async def test_a_resource_that_appears_again_takes_its_sighting_back(rig: Rig) -> None:
    await rig.installed("a", "b", "c")
    lost = rig.world.resources.pop(rig.resource("a"))
    await rig.sweep()
    rig.clock.advance(LAG)
    rig.world.resources[lost.external_id] = lost
    assert (await rig.sweep()).findings == []
    rig.clock.advance(LAG)
    rig.world.remove(lost.external_id)
    assert outcomes(await rig.sweep(), Sort.DRIFT) == ["waiting"]
    assert rig.incarnations()["a"] == ["ready"]


async def test_a_resource_younger_than_the_lag_is_not_missed(rig: Rig) -> None:
    await rig.installed("a", "b")
    rig.fleet.ready("c")
    await rig.fleet.work()
    rig.world.remove(rig.resource("c"))
    rig.clock.advance(LAG - 1)
    assert (await rig.sweep()).findings == []
    rig.clock.advance(1)
    assert outcomes(await rig.sweep(), Sort.DRIFT) == ["waiting"]


async def test_a_workspace_being_released_is_not_made_anew(rig: Rig) -> None:
    rig.fleet.limits = replace(rig.fleet.limits, grace=DAY)
    await rig.installed("a", "b", "c")
    rig.world.remove(rig.resource("a"))
    await rig.sweep()
    rig.clock.advance(LAG)
    rig.fleet.removing("a")
    assert (await rig.sweep()).findings == []
    assert rig.incarnations()["a"] == ["ready"]


async def test_above_the_breaker_drift_is_only_reported(rig: Rig) -> None:
    names = [f"ws{n}" for n in range(12)]
    await rig.installed(*names)
    for name in names[:5]:
        rig.world.remove(rig.resource(name))
    await rig.sweep()
    rig.clock.advance(LAG)
    foreseen = await rig.sweep(dry_run=True)
    report = await rig.sweep()
    for each in (foreseen, report):
        assert sorted(outcomes(each, Sort.DRIFT)) == ["done"] * 3 + ["held"] * 2
        assert "approve --kind memory" in each.alerts[-1]
        assert each.needs_person
    await rig.fleet.work()
    assert len(rig.world.resources) == 10
    rig.clock.advance(2 * DAY)  # it stays open until somebody says so
    for dry_run in (True, False):
        assert outcomes(await rig.sweep(dry_run=dry_run), Sort.DRIFT) == ["held"] * 2


async def test_a_dry_run_counts_what_was_done_within_the_day(rig: Rig) -> None:
    names = [f"ws{n}" for n in range(12)]
    await rig.installed(*names)
    for gone in (names[:2], names[2:4]):
        for name in gone:
            rig.world.remove(rig.resource(name))
        await rig.sweep()
        rig.clock.advance(LAG)
        foreseen = await rig.sweep(dry_run=True)
        assert outcomes(foreseen, Sort.DRIFT) == outcomes(await rig.sweep(), Sort.DRIFT)
    assert sorted(outcomes(foreseen, Sort.DRIFT)) == ["done", "held"]


# -- lists that are not to be believed -------------------------------------------------------------


async def test_an_empty_inventory_makes_nothing_anew_and_alerts(rig: Rig) -> None:
    await rig.installed("a", "b")
    rig.world.resources.clear()
    await unbelieved(rig, "none of the 2 resources")


async def test_half_an_inventory_makes_nothing_anew_and_alerts(rig: Rig) -> None:
    names = ["a", "b", "c", "d"]
    await rig.installed(*names)
    for name in names[:2]:
        rig.world.remove(rig.resource(name))
    rig.world.add("stray", key=rig.key(), created_at=rig.days_ago(8))
    await unbelieved(rig, "only 2 of the 4")


@pytest.mark.parametrize("applied", [False, True], ids=["at once", "midway"])
async def test_an_inventory_that_fails_proves_nothing_and_alerts(rig: Rig, applied: bool) -> None:
    await rig.installed("a", "b", "c")
    rig.world.add("stray", key=rig.key(), created_at=rig.days_ago(8))
    fault = Fault(raises=CredentialError("token=hunter2 was revoked"), applied=applied)
    rig.world.fail("inventory", *[fault] * 3)
    report = await unbelieved(rig, "CredentialError")
    assert "hunter2" not in str(report.as_json())


async def unbelieved(rig: Rig, words: str) -> Report:
    """Sweep three times, an hour apart, and find that nothing was done on the list's word."""
    before = rig.everything()
    for _ in range(3):
        report = await rig.sweep(release_orphans=True)
        assert not report.complete
        assert (of(report, Sort.DRIFT), of(report, Sort.ORPHAN)) == ([], [])
        assert words in report.alerts[0]
        rig.clock.advance(2 * HOUR)
    assert rig.everything() == before
    return report


async def test_stale_workspaces_are_told_whatever_the_inventory_says(rig: Rig) -> None:
    await rig.installed("a")
    rig.clock.advance(31 * DAY)
    rig.world.fail("inventory", Fault(raises=RuntimeError("no")))
    report = await rig.sweep()
    assert outcomes(report, Sort.STALE) == ["reported"]
    assert not report.complete


class Lists(Lagging):
    """Its inventory is whatever it is given."""

    def __init__(self, given: Callable[[list[External]], object]) -> None:
        super().__init__()
        self.given = given

    def inventory(self) -> Any:
        return self.given(self.world.inventory())


async def later(found: Iterable[object]) -> AsyncIterator[object]:
    for each in found:
        await asyncio.sleep(0)
        yield each


async def cancelled(found: Iterable[object]) -> AsyncIterator[object]:
    for each in found:
        yield each
    raise asyncio.CancelledError


async def ended(found: Iterable[object]) -> AsyncIterator[object]:
    for each in found:
        yield each
    raise SystemExit(1)


def stopped(found: Iterable[object]) -> Iterator[object]:
    raise StopIteration


async def awaited(found: Iterable[object]) -> Iterable[object]:
    return found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (later, None),
        (iter, None),
        (awaited, None),
        (lambda found: [*found, *found], None),
        (lambda found: None, "NoneType, no list"),
        (lambda found: "text", "str, no list"),
        (lambda found: [*found, "res-9"], "1 of its items"),
        (lambda found: [*found, External("")], "1 of its items"),
        (lambda found: [*found, External("x", key=b"k")], "1 of its items"),  # type: ignore[arg-type]
        (cancelled, "cancelled from inside"),
        (ended, "SystemExit"),
        (stopped, "StopIteration"),
    ],
    ids=[
        *("async", "plain", "awaited", "twice", "none", "text", "an id", "no id", "bad key"),
        *("cancelled", "exit", "stop"),
    ],
)
async def test_any_list_is_read_to_its_end_or_does_not_count(
    sqlite_rig: Callable[..., Rig], given: Callable[[list[External]], object], words: str | None
) -> None:
    rig = sqlite_rig(Lists(given))
    await rig.installed("a", "b")
    report = await rig.sweep()
    assert report.complete == (words is None), report.alerts
    assert words is None or words in report.alerts[0]
    assert report.findings == []


async def stuck(found: Iterable[object]) -> AsyncIterator[object]:
    for each in found:
        yield each
    await asyncio.Event().wait()


class Impatient(Lists):
    time_limit = timedelta(seconds=0.05)


class PlainImpatient(PlainMemoryVendor):
    time_limit = timedelta(seconds=0.05)


@pytest.mark.parametrize("vendor", [Impatient(stuck), PlainImpatient()], ids=["async", "plain"])
async def test_a_list_that_hangs_is_given_up(sqlite_fleet: MakeFleet, vendor: Vendor) -> None:
    rig = Rig(sqlite_fleet(vendor))  # on the real clock: the limit is one of real time
    rig.world.fail("inventory", Fault(hangs=True))
    report = await rig.sweep()
    assert "nothing came for 0.05 s" in report.alerts[0]


async def test_a_list_may_be_long_and_slow_as_long_as_something_comes(
    sqlite_fleet: MakeFleet,
) -> None:
    clock = ManualClock()

    async def slow(found: Iterable[object]) -> AsyncIterator[object]:
        for each in found:
            clock.advance(0.3)
            await asyncio.sleep(LOOK)  # whoever watches may look
            yield each

    class Slow(Lists):
        time_limit = timedelta(seconds=0.5)
        lag = timedelta(0)

    rig = Rig(sqlite_fleet(Slow(slow), clock=clock))
    for _ in range(20):
        rig.world.add("x", owner="another")
    report = await rig.sweep()
    assert (report.complete, report.inventory and report.inventory.foreign) == (True, 20)


async def test_while_the_vendor_is_paused_it_is_not_asked(rig: Rig) -> None:
    await rig.installed("a")
    rig.fleet.store.pause("memory", 120.0, "RateLimited")
    report = await rig.sweep()
    assert "left alone (RateLimited)" in report.alerts[0]
    rig.clock.advance(120)
    assert (await rig.sweep()).complete


async def test_an_adapter_without_an_inventory_still_tells_what_is_stale(
    sqlite_rig: Callable[..., Rig],
) -> None:
    rig = sqlite_rig(Blind())
    await rig.installed("a")
    rig.clock.advance(31 * DAY)
    report = await rig.sweep()
    assert (report.inventory, outcomes(report, Sort.STALE)) == (None, ["reported"])
    assert report.complete


# -- orphans ---------------------------------------------------------------------------------------


async def test_an_orphan_is_only_reported_unless_the_operator_opted_in(rig: Rig) -> None:
    await rig.installed("a")
    rig.world.add("stray", key=rig.key(), created_at=rig.days_ago(30))
    before = rig.everything()
    for _ in range(3):
        report = await rig.sweep()
        rig.clock.advance(2 * HOUR)
    assert outcomes(report, Sort.ORPHAN) == ["reported"]
    assert rig.everything() == before
    assert len(rig.world.resources) == 2


async def test_status_tells_what_the_last_sweep_left_to_a_person(rig: Rig) -> None:
    await rig.installed("a", "b")
    rig.world.add("stray", key=rig.key(), created_at=rig.days_ago(30))
    rig.clock.advance(31 * DAY)
    rig.fleet.use("b")
    await rig.sweep(dry_run=True)
    assert rig.left() == []
    await rig.sweep()
    await rig.sweep(only_drift=True)
    (orphan,) = rig.left()  # and no word of silence
    assert orphan.settle == "nimble-reconcile sweep TARGET --release-orphans"
    assert "resources of ours that no row has: 1" in orphan.message

    rig.world.fail("inventory", Fault(raises=UnknownOutcome("cut")))
    rig.fleet.use("a")
    await rig.sweep()
    assert [each.settle for each in rig.left()] == [orphan.settle]  # the list showed nothing
    await rig.sweep(release_orphans=True)
    assert rig.left() == []  # no person is needed any more: a later sweep settles it


async def test_an_orphan_is_released_after_two_sweeps_an_hour_apart(rig: Rig) -> None:
    await rig.installed("a")
    stray = rig.world.add("stray", key=rig.key(), created_at=rig.days_ago(30))
    assert outcomes(await rig.sweep(release_orphans=True), Sort.ORPHAN) == ["waiting"]
    rig.clock.advance(HOUR - 1)
    assert outcomes(await rig.sweep(release_orphans=True), Sort.ORPHAN) == ["waiting"]
    rig.clock.advance(1)
    assert outcomes(await rig.sweep(release_orphans=True), Sort.ORPHAN) == ["done"]
    assert (await rig.sweep(release_orphans=True)).findings == []  # a row has it now
    await rig.fleet.work()
    assert stray.external_id not in rig.world.resources
    assert rig.incarnations()["a"] == ["ready"]
    assert len(rig.world.resources) == 1


async def test_nothing_without_a_whole_key_of_ours_and_a_known_age_is_ever_released(
    rig: Rig,
) -> None:
    await rig.installed("a")
    owner = rig.store.owner_id()
    whole = rig.key()
    old = rig.days_ago(30)
    for mark in (
        {"owner": owner, "created_at": old},
        {"key": f"{owner}-{'a' * 25}", "created_at": old},
        {"key": f"{owner}-{'a' * 25}1", "created_at": old},
        {"key": f"{owner}-{'a' * 25}b", "created_at": old},  # no uuid ends so
        {"key": whole[:-1], "created_at": old},
        {"key": whole.upper(), "created_at": old},
        {"key": f"x{whole}", "created_at": old},
        {"key": f"zzzzzzzzzz-{base32_of(uuid4())}", "created_at": old},
        {"key": whole, "owner": "zzzzzzzzzz", "created_at": old},
        {"key": rig.key()},
        {"key": rig.key(), "created_at": rig.days_ago(-1)},
        {"key": rig.key(), "created_at": rig.days_ago(6)},
        {"key": rig.key(), "created_at": old.replace(tzinfo=None)},
    ):
        rig.world.add("stray", **mark)  # type: ignore[arg-type]
    there = len(rig.world.resources)
    for _ in range(3):
        await rig.sweep(release_orphans=True)
        rig.clock.advance(HOUR)
    await rig.fleet.work()
    assert len(rig.world.resources) == there
    assert len(rig.fleet.rows()) == 1


async def test_what_carries_the_owner_id_alone_is_reported_for_a_person(rig: Rig) -> None:
    await rig.installed("a")
    rig.world.add("stray", owner=rig.store.owner_id(), created_at=rig.days_ago(30))
    report = await rig.sweep(release_orphans=True)
    assert outcomes(report, Sort.ORPHAN) == ["reported"]
    assert "owner id alone" in report.findings[0].why
    assert report.needs_person


async def test_a_second_resource_under_the_key_of_a_row_is_a_surplus(rig: Rig) -> None:
    await rig.installed("a")
    own = rig.resource("a")
    key = rig.world.resources[own].key
    rig.world.add("twin", key=key, created_at=rig.days_ago(30))
    for _ in range(2):
        report = await rig.sweep(release_orphans=True)
        rig.clock.advance(HOUR)
    (found,) = report.findings
    assert (found.outcome, found.workspace_id) == (Outcome.DONE, "a")
    await rig.fleet.work()
    assert list(rig.world.resources) == [own]
    assert sorted(row["origin"] or "" for row in rig.fleet.rows()) == ["", "surplus"]


async def test_a_released_tenancy_that_is_still_there_is_a_surplus(rig: Rig) -> None:
    await rig.installed("a", "b")
    left = rig.world.resources[rig.resource("a")]
    rig.fleet.removing("a")
    await rig.fleet.work()
    rig.world.resources[left.external_id] = replace(left, created_at=rig.days_ago(30))
    for _ in range(2):
        report = await rig.sweep(release_orphans=True)
        rig.clock.advance(HOUR)
    assert outcomes(report, Sort.ORPHAN) == ["done"]
    assert "still there" in report.findings[0].why
    await rig.fleet.work()
    assert [r.workspace_id for r in rig.world.resources.values()] == ["b"]


@pytest.mark.parametrize("phase", ["provisioning", "unresolved", "stalled", "pending"])
async def test_what_a_row_may_still_find_by_itself_is_left_to_it(rig: Rig, phase: str) -> None:
    await rig.installed("a", "b")
    made = rig.resource("a")
    rig.world.resources[made] = replace(rig.world.resources[made], created_at=rig.days_ago(30))
    change = (
        sa.update(tenancy)
        .where(tenancy.c.workspace_id == "a")
        .values(external_id=None, phase=phase, created_at=None)
    )
    until = rig.clock.monotonic() + PATIENCE
    rig.fleet.store.writing(until, lambda at: at.execute(change).close())
    for _ in range(3):
        assert (await rig.sweep(release_orphans=True)).findings == []
        rig.clock.advance(HOUR)
    assert made in rig.world.resources


async def test_another_kinds_resources_in_one_account_are_left_alone(
    sqlite_fleet: MakeFleet,
) -> None:
    class Other(Lagging):
        kind = "other"

    clock, world = ManualClock(), World()
    rig = Rig(sqlite_fleet(Lagging(world), clock=clock))
    other = sqlite_fleet(Other(world), clock=clock)
    other.ready("a", "b", "c", kind="other")
    await other.work()
    (over,) = [made for made in world.resources.values() if made.workspace_id == "c"]
    clock.advance(1)
    other.host.removing(Workspace("c"), "other", until=clock.monotonic() + PATIENCE)
    await other.work()
    world.resources[over.external_id] = over  # which the other kind's sweep is to find
    for name, made in list(world.resources.items()):
        world.resources[name] = replace(made, created_at=rig.days_ago(30))
    first, *_ = world.resources.values()
    # One of them carries no whole key, and is known by its row alone.
    world.resources[first.external_id] = replace(
        first, key=None, owner=rig.store.owner_id(), created_at=rig.days_ago(30)
    )
    await rig.installed("a")
    for _ in range(3):
        report = await rig.sweep(release_orphans=True)
        assert report.findings == []
        rig.clock.advance(HOUR)
    assert len(world.resources) == 4


async def test_two_deployments_on_one_account_release_only_their_own(
    fleet: MakeFleet, tmp_path: Path
) -> None:
    clock, world = ManualClock(), World()
    staging = Rig(fleet(Lagging(world), clock=clock))
    url = f"sqlite:///{tmp_path / 'production.db'}"
    other = WorkStore(url)
    other.migrate()
    other.close()
    fleet_class = type(staging.fleet)
    production = Rig(fleet_class(url, Lagging(world), clock=clock))
    await staging.installed("a")
    await production.installed("a", "b")
    old = staging.days_ago(30)
    strays = {
        each: world.add("stray", key=each.key(), created_at=old) for each in (staging, production)
    }
    for _ in range(2):
        report = await staging.sweep(release_orphans=True)
        clock.advance(HOUR)
    await staging.fleet.work()
    production.fleet.close()
    assert [f.external_id for f in report.findings] == [strays[staging].external_id]
    assert report.inventory is not None
    assert report.inventory.foreign == 3
    assert strays[staging].external_id not in world.resources
    assert strays[production].external_id in world.resources
    assert len(world.resources) == 4


# -- installations ---------------------------------------------------------------------------------


async def test_a_workspace_the_host_does_not_list_is_reported(rig: Rig) -> None:
    await rig.installed("a", "b")
    before = rig.everything()
    for _ in range(3):
        rig.clock.advance(2 * HOUR)
        report = await rig.sweep(installations=listing(("", "a"), ("t", "b")))
    (found,) = report.findings
    assert (found.sort, found.outcome, found.workspace_id) == ("unlisted", "reported", "b")
    assert rig.everything() == before


async def test_an_unlisted_workspace_is_released_after_two_sweeps_where_said_so(rig: Rig) -> None:
    await rig.installed("a", "b")
    wishes = {"installations": listing((None, "a")), "release_unlisted": True}
    report = await rig.sweep(**wishes)
    assert outcomes(report, Sort.UNLISTED) == ["reported"]
    assert "within the hour" in report.findings[0].why
    rig.clock.advance(HOUR)
    assert outcomes(await rig.sweep(**wishes), Sort.UNLISTED) == ["waiting"]
    rig.clock.advance(HOUR)
    assert outcomes(await rig.sweep(**wishes), Sort.UNLISTED) == ["done"]
    await rig.fleet.work()
    assert rig.incarnations() == {"a": ["ready"], "b": ["released"]}


async def test_a_workspace_listed_again_takes_its_strike_back(rig: Rig) -> None:
    await rig.installed("a", "b")
    rig.clock.advance(HOUR)
    await rig.sweep(installations=listing(("", "a")), release_unlisted=True)
    rig.clock.advance(HOUR)
    await rig.sweep(installations=listing(("", "a"), ("", "b")), release_unlisted=True)
    rig.clock.advance(HOUR)
    report = await rig.sweep(installations=listing(("", "a")), release_unlisted=True)
    assert outcomes(report, Sort.UNLISTED) == ["waiting"]


async def failing() -> AsyncIterator[object]:
    yield ("", "a")
    raise RuntimeError("page 2")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (listing(), "it is empty"),
        (failing, "page 2"),
        (listing(("", "a"), "b"), "something else than pairs"),
        (listing(("", "a"), ("", None)), "something else than pairs"),
        (listing(("other tenant", "a"), ("other tenant", "b")), "none of the 2 workspaces"),
        (lambda: 7, "int, no list"),
    ],
    ids=["empty", "failing", "no pair", "no workspace", "other tenants", "no list"],
)
async def test_a_list_of_installations_that_does_not_count_releases_nothing(
    rig: Rig, source: Callable[[], object], words: str
) -> None:
    await rig.installed("a", "b")
    before = rig.everything()
    for _ in range(3):
        rig.clock.advance(HOUR)
        report = await rig.sweep(installations=source, release_unlisted=True)
        assert not report.complete
        assert words in report.alerts[0]
        assert of(report, Sort.UNLISTED) == []
    assert rig.everything() == before


# -- dry runs, and everything together -------------------------------------------------------------


async def test_a_dry_run_writes_nothing_and_says_what_would_be_done(rig: Rig) -> None:
    await rig.installed("a", "b", "c", "d")
    rig.world.add("stray", key=rig.key(), created_at=rig.days_ago(30))
    rig.world.remove(rig.resource("a"))
    rig.clock.advance(40 * DAY)
    rig.fleet.use("b")
    wishes = {
        "release_orphans": True,
        "release_stale_after": 39 * DAY,
        "installations": listing(("", "a"), ("", "c"), ("", "d")),
    }
    everything, turn = rig.everything(), rig.fleet._read(sa.select(vendor))
    dry = await rig.sweep(dry_run=True, **wishes)
    assert {finding.outcome.value for finding in dry.findings} == {"waiting", "reported"}
    assert (rig.everything(), rig.fleet._read(sa.select(vendor))) == (everything, turn)
    await rig.sweep(**wishes)
    rig.clock.advance(HOUR)
    everything, turn = rig.everything(), rig.fleet._read(sa.select(vendor))
    foreseen = await rig.sweep(dry_run=True, **wishes)
    assert (rig.everything(), rig.fleet._read(sa.select(vendor))) == (everything, turn)
    done = await rig.sweep(**wishes)
    told = [[(f.sort, f.external_id, f.strikes) for f in r.findings] for r in (foreseen, done)]
    assert told[0] == told[1]
    assert json.loads(json.dumps(done.as_json()))["findings"]


async def test_a_role_that_asks_for_everything_is_held_by_the_breaker(rig: Rig) -> None:
    """One that can write last_seen_at can make every workspace look stale."""
    names = [f"ws{n}" for n in range(20)]
    await rig.installed(*names)
    rig.clock.advance(40 * DAY)
    for _ in range(3):
        report = await rig.sweep(release_stale_after=30 * DAY)
        rig.clock.advance(HOUR)
    assert sum(row["desired"] == "release" for row in rig.fleet.rows()) == 3
    assert outcomes(report, Sort.STALE).count("held") == 17
    assert report.alerts


async def test_a_tenancy_used_again_in_the_grace_of_a_sweep_is_not_released(rig: Rig) -> None:
    rig.fleet.limits = replace(rig.fleet.limits, grace=DAY)
    await rig.installed("a")
    rig.clock.advance(40 * DAY)
    for _ in range(2):
        await rig.sweep(release_stale_after=30 * DAY)
        rig.clock.advance(HOUR)
    await rig.fleet.work()
    until = rig.clock.monotonic() + PATIENCE
    rig.fleet.host.ready(Workspace("a"), "memory", Reason.RESUME, {}, until=until)
    rig.clock.advance(2 * DAY)
    await rig.fleet.work()
    assert rig.incarnations() == {"a": ["ready"]}
    assert len(rig.world.resources) == 1


class Unmarked(Lagging):
    """A vendor that cannot carry a mark, so that nobody can tell whose a resource is."""

    repeatable = None
    find = Vendor.find

    def inventory(self) -> Iterator[External]:
        for each in super().inventory():
            yield replace(each, key=None, owner=None)


class Marked(Lagging):
    """A vendor whose list shows marks, and whose adapter can neither repeat nor look up."""

    repeatable = None
    find = Vendor.find


@pytest.mark.parametrize("adapter", [Unmarked, Marked])
async def test_what_an_unknown_create_may_have_made_is_told_with_the_command(
    fleet: MakeFleet, adapter: type[MemoryVendor]
) -> None:
    rig = Rig(fleet(adapter(), clock=ManualClock()))
    rig.fleet.ready("a")
    rig.world.fail("provision", Fault(raises=UnknownOutcome("lost"), applied=True))
    await rig.fleet.work()
    row = rig.fleet.row()
    assert row["reason"] == "CreateOutcomeUnknown"
    (made,) = rig.world.resources
    now = row["create_attempted_at"]
    rig.world.resources[made] = replace(rig.world.resources[made], created_at=now)
    rig.world.add("older", key="x", created_at=now - timedelta(days=1))
    report = await rig.sweep()
    (found,) = of(report, Sort.MATCH)
    assert (found.workspace_id, found.external_id) == ("a", made)
    assert f"nimble-reconcile adopt {row['id']} {made}" in found.why
    assert report.needs_person

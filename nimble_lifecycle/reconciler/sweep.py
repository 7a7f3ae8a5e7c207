"""Looks at all there is, here and at the vendor, and finds what no single row can know.

Four findings: workspaces not heard from, workspaces in which the host no longer has the server,
rows whose resource is not there, and resources of ours that no row has. Releases are only reported
unless the operator opted in; a resource that vanished is made anew. A list that did not come to its
end, or is too short to be true, proves nothing, and nothing is done on its word.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeAlias, TypeVar
from uuid import UUID

from nimble_lifecycle.errors import StoreError, SweepBusy
from nimble_lifecycle.protocol import Phase
from nimble_lifecycle.reconciler.cases import HOUR, Cases, Wishes
from nimble_lifecycle.reconciler.court import Court
from nimble_lifecycle.reconciler.findings import Finding, ListSeen, Report
from nimble_lifecycle.reconciler.inventory import Inventory
from nimble_lifecycle.reconciler.listing import ListError, Source, listed
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.store.ports import Clock, Hop
from nimble_lifecycle.store.sightings import Sort
from nimble_lifecycle.store.sweeps import Member, SweepStore

T = TypeVar("T")

Workspace: TypeAlias = tuple[str, str]
"""Tenant id and workspace id."""

TURN = 600.0
"""Seconds for which a sweep takes its turn at least; it is extended as the sweep goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Time, threads for the store's calls and for plain iterators, and whom to tell how far it is.

    `progress` gets the name of what is read, and how much of it was.
    """

    clock: Clock
    database: Hop
    threads: Hop
    progress: Callable[[str, int], None] = lambda _what, _count: None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sweeps of one vendor's kind; belongs to one event loop."""

    vendor: Vendor
    store: SweepStore
    wishes: Wishes
    ports: Ports

    async def run(
        self, *, dry_run: bool = False, rest: float = 0.0, only_drift: bool = False
    ) -> Report:
        """Sweep once. A dry run writes nothing at all, and needs no turn.

        Raises SweepBusy where another sweep of the kind is under way, began within the last `rest`
        seconds, or took over from this one.
        """
        kind, hop = self.vendor.kind, self.ports.database
        if dry_run:
            return await self._look(None, only_drift=only_drift)
        # Longer than a list may be silent.
        turn = max(TURN, 3 * self.vendor.time_limit.total_seconds())
        if not await hop.run(partial(self.store.take_turn, kind, turn, rest=rest)):
            raise SweepBusy(f"another sweep of {kind!r} is under way or has just been: try later")
        left: Mapping[str, int] = {}
        try:
            report = await self._look(turn, only_drift=only_drift)
            left = {} if only_drift else report.left
            return report
        finally:
            with suppress(StoreError):  # it ends by itself
                await hop.run(partial(self.store.give_turn_back, kind, left))

    async def _look(self, turn: float | None, *, only_drift: bool) -> Report:
        began = await self.ports.database.run(self.store.instant)
        return await _Look(self, began, turn=turn, only_drift=only_drift).report()


@dataclass(slots=True, kw_only=True)
class _Fleet:
    """What the rows say, compared with both lists where they were read."""

    inventory: Collection[str] | None
    named: Collection[Workspace] | None
    silent_since: datetime
    proven_by: datetime
    stale: list[Member] = field(default_factory=list)
    unlisted: list[Member] = field(default_factory=list)
    missing: list[Member] = field(default_factory=list)
    wanted: int = 0
    resources: int = 0
    """Rows whose resource must be in the inventory, which names `listed` of them."""
    listed: int = 0

    def add(self, member: Member) -> None:
        """Look at a row."""
        if member.wanted:
            self.wanted += 1
            if member.last_seen_at <= self.silent_since:
                self.stale.append(member)
            if self.named is not None and _home(member) not in self.named:
                self.unlisted.append(member)
        if self.inventory is None or member.external_id is None:
            return
        # One made or changed since the sweep began, or just before, may be in no list yet.
        if member.proven_at is None or member.proven_at > self.proven_by:
            return
        self.resources += 1
        if member.external_id in self.inventory:
            self.listed += 1
        elif member.wanted and member.phase == Phase.READY:
            self.missing.append(member)


class _Look:
    """One sweep, which began at `began`. Without a `turn`, in seconds, it is a dry run."""

    def __init__(
        self, sweep: Sweep, began: datetime, *, turn: float | None, only_drift: bool
    ) -> None:
        self._vendor = sweep.vendor
        self._kind = sweep.vendor.kind
        self._store = sweep.store
        self._ports = sweep.ports
        self._wishes = sweep.wishes
        self._began = began
        self._turn = turn
        self._only_drift = only_drift
        self._kept_at = sweep.ports.clock.monotonic()
        keeps = sweep.vendor.on_release == "keep"
        self._cases = Cases(sweep.store, self._kind, sweep.wishes, began, keeps)

    async def report(self) -> Report:
        """Read both lists and the rows, and settle what is found."""
        inventory, vendors = await self._inventory()
        named, hosts = await self._installations()
        fleet = await self._fleet(inventory, named)
        if vendors is not None and vendors.problem is None:
            vendors = replace(vendors, problem=_too_short(fleet.resources, fleet.listed))
        if hosts is not None and hosts.problem is None:
            hosts = replace(hosts, problem=_names_none(fleet.wanted, len(fleet.unlisted)))
        court = Court(
            self._store,
            self._kind,
            self._ports.database,
            began=self._began,
            keep_turn=self._keep_turn,
            dry_run=self._turn is None,
        )
        findings: list[Finding] = []
        # Releases first: what is to be released need not be made anew.
        if hosts is not None and hosts.problem is None:
            cases = list(map(self._cases.unlisted, fleet.unlisted))
            findings += await court.settle(Sort.UNLISTED, cases, HOUR)
        findings += await self._settle_stale(court, fleet.stale)
        if inventory is not None and vendors is not None and vendors.problem is None:
            cases = list(map(self._cases.missing, fleet.missing))
            findings += await court.settle(Sort.DRIFT, cases, self._lag.total_seconds())
            findings += await self._settle_strays(court, inventory)
        return Report(
            kind=self._kind,
            dry_run=self._turn is None,
            findings=findings,
            inventory=vendors,
            installations=hosts,
            breaker=await court.breaker(),
        )

    async def _settle_stale(self, court: Court, stale: Sequence[Member]) -> list[Finding]:
        if self._only_drift:
            return []
        cases = list(map(self._cases.stale, stale))
        if self._wishes.release_stale_after is None:
            return [case.finding for case in cases]
        return await court.settle(Sort.STALE, cases, HOUR)

    async def _settle_strays(self, court: Court, inventory: Inventory) -> list[Finding]:
        if self._only_drift:
            return []
        cases = [self._cases.stray(stray, inventory.owner_id) for stray in inventory.strays]
        matches = [self._cases.match(row, external) for row, external in inventory.matches]
        return [*await court.settle(Sort.ORPHAN, cases, HOUR), *matches]

    # -- reading ---------------------------------------------------------------------------------

    async def _inventory(self) -> tuple[Inventory | None, ListSeen | None]:
        if not self._vendor.implements("inventory"):
            return None, None
        owner_id = await self._read(self._store.owner_id)
        unknowns = await self._read(partial(self._store.unknowns, self._kind))
        seen = Inventory(self._store, self._kind, owner_id, unknowns)
        problem = await self._read(partial(self._store.paused, self._kind))
        if problem is not None:
            problem = f"it was not asked for, the vendor is left alone ({problem})"
        else:
            problem = await self._each("inventory", self._vendor.inventory, seen.add)
        if seen.unreadable and problem is None:
            problem = f"{seen.unreadable} of its items are no External with an id that can be used"
        found = ListSeen(
            items=len(seen.ids), problem=problem, foreign=seen.foreign, unmarked=seen.unmarked
        )
        return seen, found

    async def _installations(self) -> tuple[set[Workspace] | None, ListSeen | None]:
        source = self._wishes.installations
        if source is None or self._only_drift:
            return None, None
        named: set[Workspace] = set()
        problem = await self._each(
            "installations", source, lambda part: named.update(map(_workspace, part))
        )
        if not named and problem is None:
            problem = "it is empty"
        return named, ListSeen(items=len(named), problem=problem)

    async def _each(
        self, name: str, source: Source, take: Callable[[list[object]], None]
    ) -> str | None:
        """Take a list to its end, or say why it has none."""
        limit, count = self._vendor.time_limit.total_seconds(), 0
        parts = listed(source, limit=limit, clock=self._ports.clock, hop=self._ports.threads)
        try:
            async with aclosing(parts):
                async for part in parts:
                    await self._read(partial(take, part))
                    count += len(part)
                    await self._went_on(name, count)
        except ListError as error:
            return str(error)
        return None

    async def _fleet(self, inventory: Inventory | None, named: set[Workspace] | None) -> _Fleet:
        fleet = _Fleet(
            inventory=None if inventory is None else inventory.ids,
            named=named,
            silent_since=self._began - timedelta(seconds=self._silence()),
            proven_by=self._began - self._lag,
        )
        if inventory is None and named is None:
            # Only silence is left to find, and the database finds it without showing every row.
            fleet.stale = await self._silent(fleet.silent_since)
            return fleet
        after, count = None, 0
        while page := await self._read(partial(self._store.members, self._kind, after)):
            for member in page:
                fleet.add(member)
            after, count = page[-1].id, count + len(page)
            await self._went_on("rows", count)
        return fleet

    async def _silent(self, since: datetime) -> list[Member]:
        found: dict[UUID, Member] = {}
        for stretch in await self._read(self._store.stretches):
            part = await self._read(partial(self._store.silent, self._kind, since, stretch))
            found |= {member.id: member for member in part}
            await self._went_on("rows", len(found))
        return list(found.values())

    def _silence(self) -> float:
        wishes = self._wishes
        released = wishes.release_stale_after
        return wishes.stale_after if released is None else min(wishes.stale_after, released)

    @property
    def _lag(self) -> timedelta:
        return self._vendor.lag

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._ports.database.run(work)

    # -- going on --------------------------------------------------------------------------------

    async def _went_on(self, name: str, count: int) -> None:
        self._ports.progress(name, count)
        await self._keep_turn()

    async def _keep_turn(self) -> None:
        """Extend the turn once half of it is over."""
        now = self._ports.clock.monotonic()
        if self._turn is not None and now - self._kept_at > self._turn / 2:
            await self._read(partial(self._store.keep_turn, self._kind, self._turn))
            self._kept_at = now


def _home(member: Member) -> Workspace:
    return (member.tenant_id, member.workspace_id)


def _workspace(item: object) -> Workspace:
    match item:
        case (None | str() as tenant_id, str() as workspace_id):
            return (tenant_id or "", workspace_id)
    raise ListError("it gives something else than pairs of tenant id and workspace id")


def _too_short(resources: int, listed: int) -> str | None:
    """Say why an inventory that misses half or more, and not just one, cannot be true."""
    missing = resources - listed
    if resources and not listed:
        return f"it has none of the {resources} resources that rows have"
    if missing > 1 and missing >= listed:
        return f"it has only {listed} of the {resources} resources that rows have"
    return None


def _names_none(wanted: int, unlisted: int) -> str | None:
    """Say why a list of installations cannot be true; one with other tenant ids names none."""
    if wanted and wanted == unlisted:
        return f"it names none of the {wanted} workspaces that rows are for"
    return None

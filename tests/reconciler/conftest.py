"""A fleet: one database, a host's side, a vendor that keeps a world, and workers over them."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from waiting import PATIENCE, comes

from nimble_lifecycle.protocol import Json, Reason, Workspace
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.limits import Limits
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.reconciler.worker import Worker
from nimble_lifecycle.store import IntentStore, Threads, WorkStore
from nimble_lifecycle.store.models import (
    call,
    deployment,
    journal,
    sighting,
    tenancy,
    vendor,
)
from nimble_lifecycle.store.ports import Hop
from nimble_lifecycle.testing import ManualClock, MemoryVendor, World

T = TypeVar("T")

QUICK = Backoff(0.01, 0.05)
TICK = 0.05
"""Seconds: how far a clock of the test's own goes on between two looks."""


@dataclass
class Fleet:
    """Everything around a worker. `limits` are the worker's; times in seconds."""

    url: str
    vendor: Vendor
    clock: ManualClock | None = None
    limits: Limits = field(default_factory=lambda: Limits(poll=0.05, grace=0.0, backoff=QUICK))
    store_url: str | None = None

    def __post_init__(self) -> None:
        self.host = IntentStore(self.url, clock=self.clock)
        self.store = WorkStore(self.store_url or self.url, clock=self.clock)
        self._running: tuple[Worker, asyncio.AbstractEventLoop] | None = None

    @property
    def world(self) -> World:
        return self.vendor.world  # type: ignore[attr-defined]  # every vendor here has one

    def ready(self, *names: str, kind: str = "memory", **params: Json) -> None:
        for name in names:
            until = self.host.clock.monotonic() + PATIENCE
            self.host.ready(Workspace(name), kind, Reason.RESUME, params, until=until)
        self._wake()

    def removing(self, *names: str) -> None:
        for name in names:
            self.host.removing(
                Workspace(name), "memory", until=self.host.clock.monotonic() + PATIENCE
            )
        self._wake()

    def use(self, name: str) -> None:
        self.host.touch(Workspace(name), "memory", until=self.host.clock.monotonic() + PATIENCE)
        self._wake()

    def _wake(self) -> None:
        """Tell the worker, as a wake-up would: on the test's own clock it would not look again."""
        if self._running is not None:
            worker, loop = self._running
            loop.call_soon_threadsafe(worker.wake)

    def rows(self) -> list[sa.RowMapping]:
        """Give every row as it is stored, oldest life first."""
        order = (tenancy.c.workspace_id, tenancy.c.incarnation)
        return self._read(sa.select(tenancy).order_by(*order))

    def row(self) -> sa.RowMapping:
        (row,) = self.rows()
        return row

    def vendor_row(self) -> sa.RowMapping:
        """Give what is known of the vendor as a whole."""
        (row,) = self._read(sa.select(vendor).where(vendor.c.kind == "memory"))
        return row

    def phases(self) -> dict[str, int]:
        rows = self.rows()
        return {
            phase: sum(r["phase"] == phase for r in rows) for phase in {r["phase"] for r in rows}
        }

    def journal(self) -> list[sa.RowMapping]:
        return self._read(sa.select(journal).order_by(journal.c.id))

    def _read(self, statement: sa.Select[tuple[object, ...]]) -> list[sa.RowMapping]:
        until = self.store.clock.monotonic() + PATIENCE
        return self.store.reading(until, lambda at: list(at.execute(statement).mappings()))

    async def work(self) -> Worker:
        """Run a new worker until it is idle."""
        return await self.with_worker(lambda worker: worker.run(until_idle=True))

    async def work_on(self) -> Worker:
        """Run a new worker until it is idle, while time passes on the test's own clock."""

        async def run(worker: Worker) -> None:
            running = asyncio.ensure_future(worker.run(until_idle=True))
            await self.passing(running.done)
            await running

        return await self.with_worker(run)

    async def passing(self, holds: Callable[[], object]) -> None:
        """Let time pass on the test's own clock until something holds."""

        def ticked() -> bool:
            if holds():
                return True
            self.clock.advance(self._to_the_next())
            return False

        await comes(ticked)

    def _to_the_next(self) -> float:
        """Give a tick; where all that is left waits for a lease to be over, the rest of that."""
        left = [row for row in self.rows() if row["due_at"]]
        if not left or any(row["lease_owner"] or row["phase"] != "unresolved" for row in left):
            return TICK
        next_due = min(row["due_at"] for row in left)
        return max(TICK, (next_due - self.clock.instant).total_seconds())

    async def with_worker(
        self, use: Callable[[Worker], object], *, database: Hop | None = None
    ) -> Worker:
        """Make a new worker and let `use` run it; a test that waits in vain fails."""
        stored, plain = Threads(4, "test-store"), Threads(self.limits.concurrency, "test-vendor")
        worker = Worker(
            self.vendor, self.store, self.limits, database=database or stored, threads=plain
        )
        before, self._running = self._running, (worker, asyncio.get_running_loop())
        try:
            async with asyncio.timeout(PATIENCE):
                await use(worker)  # type: ignore[misc]  # an awaitable
        finally:
            self._running = before
            self.world.thaw()
            stored.close()
            plain.close()
        return worker

    def close(self) -> None:
        self.host.close()
        self.store.close()


@pytest.fixture(scope="session")
def one_postgres_url(postgres: Any, postgres_template: str) -> Iterator[str]:
    """Give one database for all tests here: making one takes longer than most of them."""
    with postgres.fresh(postgres_template) as url:
        yield url


@pytest.fixture
def postgres_url(one_postgres_url: str) -> Iterator[str]:
    """Give the one database, emptied after each test."""
    yield one_postgres_url
    engine = sa.create_engine(sa.make_url(one_postgres_url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        for table in (tenancy, journal, call, sighting, vendor):
            connection.execute(sa.delete(table))
        connection.execute(sa.update(deployment).values(fingerprint=None, deployment=None))
    engine.dispose()


@pytest.fixture
def fleet(database_url: str) -> Iterator[Callable[..., Fleet]]:
    """Make fleets over one database: `fleet(vendor, clock=…, limits=…)`."""
    yield from fleets_over(database_url)


@pytest.fixture
def sqlite_fleet(sqlite_url: str) -> Iterator[Callable[..., Fleet]]:
    """Make fleets where the kind of database makes no difference."""
    yield from fleets_over(sqlite_url)


@pytest.fixture
def fleet_at(halves) -> Iterator[Callable[..., Fleet]]:
    """Make fleets with the rights of a role: `fleet_at(halves.worker, vendor)`; hosts have all."""
    made: list[Fleet] = []

    def make(url: str, vendor: Vendor | None = None) -> Fleet:
        made.append(Fleet(halves.owner, vendor or MemoryVendor(), store_url=url))
        return made[-1]

    yield make
    for each in made:
        each.close()


def fleets_over(url: str) -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(vendor: Vendor | None = None, **options: object) -> Fleet:
        made.append(Fleet(url, vendor or MemoryVendor(), **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def limits() -> Callable[..., Limits]:
    """Make limits of short times: `limits(grace=…)`."""
    return partial(Limits, poll=0.05, backoff=QUICK)

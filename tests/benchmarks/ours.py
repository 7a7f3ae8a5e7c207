"""Our own halves, as the measurements use them."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import md5
from pathlib import Path

import psycopg

from nimble_lifecycle.reconciler import Provisioned, Released, Tenancy, Vendor
from nimble_lifecycle.reconciler.cli.run import DATABASE_THREADS, collecting_rarely
from nimble_lifecycle.reconciler.limits import Limits
from nimble_lifecycle.reconciler.worker import Worker
from nimble_lifecycle.store import Threads, WorkStore
from nimble_lifecycle.store.deployment import Deployment
from nimble_lifecycle.store.wakeups import Listener
from tests.benchmarks.counting import Counting

SETTLED_IN = 1.0
"""Seconds after which a worker listens and is idle."""

PENDING = """
INSERT INTO nimble_tenancy (id, tenant_id, workspace_id, kind, incarnation, first_seen_at, desired,
                            params, params_hash, generation, generation_at, last_seen_at)
SELECT gen_random_uuid(), '', 'workspace_' || n, 'acme', 1, now(), 'wanted',
       '{}', '', 1, now(), now() FROM generate_series(1, %s) n
"""
READY = """
INSERT INTO nimble_tenancy (id, tenant_id, workspace_id, kind, incarnation, first_seen_at, desired,
                            params, params_hash, generation, generation_at, last_seen_at, phase,
                            claimed_generation, observed_generation, attempted_params_hash,
                            idempotency_key, external_id, create_started_at,
                            create_attempted_at, create_ends_at, created_at, last_observed_at,
                            lease_token, creates)
SELECT id, '', 'ws_' || substr(md5('w' || n), 1, 12), 'acme', 1, seen, 'wanted', '{}', '', 1, seen,
       seen, 'ready', 1, 1, '', 'aaaaaaaaaa-' || key, 'tn_' || substr(md5('t' || n), 1, 12), seen,
       seen, seen, seen, seen, 1, 0
FROM (SELECT gen_random_uuid() AS id, n, now() - interval '2 days' AS seen,
             substr(md5(n::text), 1, 26) AS key FROM generate_series(%s::int, %s::int) n) made
"""
"""Settled rows. Their names are in no order, as those of hosts and vendors are not: an index into
which names are put in order is half empty."""
EMPTY = "TRUNCATE nimble_tenancy, nimble_call, nimble_journal, nimble_sighting"


class Acme(Vendor):
    """A vendor of 100 slots whose calls are counted."""

    kind = "acme"
    repeatable = timedelta(hours=24)

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        """Make the resource of a workspace."""
        await self._counting.call()
        return Provisioned(f"external_{tenancy.workspace_id}")

    async def release(self, tenancy: Tenancy) -> Released:
        """Take it away."""
        await self._counting.call()
        return Released()


class Idle(Acme):
    """A vendor that is never called."""

    def __init__(self) -> None:
        super().__init__(Counting(0))


def ready_workspace(number: int) -> str:
    """Give the workspace of a settled row by its number."""
    return f"ws_{md5(f'w{number}'.encode(), usedforsecurity=False).hexdigest()[:12]}"


async def fill(url: str, rows: int, *, ready: int = 0) -> None:
    """Leave so many rows to do, among so many that are settled."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as at:
        await at.execute(EMPTY)
        if ready:
            await at.execute(READY, [rows + 1, rows + ready])
        await at.execute(PENDING, [rows])
        await at.execute("VACUUM ANALYZE nimble_tenancy")


async def drain(url: str, counting: Counting, *, concurrency: int = 100) -> None:
    """Do them all, with the worker as it is run."""
    async with _worker(url, counting, concurrency) as (worker, _):
        await worker.run(until_idle=True)


@asynccontextmanager
async def working(url: str, counting: Counting, *, concurrency: int = 20) -> AsyncIterator[None]:
    """Have a worker that listens, for the block."""
    loop = asyncio.get_running_loop()
    async with _worker(url, counting, concurrency) as (worker, store):
        listener = Listener(store, lambda: loop.call_soon_threadsafe(worker.wake))
        listener.start()
        task = asyncio.create_task(worker.run())
        await asyncio.sleep(SETTLED_IN)
        try:
            yield
        finally:
            worker.stop()
            await task
            listener.close()


@asynccontextmanager
async def process(url: str) -> AsyncIterator[Process]:
    """Have `nimble-reconcile`, as an operator runs it, for the block; it listens when it begins."""
    running = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("nimble-reconcile"),
        "run",
        f"{__name__}:Idle",
        env={**os.environ, "NIMBLE_DATABASE_URL": url},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as at:
            while not await _is_heard(at):
                if running.returncode is not None:
                    raise AssertionError(f"the worker ended with {running.returncode}")
                await asyncio.sleep(0.05)
        yield running
    finally:
        running.terminate()
        await running.wait()


async def _is_heard(at: "psycopg.AsyncConnection[tuple[object, ...]]") -> bool:
    """Whether anybody listens on this database."""
    listening = await at.execute(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    )
    return await listening.fetchone() is not None


@asynccontextmanager
async def _worker(
    url: str, counting: Counting, concurrency: int
) -> AsyncIterator[tuple[Worker, WorkStore]]:
    store = WorkStore(url, connections=DATABASE_THREADS)
    store.open()
    Deployment(store, None).enter()
    database, threads = Threads(DATABASE_THREADS, "store"), Threads(concurrency, "vendor")
    limits = Limits(concurrency=concurrency)
    worker = Worker(Acme(counting), store, limits, database=database, threads=threads)
    try:
        with collecting_rarely():
            yield worker, store
    finally:
        database.close()
        threads.close()
        store.close()


class _Uncounted(Counting):
    """Calls of which this process has only its share."""

    def __init__(self, latency: float) -> None:
        super().__init__(0, lambda: latency)


def main() -> None:
    """Drain as one process of several: `URL SLOTS LATENCY`; print when each call began."""
    url, slots, latency = sys.argv[1:]
    vendor = _Uncounted(float(latency))
    asyncio.run(drain(url, vendor, concurrency=int(slots)))
    sys.stdout.write(json.dumps(vendor.begun))


if __name__ == "__main__":
    main()

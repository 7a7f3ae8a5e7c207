"""How fast the worker makes the vendor match the rows, beside queues people would reach for.

Every side has one process, a vendor that does nothing, and the concurrency that suits it best. What
is timed are the calls between the first fifth of them, which warms up, and the last.
"""

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import ModuleType

import psycopg

from tests.benchmarks import ours
from tests.benchmarks.counting import Counting, exponential
from tests.benchmarks.harness import Bench, Side, in_turns
from tests.benchmarks.peers import dbos, floor, pgqueuer, procrastinate

SLOTS = 100
SLOW = 0.05
"""Seconds, the mean of a slow vendor."""
SHARED = 0.02
"""Seconds, the latency of the vendor that two workers share."""


async def run(bench: Bench) -> None:
    """Measure all figures of the worker's throughput."""
    if bench.asks_for(
        "reconcile_vs_procrastinate",
        "reconcile_vs_pgqueuer",
        "reconcile_vs_dbos",
        "reconcile_vs_floor",
        "reconcile_cpu",
        "reconcile_commits",
    ):
        await _side_by_side(bench)
    if bench.asks_for("slow_vendor"):
        await _slow_vendor(bench)
    if bench.asks_for("two_workers"):
        await _two_workers(bench)
    if bench.asks_for("backlog_drain"):
        await _backlog(bench)


async def _side_by_side(bench: Bench) -> None:
    cpu: list[float] = []
    commits: list[float] = []
    async with AsyncExitStack() as stack:
        peers = {
            "procrastinate": procrastinate,
            "pgqueuer": pgqueuer,
            "dbos": dbos,
            "floor": floor,
        }
        if bench.quick and "reconcile_vs_dbos" not in bench.wanted:
            del peers["dbos"]  # its processes take seconds to start
        urls = {name: stack.enter_context(bench.databases.empty()) for name in peers}
        for name, peer in peers.items():
            await peer.install(urls[name])
        mine = stack.enter_context(bench.databases.migrated())
        few, many = bench.some(500, 150), bench.some(20_000, 5_000)
        sides: dict[str, Side] = {
            name: _rate(peer, urls[name], few if name in ("procrastinate", "dbos") else many)
            for name, peer in peers.items()
        }
        sides["ours"] = _our_rate(mine, many, cpu, commits)
        found = await in_turns(bench.rounds, sides)
    for name in peers:
        bench.ratio(f"reconcile_vs_{name}", found["ours"], found[name])
    bench.value("reconcile_cpu", *(seconds * 1000 for seconds in cpu[1:]))
    bench.value("reconcile_commits", *commits[1:])


def _rate(peer: ModuleType, url: str, rows: int) -> Side:
    async def side() -> float:
        await peer.fill(url, rows)
        vendor = Counting(rows)
        await peer.drain(url, vendor)
        return vendor.rate()

    return side


def _our_rate(url: str, rows: int, cpu: list[float], commits: list[float]) -> Side:
    async def side() -> float:
        await ours.fill(url, rows)
        before = await _commits(url)
        vendor = Counting(rows)
        await ours.drain(url, vendor, concurrency=SLOTS)
        commits.append((await _commits(url) - before) / rows)
        cpu.append(vendor.cpu())
        await _all_ready(url, rows)
        return vendor.rate()

    return side


async def _commits(url: str) -> int:
    """Count the transactions of a database; sessions that ended have reported theirs."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as at:
        cursor = await at.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
        (found,) = await cursor.fetchone() or (0,)
        return int(found)


async def _all_ready(url: str, rows: int) -> None:
    """See that the work was done: every row ready, each with one entry in the journal."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as at:
        cursor = await at.execute(
            "SELECT (SELECT count(*) FROM nimble_tenancy WHERE phase = 'ready'),"
            " (SELECT count(DISTINCT tenancy_id) FROM nimble_journal WHERE settled)"
        )
        if await cursor.fetchone() != (rows, rows):
            raise AssertionError("not every row is ready, once and journalled")


async def _slow_vendor(bench: Bench) -> None:
    rows = bench.some(10_000, 3_000)
    ideal = SLOTS / SLOW
    found = []
    with bench.databases.migrated() as url:
        for _ in range(bench.some(5, 1)):
            await ours.fill(url, rows)
            vendor = Counting(rows, exponential(SLOW))
            await ours.drain(url, vendor, concurrency=SLOTS)
            found.append(vendor.rate(until=0.95))
    bench.ratio("slow_vendor", found, [ideal] * len(found))


async def _two_workers(bench: Bench) -> None:
    rows = bench.some(20_000, 4_000)
    with bench.databases.migrated() as url:
        sides = {"two": _processes(url, rows, 2), "one": _processes(url, rows, 1)}
        found = await in_turns(bench.some(5, 1), sides)
    bench.ratio("two_workers", found["two"], found["one"])


def _processes(url: str, rows: int, count: int) -> Side:
    async def side() -> float:
        await ours.fill(url, rows)
        command = [sys.executable, "-m", "tests.benchmarks.ours", url, str(SLOTS), str(SHARED)]
        workers = [
            await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, env=os.environ
            )
            for _ in range(count)
        ]
        said = [await worker.communicate() for worker in workers]
        await _all_ready(url, rows)
        return _rate_of([begun for out, _ in said for begun in json.loads(out)])

    return side


def _rate_of(begun: Sequence[float]) -> float:
    """Give calls a second between the first quarter and the last: all processes are up by then."""
    ordered = sorted(begun)
    first, last = len(ordered) // 4, int(len(ordered) * 0.95)
    return (last - first) / (ordered[last] - ordered[first])


async def _backlog(bench: Bench) -> None:
    rows = bench.some(100_000, 20_000)
    found, start, end = [], [], []
    with bench.databases.migrated() as url:
        for _ in range(bench.some(3, 1)):
            await ours.fill(url, rows)
            vendor = Counting(rows)
            await ours.drain(url, vendor, concurrency=SLOTS)
            start.append(vendor.rate(0.05, 0.25))
            end.append(vendor.rate(0.75, 0.95))
            found.append(statistics.median(end))
    bench.ratio("backlog_drain", end, start)

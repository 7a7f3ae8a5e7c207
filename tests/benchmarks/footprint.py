"""What the package takes where nothing happens: imports, memory, and writes of an idle worker."""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import ExitStack

import psutil
import psycopg

from nimble_lifecycle.store.wakeups import CHANNEL
from tests.benchmarks import ours
from tests.benchmarks.harness import Bench, Side, in_turns

LIBRARIES = ("sqlalchemy", "sqlmodel", "tenacity", "psycopg", "alembic")
TIMED = """
import json, sys, time
begin = time.perf_counter()
{}
took = time.perf_counter() - begin
print(json.dumps([took, sorted(sys.modules)]))
"""
STARTED_IN = 5.0
"""Seconds after which a worker has done all it does at its start."""

COUNTED_IN = 12.0
"""Seconds after which PostgreSQL has counted what idle connections wrote."""


async def run(bench: Bench) -> None:
    """Measure all figures of what the package takes."""
    if bench.asks_for("import_time", "import_modules"):
        await _imports(bench)
    if bench.asks_for("worker_memory"):
        await _memory(bench)
    unless_quick = not bench.quick or bool(bench.wanted)  # PostgreSQL takes long to count
    if unless_quick and bench.asks_for("idle_writes"):
        await _idle(bench)


async def _imports(bench: Bench) -> None:
    sides = {
        "ours": _import("from nimble_lifecycle import Lifecycle"),
        "fastmcp": _import("from fastmcp import FastMCP"),
    }
    found = await in_turns(bench.some(9, 1), sides)
    bench.ratio("import_time", found["ours"], found["fastmcp"])
    _, modules = _imported("from nimble_lifecycle import Lifecycle")
    bench.value("import_modules", len(modules.intersection(LIBRARIES)))


def _import(line: str) -> Side:
    async def side() -> float:
        took, _ = await asyncio.to_thread(_imported, line)
        return took

    return side


def _imported(line: str) -> tuple[float, set[str]]:
    command = [sys.executable, "-c", TIMED.format(line)]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    took, modules = json.loads(said)
    return took, set(modules)


async def _memory(bench: Bench) -> None:
    large = bench.some(1_000_000, 100_000)
    with ExitStack() as stack:
        few, many = (stack.enter_context(bench.databases.migrated()) for _ in range(2))
        await ours.fill(few, 0, ready=1000)
        await ours.fill(many, 0, ready=large)
        # Both at once: what one has does not depend on the other.
        pairs = [
            await asyncio.gather(_resident(many), _resident(few)) for _ in range(bench.some(3, 1))
        ]
    bench.ratio("worker_memory", *zip(*pairs, strict=True))


async def _resident(url: str) -> float:
    async with ours.process(url) as process:
        await asyncio.sleep(STARTED_IN)
        return float(psutil.Process(process.pid).memory_info().rss)


async def _idle(bench: Bench) -> None:
    seconds = bench.some(60, 8)
    with bench.databases.migrated() as url:
        await ours.fill(url, 0, ready=bench.some(100_000, 20_000))
        async with ours.process(url):
            await asyncio.sleep(STARTED_IN + COUNTED_IN)
            with psycopg.connect(url, autocommit=True) as at:
                at.execute(f"LISTEN {CHANNEL}")
                before = _written(at)
                heard = await asyncio.to_thread(_notifications, at, seconds)
                bench.value("idle_writes", _written(at) - before + heard)


def _notifications(at: "psycopg.Connection[tuple[object, ...]]", seconds: float) -> int:
    end = time.monotonic() + seconds
    return sum(1 for _ in at.notifies(timeout=end - time.monotonic()))


def _written(at: "psycopg.Connection[tuple[object, ...]]") -> int:
    found = at.execute(
        "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables"
    ).fetchone()
    return int(str(found[0])) if found else 0

"""What a row costs: its bytes, its heartbeats, and the calls of hosts that change nothing."""

import time
from collections.abc import Callable
from uuid import uuid4

import psycopg

from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.store import IntentStore
from tests.benchmarks import ours
from tests.benchmarks.harness import Bench, Side, in_turns
from tests.benchmarks.peers.handlers import TABLE, UPSERT

SOON = 30.0
"""Seconds a statement gets."""
KIND = "acme"


async def run(bench: Bench) -> None:
    """Measure all figures of single rows."""
    if bench.asks_for("duplicate_rate", "duplicate_fsyncs"):
        await _duplicates(bench)
    if bench.asks_for("row_bytes", "hot_share", "wal_touch"):
        await _bytes(bench)


async def _duplicates(bench: Bench) -> None:
    count = bench.some(1000, 200)
    with bench.databases.migrated() as url, psycopg.connect(url, autocommit=True) as at:
        at.execute(TABLE.format(instant="timestamptz"))
        store = IntentStore(url)
        upsert = UPSERT.format("%s", "%s", "%s", "now()")

        def unchanged() -> None:
            store.ready(Workspace("one"), KIND, Reason.RESUME, {}, until=time.monotonic() + SOON)

        def plain() -> None:
            at.execute(upsert, (str(uuid4()), "one", "resume")).fetchone()

        sides = {"ours": _rate(count, unchanged), "plain": _rate(count, plain)}
        found = await in_turns(bench.rounds, sides)
        # Others may use the server meanwhile, and only add to it.
        flushes = min(_flushes(at, unchanged) for _ in range(bench.some(20, 10)))
        store.close()
    bench.ratio("duplicate_rate", found["ours"], found["plain"])
    bench.value("duplicate_fsyncs", flushes)


def _rate(count: int, work: Callable[[], None]) -> Side:
    async def side() -> float:
        begin = time.perf_counter()
        for _ in range(count):
            work()
        return count / (time.perf_counter() - begin)

    return side


def _flushes(at: "psycopg.Connection[tuple[object, ...]]", work: Callable[[], None]) -> int:
    """Count how often the log was flushed during a hundred calls."""
    before = _number(at, "SELECT wal_sync FROM pg_stat_wal")
    for _ in range(100):
        work()
    at.execute("SELECT pg_stat_force_next_flush()")
    return _number(at, "SELECT wal_sync FROM pg_stat_wal") - before


async def _bytes(bench: Bench) -> None:
    rows = bench.some(100_000, 20_000)
    with bench.databases.migrated() as url, psycopg.connect(url, autocommit=True) as at:
        await ours.fill(url, 0, ready=rows)
        size = _number(at, "SELECT pg_total_relation_size('nimble_tenancy')")
        bench.value("row_bytes", size / rows)
        store = IntentStore(url)

        def touch(number: int) -> None:
            workspace = Workspace(ours.ready_workspace(number))
            store.touch(workspace, KIND, until=time.monotonic() + SOON)

        touched = range(1, rows + 1, 10)
        for number in touched:
            touch(number)
        # The page is in the log by now; what others write meanwhile only adds.
        bench.value("wal_touch", min(_logged(at, lambda: touch(1)) for _ in range(50)))
        store.close()
        hot, every = _updates(at, len(touched))
        bench.value("hot_share", hot / every)


def _logged(at: "psycopg.Connection[tuple[object, ...]]", work: Callable[[], None]) -> int:
    before = _number(at, "SELECT pg_current_wal_insert_lsn() - '0/0'")
    work()
    return _number(at, "SELECT pg_current_wal_insert_lsn() - '0/0'") - before


def _updates(at: "psycopg.Connection[tuple[object, ...]]", least: int) -> tuple[int, int]:
    """Give how many updates touched no index, and how many there were, once they are counted."""
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        found = at.execute(
            "SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables"
            " WHERE relname = 'nimble_tenancy'"
        ).fetchone()
        if found is not None and int(str(found[1])) >= least:
            return int(str(found[0])), int(str(found[1]))
        time.sleep(0.1)
    raise AssertionError("the server did not count the updates")


def _number(at: "psycopg.Connection[tuple[object, ...]]", query: str) -> int:
    found = at.execute(query).fetchone()
    if found is None:
        raise AssertionError(f"no answer to {query}")
    return int(str(found[0]))

"""What grows with the fleet, and what does not: polls, claims and sweeps among idle rows."""

import asyncio
import statistics
import time
from contextlib import ExitStack

import psycopg

from nimble_lifecycle.protocol import Phase
from nimble_lifecycle.reconciler.cases import Wishes
from nimble_lifecycle.reconciler.limits import Limits, rules_of
from nimble_lifecycle.reconciler.sweep import Ports, Sweep
from nimble_lifecycle.store import Rules, Settlement, Threads, WorkStore
from nimble_lifecycle.store.deployment import Deployment
from nimble_lifecycle.store.sweeps import SweepStore
from tests.benchmarks import ours
from tests.benchmarks.counting import Counting
from tests.benchmarks.harness import Bench, Side, in_turns

SMALL = 10_000
DUE = 100
CHANGE = """
UPDATE nimble_tenancy
SET generation = generation + 1, generation_at = now(), params_hash = md5(random()::text)
WHERE workspace_id = ANY(SELECT 'ws_' || substr(md5('w' || n), 1, 12)
                         FROM generate_series(1, %s::int, %s::int) n)
"""


async def run(bench: Bench) -> None:
    """Measure all figures of growth."""
    if not bench.asks_for("empty_poll_growth", "claim_growth", "sweep_time", "sweep_page"):
        return
    large = bench.some(1_000_000, 100_000)
    with bench.databases.migrated() as few, bench.databases.migrated() as many:
        await ours.fill(few, 0, ready=SMALL)
        await ours.fill(many, 0, ready=large)
        if bench.asks_for("empty_poll_growth", "claim_growth"):
            await _claims(bench, few, many, large)
        if bench.asks_for("sweep_time", "sweep_page"):
            await _sweep(bench, many)


async def _claims(bench: Bench, few: str, many: str, large: int) -> None:
    with ExitStack() as stack:
        small, big = _opened(few, stack), _opened(many, stack)
        count = bench.some(200, 50)
        polls = {"small": _poll(small, count), "large": _poll(big, count)}
        found = await in_turns(bench.rounds, polls)
        bench.ratio("empty_poll_growth", found["large"], found["small"])
        claims = {"small": _claim(small, few, SMALL), "large": _claim(big, many, large)}
        found = await in_turns(bench.some(15, 5), claims)
        bench.ratio("claim_growth", found["large"], found["small"])


def _opened(url: str, stack: ExitStack) -> WorkStore:
    store = WorkStore(url)
    store.open()
    stack.callback(store.close)
    Deployment(store, None).enter()
    store.prepare(_rules())
    return store


def _rules() -> Rules:
    return rules_of(ours.Acme(Counting(0)), Limits(concurrency=DUE), "bench")


def _poll(store: WorkStore, count: int) -> Side:
    rules = _rules()

    async def side() -> float:
        took = []
        for _ in range(count):
            begin = time.perf_counter()
            store.claim(rules, DUE)
            took.append(time.perf_counter() - begin)
        return statistics.median(took)

    return side


def _claim(store: WorkStore, url: str, rows: int) -> Side:
    rules = _rules()

    async def side() -> float:
        with psycopg.connect(url, autocommit=True) as at:
            at.execute(CHANGE, [rows, rows // DUE])
        begin = time.perf_counter()
        claims = store.claim(rules, DUE)
        took = time.perf_counter() - begin
        if len(claims) != DUE:
            raise AssertionError(f"{len(claims)} rows were claimed, not {DUE}")
        store.settle(
            [
                Settlement(
                    id=claim.tenancy.id,
                    token=claim.token,
                    generation=claim.generation,
                    action=claim.step.value,
                    outcome="provisioned",
                    phase=Phase.READY,
                    external_id=claim.tenancy.external_id,
                    finished=True,
                )
                for claim in claims
            ],
            actor="bench",
        )
        return took

    return side


async def _sweep(bench: Bench, url: str) -> None:
    rounds: list[list[float]] = []
    store = WorkStore(url)
    store.open()
    threads = [Threads(1, "store"), Threads(1, "list")]
    marks = [0.0]

    def went_on(_what: str, _count: int) -> None:
        rounds[-1].append(time.perf_counter() - marks[-1])
        marks.append(time.perf_counter())

    ports = Ports(clock=store.clock, database=threads[0], threads=threads[1], progress=went_on)
    sweep = Sweep(ours.Acme(Counting(0)), SweepStore(store, actor="bench"), Wishes(), ports)

    async def swept() -> float:
        rounds.append([])
        begin = time.perf_counter()
        marks.append(begin)
        await sweep.run(dry_run=True)
        return time.perf_counter() - begin

    async def scanned() -> float:
        with psycopg.connect(url, autocommit=True) as at:
            at.execute("SET max_parallel_workers_per_gather = 0")
            begin = time.perf_counter()
            # A condition of its own, which no index has.
            await asyncio.to_thread(
                at.execute, "SELECT count(*) FROM nimble_tenancy WHERE last_seen_at < '2000-01-01'"
            )
            return time.perf_counter() - begin

    found = await in_turns(bench.some(3, 1), {"ours": swept, "scan": scanned})
    bench.ratio("sweep_time", found["ours"], found["scan"])
    counted = rounds[1:]  # as everywhere, the first is not
    bench.value("sweep_page", max(max(pages) for pages in counted) * 1000)
    for each in threads:
        each.close()
    store.close()

"""How soon the worker hears of a change: from the commit a host saw to the call of the vendor."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from procrastinate import App

from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.store import IntentStore
from tests.benchmarks import ours
from tests.benchmarks.counting import Counting
from tests.benchmarks.harness import Bench, Side, in_turns
from tests.benchmarks.peers import floor, listen, procrastinate

BETWEEN = 0.02
"""Seconds between two changes: each finds the worker idle."""
POLL = 0.05
"""Seconds between two looks at SQLite's `data_version`."""
LATE = 30.0


class Arrivals(Counting):
    """Calls that something waits for."""

    def __init__(self) -> None:
        super().__init__(0)
        self._came = asyncio.Event()

    async def call(self) -> None:
        """Be called once."""
        self.begun.append(time.monotonic())
        self._came.set()

    async def next(self) -> float:
        """Give when the next call began."""
        async with asyncio.timeout(LATE):
            await self._came.wait()
        self._came.clear()
        return self.begun[-1]


async def run(bench: Bench) -> None:
    """Measure all figures of wake-ups."""
    if bench.asks_for("wakeup_vs_procrastinate", "wakeup_p99_vs_procrastinate", "wakeup_vs_listen"):
        await _side_by_side(bench)
    if bench.asks_for("wakeup_cost"):
        await _cost(bench)
    if bench.asks_for("wakeup_sqlite", "wakeup_sqlite_cpu"):
        await _sqlite(bench)


async def _side_by_side(bench: Bench) -> None:
    count = bench.some(100, 20)
    took: dict[str, list[list[float]]] = {"ours": [], "procrastinate": [], "listen": []}
    async with AsyncExitStack() as stack:
        mine = stack.enter_context(bench.databases.migrated())
        theirs, plain = (stack.enter_context(bench.databases.empty()) for _ in range(2))
        await procrastinate.install(theirs)
        await floor.install(plain)
        workers = {
            "ours": _our_worker(mine),
            "procrastinate": _their_worker(theirs),
            "listen": _listener(plain),
        }
        sides: dict[str, Side] = {}
        for name, worker in workers.items():
            change, arrivals = await stack.enter_async_context(worker)
            sides[name] = _latencies(change, arrivals, count, took[name])
        found = await in_turns(bench.rounds, sides)
    bench.ratio("wakeup_vs_procrastinate", found["ours"], found["procrastinate"])
    high = {name: [_p99(one) for one in rounds[1:]] for name, rounds in took.items()}
    bench.ratio("wakeup_p99_vs_procrastinate", high["ours"], high["procrastinate"])
    bench.ratio("wakeup_vs_listen", found["ours"], found["listen"])


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


Change = Callable[[], Awaitable[object]]


def _latencies(change: Change, arrivals: Arrivals, count: int, took: list[list[float]]) -> Side:
    """Give the median time from a committed change to the call that it leads to."""

    async def side() -> float:
        found = []
        for _ in range(count):
            await change()
            committed = time.monotonic()
            found.append(max(0.0, await arrivals.next() - committed))
            await asyncio.sleep(BETWEEN)
        took.append(found)
        return statistics.median(found)

    return side


@asynccontextmanager
async def _our_worker(url: str) -> AsyncIterator[tuple[Change, Arrivals]]:
    arrivals = Arrivals()
    store = IntentStore(url)
    numbers = iter(range(10**9))

    def ready() -> None:
        workspace = Workspace(f"workspace_{next(numbers)}")
        store.ready(workspace, "acme", Reason.INSTALL, {}, until=time.monotonic() + LATE)

    async with ours.working(url, arrivals):
        yield lambda: asyncio.to_thread(ready), arrivals
    store.close()


@asynccontextmanager
async def _their_worker(url: str) -> AsyncIterator[tuple[Change, Arrivals]]:
    arrivals = Arrivals()
    async with procrastinate.opened(url, arrivals) as app:
        working = asyncio.create_task(_listen(app))
        await asyncio.sleep(1.0)  # it has no way to say that it listens
        yield lambda: app.tasks["provision"].defer_async(workspace_id="one"), arrivals
        working.cancel()
        await asyncio.wait({working})


@asynccontextmanager
async def _listener(url: str) -> AsyncIterator[tuple[Change, Arrivals]]:
    arrivals = Arrivals()
    async with listen.listening(url, arrivals) as change:
        yield change, arrivals


async def _listen(app: App) -> None:
    await app.run_worker_async(concurrency=20, install_signal_handlers=False)


async def _cost(bench: Bench) -> None:
    count = bench.some(1500, 300)
    with bench.databases.migrated() as url:
        loud, still = IntentStore(url), IntentStore(url)
        still._notifier.close()  # a notifier that is closed says nothing
        sides = {"with": _changes(loud, count), "without": _changes(still, count)}
        async with ours.process(url):  # as it is shipped, so that it takes no turn of the callers
            found = await in_turns(bench.rounds, sides)
        loud.close()
        still.close()
    bench.ratio("wakeup_cost", found["with"], found["without"])


def _changes(store: IntentStore, count: int) -> Side:
    """Give changes a second of eight callers at once."""
    numbers = iter(range(10**9))

    def change() -> None:
        for _ in range(count // 8):
            params = {"number": next(numbers)}
            workspace = Workspace(f"workspace_{params['number'] % 200}")
            store.ready(workspace, "other", Reason.RESUME, params, until=time.monotonic() + LATE)

    async def side() -> float:
        begin = time.perf_counter()
        await asyncio.gather(*(asyncio.to_thread(change) for _ in range(8)))
        return count // 8 * 8 / (time.perf_counter() - begin)

    return side


async def _sqlite(bench: Bench) -> None:
    took: list[list[float]] = []
    url = bench.databases.sqlite()
    async with _our_worker(url) as (change, arrivals):
        measure = _latencies(change, arrivals, bench.some(100, 20), took)
        medians = [await measure() for _ in range(bench.some(5, 2))]
        used, begin = time.process_time(), time.monotonic()
        await asyncio.sleep(bench.some(20, 3))
        share = (time.process_time() - used) / (time.monotonic() - begin)
    bench.ratio("wakeup_sqlite", medians, [POLL] * len(medians))
    bench.value("wakeup_sqlite_cpu", share * 100)

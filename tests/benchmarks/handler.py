"""What a host's call costs: `on_ready` beside a raw upsert, a hand-written one, and nothing at all.

Each measured call is the first of its workspace, the dearest one there is: it makes a row, notes
the call, and wakes the worker. `rate` figures are of workspaces that resume, as most calls are.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from fastmcp import Client, FastMCP

from nimble_lifecycle import Lifecycle, Reason, Tenancy
from tests.benchmarks.caller import Caller, current, workspace
from tests.benchmarks.harness import Bench, Side, in_turns, times
from tests.benchmarks.peers import handlers
from tests.clusters import free_port

Call = Callable[[], Awaitable[object]]
TOOL, ARGUMENTS = "workspace_ready", {"reason": "resume"}
UP_WITHIN = 30.0
"""Seconds a server gets to answer."""


def ours(url: str) -> FastMCP:
    """Make a server with our decorator, written as the README does it."""
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=url, workspace=workspace, deadline=60.0)

    @lifecycle.on_ready
    def workspace_ready(tenancy: Tenancy, reason: Reason) -> str:
        return f"Workspace: {tenancy.phase}."

    return mcp


async def run(bench: Bench) -> None:
    """Measure all figures of a host's call."""
    if bench.asks_for("handler_vs_raw", "handler_vs_hand", "handler_client_vs_hand"):
        await _one_caller(bench)
    if bench.asks_for("handler_sqlite_vs_raw", "handler_sqlite_vs_hand"):
        await _one_caller_sqlite(bench)
    if bench.asks_for("handler_rate8", "handler_rate64", "handler_tail8", "handler_tail8_sqlite"):
        await _many_callers(bench)
    if bench.asks_for("handler_http_vs_hand"):
        await _over_http(bench)


async def _one_caller(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(bench.databases.migrated())
        mine = ours(url)
        raw = await stack.enter_async_context(handlers.raw_asyncpg(url))
        hand = stack.enter_context(handlers.by_hand(url))
        clients = {
            name: Client(mcp) for name, mcp in (("ours", mine), ("raw", raw), ("hand", hand))
        }
        for client in clients.values():
            await stack.enter_async_context(client)
        count = bench.some(100, 30)
        sides: dict[str, Side] = {
            "ours": _median(count, _direct(mine)),
            "raw": _median(count, _direct(raw)),
            "hand": _median(count, _direct(hand)),
            "our client": _median(count, _through(clients["ours"])),
            "hand's client": _median(count, _through(clients["hand"])),
        }
        found = await in_turns(bench.rounds, sides)
    bench.ratio("handler_vs_raw", found["ours"], found["raw"])
    bench.ratio("handler_vs_hand", found["ours"], found["hand"])
    bench.ratio("handler_client_vs_hand", found["our client"], found["hand's client"])


async def _one_caller_sqlite(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        mine = ours(bench.databases.sqlite())
        raw = stack.enter_context(handlers.raw_sqlite(bench.databases.sqlite()))
        hand = stack.enter_context(handlers.by_hand(bench.databases.sqlite()))
        await stack.enter_async_context(Client(mine))
        count = bench.some(100, 30)
        servers = {"ours": mine, "raw": raw, "hand": hand}
        sides = {name: _median(count, _direct(mcp)) for name, mcp in servers.items()}
        found = await in_turns(bench.rounds, sides)
    bench.ratio("handler_sqlite_vs_raw", found["ours"], found["raw"])
    bench.ratio("handler_sqlite_vs_hand", found["ours"], found["hand"])


async def _many_callers(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(bench.databases.migrated())
        servers = {
            "ours": ours(url),
            "sqlite": ours(bench.databases.sqlite()),
            "nothing": handlers.nothing(),
        }
        clients = {name: Client(mcp) for name, mcp in servers.items()}
        for client in clients.values():
            await stack.enter_async_context(client)
        calls = bench.some(2000, 240)
        for callers in (8, 64):
            sides = {
                name: _rate(callers, calls, _through(clients[name])) for name in ("ours", "nothing")
            }
            found = await in_turns(bench.rounds, sides)
            bench.ratio(f"handler_rate{callers}", found["ours"], found["nothing"])
        tails = {name: _tail(8, calls // 2, _through(clients[name])) for name in ("ours", "sqlite")}
        found = await in_turns(bench.rounds, tails)
    bench.value("handler_tail8", *found["ours"])
    bench.value("handler_tail8_sqlite", *found["sqlite"])


async def _over_http(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(bench.databases.migrated())
        hand = stack.enter_context(handlers.by_hand(url))
        current.set(Caller())
        sides: dict[str, Side] = {}
        for name, mcp in (("ours", ours(url)), ("hand", hand)):
            client = await stack.enter_async_context(_served(mcp))
            sides[name] = _median(bench.some(100, 30), _through(client), who=current.get())
        found = await in_turns(bench.rounds, sides)
    bench.ratio("handler_http_vs_hand", found["ours"], found["hand"])


@asynccontextmanager
async def _served(mcp: FastMCP) -> AsyncIterator[Client]:
    port = free_port()
    serving = asyncio.create_task(
        mcp.run_http_async(port=port, show_banner=False, log_level="critical")
    )
    try:
        client = Client(f"http://127.0.0.1:{port}/mcp")
        async with asyncio.timeout(UP_WITHIN):
            while not await _answers(client):
                await asyncio.sleep(0.1)
        async with client:
            yield client
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def _answers(client: Client) -> bool:
    try:
        async with client:
            return True
    except Exception:  # not up yet
        return False


def _direct(mcp: FastMCP) -> Call:
    return lambda: mcp.call_tool(TOOL, ARGUMENTS)


def _through(client: Client) -> Call:
    return lambda: client.call_tool(TOOL, ARGUMENTS)


def _median(count: int, call: Call, *, who: Caller | None = None) -> Side:
    """Give the median of so many calls, each the first of its workspace."""
    caller = who or Caller()

    async def one(_number: int) -> None:
        caller.install()
        await call()

    async def side() -> float:
        current.set(caller)
        return statistics.median(await times(count, one))

    return side


def _rate(callers: int, calls: int, call: Call) -> Side:
    """Give calls a second by so many callers, each of workspaces that were there before."""
    hosts = [Caller() for _ in range(callers)]

    async def side() -> float:
        begin = time.perf_counter()
        await asyncio.gather(*(_resume(host, calls // callers, call) for host in hosts))
        return calls // callers * callers / (time.perf_counter() - begin)

    return side


async def _resume(host: Caller, calls: int, call: Call) -> list[float]:
    current.set(host)

    async def one(_number: int) -> None:
        host.resume(among=10)
        await call()

    return await times(calls, one)


def _tail(callers: int, calls: int, call: Call) -> Side:
    """Give the p99 of calls that each make a row, by their median, with so many callers at once."""
    hosts = [Caller() for _ in range(callers)]

    async def side() -> float:
        took = await asyncio.gather(*(_install(host, calls // callers, call) for host in hosts))
        every = sorted(each for one in took for each in one)
        return every[int(len(every) * 0.99)] / statistics.median(every)

    return side


async def _install(host: Caller, calls: int, call: Call) -> list[float]:
    current.set(host)

    async def one(_number: int) -> None:
        host.install()
        await call()

    return await times(calls, one)

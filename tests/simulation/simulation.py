"""One seed: a world with hosts, servers, workers and a vendor, and what became of it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import StringIO
from random import Random
from typing import Any
from uuid import UUID

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from pydantic import BaseModel

from nimble_lifecycle import Lifecycle, Workspace
from nimble_lifecycle.core.service import Service
from nimble_lifecycle.errors import StoreError, SweepBusy
from nimble_lifecycle.protocol import Event
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.cases import HOUR, OLD_ENOUGH, Wishes
from nimble_lifecycle.reconciler.findings import Report
from nimble_lifecycle.reconciler.limits import Limits
from nimble_lifecycle.reconciler.sweep import Ports, Sweep
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.reconciler.worker import Worker
from nimble_lifecycle.store import IntentStore, Threads
from nimble_lifecycle.store.sweeps import SweepStore
from tests.simulation.loop import Loop, Process, StuckError
from tests.simulation.operator import Operator
from tests.simulation.oracle import CALL_LIMIT, MAX_CREATES, HostCall, Oracle
from tests.simulation.scenario import Scenario, drawn
from tests.simulation.site import KIND, Site
from tests.simulation.stores import Stores
from tests.simulation.threads import simulated_threads
from tests.simulation.troubles import Troubles
from tests.simulation.wire import Wire

CALM = 1600.0
"""Seconds the world goes on, healed, between two looks of a fresh worker."""

MOST_ROUNDS = 40

LOOKED_AHEAD = 600.0
"""Seconds until a row is due for which workers are woken when it is, to save them idle looks."""

SWEPT = 0.1
"""How many worlds are swept in which a sweep has nothing to find."""


class Plan(BaseModel):
    """Params of a workspace."""

    plan: str


calling: ContextVar[tuple[str, str]] = ContextVar("calling")
"""Workspace and plan of the call a server works on."""


@dataclass
class Verdict:
    """What a seed showed."""

    seed: int
    scenario: Scenario
    wrong: list[str]
    trace: list[str]
    figures: "Counter[str]"
    steps: dict[str, int]
    """How many steps each process took, by its name."""

    @property
    def replay(self) -> str:
        """The command that shows this seed again."""
        return f"python -m tests.simulation --seed {self.seed}"


class SimulatedLifecycle(Lifecycle):
    """The real server half over a store and threads of the simulation."""

    def __init__(self, mcp: FastMCP, store: IntentStore, world: "World", process: Process) -> None:
        super().__init__(
            mcp,
            deadline=CALL_LIMIT,
            workspace=lambda _context: Workspace(calling.get()[0]),
            params=lambda _workspace: Plan(plan=calling.get()[1]),
        )
        self._store = store
        self._world = world
        self._process = process

    def _new_service(self) -> Service:
        def threads(slots: int, name: str) -> Threads:
            return simulated_threads(self._world.loop, self._process, slots, name)

        return Service(self._store, self._author, threads)


@dataclass
class Server:
    """A process with the server half."""

    process: Process
    mcp: FastMCP
    serving: bool = False


@dataclass
class World:
    """Everything there is in one seed."""

    seed: int
    stores: Stores
    scenario: Scenario | None = None
    doom: tuple[str, int] | None = None
    """A process that dies, and after how many steps."""
    processes: list[Process] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)
    workers: list[tuple[Process, Worker]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        s = self.scenario = self.scenario or drawn(self.chance)
        self.loop = Loop(self.chance)
        self.troubles = Troubles(
            self.loop,
            self.chance,
            s.traits.time_limit,
            database_faults=s.database_faults,
            answer_time=s.answer_time,
            vendor_faults=s.vendor_faults,
            after_the_work=s.after_the_work,
            laggards=s.laggards,
            permanent=s.permanent,
            untrue=s.untrue,
            ambushes=s.ambushes,
            strikes=s.strikes,
            database_windows=s.database_windows,
            vendor_windows=s.vendor_windows,
        )
        self.oracle = Oracle(self.loop, s, self.stores, self.troubles.figures)
        self.site = Site(self.loop, s.traits, self.troubles, self.oracle)
        self.oracle.site = self.site
        self.over = False

    # -- the course of things --------------------------------------------------------------------

    async def live(self) -> None:
        """Let hosts talk and everything fail, then heal, and judge what is left."""
        s = self.scenario
        for number in range(s.foreign_names):
            self.site.add_foreign(f"ws-{number}")
        for _ in range(s.hands):
            at = self.chance.uniform(0.0, s.events * s.pace)
            self.loop.later(at, self.site.remove_one_by_hand)
        keepers = [self._keep_server(number) for number in range(s.servers)]
        keepers += [self._keep_worker(number) for number in range(s.workers)]
        tasks = [asyncio.ensure_future(keeper) for keeper in keepers]
        await asyncio.sleep(1.0)
        hosts = [self._host(f"ws-{number}") for number in range(s.workspaces)]
        await asyncio.gather(self._meddle(), self._sweep_now_and_then(), *hosts)
        await asyncio.sleep(self.chance.expovariate(1 / s.pace))
        self.over = True
        self.troubles.heal()
        for task in tasks:
            task.cancel()
        for server in self.servers:
            server.process.kill()
        for process, _ in self.workers:
            process.kill()
        operator = self._start_operator("last operator")
        await self._settle(operator)
        beyond_rows = self.site.removed_by_hand or self.site.overtaken
        if s.traits.lists and (beyond_rows or self.chance.random() < SWEPT):
            await self._sweep()
            await self._settle(operator)
        self.oracle.judge()

    async def _settle(self, operator: Operator) -> None:
        """Let fresh workers work, and a person do what is asked for, until nothing changes."""
        before: object = None
        for number in range(MOST_ROUNDS):
            await asyncio.sleep(CALM if number else self.scenario.lease)
            process = self._start_worker(f"last-{number}", until_idle=True)
            await asyncio.wait({process.ended}, timeout=CALM)
            process.kill()
            asked = operator.process.start(operator.settle())
            # Not the token: a look alone raises it.
            now = [{**row, "lease_token": 0} for row in self.oracle.rows()]
            if await asked == 0 and now == before:
                return
            before = now
        self.oracle.object("not settled", "rows still change")

    async def _sweep(self) -> None:
        """Look at the vendor's own list, as often and as late as acting on it asks for."""
        await asyncio.sleep(OLD_ENOUGH)
        for number in range(6):
            process = self._process(f"last-sweep-{number}")
            process.rough = number < 3
            report = await self._sweep_once(process)
            if report is not None:
                self.oracle.list_not_believed |= bool(report.alerts)
            elif not process.rough:
                self.oracle.object("not swept", process.name)
            await asyncio.sleep(2 * HOUR)

    async def _sweep_now_and_then(self) -> None:
        for number in range(self.scenario.sweeps):
            await asyncio.sleep(self.chance.expovariate(1 / self.scenario.pace))
            await self._sweep_once(self._process(f"sweep-{number}"))

    async def _sweep_once(self, process: Process) -> Report | None:
        """Sweep as a process does; None where it fails or dies."""
        store = self.stores.work()
        self._connect(store, process)
        threads = simulated_threads(self.loop, process, 4, "sweep")
        ports = Ports(clock=store.clock, database=threads, threads=threads)
        wishes = Wishes(release_orphans=True)
        sweeper = SweepStore(store, actor=process.name)
        task = process.start(Sweep(self._adapter(process), sweeper, wishes, ports).run())
        await asyncio.wait({process.ended, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return None
        error = task.exception()
        if error is None:
            report = task.result()
            self.troubles.figures["sweeps"] += 1
            self.troubles.note(process.name, f"{report.summary}, {'; '.join(report.alerts)}")
            return report
        if not isinstance(error, (StoreError, SweepBusy)):
            self.oracle.object("a sweep raised", repr(error))
        self.troubles.figures["sweeps that failed"] += 1
        self.troubles.note(process.name, f"fails with {type(error).__name__}")
        return None

    # -- processes -------------------------------------------------------------------------------

    def _process(self, name: str) -> Process:
        process = Process(self.loop, name)
        process.at_death.append(lambda: self.troubles.note(name, "dies"))
        self.processes.append(process)
        if self.over:
            return process
        if self.doom is not None and self.doom[0] == name:
            process.dies_after = self.doom[1]
        chance, s = self.chance, self.scenario
        if chance.random() < s.crashes:
            process.dies_after = int(10 ** chance.uniform(0.5, 3.2))
            self.troubles.figures["crashes planned"] += 1
        if chance.random() < s.suspends:
            begin = chance.expovariate(1 / s.pace)
            self.loop.later(begin, self.troubles.suspend, process)
        return process

    def _connect(self, store: Any, process: Process) -> None:
        store.clock.loop = self.loop
        store.clock.base = self.chance.uniform(0.0, 1000.0)
        store.wire = Wire(self.loop, process, self.troubles, heard=self._heard)

    def _adapter(self, process: Process) -> Vendor:
        vendor = self.site.adapter()
        vendor.process = process  # type: ignore[attr-defined]
        return vendor

    def _start_operator(self, name: str) -> Operator:
        process = self._process(name)
        store = self.stores.operator()
        self._connect(store, process)
        return Operator(self.loop, process, store, self.site, self.oracle)

    async def _meddle(self) -> None:
        for number in range(self.scenario.meddling):
            await asyncio.sleep(self.chance.expovariate(1 / self.scenario.pace))
            operator = self._start_operator(f"operator-{number}")
            task = operator.process.start(operator.meddle())
            await asyncio.wait({operator.process.ended, task}, timeout=60.0)

    async def _keep_worker(self, number: int) -> None:
        life = 0
        while True:
            process = self._start_worker(f"worker-{number}.{life}")
            if self.chance.random() < self.scenario.crashes / 2:
                self._terminate(process)
            await asyncio.wait({process.ended})
            self.troubles.figures["worker deaths"] += 1
            await asyncio.sleep(self.chance.choice((0.5, 5.0, 2 * self.scenario.lease)))
            life += 1

    def _terminate(self, process: Process) -> None:
        """SIGTERM at some time; the process ends a little after its drain, whatever it does."""
        worker = self.workers[-1][1]
        at = self.chance.expovariate(1 / self.scenario.pace)
        self.loop.call_later(at, worker.stop, context=process.context.copy())
        self.loop.later(at + 13.0, process.kill)

    def _start_worker(self, name: str, *, until_idle: bool = False) -> Process:
        s, process = self.scenario, self._process(name)
        store = self.stores.work()
        self._connect(store, process)
        vendor = self._adapter(process)
        limits = Limits(
            concurrency=s.concurrency,
            poll=s.poll,
            grace=s.grace,
            drain=10.0,
            max_creates=MAX_CREATES,
            release_share=0.0,
            release_least=s.release_least,
            backoff=Backoff(1.0, s.longest_backoff, self.chance.uniform),
        )

        def threads(slots: int, sort: str) -> Threads:
            return simulated_threads(self.loop, process, slots, sort)

        async def work() -> None:
            worker = Worker(
                vendor,
                store,
                limits,
                database=threads(4, "store"),
                threads=threads(s.concurrency, "vendor"),
                owner=name,
                chance=self.chance,
            )
            self.workers.append((process, worker))
            try:
                await worker.run(until_idle=until_idle)
            finally:
                self.loop.later(0.0, process.kill)

        self.troubles.note(name, "starts")
        process.start(work())
        return process

    async def _keep_server(self, number: int) -> None:
        life = 0
        while True:
            server = self._start_server(f"server-{number}.{life}")
            self.servers.append(server)
            await asyncio.wait({server.process.ended})
            self.servers.remove(server)
            self.troubles.figures["server deaths"] += 1
            # Longer than a call: what a dead server had sent has arrived by then, or never will.
            await asyncio.sleep(CALL_LIMIT + self.chance.expovariate(0.2))
            life += 1

    def _start_server(self, name: str) -> Server:
        process = self._process(name)
        store = self.stores.intent()
        self._connect(store, process)
        store.next_id = lambda: UUID(int=self.chance.getrandbits(128), version=4)
        store.wire.heard = self._wake_workers
        mcp = FastMCP(KIND)
        lifecycle = SimulatedLifecycle(mcp, store, self, process)

        @lifecycle.on_ready
        async def ready() -> str:
            return "ready"

        @lifecycle.on_removing
        async def removing() -> str:
            return "removing"

        @mcp.tool
        async def use() -> str:
            return "used"

        server = Server(process, mcp)

        async def serve() -> None:
            async with lifecycle.lifespan():
                server.serving = True
                await asyncio.Event().wait()

        self.troubles.note(name, "starts")
        process.start(serve())
        return server

    def _heard(self) -> None:
        """Look at what was written; who looks often finds what is due soon after it is."""
        self.oracle.wrote()
        for due_at in self.oracle.newly_due():
            after = (due_at - self.loop.instant).total_seconds()
            if 0.0 < after < LOOKED_AHEAD:
                self.loop.later(after + 0.001, self._hint)

    def _wake_workers(self) -> None:
        self.oracle.wrote()
        self._hint()

    def _hint(self) -> None:
        for process, worker in self.workers:
            if process.alive and self.chance.random() < 0.7:
                delay = self.chance.expovariate(100.0)
                self.loop.call_later(delay, worker.wake, context=process.context.copy())

    # -- hosts -----------------------------------------------------------------------------------

    async def _host(self, workspace_id: str) -> None:
        chance, s = self.chance, self.scenario
        for _ in range(s.events):
            await asyncio.sleep(chance.expovariate(1 / s.pace))
            match chance.choice(
                ("ready", "ready", "removing", "removing", "use", "install", "both")
            ):
                case "ready":
                    await self._call(workspace_id, Event.READY)
                case "removing":
                    await self._call(workspace_id, Event.REMOVING)
                case "use":
                    await self._send(workspace_id, "use", {})
                case "install":  # a fresh install delivers two, in a racy order
                    await asyncio.gather(
                        self._call(workspace_id, Event.READY), self._call(workspace_id, Event.READY)
                    )
                case "both":
                    await asyncio.gather(
                        self._call(workspace_id, Event.READY),
                        self._call(workspace_id, Event.REMOVING),
                    )

    async def _call(self, workspace_id: str, event: Event) -> None:
        plan = self.chance.choice(("small", "large")) if event is Event.READY else ""
        call = HostCall(workspace_id, event, plan, self.loop.time())
        self.oracle.calls[workspace_id].append(call)
        call.recorded = await self._send(workspace_id, event.value, {}, plan)
        call.ended = self.loop.time()
        if not call.recorded:
            call.ended = max(call.ended, call.sent + CALL_LIMIT)
        words = "recorded" if call.recorded else "not answered"
        self.troubles.note("host", f"{event} {workspace_id} {plan}: {words}")

    async def _send(
        self, workspace_id: str, tool: str, arguments: dict[str, str], plan: str = ""
    ) -> bool:
        serving = [s for s in self.servers if s.serving and s.process.alive]
        if not serving:
            return False
        server = self.chance.choice(serving)
        answer: asyncio.Future[bool] = self.loop.create_future()

        async def serve() -> None:
            calling.set((workspace_id, plan))
            try:
                await server.mcp.call_tool(tool, arguments)
            except ToolError:
                _set(answer, value=False)
            except Exception as error:  # no host may ever see one
                if server.process.alive:
                    self.oracle.object("raised at a host", repr(error))
            else:
                _set(answer, value=True)

        task = server.process.start(serve())
        await asyncio.wait({answer}, timeout=5.0)
        if answer.done():
            return answer.result()
        task.cancel()
        return False


def _set(future: "asyncio.Future[bool]", *, value: bool) -> None:
    if not future.done():
        future.set_result(value)


def simulate(
    seed: int,
    stores: Stores,
    scenario: Scenario | None = None,
    doom: tuple[str, int] | None = None,
) -> Verdict:
    """Live through one seed."""
    stores.reset()
    world = World(seed, stores, scenario, doom)
    with _quiet():
        try:
            world.loop.run_until_complete(world.live())
        except StuckError as error:
            world.oracle.object("stuck", str(error))
        finally:
            for process in world.processes:
                process.kill()
            world.loop.close()
    wrong = world.oracle.wrong + world.loop.errors
    steps = {process.name: process.steps for process in world.processes}
    troubles = world.troubles
    return Verdict(seed, world.scenario, wrong, troubles.trace, troubles.figures, steps)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the halves talk to nobody: what matters is in the trace."""
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)

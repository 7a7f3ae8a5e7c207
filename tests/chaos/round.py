"""One round of chaos: a fleet is driven while everything around it goes wrong, and then judged."""

import heapq
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from chaos.disks import Disk
from chaos.scene import Host, Scene, Worker, inherited, until
from chaos.schedule import Act, schedule
from chaos.trouble import Crew, End, Trouble
from chaos.verdict import Verdict
from chaos.wire import Server, Wire
from clusters import Cluster, free_port

LANES = 16
"""Threads that make host calls; the calls for one workspace all go through the same one."""

KEYED = ("Acme", "Keyed")
"""Adapters for a vendor that remembers keys."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round is made of; the same plan gives the same schedule."""

    seed: str
    seconds: float
    database: str
    adapter: str
    workers: int

    def acts(self) -> list[Act]:
        postgresql = self.database == "postgresql"
        return schedule(self.seed, self.seconds, postgresql=postgresql, keyed=self.adapter in KEYED)


@dataclass
class Figures:
    """What a round was, and how it ended."""

    tenancies: int = 0
    resources_made: int = 0
    calls: int = 0
    calls_failed: int = 0
    faults: list[str] = field(default_factory=list)
    retried: int = 0
    """Rows that three workers in a row had when they were killed, and a person let go on."""
    taken_up: tuple[float, float] | None = None
    """Seconds from a worker's death to the first, and the last, of its rows being worked on."""
    wrong: Verdict = field(default_factory=dict)


def play(plan: Plan, url: str, at: "Cluster | Disk", folder: Path) -> Figures:
    """Play a round over a migrated database, which is, or lies, at `at`."""
    with ExitStack() as stack:
        scene = Scene(url, folder, stack, ACME_PROVISIONING_SECONDS="0.1")
        trouble = Trouble(scene, stack, at, keyed=plan.adapter in KEYED)
        played = Round(plan, scene, trouble, stack)
        played.measure()
        played.drive(plan.acts())
        played.judge()
        return played.figures


class Round:
    """A round that is being played."""

    def __init__(self, plan: Plan, scene: Scene, trouble: Trouble, stack: ExitStack) -> None:
        self.figures = Figures()
        self._plan = plan
        self._scene = scene
        self._trouble = trouble
        self._ends: list[tuple[float, int, End]] = []
        self._numbers = count()
        self._lanes = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(LANES)]
        environment = {**inherited(), **trouble.for_all}
        self._server = Server(free_port(), scene.folder, environment)
        stack.callback(self._server.kill)
        scene.host = Host(Wire(self._server))
        self._crew = Crew(self._worker, plan.workers)

    def _worker(self) -> Worker:
        around = {**self._trouble.for_all, **self._trouble.for_workers}
        return self._scene.worker(adapter=self._plan.adapter, **around)

    def measure(self) -> None:
        """Kill a worker with rows in its hands, and see when others take them up."""
        scene, victim = self._scene, self._crew.chosen(0.0)
        scene.acme.misbehave("slow", seconds=0.3)
        until("the server answers", lambda: scene.host.ready("first"))
        scene.host.ready(*(f"measured-{number}" for number in range(10)))
        until("the worker has rows in its hands", lambda: scene.leased(victim.owner))
        victim.kill()
        left = scene.leased(victim.owner)
        self._crew.keep()
        if left:
            self.figures.taken_up = scene.taken_up(left)
        scene.acme.behave()

    def drive(self, acts: list[Act]) -> None:
        """Do everything on the schedule when its time has come, and end it when it has lasted."""
        began = time.monotonic()
        for act in acts:
            self._end_what_is_over(began + act.at)
            self._sleep(began + act.at)
            if act.workspace:
                lane = self._lanes[sum(act.workspace.encode()) % LANES]
                lane.submit(self._call, act)
            else:
                self.figures.faults.append(act.what)
                end = self._trouble.begin(act, self._crew, self._server)
                over = time.monotonic() + act.lasting
                heapq.heappush(self._ends, (over, next(self._numbers), end))
        self._end_what_is_over(float("inf"))
        for lane in self._lanes:
            lane.shutdown()

    def judge(self) -> None:
        """Let everything settle, and hold the world against the promise."""
        scene, figures = self._scene, self.figures
        self._trouble.end()
        scene.host.insist()
        with suppress(AssertionError):  # what is wrong then is told below
            scene.settled()
        scene.finish(adapter=self._plan.adapter, workers=2)
        figures.wrong = scene.verdict()
        figures.retried = scene.retried
        figures.tenancies = len(scene.rows())
        figures.resources_made = scene.books.made()

    def _end_what_is_over(self, moment: float) -> None:
        while self._ends and self._ends[0][0] <= moment:
            over, _, end = heapq.heappop(self._ends)
            self._sleep(over)
            end()

    def _sleep(self, moment: float) -> None:
        while (left := moment - time.monotonic()) > 0:
            self._crew.keep()
            time.sleep(min(left, 0.1))

    def _call(self, act: Act) -> None:
        host = self._scene.host
        self.figures.calls += 1
        if act.what == "removing":
            done = host.removing(act.workspace)
        elif act.what == "changed":
            done = host.ready(act.workspace, from_name=f"{act.workspace} {act.chance:.6f}")
        else:
            wish = host.wishes.get(act.workspace)
            done = host.ready(act.workspace, from_name=wish.from_name if wish else "")
        self.figures.calls_failed += not done

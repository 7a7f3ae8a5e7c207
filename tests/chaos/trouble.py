"""Everything that goes wrong in a chaos run: each fault begins with a call that gives its end."""

import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TypeAlias

import psycopg
from chaos.disks import Disk
from chaos.processes.jumping import Jumps
from chaos.proxy import Proxy
from chaos.scene import Scene, Worker, port_of, through, until
from chaos.schedule import Act
from chaos.wire import Server
from clusters import Cluster

from nimble_lifecycle.errors import StoreError

HOUR = 3600.0

TERMINATE = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)

End: TypeAlias = Callable[[], object]


def nothing() -> None:
    """End what is over by itself."""


class Crew:
    """Workers; one that has ended is replaced by another."""

    def __init__(self, start: Callable[[], Worker], size: int) -> None:
        self._start = start
        self._workers = [start() for _ in range(size)]

    def keep(self) -> None:
        self._workers = [each if each.runs else self._start() for each in self._workers]

    def chosen(self, chance: float) -> Worker:
        return self._workers[int(chance * len(self._workers))]


class Trouble:
    """What is around the processes of one run. `at` is where the database is, or lies."""

    def __init__(
        self, scene: Scene, stack: ExitStack, at: "Cluster | Disk", *, keyed: bool
    ) -> None:
        self._scene = scene
        self._at = at
        self._keyed = keyed
        self._stopped = 0
        self._networks = {"vendor": stack.enter_context(Proxy(port_of(scene.acme.url)))}
        self._jumps = Jumps(scene.store) if keyed else None
        self.for_workers = {"ACME_URL": through(scene.acme.url, self._networks["vendor"].port)}
        self.for_all = {"NIMBLE_DATABASE_URL": scene.url}
        if isinstance(at, Cluster):
            network = self._networks["database"] = stack.enter_context(Proxy(port_of(at.url)))
            self.for_all["NIMBLE_DATABASE_URL"] = through(scene.url, network.port)
        else:
            self.for_all |= at.environment
        if keyed:
            self.for_all["CHAOS_CLOCK"] = "jumping"

    def begin(self, act: Act, crew: Crew, server: Server) -> End:
        """Let a fault begin."""
        where, _, how = act.what.partition(": ")
        if where == "vendor":
            self._scene.acme.misbehave(how, seconds=round(act.chance, 2) + 0.1)
            return self._scene.acme.behave
        if how:
            return self._network(where.partition("'")[0], how, act)
        if where == "server killed":
            return server.restart
        if where.startswith("worker"):
            return self._worker(where, crew.chosen(act.chance))
        return self._database(where, act)

    def end(self) -> None:
        """End what may have been left over, and let the time come that a wrong clock put off."""
        self._scene.acme.behave()
        for network in self._networks.values():
            network.behave()
        if self._jumps is not None:
            until("the clock is put", lambda: self._put(HOUR))

    def _worker(self, what: str, worker: Worker) -> End:
        signals = {
            "worker killed": signal.SIGKILL,
            "worker told to stop": signal.SIGTERM,
            "worker suspended": signal.SIGSTOP,
        }
        worker.send(signals[what])
        return (lambda: worker.send(signal.SIGCONT)) if "suspended" in what else nothing

    def _network(self, where: str, how: str, act: Act) -> End:
        network = self._networks[where]
        match how:
            case "delay":
                network.delay(0.02 + 0.1 * act.chance)
            case "cut_answers" | "cut_requests":
                getattr(network, how)(1 + int(4 * act.chance))
            case _:
                getattr(network, how)()
        if how == "freeze" and where == "vendor" and not self._keyed:
            return lambda: (network.drop(), network.behave())  # what it held back is lost
        return network.behave

    def _database(self, what: str, act: Act) -> End:
        at = self._at
        match what:
            case "connections terminated":
                with suppress(psycopg.OperationalError), psycopg.connect(self._scene.url) as admin:
                    admin.execute(TERMINATE)
                return nothing
            case "database stopped" if isinstance(at, Cluster):
                self._stopped += 1
                if self._stopped == 1:
                    at.stop()
                return self._started
            case "disk full" if not isinstance(at, Cluster):
                at.fill()
                return at.free
            case "clock put" if self._jumps is not None:
                self._put(HOUR if act.chance < 0.5 else -HOUR)
                return lambda: self._put(0.0)
        raise AssertionError(f"no such fault here: {what}")

    def _started(self) -> None:
        self._stopped -= 1
        if self._stopped == 0 and isinstance(self._at, Cluster):
            self._at.start()

    def _put(self, seconds: float) -> bool:
        """Move the clock, unless the database is away; say whether it was there."""
        assert self._jumps is not None
        try:
            self._jumps.to(seconds)
        except StoreError:
            return False
        return True

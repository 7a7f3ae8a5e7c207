"""Real processes around one database: a host's side, workers that can be killed, Acme's service.

Nothing here knows how the worker works: it starts the command line, calls as a host does, sends
signals, and reads rows and Acme's books.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import sqlalchemy as sa
from acme_process import ADMIN_TOKEN, serving
from chaos.books import Books
from chaos.processes.pages import hold_to
from chaos.verdict import Verdict, Wish, verdict
from waiting import PATIENCE

from nimble_lifecycle.errors import StoreError, VerbRefused
from nimble_lifecycle.protocol import Event, Reason, Why, Workspace
from nimble_lifecycle.store import IntentStore, WorkStore
from nimble_lifecycle.store.deployment import Deployment
from nimble_lifecycle.store.models import deployment, journal, tenancy
from nimble_lifecycle.store.operators import By, OperatorStore
from nimble_lifecycle.store.ports import instant_of

KIND = "acme-outreach"
PROCESSES = Path(__file__).with_name("processes")
EXAMPLE = PROCESSES.parents[2] / "examples" / "acme_outreach"

TIME_LIMIT = 0.5
LEASE = 3 * TIME_LIMIT
"""Seconds; what the adapters of `processes/adapters.py` have."""

POLL = 0.1
GRACE = 0.3
LIMITS = {
    "NIMBLE_CONCURRENCY": "5",
    "NIMBLE_POLL": str(POLL),
    "NIMBLE_GRACE": str(GRACE),
    "NIMBLE_DRAIN": "5",
    "NIMBLE_BACKOFF_FIRST": "0.05",
    "NIMBLE_BACKOFF_LONGEST": "0.5",
    # A slow machine must not spend them; that they are bounded is tested elsewhere.
    "NIMBLE_MAX_CREATES": "50",
}
"""What every worker here runs with."""


class Host:
    """Calls as a host does, one after another for each workspace, and remembers the answers."""

    def __init__(self, say: Callable[[str, Event, str], None]) -> None:
        self.wishes: dict[str, Wish] = {}
        """What each workspace asked for last."""
        self.unsure: set[str] = set()
        """Workspaces whose last call failed: it may or may not have been recorded."""
        self._say = say

    def ready(self, *names: str, from_name: str = "") -> bool:
        answered = [self._call(name, Wish(True, from_name)) for name in names]
        return all(answered)

    def removing(self, *names: str) -> bool:
        answered = [self._call(name, Wish(False)) for name in names]
        return all(answered)

    def insist(self) -> None:
        """Repeat failed calls, as hosts do, until they are answered."""
        for name in sorted(self.unsure):
            until(f"a call for {name} is answered", lambda name=name: self._repeat(name))

    def _repeat(self, name: str) -> bool:
        return self._call(name, self.wishes[name])

    def _call(self, name: str, wish: Wish) -> bool:
        self.wishes[name] = wish
        self.unsure.add(name)
        try:
            self._say(name, Event.READY if wish.wanted else Event.REMOVING, wish.from_name)
        except CallFailedError:
            return False
        self.unsure.discard(name)
        return True


class CallFailedError(Exception):
    """A host call that was answered with an error, or not at all."""


def said_to(store: IntentStore, limit: float = PATIENCE) -> Callable[[str, Event, str], None]:
    """Give a host's voice that speaks to the server half's store, without the wire between.

    A server gives a call three seconds; a test does so only where the call is to fail.
    """

    def say(name: str, event: Event, from_name: str) -> None:
        end = time.monotonic() + limit
        try:
            if event is Event.READY:
                params = {"plan": "starter", "from_name": from_name}
                store.ready(Workspace(name), KIND, Reason.RESUME, params, until=end)
            else:
                store.removing(Workspace(name), KIND, until=end)
        except StoreError as error:
            raise CallFailedError from error

    return say


class Worker:
    """A worker process."""

    def __init__(self, command: list[str], environment: Mapping[str, str], files: Path) -> None:
        self._owner = files.with_suffix(".owner")
        self.log = files.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=PROCESSES,
                env={**environment, "CHAOS_OWNER": str(self._owner)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def owner(self) -> str:
        """Its name on leases; empty before its first claim."""
        return self._owner.read_text() if self._owner.exists() else ""

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, and come back once it is dead."""
        self.process.kill()
        self.process.wait()

    def stopped(self) -> None:
        """Wait until it was stopped by a signal."""
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def ended(self) -> int:
        """Wait for its end and give its exit code."""
        return self.process.wait(PATIENCE)


class Scene:
    """One database, one Acme, a host, and any number of workers; all of it ends with `stack`."""

    def __init__(self, url: str, folder: Path, stack: ExitStack, **environment: str) -> None:
        self.folder = folder
        self.url = url
        self._environment = environment
        self._stack = stack
        self._numbers = count(1)
        self.workers: list[Worker] = []
        self.secrets = folder / "secrets"
        self.store = WorkStore(url)
        stack.callback(self.store.close)
        self.operator = OperatorStore(url)
        stack.callback(self.operator.close)
        self.retried = 0
        """Quarantined rows that a person let go on."""
        self.intents = IntentStore(url)
        stack.callback(self.intents.close)
        if pages := environment.get("CHAOS_PAGES"):
            hold_to(self.intents.engine, Path(pages))
        self.host = Host(said_to(self.intents))
        Deployment(self.store, None).enter()  # as the first worker would: now it has its owner id
        (owner,) = self._read(sa.select(deployment.c.owner_id))
        self.books = Books(folder / "acme.db", owner["owner_id"])
        provisioning = environment.get("ACME_PROVISIONING_SECONDS", "0")
        log = stack.enter_context((folder / "acme.log").open("wb"))
        self.acme = stack.enter_context(
            serving(self.books.path, log=log, ACME_PROVISIONING_SECONDS=provisioning)
        )

    # -- workers ---------------------------------------------------------------------------------

    def worker(self, *arguments: str, adapter: str = "Marked", **environment: str) -> Worker:
        """Start a worker; it is killed at the end if it still runs."""
        program = [sys.executable, str(PROCESSES / "worker.py")]
        files = self.folder / f"worker-{next(self._numbers)}"
        started = Worker(
            [*program, "run", f"adapters:{adapter}", *arguments],
            {
                **inherited(),
                **LIMITS,
                "NIMBLE_DATABASE_URL": self.url,
                "ACME_URL": self.acme.url,
                "ACME_ADMIN_TOKEN": ADMIN_TOKEN,
                "ACME_SECRETS_DIR": str(self.secrets),
                **self._environment,
                **environment,
            },
            files,
        )
        self._stack.callback(started.kill)
        self.workers.append(started)
        return started

    def stop(self) -> None:
        """Tell every worker to stop, and wait for it."""
        for worker in self.workers:
            if worker.runs:
                worker.send(signal.SIGCONT)
                worker.send(signal.SIGTERM)
        for worker in self.workers:
            worker.ended()

    def finish(self, *, adapter: str = "Marked", workers: int = 1) -> None:
        """Settle everything, as it would be in time: hosts call again, workers run until idle."""
        self.host.insist()
        self.stop()
        self._person()
        last = [self.worker("--exit-when-idle", adapter=adapter) for _ in range(workers)]
        for worker in last:
            assert worker.ended() == 0, worker.log.read_text()

    def settled(self) -> None:
        """Wait until the promise holds, whoever works on it; what does not is what fails.

        Hosts call again meanwhile, and a person does what `status` asks for.
        """
        self.host.insist()
        end = time.monotonic() + PATIENCE
        while (wrong := self.verdict()) and time.monotonic() < end:
            self._person()
            time.sleep(0.1)
        assert wrong == {}, wrong

    def _person(self) -> None:
        """Let rows go on that three workers had in their hands when they were killed."""
        for row in self.rows():
            if row["reason"] == Why.QUARANTINED:
                with suppress(VerbRefused):
                    self.operator.retry(row["id"], By("a test", "its workers were killed"))
                    self.retried += 1

    # -- the state of the world ------------------------------------------------------------------

    def rows(self) -> list[sa.RowMapping]:
        """Give every row, oldest life first."""
        order = (tenancy.c.workspace_id, tenancy.c.incarnation)
        return self._read(sa.select(tenancy).order_by(*order))

    def row(self, name: str) -> sa.RowMapping:
        """Give the newest row of a workspace."""
        return [row for row in self.rows() if row["workspace_id"] == name][-1]

    def ready(self, *names: str) -> bool:
        """Whether the newest rows of these workspaces are ready."""
        newest = {row["workspace_id"]: row for row in self.rows()}
        return all(name in newest and newest[name]["phase"] == "ready" for name in names)

    def expired(self, name: str) -> bool:
        """Whether the lease on a workspace's newest row is over."""
        over = tenancy.c.lease_expires_at <= instant_of(self.store.clock)
        named = (tenancy.c.workspace_id == name, tenancy.c.lease_owner.is_not(None), over)
        return bool(self._read(sa.select(tenancy.c.id).where(*named)))

    def holding(self) -> list[Worker]:
        """Give the running workers that have rows in their hands."""
        owners = {row["lease_owner"] for row in self.rows()}
        return [worker for worker in self.workers if worker.runs and worker.owner in owners]

    def busy(self, *names: str) -> bool:
        """Whether a worker has rows in its hands; or these workspaces have all they asked for."""
        return bool(self.holding()) or self.ready(*names)

    def leased(self, owner: str) -> list[sa.RowMapping]:
        """Give the rows that a worker has in its hands."""
        return [row for row in self.rows() if row["lease_owner"] == owner]

    def taken_up(self, rows: Sequence[sa.RowMapping]) -> tuple[float, float]:
        """Wait until each of these rows was claimed again; seconds to the first and to the last."""
        tokens = {row["id"]: row["lease_token"] for row in rows}

        def claimed() -> int:
            now = {row["id"]: row["lease_token"] for row in self.rows()}
            return sum(now[id_] > token for id_, token in tokens.items())

        first = until("a row is worked on again", lambda: claimed() > 0)
        rest = until("every row is worked on again", lambda: claimed() == len(tokens))
        return first, first + rest

    def journal(self) -> list[sa.RowMapping]:
        return self._read(sa.select(journal).order_by(journal.c.id))

    def looked_up(self) -> int:
        """Count the creates that somebody else had to look up."""
        return sum(entry["action"] == "find" for entry in self.journal())

    def verdict(self) -> Verdict:
        """Name whatever is not as promised."""
        return verdict(self.host.wishes, self.rows(), self.books, self.secrets)

    def _read(self, statement: sa.Select[tuple[object, ...]]) -> list[sa.RowMapping]:
        """Read what cannot be missed, however often the database goes away meanwhile."""
        found: list[sa.RowMapping] = []

        def read(at: sa.Connection) -> None:
            found[:] = at.execute(statement).mappings()

        def could_be_read() -> bool:
            with suppress(StoreError):
                self.store.reading(time.monotonic() + 10.0, read)
                return True
            return False

        until("the rows can be read", could_be_read)
        return found


def inherited() -> dict[str, str]:
    """Give the environment without what would change a half, and with the example to import."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NIMBLE_", "ACME_", "NB_"))}
    path = [str(EXAMPLE), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def until(what: str, happens: Callable[[], bool], *, within: float = PATIENCE) -> float:
    """Wait until something happens and give how many seconds it took."""
    began = time.monotonic()
    while not happens():
        assert time.monotonic() - began < within, f"waited {within:.0f} s in vain until {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def through(url: str, port: int) -> str:
    """Give the URL with another port, that of a proxy."""
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    return parts._replace(netloc=f"{user}127.0.0.1:{port}").geturl()


def port_of(url: str) -> int:
    """Give the port of a URL that names one."""
    port = urlsplit(url).port
    assert port
    return port

"""The acceptance test: workers killed at random, and exactly one resource for each workspace."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from waiting import PATIENCE, until

from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.store import By, IntentStore, OperatorStore, WorkStore
from nimble_lifecycle.store.models import journal, tenancy

PROGRAM = str(Path(sys.executable).with_name("nimble-reconcile"))


class Scene:
    """A host's side, a vendor that is a directory, and worker processes that can be killed."""

    def __init__(self, url: str, directory: Path) -> None:
        self.host = IntentStore(url)
        self.store = WorkStore(url)
        self.world = directory / "world"
        self.world.mkdir()
        self._url = url
        self._here = Path(__file__).parent

    def install(self, names: list[str]) -> None:
        for name in names:
            until = time.monotonic() + PATIENCE
            self.host.ready(Workspace(name), "directory", Reason.INSTALL, {}, until=until)

    @contextmanager
    def worker(
        self, adapter: str, *arguments: str, concurrency: int = 5
    ) -> "Iterator[subprocess.Popen[bytes]]":
        target = f"directory_vendor:{adapter}"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NIMBLE_")}
        process = subprocess.Popen(
            [PROGRAM, "run", target, "--concurrency", str(concurrency), *arguments],
            cwd=self._here,
            env={
                **inherited,
                "VENDOR_DIRECTORY": str(self.world),
                "NIMBLE_DATABASE_URL": self._url,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def kill_one(self, after: float) -> None:
        """Run a worker and kill it `after` seconds from when it has rows in its hands."""
        before = self.tokens()
        with self.worker("DirectoryVendor") as process:
            until(lambda: process.poll() is not None or self.tokens() != before)
            assert process.poll() is None
            time.sleep(after)
            process.send_signal(signal.SIGKILL)

    def finish(self, adapter: str = "DirectoryVendor", workers: int = 1) -> None:
        with self.worker(adapter, "--exit-when-idle") as process:
            if workers > 1:
                self.finish(adapter, workers - 1)
            assert process.wait(timeout=PATIENCE) == 0

    def tokens(self) -> int:
        """Count the claims that were ever made."""
        total: int = self._read(sa.select(sa.func.sum(tenancy.c.lease_token)))[0][0]
        return total

    def phases(self) -> Counter[str]:
        return Counter(phase for (phase,) in self._read(sa.select(tenancy.c.phase)))

    def stalled(self) -> list[tuple[str, str, int]]:
        """Give workspace, reason and reclaims of what waits for a person."""
        columns = (tenancy.c.workspace_id, tenancy.c.reason, tenancy.c.reclaims)
        stalled = sa.select(*columns).where(tenancy.c.phase == "stalled")
        return [(name, reason, reclaims) for name, reason, reclaims in self._read(stalled)]

    def retry_the_quarantined(self) -> bool:
        """Do what `status` names for a row that was in the hands of three killed workers."""
        quarantined = sa.select(tenancy.c.id).where(tenancy.c.reason == "Quarantined")
        rows = self._read(quarantined)
        with closing(OperatorStore(self._url)) as operator:
            for (row,) in rows:
                operator.retry(row, By("ada", "the kills are over"))
        return bool(rows)

    def keys(self) -> list[str]:
        """Give the keys of the rows."""
        return sorted(key for (key,) in self._read(sa.select(tenancy.c.idempotency_key)))

    def marks(self) -> list[str]:
        """Give the keys of the resources."""
        return sorted(path.read_text() for path in self.world.glob("[!.]*"))

    def looked_up(self) -> int:
        """Count the creates that a later worker had to look up."""
        found = sa.select(sa.func.count()).where(journal.c.action == "find")
        count: int = self._read(found)[0][0]
        return count

    def _read(self, statement: sa.Select[tuple[object, ...]]) -> "list[sa.Row[tuple[object, ...]]]":
        until = time.monotonic() + PATIENCE
        return self.store.reading(until, lambda at: list(at.execute(statement)))


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(database_url, tmp_path)
    yield made
    made.host.close()
    made.store.close()


@pytest.mark.parametrize(
    ("kills", "rows"),
    [(3, 45), pytest.param(20, 200, marks=pytest.mark.chaos)],
)
def test_killed_workers_leave_exactly_one_resource_for_each_workspace(
    scene: Scene, kills: int, rows: int
) -> None:
    chance = random.Random(kills)
    names: list[str] = []
    while (
        scene.looked_up() < kills
    ):  # again where creates were over before the kill: a slow machine
        assert len(names) < 10 * rows, "the kills do not hit creates in the middle"
        for _ in range(kills):
            more = [f"ws-{number}" for number in range(len(names), len(names) + rows // kills)]
            names += more
            scene.install(more)
            scene.kill_one(after=chance.uniform(0.0, 0.12))
        scene.install(names)
        scene.finish()
        while scene.retry_the_quarantined():
            scene.finish()
    assert scene.stalled() == []
    assert scene.phases() == {"ready": len(names)}
    assert len(scene.marks()) == len(names)
    assert scene.marks() == scene.keys()


def test_two_worker_processes_at_once_make_one_resource_for_each_workspace(scene: Scene) -> None:
    scene.install([f"ws-{number}" for number in range(200)])
    # What a stalled worker creates after its lease would be a surplus, which is another test.
    scene.finish("Unhurried", workers=2)
    assert scene.phases() == {"ready": 200}
    assert len(scene.marks()) == 200
    assert scene.marks() == scene.keys()


@pytest.mark.parametrize("adapter", ["Killer", "KillsInEachCall"])
def test_a_row_that_kills_its_worker_is_quarantined_after_three_and_harms_no_other(
    scene: Scene, adapter: str
) -> None:
    scene.install(["killer", *(f"ws-{number}" for number in range(9))])
    killed = 0
    ended = -signal.SIGKILL
    while ended == -signal.SIGKILL:
        with scene.worker(adapter, "--exit-when-idle", concurrency=10) as process:
            ended = process.wait(timeout=PATIENCE)
        killed += ended == -signal.SIGKILL
    assert (ended, killed) == (0, 3)
    assert scene.phases() == {"ready": 9, "stalled": 1}
    assert scene.stalled() == [("killer", "Quarantined", 3)]
    assert len(scene.marks()) == 9

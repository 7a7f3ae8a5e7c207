"""The database goes away, comes back, runs full, and its clock jumps."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from chaos.disks import small_disk
from chaos.processes.jumping import JumpingClock, Jumps
from chaos.scene import Host, Scene, said_to, until
from chaos.trouble import HOUR, TERMINATE
from clusters import Cluster

from nimble_lifecycle.store import IntentStore


def names(batch: object, count: int = 6) -> list[str]:
    return [f"ws-{batch}-{number}" for number in range(count)]


def come_change_and_go(scene: Scene, batch: int) -> None:
    """Say something of each kind until it is heard, and wait until somebody works on it."""
    new = names(batch)
    scene.host.ready(*new)
    scene.host.ready(new[0], from_name=f"changed {batch}")
    scene.host.removing(new[-1])
    scene.host.insist()
    until("a worker is busy", lambda: scene.busy(*new[:-1]))


def test_terminated_connections_to_postgresql_lose_nothing_and_double_nothing(
    postgres_scene: Scene,
) -> None:
    scene = postgres_scene
    scene.worker()
    scene.worker()
    terminated = 0
    with psycopg.connect(scene.url, autocommit=True) as admin:
        for batch in range(6):
            come_change_and_go(scene, batch)
            terminated += admin.execute(TERMINATE).fetchone()[0]
    assert terminated >= 6
    scene.host.insist()
    scene.settled()
    assert scene.books.made_twice() == []


def test_a_postgresql_that_is_stopped_and_started_loses_nothing_and_doubles_nothing(
    make_scene: Callable[..., Scene], cluster: Cluster
) -> None:
    scene = make_scene(cluster.url)
    scene.worker()
    scene.worker()
    for batch in range(2):
        come_change_and_go(scene, batch)
        cluster.stop()
        assert not scene.host.ready("while it is down"), "a ready was acknowledged by nobody"
        cluster.start()
    scene.host.insist()
    scene.settled()
    assert scene.books.made_twice() == []


@pytest.mark.parametrize("adapter", ["Acme", pytest.param("Marked", marks=pytest.mark.chaos)])
def test_jumps_of_the_databases_clock_lose_nothing_and_leave_nothing_doubled(
    make_scene: Callable[..., Scene], database_url: str, adapter: str
) -> None:
    scene = make_scene(database_url, CHAOS_CLOCK="jumping")
    jumps = Jumps(scene.store)
    with closing(IntentStore(database_url, clock=JumpingClock())) as intents:
        scene.host = Host(said_to(intents))
        scene.acme.misbehave("slow", seconds=0.1)
        scene.worker(adapter=adapter)
        scene.worker(adapter=adapter)
        for batch, hours in enumerate((1, 0, -1)):
            come_change_and_go(scene, batch)
            jumps.to(hours * HOUR)
        come_change_and_go(scene, 3)
        jumps.to(HOUR)  # what was put off by a wrong clock has its time at last
        scene.host.insist()
        scene.settled()


def test_a_full_disk_fails_a_ready_and_the_worker_goes_on_when_there_is_room(
    make_scene: Callable[..., Scene], sqlite_template: Path, tmp_path: Path
) -> None:
    place = tmp_path / "disk"
    with small_disk(place) as disk:
        shutil.copyfile(sqlite_template, place / "nimble.db")
        scene = make_scene(f"sqlite:///{place / 'nimble.db'}", **disk.environment)
        scene.acme.misbehave("slow", seconds=0.2)
        worker = scene.worker()
        scene.host.ready(*names("before", 12))
        until("the worker is busy", lambda: scene.leased(worker.owner))
        disk.fill()
        more = iter(names("while it is full", 1000))
        until("a ready is an error", lambda: not scene.host.ready(next(more)))
        until("the worker says so", lambda: "disk is full" in worker.log.read_text())
        disk.free()
        scene.host.insist()
        scene.settled()
        assert worker.runs
        worker.kill()

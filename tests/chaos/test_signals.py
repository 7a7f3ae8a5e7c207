"""Workers told to stop, and workers suspended for longer than their leases."""

import signal

import pytest
from chaos.scene import Scene, until


def test_a_worker_told_to_stop_ends_its_calls_first(sqlite_scene: Scene) -> None:
    scene = sqlite_scene
    scene.acme.misbehave("slow", seconds=0.2)
    worker = scene.worker()
    scene.host.ready("one", "two")
    until("the worker has rows in its hands", lambda: scene.leased(worker.owner))
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert scene.leased(worker.owner) == []
    scene.finish()
    assert scene.verdict() == {}
    assert scene.books.made() == 2


def test_a_worker_told_to_stop_leaves_long_calls_behind_and_they_are_looked_up(
    sqlite_scene: Scene,
) -> None:
    scene = sqlite_scene
    scene.acme.misbehave("slow", seconds=30, method="POST")
    worker = scene.worker(NIMBLE_DRAIN="0.05")
    scene.host.ready("one")
    until("Acme has made it", lambda: scene.books.made() == 1)
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    scene.acme.behave()
    scene.finish()
    assert scene.verdict() == {}
    assert scene.books.made() == 1


@pytest.mark.parametrize("adapter", ["Marked", pytest.param("Plain", marks=pytest.mark.chaos)])
def test_what_a_suspended_worker_still_creates_is_released_where_another_made_one(
    sqlite_scene: Scene, adapter: str
) -> None:
    scene = sqlite_scene
    suspended = scene.worker(adapter=adapter, CHAOS_FATE="create:begun:SIGSTOP:1")
    scene.host.ready("before")  # from then on its connection to Acme is open
    until("the first workspace is ready", lambda: scene.ready("before"))
    scene.host.ready("one")
    suspended.stopped()
    scene.worker(adapter=adapter)
    until("another worker made it", lambda: scene.ready("one"))
    suspended.send(signal.SIGCONT)
    until("it made another", lambda: scene.books.made_twice() != [])
    scene.finish(adapter=adapter)
    assert scene.verdict() == {}


def test_what_a_suspended_worker_still_creates_is_its_rows_where_nobody_else_came(
    sqlite_scene: Scene,
) -> None:
    scene = sqlite_scene
    suspended = scene.worker(CHAOS_FATE="create:begun:SIGSTOP:0")
    scene.host.ready("one")
    suspended.stopped()
    until("its lease is over", lambda: scene.expired("one"))
    suspended.send(signal.SIGCONT)
    scene.finish()
    assert scene.verdict() == {}
    assert scene.books.made() == 1

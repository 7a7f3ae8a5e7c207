"""Workers told to stop, and workers suspended for longer than their leases."""

import signal
from collections.abc import Callable

import pytest

from chaos.scene import Scene, until


def test_a_worker_told_to_stop_ends_its_calls_first(stage: Scene) -> None:
    stage.acme.misbehave("slow", seconds=0.2)
    worker = stage.worker()
    stage.host.ready("one", "two")
    until("the worker has rows in its hands", lambda: stage.leased(worker.owner))
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert stage.leased(worker.owner) == []
    stage.finish()
    assert stage.verdict() == {}
    assert stage.books.made() == 2


def test_a_worker_told_to_stop_leaves_long_calls_behind_and_they_are_looked_up(
    stage: Scene,
) -> None:
    stage.acme.misbehave("slow", seconds=30, method="POST")
    worker = stage.worker(NIMBLE_DRAIN="0.05")
    stage.host.ready("one")
    until("Acme has made it", lambda: stage.books.made() == 1)
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    stage.acme.behave()
    stage.finish()
    assert stage.verdict() == {}
    assert stage.books.made() == 1


@pytest.mark.parametrize("adapter", ["Acme", "Plain"])
def test_a_create_that_a_suspended_worker_sends_after_another_made_one(
    stage: Scene, adapter: str
) -> None:
    suspended = stage.worker(adapter=adapter, CHAOS_FATE="create:begun:SIGSTOP")
    stage.host.ready("one")
    suspended.stopped()
    stage.worker(adapter=adapter)
    until("another worker made it", lambda: stage.ready("one"))
    suspended.send(signal.SIGCONT)
    stage.finish(adapter=adapter)
    print(stage.verdict(), [dict(x) for x in stage.journal()])
    assert stage.verdict() == {}

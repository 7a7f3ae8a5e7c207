"""Workers told to stop, and workers suspended for longer than their leases."""

import signal

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


@pytest.mark.parametrize("adapter", ["Marked", "Plain"])
def test_what_a_suspended_worker_still_creates_is_released_where_another_made_one(
    stage: Scene, adapter: str
) -> None:
    suspended = stage.worker(adapter=adapter, CHAOS_FATE="create:begun:SIGSTOP:1")
    stage.host.ready("before")  # from then on its connection to Acme is open
    until("the first workspace is ready", lambda: stage.ready("before"))
    stage.host.ready("one")
    suspended.stopped()
    stage.worker(adapter=adapter)
    until("another worker made it", lambda: stage.ready("one"))
    suspended.send(signal.SIGCONT)
    until("it made another", lambda: stage.books.made_twice() != [])
    stage.finish(adapter=adapter)
    assert stage.verdict() == {}


def test_what_a_suspended_worker_still_creates_is_its_rows_where_nobody_else_came(
    stage: Scene,
) -> None:
    suspended = stage.worker(CHAOS_FATE="create:begun:SIGSTOP:0")
    stage.host.ready("one")
    suspended.stopped()
    until("its lease is over", lambda: stage.expired("one"))
    suspended.send(signal.SIGCONT)
    stage.finish()
    assert stage.verdict() == {}
    assert stage.books.made() == 1

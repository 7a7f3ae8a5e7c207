"""From a finding to an act: how far apart two sightings are, whose turn it is, and the breaker."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest

from nimble_lifecycle.errors import SweepBusy
from nimble_lifecycle.reconciler.court import Case, Court
from nimble_lifecycle.reconciler.findings import Finding, Outcome
from nimble_lifecycle.store.sightings import Act, Sort
from nimble_lifecycle.store.sweeps import SweepStore
from nimble_lifecycle.testing import ManualClock

T = TypeVar("T")
APART = 10.0


class Here:
    """Runs the store's calls where they are made."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        pass


class Sweeps:
    """Sweeps of one kind, with what they did in the order in which they did it."""

    def __init__(self, store: SweepStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.done: list[str] = []

    def settle(
        self,
        *subjects: str,
        began: datetime | None = None,
        ends: Act = Act.DONE,
        keep_turn: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Outcome]:
        court = Court(
            self.store,
            "memory",
            Here(),
            began=began or self.clock.instant,
            keep_turn=keep_turn or self._turn,
            dry_run=False,
        )
        cases = [self._case(subject, ends) for subject in subjects]
        return [found.outcome for found in asyncio.run(court.settle(Sort.DRIFT, cases, APART))]

    async def _turn(self) -> None:
        self.done.append("turn")

    def _case(self, subject: str, ends: Act) -> Case:
        def act(allowed: int) -> Act:
            self.done.append(subject)
            return ends

        finding = Finding(sort=Sort.DRIFT, outcome=Outcome.REPORTED, why="it is not there")
        return Case(finding, subject, act)


@pytest.fixture
def sweeps(fleet: Callable[..., Any]) -> Sweeps:
    clock = ManualClock()
    store = SweepStore(fleet(clock=clock).store, actor="me")
    assert store.take_turn("memory", 86400.0)
    return Sweeps(store, clock)


def test_what_is_seen_twice_far_enough_apart_is_acted_on(sweeps: Sweeps) -> None:
    assert sweeps.settle("x1") == [Outcome.WAITING]
    sweeps.clock.advance(APART)
    assert sweeps.settle("x1") == [Outcome.DONE]
    assert sweeps.done.count("x1") == 1


def test_a_long_sweep_counts_from_its_beginning(sweeps: Sweeps) -> None:
    sweeps.settle("x1")
    began = sweeps.clock.instant + timedelta(seconds=APART - 1)
    sweeps.clock.advance(1000)
    assert sweeps.settle("x1", began=began) == [Outcome.WAITING], "it was read at `began`, maybe"
    assert sweeps.settle("x1", began=began + timedelta(seconds=1)) == [Outcome.DONE]


def test_each_act_is_in_turn_and_none_is_begun_without(sweeps: Sweeps) -> None:
    sweeps.settle("x1", "x2")
    sweeps.clock.advance(APART)
    sweeps.done.clear()
    sweeps.settle("x1", "x2")
    assert sweeps.done == ["turn", "turn", "x1", "turn", "x2"]

    turns = iter([None, SweepBusy("another has it")])

    async def lost() -> None:
        overtaken = next(turns)
        if overtaken is not None:
            raise overtaken

    sweeps.done.clear()
    with pytest.raises(SweepBusy):
        sweeps.settle("x1", "x2", keep_turn=lost)
    assert sweeps.done == []


def test_once_the_breaker_held_one_act_no_other_is_tried(sweeps: Sweeps) -> None:
    sweeps.settle("x1", "x2")
    sweeps.clock.advance(APART)
    assert sweeps.settle("x1", "x2", ends=Act.HELD) == [Outcome.HELD, Outcome.HELD]
    assert [each for each in sweeps.done if each != "turn"] == ["x1"]

"""Rounds and figures: whatever is compared is measured in turns, so that noise falls on both sides.

A side gives one number a round. A figure is the median of the rounds' ratios, `low` and `high` the
quartiles of them.
"""

import gc
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.benchmarks.databases import Databases
from tests.benchmarks.goals import BY_NAME, Goal

Side = Callable[[], Awaitable[float]]
"""Measures one round and gives its number."""


@dataclass(frozen=True, slots=True)
class Result:
    """A figure as it was measured. `ours` and `theirs` are medians, in the unit of the sides."""

    goal: Goal
    ratio: float
    low: float
    high: float
    ours: float
    theirs: float | None

    @property
    def holds(self) -> bool:
        """Whether the goal is kept."""
        return self.goal.holds(self.ratio)

    def as_json(self) -> dict[str, object]:
        """Give the object that `results.json` has for it."""
        return {
            "name": self.goal.name,
            "what": self.goal.what,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "goal": self.goal.told,
            "stretch": self.goal.stretch,
            "holds": self.holds,
            "unit": self.goal.unit,
            "ours": self.ours,
            "theirs": self.theirs,
        }


@dataclass(slots=True)
class Bench:
    """What a group of figures is given: how much to do, where, and where its results go."""

    quick: bool
    databases: Databases
    results: list[Result] = field(default_factory=list)
    wanted: frozenset[str] = frozenset()

    def asks_for(self, *names: str) -> bool:
        """Whether any of these figures is to be measured."""
        return not self.wanted or bool(self.wanted.intersection(names))

    @property
    def rounds(self) -> int:
        """How many rounds a comparison has."""
        return 2 if self.quick else 9

    def some(self, full: int, quick: int) -> int:
        """Choose an amount by how long the run may take."""
        return quick if self.quick else full

    def ratio(self, name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
        """Record a figure from the numbers of both sides, round by round."""
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        low, middle, high = quartiles(ratios)
        median = statistics.median
        self._record(Result(BY_NAME[name], middle, low, high, median(ours), median(theirs)))

    def value(self, name: str, *values: float) -> None:
        """Record a figure that is a number by itself."""
        low, middle, high = quartiles(values)
        self._record(Result(BY_NAME[name], middle, low, high, middle, None))

    def _record(self, result: Result) -> None:
        self.results.append(result)
        say(line_of(result))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Give the lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


async def in_turns(rounds: int, sides: Mapping[str, Side]) -> dict[str, list[float]]:
    """Measure the sides one after the other, round after round; the first round is not counted.

    Every other round goes backwards, so that none always follows the same one.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    with _setup_out_of_the_way():
        for number in range(rounds + 1):
            for name in names if number % 2 else reversed(names):
                value = await sides[name]()
                if number:
                    found[name].append(value)
    return found


@contextmanager
def _setup_out_of_the_way() -> Iterator[None]:
    """Keep Python from looking for garbage in what was there before.

    It would stop whichever side is measured just then, for a tenth of a second: FastMCP alone is
    200,000 objects.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def times(count: int, work: Callable[[int], Awaitable[object]]) -> list[float]:
    """Call `work` one after the other and give how long each call took, in seconds."""
    took = []
    for number in range(count):
        begin = time.perf_counter()
        await work(number)
        took.append(time.perf_counter() - begin)
    return took


def line_of(result: Result) -> str:
    """Give a figure as a line of the table."""
    goal = result.goal
    mark = "holds" if result.holds else "MISSES"
    if goal.bound is None:
        mark = ""
    if goal.stretch is not None and Goal.holds(
        Goal(goal.name, goal.what, goal.stretch, goal.sense), result.ratio
    ):
        mark = "stretch"
    unit = "" if goal.unit == "ratio" else f" {goal.unit}"
    spread = f"{result.low:.3g}-{result.high:.3g}"
    return (
        f"{goal.name:28} {result.ratio:8.3g} {spread:>16}  {goal.told:9} {mark:8}"
        f" {goal.what}{unit and ',' + unit}"
    )


def say(text: str) -> None:
    """Tell the person who waits."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

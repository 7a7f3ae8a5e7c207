"""What a seed stands for: the vendor's class, the fleet, and how much goes wrong."""

from dataclasses import dataclass, replace
from random import Random

from tests.simulation.site import FOREVER, Traits
from tests.simulation.troubles import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One world. Times in seconds."""

    traits: Traits
    workspaces: int
    events: int
    """Host events for each workspace."""
    pace: float
    """Mean time between two of them."""
    workers: int
    servers: int
    concurrency: int
    poll: float
    grace: float
    longest_backoff: float
    crashes: float
    """Chance that a life of a process ends before its time."""
    suspends: float
    ambushes: float
    """How often something happens to a process just when the database is called or answers."""
    strikes: float
    """How often it happens just when the vendor is called, or before it answers."""
    database_faults: float
    answer_time: float
    """Mean time of a request to the vendor, and of its answer."""
    vendor_faults: float
    after_the_work: bool
    """Whether what fails of a create has mostly been done by then, and nobody was told."""
    laggards: float
    permanent: float
    untrue: float
    """How many failing creates are said not to be applied, and are."""
    database_windows: tuple[Window, ...]
    vendor_windows: tuple[Window, ...]
    foreign_names: int
    release_least: int
    """Releases within a day that open no breaker, however small the fleet."""
    meddling: int
    """Verbs an operator runs that nobody needs."""
    hands: int
    """Resources removed behind our back."""
    sweeps: int
    """Sweeps while everything fails."""

    @property
    def lease(self) -> float:
        return 3 * self.traits.time_limit


BOTH = ("find and repeat", True, True)
FIND = ("find", True, False)
REPEAT = ("repeat", False, True)
CLASSES = (BOTH, FIND, REPEAT, ("neither", False, False))
"""What a vendor can do about an unknown create."""

VENDOR_OUTAGES = (
    "unavailable",
    "rate limit",
    "credential",
    "lost",
    "no answer",
    "error after",
    "late",
)


def drawn(chance: Random) -> Scenario:
    """Draw a scenario."""
    workspaces, events = chance.randint(2, 5), chance.randint(3, 8)
    pace = chance.choice((5.0, 15.0, 40.0))
    length = events * pace
    rough = chance.choice((0.0, 0.15, 0.4))
    traits = _traits(chance)
    return Scenario(
        traits=traits,
        workspaces=workspaces,
        events=events,
        pace=pace,
        workers=chance.choice((1, 2, 2, 3)),
        servers=chance.choice((1, 1, 2)),
        concurrency=chance.choice((1, 3, 8)),
        poll=chance.choice((3.0, 10.0, 30.0)),
        grace=chance.choice((0.0, 15.0, 60.0)),
        longest_backoff=chance.choice((20.0, 60.0)),
        crashes=chance.choice((0.0, 0.5, 0.9)),
        suspends=chance.choice((0.0, 0.0, 0.3)),
        ambushes=chance.choice((0.0, 0.02, 0.06)),
        strikes=chance.choice((0.0, 0.06, 0.25)),
        database_faults=chance.choice((0.0, 0.05, 0.2)),
        answer_time=chance.choice((0.2, 0.2, 3.0)),
        vendor_faults=rough,
        after_the_work=chance.choice((False, False, True)),
        laggards=chance.choice((0.0, 0.0, 0.2)),
        permanent=chance.choice((0.0, 0.0, 0.05)),
        untrue=chance.choice((0.0, 0.5)) if traits.bears_untruth else 0.0,
        database_windows=_windows(chance, length, ("down",)),
        vendor_windows=_windows(chance, length, VENDOR_OUTAGES),
        foreign_names=chance.choice((0, 0, 1)),
        release_least=chance.choice((10, 10, 1)),
        meddling=chance.choice((0, 0, 4)),
        hands=chance.choice((0, 0, 0, 1)),
        sweeps=chance.choice((0, 0, 5)) if traits.lists else 0,
    )


def calm(traits: Traits) -> Scenario:
    """Give a scenario in which nothing fails by itself, for faults put in by hand."""
    return Scenario(
        traits=traits,
        workspaces=2,
        events=4,
        pace=15.0,
        workers=1,
        servers=1,
        concurrency=3,
        poll=30.0,
        grace=15.0,
        longest_backoff=20.0,
        crashes=0.0,
        suspends=0.0,
        ambushes=0.0,
        strikes=0.0,
        database_faults=0.0,
        answer_time=0.2,
        vendor_faults=0.0,
        after_the_work=False,
        laggards=0.0,
        permanent=0.0,
        untrue=0.0,
        database_windows=(),
        vendor_windows=(),
        foreign_names=0,
        release_least=10,
        meddling=0,
        hands=0,
        sweeps=0,
    )


def harsh(traits: Traits) -> Scenario:
    """Give a scenario in which steps end badly between write-ahead and settlement."""
    return replace(
        calm(traits),
        workspaces=4,
        workers=3,
        poll=3.0,
        answer_time=3.0,
        strikes=0.25,
        vendor_faults=0.3,
        after_the_work=True,
    )


def untrue(create_time: float) -> Scenario:
    """Give a scenario in which creates are said not to be applied, and mostly are."""
    return replace(
        calm(traits_of(BOTH, create_time=create_time)),
        workspaces=4,
        workers=2,
        poll=3.0,
        vendor_faults=0.6,
        untrue=0.8,
    )


def traits_of(vendor: tuple[str, bool, bool], *, create_time: float = 0.0) -> Traits:
    """Give a vendor of one of the `CLASSES`."""
    _, can_find, repeats = vendor
    return Traits(
        can_find=can_find,
        repeatable=FOREVER if repeats else None,
        lag=10.0,
        time_limit=5.0,
        plain=False,
        create_time=create_time,
        release_time=create_time,
        deadline=None,
        lists=False,
        unique_names=False,
    )


def _traits(chance: Random) -> Traits:
    _, can_find, repeats = chance.choice(CLASSES)
    operations = chance.choice((False, False, True))
    return Traits(
        can_find=can_find,
        repeatable=chance.choice((90.0, 600.0, FOREVER)) if repeats else None,
        lag=chance.choice((0.0, 10.0, 30.0)),
        time_limit=chance.choice((5.0, 10.0)),
        plain=chance.random() < 0.3,
        create_time=chance.choice((4.0, 40.0)) if operations else 0.0,
        release_time=chance.choice((0.0, 10.0)) if operations else 0.0,
        deadline=chance.choice((None, 30.0, 300.0)),
        lists=chance.random() < 0.7,
        unique_names=chance.random() < 0.2,
    )


def _windows(chance: Random, length: float, faults: tuple[str, ...]) -> tuple[Window, ...]:
    windows = []
    for _ in range(chance.choice((0, 0, 1, 2))):
        begin = chance.uniform(0.0, length)
        end = begin + chance.choice((3.0, 30.0, 150.0)) * chance.uniform(0.5, 1.5)
        windows.append(Window(begin, end, chance.choice(faults)))
    return tuple(windows)

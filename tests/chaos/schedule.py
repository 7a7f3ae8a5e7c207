"""What happens in a chaos run, and when: a pure function of its seed."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FLEET = 100
"""Workspaces of a run."""

REMOVALS = 8
"""Workspaces that are removed in a run: fewer than may be released in a day with nobody asked."""

CALLS = 5.0
"""Host calls a second, on average."""

FAULTS = 1.5
"""Faults a second, on average; they overlap."""

# Which faults there are, by how often, and how long they last at least and at most, in seconds.
EVERYWHERE: Mapping[str, tuple[int, float, float]] = {
    "worker killed": (6, 0.0, 0.0),
    "worker told to stop": (2, 0.0, 0.0),
    "worker suspended": (2, 0.2, 4.0),
    "server killed": (1, 0.0, 0.0),
    "vendor: error_after": (1, 0.5, 2.0),
    "vendor: error_before": (1, 0.5, 2.0),
    "vendor: drop_after": (1, 0.5, 2.0),
    "vendor: drop_before": (1, 0.5, 2.0),
    "vendor: slow": (1, 0.5, 2.0),
    "vendor: hang": (1, 0.5, 2.0),
    "vendor: rate_limited": (1, 0.5, 2.0),
    "vendor: outage": (1, 0.5, 2.0),
    "vendor: unauthorized": (1, 0.5, 2.0),
    "vendor's network: drop": (1, 0.0, 0.0),
    "vendor's network: cut_answers": (1, 0.0, 0.5),
    "vendor's network: cut_requests": (1, 0.0, 0.5),
    "vendor's network: half_close": (1, 0.0, 0.0),
    "vendor's network: delay": (1, 0.5, 2.0),
    "vendor's network: refuse": (1, 0.2, 1.0),
    "vendor's network: freeze": (1, 0.2, 2.0),
}
ON_POSTGRESQL: Mapping[str, tuple[int, float, float]] = {
    "connections terminated": (3, 0.0, 0.0),
    "database stopped": (1, 0.2, 3.0),
    "database's network: drop": (1, 0.0, 0.0),
    "database's network: cut_answers": (1, 0.0, 0.5),
    "database's network: cut_requests": (1, 0.0, 0.5),
    "database's network: half_close": (1, 0.0, 0.0),
    "database's network: delay": (1, 0.5, 2.0),
    "database's network: refuse": (1, 0.2, 2.0),
    "database's network: freeze": (1, 0.2, 4.0),
}
ON_SQLITE: Mapping[str, tuple[int, float, float]] = {"disk full": (3, 0.5, 3.0)}
UNDER_A_KEY: Mapping[str, tuple[int, float, float]] = {"clock put": (2, 0.5, 3.0)}
"""Only where the vendor remembers keys. One that does not gets a second resource where the clock
says that a call is long over which has only just begun."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something that is done `at` seconds from the start, for `lasting` seconds."""

    at: float
    what: str
    workspace: str = ""
    lasting: float = 0.0
    chance: float = 0.0
    """A number from 0 to 1 for what is chosen only when it happens, such as which worker."""


def schedule(seed: str, seconds: float, *, postgresql: bool, keyed: bool) -> list[Act]:
    """Give everything that happens in a run, in order."""
    chance = random.Random(seed)
    faults = EVERYWHERE | (ON_POSTGRESQL if postgresql else ON_SQLITE)
    faults |= UNDER_A_KEY if keyed else {}
    acts = [*_calls(chance, seconds), *_faults(chance, seconds, faults)]
    return sorted(acts, key=lambda act: act.at)


def _calls(chance: random.Random, seconds: float) -> Iterator[Act]:
    """Let workspaces come, come again, change, go, and some of them come back."""
    names = [f"ws-{number}" for number in range(FLEET)]
    going = set(chance.sample(names, REMOVALS))
    for at in _moments(chance, seconds, CALLS):
        name = names[int(len(names) * min(1.0, at / seconds) * chance.random())]
        what = chance.choices(("ready", "changed", "removing"), (5, 2, 3))[0]
        if what == "removing" and name not in going:
            what = "ready"
        if what == "removing":
            going.discard(name)
        yield Act(at, what, name, chance=chance.random())


def _faults(
    chance: random.Random, seconds: float, faults: Mapping[str, tuple[int, float, float]]
) -> Iterator[Act]:
    kinds, weights = list(faults), [often for often, _, _ in faults.values()]
    for at in _moments(chance, seconds, FAULTS):
        what = chance.choices(kinds, weights)[0]
        _, shortest, longest = faults[what]
        yield Act(at, what, lasting=chance.uniform(shortest, longest), chance=chance.random())


def _moments(chance: random.Random, seconds: float, rate: float) -> Iterator[float]:
    at = chance.expovariate(rate)
    while at < seconds:
        yield at
        at += chance.expovariate(rate)

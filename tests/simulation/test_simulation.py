"""The promise, over seeded schedules of host calls, crashes, lost leases and outages.

A failing seed prints itself and the command that shows it again.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.cli import stores
from tests.simulation.simulation import simulate
from tests.simulation.stores import Stores

# What a killed process was about to begin is never begun, and its coroutines say so.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

ROOT = Path(__file__).parents[2]

CHUNK = 40
"""Seeds of one test; several chunks, so that the processes of pytest share them."""


@pytest.fixture(scope="module")
def own() -> Iterator[Stores]:
    with stores(None) as made:
        yield made


@pytest.mark.parametrize(
    "chunk", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 40))]
)
def test_every_promise_is_kept_whatever_fails(own: Stores, chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        verdict = simulate(seed, own)
        assert not verdict.wrong, f"{verdict.wrong}; replay it: {verdict.replay}"


@pytest.mark.postgres
def test_every_promise_is_kept_on_postgresql(postgres_url: str) -> None:
    with_postgres = Stores(postgres_url)
    try:
        for seed in range(12):
            verdict = simulate(seed, with_postgres)
            assert not verdict.wrong, f"{verdict.wrong}; replay it: {verdict.replay}"
    finally:
        with_postgres.close()


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    def traces(hash_seed: str) -> bytes:
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "12", "--jobs", "1"]
        done = subprocess.run(
            [*command, "--digest"],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            timeout=300,
        )
        return done.stdout

    assert traces("1") == traces("2")


def test_the_order_of_seeds_makes_no_difference(own: Stores) -> None:
    first = {seed: simulate(seed, own).trace for seed in (5, 6, 7)}
    again = {seed: simulate(seed, own).trace for seed in (7, 6, 5)}
    assert first == again

"""The promise, over seeded schedules of host calls, crashes, lost leases, outages and verbs.

A failing seed prints itself and the command that shows it again.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from nimble_lifecycle.reconciler import outcome
from nimble_lifecycle.reconciler.settled import SettlementBuilder
from nimble_lifecycle.store import Rules, Settlement, claim_writes, claims, verdicts
from nimble_lifecycle.store.models import tenancy as t
from tests.simulation.cli import stores
from tests.simulation.scenario import (
    CLASSES,
    FIND,
    REPEAT,
    Scenario,
    calm,
    harsh,
    traits_of,
    untrue,
)
from tests.simulation.simulation import Verdict, simulate
from tests.simulation.stores import Stores
from tests.simulation.wire import RemoteWorkStore

# What a killed process was about to begin is never begun, and its coroutines say so.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

ROOT = Path(__file__).parents[2]

CHAOS = pytest.mark.chaos

CHUNK = 25
"""Seeds of one test; several chunks, so that the processes of pytest share them."""


@pytest.fixture(scope="module")
def own() -> Iterator[Stores]:
    with stores(None) as made:
        yield made


def assert_kept(verdict: Verdict, replay: str = "") -> None:
    assert not verdict.wrong, f"{verdict.wrong}; replay it: {replay or verdict.replay}"


@pytest.mark.parametrize(
    "chunk", [*range(4), *(pytest.param(n, marks=CHAOS) for n in range(4, 24))]
)
def test_every_promise_is_kept_whatever_fails(own: Stores, chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        assert_kept(simulate(seed, own))


@pytest.mark.parametrize("vendor", CLASSES, ids=lambda vendor: vendor[0])
def test_every_promise_is_kept_where_steps_end_badly(
    own: Stores, vendor: tuple[str, bool, bool]
) -> None:
    for seed in range(10):
        verdict = simulate(seed, own, harsh(traits_of(vendor)))
        assert_kept(verdict, f"seed {seed} of `harsh`")


@pytest.mark.parametrize("create_time", [0.0, 40.0])
def test_nothing_leaks_where_an_adapter_says_not_applied_of_what_was(
    own: Stores, create_time: float
) -> None:
    for seed in range(15):
        assert_kept(simulate(seed, own, untrue(create_time)), f"seed {seed} of `untrue`")


@pytest.mark.postgres
def test_every_promise_is_kept_on_postgresql(postgres_url: str) -> None:
    with stores(postgres_url) as own:
        for seed in range(8):
            assert_kept(simulate(seed, own), f"… --seed {seed} --database-url postgresql://…")


# -- killed at each await --------------------------------------------------------------------------


@pytest.mark.parametrize("process", ["worker-0.0", "server-0.0"])
@pytest.mark.parametrize("vendor", CLASSES, ids=lambda vendor: vendor[0])
@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_may_be_killed_at_any_await(
    own: Stores, vendor: tuple[str, bool, bool], process: str, every: int
) -> None:
    scenario = calm(traits_of(vendor, create_time=4.0))
    unharmed = simulate(2, own, scenario)
    assert_kept(unharmed)
    steps = unharmed.steps[process]
    assert steps > 100
    for step in range(1, steps, every):
        verdict = simulate(2, own, scenario, doom=(process, step))
        assert_kept(verdict, f"{process} killed after its step {step}")


# -- the same seed, the same world -----------------------------------------------------------------


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    def traces(hash_seed: str) -> bytes:
        command = [sys.executable, "-m", "tests.simulation", "--seeds", "8", "--jobs", "1"]
        done = subprocess.run(
            [*command, "--digest"],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            timeout=300,
        )
        return done.stdout

    first = traces("1")
    assert first == traces("2")
    assert first.count(b"\n") > 8


def test_what_was_simulated_before_makes_no_difference(own: Stores) -> None:
    first = {seed: simulate(seed, own).trace for seed in (5, 6, 7)}
    again = {seed: simulate(seed, own).trace for seed in (7, 6, 5)}
    assert first == again


# -- it notices ------------------------------------------------------------------------------------


def believe_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    believed = outcome._not_found

    def hasty(row: SettlementBuilder) -> Settlement:
        claim, policy = replace(row.claim, create_ends_in=0.0), replace(row.policy, lag=0.0)
        return believed(replace(row, claim=claim, policy=policy))

    monkeypatch.setattr(outcome, "_not_found", hasty)


def take_unknown_for_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "_unknown_create", outcome._not_applied)


def ignore_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_grace_end", lambda now, seen: seen)


def remove_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = RemoteWorkStore.settle

    def unfenced(self: RemoteWorkStore, batch: Any, *, actor: str) -> Any:
        tokens = self.reading(
            self.clock.monotonic() + 30.0,
            lambda at: {row.id: row.lease_token for row in at.execute(sa.select(t)).all()},
        )
        return settle(self, [replace(s, token=tokens[s.id]) for s in batch], actor=actor)

    monkeypatch.setattr(RemoteWorkStore, "settle", unfenced)


def call_before_the_write_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_writes, "CREATING", ("nothing",))


def release_on_an_adapters_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_proven_empty", sa.true())


def forget_that_the_vendor_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    values = claims.rule_values

    def early(rules: Rules) -> dict[str, object]:
        return {**values(rules), "its_repeatable": (rules.repeatable or 0.0) - 2 * rules.lease}

    monkeypatch.setattr(claims, "rule_values", early)


@pytest.mark.parametrize(
    ("breaks", "notices"),
    [
        (take_unknown_for_not_applied, {"doubled", "leaked"}),
        (ignore_the_grace, {"lost"}),
        (call_before_the_write_ahead, {"no write-ahead"}),
        pytest.param(forget_that_the_vendor_remembers, {"waits for a person"}, marks=CHAOS),
    ],
)
def test_a_broken_product_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[pytest.MonkeyPatch], None],
    notices: set[str],
) -> None:
    breaks(monkeypatch)
    with stores(None) as own:  # its statements are built anew
        lived = (simulate(seed, own) for seed in range(150))
        broken = next(verdict for verdict in lived if notices & set(verdict.figures))
    assert broken.wrong
    assert broken.replay == f"python -m tests.simulation --seed {broken.seed}"


@pytest.mark.parametrize(
    ("breaks", "scenario", "notices"),
    [
        (remove_the_fence, harsh(traits_of(REPEAT)), {"two at once", "undone"}),
        (believe_at_once, harsh(traits_of(FIND)), {"doubled", "leaked"}),
        (release_on_an_adapters_word, untrue(0.0), {"leaked"}),
    ],
)
def test_a_product_that_breaks_where_steps_end_badly_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[pytest.MonkeyPatch], None],
    scenario: Scenario,
    notices: set[str],
) -> None:
    breaks(monkeypatch)
    with stores(None) as own:
        lived = (simulate(seed, own, scenario) for seed in range(40))
        assert any(notices & set(verdict.figures) for verdict in lived)

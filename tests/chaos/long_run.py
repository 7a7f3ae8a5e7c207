"""`make chaos`: rounds of chaos for CHAOS_SECONDS, by CHAOS_SEED, and their figures.

CHAOS_ROUND plays one round only, as the text of a failed one says. Figures go to `build/chaos`.
"""

import json
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from chaos.disks import Disk, small_disk
from chaos.round import Figures, Plan, play
from chaos.verdict import KINDS
from clusters import Cluster
from rich.console import Console
from rich.table import Table

SECONDS = float(os.environ.get("CHAOS_SECONDS", "600"))
SEED = os.environ.get("CHAOS_SEED") or secrets.token_hex(4)
ROUND_SECONDS = 45.0
BUILD = Path("build") / "chaos"

MIXES = (
    ("postgresql", "Marked", 2),
    ("sqlite", "Acme", 2),
    ("postgresql", "Keyed", 4),
    ("sqlite", "Marked", 2),
    ("postgresql", "Acme", 2),
    ("sqlite", "Keyed", 4),
    ("postgresql", "Marked", 4),
)
"""Database, adapter and number of workers of one round after another."""

console = Console(highlight=False, soft_wrap=True)


def plans() -> Iterator[tuple[int, Plan]]:
    """Give rounds for as long as there is time for them, or the one that is asked for."""
    end = time.monotonic() + SECONDS
    only = os.environ.get("CHAOS_ROUND")
    for number in [int(only)] if only else count(1):
        seconds = min(ROUND_SECONDS, SECONDS)
        yield number, Plan(f"{SEED}/{number}", seconds, *MIXES[(number - 1) % len(MIXES)])
        if time.monotonic() + ROUND_SECONDS / 2 > end:
            return


def test_chaos(cluster: Cluster, sqlite_template: Path, tmp_path: Path) -> None:
    console.print(f"\nchaos for {SECONDS:g} s: CHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS:g}")
    played: list[tuple[Plan, Figures]] = []
    for number, plan in plans():
        folder = tmp_path / f"round-{number}"
        folder.mkdir()
        console.print(f"round {number}: {plan.database}, {plan.adapter}, {plan.workers} workers …")
        with database_of(plan, cluster, sqlite_template, folder) as (url, at):
            figures = play(plan, url, at, folder)
        played.append((plan, figures))
        console.print(
            f"  {figures.tenancies} tenancies, {figures.calls} calls,"
            f" {len(figures.faults)} faults, wrong: {figures.wrong or 'nothing'}"
        )
        total = report(played)
        assert figures.wrong == {}, replay(plan, number, folder)
    show(total)


@contextmanager
def database_of(
    plan: Plan, cluster: Cluster, template: Path, folder: Path
) -> Iterator[tuple[str, Cluster | Disk]]:
    """Give a migrated database of a round's own, and what it is on."""
    if plan.database == "postgresql":
        yield cluster.copy(folder.name.replace("-", "_")), cluster
        return
    with small_disk(folder / "disk") as disk:
        shutil.copyfile(template, folder / "disk" / "nimble.db")
        yield f"sqlite:///{folder / 'disk' / 'nimble.db'}", disk


def report(played: list[tuple[Plan, Figures]]) -> dict[str, Any]:
    """Write what was seen so far, round by round, and give it all together."""
    total = totals([figures for _, figures in played])
    rounds = [{**asdict(plan), **asdict(figures)} for plan, figures in played]
    BUILD.mkdir(parents=True, exist_ok=True)
    shown = {"seed": SEED, "seconds": SECONDS, "totals": total, "rounds": rounds}
    (BUILD / "figures.json").write_text(json.dumps(shown, indent=1) + "\n")
    return total


def totals(played: list[Figures]) -> dict[str, Any]:
    """Add the figures of rounds."""
    summed = ("tenancies", "resources_made", "calls", "calls_failed", "retried")
    taken_up = [figures.taken_up for figures in played if figures.taken_up]
    faults = Counter(what for figures in played for what in figures.faults)
    return {
        **{name: sum(getattr(figures, name) for figures in played) for name in summed},
        "faults": faults.total(),
        **{kind: sum(len(figures.wrong.get(kind, ())) for figures in played) for kind in KINDS},
        "first row of a killed worker taken up after, at most (s)": longest(
            first for first, _ in taken_up
        ),
        "last row of a killed worker taken up after, at most (s)": longest(
            last for _, last in taken_up
        ),
        "faults_by_kind": dict(sorted(faults.items())),
    }


def longest(seconds: Iterable[float]) -> float:
    return round(max(seconds, default=0.0), 2)


def show(total: dict[str, Any]) -> None:
    """Print the figures of all rounds."""
    table = Table(title=f"Chaos, seed {SEED}", show_header=False)
    by_kind = total["faults_by_kind"]
    for name, value in total.items():
        if value is not by_kind:
            table.add_row(name.replace("_", " "), str(value))
    table.add_section()
    for kind, times in by_kind.items():
        table.add_row(kind, str(times))
    console.print(table)


def replay(plan: Plan, number: int, folder: Path) -> str:
    schedule = folder / "schedule.json"
    schedule.write_text(json.dumps([asdict(act) for act in plan.acts()], indent=1))
    return (
        f"to play this round again: make chaos CHAOS_SEED={SEED} CHAOS_ROUND={number}"
        f" CHAOS_SECONDS={SECONDS:g}; its schedule is {schedule}, its logs lie beside it"
    )

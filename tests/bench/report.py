"""What a run leaves behind: `results.json`, plots, and how it differs from the committed one."""

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

from tests.bench.harness import Result

COMMITTED = Path("docs/performance/results.json")
"""The results that are compared with, and that the documentation shows."""
WORSE = 1.25
"""By how much a figure may be worse than the committed one before it is told."""
PACKAGES = (
    "nimble-lifecycle",
    "fastmcp",
    "sqlalchemy",
    "sqlmodel",
    "psycopg",
    "asyncpg",
    "procrastinate",
    "pgqueuer",
)


def write(
    results: Sequence[Result], databases: Mapping[str, str], out: Path, *, quick: bool
) -> None:
    """Write `results.json` and the plots."""
    out.mkdir(exist_ok=True)
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": {
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "load": os.getloadavg()[0],
        },
        "versions": {name: version(name) for name in PACKAGES} | dict(databases),
    }
    figures = [{**result.as_json(), **about} for result in results]
    (out / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
    _plot(results, out)


def regressions(results: Sequence[Result]) -> Iterator[str]:
    """Say which figures are worse than the committed ones; nothing fails by it."""
    if not COMMITTED.exists():
        return
    known = {figure["name"]: figure["ratio"] for figure in json.loads(COMMITTED.read_text())}
    for result in results:
        before = known.get(result.goal.name)
        if not before or not result.ratio:
            continue
        change = result.ratio / before if result.goal.sense == "<=" else before / result.ratio
        if change > WORSE:
            yield f"worse than committed: {result.goal.name} {result.ratio:.3g}, was {before:.3g}"


def _plot(results: Sequence[Result], out: Path) -> None:
    """Draw how near each figure is to its goal: 1 is the goal, left of it is better."""
    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "nimble"
    shown = [result for result in reversed(results) if result.goal.bound]
    if not shown:
        return
    figure, axes = pyplot.subplots(figsize=(9, 0.3 * len(shown) + 1.2))
    for at, result in enumerate(shown):
        low, middle, high = sorted(_share(result, each) for each in _spread(result))
        colour = "tab:green" if result.holds else "tab:red"
        axes.plot([low, high], [at, at], color=colour, linewidth=3, alpha=0.4)
        axes.plot([middle], [at], "o", color=colour)
    axes.set_yticks(range(len(shown)), [result.goal.name for result in shown])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("share of what the goal allows (log); left of 1 holds")
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    for ending in ("svg", "png"):
        figure.savefig(
            out / f"goals.{ending}", dpi=120, metadata={"Date": None} if ending == "svg" else None
        )
    pyplot.close(figure)


def _spread(result: Result) -> tuple[float, float, float]:
    return result.low, result.ratio, result.high


def _share(result: Result, value: float) -> float:
    value = max(value, 1e-9)
    return value / result.goal.bound if result.goal.sense == "<=" else result.goal.bound / value

"""What a run leaves behind: `results.json`, plots, and how it differs from the committed one."""

import json
import os
import platform
import shutil
import timeit
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

from tests.benchmarks.databases import Databases
from tests.benchmarks.harness import Result

PAGE = Path("docs/performance.md")
PUBLISHED = Path("docs/performance")
COMMITTED = PUBLISHED / "results.json"
"""The results that are compared with, and that the documentation shows."""
TABLE = ("<!-- figures -->", "<!-- /figures -->")
"""What the table of the page stands between."""
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
    "dbos",
)


def write(results: Sequence[Result], databases: Databases, out: Path, *, quick: bool) -> None:
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
            "additions": _additions(),
            "commit": databases.commit(),
        },
        "versions": {name: version(name) for name in PACKAGES} | databases.version(),
    }
    figures = [{**result.as_json(), **about} for result in results]
    (out / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
    _plot(results, out)


def _additions() -> float:
    """Give how many numbers Python adds in a second: what ratios hang on besides the disk."""
    rounds = timeit.repeat("for n in numbers: sum += n", "sum, numbers = 0, range(10**6)", number=1)
    return 10**6 / min(rounds)


def publish(out: Path) -> None:
    """Make these results those that are compared with, and that the page shows."""
    PUBLISHED.mkdir(exist_ok=True)
    for name in ("results.json", "goals.svg", "goals.png"):
        shutil.copyfile(out / name, PUBLISHED / name)
    page = PAGE.read_text()
    head, rest = page.split(TABLE[0])
    _, tail = rest.split(TABLE[1])
    table = "\n".join(_table(json.loads(COMMITTED.read_text())))
    PAGE.write_text(f"{head}{TABLE[0]}\n{table}\n{TABLE[1]}{tail}")


def _table(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    first = figures[0]
    machine, versions = first["machine"], first["versions"]
    yield (
        f"Measured {first['at']} by `make bench{'-quick' if first['quick'] else ''}` with"
        f" {machine['processors']} processors under a load of {machine['load']:.1f}, Python"
        f" {machine['python']}, PostgreSQL {versions['postgresql']} (fsync {versions['fsync']})."
        f" Python adds {machine['additions'] / 1e6:.0f} million numbers a second there, and a"
        f" commit of one row takes {machine['commit'] * 1000:.2g} ms."
    )
    if first["quick"]:
        yield "Where a million rows are named, a quick run has a hundred thousand."
    yield ""
    yield "| figure | measured | spread | goal | holds | what |"
    yield "|---|---|---|---|---|---|"
    for each in figures:
        unit = "" if each["unit"] == "ratio" else f" {each['unit']}"
        spread = f"{each['low']:.3g} to {each['high']:.3g}"
        holds = "" if each["goal"] == "-" else "yes" if each["holds"] else "**no**"
        cells = (f"`{each['name']}`", f"{each['ratio']:.3g}{unit}", spread, each["goal"], holds)
        yield f"| {' | '.join(cells)} | {each['what']} |"


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
    value, bound = max(value, 1e-9), result.goal.bound or 1.0
    return value / bound if result.goal.sense == "<=" else bound / value

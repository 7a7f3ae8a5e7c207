"""`python -m tests.simulation`: replay one seed, or live through many.

Data goes to stdout, talk to stderr. Exit codes: 0 every promise was kept, 1 one was not.
"""

import hashlib
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from time import perf_counter

from cyclopts import App
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from tests.simulation.simulation import Verdict, simulate
from tests.simulation.stores import Stores

app = App(name="python -m tests.simulation", help="Simulate worlds in which everything fails.")

MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory."""

BATCH = 20

PROMISES = ("doubled", "lost", "leaked", "foreign touched")


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(app())


@app.default
def run(
    *,
    seed: int | None = None,
    seeds: int = 200,
    first: int = 0,
    jobs: int = 2,
    database_url: str | None = None,
    digest: bool = False,
) -> int:
    """Live through seeds.

    Parameters
    ----------
    seed
        Only this one, with its trace on stdout.
    seeds
        How many.
    first
        The first of them.
    jobs
        Processes at a time.
    database_url
        A database to use, and empty, instead of SQLite files (with `--jobs 1`).
    digest
        One line for each seed with a digest of its trace.
    """
    if seed is not None:
        return _replay(seed, database_url)
    started = perf_counter()
    verdicts = _all(range(first, first + seeds), jobs, database_url)
    figures: Counter[str] = Counter()
    failed = 0
    for seed_, wrong, replay, its_figures, its_digest in verdicts:
        figures.update(its_figures)
        figures["seeds"] += 1
        if digest:
            print(f"{seed_} {its_digest}")  # noqa: T201
        if wrong:
            failed += 1
            _say(f"seed {seed_} broke a promise: {wrong[0]}\n  replay it: {replay}")
    _show(figures, perf_counter() - started)
    return 1 if failed else 0


Told = tuple[int, list[str], str, "Counter[str]", str]


def _all(seeds: range, jobs: int, database_url: str | None) -> Iterator[Told]:
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for told in _lived(batches, jobs, database_url):
            progress.advance(task)
            yield told


def _lived(batches: list[range], jobs: int, database_url: str | None) -> Iterator[Told]:
    if database_url is not None or jobs == 1:
        with stores(database_url) as own:
            for batch in batches:
                yield from (_told(simulate(seed, own)) for seed in batch)
        return
    # Fresh interpreters: nothing of this one reaches into a simulation.
    with _memory() as directory, multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for told in pool.imap(partial(_batch, directory), batches):
            yield from told


def _batch(directory: str, seeds: range) -> list[Told]:
    own = _own(directory)
    return [_told(simulate(seed, own)) for seed in seeds]


@cache
def _own(directory: str) -> Stores:
    """Give this process's stores, kept from batch to batch."""
    return Stores(f"sqlite:///{directory}/{os.getpid()}.db")


def _told(verdict: Verdict) -> Told:
    digest = hashlib.sha256("\n".join(verdict.trace).encode()).hexdigest()
    return verdict.seed, verdict.wrong, verdict.replay, verdict.figures, digest


@contextmanager
def stores(database_url: str | None) -> Iterator[Stores]:
    """Give the stores of a database, by default of a new file in memory."""
    with _memory() as directory:
        made = Stores(database_url or f"sqlite:///{directory}/simulation.db")
        try:
            yield made
        finally:
            made.close()


def _memory() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


def _replay(seed: int, database_url: str | None) -> int:
    with stores(database_url) as own:
        verdict = simulate(seed, own)
    print(verdict.scenario, *verdict.trace, sep="\n")  # noqa: T201
    for wrong in verdict.wrong:
        _say(f"seed {seed}: {wrong}")
    return 1 if verdict.wrong else 0


def _show(figures: "Counter[str]", seconds: float) -> None:
    table = Table(box=None, show_header=False)
    for name in ("seeds", "tenancies", "created", "released", *PROMISES):
        table.add_row(name, str(figures.pop(name, 0)))
    table.add_section()
    for name, number in sorted(figures.items()):
        table.add_row(name, str(number))
    Console().print(table)
    _say(f"{seconds:.0f} s")


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201

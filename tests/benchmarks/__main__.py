"""`python -m tests.benchmarks`: measure, print, write `bench-out/`, and say whether goals hold."""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from tests.benchmarks import footprint, growth, handler, reconcile, rows, wakeup
from tests.benchmarks.databases import NoServerError, databases
from tests.benchmarks.goals import BY_NAME
from tests.benchmarks.harness import Bench, say
from tests.benchmarks.report import publish, regressions, write

GROUPS = (handler, reconcile, wakeup, rows, growth, footprint)
OUT = Path("bench-out")


async def measure(bench: Bench) -> None:
    """Measure whatever is asked for, one group after the other."""
    for group in GROUPS:
        await group.run(bench)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller fleets")
    parser.add_argument("--publish", action="store_true", help="show the last run in docs/")
    parser.add_argument("figures", nargs="*", help="names of figures; all where none is named")
    given = parser.parse_args()
    if unknown := [name for name in given.figures if name not in BY_NAME]:
        parser.error(f"no such figure: {', '.join(unknown)}")
    if given.publish:
        publish(OUT)
        return 0
    begin = time.monotonic()
    try:
        with databases() as found:
            bench = Bench(given.quick, found, wanted=frozenset(given.figures))
            asyncio.run(measure(bench))
            write(bench.results, found, OUT, quick=given.quick)
    except NoServerError as error:
        say(str(error))
        return 1
    for line in regressions(bench.results):
        say(line)
    missed = [result.goal.name for result in bench.results if not result.holds]
    say(f"{len(bench.results)} figures in {time.monotonic() - begin:.0f} s, in {OUT}/")
    say(f"missed: {', '.join(missed)}" if missed else "every goal holds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks of what was seen of all calls together."""

from statistics import median
from typing import Final

from nimble_lifecycle.testing.conformance.bench import Bench, Finding, NotChecked
from nimble_lifecycle.testing.conformance.creating import no_strays

LONGEST_HOLD: Final = 0.1
"""Seconds for which an async method may usually hold the event loop."""

ENOUGH: Final = 3
"""Calls from which on something can be called usual."""


async def ids(bench: Bench) -> None:
    """See that every id that was given can be kept."""
    for name, wrong in bench.observed.unusable.items():
        raise Finding(f"{name}: {wrong}")


async def time_limit(bench: Bench) -> None:
    """See that no call was longer than it may be."""
    limit = bench.vendor.time_limit.total_seconds()
    for name in sorted(bench.observed.overrun):
        raise Finding(
            f"{name} was not over within time_limit ({limit:g} s), and its outcome is unknown then:"
            " give its requests a shorter time-out, return InProgress, or declare a longer limit"
        )


async def event_loop(bench: Bench) -> None:
    """See that async methods let others run while they wait."""
    holds = bench.observed.holds
    if not holds:
        raise NotChecked("the adapter's methods are plain: they run on threads")
    for name, seconds in sorted(holds.items()):
        # What is usual counts: a busy machine lets any single call look long.
        if len(seconds) >= ENOUGH and median(seconds) > LONGEST_HOLD:
            raise Finding(
                f"{name} holds the event loop for {median(seconds):.2g} s, and nothing else runs"
                " meanwhile, its own time limit included: await what waits, or make it a plain def"
            )


async def cancellation(bench: Bench) -> None:
    """See that a call that is cancelled ends."""
    if not bench.observed.interrupted:
        raise NotChecked("no call could be interrupted")
    for name, how in sorted(bench.observed.swallowed.items()):
        raise Finding(
            f"{name} was cancelled and {how}: never swallow asyncio.CancelledError; catch named"
            " exceptions, and raise it again from wherever it must be caught"
        )


async def untouched(bench: Bench) -> None:
    """See that what was there before the run is there as it was."""
    if not bench.before:
        raise NotChecked("nothing was there before the run, as far as can be seen")
    listing = await bench.listing()
    if listing is None:
        raise NotChecked("there is no inventory and no Sandbox.resources to see it by")
    now = {each.external_id: each for each in listing}
    for name, shown in bench.before.items():
        if name not in now:
            raise Finding(f"{name} was there before the run and is gone: it was not the adapter's")
        if bench.sees and (now[name].key, now[name].details) != (shown.key, shown.details):
            raise Finding(f"{name} was there before the run and was changed: it was not ours")


async def one_each(bench: Bench) -> None:
    """See, once every look-up must see it, that nothing is there that no row knows of."""
    if await bench.listing() is None:
        raise NotChecked("there is no inventory and no Sandbox.resources to see it by")
    await bench.clock.sleep(bench.lag)
    await no_strays(bench, "the run")

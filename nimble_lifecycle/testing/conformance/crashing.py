"""Checks of what is left when a call is ended in the middle, at each place where it waits."""

from functools import partial

from nimble_lifecycle.testing.conformance.bench import Bench, Finding, NotChecked, at_once
from nimble_lifecycle.testing.conformance.creating import no_strays
from nimble_lifecycle.testing.conformance.interrupts import Cut
from nimble_lifecycle.testing.conformance.lives import create, release

MOST_POINTS = 24
"""Crash points that are tried at most, spread over all."""


async def interrupted_create(bench: Bench) -> None:
    """End a create at each of its waits, then settle it as the next worker would."""
    if not bench.repeats and not bench.can_find:
        raise NotChecked("without repeatable or find a person settles what was interrupted")
    counted = Cut()
    await create(bench, bench.row(), counted)
    points = _spread(counted.waits)

    async def live(cut: Cut) -> None:
        try:
            await create(bench, bench.row(), cut)
        except Finding as finding:
            raise Finding(f"interrupted {cut} of {points[-1].at}: {finding}") from finding

    await at_once(partial(live, cut) for cut in points)
    await no_strays(bench, f"one of {len(points)} creates that were interrupted")


async def interrupted_release(bench: Bench) -> None:
    """End a release at each of its waits, then release again."""
    if bench.vendor.on_release == "keep":
        raise NotChecked('on_release is "keep": the worker never calls release')
    counted = Cut()
    await release(bench, await create(bench, bench.row()), counted)
    points = _spread(counted.waits)

    async def leave(cut: Cut) -> None:
        row = await create(bench, bench.row())
        try:
            await release(bench, row, cut)
        except Finding as finding:
            raise Finding(f"interrupted {cut} of {points[-1].at}: {finding}") from finding
        if await bench.is_gone(row) is False:
            raise Finding(f"interrupted {cut} and repeated, release left {row.external_id} there")

    await at_once(partial(leave, cut) for cut in points)


def _spread(waits: int) -> list[Cut]:
    """Give the places to cut at; NotChecked where there is none."""
    if not waits:
        raise NotChecked("the adapter never waits on the event loop, so it cannot be cut in two")
    every = [Cut(at, answered) for at in range(1, waits + 1) for answered in (False, True)]
    step = max(1.0, len(every) / MOST_POINTS)
    return [every[int(number * step)] for number in range(min(len(every), MOST_POINTS))]

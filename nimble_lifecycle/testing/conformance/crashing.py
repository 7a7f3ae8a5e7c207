"""Checks of what is left when a call is ended in the middle, at each place where it waits."""

from collections.abc import AsyncIterator
from typing import Final

from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.testing.conformance.bench import Bench, Finding, NotChecked
from nimble_lifecycle.testing.conformance.cleaning import tidy
from nimble_lifecycle.testing.conformance.creating import is_usable, no_strays
from nimble_lifecycle.testing.conformance.interrupts import Cut
from nimble_lifecycle.testing.conformance.lives import create, release

MOST_WAITS: Final = 100
"""Waits of one create or release that are tried at most."""


async def interrupted_create(bench: Bench) -> None:
    """End a create at each of its waits, then settle it as the next worker would."""
    if not bench.repeats and not bench.can_find:
        raise NotChecked("without repeatable or find a person settles what was interrupted")
    async for cut in _cuts(bench):
        try:
            await _must_be_usable(bench, await create(bench, bench.row(), cut))
            await no_strays(bench, "that create")
        except Finding as finding:
            raise Finding(f"interrupted {cut}: {finding}") from finding


async def interrupted_release(bench: Bench) -> None:
    """End a release at each of its waits, then release again."""
    if bench.vendor.on_release == "keep":
        raise NotChecked('on_release is "keep": the worker never calls release')
    async for cut in _cuts(bench):
        row = await create(bench, bench.row())
        try:
            await release(bench, row, cut)
        except Finding as finding:
            raise Finding(f"interrupted {cut}: {finding}") from finding
        if await bench.is_gone(row) is False:
            raise Finding(f"interrupted {cut} and repeated, release left {row.external_id} there")


async def _cuts(bench: Bench) -> AsyncIterator[Cut]:
    """Give cut after cut, until one is not met any more; NotChecked where none ever is."""
    for at in range(1, MOST_WAITS + 1):
        for answered in (False, True):
            cut = Cut(at, answered)
            yield cut
            await tidy(bench)
            if not cut.met and at == 1:
                raise NotChecked("the adapter never waits on the event loop: it cannot be cut")
            if not cut.met:
                return


async def _must_be_usable(bench: Bench, row: Tenancy) -> None:
    if "usable" in bench.passed and not await is_usable(bench, row):
        raise Finding(
            f"{row.external_id} is called ready and cannot be used: where a create is taken up"
            " again, see what is missing and do that"
        )

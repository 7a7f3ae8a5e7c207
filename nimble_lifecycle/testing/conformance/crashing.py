"""Checks of what is left when a call is ended in the middle, at each place where it waits."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.vendor import External
from nimble_lifecycle.testing.conformance.bench import Bench, Finding, NotChecked, Warned
from nimble_lifecycle.testing.conformance.cleaning import tidy
from nimble_lifecycle.testing.conformance.creating import is_usable, no_strays
from nimble_lifecycle.testing.conformance.interrupts import Cut
from nimble_lifecycle.testing.conformance.lives import create, release

MOST_WAITS: Final = 100
"""Waits of one create or release that are tried at most."""


async def next_worker(bench: Bench) -> None:
    """Let another object of the class go on with what the first one made."""
    if bench.make is None:
        raise NotChecked("it takes the adapter's class: of one object nobody makes another")
    row = bench.row()
    made = await create(bench, row)
    async with bench.succession():
        bench.take_over()
        try:
            await _goes_on(bench, row, made)
        except Finding as finding:
            words = f"by another object of the class, as the next worker has: {finding}"
            if not await _sees_the_vendor(bench, made):
                raise Warned(
                    f"{words}, and nothing shows that it has the same vendor. Where a double of the"
                    " vendor lives in the adapter object, name an object rather than the class"
                ) from finding
            raise Finding(
                f"{words}; what a worker must know is kept at the vendor, and nothing of it in the"
                " adapter object"
            ) from finding


async def _sees_the_vendor(bench: Bench, made: Tenancy) -> bool:
    """Whether the other object has the vendor of the first, by anything that it or we can see."""
    if isinstance(await bench.call("find", made), External):
        return True
    ids = bench.life(made).made
    if bench.sees and len(ids & {each.external_id for each in await bench.sandbox.resources()}) > 1:
        return True
    return bench.lists and bool(ids & {each.external_id for each in await bench.inventory()})


async def _goes_on(bench: Bench, row: Tenancy, made: Tenancy) -> None:
    """Look up, create again, list and release, as far as that is known to work."""

    async def is_found() -> bool | None:
        found = await bench.asked("find", made)
        return True if isinstance(found, External) else None

    async def is_listed() -> bool | None:
        return any(each.external_id == made.external_id for each in await bench.inventory()) or None

    if "find" in bench.passed and not await bench.within_lag(is_found):
        raise Finding(f"find does not see {made.external_id}")
    if "repeat" in bench.passed:
        again = await create(bench, row)
        if again.external_id != made.external_id:
            raise Finding(f"the key of {made.external_id} gave {again.external_id}")
    if bench.lists and not await bench.within_lag(is_listed):
        raise Finding(f"inventory misses {made.external_id}")
    if "release" in bench.passed:
        await release(bench, made)
        if await bench.is_gone(made) is False:
            raise Finding(f"release left {made.external_id} there")


async def interrupted_create(bench: Bench) -> None:
    """End a create at each of its waits, then settle it as the next worker would."""
    if not bench.repeats and not bench.can_find:
        raise NotChecked("without repeatable or find a person settles what was interrupted")
    for taken_up in _by_whom(bench):
        async for cut in _cuts(bench):
            async with taken_up():
                await _create(bench, cut)


async def interrupted_release(bench: Bench) -> None:
    """End a release at each of its waits, then release again."""
    if bench.vendor.on_release == "keep":
        raise NotChecked('on_release is "keep": the worker never calls release')
    for taken_up in _by_whom(bench):
        async for cut in _cuts(bench):
            row = await create(bench, bench.row())
            async with taken_up():
                await _release(bench, row, cut)


def _by_whom(bench: Bench) -> list[Callable[[], AbstractAsyncContextManager[None]]]:
    """Give who goes on after a cut: the same object, as after a time-out, and another one's."""
    return [nullcontext, bench.succession] if "next-worker" in bench.passed else [nullcontext]


async def _create(bench: Bench, cut: Cut) -> None:
    try:
        await _must_be_usable(bench, await create(bench, bench.row(), cut))
        await no_strays(bench, "that create")
    except Finding as finding:
        raise Finding(f"{_interrupted(bench, cut)}: {finding}") from finding


async def _release(bench: Bench, row: Tenancy, cut: Cut) -> None:
    try:
        await release(bench, row, cut)
    except Finding as finding:
        raise Finding(f"{_interrupted(bench, cut)}: {finding}") from finding
    if await bench.is_gone(row) is False:
        words = f"repeated, release left {row.external_id} there"
        raise Finding(f"{_interrupted(bench, cut)} and {words}")


def _interrupted(bench: Bench, cut: Cut) -> str:
    by = "" if bench.heir is None else ", taken up by another object of the class"
    return f"interrupted {cut}{by}"


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

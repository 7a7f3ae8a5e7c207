"""Checks of how an adapter reads a vendor that refuses, fails or falls silent."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeAlias

from nimble_lifecycle.errors import (
    CredentialError,
    Gone,
    NameConflict,
    PermanentError,
    RateLimited,
    Unavailable,
    UnknownOutcome,
    VendorError,
)
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.calls import Ended
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Released, Vendor
from nimble_lifecycle.testing.conformance.bench import Bench, Finding, NotChecked, said
from nimble_lifecycle.testing.conformance.cleaning import tidy
from nimble_lifecycle.testing.conformance.creating import no_strays
from nimble_lifecycle.testing.conformance.lives import create, finished, recovered, release
from nimble_lifecycle.testing.sandbox import RETRY_AFTER, Trouble

Met: TypeAlias = Mapping[str, Ended | list[External]]
"""How each method ended under a trouble."""

MOST_REQUESTS: Final = 12
"""Requests of one create whose answers are lost in turn, at most."""

_SUCCESS: Final = (Provisioned, InProgress, Released, External, type(None), list)
_FINAL: Final = (PermanentError, NameConflict, Gone)
"""What ends the matter: for a release it is success or needs a person."""


async def credential(bench: Bench) -> None:
    """Call with a credential that is refused, and with one that lost its right."""
    for trouble in (Trouble.REFUSED, Trouble.FORBIDDEN):
        await _all_raise(bench, trouble, CredentialError)


async def rate_limit(bench: Bench) -> None:
    """Call while the vendor asks for patience."""
    for name, outcome in (await _all_raise(bench, Trouble.LIMITED, RateLimited)).items():
        after: object = getattr(outcome, "after", None)
        if not isinstance(after, (int, float)) or not RETRY_AFTER / 2 <= after <= RETRY_AFTER * 2:
            raise Finding(
                f"Retry-After was {RETRY_AFTER:g}, and {name} raised RateLimited(after={after}):"
                " pass it on, or the vendor is asked again too soon"
            )


async def unreachable(bench: Bench) -> None:
    """Call while nobody listens."""
    await _all_raise(bench, Trouble.UNREACHABLE, Unavailable)


async def no_answer(bench: Bench) -> None:
    """Call while the vendor fails, and while it is silent."""
    for trouble in (Trouble.FAILING, Trouble.SILENT):
        for name, outcome in (await _met(bench, trouble)).items():
            if isinstance(outcome, (*_SUCCESS, *_FINAL)):
                raise Finding(
                    f"with {trouble}, {name} {_said(outcome)}: nobody knows what the vendor did;"
                    " raise UnknownOutcome from what changes something, TemporaryError from a read"
                )


async def lost_answer(bench: Bench) -> None:
    """Lose the answer to each request of a create in turn, and settle that as the worker would."""
    if not bench.repeats and not bench.can_find:
        raise NotChecked("without repeatable or find a person settles what was interrupted")
    for trouble in (Trouble.ANSWER_LOST, Trouble.ERROR_AFTER, Trouble.ANSWER_LATE):
        for number in range(MOST_REQUESTS):
            row = bench.row()
            async with _under(bench, trouble, number) as vendor:
                outcome = await bench.call("provision", row, by=vendor)
            if isinstance(outcome, (Provisioned, InProgress)):  # it has fewer requests than that
                await finished(bench, row, outcome)
                break
            await _is_settled(bench, row, outcome, f"with {trouble} (request {number + 1})")
        await _lost_release(bench, trouble)
        await tidy(bench)
    await no_strays(bench, "a create whose answer was lost")


async def _is_settled(bench: Bench, row: Tenancy, outcome: Ended, where: str) -> None:
    certain = isinstance(outcome, VendorError) and not isinstance(outcome, UnknownOutcome)
    if isinstance(outcome, PermanentError) or (certain and await bench.was_made(row)):
        raise Finding(
            f"{where}, provision {said(outcome)}, which says that certainly nothing was made:"
            " raise UnknownOutcome for whatever was sent and not plainly answered"
        )
    try:
        await finished(bench, row, await recovered(bench, row))
    except Finding as finding:
        raise Finding(f"{where}: {finding}") from finding


async def _lost_release(bench: Bench, trouble: Trouble) -> None:
    if bench.vendor.on_release == "keep":
        return
    row = await create(bench, bench.row())
    async with _under(bench, trouble) as vendor:
        outcome = await bench.call("release", row, by=vendor)
    if isinstance(outcome, (PermanentError, NameConflict)):
        raise Finding(f"with {trouble}, release {said(outcome)}: raise UnknownOutcome")
    await release(bench, row)


async def _all_raise(bench: Bench, trouble: Trouble, kind: type[VendorError]) -> Met:
    met = await _met(bench, trouble)
    for name, outcome in met.items():
        if not isinstance(outcome, kind):
            lost = " (a lost right must not look like a finished release)"
            raise Finding(
                f"with {trouble}, {name} {_said(outcome)}: raise {kind.__name__}"
                + (lost if name == "release" and isinstance(outcome, (Released, Gone)) else "")
            )
    return met


async def _met(bench: Bench, trouble: Trouble) -> Met:
    """Call every method under a trouble, and see that it did no harm."""
    kept = bench.subject()
    calls = {"provision": bench.row()}
    if bench.looks_up:
        calls["find"] = kept
    if bench.vendor.on_release == "delete" and "release" not in bench.failed:
        calls["release"] = await create(bench, bench.row())
    async with _under(bench, trouble) as vendor:
        called = (bench.call(name, row, by=vendor) for name, row in calls.items())
        listed = _listed(bench, vendor)
        *ended, listing = await asyncio.gather(*called, listed)
    met: dict[str, Ended | list[External]] = dict(zip(calls, ended, strict=True))
    if "inventory" in bench.passed:
        met["inventory"] = listing
    return met


async def _listed(bench: Bench, vendor: Vendor) -> Exception | list[External]:
    try:
        return await bench.inventory(vendor)
    except Exception as error:  # noqa: BLE001  # an adapter may raise anything
        return error


def _said(outcome: Ended | list[External]) -> str:
    return f"ended with {len(outcome)} entries" if isinstance(outcome, list) else said(outcome)


@asynccontextmanager
async def _under(bench: Bench, trouble: Trouble, after: int = 0) -> AsyncIterator[Vendor]:
    async with AsyncExitStack() as stack:
        try:
            context = bench.sandbox.under(bench.vendor, trouble, after)
            vendor = await stack.enter_async_context(context)
        except NotImplementedError:
            raise NotChecked(f"it takes a Sandbox that can make {trouble}") from None
        yield vendor

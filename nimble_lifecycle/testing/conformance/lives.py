"""A row's way through the adapter, as the worker leads it: create, poll, recover, release."""

from dataclasses import replace

from nimble_lifecycle.errors import Gone, NameConflict
from nimble_lifecycle.protocol import Phase, Tenancy
from nimble_lifecycle.reconciler.calls import Ended
from nimble_lifecycle.reconciler.settled import OPERATION_LIMIT
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Released
from nimble_lifecycle.testing.conformance.bench import SHORTEST_WAIT, Bench, Finding, readied, said
from nimble_lifecycle.testing.conformance.interrupts import Cut, Interrupted


async def create(bench: Bench, tenancy: Tenancy, cut: Cut | None = None) -> Tenancy:
    """Bring a row to ready; Finding where that cannot be done."""
    outcome = await provisioned(bench, tenancy, cut)
    if isinstance(outcome, Interrupted):
        outcome = await recovered(bench, tenancy)
    return await finished(bench, tenancy, outcome, cut)


async def finished(
    bench: Bench, tenancy: Tenancy, outcome: Ended, cut: Cut | None = None
) -> Tenancy:
    """Bring a create that was begun to its end."""
    if isinstance(outcome, InProgress):
        outcome = await polled(bench, tenancy, outcome, cut)
        if isinstance(outcome, Gone):  # forgotten, so that nobody knows what became of it
            return await finished(bench, tenancy, await recovered(bench, tenancy))
    if isinstance(outcome, (Provisioned, External)):
        return readied(tenancy, outcome)
    raise Finding(f"a create did not come to its end: the adapter {said(outcome)}")


async def provisioned(bench: Bench, tenancy: Tenancy, cut: Cut | None = None) -> Ended:
    """Call `provision`, and `find` once where the name is taken."""
    outcome = await bench.asked("provision", tenancy, cut=cut)
    if isinstance(outcome, NameConflict) and bench.looks_up:
        found = await bench.asked("find", tenancy)
        return found if isinstance(found, External) else outcome
    return outcome


async def recovered(bench: Bench, tenancy: Tenancy) -> Ended:
    """Settle a create of unknown outcome: look it up, and repeat its key where it is not found."""
    end = bench.clock.monotonic() + bench.lag
    while bench.looks_up:
        found = await bench.asked("find", tenancy)
        if isinstance(found, (External, InProgress)):
            return found
        if found is not None and not isinstance(found, Gone):
            raise Finding(f"an interrupted create could not be looked up: find {said(found)}")
        if bench.repeats or bench.clock.monotonic() >= end:
            break
        await bench.clock.sleep(max(SHORTEST_WAIT, bench.lag / 20))
    return await provisioned(bench, tenancy)


async def polled(
    bench: Bench, tenancy: Tenancy, begun: InProgress, cut: Cut | None = None
) -> Ended:
    """Poll an operation until it ends; Finding where it does not, or cannot be polled."""
    if not bench.vendor.implements("poll"):
        raise Finding("the adapter returned InProgress but has no method poll: add one")
    limit = min(OPERATION_LIMIT if begun.deadline is None else begun.deadline, bench.timeout)
    end, outcome = bench.clock.monotonic() + limit, begun
    while (left := end - bench.clock.monotonic()) > 0:
        await bench.clock.sleep(min(left, outcome.poll_after))
        tenancy = replace(tenancy, operation_id=outcome.operation_id)
        polled = await bench.asked("poll", tenancy, cut=cut)
        if isinstance(polled, InProgress):
            outcome = polled
        elif not isinstance(polled, Interrupted):
            return polled
    bench.life(tenancy).stuck = True
    raise Finding(
        f"an operation was still in progress after {limit:g} s, its deadline or our limit"
        " (--timeout): poll must come to Provisioned, Released or an error"
    )


async def release(bench: Bench, tenancy: Tenancy, cut: Cut | None = None) -> None:
    """Release `tenancy.external_id`; Finding where that does not come to its end."""
    leaving = replace(tenancy, phase=Phase.RELEASING, operation_id=None)
    outcome = await bench.asked("release", leaving, cut=cut)
    if isinstance(outcome, Interrupted):
        outcome = await bench.asked("release", leaving)
    if isinstance(outcome, InProgress):
        outcome = await polled(bench, leaving, outcome, cut)
        if isinstance(outcome, Gone):  # perhaps only the operation is: release itself will tell
            outcome = await bench.asked("release", leaving)
    if isinstance(outcome, InProgress):
        raise Finding(
            "poll raised Gone for a release and release began it anew, which would go on for ever:"
            " where there is nothing to remove, let release say so at once, or poll say Released"
        )
    if not isinstance(outcome, (Released, Gone)):
        raise Finding(f"release {said(outcome)}: it must come to Released or Gone")
    bench.released.add(str(tenancy.external_id))

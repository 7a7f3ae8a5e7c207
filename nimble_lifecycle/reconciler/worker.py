"""The loop that makes the vendor match the rows, for ever.

A stream of slots: rows are claimed for free slots only, each runs one bounded step, and steps that
end together are settled together. A wake-up only makes the next look come sooner. Nothing here
holds state that matters: kill it anywhere, and the rows say how to go on.
"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial

from nimble_lifecycle.errors import (
    ConfigurationError,
    SharedResource,
    StoreError,
    TemporaryError,
    VendorError,
)
from nimble_lifecycle.protocol import Phase, Why
from nimble_lifecycle.reconciler.calls import OverrunError, outcome_of_task
from nimble_lifecycle.reconciler.limits import Limits, new_owner, policy_of, rules_of
from nimble_lifecycle.reconciler.outcome import behind, settlement, shared
from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.reconciler.settled import pause_of
from nimble_lifecycle.reconciler.settler import Settler
from nimble_lifecycle.reconciler.steps import Steps
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.store import Claim, Settlement, WorkStore
from nimble_lifecycle.store.ports import Hop

log = logging.getLogger("nimble_reconcile")

IDLE_WITHIN = 10.0
"""Seconds: a worker told to stop when idle waits for what is due sooner than that."""

TRIM_INTERVAL = 3600.0
"""Seconds between two trims of the call log."""

PARTING = 1.0
"""Seconds that calls which are left behind get to take their cancellation."""


class Worker:
    """One worker for one vendor on one database; belongs to one event loop.

    `database` runs the store's calls, `threads` the adapter's plain methods.
    """

    def __init__(
        self,
        vendor: Vendor,
        store: WorkStore,
        limits: Limits,
        *,
        database: Hop,
        threads: Hop,
        owner: str | None = None,
    ) -> None:
        self._vendor = vendor
        self._store = store
        self._limits = limits
        self._clock = store.clock
        self._rules = rules_of(vendor, limits, owner or new_owner())
        self._policy = policy_of(vendor, limits)
        self._limit = vendor.time_limit.total_seconds()
        self._steps = Steps(vendor, store.clock, threads)
        self._settler = Settler(store, database, actor=self._rules.owner, again=limits.poll)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._lost = 0
        self._all_lost = False
        self._trim_at = 0.0

    # -- from outside ----------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim nothing more; let calls in flight end within the drain time."""
        self._stopping.set()
        self._wake.set()

    @property
    def all_slots_lost(self) -> bool:
        """Whether it stopped because every slot was held by a call that does not end."""
        return self._all_lost

    def wake(self) -> None:
        """Look at the rows now."""
        self._wake.set()

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop`, or until nothing is left to do soon.

        Raises VendorError when the adapter, as an async context manager, cannot be entered or left,
        or whatever ConfigurationError it raises itself.
        """
        async with AsyncExitStack() as stack:
            await self._enter(stack)
            settler = asyncio.create_task(self._settler.run())
            stack.push_async_callback(_cancelled, settler)
            await self._loop(until_idle=until_idle)
            await self._drain()

    async def _enter(self, stack: AsyncExitStack) -> None:
        """Enter an adapter that is an async context manager; it is left when the stack ends."""
        if not isinstance(self._vendor, AbstractAsyncContextManager):
            return
        vendor = self._vendor

        async def leave() -> None:
            try:
                await vendor.__aexit__(None, None, None)
            except Exception as error:
                raise VendorError(f"the adapter could not close: {described(error)}") from error

        try:
            await vendor.__aenter__()
        except ConfigurationError:  # the author's own words to the operator
            raise
        except Exception as error:
            raise VendorError(f"the adapter could not open: {described(error)}") from error
        stack.push_async_callback(leave)

    # -- the loop --------------------------------------------------------------------------------

    async def _loop(self, *, until_idle: bool) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                more = await self._claim()
                if until_idle and not more and await self._is_idle():
                    return
                await self._trim()
            except StoreError:  # told by the settler; it is tried again
                more = False
            if not more:
                await _first(self._wake.wait(), self._clock.sleep(self._limits.poll))

    async def _claim(self) -> bool:
        """Start what can be started; give whether to look again at once."""
        free = self._limits.concurrency - len(self._in_flight)
        if free <= 0:
            return False
        # Counted from before the claim, whose answer may be long on the way; two calls must fit.
        latest = self._clock.monotonic() + self._rules.lease - 2 * self._limit
        taken = await self._settler.once(partial(self._store.claim, self._rules, free))
        for claim in taken:
            task = asyncio.create_task(self._step(claim, latest))
            self._in_flight.add(task)
            task.add_done_callback(self._slot_free)
        return len(taken) >= free

    def _slot_free(self, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a step was not recorded; its lease will expire: %s", described(error))
        self._wake.set()

    async def _is_idle(self) -> bool:
        if self._in_flight:
            return False
        return not await self._settler.once(
            partial(self._store.busy, self._rules.kind, IDLE_WITHIN)
        )

    async def _trim(self) -> None:
        if self._clock.monotonic() >= self._trim_at:
            self._trim_at = self._clock.monotonic() + TRIM_INTERVAL
            await self._settler.once(self._store.trim_calls)

    async def _drain(self) -> None:
        if self._all_lost:
            log.error("every slot is held by a vendor call that does not end")
        else:
            await self._all_ended(within=self._limits.drain)
        left = tuple(self._in_flight)
        if left:
            log.warning("%d calls are left behind; their leases expire", len(left))
        for task in left:
            task.cancel()
        await self._all_ended(within=PARTING)

    async def _all_ended(self, within: float) -> None:
        if self._in_flight:
            await _first(asyncio.wait(set(self._in_flight)), self._clock.sleep(within))

    # -- one step --------------------------------------------------------------------------------

    async def _step(self, claim: Claim, latest: float) -> None:
        """Take a step and settle it; one that could outlast its lease is not begun."""
        started = self._clock.monotonic()
        late = started > latest
        outcome = _not_begun() if late else await self._steps.take(claim)
        pause = pause_of(outcome)
        if pause is not None:
            await self._settler.until_stored(partial(self._store.pause, self._rules.kind, *pause))
        settled = settlement(claim, outcome, self._policy)
        await self._settle(claim, replace(settled, seconds=self._clock.monotonic() - started))
        if isinstance(outcome, OverrunError):
            await self._late(claim, outcome)

    async def _settle(self, claim: Claim, settled: Settlement) -> None:
        try:
            await self._settler.put(await self._behind_predecessor(claim, settled))
        except SharedResource:
            clash = replace(shared(claim, self._policy), seconds=settled.seconds)
            await self._settler.put(await self._behind_predecessor(claim, clash))

    async def _behind_predecessor(self, claim: Claim, settled: Settlement) -> Settlement:
        """Rule 5: what a predecessor of the workspace still has becomes free once it is gone."""
        taken = settled.reason in (Why.NAME_CONFLICT, Why.SHARED_RESOURCE)
        if not taken or settled.phase is not Phase.STALLED or claim.releasing:
            return settled
        going = partial(self._store.predecessor_going, claim.tenancy)
        if not await self._settler.until_stored(going):
            return settled
        return behind(settled, claim, self._policy)

    async def _late(self, claim: Claim, overrun: OverrunError) -> None:
        """Keep the slot until the call really ends, and note what came of it."""
        await self._while_lost(overrun.late)
        outcome = outcome_of_task(overrun.late)
        if outcome is not None and not isinstance(outcome, Exception):
            late = settlement(claim, outcome, self._policy)
            await self._settle(claim, replace(late, outcome=f"late: {late.outcome}"))

    async def _while_lost(self, late: "asyncio.Task[object]") -> None:
        # As long again, since a call that is cancelled may take a moment to close what it opened.
        await _first(asyncio.wait({late}), self._clock.sleep(self._limit))
        if late.done():
            return
        self._lost += 1
        if self._lost >= self._limits.concurrency:
            self._all_lost = True
            self.stop()
        await asyncio.wait({late})
        self._lost -= 1


def _not_begun() -> TemporaryError:
    return TemporaryError("the call was not begun: too little of its lease was left")


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for whichever ends first and let go of the rest."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})

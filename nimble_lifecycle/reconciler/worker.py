"""The loop that makes the vendor match the rows, for ever.

A stream of slots: rows are claimed for free slots only, each runs one bounded step, and steps that
end together are settled together. A wake-up only makes the next look come sooner. Nothing here
holds state that matters: kill it anywhere, and the rows say how to go on.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

from nimble_lifecycle.errors import (
    Gone,
    SharedResource,
    StoreError,
)
from nimble_lifecycle.protocol import Phase, Why
from nimble_lifecycle.reconciler.calls import (
    Ended,
    OverrunError,
    UnsentError,
    entered,
    outcome_of_task,
)
from nimble_lifecycle.reconciler.drift import Drift
from nimble_lifecycle.reconciler.fleet import Fleet
from nimble_lifecycle.reconciler.limits import (
    Limits,
    new_owner,
    policy_of,
    rules_of,
    turn_of,
)
from nimble_lifecycle.reconciler.outcome import behind, settlement, shared
from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.reconciler.settler import Settler
from nimble_lifecycle.reconciler.steps import Steps
from nimble_lifecycle.reconciler.timekeeper import Timekeeper
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.store import Claim, Settlement, Step, Suspect, WorkStore
from nimble_lifecycle.store.ports import Hop

log = logging.getLogger("nimble_reconcile")

IDLE_WITHIN = 10.0
"""Seconds: a worker told to stop when idle waits for what is due sooner than that."""

MINUTE, HOUR = 60.0, 3600.0

PARTING = 1.0
"""Seconds that calls which are left behind get to take their cancellation."""


@dataclass(slots=True)
class Chore:
    """Something done now and then: every so many seconds, and when a worker starts."""

    work: Callable[[], Awaitable[object]]
    every: float
    at: float = 0.0


class Worker:
    """One worker for one vendor on one database; belongs to one event loop.

    `database` runs the store's calls, `threads` the adapter's plain methods; `chance` orders what
    is taken in random order. What is `beside` runs while it claims rows.
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
        chance: random.Random | None = None,
        beside: Sequence[Callable[[], Coroutine[None, None, None]]] = (),
    ) -> None:
        self._vendor = vendor
        self._store = store
        self._limits = limits
        self._clock = store.clock
        self._rules = rules_of(vendor, limits, owner or new_owner())
        self._policy = policy_of(vendor, limits)
        self._limit = vendor.time_limit.total_seconds()
        self._steps = Steps(vendor, store.clock, threads)
        self._settler = Settler(store, database, rules=self._rules, again=limits.poll)
        self._fleet = Fleet(store, self._settler, self._rules, self._policy)
        self._drift = Drift(store, self._settler, self._rules, self._policy.lag)
        self._timekeeper = Timekeeper(store, self._settler, self._rules)
        self._turn_time = turn_of(vendor, limits)
        self._chance = chance or random.Random()  # noqa: S311  # an order, no secret
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._open = 0
        """Rows that were claimed and are not settled; all but `_settling` of them have a slot."""
        self._settling = 0
        self._lost = 0
        self._concluding: set[asyncio.Task[None]] = set()
        self._all_lost = False
        self._fault: BaseException | None = None
        self._beside = beside
        self._attend_at = 0.0
        self._chores = (
            Chore(self._timekeeper.look, MINUTE),
            Chore(self._fleet.tend, MINUTE),
            Chore(self._settler.mend, MINUTE),
            Chore(lambda: self._settler.once(store.recheck), MINUTE),
            Chore(lambda: self._settler.once(store.trim_calls), HOUR),
        )

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
            await stack.enter_async_context(entered(self._vendor))
            settler = asyncio.create_task(self._settler.run())
            settler.add_done_callback(self._settler_ended)
            stack.push_async_callback(_cancelled, settler)
            beside = [asyncio.create_task(each()) for each in self._beside]
            for task in beside:
                stack.push_async_callback(_cancelled, task)
            try:
                await self._loop(until_idle=until_idle)
            except Exception:
                await self._leave(beside)
                raise
            left = await self._leave(beside)
            if left and self._fault is None and not self._all_lost:
                await _first(self._disown(), self._clock.sleep(PARTING))
        if self._fault is not None:
            raise self._fault

    def _settler_ended(self, settler: "asyncio.Task[None]") -> None:
        """Stop where nothing can be written any more: whoever starts next finds it all in rows."""
        if not settler.cancelled():
            self._fault = settler.exception()
            self.stop()

    async def _leave(self, beside: "Sequence[asyncio.Task[None]]") -> bool:
        """Let what is under way end; give whether anything was left behind."""
        for task in beside:
            task.cancel()
        return await self._drain()

    # -- the loop --------------------------------------------------------------------------------

    async def _loop(self, *, until_idle: bool) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                await self._do_chores()
                more = await self._turn()
                if until_idle and not more and await self._is_idle():
                    await self._fleet.tend()
                    return
            except StoreError:  # told by the settler; it is tried again
                more = False
            if not more:
                await self._woken(within=self._turn_time)

    async def _woken(self, within: float) -> None:
        """Wait for a wake-up, or for so many seconds."""

        def up(timer: "asyncio.Task[None]") -> None:
            if not timer.cancelled():
                self._wake.set()

        timer = asyncio.create_task(self._clock.sleep(within))
        timer.add_done_callback(up)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _turn(self) -> bool:
        """Claim, which a wake-up waits for, then see to all else; say if to look again at once."""
        more = await self._claim()
        now = self._clock.monotonic()
        if now >= self._attend_at:
            self._attend_at = now + self._limits.poll
            await self._attend()
        return more

    async def _attend(self) -> None:
        found = await self._fleet.attention()
        if found.suspects and await self._take_suspects(found.suspects):
            # Some may be due again already; all else gets its turn before them.
            self._attend_at = self._clock.monotonic()
            found = await self._fleet.attention()
        if found.halted and self._free() > 0:
            latest = self._latest()
            probe = await self._fleet.probe()
            if probe is not None:
                self._start(probe, latest, probing=True)

    async def _take_suspects(self, suspects: Sequence[Suspect]) -> bool:
        """Rule 11: one after the other, with nothing else in flight; give whether any was taken.

        One of them may end this process. So those that were taken over least come first, in random
        order among themselves, and what has ended three processes is quarantined. All else waits no
        longer than a lease for them.
        """
        await self._quiet()
        taken = False
        end = self._clock.monotonic() + self._rules.lease
        shuffled = self._chance.sample(suspects, len(suspects))
        for suspect in sorted(shuffled, key=attrgetter("reclaims")):
            if self._stopping.is_set() or self._clock.monotonic() >= end:
                break
            latest = self._latest()
            claim_it = partial(self._store.claim_only, self._rules, suspect.id)
            claim = await self._settler.once(claim_it)
            if claim is not None:
                taken = True
                self._start(claim, latest)
                await self._quiet()
        return taken

    async def _quiet(self) -> None:
        """Wait until nothing is in flight but calls that were given up and do not end."""
        while self._open > self._lost and not self._stopping.is_set():
            self._wake.clear()
            await self._wake.wait()

    async def _claim(self) -> bool:
        """Start what can be started; give whether to look again at once."""
        free = self._free()
        if free <= 0:
            return False
        latest = self._latest()
        taken = await self._settler.once(partial(self._store.claim, self._rules, free))
        for claim in taken:
            self._start(claim, latest)
        return len(taken) >= free

    def _free(self) -> int:
        """Count the slots without a call; a call that is over waits for its settlement without one.

        As many may wait as there are slots: a database that takes claims and no settlements must
        not be given ever more.
        """
        slots = self._limits.concurrency
        return slots - self._open + min(self._settling, slots)

    def _latest(self) -> float:
        """Say until when what is claimed next may be begun: two calls must fit into its lease.

        Counted from before the claim, whose answer may be long on the way.
        """
        return self._clock.monotonic() + self._rules.lease - 2 * self._limit

    async def _is_idle(self) -> bool:
        if self._open:
            return False
        return not await self._settler.once(partial(self._store.busy, self._rules, IDLE_WITHIN))

    async def _do_chores(self) -> None:
        for chore in self._chores:
            now = self._clock.monotonic()
            if now >= chore.at:
                await chore.work()
                chore.at = now + chore.every

    async def _drain(self) -> bool:
        if self._all_lost:
            log.error("every slot is held by a vendor call that does not end")
        else:
            await _first(self._all_settled(), self._clock.sleep(self._limits.drain))
        behind = self._open > 0  # before what is left is cancelled, and closed by that
        if behind:
            log.warning("%d calls are left behind; their leases expire", self._open)
        left = self._steps.abandon() | self._concluding
        for task in self._concluding:
            task.cancel()
        if left:
            await _first(asyncio.wait(left), self._clock.sleep(PARTING))
        return behind

    async def _disown(self) -> None:
        """Say of the rows left behind that they did not end this worker: it was stopped."""
        with suppress(StoreError):  # they are suspects then, as after a crash
            await self._settler.once(partial(self._store.disown, self._rules))

    async def _all_settled(self) -> None:
        while self._open:
            self._wake.clear()
            await self._wake.wait()

    # -- one step --------------------------------------------------------------------------------

    def _start(self, claim: Claim, latest: float, *, probing: bool = False) -> None:
        """Take a step and settle it; one that could outlast its lease is not begun."""
        started = self._clock.monotonic()
        self._open += 1
        over = partial(self._over, claim, started, probing=probing)
        if started > latest:
            over(_not_begun())
        else:
            self._steps.begin(claim, over)

    def _over(self, claim: Claim, started: float, outcome: Ended, *, probing: bool) -> None:
        """Settle a step that went well, without a task of its own; any other may ask for more."""
        if probing or isinstance(outcome, Exception):
            self._conclude(self._troubled(claim, started, outcome, probing=probing))
            return
        try:
            settled = self._settlement(claim, started, outcome)
        except Exception as error:  # noqa: BLE001  # what an adapter returns may be broken in any way
            _not_recorded(error)
            self._close()
            return
        if settled.phase is Phase.STALLED:
            self._conclude(self._settle_aside(claim, settled))
            return
        self._settling += 1
        self._wake.set()  # first: a claim for the slots that are free takes longer than to settle
        self._settler.add(settled, partial(self._written, claim, settled))

    def _settlement(self, claim: Claim, started: float, outcome: Ended) -> Settlement:
        seconds = self._clock.monotonic() - started
        return settlement(claim, outcome, self._policy, seconds=seconds)

    def _written(self, claim: Claim, settled: Settlement, refused: Exception | None) -> None:
        self._settling -= 1
        if refused is None:
            self._close()
        else:
            self._conclude(self._settle_refused(claim, settled, refused))

    def _conclude(self, rest: Coroutine[None, None, None]) -> None:
        """Do what is left of a step; its row is closed then."""
        task = asyncio.create_task(rest)
        self._concluding.add(task)
        task.add_done_callback(self._concluded)

    def _concluded(self, task: "asyncio.Task[None]") -> None:
        self._concluding.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _not_recorded(error)
        self._close()

    def _close(self) -> None:
        self._open -= 1
        self._wake.set()

    async def _troubled(
        self, claim: Claim, started: float, outcome: Ended, *, probing: bool
    ) -> None:
        """Settle a step that failed, or whose end says something of more than its row."""
        outcome = await self._steps.looked_up(claim, outcome)
        settled = self._settlement(claim, started, outcome)
        settled = await self._fleet.heard(claim, outcome, settled, probing=probing)
        # Of an operation that is gone nobody says that its resource is.
        gone = isinstance(outcome, Gone) and claim.step is Step.UPDATE
        vanished = gone and await self._drift.is_sure(claim)
        if isinstance(outcome, OverrunError):
            await self._settle(claim, settled)
            await self._late(claim, started, outcome)
            return
        await self._settle_aside(claim, settled)
        if vanished:
            await self._drift.repair(claim)

    async def _settle_aside(self, claim: Claim, settled: Settlement) -> None:
        """Settle a step whose call is over: its slot is free for another meanwhile."""
        self._settling += 1
        self._wake.set()
        try:
            await self._settle(claim, settled)
        finally:
            self._settling -= 1

    async def _settle(self, claim: Claim, settled: Settlement) -> None:
        try:
            await self._settler.put(await self._behind_predecessor(claim, settled))
        except SharedResource as refused:
            await self._settle_refused(claim, settled, refused)

    async def _settle_refused(self, claim: Claim, settled: Settlement, refused: Exception) -> None:
        """Settle again what the database refused, since another row has the resource."""
        if not isinstance(refused, SharedResource):
            raise refused
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

    async def _late(self, claim: Claim, started: float, overrun: OverrunError) -> None:
        """Keep the slot until the call really ends, and note what came of it."""
        await self._while_lost(overrun.late)
        outcome = outcome_of_task(overrun.late)
        if outcome is not None and not isinstance(outcome, Exception):
            late = self._settlement(claim, started, outcome)
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
        self._wake.set()
        await asyncio.wait({late})
        self._lost -= 1


def _not_recorded(error: BaseException) -> None:
    log.error("a step was not recorded; its lease will expire: %s", described(error))


def _not_begun() -> UnsentError:
    return UnsentError("the call was not begun: too little of its lease was left")


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

"""Writes how steps ended: together where several wait, alone where it must be, until it is done."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from nimble_lifecycle.errors import StoreError, StoreUnavailable
from nimble_lifecycle.store import Rules, Settlement, WorkStore
from nimble_lifecycle.store.ports import Hop, NoThread

log = logging.getLogger("nimble_reconcile")

T = TypeVar("T")

Told: TypeAlias = Callable[[Exception | None], None]

_Batch: TypeAlias = list[tuple[Settlement, Told]]


class Settler:
    """Settlements on their way to the store; belongs to one event loop.

    `again` is how many seconds pass before a database that is away is tried once more.
    """

    def __init__(self, store: WorkStore, hop: Hop, *, rules: Rules, again: float) -> None:
        self._store = store
        self._hop = hop
        self._rules = rules
        self._again = again
        self._waiting: _Batch = []
        self._some = asyncio.Event()
        self._reachable = True

    def add(self, settled: Settlement, told: Told) -> None:
        """Have this written, however long the database is away; then call `told` with None.

        If the database refuses it, `told` gets that error instead, as `WorkStore.settle` raises it.
        A lease that was lost meanwhile is no error.
        """
        self._waiting.append((settled, told))
        self._some.set()

    async def put(self, settled: Settlement) -> None:
        """Come back once this is written; raises what `add` would tell."""
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.add(settled, lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error

    async def run(self) -> None:
        """Write, for ever: whatever waits is one batch, and a single row waits for no company."""
        while True:
            await self._some.wait()
            self._some.clear()
            batch, self._waiting = self._waiting, []
            await self._write(batch)

    async def until_stored(self, work: Callable[[], T]) -> T:
        """Do what must not be lost; the fence keeps a repetition harmless."""
        while True:
            try:
                return await self.once(work)
            except StoreError:
                await self._store.clock.sleep(self._again)

    async def once(self, work: Callable[[], T]) -> T:
        """Do it once, and tell when the database goes away and comes back. Raises StoreError."""
        try:
            result = await self._run(work)
        except StoreError as error:
            if self._reachable:
                log.warning("%s; trying again", error)
            self._reachable = False
            raise
        if not self._reachable:
            log.warning("the database is back")
        self._reachable = True
        return result

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._hop.run(work)
        except NoThread as error:
            raise StoreUnavailable(f"the database was not asked: {error}") from error

    async def mend(self) -> None:
        """Give what workers made without a lease to rows. Raises StoreError."""
        mend = partial(self._store.mend, self._rules.kind, keeps=self._rules.keeps)
        found = await self.once(mend)
        if found:
            log.warning("%d resources were made beside their rows; `status` lists them", found)

    async def _write(self, batch: _Batch) -> None:
        settlements = [settled for settled, _ in batch]
        settle = partial(self._store.settle, settlements, actor=self._rules.owner)
        try:
            held = await self.until_stored(settle)
        except Exception as error:  # noqa: BLE001  # told to whoever waits for it
            if len(batch) > 1:  # nothing of it was written: find out whose fault it is
                for one in batch:
                    await self._write([one])
            else:
                batch[0][1](error)
            return
        for _, told in batch:
            told(None)
        if len(held) < len(settlements) and any(
            settled.external_id and settled.id not in held for settled in settlements
        ):
            with suppress(StoreError):  # it is looked for again before long
                await self.mend()

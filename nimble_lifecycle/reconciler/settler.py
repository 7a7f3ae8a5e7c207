"""Writes how steps ended: together where several wait, alone where it must be, until it is done."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from nimble_lifecycle.errors import StoreError
from nimble_lifecycle.store import Rules, Settlement, WorkStore
from nimble_lifecycle.store.ports import Hop

log = logging.getLogger("nimble_reconcile")

T = TypeVar("T")


class Settler:
    """Settlements on their way to the store; belongs to one event loop.

    `again` is how many seconds pass before a database that is away is tried once more.
    """

    def __init__(self, store: WorkStore, hop: Hop, *, rules: Rules, again: float) -> None:
        self._store = store
        self._hop = hop
        self._rules = rules
        self._again = again
        self._waiting: asyncio.Queue[tuple[Settlement, asyncio.Future[None]]] = asyncio.Queue()
        self._reachable = True

    async def put(self, settled: Settlement) -> None:
        """Come back once this is written, however long the database is away.

        A lease that was lost meanwhile is no error. Raises what the database refuses it for, as
        `WorkStore.settle` does.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((settled, done))
        await done

    async def run(self) -> None:
        """Write, for ever: whatever waits is one batch, and a single row waits for no company."""
        while True:
            batch = [await self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
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
            result = await self._hop.run(work)
        except StoreError as error:
            if self._reachable:
                log.warning("%s; trying again", error)
            self._reachable = False
            raise
        if not self._reachable:
            log.warning("the database is back")
        self._reachable = True
        return result

    async def mend(self) -> None:
        """Give what workers made without a lease to rows. Raises StoreError."""
        mend = partial(self._store.mend, self._rules.kind, keeps=self._rules.keeps)
        found = await self.once(mend)
        if found:
            log.warning("%d resources were made beside their rows; `status` lists them", found)

    async def _write(self, batch: "list[tuple[Settlement, asyncio.Future[None]]]") -> None:
        settlements = [settled for settled, _ in batch]
        settle = partial(self._store.settle, settlements, actor=self._rules.owner)
        try:
            held = await self.until_stored(settle)
        except Exception as error:  # noqa: BLE001  # told to whoever waits for it
            if len(batch) > 1:  # nothing of it was written: find out whose fault it is
                for one in batch:
                    await self._write([one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for _, done in batch:
            if not done.done():
                done.set_result(None)
        if any(settled.external_id and settled.id not in held for settled in settlements):
            with suppress(StoreError):  # it is looked for again before long
                await self.mend()

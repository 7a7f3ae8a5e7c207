"""Notices that the database's clock was put back, and sees to it that nothing waits for that long.

A worker alone can tell, since its own monotonic clock goes on.
"""

import logging
from functools import partial

from nimble_lifecycle.reconciler.settler import Settler
from nimble_lifecycle.store import Rules, WorkStore

log = logging.getLogger("nimble_reconcile")

TOLERANCE = 60.0
"""Seconds by which a clock may be put back, or run slow between two looks, without a word."""


class Timekeeper:
    """Compares the database's clock with this process's. Its calls raise StoreError."""

    def __init__(self, store: WorkStore, settler: Settler, rules: Rules) -> None:
        self._store = store
        self._settler = settler
        self._rules = rules
        self._read: tuple[float, float] | None = None

    async def look(self) -> None:
        """Look at both clocks, and bring forward what an earlier time of the database put off."""
        asked = self._store.clock.monotonic()
        theirs = (await self._settler.once(self._store.moment)).timestamp()
        if self._read is not None:
            # From the last answer to this question: never more than the clock was put back.
            back = (asked - self._read[1]) - (theirs - self._read[0])
            if back > TOLERANCE:
                await self._settler.once(partial(self._store.set_back, self._rules, back))
                log.warning(_PUT_BACK, self._rules.kind, back)
        self._read = theirs, self._store.clock.monotonic()


_PUT_BACK = (
    "%s: the database's clock was put back by %.0f s; what waited for the time before is looked at"
    " now. Releases may come as much later"
)

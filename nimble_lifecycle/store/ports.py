"""The two ports of the store: time, and the hop from the event loop to a thread.

The real ones are here and in `threads`; a simulation brings its own of both and owns the order of
everything that happens.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Protocol, TypeVar

import sqlalchemy as sa

from nimble_lifecycle.store.types import database_now

T = TypeVar("T")


class Clock(Protocol):
    """Time as the store and the worker see it."""

    def now(self) -> "sa.ColumnElement[datetime]":
        """Give the current instant as an SQL expression."""

    def monotonic(self) -> float:
        """Give seconds that only ever grow, for limits inside this process."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class DatabaseClock:
    """The database's clock inside statements, this machine's monotonic one around them."""

    def now(self) -> "sa.ColumnElement[datetime]":
        """Give the database's clock."""
        return database_now()

    def monotonic(self) -> float:
        """Give `time.monotonic`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(seconds)


class Hop(Protocol):
    """Runs blocking functions without holding up the event loop."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` and give its result; cancelling the caller does not stop the work."""

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""


def instant_of(clock: Clock) -> "sa.ScalarSelect[datetime]":
    """Give one instant for a whole statement, however often the statement names it.

    It is read once from a one-row CTE; as a scalar subquery it can be compared through an index,
    which a bare volatile function cannot.
    """
    read = sa.select(clock.now().label("now")).cte()
    return sa.select(read.c.now).scalar_subquery()

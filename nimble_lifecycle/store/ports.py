"""The two ports of the store: time, and the hop from the event loop to a thread.

The real ones are here and in `threads`; a simulation brings its own of both and owns the order of
everything that happens.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Protocol, Self, TypeVar

import sqlalchemy as sa

from nimble_lifecycle.store.types import database_now

T = TypeVar("T")
U = TypeVar("U")


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


class NoThread(RuntimeError):  # read as `raise NoThread`
    """The system gives no thread, and what was to run on one was not begun."""


class Hop(Protocol):
    """Runs blocking functions without holding up the event loop, a number of them at a time."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` and give its result; raises NoThread where it was not begun.

        Cancelling the caller does not stop the work.
        """

    def close(self) -> None:
        """Let idle threads end; what runs or waits for its slot ends by itself."""


class SharedHop(Hop, Protocol):
    """A hop whose threads do more than one kind of work, each kind within a number of its own."""

    def beside(self, slots: int) -> "SharedHop":
        """Give the hop of another kind, so many at a time."""

    async def run_both(self, first: Callable[[], T], others: Self, second: Callable[[T], U]) -> U:
        """Run `first`, then `second` with what it gave, as one of `others`, in one hop.

        Cancelling the caller does not stop `first`, and `second` once it has begun.
        """


def instant_of(clock: Clock) -> "sa.ScalarSelect[datetime]":
    """Give one instant for a whole statement, however often the statement names it.

    It is read once from a one-row CTE; as a scalar subquery it can be compared through an index,
    which a bare volatile function cannot.
    """
    read = sa.select(clock.now().label("now")).cte()
    return sa.select(read.c.now).scalar_subquery()

"""The way to the database: slow, broken at times, and still delivering for callers long dead.

Every call of a store is one trip: a statement (on SQLite a transaction) that is applied at one
instant on its way, or not at all.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from nimble_lifecycle.errors import StoreUnavailable
from nimble_lifecycle.store import IntentStore, WorkStore
from nimble_lifecycle.store.operators import OperatorStore
from nimble_lifecycle.store.types import Instant
from tests.simulation.loop import Loop, Process
from tests.simulation.threads import this_fiber

if TYPE_CHECKING:
    from tests.simulation.troubles import Troubles

T = TypeVar("T")


class VirtualClock:
    """The simulation's time; each process counts its monotonic seconds from somewhere else.

    Outside of a simulation it is the machine's.
    """

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.base = 0.0

    def now(self) -> "sa.ColumnElement[Any]":
        return sa.bindparam("virtual_now", type_=Instant(), unique=True, callable_=self._read)

    def _read(self) -> Any:
        assert self.loop is not None
        return self.loop.instant

    def monotonic(self) -> float:
        return time.monotonic() if self.loop is None else self.base + self.loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class Wire:
    """One process's connections to the database."""

    loop: Loop
    process: Process
    troubles: "Troubles"
    heard: Callable[[], None]
    """Called when something may have been written."""

    def trip(self, name: str, limit: float, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Send a statement; its answer comes, or an error by the time its caller gives up."""
        answer: asyncio.Future[T] = self.loop.create_future()
        plan = self.troubles.of_trip(self.process)
        self.troubles.ambush(self.process)

        def fail(words: str) -> None:
            _refuse(answer, StoreUnavailable(f"{name}: {words}"))

        def apply() -> None:
            if not self.process.alive and plan.dies_with_caller:
                return
            try:
                result = work()
            except Exception as error:  # of whatever kind: it travels back
                self._note(f"{name} raised {type(error).__name__}")
                back = partial(_refuse, answer, error)
            else:
                self._note(f"{name} applied{', answer lost' if plan.loses_answer else ''}")
                back = partial(_answer, answer, result)
                if not name.startswith("read") and name not in ("write claim", "write trim_calls"):
                    self.heard()
            if plan.loses_answer:
                back = partial(fail, "the connection was lost")
            self.troubles.ambush(self.process)
            self.loop.later(plan.back, back)

        if plan.refused:
            self.loop.later(plan.there, fail, "nothing listens there")
        else:
            self.loop.later(plan.there, apply)
        self.loop.later(max(0.0, limit), fail, "no answer in time")
        return answer

    def _note(self, what: str) -> None:
        self.troubles.note(self.process.name, what)


def _answer(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)


def _refuse(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved: its caller may be gone


class _Remote:
    """A store whose every call on a thread of the simulation is a trip.

    Called from elsewhere, it is simply the store: that is how the simulation itself looks.
    """

    wire: Wire
    clock: VirtualClock
    is_sqlite: bool

    def reading(self, until: float, work: Callable[[sa.Connection], T]) -> T:
        return self._trip("read", until, partial(super().reading, work=work))  # type: ignore[misc]

    def writing(self, until: float, work: Callable[[sa.Connection], T]) -> T:
        return self._trip("write", until, partial(super().writing, work=work))  # type: ignore[misc]

    def transacting(self, until: float, work: Callable[[sa.Connection], T]) -> T:
        return self._trip("transact", until, partial(super().transacting, work=work))  # type: ignore[misc]

    def _trip(self, sort: str, until: float, call: Callable[[float], T]) -> T:
        fiber = this_fiber()
        if fiber is None:
            return call(until)
        limit = until - self.clock.monotonic()
        if limit <= 0:
            raise StoreUnavailable("no time is left")
        # Applied whenever it arrives: the driver's own limit is on the machine's clock.
        now = self.clock.monotonic()
        end = 30.0 + (now if self.is_sqlite else max(now, time.monotonic()))
        name = f"{sort} {sys._getframe(2).f_code.co_name}"
        return fiber.wait(self.wire.trip(name, limit, lambda: call(end)))


class RemoteWorkStore(_Remote, WorkStore):
    """The worker's store over a wire."""


class RemoteOperatorStore(_Remote, OperatorStore):
    """The operator's store over a wire."""


class RemoteIntentStore(_Remote, IntentStore):
    """The server's store over a wire."""

    def __init__(self, url: str, **options: Any) -> None:
        self.next_id: Callable[[], UUID]
        super().__init__(url, new_id=self._next_id, **options)

    def _next_id(self) -> UUID:
        return self.next_id()  # given later, and anew for each process

"""A clock that stands still until a test moves it."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from nimble_lifecycle.store.types import Instant

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
"""Where a `ManualClock` starts unless it is told otherwise."""


class ManualClock:
    """Time of a store and its worker, owned by the test. Threads may share one.

    Statements see `instant`; `sleep` ends once `advance` has gone far enough. `monotonic` advances
    too, but real time goes on in it, so that limits on a real database stay limits.
    """

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._advanced = 0.0
        self._lock = threading.Lock()
        self._sleepers: list[tuple[float, asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def instant(self) -> datetime:
        """Where the clock stands, to the millisecond: SQLite's own clock knows no finer one."""
        return self._start + timedelta(milliseconds=round(self._advanced * 1000))

    def advance(self, seconds: float) -> None:
        """Move on and wake whoever slept until then; raises ValueError where time would go back."""
        if seconds < 0:
            raise ValueError("time does not go back")
        with self._lock:
            self._advanced += seconds
            due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._advanced]
            self._sleepers = [sleeper for sleeper in self._sleepers if sleeper not in due]
        for _, loop, awake in due:
            with suppress(RuntimeError):  # the loop is closed, and its sleepers with it
                loop.call_soon_threadsafe(awake.set)

    def now(self) -> "sa.ColumnElement[datetime]":
        """Give `instant` as a parameter that is read when its statement runs."""
        return sa.bindparam("manual_now", type_=Instant(), unique=True, callable_=self._read)

    def _read(self) -> datetime:
        return self.instant

    def monotonic(self) -> float:
        """Give `time.monotonic`, ahead by what was advanced."""
        return time.monotonic() + self._advanced

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced that far."""
        awake = asyncio.Event()
        with self._lock:
            sleeper = (self._advanced + seconds, asyncio.get_running_loop(), awake)
            if seconds > 0:
                self._sleepers.append(sleeper)
            else:
                awake.set()
        try:
            await awake.wait()
        finally:
            with self._lock:
                self._sleepers = [other for other in self._sleepers if other is not sleeper]

"""The database's clock, put forward and back at will: every statement of both halves sees it."""

from datetime import datetime

import sqlalchemy as sa

from nimble_lifecycle.store import WorkStore
from nimble_lifecycle.store.ports import DatabaseClock
from nimble_lifecycle.store.types import database_now, later

_shift = sa.table("chaos_clock", sa.column("shift", sa.Float()))


class JumpingClock(DatabaseClock):
    """The database's clock, off by what its table `chaos_clock` says."""

    def now(self) -> "sa.ColumnElement[datetime]":
        return later(database_now(), sa.select(_shift.c.shift).scalar_subquery())


class Jumps:
    """The one who moves the clock of a database."""

    def __init__(self, store: WorkStore) -> None:
        self._store = store
        self._do("CREATE TABLE chaos_clock (shift DOUBLE PRECISION NOT NULL)")
        self._do("INSERT INTO chaos_clock VALUES (0)")

    def to(self, seconds: float) -> None:
        """Let the clock show that many seconds more, or less, than is right."""
        self._do(f"UPDATE chaos_clock SET shift = {seconds:f}")

    def _do(self, statement: str) -> None:
        until = self._store.clock.monotonic() + 10.0
        self._store.writing(until, lambda at: at.exec_driver_sql(statement).close())

"""psycopg connections whose every wait has an end. Imported only where PostgreSQL is used."""

import math
import time
from typing import TypeVar

import psycopg
from psycopg.abc import PQGen

RV = TypeVar("RV")


class DeadlineConnection(psycopg.Connection[tuple[object, ...]]):
    """A connection that gives up waiting at `until`, an instant of `time.monotonic`.

    It then closes its own side and raises `psycopg.OperationalError`: asking the server to cancel,
    or rolling back, would be one more wait on a server that does not answer.
    """

    until: float = math.inf

    @classmethod
    def open_until(cls, until: float, *args: str, **kwargs: str | int) -> "DeadlineConnection":
        """Connect, waiting no longer than to `until`, but two seconds where it is sooner.

        libpq and psycopg take a shorter `connect_timeout` for two seconds.
        """
        left = max(2, math.ceil(until - time.monotonic()))
        connection = cls.connect(*args, **{**kwargs, "connect_timeout": left})  # type: ignore[arg-type]
        connection.until = until
        return connection

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for the server, until the deadline at most."""
        left = self.until - time.monotonic()
        limit = left if timeout is None else min(left, timeout)
        if limit == math.inf:
            return super().wait(gen, interval, None)
        try:
            return super().wait(gen, interval, max(0.0, limit))
        except psycopg.OperationalError as error:
            if time.monotonic() < self.until:
                raise
            self.pgconn.finish()
            raise psycopg.OperationalError("no answer in time") from error

"""psycopg connections whose every wait has an end. Imported only where PostgreSQL is used."""

import math
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self, TypeVar

import psycopg
from psycopg.abc import Params, PQGen, Query, QueryNoTemplate

RV = TypeVar("RV")

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


@lru_cache(maxsize=256)
def numbered(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """Write SQLAlchemy's named placeholders as `$1`, `$2`, …; give the names in that order.

    psycopg would look through the long statements for them at every call, and encode and hash them.
    """
    order: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name: str | None = found[1]
        return "%" if name is None else f"${order.setdefault(name, len(order) + 1)}"

    return _PLACEHOLDER.sub(number, statement).encode(), tuple(order)


class NumberedCursor(psycopg.RawCursor[tuple[object, ...]]):
    """A cursor that takes statements and values by name, and sends them by number."""

    def execute(  # type: ignore[override]  # SQLAlchemy sends no template strings
        self,
        query: QueryNoTemplate,
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> Self:
        """Send one statement."""
        if isinstance(query, str) and isinstance(params, Mapping):
            query, order = numbered(query)
            params = _in_order(params, order)
        return super().execute(query, params, prepare=prepare, binary=binary)

    def executemany(
        self, query: Query, params_seq: Iterable[Params], *, returning: bool = False
    ) -> None:
        """Send one statement with the values of several rows."""
        if isinstance(query, str):
            query, order = numbered(query)
            params_seq = [_in_order(params, order) for params in params_seq]
        super().executemany(query, params_seq, returning=returning)


def _in_order(params: Params, order: Sequence[str]) -> Params:
    return [params[name] for name in order] if isinstance(params, Mapping) else params


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
        options = {**kwargs, "connect_timeout": left}
        connection = cls.connect(*args, **options, cursor_factory=NumberedCursor)  # type: ignore[arg-type]
        connection.until = until
        # psycopg counts its prepared statements from 0. Behind a proxy that pools transactions the
        # statement of that name may be another connection's, which would be run instead.
        connection._prepared._prepared_idx = secrets.randbits(48)
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

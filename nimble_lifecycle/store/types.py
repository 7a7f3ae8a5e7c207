"""Column types and SQL expressions that mean the same on both databases."""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from nimble_lifecycle.protocol import Json

ColumnType: TypeAlias = sa.types.TypeEngine[Any]
"""Any column type."""

Expression: TypeAlias = sa.ColumnElement[Any]
"""An SQL expression of any type."""

Columns: TypeAlias = ReadOnlyColumnCollection[str, Any]
"""The columns of something selected."""

BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


class Instant(TypeDecorator[datetime]):
    """An instant in UTC; a naive datetime is refused, since nobody knows what it means."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the same instant in UTC; raises ValueError for a naive one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a naive datetime is no instant: {value!r}")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give an aware UTC datetime; SQLite keeps text without a zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


JsonObject = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""A JSON document: JSONB on PostgreSQL, text on SQLite."""


def fingerprint_of(params: Mapping[str, Json]) -> str:
    """Give a hash of params that does not depend on the order of keys; empty for no params."""
    if not params:
        return ""
    text = json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return blake2b(text.encode(), digest_size=12).hexdigest()


def storable(value: Json) -> Json:
    """Give JSON that both databases can store.

    NUL characters and lone surrogates in texts become U+FFFD, and numbers that are none null.
    """
    if isinstance(value, str):
        return (
            value.replace("\0", "\ufffd")
            .encode("utf-8", "surrogatepass")
            .decode("utf-8", "replace")
        )
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(storable(key)): storable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(item) for item in value]
    return value


def one_of(column: Expression, values: Iterable[str]) -> sa.ColumnElement[bool]:
    """Whether `column` has one of these values.

    SQLAlchemy writes an IN anew at each execution; the claim has so many that it took twice as long.
    """
    return sa.or_(*(column == str(value) for value in values))


class database_now(FunctionElement[datetime]):  # noqa: N801  # reads as an SQL function
    """The database's clock, to the microsecond (SQLite: millisecond)."""

    type = Instant()
    inherit_cache = True
    name = "database_now"


@compiles(database_now, "postgresql")
def _now_postgresql(element: database_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(database_now, "sqlite")
def _now_sqlite(element: database_now, compiler: SQLCompiler, **kw: Any) -> str:
    # Six digits, as SQLAlchemy stores them: text compares as time only in one format.
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


class later(FunctionElement[datetime]):  # noqa: N801
    """`later(instant, seconds)`: that many seconds after; NULL where either is."""

    type = Instant()
    inherit_cache = True
    name = "later"


@compiles(later, "postgresql")
def _later_postgresql(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(arg, **kw) for arg in element.clauses)
    return f"({instant} + {seconds} * interval '1 second')"


@compiles(later, "sqlite")
def _later_sqlite(element: later, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(arg, **kw) for arg in element.clauses)
    return (
        f"CASE WHEN {seconds} IS NOT NULL THEN "
        f"strftime('%Y-%m-%d %H:%M:%f000', {instant}, printf('%.3f seconds', {seconds})) END"
    )


class elapsed(FunctionElement[float]):  # noqa: N801
    """`elapsed(earlier, instant)`: seconds from the one to the other."""

    type = sa.Float()
    inherit_cache = True
    name = "elapsed"


@compiles(elapsed, "postgresql")
def _elapsed_postgresql(element: elapsed, compiler: SQLCompiler, **kw: Any) -> str:
    earlier, instant = (compiler.process(arg, **kw) for arg in element.clauses)
    return f"CAST(extract(epoch FROM {instant} - {earlier}) AS double precision)"


@compiles(elapsed, "sqlite")
def _elapsed_sqlite(element: elapsed, compiler: SQLCompiler, **kw: Any) -> str:
    earlier, instant = (compiler.process(arg, **kw) for arg in element.clauses)
    return f"(julianday({instant}) - julianday({earlier})) * 86400.0"


class latest(FunctionElement[datetime]):  # noqa: N801
    """The later of two instants, neither of them NULL."""

    type = Instant()
    inherit_cache = True
    name = "latest"


@compiles(latest, "postgresql")
def _latest_postgresql(element: latest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"greatest({compiler.process(element.clauses, **kw)})"


@compiles(latest, "sqlite")
def _latest_sqlite(element: latest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"max({compiler.process(element.clauses, **kw)})"


class earliest(FunctionElement[datetime]):  # noqa: N801
    """The earlier of two instants, neither of them NULL."""

    type = Instant()
    inherit_cache = True
    name = "earliest"


@compiles(earliest, "postgresql")
def _earliest_postgresql(element: earliest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"least({compiler.process(element.clauses, **kw)})"


@compiles(earliest, "sqlite")
def _earliest_sqlite(element: earliest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"min({compiler.process(element.clauses, **kw)})"


class in_time(FunctionElement[int]):  # noqa: N801
    """`in_time(condition)`: 1, or an error that undoes the statement where it does not hold.

    For what a statement finds out after its write, when leaving rows out is too late. The error is
    a division by zero, the one every PostgreSQL raises without a function of ours.
    """

    type = sa.Integer()
    inherit_cache = True
    name = "in_time"


NOT_IN_TIME = "22012"
"""The error code of `in_time`: division_by_zero (PostgreSQL manual, appendix A)."""


@compiles(in_time, "postgresql")
def _in_time_postgresql(element: in_time, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(1 / CAST({compiler.process(element.clauses, **kw)} AS integer))"


def base32_of(value: UUID | str) -> str:
    """Write a uuid as 26 characters a-z2-7, its bits from the left, 0 bits at the end."""
    number = UUID(str(value)).int << 2
    return "".join(BASE32[(number >> shift) & 31] for shift in range(125, -1, -5))


class base32(FunctionElement[str]):  # noqa: N801
    """`base32_of` inside a statement, so that a claim can write the key it claims under.

    PostgreSQL has no base32: the bits of the uuid are cut in fives. SQLite gets the Python
    function, registered on its connections as `nimble_base32`.
    """

    type = sa.Text()
    inherit_cache = True
    name = "base32"


@compiles(base32, "postgresql")
def _base32_postgresql(element: base32, compiler: SQLCompiler, **kw: Any) -> str:
    value = compiler.process(element.clauses, **kw)
    bits = f"(('x' || replace(CAST({value} AS text), '-', ''))::bit(128) || B'00')"
    digit = "substr('{}', substring({} from {} for 5)::bit(5)::integer + 1, 1)"
    return "(" + " || ".join(digit.format(BASE32, bits, at) for at in range(1, 131, 5)) + ")"


@compiles(base32, "sqlite")
def _base32_sqlite(element: base32, compiler: SQLCompiler, **kw: Any) -> str:
    return f"nimble_base32({compiler.process(element.clauses, **kw)})"

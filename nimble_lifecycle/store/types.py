"""Column types and SQL expressions that mean the same on both databases."""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from nimble_lifecycle.protocol import LARGEST_NUMBER, Json

T = TypeVar("T")

ColumnType: TypeAlias = sa.types.TypeEngine[Any]
"""Any column type."""

Expression: TypeAlias = sa.ColumnElement[Any]
"""An SQL expression of any type."""

Columns: TypeAlias = ReadOnlyColumnCollection[str, Any]
"""The columns of something selected."""

BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
BASE32_LENGTH = 26
"""Characters that a uuid takes."""


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


def word(value: str) -> "sa.ColumnElement[str]":
    """Write a word of ours into a statement; ValueError for anything but letters.

    The long statements name over a hundred. Bound, each of them would be parsed, sent and copied
    with every execution, which takes longer than the statement itself.
    """
    if not (value.isascii() and value.replace("_", "").isalpha()):
        raise ValueError(f"not a word: {value!r}")
    return sa.literal_column(f"'{value}'", sa.Text())


def number(value: int) -> "sa.ColumnElement[int]":
    """Write a number into a statement, for the same reason."""
    return sa.literal_column(str(int(value)), sa.Integer())


def known(name: str, kind: "sa.types.TypeEngine[T]") -> "sa.ColumnElement[T]":
    """Name a number or a truth that a process knows before it says anything: see `Prepared`.

    Written into the text, PostgreSQL plans without what it rules out: a count that only a cap asks
    for is not even set up where there is no cap, which takes longer than to run what is left.
    """
    bound = sa.bindparam(f"its_{name}", type_=kind, literal_execute=True)
    return sa.cast(bound, kind)  # NULL alone would be of no type


def is_any(column: "Expression", words: Iterable[str]) -> "sa.ColumnElement[bool]":
    """Whether the column has one of these words; NULL where it is NULL."""
    return column.in_([word(each) for each in words])


JsonObject = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""A JSON document: JSONB on PostgreSQL, text on SQLite."""


OpaqueText = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""A text that is compared and put in order by its bytes, as SQLite does by itself.

By a locale, PostgreSQL's order would hang on the system's C library: with a new one an index that
is there already can be corrupt, and a unique one then lets a second row in (PostgreSQL manual,
Managing Collations).
"""


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


def next_number(last: Expression) -> Expression:
    """Count on; after the largest number comes the first again, where one more would fail."""
    return last % number(LARGEST_NUMBER - 1) + number(1)


class new_id(FunctionElement[UUID]):  # noqa: N801
    """A random uuid, made anew for each row."""

    type = sa.Uuid()
    inherit_cache = True
    name = "new_id"


@compiles(new_id, "postgresql")
def _new_id_postgresql(element: new_id, compiler: SQLCompiler, **kw: Any) -> str:
    return "gen_random_uuid()"


@compiles(new_id, "sqlite")
def _new_id_sqlite(element: new_id, compiler: SQLCompiler, **kw: Any) -> str:
    return "lower(hex(randomblob(16)))"


class long_ago(FunctionElement[datetime]):  # noqa: N801
    """An instant in the past, spelled out: an index takes no parameter."""

    type = Instant()
    inherit_cache = True
    name = "long_ago"


@compiles(long_ago, "postgresql")
def _long_ago_postgresql(element: long_ago, compiler: SQLCompiler, **kw: Any) -> str:
    return "TIMESTAMP WITH TIME ZONE '1970-01-02 00:00:00+00'"


@compiles(long_ago, "sqlite")
def _long_ago_sqlite(element: long_ago, compiler: SQLCompiler, **kw: Any) -> str:
    return "'1970-01-02 00:00:00.000000'"


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
    # Its instants are whole milliseconds; a day number as a float is not.
    return f"round((julianday({instant}) - julianday({earlier})) * 86400.0, 3)"


class greatest(FunctionElement[Any]):  # noqa: N801
    """The greatest of some numbers, none of them NULL."""

    type: ColumnType = sa.Float()
    inherit_cache = True
    name = "greatest"


class latest(greatest):  # noqa: N801
    """The latest of some instants, none of them NULL."""

    type = Instant()
    inherit_cache = True
    name = "latest"


@compiles(greatest, "postgresql")
@compiles(latest, "postgresql")
def _greatest_postgresql(element: greatest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"greatest({compiler.process(element.clauses, **kw)})"


@compiles(greatest, "sqlite")
@compiles(latest, "sqlite")
def _greatest_sqlite(element: greatest, compiler: SQLCompiler, **kw: Any) -> str:
    return f"max({compiler.process(element.clauses, **kw)})"


class least(FunctionElement[Any]):  # noqa: N801
    """The least of some numbers, none of them NULL."""

    type: ColumnType = sa.Float()
    inherit_cache = True
    name = "least"


class earliest(least):  # noqa: N801
    """The earliest of some instants, none of them NULL."""

    type = Instant()
    inherit_cache = True
    name = "earliest"


@compiles(least, "postgresql")
@compiles(earliest, "postgresql")
def _least_postgresql(element: least, compiler: SQLCompiler, **kw: Any) -> str:
    return f"least({compiler.process(element.clauses, **kw)})"


@compiles(least, "sqlite")
@compiles(earliest, "sqlite")
def _least_sqlite(element: least, compiler: SQLCompiler, **kw: Any) -> str:
    return f"min({compiler.process(element.clauses, **kw)})"


class whole(FunctionElement[int]):  # noqa: N801
    """The whole number at or below a positive one."""

    type = sa.Integer()
    inherit_cache = True
    name = "whole"


@compiles(whole, "postgresql")
def _whole_postgresql(element: whole, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST(floor({compiler.process(element.clauses, **kw)}) AS integer)"


@compiles(whole, "sqlite")
def _whole_sqlite(element: whole, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS INTEGER)"


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


def uuid_of_base32(text: str) -> UUID | None:
    """Read what `base32_of` writes; None for any other text."""
    if len(text) != BASE32_LENGTH or not set(text) <= set(BASE32):
        return None
    number = 0
    for character in text:
        number = number << 5 | BASE32.index(character)
    return None if number & 3 else UUID(int=number >> 2)


class base32(FunctionElement[str]):  # noqa: N801
    """`base32_of` inside a statement, so that a claim can write the key it claims under.

    PostgreSQL has no base32: the bits of the uuid are cut in fives, once for all digits (OFFSET
    keeps the planner from repeating them), and each names a byte of the alphabet, which is six
    times as fast as a character of it. SQLite gets the Python function, registered on its
    connections as `nimble_base32`.
    """

    type = sa.Text()
    inherit_cache = True
    name = "base32"


@compiles(base32, "postgresql")
def _base32_postgresql(element: base32, compiler: SQLCompiler, **kw: Any) -> str:
    value = compiler.process(element.clauses, **kw)
    bits = f"('x' || replace(CAST({value} AS text), '-', ''))::bit(128) || B'00'"
    digits = f"decode('{BASE32.encode().hex()}', 'hex')"
    digit = "chr(get_byte(b.digits, substring(b.bits from {} for 5)::integer))"
    text = " || ".join(digit.format(at) for at in range(1, 131, 5))
    once = f"SELECT {bits} AS bits, {digits} AS digits OFFSET 0"
    return f"(SELECT {text} FROM ({once}) AS b)"  # noqa: S608  # no values, but an expression


@compiles(base32, "sqlite")
def _base32_sqlite(element: base32, compiler: SQLCompiler, **kw: Any) -> str:
    return f"nimble_base32({compiler.process(element.clauses, **kw)})"

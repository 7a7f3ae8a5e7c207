"""A large table in parts that are each read in some milliseconds, by where rows lie in it.

PostgreSQL reads a range of `ctid` alone from 14 on (its manual, TID Range Scan); before, each part
would read all of the table, which is then one part.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

_BLOCK = 8192
"""Bytes of a block of PostgreSQL."""
_STRETCH = {"postgresql": 1024, "sqlite": 10_000}
"""Blocks and row ids of a part."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the table: blocks of PostgreSQL, row ids of SQLite. Without an end: the last."""

    start: int
    end: int | None


class _Tid(sa.types.UserDefinedType[str]):
    """PostgreSQL's type for where a row lies."""

    cache_ok = True

    def get_col_spec(self, **_kw: object) -> str:
        return "tid"


_CTID = sa.column("ctid", _Tid())
_ROWID = sa.column("rowid", sa.Integer())


def length_of(table: sa.Table, dialect: sa.Dialect) -> "sa.Select[int] | None":
    """Build what tells how long the table is; None where it is one part whatever its length."""
    if dialect.name == "sqlite":
        return sa.select(sa.func.coalesce(sa.func.max(_ROWID), 0)).select_from(table)
    if (dialect.server_version_info or ()) < (14,):
        return None
    return sa.select(sa.func.pg_relation_size(table.name, type_=sa.BigInteger()) // _BLOCK)


def cut(end: int, dialect: sa.Dialect) -> list[Stretch]:
    """Cut a table of that length, as `length_of` tells it; the last part has no end."""
    each = _STRETCH[dialect.name]
    starts = range(0, end + 1, each)
    return [Stretch(start, start + each) for start in starts[:-1]] + [Stretch(starts[-1], None)]


def lies_in(stretch: Stretch, dialect: sa.Dialect) -> "Iterator[sa.ColumnElement[bool]]":
    """Give the conditions that a row lies there."""
    yield _place(dialect, ">=", stretch.start)
    if stretch.end is not None:
        yield _place(dialect, "<", stretch.end)


def _place(dialect: sa.Dialect, compares: str, number: int) -> sa.ColumnElement[bool]:
    if dialect.name == "sqlite":
        return _ROWID.bool_op(compares)(number)
    return _CTID.bool_op(compares)(sa.cast(f"({number},0)", _Tid()))

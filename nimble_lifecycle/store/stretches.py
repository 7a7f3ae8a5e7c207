"""A large table in parts that are each read in some milliseconds, by where rows lie in it.

PostgreSQL reads a range of `ctid` alone from 14 on (its manual, TID Range Scan); before, each part
would read all of the table, which is then one part.
"""

from dataclasses import dataclass

import sqlalchemy as sa

_BLOCK = 8192
"""Bytes of a block of PostgreSQL."""
_STRETCH = {"postgresql": 768, "sqlite": 10_000}
"""Blocks and row ids of a part."""
_LAST = {"postgresql": 2**32 - 1, "sqlite": 2**63 - 1}
"""The number of a block, and of a row, that no table reaches."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the table, without its end: blocks of PostgreSQL, row ids of SQLite."""

    start: int
    end: int


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


def cut(length: int, dialect: sa.Dialect) -> list[Stretch]:
    """Cut a table of that length, as `length_of` tells it; the last part takes what comes after."""
    starts = range(0, length + 1, _STRETCH[dialect.name])
    ends = [*starts[1:], _LAST[dialect.name]]
    return [Stretch(start, end) for start, end in zip(starts, ends, strict=True)]


def lies_in(dialect: sa.Dialect) -> sa.ColumnElement[bool]:
    """Say that a row lies in the stretch whose `values_of` are bound."""
    place = _ROWID if dialect.name == "sqlite" else _CTID
    start, end = (sa.bindparam(name, type_=place.type) for name in ("its_start", "its_end"))
    return sa.and_(place.bool_op(">=")(start), place.bool_op("<")(end))


def values_of(stretch: Stretch, dialect: sa.Dialect) -> dict[str, object]:
    """Give the values to bind for a stretch."""
    if dialect.name == "sqlite":
        return {"its_start": stretch.start, "its_end": stretch.end}
    return {"its_start": f"({stretch.start},0)", "its_end": f"({stretch.end},0)"}

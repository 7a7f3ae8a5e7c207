"""The statements that must be fast, run on the driver's own cursor under SQLAlchemy's pool.

For the context of a cursor and the row it gives back, SQLAlchemy takes several times as long as
such a statement itself. So it compiles them once and says how values are converted; the rest of a
call is the driver's alone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from nimble_lifecycle.store.types import ColumnType

Row: TypeAlias = Mapping[str, Any]
"""A row, by the names of its columns."""

Statement: TypeAlias = "sa.SelectBase | sa.UpdateBase"

_Convert: TypeAlias = Callable[[Any], object]

_DOUBLE = 701
"""What psycopg calls double precision, the one type of ours that SQLAlchemy asks it for."""


class Prepared:
    """A statement compiled once for one dialect; raises ValueError for one with a list in an IN.

    Such a list would be part of the text, so it must be written out there, as `is_any` does.
    `written` has the values of what `known` put into the statement: they become part of the text.
    """

    def __init__(
        self,
        statement: Statement,
        dialect: sa.Dialect,
        written: Mapping[str, object] | None = None,
    ) -> None:
        compiled = statement.compile(dialect=dialect)
        if compiled.post_compile_params:
            raise ValueError("a list of values is part of a statement's text: write it out")
        binds = {name: bound for bound, name in compiled.bind_names.items()}
        known = {name for name, bound in binds.items() if bound in compiled.literal_execute_params}
        if missing := known - (written or {}).keys():
            raise ValueError(f"what is written into a statement is not given: {sorted(missing)}")
        said = compiled.construct_expanded_state({**dict.fromkeys(binds), **(written or {})})
        self._dialect = dialect
        self._text = said.statement
        self._order = said.positiontup  # None where values go by name, as to psycopg
        self._given: list[tuple[str, _Convert]] = []
        self._asked: list[tuple[str, _Convert, sa.BindParameter[Any]]] = []
        self._fixed: dict[str, object] = {}
        for name, bound in binds.items():
            convert = _to_driver(bound.type, dialect)
            if name in known:
                continue
            if bound.required:
                self._given.append((name, convert))
            elif bound.callable is not None:  # a clock that is not the database's
                self._asked.append((name, convert, bound))
            else:
                self._fixed[name] = convert(bound.value)
        columns = statement.exported_columns
        self._names = [str(column.key) for column in columns]
        from_driver = ((str(column.key), _from_driver(column.type, dialect)) for column in columns)
        self._from_driver = [(name, convert) for name, convert in from_driver if convert]

    def row(self, at: sa.Connection, values: Mapping[str, object]) -> Row | None:
        """Run it with those of the values that it names; give its one row, if it gives any.

        Raises SQLAlchemy's errors, and drops a connection that was lost, as SQLAlchemy does.
        """
        return next(iter(self.rows(at, values)), None)

    def rows(self, at: sa.Connection, values: Mapping[str, object]) -> Sequence[Row]:
        """Run it as `row` does, and give all its rows."""
        bound = {name: convert(values[name]) for name, convert in self._given} | self._fixed
        for name, convert, ask in self._asked:
            bound[name] = convert(ask.effective_value)
        cursor = at.connection.cursor()
        try:
            ordered = bound if self._order is None else [bound[name] for name in self._order]
            cursor.execute(self._text, cast("Any", ordered))
            found = cursor.fetchall() if self._names else ()
        except self._dialect.loaded_dbapi.Error as error:
            raise self._told(error, at, cursor) from error
        finally:
            cursor.close()
        return [self._row_of(each) for each in found]

    def _row_of(self, found: Sequence[Any]) -> Row:
        row: dict[str, Any] = dict(zip(self._names, found, strict=True))
        for name, convert in self._from_driver:
            if row[name] is not None:
                row[name] = convert(row[name])
        return row

    def _told(
        self, error: Exception, at: sa.Connection, cursor: sa.engine.interfaces.DBAPICursor
    ) -> DBAPIError:
        dialect = self._dialect
        lost = dialect.is_disconnect(error, at.connection.dbapi_connection, cursor)  # type: ignore[arg-type]
        if lost:
            # Fails at once, and so SQLAlchemy learns of it and drops what else is as old.
            with suppress(DBAPIError):
                at.exec_driver_sql("SELECT 1")
        return DBAPIError.instance(  # type: ignore[return-value]  # for an error of the driver
            self._text,
            None,
            error,
            dialect.loaded_dbapi.Error,
            hide_parameters=True,
            connection_invalidated=lost,
            dialect=dialect,
        )


def _to_driver(kind: ColumnType, dialect: sa.Dialect) -> _Convert:
    return kind.dialect_impl(dialect).bind_processor(dialect) or _unchanged


def _from_driver(kind: ColumnType, dialect: sa.Dialect) -> _Convert | None:
    return kind.dialect_impl(dialect).result_processor(dialect, _DOUBLE)


def _unchanged(value: object) -> object:
    return value

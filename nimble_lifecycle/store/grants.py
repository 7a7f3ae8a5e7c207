"""Who may do what on PostgreSQL, as SQL for whoever owns the tables to run.

The rights follow from the models: which columns the server writes is said there by their `Part`.
SQLite knows no roles.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.store.models import (
    Part,
    call,
    columns_of,
    deployment,
    gone,
    journal,
    live,
    metadata,
    sighting,
    tenancy,
    vendor,
)
from nimble_lifecycle.store.views import SHOWN

LONGEST_NAME: Final = 63
"""Bytes; PostgreSQL cuts longer names off, and two could become one."""

_MEANS_OTHERS: Final = ("public", "none", "current_user", "session_user", "current_role")
"""Names PostgreSQL takes for something else than a role of that name."""

_Columns = Sequence["sa.ColumnElement[object]"]


def grants(*, server_role: str, worker_role: str, schema: str = "public") -> str:
    """Give the SQL that lets two roles do the work of the two halves, and nothing else.

    It may be run again, and takes back what an earlier version gave. Raises ConfigurationError for
    names that are no names of two roles.
    """
    for role in (server_role, worker_role):
        _check_name(role, "role")
        if role in _MEANS_OTHERS:
            raise ConfigurationError(f"{role} is no role of its own; give each half one")
    _check_name(schema, "schema")
    if server_role == worker_role:
        raise ConfigurationError("one role for both halves separates nothing; give each its own")
    lines = _statements(_quoted(server_role), _quoted(worker_role), _quoted(schema))
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    quoted: str = postgresql.dialect().identifier_preparer.quote_identifier(name)  # type: ignore[no-untyped-call]
    return quoted


def _check_name(name: str, what: str) -> None:
    if not name or not name.isprintable() or len(name.encode()) > LONGEST_NAME:
        raise ConfigurationError(
            f"the name of a {what} has 1 to {LONGEST_NAME} bytes and no control characters"
        )


def _statements(server: str, worker: str, schema: str) -> Iterator[str]:
    yield "-- Run it as the owner of the tables, who alone migrates; again after each upgrade."
    yield "-- The roles must be there, neither of them the owner or a member of it:"
    yield "-- CREATE ROLE ... LOGIN, without further attributes."
    yield "BEGIN;"
    yield ""
    yield "-- Nobody but the owner makes or changes tables, nor puts others before them."
    yield f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC, {server}, {worker};"
    yield f"GRANT USAGE ON SCHEMA {schema} TO {server}, {worker};"
    yield ""
    yield "-- Start from nothing: rights on a table end with those on its columns."
    for table in metadata.sorted_tables:
        yield f"REVOKE ALL ON {schema}.{table.name} FROM PUBLIC, {server}, {worker};"
    yield ""
    yield from _server(server, schema)
    yield ""
    yield from _worker(worker, schema)
    yield ""
    yield "COMMIT;"


def _server(role: str, schema: str) -> Iterator[str]:
    yield "-- The server says what workspaces want. It changes no identity, and writes nothing that"
    yield "-- the worker established: no status, no resource, no time of a grace, no lease."
    yield _grant("INSERT", columns_of(*Part), role, schema)
    yield _grant("UPDATE", columns_of(Part.INTENT, Part.CONTACT), role, schema)
    yield "-- What its statements compare, and what they give to its functions; never the lease."
    yield _grant("SELECT", _read_by_server(), role, schema)
    yield "-- The log of calls is written blindly, and its rows number themselves."
    yield _grant("INSERT", _given(call), role, schema)
    yield "-- Whether this package fits the tables."
    fits = (deployment.c.schema_number, deployment.c.oldest_version)
    yield _grant("SELECT", fits, role, schema)


def _worker(role: str, schema: str) -> Iterator[str]:
    yield "-- The worker does the work. It removes no tenancy, alters no table,"
    yield _on(tenancy, "SELECT, INSERT, UPDATE", role, schema)
    yield "-- can only add to its journal,"
    yield _on(journal, "SELECT", role, schema)
    yield _grant("INSERT", _given(journal), role, schema)
    yield "-- keeps the log of calls short, and does not write it."
    yield _on(call, "SELECT, DELETE", role, schema)
    yield "-- What workers of a database share: pauses, breakers, strikes of sweeps."
    yield _on(vendor, "SELECT, INSERT, UPDATE", role, schema)
    yield _on(sighting, "SELECT, INSERT, UPDATE, DELETE", role, schema)
    yield "-- Whose database it is."
    yield _on(deployment, "SELECT", role, schema)
    whose = (deployment.c.owner_id, deployment.c.fingerprint, deployment.c.deployment)
    yield _grant("UPDATE", whose, role, schema)


def _read_by_server() -> _Columns:
    """Give what the server's statements read: its own columns, those shown, what tells lives."""
    read = {*columns_of(*Part), *SHOWN, tenancy.c.origin}
    for condition in (live, gone):
        read.update(sa.sql.visitors.iterate(condition))  # type: ignore[arg-type]
    return [column for column in tenancy.c if column in read]


def _given(table: sa.Table) -> _Columns:
    """Give the columns an insert names: all but the number the database gives by itself."""
    return [column for column in table.c if column.identity is None]


def _on(table: sa.Table, rights: str, role: str, schema: str) -> str:
    return f"GRANT {rights} ON {schema}.{table.name} TO {role};"


def _grant(right: str, columns: _Columns, role: str, schema: str) -> str:
    """Grant a right on columns of one table."""
    names = ", ".join(column.name for column in columns)
    (table,) = {column.table.name for column in columns}
    return f"GRANT {right} ({names})\n  ON {schema}.{table} TO {role};"

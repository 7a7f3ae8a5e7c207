"""SQLAlchemy engines for the two databases, and what their errors mean."""

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, ProgrammingError

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.store.types import base32_of

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine
    from sqlalchemy.pool import ConnectionPoolEntry

    from nimble_lifecycle.store.postgresql import DeadlineConnection


def parse_url(url: str) -> sa.URL:
    """Read a database URL; raises ConfigurationError for one that is neither of the two."""
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (sa.exc.ArgumentError, ValueError):
        backend, parsed = "", sa.URL.create("sqlite")
    # A path and nothing else: what SQLAlchemy makes of more is found out when it connects.
    nothing_else = not (parsed.host or parsed.port or parsed.username or parsed.query)
    if backend == "sqlite" and parsed.database not in (None, "", ":memory:") and nothing_else:
        return parsed.set(drivername="sqlite")
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    # The URL itself may hold a password: it is not repeated.
    raise ConfigurationError(
        "the database URL must be sqlite:///PATH or postgresql://HOST/DATABASE, with USER@ before"
        " the host where one is needed;"
        " check NIMBLE_DATABASE_URL or --database-url"
    )


def read_json(text: str | bytes) -> object:
    """Read a JSON column; what Python cannot read of it stays text, which is no JSON object."""
    # Of bytes, which psycopg gives, `json` would guess the encoding, as long as the rest takes.
    read = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    try:
        return json.loads(read)
    except (ValueError, RecursionError):
        return read


def make_engine(url: sa.URL, connections: int, ends: Callable[[], float]) -> "Engine":
    """Make an engine in autocommit with a pool of so many connections.

    `ends` gives the instant of `time.monotonic` by which a connection that is opened must be there
    (PostgreSQL). Raises ConfigurationError where the driver is missing.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, connections)
    return _postgresql_engine(url, connections, ends)


def _sqlite_engine(url: sa.URL, connections: int) -> "Engine":
    engine = sa.create_engine(
        url,
        poolclass=sa.QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_use_lifo=True,  # those last used have read what was written last
        hide_parameters=True,
        json_deserializer=read_json,
        pool_reset_on_return=None,  # each transaction ends where it began
        isolation_level="AUTOCOMMIT",
        connect_args={"check_same_thread": False},
    )

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: sa.engine.interfaces.DBAPIConnection, _: object) -> None:
        connection.create_function("nimble_base32", 1, base32_of, deterministic=True)
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    return engine


def _postgresql_engine(url: sa.URL, connections: int, ends: Callable[[], float]) -> "Engine":
    try:
        from nimble_lifecycle.store.postgresql import DeadlineConnection  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "PostgreSQL needs its driver: pip install 'nimble-lifecycle[postgres]'"
        ) from error

    engine = sa.create_engine(
        url,
        poolclass=sa.QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_use_lifo=True,  # those last used have their statements prepared
        hide_parameters=True,
        json_deserializer=read_json,
        pool_reset_on_return=None,  # autocommit leaves nothing to roll back
        isolation_level="AUTOCOMMIT",
        use_native_hstore=False,  # its look-up costs a round trip on each connection
    )

    @sa.event.listens_for(engine, "do_connect")
    def connect(
        dialect: sa.Dialect,
        entry: "ConnectionPoolEntry",
        args: tuple[str, ...],
        kwargs: dict[str, str | int],
    ) -> DeadlineConnection:
        return DeadlineConnection.open_until(ends(), *args, **kwargs)

    return engine


def plan_once(engine: "Engine") -> None:
    """Have PostgreSQL plan each statement of a connection once, whatever the values.

    The long statements take longer to plan than to run, and no value makes another plan better. Nor
    are they compiled (PostgreSQL manual, jit): for a fleet of some hundred thousand rows a claim
    would look costly enough to be, at each execution anew, for two seconds where it takes one
    millisecond.
    """

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: "DeadlineConnection", _: object) -> None:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT set_config('plan_cache_mode', 'force_generic_plan', false),"
            " set_config('jit', 'off', false)"
        )
        cursor.close()
        connection.prepare_threshold = 0  # psycopg plans a statement five times before it keeps it


def prepare_nothing(engine: "Engine") -> None:
    """Make connections anew that keep no statements, which a proxy does not keep either."""

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: "DeadlineConnection", _: object) -> None:
        connection.prepare_threshold = None

    engine.dispose()


def _state(error: DBAPIError) -> str | None:
    """Give the SQLSTATE (PostgreSQL manual, appendix A); None where there is none."""
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state


def is_missing_table(error: DBAPIError) -> bool:
    """Whether a statement failed since a table is not there."""
    undefined_table = "42P01"
    return _state(error) == undefined_table or "no such table" in str(error.orig)


def is_stale_statement(error: DBAPIError) -> bool:
    """Whether a prepared statement is gone, as behind a proxy that changes the connection."""
    invalid_sql_statement_name = "26000"
    return _state(error) == invalid_sql_statement_name


def is_bad_option(error: DBAPIError) -> bool:
    """Whether the driver refused the connection's options before it connected."""
    return isinstance(error, ProgrammingError) and "invalid connection option" in str(error.orig)


def is_our_mistake(error: DBAPIError) -> bool:
    """Whether a statement is wrong in itself, so that no other time and no other database helps."""
    insufficient_privilege = "42501"
    others = is_stale_statement(error) or _state(error) == insufficient_privilege
    program_limit_exceeded = "54"  # the class: a value too large for an index, for one
    too_large = (_state(error) or "").startswith(program_limit_exceeded)
    return too_large or (isinstance(error, ProgrammingError) and not others)


def why(error: DBAPIError) -> str:
    """Say in fixed words what failed; drivers put user names and hosts into their texts."""
    text = _QUOTED.sub('""', str(error.orig).lower())  # a name may be any of the words below
    found = next((words for word, words in _KNOWN.items() if word in text), "the connection failed")
    return f"{found} ({type(error.orig).__name__})"


_QUOTED: Final = re.compile(r'"[^"]*"')

_KNOWN: Final = {
    'role "" does not exist': "it has no such role; create it, or mend the user in the URL",
    'database "" does not exist': "it does not exist; create it, or mend its name in the URL",
    "resolve host": "its host is not known; mend it in the URL",
    "refused": "nothing listens there; start PostgreSQL, or mend host and port in the URL",
    "is the server running": "nothing listens there; start PostgreSQL, or correct the URL",
    "no pg_hba.conf entry": "it lets nobody in from here with this user; see its pg_hba.conf",
    "permission denied": "its role lacks a right; see `nimble-reconcile grants`",
    "locked": "it is locked by another process",
    "authentication": "it refuses the user or password; mend them in the URL",
    "no password": "it wants a password; put it into the URL",
    "time": "no answer in time",
    "prepared statement": "a proxy changed the connection",
    "does not exist": "something in it does not exist; run `nimble-reconcile migrate`",
    "readonly": "it is read-only",
    "read-only": "it is read-only",
    "not a database": "the file is no database",
    "unable to open": "the file cannot be opened",
    "full": "the disk is full",
    "disk i/o": "the disk fails, or is full",
}
"""What the drivers say, the most telling first, and our words for it."""

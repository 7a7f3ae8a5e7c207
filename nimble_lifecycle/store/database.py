"""Connections to the one database both halves share, and its schema.

Every wait has an end: each call names the instant (`until`, on `time.monotonic`) by which it must
be over, and the driver ends whatever waits then, so that a thread never outlives its call by more
than one connection attempt. On PostgreSQL the connection is then closed on our side alone (no
cancel, no rollback, no second wait); on SQLite the busy time-out ends.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from packaging.version import Version
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

import nimble_lifecycle
from nimble_lifecycle.errors import (
    ConfigurationError,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    StoreUnavailable,
)
from nimble_lifecycle.store.engines import (
    is_bad_option,
    is_missing_table,
    is_our_mistake,
    is_stale_statement,
    make_engine,
    parse_url,
    prepare_nothing,
    why,
)
from nimble_lifecycle.store.models import deployment
from nimble_lifecycle.store.ports import Clock, DatabaseClock

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

T = TypeVar("T")

SCHEMA_NUMBER = 1
"""Number of the newest migration; `nimble_deployment.schema_number` holds the database's."""

CLOCK_AGE = 60.0
"""Seconds after which the database's clock is compared with ours again."""

STATEMENT_LIMIT = 30.0
"""Seconds a worker's statement may take; a worker has time, but not for ever."""

STANDING_LIMIT = 10.0
"""Seconds to wait for a connection that is then kept for listening."""

_MIGRATE = "run `nimble-reconcile migrate` with the same NIMBLE_DATABASE_URL"

_MAKE = (
    "mend NIMBLE_DATABASE_URL or --database-url where they name another file, else start the server"
    " or `nimble-reconcile run`, which make it, or run `nimble-reconcile migrate`"
)


class Database:
    """One database, reached by at most `connections` connections at a time.

    Cheap to make: nothing is opened before the first call. All methods block; call them on threads.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, connections: int = 8) -> None:
        """Raise ConfigurationError for a URL that is neither SQLite nor PostgreSQL."""
        self.clock: Clock = clock or DatabaseClock()
        self._url = parse_url(url)
        self._until = threading.local()
        self._writer = threading.Lock()
        self._free = threading.BoundedSemaphore(connections)
        self._closed = False
        self._checked = False
        self._guard: Callable[[Connection], None] | None = None
        self.owner_id: str | None = None
        """Of the deployment that entered this database; None: whoever's it is."""
        self._clock_read: tuple[datetime, float] | None = None
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self.engine = make_engine(self._url, connections, self._ends)

    # -- what may be said of it ------------------------------------------------------------------

    @property
    def location(self) -> str:
        """Name the database as it may be printed: no user, no password, no options."""
        if self.is_sqlite:
            return f"SQLite file {self._path.absolute()}"
        host = self._url.host or "local socket"
        return f"PostgreSQL {host}:{self._url.port or 5432}/{self._url.database or ''}"

    @property
    def _path(self) -> Path:
        return Path(self._url.database or "")

    # -- calls -----------------------------------------------------------------------------------

    def _ends(self) -> float:
        until: float = self._until.instant
        return until

    @contextmanager
    def _connected(self, until: float) -> "Iterator[Connection]":
        """Give a connection whose every wait ends at `until`; errors become StoreUnavailable."""
        with self._slot(until), self._translated():
            self._until.instant = until
            with self.engine.connect() as connection:
                self._set_end(connection, until)
                self._look_at(connection)
                try:
                    yield connection
                finally:
                    if self._closed and not connection.invalidated:
                        connection.detach()  # closed with this call: nobody empties the pool again

    def guard(self, check: "Callable[[Connection], None]") -> None:
        """Have each connection checked before its first statement, now and whenever one is made.

        What `check` raises, the call that needed the connection raises.
        """
        self._guard = check

    def check_again(self, until: float) -> None:
        """Check as `guard` says, whatever was checked before; raises what that raises."""
        if self._guard is not None:
            self.reading(until, self._guard)

    def _look_at(self, connection: "Connection") -> None:
        if self._guard is not None and not connection.info.get("checked"):
            self._guard(connection)
            connection.info["checked"] = True  # kept as long as the connection

    @contextmanager
    def _slot(self, until: float) -> "Iterator[None]":
        """Wait for one of the connections, to `until` at most; the pool itself never waits."""
        left = until - self.clock.monotonic()
        if left <= 0:
            raise StoreUnavailable("no time is left for the database; call again")
        if not self._free.acquire(timeout=left):
            raise StoreUnavailable(f"{self.location}: no connection is free; call again")
        try:
            yield
        finally:
            self._free.release()

    @contextmanager
    def _translated(self) -> "Iterator[None]":
        """Give errors of the connection as ours, in words that hold no name, host or secret."""
        try:
            yield
        except (IntegrityError, DataError):
            raise  # of a statement's values, not of the database
        except DBAPIError as error:
            if is_missing_table(error):
                self._checked = False
                raise SchemaMissing(f"{self.location} has no tables of ours; {_MIGRATE}") from error
            if is_bad_option(error):
                raise ConfigurationError(
                    f"{self.location}: the database URL has an option its driver does not know"
                ) from error
            if is_our_mistake(error):
                raise
            if is_stale_statement(error):
                prepare_nothing(self.engine)
            raise StoreUnavailable(f"{self.location} cannot be used: {why(error)}") from error

    def _set_end(self, connection: "Connection", until: float) -> None:
        driver: Any = connection.connection.dbapi_connection
        if self.is_sqlite:
            # Milliseconds; SQLite manual, pragma busy_timeout. Past SQLAlchemy, which takes five
            # times as long for it.
            left = max(0.0, until - self.clock.monotonic())
            driver.execute(f"PRAGMA busy_timeout = {int(left * 1000) + 1}").close()
        else:
            driver.until = until

    def reading(self, until: float, work: "Callable[[Connection], T]") -> T:
        """Run a read, in autocommit, never holding a write lock."""
        self._check_once(until)
        with self._connected(until) as connection:
            return work(connection)

    def writing(self, until: float, work: "Callable[[Connection], T]") -> T:
        """Run a write: one statement in autocommit on PostgreSQL, one transaction on SQLite.

        One writer at a time in a process on SQLite, where writers queue by polling otherwise.
        """
        self._check_once(until)
        if not self.is_sqlite:
            with self._connected(until) as connection:
                return work(connection)
        return self.transacting(until, work)

    def transacting(self, until: float, work: "Callable[[Connection], T]") -> T:
        """Run several writes that belong together as one transaction, on either database.

        For what is rare: on PostgreSQL it costs round trips, and others wait for its locks. To meet
        no deadlock, lock a tenancy before its vendor.
        """
        if not self.is_sqlite:
            with self._connected(until) as connection:
                return _in_transaction(connection, "BEGIN", work)
        if not self._writer.acquire(timeout=max(0.0, until - self.clock.monotonic())):
            raise StoreUnavailable(f"{self.location} is busy; call again")
        try:
            with self._connected(until) as connection:
                return _in_transaction(connection, "BEGIN IMMEDIATE", work)
        finally:
            self._writer.release()

    @contextmanager
    def standing(self) -> "Iterator[Connection]":
        """Give a connection that is kept for listening: outside the pool, waiting without end."""
        until = self._until.instant = self.clock.monotonic() + STANDING_LIMIT
        try:
            with ExitStack() as stack:
                with self._slot(until):
                    connection = stack.enter_context(self.engine.connect())
                    connection.detach()
                if not self.is_sqlite:
                    connection.connection.dbapi_connection.until = math.inf  # type: ignore[union-attr]
                yield connection
        except (sa.exc.SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error) as error:
            raise StoreUnavailable(f"{self.location}: the connection was lost") from error

    def instant(self, connection: "Connection", until: float) -> datetime:
        """Translate `until` to the database's clock, never later than it really is.

        The two clocks are compared on first use and once a minute.
        """
        now = self.clock.monotonic()
        read = self._clock_read
        if read is None or not 0 <= now - read[1] < CLOCK_AGE:
            theirs: datetime = connection.execute(sa.select(self.clock.now())).scalar_one()
            # Read after the answer: the database's clock was asked no later than this.
            read = self._clock_read = (theirs, self.clock.monotonic())
        return read[0] + timedelta(seconds=until - read[1])

    def forget_clock(self) -> None:
        """Compare the clocks again on the next call."""
        self._clock_read = None

    # -- schema ----------------------------------------------------------------------------------

    def open(self, *, make: bool = True) -> None:
        """Check that this package fits the schema, and make a SQLite file or bring it up to date.

        `make` is False for whoever only looks at what the halves made, or acts on it: a mistyped
        path makes nothing then. Raises SchemaMissing, SchemaOutdated, SchemaTooNew or
        StoreUnavailable.
        """
        self._check_once(self.clock.monotonic() + STATEMENT_LIMIT, make=make)

    def _check_once(self, until: float, *, make: bool = True) -> None:
        if self._checked:
            return
        make = make and self.is_sqlite
        try:
            self._check(until)
        except SchemaMissing:
            if not make:
                raise
            self.migrate()
            self._check(until)
        except SchemaOutdated:
            if not make:
                raise
            self.migrate()
        self._checked = True

    def _check(self, until: float) -> None:
        if self.is_sqlite and not self._path.exists():
            raise SchemaMissing(f"{self.location} does not exist; {_MAKE}")
        columns = (deployment.c.schema_number, deployment.c.oldest_version)
        with self._connected(until) as connection:
            found = connection.execute(sa.select(*columns)).one_or_none()
        if found is None:
            raise SchemaMissing(f"{self.location} is half made; {_MIGRATE}")
        if found.schema_number < SCHEMA_NUMBER:
            raise SchemaOutdated(f"{self.location} is older than this package; {_MIGRATE}")
        ours = nimble_lifecycle.__version__
        if found.schema_number > SCHEMA_NUMBER and Version(ours) < Version(found.oldest_version):
            raise SchemaTooNew(
                f"{self.location} was migrated by a newer nimble-lifecycle; this is {ours},"
                f" it needs {found.oldest_version} or newer: upgrade the package"
            )

    def migrate(self) -> None:
        """Bring the schema up to date; any number of processes may do so at once."""
        from nimble_lifecycle.store.migrations import upgrade  # noqa: PLC0415  # Alembic is slow

        if self.is_sqlite:
            self._make_folder()
        with self._connected(self.clock.monotonic() + 60.0) as connection:
            upgrade(connection)

    def _make_folder(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise StoreUnavailable(f"{self.location} cannot be made: {why}") from error

    def close(self) -> None:
        """Close idle connections; those in use close when their call ends."""
        self._closed = True
        self.engine.dispose()


def _in_transaction(connection: "Connection", begin: str, work: "Callable[[Connection], T]") -> T:
    connection.exec_driver_sql(begin).close()
    try:
        result = work(connection)
        connection.exec_driver_sql("COMMIT").close()
    except BaseException:
        if not connection.invalidated:
            _roll_back(connection)
        raise
    return result


def _roll_back(connection: "Connection") -> None:
    try:
        connection.exec_driver_sql("ROLLBACK")
    except DBAPIError:  # as where SQLite has done so by itself, for one when the disk is full
        connection.invalidate()

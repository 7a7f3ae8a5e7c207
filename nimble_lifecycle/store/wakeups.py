"""Wake-ups from the server to the worker: hints only, a lost one costs one poll.

PostgreSQL: a NOTIFY of its own after the commit, since one inside a writing transaction makes
PostgreSQL commit one at a time; calls that come while one is under way share the next. SQLite: the
worker polls `PRAGMA data_version`, the server does nothing.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import sqlalchemy as sa

from nimble_lifecycle.errors import NimbleError
from nimble_lifecycle.store.database import Database
from nimble_lifecycle.store.ports import NoThread
from nimble_lifecycle.store.prepared import Prepared
from nimble_lifecycle.store.threads import started
from nimble_lifecycle.store.types import word

CHANNEL = "nimble_tenancy"
"""The PostgreSQL channel; notifications carry no payload."""

AT_WORK = (0x6E696D62, 1)
"""The advisory lock that a session which listens shares: `pg_locks` shows it to every role."""

COALESCE = 0.01
"""Seconds during which further wake-ups share the next notification."""

_NOTIFY = sa.select(sa.func.pg_notify(word(CHANNEL), sa.literal_column("''")))

_PATIENCE = 5.0
_LAST_WORD = 1.0
_LISTEN_AGAIN = 0.3


class Notifier:
    """Sends wake-ups from a daemon thread that starts with the first one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Ask for a notification; returns at once and never fails."""
        if self._database.is_sqlite or self._closed.is_set():
            return
        self._asked.set()
        with self._lock, suppress(NoThread):  # the worker polls, and the next call tries again
            if self._thread is None:
                thread = threading.Thread(target=self._send, name="nimble-notify", daemon=True)
                self._thread = started(thread)

    def close(self) -> None:
        """End the thread; one that waits for the database ends by itself."""
        self._closed.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(timeout=_LAST_WORD)

    def _send(self) -> None:
        statement = Prepared(_NOTIFY, self._database.engine.dialect)
        while not self._closed.is_set():
            self._asked.wait()
            if self._closed.is_set():
                return
            self._asked.clear()
            try:
                until = self._database.clock.monotonic() + _PATIENCE
                self._database.writing(until, lambda at: statement.row(at, {}))
            except NimbleError:
                continue  # the worker polls
            self._closed.wait(COALESCE)


class Listener:
    """Calls `heard` from a daemon thread whenever somebody changed an intent.

    PostgreSQL: LISTEN on a connection of its own, made again when it drops. SQLite: another
    connection committed, seen by polling `PRAGMA data_version` every `interval` seconds.
    """

    def __init__(
        self, database: Database, heard: Callable[[], None], *, interval: float = 0.05
    ) -> None:
        self._database = database
        self._heard = heard
        self._interval = interval
        self._closed = threading.Event()
        work = self._poll if database.is_sqlite else self._listen
        self._thread = threading.Thread(
            target=self._keep, args=(work,), name="nimble-listen", daemon=True
        )

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; it may take one interval, or one wait of the listening connection."""
        self._closed.set()
        if not self._database.is_sqlite:
            with suppress(NimbleError):
                self._database.writing(self._database.clock.monotonic() + 1.0, _notify)
        self._thread.join(timeout=2.0)

    def _keep(self, work: Callable[[sa.Connection], None]) -> None:
        while not self._closed.is_set():
            try:
                with self._database.standing() as connection:
                    work(connection)
            except NimbleError:
                self._closed.wait(_LISTEN_AGAIN)

    def _listen(self, connection: sa.Connection) -> None:
        # Tried only: whoever may connect could hold it, and listening would wait for that.
        connection.execute(sa.select(sa.func.pg_try_advisory_lock_shared(*AT_WORK))).close()
        connection.exec_driver_sql(f"LISTEN {CHANNEL}")
        self._heard()  # only now: what came until here may have been missed
        driver = connection.connection.dbapi_connection
        while not self._closed.is_set():
            # One wait a second, so that `close` is noticed.
            for _ in driver.notifies(timeout=1.0, stop_after=1):  # type: ignore[union-attr]
                self._heard()

    def _poll(self, connection: sa.Connection) -> None:
        # Past SQLAlchemy, which takes most of such a short statement's time.
        driver = connection.connection.dbapi_connection
        cursor = driver.cursor()  # type: ignore[union-attr]
        seen = None
        while not self._closed.is_set():
            time.sleep(self._interval)  # to wait for `closed` takes as long again as the look
            cursor.execute("PRAGMA data_version")
            version = cursor.fetchone()
            if version != seen:
                seen = version
                self._heard()


def notify(database: Database) -> None:
    """Wake every worker now; where that fails they poll."""
    if not database.is_sqlite:
        with suppress(NimbleError):
            database.writing(database.clock.monotonic() + _PATIENCE, _notify)


def _notify(connection: sa.Connection) -> None:
    connection.execute(_NOTIFY).close()

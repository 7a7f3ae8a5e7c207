"""Fresh databases for a measurement, on a server that is as durable as a real one."""

import os
import secrets
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from getpass import getuser
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from nimble_lifecycle.store import IntentStore
from tests.clusters import Cluster, programs


class NoServerError(Exception):
    """There is no PostgreSQL to measure on, and none could be made."""


class Databases:
    """Makes databases on one server, and SQLite files in one folder."""

    def __init__(self, server: str, folder: Path) -> None:
        self._server = urlsplit(server)
        self._folder = folder
        self._admin = psycopg.connect(server, autocommit=True)

    @contextmanager
    def empty(self) -> Iterator[str]:
        """Give the URL of an empty PostgreSQL database, dropped afterwards."""
        name = f"nimble_bench_{secrets.token_hex(4)}"
        self._admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield self._server._replace(path=f"/{name}").geturl()
        finally:
            self._admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def migrated(self) -> Iterator[str]:
        """Give the URL of a PostgreSQL database with our tables."""
        with self.empty() as url:
            migrate(url)
            yield url

    def sqlite(self) -> str:
        """Give the URL of a SQLite file with our tables, durable as the package keeps it."""
        url = f"sqlite:///{self._folder / secrets.token_hex(4)}.db"
        migrate(url)
        return url

    def commit(self) -> float:
        """Give the seconds that a commit of one row takes, most of which is the disk's."""
        with self.empty() as url, psycopg.connect(url, autocommit=True) as at:
            at.execute("CREATE TABLE committed (at double precision)")
            return statistics.median(_commit(at) for _ in range(200))

    def version(self) -> dict[str, str]:
        """Name the databases' versions and what makes them durable."""
        shown = {}
        for name in ("server_version", "fsync", "synchronous_commit"):
            row = self._admin.execute(f"SHOW {name}").fetchone()
            shown[name] = str(row[0]) if row else ""
        return {
            "postgresql": shown["server_version"],
            "fsync": shown["fsync"],
            "synchronous_commit": shown["synchronous_commit"],
            "sqlite": sqlite3.sqlite_version,
        }


def _commit(at: "psycopg.Connection[tuple[object, ...]]") -> float:
    begin = time.perf_counter()
    at.execute("INSERT INTO committed VALUES (%s)", [begin])
    return time.perf_counter() - begin


def migrate(url: str) -> None:
    """Make our tables."""
    store = IntentStore(url)
    store.migrate()
    store.close()


@contextmanager
def databases() -> Iterator[Databases]:
    """Find a server as the tests do, or make one for the block."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nimble-bench-"))
        yield Databases(_server(stack), Path(folder))


def _server(stack: ExitStack) -> str:
    if given := os.environ.get("NIMBLE_TEST_POSTGRES_URL"):
        return given
    users = dict.fromkeys(("postgres", getuser()))
    local = [f"postgresql://{user}@127.0.0.1:5432/postgres" for user in users]
    if answering := next(filter(_answers, local), None):
        return answering
    directory = programs()
    if directory is None:
        raise NoServerError(
            "no PostgreSQL to measure on: start one on 127.0.0.1:5432, name one in"
            " NIMBLE_TEST_POSTGRES_URL, or install its programs (Debian: postgresql)"
        )
    return stack.enter_context(Cluster(directory, durable=True)).url


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            found = connection.execute(
                "SELECT rolcreatedb OR rolsuper FROM pg_catalog.pg_roles"
                " WHERE rolname = current_user"
            ).fetchone()
            return found == (True,)
    except psycopg.OperationalError:
        return False

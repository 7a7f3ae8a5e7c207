"""Databases for the tests: a fresh one each, on SQLite and on PostgreSQL.

`database_url` gives a migrated database, `empty_database_url` one without tables; both run a test
once per database. `sqlite_url`, `postgres_url` and their `empty_` twins give just one of them.

PostgreSQL is NIMBLE_TEST_POSTGRES_URL if set, else a server answering on 127.0.0.1:5432, else a
private cluster of the installed programs. Where none of these works the tests are skipped, and
under CI=true they fail.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from itertools import count
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
END_WITH_STDIN = 'read -r _; "$0" -D "$1/data" -m immediate stop; rm -rf "$1"'
MAY_MAKE_DATABASES = (
    "SELECT rolcreatedb OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"
)


@pytest.fixture
def anyio_backend() -> str:
    """Run `@pytest.mark.anyio` tests on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session")
def npm() -> str:
    """Give the command that installs outside witnesses written in JavaScript."""
    found = shutil.which("npm")
    return found or give_up("npm is not installed")


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest) -> str:
    """Give the URL of a migrated database of this test's own."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=BOTH)
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """Give the URL of a database of this test's own that has no tables."""
    return request.getfixturevalue(f"empty_{request.param}_url")


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """Give the URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'nimble.db'}"


@pytest.fixture
def sqlite_url(empty_sqlite_url: str, sqlite_template: Path) -> str:
    """Give the URL of a copy of the migrated SQLite file."""
    shutil.copyfile(sqlite_template, empty_sqlite_url.removeprefix("sqlite:///"))
    return empty_sqlite_url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate one SQLite file for the session."""
    path = tmp_path_factory.mktemp("template") / "nimble.db"
    migrate(f"sqlite:///{path}")
    assert not path.with_name("nimble.db-wal").exists(), "closing the store left a WAL file"
    return path


@pytest.fixture
def empty_postgres_url(postgres: "Databases") -> Iterator[str]:
    """Give the URL of a new PostgreSQL database."""
    with postgres.fresh("template0") as url:
        yield url


@pytest.fixture
def postgres_url(postgres: "Databases", postgres_template: str) -> Iterator[str]:
    """Give the URL of a copy of the migrated PostgreSQL database."""
    with postgres.fresh(postgres_template) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres: "Databases") -> Iterator[str]:
    """Migrate one PostgreSQL database for the session and give its name."""
    with postgres.fresh("template0") as url:
        migrate(url)
        yield urlsplit(url).path.removeprefix("/")


@pytest.fixture(scope="session")
def postgres(postgres_server: str) -> Iterator["Databases"]:
    """Hold the one administrative connection of the session."""
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        yield Databases(postgres_server, admin)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Give the URL of a PostgreSQL server on which databases can be made."""
    if given := os.environ.get("NIMBLE_TEST_POSTGRES_URL"):
        yield given
    elif answering := next(filter(can_make_databases, local_servers()), None):
        yield answering
    elif directory := programs():
        with private_cluster(directory) as cluster:
            yield cluster.url
    else:
        give_up(
            "no PostgreSQL: NIMBLE_TEST_POSTGRES_URL is not set, no usable server answers on "
            "127.0.0.1:5432, and initdb and pg_ctl are not installed"
        )


@pytest.fixture
def cluster() -> Iterator["Cluster"]:
    """Run a PostgreSQL of this test's own, which it may stop and start."""
    if (directory := programs()) is None:
        give_up("no PostgreSQL of a test's own: initdb and pg_ctl are not installed")
    with private_cluster(directory) as cluster:
        migrate(cluster.url)
        yield cluster


class Databases:
    """Makes and drops databases; the random part keeps parallel test processes apart."""

    def __init__(self, server: str, admin: "psycopg.Connection[tuple[object, ...]]") -> None:
        self._server = urlsplit(server)
        self._admin = admin
        self._names = (f"nimble_test_{secrets.token_hex(4)}_{number}" for number in count())

    @contextmanager
    def fresh(self, template: str) -> Iterator[str]:
        """Give the URL of a copy of `template`, dropped afterwards whoever is still connected."""
        name = next(self._names)
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._admin.execute(copy.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield self._server._replace(path=f"/{name}").geturl()
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            self._admin.execute(drop.format(sql.Identifier(name)))


def migrate(url: str) -> None:
    """Bring the schema of a database up to date."""
    from nimble_lifecycle.store import IntentStore

    store = IntentStore(url)
    store.migrate()
    store.close()


def local_servers() -> list[str]:
    """Give the URLs worth trying on this machine."""
    users = dict.fromkeys(("postgres", getuser()))
    return [f"postgresql://{user}@127.0.0.1:5432/postgres" for user in users]


def can_make_databases(url: str) -> bool:
    """Say whether a server answers and lets us work on it."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            return connection.execute(MAY_MAKE_DATABASES).fetchone() == (True,)
    except psycopg.OperationalError:
        return False


def programs() -> Path | None:
    """Find the directory of initdb and pg_ctl, which Debian keeps off the PATH."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    newest_first = sorted(debian, key=lambda path: path.parent.name.zfill(4), reverse=True)
    for directory in [*newest_first, *map(Path, os.get_exec_path())]:
        if all(os.access(directory / program, os.X_OK) for program in ("initdb", "pg_ctl")):
            return directory
    return None


class Cluster:
    """A PostgreSQL cluster of our own on a free port; its programs refuse root: `postgres` then."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._user = "postgres" if os.geteuid() == 0 else None
        self._home = Path(tempfile.mkdtemp(prefix="nimble-postgres-"))
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Make its files."""
        if self._user:
            shutil.chown(self._home, self._user)
        self._run(
            "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )

    def start(self) -> None:
        """Start it; it answers when this returns."""
        options = f"-h 127.0.0.1 -p {self.port} -k '' -c fsync=off -c full_page_writes=off"
        self._run("pg_ctl", "-w", "-o", options, "start")

    def stop(self) -> None:
        """Stop it at once, as if its machine had lost power: it recovers when it starts."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def keeper(self) -> "subprocess.Popen[bytes]":
        """Run what ends the cluster when this process closes the pipe, as even a killed one does."""
        return subprocess.Popen(
            ["sh", "-c", END_WITH_STDIN, str(self._directory / "pg_ctl"), str(self._home)],
            user=self._user,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def remove(self) -> str:
        """Remove the files of one that did not start, and give what it said."""
        output = self._home / "output"
        said = output.read_text(errors="replace")[-2000:] if output.exists() else ""
        shutil.rmtree(self._home, ignore_errors=True)
        return said

    def _run(self, program: str, *arguments: str) -> None:
        # Output goes to a file: the server inherits it, and a pipe would never be at its end.
        with (self._home / "output").open("ab") as output:
            subprocess.run(
                [self._directory / program, "-D", self._home / "data", *arguments],
                user=self._user,
                cwd=self._home,
                stdout=output,
                stderr=output,
                check=True,
                timeout=90,
            )


@contextmanager
def private_cluster(directory: Path) -> Iterator[Cluster]:
    """Run a cluster of our own."""
    cluster = Cluster(directory)
    try:
        cluster.make()
        cluster.start()
    except (OSError, LookupError, subprocess.SubprocessError) as error:
        give_up(f"a private PostgreSQL cluster did not start: {error}\n{cluster.remove()}")
    with cluster.keeper():
        yield cluster


def free_port() -> int:
    """Give a TCP port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def give_up(reason: str) -> NoReturn:
    """Skip, or fail where a missing database would go unseen."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)

"""Databases for the tests: a fresh one each, on SQLite and on PostgreSQL.

`database_url` gives a migrated database, `empty_database_url` one without tables; both run a test
once per database. `sqlite_url`, `postgres_url` and their `empty_` twins give just one of them.

PostgreSQL is NIMBLE_TEST_POSTGRES_URL if set, else a server answering on 127.0.0.1:5432, else a
private cluster of the installed programs; tests that stop the server always have one of their own
(`cluster`). Where none of these works the tests are skipped, and under CI=true they fail.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from getpass import getuser
from itertools import count
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, urlsplit

import hypothesis
import psycopg
import pytest
from clusters import Cluster, ClusterError, programs
from psycopg import sql
from waiting import PATIENCE

# An example that a stalled machine holds up is no counter-example.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
MAY_MAKE_DATABASES = (
    "SELECT rolcreatedb OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"
)


@pytest.fixture
def anyio_backend() -> str:
    """Run `@pytest.mark.anyio` tests on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session")
def from_npm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Install outside witnesses in JavaScript: `from_npm(package, …)` gives their folder."""
    npm = shutil.which("npm") or give_up("npm is not installed")

    def install(*packages: str) -> Path:
        home = tmp_path_factory.mktemp("npm")
        quiet = ("--silent", "--no-fund", "--no-audit")
        command = [npm, "install", *quiet, "--prefix", str(home), *packages]
        subprocess.run(command, check=True, timeout=300)
        return home

    return install


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
    else:
        with own_cluster() as cluster:
            yield cluster.url


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Run a PostgreSQL of this test's own, which it may stop and start."""
    with own_cluster() as cluster:
        migrate(cluster.url)
        yield cluster


@contextmanager
def own_cluster() -> Iterator[Cluster]:
    """Run a private cluster, or give up."""
    directory = programs()
    if directory is None:
        give_up(
            "no PostgreSQL that a test may use, or stop: initdb and pg_ctl are not installed, "
            "which Debian has in its package postgresql"
        )
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(Cluster(directory))
        except ClusterError as error:
            give_up(str(error))
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


@dataclass(frozen=True)
class Halves:
    """One database as its owner reaches it, and as the roles of the two halves do."""

    owner: str
    server: str
    worker: str


@pytest.fixture
def halves(postgres_url: str) -> Iterator[Halves]:
    """Make a role for each half, with the rights `grants` prints and no others."""
    with roles_on(postgres_url) as made:
        yield made


@contextmanager
def roles_on(url: str) -> Iterator[Halves]:
    """Make two roles on a database, each with a password, and drop them afterwards."""
    from nimble_lifecycle.store.grants import grants

    word = secrets.token_hex(4)
    # A name that must be quoted, as names may be.
    server, worker = f'nimble "test" server {word}', f"nimble test worker {word}"
    with psycopg.connect(url, autocommit=True) as owner:
        made = []
        try:
            for role in (server, worker):
                create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                owner.execute(create.format(sql.Identifier(role), sql.Literal(word)))
                made.append(role)
            owner.execute(grants(server_role=server, worker_role=worker))
            yield Halves(url, with_user(url, server, word), with_user(url, worker, word))
        except psycopg.errors.InsufficientPrivilege as error:
            if made:
                raise
            give_up(f"the PostgreSQL user of the tests may not make roles: {error}")
        finally:
            for role in made:
                owner.execute(sql.SQL("DROP OWNED BY {0}").format(sql.Identifier(role)))
                owner.execute(sql.SQL("DROP ROLE {0}").format(sql.Identifier(role)))


def with_user(url: str, name: str, password: str) -> str:
    """Give the same URL for another user."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(name)}:{password}@{where}").geturl()


@pytest.fixture
def own_imports(tmp_path: Path) -> Iterator[None]:
    """Forget after the test what it imported from its folder.

    `sys.modules` stays the object it is: Python's import looks into that one.
    """
    before = dict(sys.modules)
    yield
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if isinstance(place, str) and Path(place).is_relative_to(tmp_path):
            del sys.modules[name]
            if name in before:
                sys.modules[name] = before[name]


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
        with psycopg.connect(url, connect_timeout=int(PATIENCE)) as connection:
            return connection.execute(MAY_MAKE_DATABASES).fetchone() == (True,)
    except psycopg.OperationalError:
        return False


def give_up(reason: str) -> NoReturn:
    """Skip, or fail where a missing database would go unseen."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)

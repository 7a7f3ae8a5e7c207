"""The schema: who makes it, who may live with it, and that it is the models'."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.util import CommandError
from sqlmodel import SQLModel
from waiting import PATIENCE

import nimble_lifecycle
from nimble_lifecycle.errors import (
    ConfigurationError,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    StoreUnavailable,
)
from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.store import IntentStore, WorkStore
from nimble_lifecycle.store.database import SCHEMA_NUMBER
from nimble_lifecycle.store.migrations import config
from nimble_lifecycle.store.models import deployment, metadata

CANNOT_COMPARE = pytest.mark.filterwarnings(
    "ignore:Skipped unsupported reflection of expression",
    "ignore:autogenerate skipping metadata-specified expression-based index",
)
"""SQLite's indexes over expressions cannot be compared; `test_plans` shows that ours is used."""

FIVE_AT_ONCE = """
import os
import sys

import alembic.command  # before the fork, so that the five start together
from nimble_lifecycle.store import WorkStore


def migrate():
    store = WorkStore(sys.argv[1])
    store.migrate()
    store.open()
    store.close()
    sys.exit(0)


children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        migrate()
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


@pytest.fixture
def store(database_url: str) -> Iterator[WorkStore]:
    with closing(WorkStore(database_url)) as store:
        yield store


def soon(store: WorkStore) -> float:
    return store.clock.monotonic() + PATIENCE


def owner_ids(store: WorkStore) -> list[str]:
    select = sa.select(deployment.c.owner_id)
    return store.reading(soon(store), lambda at: list(at.execute(select).scalars()))


def set_schema(store: WorkStore, **columns: object) -> None:
    statement = sa.update(deployment).values(**columns)
    store.writing(soon(store), lambda at: at.execute(statement).close())


def test_five_processes_migrate_an_empty_database_at_once(empty_database_url: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIVE_AT_ONCE, empty_database_url],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("[0, 0, 0, 0, 0]\n", "")
    with closing(WorkStore(empty_database_url)) as store:
        (owner,) = owner_ids(store)
    assert len(owner) == 10


def test_threads_of_one_process_may_open_a_new_file_at_once(empty_sqlite_url: str) -> None:
    stores = [WorkStore(empty_sqlite_url) for _ in range(5)]
    failed: list[threading.ExceptHookArgs] = []
    threads = [threading.Thread(target=store.open) for store in stores]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", failed.append)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert len({owner for store in stores for owner in owner_ids(store)}) == 1
    for store in stores:
        store.close()


@CANNOT_COMPARE
def test_the_schema_is_the_models_and_a_foreign_table_is_left_alone(store: WorkStore) -> None:
    store.writing(
        soon(store), lambda at: at.exec_driver_sql("CREATE TABLE theirs (id INTEGER)").close()
    )
    store.migrate()
    settings = config()

    def check(at: sa.Connection) -> list[str]:
        settings.attributes["connection"] = at
        command.check(settings)
        return sa.inspect(at).get_table_names()

    assert "theirs" in store.reading(soon(store), check)


@CANNOT_COMPARE
def test_the_check_would_see_a_difference(store: WorkStore) -> None:
    change = "ALTER TABLE nimble_call ADD COLUMN extra INTEGER"
    store.writing(soon(store), lambda at: at.exec_driver_sql(change).close())
    settings = config()

    def check(at: sa.Connection) -> None:
        settings.attributes["connection"] = at
        command.check(settings)

    with pytest.raises(CommandError, match="New upgrade operations detected"):
        store.reading(soon(store), check)


@pytest.mark.postgres
def test_no_index_hangs_on_the_order_of_a_locale(postgres_url: str) -> None:
    asked = (
        "SELECT table_name || '.' || column_name, collation_name FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND data_type = 'text'"
    )
    with closing(WorkStore(postgres_url)) as store:
        found = dict(store.reading(soon(store), lambda at: at.exec_driver_sql(asked).all()))
    ours = {
        f"{table.name}.{column.name}"
        for table in metadata.tables.values()
        for column in table.c
        if isinstance(column.type, sa.Text)
    }
    assert {name: found.get(name) for name in ours} == dict.fromkeys(ours, "C")
    assert len(ours) > len(metadata.tables)


def test_migrating_again_changes_nothing(store: WorkStore) -> None:
    before = owner_ids(store)
    store.migrate()
    assert owner_ids(store) == before


def test_a_failed_migration_leaves_nothing(empty_database_url: str, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("stop")

    store = WorkStore(empty_database_url)
    monkeypatch.setattr("secrets.choice", fail)
    with closing(store):
        with pytest.raises(RuntimeError, match="stop"):
            store.migrate()
        with store._connected(soon(store)) as at:
            assert sa.inspect(at).get_table_names() == []


def test_postgresql_without_tables_names_the_command(empty_postgres_url: str) -> None:
    with closing(IntentStore(empty_postgres_url)) as store:
        with pytest.raises(SchemaMissing, match="nimble-reconcile migrate"):
            store.open()
        with pytest.raises(SchemaMissing):
            store.ready(Workspace("ws"), "acme", Reason.INSTALL, {}, until=soon(store))


@pytest.mark.parametrize("half", [IntentStore, WorkStore])
def test_sqlite_is_made_on_first_use_by_either_half(tmp_path, half) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'directory' / 'nimble.db'}"
    with closing(half(url)) as store:
        store.open()
        assert len(owner_ids(store)) == 1


def test_a_sqlite_file_is_made_for_nobody_who_says_so(tmp_path) -> None:
    with closing(WorkStore(f"sqlite:///{tmp_path / 'new' / 'nimble.db'}")) as store:
        with pytest.raises(SchemaMissing, match="does not exist"):
            store.open(make=False)
        assert list(tmp_path.iterdir()) == []
        store.migrate()
        set_schema(store, schema_number=SCHEMA_NUMBER - 1)
    again = closing(WorkStore(f"sqlite:///{tmp_path / 'new' / 'nimble.db'}"))
    with again as store, pytest.raises(SchemaOutdated):
        store.open(make=False)


def test_a_sqlite_file_is_named_by_its_whole_path(tmp_path, monkeypatch) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        with closing(WorkStore("sqlite:///nimble.db")) as store:
            assert store.location == f"SQLite file {tmp_path / folder / 'nimble.db'}"


def test_a_sqlite_file_whose_folder_cannot_be_made_is_unavailable(tmp_path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = WorkStore(f"sqlite:///{tmp_path}/file/below/nimble.db")
    with pytest.raises(StoreUnavailable, match="cannot be made"):
        store.open()
    store.close()


def test_tables_that_go_away_are_named_missing(store: WorkStore) -> None:
    store.open()
    drop = "ALTER TABLE nimble_tenancy RENAME TO elsewhere"
    store.writing(soon(store), lambda at: at.exec_driver_sql(drop).close())
    with pytest.raises(SchemaMissing):
        store.status()


def test_a_newer_schema_is_refused_only_by_code_older_than_it_can_live_with(
    store: WorkStore, database_url: str
) -> None:
    set_schema(store, schema_number=SCHEMA_NUMBER + 1, oldest_version=nimble_lifecycle.__version__)
    with closing(IntentStore(database_url)) as able:
        able.open()
    set_schema(store, oldest_version="99.0")
    unable = IntentStore(database_url)
    with closing(unable), pytest.raises(SchemaTooNew, match=r"needs 99\.0 or newer"):
        unable.open()


def test_an_older_schema_is_refused_on_postgresql(postgres_url: str) -> None:
    with closing(WorkStore(postgres_url)) as store, closing(IntentStore(postgres_url)) as other:
        set_schema(store, schema_number=SCHEMA_NUMBER - 1)
        with pytest.raises(SchemaOutdated, match="nimble-reconcile migrate"):
            other.open()


def test_our_tables_are_not_in_the_metadata_of_our_host() -> None:
    assert [name for name in SQLModel.metadata.tables if name.startswith("nimble_")] == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "mysql://u:hunter2@h/d",
        "sqlite://",
        "sqlite:///:memory:",
        "http://x",
        "sqlite://u:hunter2@host/x.db",
        "sqlite://host/x.db",
        "sqlite:///x.db?timeout=abc",
    ],
)
def test_a_url_that_is_neither_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///PATH") as caught:
        IntentStore(url)
    assert "hunter2" not in str(caught.value)


def test_a_sqlite_url_that_names_a_driver_is_opened_with_ours(tmp_path: Path) -> None:
    with closing(IntentStore(f"sqlite+aiosqlite:///{tmp_path}/nimble.db")) as store:
        store.open()
    assert (tmp_path / "nimble.db").exists()


def test_what_may_be_printed_has_no_secret() -> None:
    store = IntentStore("postgresql://me:hunter2@db.example/app?sslpassword=hunter2")
    assert store.location == "PostgreSQL db.example:5432/app"
    store.close()


def test_a_role_without_rights_is_told_so_in_one_sentence(postgres_url: str) -> None:
    role = "nimble_test_powerless"
    make = f"CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL"
    admin = sa.create_engine(postgres_url.replace("://", "+psycopg://"))
    try:
        with admin.begin() as connection:
            connection.exec_driver_sql(f"DO $$ BEGIN {make}; END $$")
    except sa.exc.ProgrammingError:
        pytest.skip("the PostgreSQL user of the tests may not make roles")
    finally:
        admin.dispose()
    url = sa.make_url(postgres_url).set(username=role).render_as_string(hide_password=False)
    with closing(WorkStore(url)) as store, pytest.raises(StoreUnavailable, match="lacks a right"):
        store.kinds()


def test_a_file_that_is_no_database_is_said_in_one_sentence(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("no database at all, " * 100)
    store = WorkStore(f"sqlite:///{tmp_path}/notes.txt")
    with closing(store), pytest.raises(StoreUnavailable, match="no database"):
        store.open()


def test_an_option_the_driver_does_not_know_is_a_mistake_of_the_url(postgres_url: str) -> None:
    store = WorkStore(f"{postgres_url}?colour=red")
    with closing(store), pytest.raises(ConfigurationError, match="option"):
        store.open()


def test_a_database_that_turns_read_only_is_unavailable_for_a_while(postgres_url: str) -> None:
    store = WorkStore(f"{postgres_url}?options=-c%20default_transaction_read_only%3Don")
    with closing(store), pytest.raises(StoreUnavailable, match="read-only"):
        store.trim_calls()


def test_prepared_statements_that_a_proxy_dropped_cost_one_call(postgres_url: str) -> None:
    with closing(WorkStore(postgres_url, connections=1)) as store:
        for _ in range(8):
            store.kinds()
        # Inside a block, so that the driver does not notice; as a pooling proxy would do it.
        drop = "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"
        store.reading(soon(store), lambda at: at.exec_driver_sql(drop).close())
        with pytest.raises(StoreUnavailable):
            store.kinds()
        for _ in range(8):
            assert store.kinds() == []
        assert prepared_in(store) == [], "by now it is known that none is kept"


def test_no_two_connections_give_a_statement_the_same_name(postgres_url: str) -> None:
    """Else one could run the other's, behind a proxy that lends both the same session."""
    with closing(WorkStore(postgres_url)) as one, closing(WorkStore(postgres_url)) as other:
        one.kinds(), other.kinds()
        names = prepared_in(one), prepared_in(other)
    assert all(names)
    assert not set(names[0]) & set(names[1])


def prepared_in(store: WorkStore) -> list[str]:
    """Name the statements that the store's connection keeps."""
    asked = "SELECT name FROM pg_prepared_statements"
    found = store.reading(soon(store), lambda at: at.exec_driver_sql(asked).scalars().all())
    return list(found)

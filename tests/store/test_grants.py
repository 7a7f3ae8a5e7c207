"""The rights `grants` prints, tried out by the two roles on a real PostgreSQL."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from waiting import PATIENCE

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.store import IntentStore, WorkStore
from nimble_lifecycle.store.grants import grants
from nimble_lifecycle.store.host_statements import HostStatements
from nimble_lifecycle.store.models import Part, columns_of, metadata, tenancy

pytestmark = pytest.mark.postgres

SERVERS = columns_of(*Part)
WORKERS = [column for column in tenancy.c if column not in SERVERS]
WHAT_THE_VENDOR_MADE = {"external_id", "external_name", "idempotency_key", "details"}
WHAT_A_GRACE_RESTS_ON = {"release_seen_at", "release_after", "release_started_at", "due_at"}
LEASE = {"lease_owner", "lease_token", "lease_expires_at"}


@contextmanager
def role(url: str) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def server(halves) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """Give the server's role, on a database with one row."""
    with closing(IntentStore(halves.server)) as store:
        until = store.clock.monotonic() + PATIENCE
        store.ready(Workspace("ws_1"), "acme", Reason.INSTALL, {}, until=until)
    with role(halves.server) as connection:
        yield connection


@pytest.fixture
def worker(halves, server) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    with role(halves.worker) as connection:
        yield connection


def refused(connection: "psycopg.Connection[tuple[object, ...]]", statement: str) -> bool:
    try:
        connection.execute(sql.SQL(statement))  # type: ignore[arg-type]
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def test_a_column_is_the_workers_unless_the_models_say_otherwise() -> None:
    names = {column.name for column in WORKERS}
    assert {"phase", "reason", "hold", "paused", "origin", "retired_at"} <= names
    assert names >= WHAT_THE_VENDOR_MADE | WHAT_A_GRACE_RESTS_ON | LEASE


def test_the_servers_role_can_neither_change_nor_insert_what_is_the_workers(server) -> None:
    for name in [column.name for column in WORKERS]:
        insert = f"INSERT INTO nimble_tenancy (id, {name}) VALUES (gen_random_uuid(), NULL)"
        assert refused(server, insert), name
        assert refused(server, f"UPDATE nimble_tenancy SET {name} = NULL"), name


def test_the_servers_role_cannot_change_an_identity(server) -> None:
    for column in columns_of(Part.IDENTITY):
        assert refused(server, f"UPDATE nimble_tenancy SET {column.name} = {column.name}"), column


def test_the_servers_role_changes_intent_and_contact(server) -> None:
    for column in columns_of(Part.INTENT, Part.CONTACT):
        assert not refused(server, f"UPDATE nimble_tenancy SET {column.name} = {column.name}")


def test_the_servers_role_cannot_read_a_lease_nor_what_went_wrong(server) -> None:
    for name in (*LEASE, "last_error", "attempts", "due_at"):
        assert refused(server, f"SELECT {name} FROM nimble_tenancy"), name
    assert refused(server, "SELECT * FROM nimble_tenancy")
    assert refused(server, "UPDATE nimble_tenancy SET desired = 'release' RETURNING lease_owner")
    assert refused(server, "SELECT 1 FROM nimble_tenancy WHERE lease_expires_at IS NULL")


def test_the_servers_role_has_no_part_in_the_workers_tables(server) -> None:
    for table in ("nimble_journal", "nimble_vendor", "nimble_sighting"):
        for statement in (
            f"SELECT kind FROM {table}",
            f"INSERT INTO {table} (kind) VALUES ('acme')",
            f"UPDATE {table} SET kind = 'acme'",
            f"DELETE FROM {table}",
        ):
            assert refused(server, statement), statement


STATEMENTS = [
    name for name, its in vars(HostStatements).items() if isinstance(its, cached_property)
]


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_servers_role_may_run_every_statement_of_a_host_call(halves, name: str) -> None:
    values = {
        "its_id": uuid4(),
        "its_tenant_id": "",
        "its_workspace_id": "ws_1",
        "its_kind": "acme",
        "its_params": {},
        "its_params_hash": "",
        "its_reason": "resume",
        "its_event": "ready",
        "not_after": datetime.now(UTC) + timedelta(hours=1),
    }
    with closing(IntentStore(halves.server)) as store:
        statement = getattr(HostStatements(store.clock, store.engine.dialect), name)
        until = store.clock.monotonic() + PATIENCE
        store.writing(until, lambda at: statement.row(at, values))


def test_the_servers_role_adds_to_the_call_log_and_cannot_number_its_rows(server) -> None:
    said = "'', 'ws_1', 'acme', 'ready'"
    names = "at, tenant_id, workspace_id, kind, event"
    assert not refused(server, f"INSERT INTO nimble_call ({names}) VALUES (now(), {said})")
    # The log is kept short by its numbers: a large one would empty it.
    numbered = f"INSERT INTO nimble_call (id, {names}) VALUES (9999999999, now(), {said})"
    assert refused(server, numbered)
    assert refused(server, "SELECT setval('nimble_call_id_seq', 9999999999)")
    assert refused(server, "SELECT event FROM nimble_call")
    assert refused(server, "DELETE FROM nimble_call")
    assert refused(server, "UPDATE nimble_call SET event = 'ready'")


def test_the_servers_role_cannot_tell_whose_database_it_is_nor_say_it(server) -> None:
    assert refused(server, "SELECT owner_id FROM nimble_deployment")
    assert refused(server, "UPDATE nimble_deployment SET fingerprint = NULL")


DDL = (
    "CREATE TABLE nimble_other (id integer)",
    "CREATE FUNCTION nimble_trap() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE nimble_tenancy ADD COLUMN mine integer",
    "CREATE INDEX mine ON nimble_tenancy (kind)",
    "DROP INDEX uq_nimble_tenancy_live",
    "DROP TABLE nimble_tenancy",
    "TRUNCATE nimble_tenancy",
    "TRUNCATE nimble_journal",
    "DELETE FROM nimble_tenancy",
    "DELETE FROM nimble_deployment",
    "INSERT INTO nimble_deployment (id) VALUES (2)",
    "UPDATE nimble_deployment SET oldest_version = '0'",
    "SELECT * FROM nimble_schema",
)


@pytest.mark.parametrize("half", ["server", "worker"])
def test_neither_role_alters_the_schema_nor_deletes_tenancies(halves, half: str) -> None:
    with role(getattr(halves, half)) as connection:
        for statement in DDL:
            assert refused(connection, statement), statement


def test_the_workers_role_only_adds_to_its_journal(worker) -> None:
    assert refused(worker, "UPDATE nimble_journal SET note = NULL")
    assert refused(worker, "DELETE FROM nimble_journal")
    assert refused(worker, "SELECT setval('nimble_journal_id_seq', 1)")
    assert refused(
        worker, "INSERT INTO nimble_journal (id, note) OVERRIDING SYSTEM VALUE VALUES (1, '')"
    )
    assert not refused(worker, "SELECT * FROM nimble_journal")


def test_the_workers_role_does_not_write_the_call_log(worker) -> None:
    assert refused(worker, "INSERT INTO nimble_call (event) VALUES ('removing')")
    assert refused(worker, "UPDATE nimble_call SET event = 'removing'")
    assert not refused(worker, "DELETE FROM nimble_call")


def test_the_rights_may_be_granted_again_and_take_back_what_was_too_much(halves) -> None:
    names = {half: sa.make_url(getattr(halves, half)).username for half in ("server", "worker")}
    given = grants(server_role=str(names["server"]), worker_role=str(names["worker"]))
    too_much = sql.SQL(
        "GRANT UPDATE (phase) ON nimble_tenancy TO {0}, PUBLIC; GRANT ALL ON nimble_journal TO {0}"
    )
    with role(halves.owner) as owner, role(halves.server) as server:
        owner.execute(too_much.format(sql.Identifier(str(names["server"]))))
        assert not refused(server, "UPDATE nimble_tenancy SET phase = 'ready'")
        for _ in range(2):
            owner.execute(given)
        assert refused(server, "UPDATE nimble_tenancy SET phase = 'ready'")
        assert refused(server, "DELETE FROM nimble_journal")


def test_every_table_is_taken_from_everybody_and_given_to_the_worker() -> None:
    given = grants(server_role="its_server", worker_role="its_worker")
    for table in metadata.tables:
        assert f'REVOKE ALL ON "public".{table} FROM PUBLIC, "its_server", "its_worker";' in given
        to_worker = [
            statement
            for statement in given.split(";")
            if f".{table} TO" in statement and "its_worker" in statement
        ]
        assert any("SELECT" in statement for statement in to_worker), table


def test_a_schema_of_ones_own_works_too(halves) -> None:
    names = [str(sa.make_url(url).username) for url in (halves.server, halves.worker)]
    there = "?options=-c%20search_path%3Dtheirs"
    with role(halves.owner) as owner:
        owner.execute("CREATE SCHEMA theirs")
        with closing(WorkStore(halves.owner + there)) as store:
            store.migrate()
        owner.execute(grants(server_role=names[0], worker_role=names[1], schema="theirs"))
    with closing(IntentStore(halves.server + there)) as intents:
        until = intents.clock.monotonic() + PATIENCE
        intents.ready(Workspace("ws_there"), "acme", Reason.INSTALL, {}, until=until)
    with closing(WorkStore(halves.worker + there)) as work:
        assert [row["workspace_id"] for row in work.status()] == ["ws_there"]


@pytest.mark.parametrize(
    ("server", "worker", "schema"),
    [
        ("same", "same", "public"),
        ("public", "worker", "public"),
        ("server", "current_user", "public"),
        ("", "worker", "public"),
        ("server", "w" * 64, "public"),
        ("server", "worker\n;DROP TABLE x", "public"),
        ("server", "worker", ""),
    ],
)
def test_names_that_would_not_be_two_roles_are_refused(
    server: str, worker: str, schema: str
) -> None:
    with pytest.raises(ConfigurationError):
        grants(server_role=server, worker_role=worker, schema=schema)


def test_names_are_quoted() -> None:
    given = grants(server_role='s"; DROP TABLE x; --', worker_role="Worker", schema="My schema")
    assert '"s""; DROP TABLE x; --"' in given
    assert 'TO "Worker";' in given
    assert '"My schema".nimble_call' in given

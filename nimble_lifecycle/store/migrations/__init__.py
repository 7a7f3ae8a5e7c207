"""The schema's history, run by Alembic from package data."""

import threading
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

VERSION_TABLE = "nimble_schema"
"""Alembic's own table; named like ours, since we are a guest in somebody's database."""

# Alembic keeps the migration that runs in a variable of its module: one at a time in a process.
_RUNNING = threading.Lock()

# Any number does, as long as no one else takes it: "nimble" on a phone's keys.
_ADVISORY_LOCK = 646253


def config() -> Config:
    """Give Alembic's configuration for the migrations beside this file."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent))
    settings.set_main_option("path_separator", "os")
    return settings


def upgrade(connection: sa.Connection) -> None:
    """Bring the database to the newest revision, alone.

    PostgreSQL: under an advisory lock of the transaction. SQLite: `BEGIN IMMEDIATE`. Whoever comes
    second waits, then finds nothing to do.
    """
    settings = config()
    settings.attributes["connection"] = connection
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        _alone(connection, settings, "BEGIN IMMEDIATE")
    else:
        _alone(connection, settings, "BEGIN", f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")


def _alone(connection: sa.Connection, settings: Config, *begin: str) -> None:
    for statement in begin:
        connection.exec_driver_sql(statement)
    try:
        with _RUNNING:
            command.upgrade(settings, "head")
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")

"""A database that every server of these tests uses, read by a client of its own."""

import sqlite3
from collections.abc import Callable

import pytest

Rows = Callable[[], list[tuple[str, ...]]]


@pytest.fixture
def rows(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Give a function that reads tenant, workspace and intent of each row, sorted."""
    monkeypatch.setenv("NIMBLE_DATABASE_URL", sqlite_url)
    monkeypatch.delenv("NB_WORKSPACE_ID", raising=False)

    def read() -> list[tuple[str, ...]]:
        database = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        try:
            query = "SELECT tenant_id, workspace_id, desired FROM nimble_tenancy"
            return sorted(database.execute(query).fetchall())
        finally:
            database.close()

    return read

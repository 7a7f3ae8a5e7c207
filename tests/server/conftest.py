"""What the tests of the server half share: rows as they are, and the workspace of the process."""

import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from waiting import PATIENCE, until

from nimble_lifecycle import Lifecycle, Tenancy, Workspace, sdk
from nimble_lifecycle.store import IntentStore

Row = dict[str, object]


class Table:
    """The rows of a database, read and changed as another process would."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = IntentStore(url)

    def rows(self, columns: str = "*") -> list[Row]:
        """Give the tenancies, oldest first."""
        query = sa.text(f"SELECT {columns} FROM nimble_tenancy ORDER BY first_seen_at")
        found = self.store.reading(
            time.monotonic() + PATIENCE, lambda at: at.execute(query).mappings().all()
        )
        return [dict(row) for row in found]

    def change(self, assignments: str) -> None:
        """Change all tenancies, as a worker would."""
        self.execute(f"UPDATE nimble_tenancy SET {assignments}")

    def execute(self, sql: str) -> None:
        """Run a statement."""
        statement = sa.text(sql)
        self.store.writing(time.monotonic() + PATIENCE, lambda at: at.execute(statement).close())

    def tenancy(self, workspace_id: str, kind: str = "acme") -> Tenancy | None:
        """Give a workspace's newest tenancy."""
        workspace = Workspace(workspace_id)
        return self.store.tenancy(workspace, kind, until=time.monotonic() + PATIENCE)

    def wait(self, condition: Callable[[Row], object]) -> Row:
        """Give the one row once it is there and the condition holds."""
        return until(lambda: next(filter(condition, self.rows()[:1]), None))


@pytest.fixture
def table(database_url: str) -> Iterator[Table]:
    table = Table(database_url)
    yield table
    table.store.close()


@pytest.fixture
def sqlite_table(sqlite_url: str) -> Iterator[Table]:
    table = Table(sqlite_url)
    yield table
    table.store.close()


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give calls of a server all the time they need; tests of the deadline name their own."""
    for lifecycle in (Lifecycle, sdk.Lifecycle):
        monkeypatch.setitem(lifecycle.__init__.__kwdefaults__, "deadline", PATIENCE)


@pytest.fixture(autouse=True)
def process_workspace(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the workspace of a process that serves one, as older hosts do."""
    monkeypatch.setenv("NB_WORKSPACE_ID", "ws_1")
    return "ws_1"

"""A SQLite database that may not grow: SQLITE_FULL without a disk of its own."""

from pathlib import Path

import sqlalchemy as sa

ROOMY = 1 << 30


def hold_to(engine: sa.Engine, limit: Path) -> None:
    """Let the database of an engine have as many pages as the file says, read at each use."""

    @sa.event.listens_for(engine, "checkout")
    def hold(connection: sa.engine.interfaces.DBAPIConnection, *_: object) -> None:
        # SQLite manual, pragma max_page_count: of this connection only; never below what is used.
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA max_page_count = {int(limit.read_text())}")
        cursor.close()

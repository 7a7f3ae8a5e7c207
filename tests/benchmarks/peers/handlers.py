"""The `on_ready` tool as people write it: with an ORM session, with a raw driver, and empty."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg
from fastmcp import FastMCP
from sqlmodel import Field, Session, SQLModel, create_engine, select

from tests.benchmarks.caller import current

TABLE = """
CREATE TABLE IF NOT EXISTS resource (
    id text PRIMARY KEY, workspace_id text NOT NULL UNIQUE, status text NOT NULL,
    reason text NOT NULL, updated_at {instant} NOT NULL
)"""
UPSERT = """
INSERT INTO resource (id, workspace_id, status, reason, updated_at)
VALUES ({0}, {1}, 'pending', {2}, {3})
ON CONFLICT (workspace_id)
DO UPDATE SET reason = excluded.reason, updated_at = excluded.updated_at
RETURNING status"""


class Resource(SQLModel, table=True):
    """What the hand-written handlers keep for a workspace."""

    id: str = Field(default_factory=lambda: str(uuid4()), primary_key=True)
    workspace_id: str = Field(unique=True)
    status: str = "pending"
    reason: str
    updated_at: datetime


@contextmanager
def by_hand(url: str) -> Iterator[FastMCP]:
    """Select, then insert or update, in one session of the ORM."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    Resource.metadata.create_all(engine)
    mcp = FastMCP("by-hand")

    @mcp.tool
    def workspace_ready(reason: str = "resume") -> str:
        with Session(engine) as session:
            asked = select(Resource).where(Resource.workspace_id == current.get().workspace_id)
            row = session.exec(asked).first()
            now = datetime.now(UTC)
            if row is None:
                row = Resource(
                    workspace_id=current.get().workspace_id, reason=reason, updated_at=now
                )
            row.reason = reason
            row.updated_at = now
            session.add(row)
            session.commit()
            return f"Workspace: {row.status}."

    yield mcp
    engine.dispose()


@asynccontextmanager
async def raw_asyncpg(url: str) -> AsyncIterator[FastMCP]:
    """One upsert with asyncpg, which prepares it by itself."""
    pool = await asyncpg.create_pool(url)
    await pool.execute(TABLE.format(instant="timestamptz"))
    upsert = UPSERT.format("$1", "$2", "$3", "$4")
    mcp = FastMCP("raw")

    @mcp.tool
    async def workspace_ready(reason: str = "resume") -> str:
        values = (str(uuid4()), current.get().workspace_id, reason, datetime.now(UTC))
        return f"Workspace: {await pool.fetchval(upsert, *values)}."

    yield mcp
    await pool.close()


@contextmanager
def raw_sqlite(url: str) -> Iterator[FastMCP]:
    """One upsert with sqlite3, as durable as ours."""
    connection = sqlite3.connect(
        url.removeprefix("sqlite:///"), check_same_thread=False, isolation_level=None
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(TABLE.format(instant="text"))
    upsert = UPSERT.format(*"????")
    mcp = FastMCP("raw")

    @mcp.tool
    def workspace_ready(reason: str = "resume") -> str:
        values = (str(uuid4()), current.get().workspace_id, reason, datetime.now(UTC).isoformat())
        return f"Workspace: {connection.execute(upsert, values).fetchone()[0]}."

    yield mcp
    connection.close()


def nothing() -> FastMCP:
    """Do nothing: what FastMCP itself costs."""
    mcp = FastMCP("nothing")

    @mcp.tool
    async def workspace_ready(reason: str = "resume") -> str:
        return f"{current.get().workspace_id}: {reason}"

    return mcp

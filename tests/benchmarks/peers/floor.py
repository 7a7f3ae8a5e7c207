"""The bare minimum by hand: claim a hundred, call, settle a hundred. No lease, journal or fence."""

import asyncio

import psycopg

from tests.benchmarks.counting import Counting

TABLE = """
CREATE TABLE work (id bigint PRIMARY KEY, workspace_id text NOT NULL,
                   status text NOT NULL, external_id text);
CREATE INDEX ON work (id) WHERE status = 'pending'
"""
CLAIM = """
UPDATE work SET status = 'busy' WHERE id = ANY(ARRAY(
    SELECT id FROM work WHERE status = 'pending' ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED))
RETURNING id, workspace_id
"""
SETTLE = """
UPDATE work SET status = 'ready', external_id = item.external_id
FROM unnest(%s::bigint[], %s::text[]) AS item (id, external_id) WHERE work.id = item.id
"""


async def install(url: str) -> None:
    """Make the table."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as at:
        await at.execute(TABLE)


async def fill(url: str, rows: int) -> None:
    """Leave so many rows to do, and nothing else."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as at:
        await at.execute("TRUNCATE work")
        await at.execute(
            "INSERT INTO work SELECT n, 'workspace_' || n, 'pending' FROM generate_series(1, %s) n",
            [rows],
        )
        await at.execute("VACUUM ANALYZE work")


async def drain(url: str, vendor: Counting) -> None:
    """Do them all."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as at:
        while claimed := await (await at.execute(CLAIM)).fetchall():
            await asyncio.gather(*(vendor.call() for _ in claimed))
            ids = [row[0] for row in claimed]
            await at.execute(SETTLE, [ids, [f"external_{each}" for each in ids]])

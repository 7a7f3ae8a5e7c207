"""LISTEN and NOTIFY by hand: a row and its notification in one commit, heard of, and claimed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg

from tests.benchmarks.counting import Counting
from tests.benchmarks.peers.floor import CLAIM

WISH = """
WITH wish AS (INSERT INTO work SELECT count(*), 'workspace', 'pending' FROM work)
SELECT pg_notify('wish', '')
"""


@asynccontextmanager
async def listening(url: str, vendor: Counting) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Give what makes a wish; the vendor is called as soon as one is heard of and claimed."""
    connect = psycopg.AsyncConnection.connect
    async with (
        await connect(url, autocommit=True) as host,
        await connect(url, autocommit=True) as at,
    ):
        ear = await connect(url, autocommit=True)
        await ear.execute("LISTEN wish")
        hearing = asyncio.create_task(_hear(ear, at, vendor))
        yield lambda: host.execute(WISH)
        hearing.cancel()
        await asyncio.wait({hearing})
        await ear.close()


async def _hear(
    ear: "psycopg.AsyncConnection[tuple[object, ...]]",
    at: "psycopg.AsyncConnection[tuple[object, ...]]",
    vendor: Counting,
) -> None:
    async for _ in ear.notifies():
        for _row in await (await at.execute(CLAIM)).fetchall():
            await vendor.call()

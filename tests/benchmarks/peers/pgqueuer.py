"""pgqueuer: jobs enqueued in one call, run by one queue manager with a batch of 100."""

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from tests.benchmarks.counting import Counting


async def install(url: str) -> None:
    """Make its tables."""
    connection = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def fill(url: str, rows: int) -> None:
    """Leave so many jobs to do, and nothing else."""
    connection = await asyncpg.connect(url)
    await connection.execute("TRUNCATE pgqueuer, pgqueuer_log")
    payloads: list[bytes | None] = [f"workspace_{number}".encode() for number in range(rows)]
    queries = Queries(AsyncpgDriver(connection))
    await queries.enqueue(["provision"] * rows, payloads, [0] * rows)
    await connection.execute("VACUUM ANALYZE pgqueuer")
    await connection.close()


async def drain(url: str, vendor: Counting) -> None:
    """Do them all."""
    connection = await asyncpg.connect(url)
    pgq = PgQueuer(AsyncpgDriver(connection))

    @pgq.entrypoint("provision")
    async def provision(_job: Job) -> None:
        await vendor.call()

    await pgq.qm.run(mode=QueueExecutionMode.drain, batch_size=100)
    await connection.close()

"""procrastinate: tasks deferred in one batch, run by one worker, concurrency 20."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector

from tests.benchmarks.counting import Counting


@asynccontextmanager
async def opened(url: str, vendor: Counting) -> AsyncIterator[App]:
    """Open an app whose one task calls the vendor."""
    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(name="provision")
    async def provision(workspace_id: str) -> None:
        await vendor.call()

    async with app.open_async():
        yield app


async def install(url: str) -> None:
    """Make its tables."""
    async with opened(url, Counting(0)) as app:
        await app.schema_manager.apply_schema_async()


async def fill(url: str, rows: int) -> None:
    """Leave so many jobs to do, and nothing else."""
    async with opened(url, Counting(0)) as app:
        await app.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")
        jobs = [{"workspace_id": f"workspace_{number}"} for number in range(rows)]
        await app.tasks["provision"].batch_defer_async(*jobs)
        await app.connector.execute_query_async("ANALYZE procrastinate_jobs")


async def drain(url: str, vendor: Counting, *, concurrency: int = 20) -> None:
    """Do them all."""
    async with opened(url, vendor) as app:
        await app.run_worker_async(
            concurrency=concurrency, wait=False, install_signal_handlers=False, listen_notify=False
        )

"""DBOS: workflows enqueued by a client, each of one step, and run by one process.

In processes of its own: what it starts in one, it leaves there, and the others would pay for it.
"""

import asyncio
import json
import sys

import psycopg
from dbos import DBOS, DBOSClient, DBOSConfig

from tests.benchmarks.counting import Counting

QUEUE = "provision"


async def install(url: str) -> None:
    """Make its tables."""
    await _apart("drain", url, 0)


async def fill(url: str, rows: int) -> None:
    """Leave so many workflows to do, and nothing else."""
    await _apart("fill", url, rows)


async def drain(url: str, vendor: Counting) -> None:
    """Do them all."""
    vendor.begun += json.loads(await _apart("drain", url, vendor.calls))


async def _apart(*arguments: object) -> bytes:
    command = [sys.executable, "-m", __name__, *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise AssertionError(f"{command} ended with {process.returncode}")
    return said


def _fill(url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as at:
        at.execute("TRUNCATE dbos.workflow_status CASCADE")
    client = DBOSClient(system_database_url=url)
    for number in range(rows):
        client.enqueue({"queue_name": QUEUE, "workflow_name": QUEUE}, f"workspace_{number}")
    client.destroy()


def _drain(url: str, rows: int) -> None:
    vendor = Counting(rows)
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config=config)

    @DBOS.step()
    async def call(workspace_id: str) -> None:
        await vendor.call()

    @DBOS.workflow(name=QUEUE)
    async def provision(workspace_id: str) -> None:
        await call(workspace_id)

    DBOS.launch()
    DBOS.register_queue(QUEUE)
    vendor.wait()
    DBOS.destroy()
    sys.stdout.write(json.dumps(vendor.begun))


if __name__ == "__main__":
    WORK = {"fill": _fill, "drain": _drain}
    WORK[sys.argv[1]](sys.argv[2], int(sys.argv[3]))

"""Both halves at work with just the rights of their roles, from install to release."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import closing

import pytest
import sqlalchemy as sa
from fastmcp import Client, FastMCP
from pydantic import BaseModel
from waiting import PATIENCE

from nimble_lifecycle import Lifecycle, Tenancy
from nimble_lifecycle.errors import StoreUnavailable
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.cli import main
from nimble_lifecycle.reconciler.limits import Limits
from nimble_lifecycle.reconciler.worker import Worker
from nimble_lifecycle.store import Threads, WorkStore
from nimble_lifecycle.store.deployment import Deployment
from nimble_lifecycle.store.models import journal, tenancy
from nimble_lifecycle.testing import MemoryVendor

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

LIMITS = Limits(poll=0.05, grace=0.0, backoff=Backoff(0.01, 0.05))


class Params(BaseModel):
    region: str = "eu"


class Halves:
    """A server on its role's URL, a worker on its own, and what people would look at."""

    def __init__(self, server_url: str, worker_url: str) -> None:
        self.vendor = MemoryVendor()
        self.params = Params()
        self.store = WorkStore(worker_url)
        self.mcp = FastMCP("memory")
        lifecycle = Lifecycle(self.mcp, database_url=server_url, params=lambda _: self.params)

        @lifecycle.on_ready
        def workspace_ready(tenancy: Tenancy) -> str:
            return tenancy.phase

        @lifecycle.on_removing
        def workspace_removing(tenancy: Tenancy) -> str:
            return tenancy.phase

        @self.mcp.tool
        def use(tenancy: Tenancy = lifecycle.ready_tenancy()) -> str:
            return str(tenancy.external_id)

    async def work(self) -> None:
        """Run a worker until it is idle."""
        stored, plain = Threads(4, "test-store"), Threads(4, "test-vendor")
        try:
            async with asyncio.timeout(PATIENCE):
                worker = Worker(self.vendor, self.store, LIMITS, database=stored, threads=plain)
                await worker.run(until_idle=True)
        finally:
            stored.close()
            plain.close()

    def row(self, incarnation: int = 1) -> sa.RowMapping:
        (row,) = self.rows(sa.select(tenancy).where(tenancy.c.incarnation == incarnation))
        return row

    def actions(self) -> list[str]:
        """Give what the journal says the worker did."""
        return [row["action"] for row in self.rows(sa.select(journal).order_by(journal.c.id))]

    def rows(self, select: "sa.Select[tuple[object, ...]]") -> list[sa.RowMapping]:
        until = self.store.clock.monotonic() + PATIENCE
        return self.store.reading(until, lambda at: list(at.execute(select).mappings()))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                await asyncio.sleep(0.02)


@pytest.fixture
async def at_work(halves, monkeypatch) -> AsyncIterator[Halves]:
    monkeypatch.setenv("NB_WORKSPACE_ID", "ws_1")
    made = Halves(halves.server, halves.worker)
    yield made
    made.store.close()


async def said(client: "Client[object]", tool: str) -> str:
    (content,) = (await client.call_tool(tool)).content
    return content.text


async def test_a_whole_life_works_with_just_these_rights(at_work: Halves) -> None:
    async with Client(at_work.mcp) as client:
        assert await said(client, "workspace_ready") == "pending"
        await at_work.work()
        (resource,) = at_work.vendor.world.resources.values()
        assert await said(client, "use") == resource.external_id
        await at_work.until(lambda: at_work.row()["last_used_at"])

        at_work.params = Params(region="us")
        assert await said(client, "workspace_ready") == "ready"
        await at_work.work()
        (changed,) = at_work.vendor.world.resources.values()
        assert (changed.external_id, changed.params) == (resource.external_id, {"region": "us"})

        assert await said(client, "workspace_removing") == "release_pending"
        await at_work.work()
        assert at_work.vendor.world.resources == {}
        assert at_work.row()["phase"] == "released"

        assert await said(client, "workspace_ready") == "pending"
        await at_work.work()
        assert at_work.row(2)["phase"] == "ready"
        assert len(at_work.vendor.world.resources) == 1
        assert at_work.actions() == ["create", "update", "release", "create"]


async def test_the_operators_commands_work_with_the_workers_rights(
    at_work: Halves, halves, monkeypatch, capsys
) -> None:
    async with Client(at_work.mcp) as client:
        await said(client, "workspace_ready")
    await at_work.work()
    monkeypatch.setenv("NIMBLE_DATABASE_URL", halves.worker)
    Deployment(at_work.store, None).enter()
    for command in (
        ["rekey", "acme-inc", "--all"],
        ["claim-database", "--copy", "--deployment", "copy"],
        ["claim-database", "--moved", "--deployment", "copy"],
        ["status", "--json"],
    ):
        with pytest.raises(SystemExit) as ends:
            main(command)
        assert ends.value.code == 0, command
    old, new = json.loads(capsys.readouterr().out)
    assert (old["reason"], new["phase"], new["tenant_id"]) == ("Foreign", "pending", "acme-inc")


async def test_a_worker_with_the_servers_rights_is_told_so_in_one_line(halves) -> None:
    refused = pytest.raises(StoreUnavailable, match="nimble-reconcile grants")
    with closing(WorkStore(halves.server)) as store, refused:
        store.status()

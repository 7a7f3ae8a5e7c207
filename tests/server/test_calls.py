"""A host's calls become rows, whatever arguments come with them."""

import asyncio
import os
import sys

import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.dependencies import Depends
from fastmcp.exceptions import ToolError
from pydantic import BaseModel

from nimble_lifecycle import Lifecycle, Reason, Tenancy, Workspace

pytestmark = pytest.mark.anyio


def acme(url, **settings):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=url, **settings)

    @lifecycle.on_ready
    def workspace_ready(tenancy: Tenancy, reason: Reason) -> str:
        """Set up Acme."""
        return f"{reason} {tenancy.workspace_id} {tenancy.phase}"

    @lifecycle.on_removing
    def workspace_removing(tenancy: Tenancy) -> str:
        return f"Releasing {tenancy.workspace_id}."

    return mcp


async def text_of(client, tool, arguments=None):
    result = await client.call_tool(tool, arguments or {})
    (content,) = result.content
    return content.text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_install_records_the_intent_and_gives_the_functions_words(table, mode):
    async with Client(acme(table.url), mode=mode) as client:
        assert await text_of(client, "workspace_ready", {"reason": "install"}) == (
            "install ws_1 pending"
        )
    (row,) = table.rows("workspace_id, kind, desired, last_reason, incarnation")
    assert row == {
        "workspace_id": "ws_1",
        "kind": "acme",
        "desired": "wanted",
        "last_reason": "install",
        "incarnation": 1,
    }


async def test_removing_asks_for_the_release_and_ready_withdraws_it(table):
    async with Client(acme(table.url)) as client:
        await text_of(client, "workspace_ready")
        table.change("create_started_at = first_seen_at, phase = 'ready', external_id = 'x'")
        assert await text_of(client, "workspace_removing") == "Releasing ws_1."
        assert [row["desired"] for row in table.rows()] == ["release"]
        assert await text_of(client, "workspace_ready") == "resume ws_1 ready"
        assert [row["desired"] for row in table.rows()] == ["wanted"]


async def test_removing_an_unknown_workspace_is_success_and_makes_no_row(sqlite_table):
    async with Client(acme(sqlite_table.url)) as client:
        said = await text_of(client, "workspace_removing")
        assert said == await text_of(client, "workspace_removing")
    assert "nothing to release" in said
    assert sqlite_table.rows() == []


@pytest.mark.parametrize("reason", [None, "null", 7, "upgrade", ["install"], {}])
async def test_an_unknown_reason_means_resume(sqlite_table, reason):
    async with Client(acme(sqlite_table.url)) as client:
        said = await text_of(client, "workspace_ready", {"reason": reason})
    assert said.startswith("resume")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_undeclared_arguments_are_ignored(sqlite_table, mode):
    extra = {"reason": "install", "_gateway": {"trace": 1}, "tenancy": "ws_other", "x": None}
    async with Client(acme(sqlite_table.url), mode=mode) as client:
        assert await text_of(client, "workspace_ready", extra) == "install ws_1 pending"
        assert await text_of(client, "workspace_removing", extra) == "Releasing ws_1."
    assert [row["workspace_id"] for row in sqlite_table.rows()] == ["ws_1"]


async def test_async_functions_context_and_depends_work(sqlite_table):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=sqlite_table.url)

    def greeting() -> str:
        return "Hello"

    @lifecycle.on_ready
    async def hello(ctx: Context, *, word: str = Depends(greeting), limit: int = 5) -> str:
        return f"{word} from {ctx.fastmcp.name} {limit}"

    async with Client(mcp) as client:
        assert await text_of(client, "hello", {"limit": 9, "word": "Bye"}) == "Hello from acme 5"


async def test_without_words_a_fixed_sentence_answers(sqlite_table):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=sqlite_table.url)
    lifecycle.on_ready(name="up")(lambda: None)
    async with Client(mcp) as client:
        assert "taken care of" in await text_of(client, "up")


async def test_params_are_kept_as_json_and_a_change_is_a_new_generation(table):
    class Plan(BaseModel):
        name: str
        seats: int

    seats = [3]
    mcp = acme(table.url, params=lambda ws: Plan(name=f"plan of {ws.workspace_id}", seats=seats[0]))
    async with Client(mcp) as client:
        await text_of(client, "workspace_ready")
        assert table.tenancy("ws_1").params == {"name": "plan of ws_1", "seats": 3}
        (before,) = table.rows("generation")
        seats[0] = 4
        await text_of(client, "workspace_ready")
        (after,) = table.rows("generation")
    assert table.tenancy("ws_1").params["seats"] == 4
    assert after["generation"] == before["generation"] + 1


async def test_params_with_a_set_are_the_same_in_every_process(sqlite_table, tmp_path):
    server = tmp_path / "server.py"
    server.write_text(
        "from fastmcp import FastMCP\nfrom nimble_lifecycle import Lifecycle\n"
        "from pydantic import BaseModel\n"
        "class Inner(BaseModel):\n    tags: frozenset[str] = frozenset('abcdef')\n"
        "class Plan(BaseModel):\n    features: set[str] = set('uvwxyz')\n"
        "    inner: tuple[Inner] = (Inner(),)\n    order: list[str] = ['b', 'a']\n"
        "mcp = FastMCP('acme')\n"
        f"lifecycle = Lifecycle(mcp, database_url={sqlite_table.url!r}, params=lambda _: Plan())\n"
        "lifecycle.on_ready(name='up')(lambda: 'up')\nmcp.run()\n"
    )
    for seed in "123":
        environment = {
            "PYTHONHASHSEED": seed,
            "NB_WORKSPACE_ID": "ws_1",
            "PATH": os.environ["PATH"],
        }
        async with Client(StdioTransport(sys.executable, [str(server)], env=environment)) as client:
            await client.call_tool("up", {})
    assert [row["generation"] for row in sqlite_table.rows()] == [1]
    params = sqlite_table.tenancy("ws_1").params
    assert params == {
        "features": list("uvwxyz"),
        "inner": [{"tags": list("abcdef")}],
        "order": ["b", "a"],
    }


@pytest.mark.parametrize("where", ["handler", "workspace", "params"])
async def test_a_cancellation_from_inside_an_authors_function_is_its_own_fault(sqlite_url, where):
    async def cancelled(*_: object) -> str:
        task = asyncio.create_task(asyncio.sleep(5))
        task.cancel()
        await task
        return "never"

    mcp = FastMCP("acme")
    settings = {} if where == "handler" else {where: cancelled}
    lifecycle = Lifecycle(mcp, database_url=sqlite_url, **settings)

    async def up() -> str:
        return await cancelled() if where == "handler" else "up"

    lifecycle.on_ready(up)
    mcp.tool(name="work")(lambda: "done")
    async with Client(mcp) as client:
        with pytest.raises(ToolError, match="A function of this server failed"):
            await client.call_tool("up", {})
        assert await text_of(client, "work") == "done", "the connection is open"


async def test_two_racing_ready_calls_make_one_row(table):
    async with Client(acme(table.url)) as client:
        await asyncio.gather(
            *(text_of(client, "workspace_ready", {"reason": r}) for r in ("install", "resume"))
        )
    assert len(table.rows()) == 1


async def test_servers_of_two_kinds_on_one_database_have_rows_of_their_own(sqlite_table):
    for kind in ("one", "two"):
        async with Client(acme(sqlite_table.url, kind=kind)) as client:
            await text_of(client, "workspace_ready")
    assert [row["kind"] for row in sqlite_table.rows()] == ["one", "two"]


async def test_a_plain_function_may_give_its_words_to_be_awaited(sqlite_table):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=sqlite_table.url)

    async def words(reason: Reason) -> str:
        await asyncio.sleep(0)
        return f"ready to {reason}"

    def promise(reason: Reason) -> object:
        return words(reason)

    lifecycle.on_ready(name="up")(promise)
    async with Client(mcp) as client:
        assert await text_of(client, "up", {"reason": "install"}) == "ready to install"


async def test_a_function_that_raises_keeps_the_intent_and_shows_nothing(sqlite_table, caplog):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=sqlite_table.url)
    secret = "postgresql://admin:hunter2@db/acme"

    @lifecycle.on_ready
    def broken() -> str:
        raise RuntimeError(secret)

    async with Client(mcp) as client:
        result = await client.call_tool("broken", {}, raise_on_error=False)
    assert result.is_error
    assert "hunter2" not in repr(result)
    assert "RuntimeError" not in repr(result)
    assert [row["desired"] for row in sqlite_table.rows()] == ["wanted"]
    assert secret in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("raised", [SystemExit(3), StopIteration(), TimeoutError(), KeyError("x")])
@pytest.mark.parametrize("is_async", [False, True])
async def test_nothing_a_function_raises_ends_the_server(sqlite_table, raised, is_async):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=sqlite_table.url)

    def plain() -> str:
        raise raised

    async def coroutine() -> str:
        raise raised

    lifecycle.on_ready(name="broken")(coroutine if is_async else plain)
    async with Client(mcp) as client:
        for _ in range(2):
            result = await client.call_tool("broken", {}, raise_on_error=False)
            assert result.is_error
            assert "failed" in result.content[0].text


async def test_params_that_fail_record_nothing(sqlite_table):
    def params(workspace: Workspace) -> BaseModel:
        raise LookupError(workspace.workspace_id)

    async with Client(acme(sqlite_table.url, params=params)) as client:
        result = await client.call_tool("workspace_ready", {}, raise_on_error=False)
    assert result.is_error
    assert sqlite_table.rows() == []


async def test_a_host_that_begins_to_name_tenants_is_refused_until_the_rows_are_moved(table):
    tenant = [""]
    mcp = acme(table.url, workspace=lambda _: Workspace("ws_1", tenant[0]))
    async with Client(mcp) as client:
        await text_of(client, "workspace_ready")
        before = table.rows()
        tenant[0] = "acme-inc"
        for tool in ("workspace_ready", "workspace_removing"):
            with pytest.raises(ToolError, match="`nimble-reconcile rekey`") as refused:
                await client.call_tool(tool, {})
            assert "ws_1" not in str(refused.value)
        assert table.rows() == before
        table.change("tenant_id = 'acme-inc'")
        assert await text_of(client, "workspace_ready") == "resume ws_1 pending"
    assert len(table.rows()) == 1

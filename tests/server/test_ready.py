"""Ordinary tools get the ready tenancy, or a tool error an agent can act on."""

import pytest
from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import Middleware
from fastmcp.utilities.tests import asgi_server

from nimble_lifecycle import Lifecycle, NotReady, Phase, Tenancy
from nimble_lifecycle.errors import NimbleError

pytestmark = pytest.mark.anyio
BEGUN = "create_started_at = first_seen_at, "
READY = BEGUN + "phase = 'ready', external_id = 'x1', details = '{\"key_ref\": \"k\"}'"


def acme(url, **settings):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=url, **settings)
    lifecycle.on_removing(name="down")(lambda: "down")

    @mcp.tool
    async def send(name: str, tenancy: Tenancy = lifecycle.ready_tenancy()) -> str:
        return f"{name} by {tenancy.external_id} {tenancy.details['key_ref']}"

    return mcp


async def send(client):
    return await client.call_tool("send", {"name": "hi"}, raise_on_error=False)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_where_none_was_asked_for_it_is_asked_for_and_then_given(table, mode):
    async with Client(acme(table.url), mode=mode) as client:
        (tool,) = [t for t in await client.list_tools() if t.name == "send"]
        assert list(tool.input_schema["properties"]) == ["name"]
        result = await send(client)
        assert result.is_error
        assert result.structured_content == {
            "phase": "pending",
            "message": "This workspace's resource is being set up.",
            "retry_after_seconds": 5,
        }
        assert "Try again in 5 seconds" in result.content[0].text
        assert [(row["desired"], row["last_reason"]) for row in table.rows()] == [
            ("wanted", "resume")
        ]
        table.change(READY)
        assert (await send(client)).content[0].text == "hi by x1 k"
    assert len(table.rows()) == 1


@pytest.mark.parametrize("phase", ["provisioning", "unresolved", "stalled"])
async def test_the_vendors_words_are_never_shown(sqlite_table, phase):
    async with Client(acme(sqlite_table.url)) as client:
        await send(client)
        words = "token sk-123 refused by db.internal"
        sqlite_table.change(
            f"{BEGUN} phase = '{phase}', reason = 'Rejected', message = '{words}',"
            f" last_error = '{words}'"
        )
        result = await send(client)
    assert result.is_error
    assert result.structured_content["phase"] == phase
    assert result.structured_content["retry_after_seconds"] > 0
    assert "sk-123" not in repr(result)
    assert "Rejected" not in repr(result)


async def test_a_release_that_has_not_started_leaves_the_tenancy_usable(table):
    async with Client(acme(table.url)) as client:
        await send(client)
        table.change(READY)
        await client.call_tool("down", {})
        assert (await send(client)).content[0].text == "hi by x1 k"
        assert [row["desired"] for row in table.rows()] == ["release"]


async def test_an_update_that_is_an_operation_leaves_the_tenancy_usable(table):
    async with Client(acme(table.url)) as client:
        await send(client)
        table.change(READY)
        table.change("phase = 'provisioning', operation_id = 'op'")
        assert (await send(client)).content[0].text == "hi by x1 k"


@pytest.mark.parametrize(
    ("phase", "columns"),
    [
        ("releasing", "release_started_at = first_seen_at"),
        ("released", "release_started_at = first_seen_at, released_at = first_seen_at"),
    ],
)
async def test_after_a_release_it_says_so_and_creates_nothing(sqlite_table, phase, columns):
    async with Client(acme(sqlite_table.url)) as client:
        await send(client)
        sqlite_table.change(f"{READY}, desired = 'release', {columns}")
        sqlite_table.change(f"phase = '{phase}'")
        result = await send(client)
    assert result.is_error
    assert result.structured_content["phase"] == phase
    assert result.structured_content["retry_after_seconds"] is None
    assert "remove" in result.structured_content["message"]
    assert len(sqlite_table.rows()) == 1


async def test_an_authors_error_middleware_does_not_take_the_structure_away(sqlite_table):
    class Alarm(Middleware):
        async def on_call_tool(self, context, call_next):
            try:
                return await call_next(context)
            except Exception as error:
                raise RuntimeError("alarm") from error

    mcp = acme(sqlite_table.url)
    mcp.add_middleware(Alarm())
    async with Client(mcp) as client:
        assert (await send(client)).structured_content["phase"] == "pending"


async def test_it_works_mounted_and_over_http(sqlite_table):
    root = FastMCP("root")
    root.mount(acme(sqlite_table.url, workspace=_workspace), namespace="a")
    async with asgi_server(root) as server, Client(server.transport()) as client:
        result = await client.call_tool("a_send", {"name": "hi"}, raise_on_error=False)
        assert result.structured_content["phase"] == "pending"
        sqlite_table.change(READY)
        result = await client.call_tool("a_send", {"name": "hi"})
        assert result.data == "hi by x1 k"


def _workspace(_context):
    from nimble_lifecycle import Workspace

    return Workspace("ws_http")


async def test_without_a_workspace_it_is_a_tool_error_and_nothing_is_written(
    sqlite_table, monkeypatch
):
    monkeypatch.delenv("NB_WORKSPACE_ID")
    async with Client(acme(sqlite_table.url)) as client:
        result = await send(client)
    assert result.is_error
    assert "NB_WORKSPACE_ID (not set)" in result.content[0].text
    assert sqlite_table.rows() == []


def test_not_ready_is_caught_as_either_family():
    error = NotReady(Phase.PENDING)
    assert isinstance(error, NimbleError)
    assert isinstance(error, ToolError)
    for phase in Phase:
        assert NotReady(phase).result().structured_content["phase"] == phase.value


def bare(tenancy: Tenancy) -> str:
    return tenancy.workspace_id


def optional(tenancy: Tenancy | None = None) -> str:
    return "none" if tenancy is None else tenancy.workspace_id


def whole(tenancy: Tenancy = None) -> Tenancy:
    return tenancy


@pytest.mark.parametrize("tool", [bare, optional, whole])
def test_no_tool_takes_a_tenancy_from_its_caller_nor_gives_it_one_whole(tool):
    with pytest.raises(TypeError, match=r"tenancy: Tenancy = lifecycle\.ready_tenancy\(\)"):
        FastMCP("acme").tool(tool)


def test_ready_tenancy_without_its_call_is_refused_where_it_is_written(sqlite_table):
    lifecycle = Lifecycle(FastMCP("acme"), database_url=sqlite_table.url)

    def uncalled(tenancy: Tenancy = lifecycle.ready_tenancy) -> str:
        return tenancy.workspace_id

    with pytest.raises(TypeError, match=r"ready_tenancy\(\)"):
        lifecycle.mcp.tool(uncalled)

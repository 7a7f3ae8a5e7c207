"""A lifecycle in a tree of servers: what its root sees to, and what it refuses at start."""

import asyncio

import pytest
from fastmcp import Client, FastMCP
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.server.providers import Provider

from nimble_lifecycle import Lifecycle, Tenancy
from nimble_lifecycle.errors import HandlerError

pytestmark = pytest.mark.anyio


def acme(url):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=url)
    lifecycle.on_ready(name="up")(lambda: "up")
    lifecycle.on_removing(name="down")(lambda: "down")
    return mcp, lifecycle


def tree(url):
    """Give a root with a server that keeps tenancies, and one beside it that uses them."""
    mcp, lifecycle = acme(url)
    root, sibling = FastMCP("root"), FastMCP("sibling")
    root.mount(mcp)
    root.mount(sibling)
    for server in (root, sibling):

        @server.tool(name=f"send_from_{server.name}")
        async def send(tenancy: Tenancy = lifecycle.ready_tenancy()) -> str:
            return f"by {tenancy.external_id}"

    return root


SENDERS = pytest.mark.parametrize("tool", ["send_from_root", "send_from_sibling"])


@SENDERS
async def test_a_tool_of_another_server_gets_the_tenancy_or_a_structured_error(sqlite_table, tool):
    async with Client(tree(sqlite_table.url)) as client:
        result = await client.call_tool(tool, {}, raise_on_error=False)
        assert result.is_error
        assert result.structured_content["phase"] == "pending"
        sqlite_table.change("create_started_at = first_seen_at, phase='ready', external_id='x'")
        assert (await client.call_tool(tool, {})).data == "by x"


@SENDERS
async def test_a_tool_of_another_server_that_takes_the_tenancy_is_use_of_it(sqlite_table, tool):
    async with Client(tree(sqlite_table.url)) as client:
        await client.call_tool("up", {})
        await client.call_tool(tool, {}, raise_on_error=False)
        used = await asyncio.to_thread(sqlite_table.wait, lambda row: row["last_used_at"])
        assert used["desired"] == "wanted"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_renamed_handler_takes_whatever_a_host_sends(sqlite_table, mode):
    mcp, _ = acme(sqlite_table.url)
    root = FastMCP("root")
    root.mount(mcp, tool_names={"up": "arrive", "down": "leave"})
    extra = {"reason": "install", "_gateway": {"trace": 1}, "x": None}
    async with Client(root, mode=mode) as client:
        assert (await client.call_tool("arrive", extra)).content[0].text == "up"
        assert [row["last_reason"] for row in sqlite_table.rows()] == ["install"]
        assert (await client.call_tool("leave", extra)).content[0].text == "down"


async def refused(server):
    with pytest.raises(RuntimeError) as caught:
        async with Client(server):
            pass
    assert isinstance(caught.value.__cause__, HandlerError)
    return str(caught.value)


@pytest.mark.parametrize("mounted", [False, True])
async def test_a_cache_that_would_answer_in_a_handlers_place_is_refused(sqlite_url, mounted):
    mcp, _ = acme(sqlite_url)
    server = FastMCP("root")
    server.mount(mcp, namespace="a")
    server = server if mounted else mcp
    server.add_middleware(ResponseCachingMiddleware())
    names = ["a_up", "a_down"] if mounted else ["up", "down"]
    assert f"{{'excluded_tools': {names!r}}}" in await refused(server)


NO_HANDLERS = {"excluded_tools": ["up", "down"]}


@pytest.mark.parametrize("settings", [{"enabled": False}, NO_HANDLERS, {"included_tools": ["x"]}])
async def test_a_cache_that_leaves_handlers_alone_is_none_of_ours(sqlite_table, settings):
    mcp, _ = acme(sqlite_table.url)
    mcp.add_middleware(ResponseCachingMiddleware(call_tool_settings=settings))
    async with Client(mcp) as client:
        for tool in ("up", "down", "up"):
            await client.call_tool(tool, {})
    assert [row["desired"] for row in sqlite_table.rows()] == ["wanted"]


async def test_a_tool_in_a_handlers_place_is_refused_wherever_it_is_from(sqlite_url):
    mcp, _ = acme(sqlite_url)
    root = FastMCP("root")
    root.mount(mcp)
    root.tool(name="up")(lambda: "no handler")
    said = await refused(root)
    assert "'up' of 'acme'" in said
    assert "Rename one" in said


async def test_a_handler_and_another_servers_tool_of_its_name_are_two(sqlite_table):
    mcp, _ = acme(sqlite_table.url)
    root = FastMCP("root")
    root.mount(mcp, namespace="a")
    root.tool(name="up")(lambda x: f"no handler {x}")
    async with Client(root) as client:
        assert (await client.call_tool("up", {"x": 1})).content[0].text == "no handler 1"
        assert (await client.call_tool("a_up", {"x": 1})).content[0].text == "up"


async def test_what_is_looked_at_at_start_runs_no_middleware_and_asks_nobody_else(sqlite_table):
    class Counting(Middleware):
        async def on_list_tools(self, context, call_next):
            listings.append(context.method)
            return await call_next(context)

    class Remote(Provider):
        async def _list_tools(self):
            listings.append("remote")
            return []

    listings = []
    mcp, _ = acme(sqlite_table.url)
    mcp.add_middleware(Counting())
    root = FastMCP("root", middleware=[ResponseCachingMiddleware(call_tool_settings=NO_HANDLERS)])
    root.mount(mcp)
    root.add_provider(Remote())
    async with Client(root):
        assert listings == ["remote"], "FastMCP itself asks it once"

"""What a host reads on the wire: the tools and the extension, on both protocol eras."""

import pytest
from fastmcp import Client, FastMCP
from fastmcp.server.middleware import Middleware
from fastmcp.utilities.tests import ASGIServer, asgi_server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequest, CallToolResult
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.routing import Mount

from nimble_lifecycle import Lifecycle
from nimble_lifecycle.protocol import LIFECYCLE_ID

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])


def acme(url, name="acme", handlers=True):
    mcp = FastMCP(name)
    lifecycle = Lifecycle(mcp, database_url=url)
    if not handlers:
        return mcp

    @lifecycle.on_ready(title="Ready", meta={"dev.acme": {"x": 1}})
    def up() -> str:
        """Set Acme up."""
        return "up"

    @lifecycle.on_removing(name="down", description="Take Acme down.")
    def removed() -> str:
        return "down"

    return mcp


def advertised(client):
    return (client.server_capabilities.extensions or {}).get(LIFECYCLE_ID)


@ERAS
async def test_the_tools_are_flat_marked_and_optional(sqlite_url, mode):
    async with Client(acme(sqlite_url), mode=mode) as client:
        up, down = (
            tool.model_dump(by_alias=True, exclude_none=True, mode="json")
            for tool in await client.list_tools()
        )
    reason = up["inputSchema"]["properties"].pop("reason")
    assert up["inputSchema"] == down["inputSchema"] == {"type": "object", "properties": {}}
    assert reason.pop("description")
    assert reason == {"type": "string", "enum": ["install", "resume"], "default": "resume"}
    assert (up["name"], up["title"], up["description"]) == ("up", "Ready", "Set Acme up.")
    assert (down["name"], down["description"]) == ("down", "Take Acme down.")
    assert up["_meta"][LIFECYCLE_ID] == {"event": "ready"}
    assert up["_meta"]["dev.acme"] == {"x": 1}
    assert down["_meta"][LIFECYCLE_ID] == {"event": "removing"}
    assert up["annotations"]["idempotentHint"] is True
    for tool in (up, down):
        assert "outputSchema" not in tool
        assert tool.get("execution", {}).get("taskSupport") in (None, "forbidden")


@ERAS
async def test_the_extension_is_advertised_beside_others(sqlite_url, mode):
    async with Client(acme(sqlite_url), mode=mode) as client:
        assert advertised(client) == {}


@ERAS
async def test_without_a_handler_it_is_not_advertised(sqlite_url, mode):
    async with Client(acme(sqlite_url, handlers=False), mode=mode) as client:
        assert advertised(client) is None


@ERAS
@pytest.mark.parametrize("stateless", [False, True])
async def test_over_http(sqlite_url, mode, stateless):
    async with (
        asgi_server(acme(sqlite_url), stateless_http=stateless) as server,
        Client(server.transport(), mode=mode) as client,
    ):
        assert advertised(client) == {}
        assert [tool.name for tool in await client.list_tools()] == ["up", "down"]


@ERAS
@pytest.mark.parametrize("namespace", [None, "deep"])
async def test_a_mounted_server_is_advertised_by_its_root_and_works(sqlite_table, mode, namespace):
    middle, root = FastMCP("middle"), FastMCP("root")
    middle.mount(acme(sqlite_table.url))
    root.mount(middle, namespace=namespace)
    tool = f"{namespace}_up" if namespace else "up"
    async with Client(root, mode=mode) as client:
        assert advertised(client) == {}
        (marked,) = [t for t in await client.list_tools() if t.name == tool]
        assert marked.meta[LIFECYCLE_ID] == {"event": "ready"}
        result = await client.call_tool(tool, {"reason": "install", "more": 1})
        assert result.content[0].text == "up"
    assert [row["kind"] for row in sqlite_table.rows()] == ["acme"]


@ERAS
async def test_inside_a_starlette_application(sqlite_url, mode):
    inner = acme(sqlite_url).http_app(path="/mcp")
    app = Starlette(routes=[Mount("/acme", app=inner)], lifespan=inner.lifespan)
    server = ASGIServer("http://127.0.0.1/acme/mcp", app, "http")
    async with (
        app.router.lifespan_context(app),
        Client(server.transport(), mode=mode) as client,
    ):
        assert advertised(client) == {}
        assert [tool.name for tool in await client.list_tools()] == ["up", "down"]


async def test_a_child_that_is_also_served_alone_is_advertised_by_both(sqlite_url):
    child, root, other = acme(sqlite_url), FastMCP("root"), FastMCP("other")
    root.mount(child)
    other.mount(child)
    async with (
        Client(root, mode="legacy") as by_root,
        Client(child, mode="legacy") as alone,
        Client(other, mode="legacy") as by_other,
    ):
        assert [advertised(c) for c in (by_root, alone, by_other)] == [{}, {}, {}]


async def test_a_child_serves_on_alone_once_the_server_it_is_mounted_in_has_ended(sqlite_table):
    child, root = acme(sqlite_table.url), FastMCP("root")
    root.mount(child)
    async with Client(child) as alone:
        async with Client(root) as by_root:
            await by_root.call_tool("up", {})
        await alone.call_tool("down", {})
    assert [row["desired"] for row in sqlite_table.rows()] == ["release"]


async def test_a_handler_registered_after_mounting_counts(sqlite_url):
    child, root = FastMCP("acme"), FastMCP("root")
    lifecycle = Lifecycle(child, database_url=sqlite_url)
    root.mount(child)
    lifecycle.on_ready(name="up")(lambda: "late")
    for mode in ("legacy", "auto"):
        async with Client(root, mode=mode) as client:
            assert advertised(client) == {}


async def test_an_authors_middleware_sees_the_extension_and_the_server_restarts(sqlite_url):
    seen = []

    class Author(Middleware):
        async def on_initialize(self, context, call_next):
            result = await call_next(context)
            seen.append(LIFECYCLE_ID in (result.capabilities.extensions or {}))
            return result

    mcp = acme(sqlite_url)
    mcp.add_middleware(Author())
    before = list(mcp.middleware)
    for _ in range(2):
        async with Client(mcp, mode="legacy"):
            pass
    assert seen == [True, True]
    assert mcp.middleware == before


async def test_one_start_serves_three_sessions(sqlite_url, capfd):
    mcp = acme(sqlite_url)
    async with asgi_server(mcp, stateless_http=True) as server:
        for _ in range(3):
            async with Client(server.transport()) as client:
                await client.list_tools()
    assert capfd.readouterr().err.count("nimble-lifecycle: 'acme' uses") == 1


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("params", [{}, {"name": 5}, {"name": "up", "arguments": 3}])
async def test_a_call_that_does_not_validate_is_told_so(sqlite_url, params):
    seen = []

    class Watching(Middleware):
        async def on_message(self, context, call_next):
            try:
                return await call_next(context)
            except Exception as error:
                seen.append(type(error))
                raise

    mcp = acme(sqlite_url)
    mcp.add_middleware(Watching())
    malformed = CallToolRequest.model_construct(method="tools/call", params=params)
    async with Client(mcp, mode="legacy") as client:
        with pytest.raises(MCPError) as refused:
            await client.session.send_request(malformed, CallToolResult)
    assert refused.value.error.code == INVALID_PARAMS
    assert seen == [ValidationError]

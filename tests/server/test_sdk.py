"""The server half in a server of the official SDK: the same tools, rows and refusals."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from fastmcp import Client
from fastmcp.server.auth.providers.jwt import JWTVerifier, RSAKeyPair
from mcp.server import MCPServer
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from waiting import PATIENCE, soon

from nimble_lifecycle import Reason, Tenancy, Workspace
from nimble_lifecycle.errors import ConfigurationError, HandlerError, NimbleError, NotConnected
from nimble_lifecycle.protocol import LIFECYCLE_ID
from nimble_lifecycle.sdk import Lifecycle, NotReady
from nimble_lifecycle.testing.host import Era, Host, serving

pytestmark = pytest.mark.anyio
MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])
ERAS = pytest.mark.parametrize("era", list(Era))
READY = (
    "create_started_at = first_seen_at, phase = 'ready', external_id = 'x1',"
    ' details = \'{"key_ref": "k"}\''
)


@dataclass
class App:
    """What the author's own lifespan gives."""

    name: str


def acme(url, *, handlers=True, own=None, auth=(None, None), **settings):
    lifecycle = Lifecycle(database_url=url, **settings)
    if handlers:

        @lifecycle.on_ready(title="Ready", meta={"dev.acme": {"x": 1}})
        def up(tenancy: Tenancy, reason: Reason) -> str:
            """Set Acme up."""
            return f"{reason} {tenancy.tenant_id}/{tenancy.workspace_id} {tenancy.phase}"

        @lifecycle.on_removing(name="down", description="Take Acme down.")
        async def removed() -> str:
            return "down"

    lifespan = lifecycle.lifespan(own) if own else lifecycle.lifespan()
    verifier, wanted = auth
    mcp = MCPServer(
        "acme", extensions=[lifecycle], lifespan=lifespan, token_verifier=verifier, auth=wanted
    )

    @mcp.tool()
    async def send(name: str, tenancy: Annotated[Tenancy, lifecycle.ready_tenancy()]) -> str:
        return f"{name} by {tenancy.external_id} {tenancy.details['key_ref']}"

    @mcp.tool()
    def work() -> str:
        return "done"

    return mcp


def advertised(client):
    return (client.server_capabilities.extensions or {}).get(LIFECYCLE_ID)


async def called(client, tool, **arguments):
    return await client.call_tool(tool, arguments, raise_on_error=False)


def wanted(table):
    return [(row["tenant_id"], row["workspace_id"], row["desired"]) for row in table.rows()]


# -- the wire --------------------------------------------------------------------------------------


@MODES
async def test_the_tools_are_flat_marked_and_optional_and_advertised(sqlite_url, mode):
    async with Client(acme(sqlite_url), mode=mode) as client:
        assert advertised(client) == {}
        up, down, send, _ = (
            tool.model_dump(by_alias=True, exclude_none=True, mode="json")
            for tool in await client.list_tools()
        )
    reason = up["inputSchema"]["properties"].pop("reason")
    assert up["inputSchema"]["properties"] == down["inputSchema"]["properties"] == {}
    assert (reason["type"], reason["enum"]) == ("string", ["install", "resume"])
    assert reason["default"] == "resume"
    assert (up["name"], up["title"], up["description"]) == ("up", "Ready", "Set Acme up.")
    assert (down["name"], down["description"]) == ("down", "Take Acme down.")
    assert up["_meta"] == {"dev.acme": {"x": 1}, LIFECYCLE_ID: {"event": "ready"}}
    assert down["_meta"] == {LIFECYCLE_ID: {"event": "removing"}}
    assert down["annotations"]["destructiveHint"] is True
    for tool in (up, down):
        assert "required" not in tool["inputSchema"]
        assert "outputSchema" not in tool
        assert "$ref" not in str(tool)
        assert "anyOf" not in str(tool)
    assert list(send["inputSchema"]["properties"]) == ["name"]


@MODES
async def test_without_a_handler_nothing_is_advertised(sqlite_url, mode):
    async with Client(acme(sqlite_url, handlers=False), mode=mode) as client:
        assert advertised(client) is None


# -- calls -----------------------------------------------------------------------------------------


@MODES
async def test_what_a_host_says_becomes_a_row_and_its_words_the_answer(table, mode):
    async with Client(acme(table.url), mode=mode) as client:
        for reason in (None, "null", 7, {"x": 1}, "a word from the future"):
            answer = await called(client, "up", reason=reason, _gateway={"trace": 1})
            assert answer.content[0].text == "resume /ws_1 pending"
        answer = await called(client, "up", reason="install", workspace_id="ws_other")
        assert answer.content[0].text == "install /ws_1 pending"
        assert wanted(table) == [("", "ws_1", "wanted")]
        assert (await called(client, "down", more=1)).content[0].text == "down"
    assert wanted(table) == [("", "ws_1", "release")]
    assert [row["kind"] for row in table.rows()] == ["acme"]


async def test_a_removing_of_a_workspace_nobody_knows_makes_no_row(sqlite_table):
    async with Client(acme(sqlite_table.url)) as client:
        answer = await called(client, "down")
    assert not answer.is_error
    assert answer.content[0].text == "There is nothing to release for this workspace."
    assert sqlite_table.rows() == []


async def test_a_handler_that_raises_keeps_the_intent_and_shows_nothing(sqlite_table, caplog):
    lifecycle = Lifecycle(database_url=sqlite_table.url)

    @lifecycle.on_ready
    def up():
        raise RuntimeError("postgresql://admin:hunter2@db")

    mcp = MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan())
    async with Client(mcp) as client:
        answer = await called(client, "up")
    assert answer.is_error
    assert "hunter2" not in answer.content[0].text
    assert "hunter2" in caplog.text
    assert wanted(sqlite_table) == [("", "ws_1", "wanted")]


async def test_a_handler_that_hangs_is_answered_at_the_deadline_and_the_intent_stays(sqlite_table):
    lifecycle = Lifecycle(database_url=sqlite_table.url, deadline=1.5)
    lifecycle.on_ready(name="up")(lambda: time.sleep(600))
    mcp = MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan())
    async with Client(mcp) as client:
        answer = await soon(PATIENCE, called(client, "up"))
    assert answer.is_error
    assert answer.content[0].text == "The lifecycle call did not end in time. Call again."
    assert wanted(sqlite_table) == [("", "ws_1", "wanted")]


async def test_outside_the_lifespan_calls_say_so():
    lifecycle = Lifecycle()
    lifecycle.on_ready(name="up")(lambda: "up")
    mcp = MCPServer("acme", extensions=[lifecycle])
    async with Client(mcp) as client:
        answer = await called(client, "up")
    assert answer.is_error
    assert "its lifespan has not been entered" in answer.content[0].text


# -- the SDK's own ---------------------------------------------------------------------------------


@MODES
async def test_the_authors_typed_lifespan_works_beside_ours(sqlite_table, mode):
    seen = []

    @asynccontextmanager
    async def own(server):
        seen.append(f"enter {server.name}")
        yield App("berlin")
        seen.append("leave")

    lifecycle = Lifecycle(database_url=sqlite_table.url)

    @lifecycle.on_ready
    def up(ctx: Context[App], tenancy: Tenancy) -> str:
        return f"{ctx.request_context.lifespan_context.name} {tenancy.workspace_id}"

    mcp = MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan(own))

    @mcp.tool()
    def app(ctx: Context[App]) -> str:
        return ctx.request_context.lifespan_context.name

    async with Client(mcp, mode=mode) as client:
        assert (await called(client, "up")).content[0].text == "berlin ws_1"
        assert (await called(client, "app")).content[0].text == "berlin"
    assert seen == ["enter acme", "leave"]


async def test_a_lifespan_of_the_author_that_fails_closes_ours(sqlite_table, caplog):
    @asynccontextmanager
    async def own(server):
        raise RuntimeError("not today")
        yield

    lifecycle = Lifecycle(database_url=sqlite_table.url)
    lifecycle.on_ready(name="up")(lambda: "up")
    mcp = MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan(own))
    before = list(mcp.middleware)
    with pytest.raises(RuntimeError, match="not today"):
        async with lifecycle.lifespan(own)(mcp):
            pass
    assert mcp.middleware == before
    async with lifecycle.lifespan()(mcp), lifecycle.lifespan()(mcp):
        pass
    assert mcp.middleware == before


async def test_one_connection_that_ends_leaves_the_others_served(sqlite_table, capfd):
    mcp = acme(sqlite_table.url)
    async with Client(mcp) as first:
        async with Client(mcp) as second:
            await called(second, "up")
        assert not (await called(first, "down")).is_error
    assert capfd.readouterr().err.count("'acme' uses") == 1
    assert wanted(sqlite_table) == [("", "ws_1", "release")]


async def test_what_a_host_cannot_supply_is_refused_by_name():
    lifecycle = Lifecycle()

    def asks(ctx: Context[Any], plan: Annotated[str, Resolve(lambda: "big")]): ...

    with pytest.raises(HandlerError, match=r"'plan'.*the SDK's `Context` are supplied"):
        lifecycle.on_ready(asks)
    assert lifecycle.tools() == []


# -- ordinary tools --------------------------------------------------------------------------------


@MODES
async def test_a_tool_gets_the_ready_tenancy_or_an_error_an_agent_can_act_on(table, mode):
    async with Client(acme(table.url), mode=mode) as client:
        result = await called(client, "send", name="hi")
        assert result.is_error
        assert result.structured_content == {
            "phase": "pending",
            "message": "This workspace's resource is being set up.",
            "retry_after_seconds": 5,
        }
        assert result.content[0].text == (
            "This workspace's resource is being set up. Try again in 5 seconds."
        )
        assert wanted(table) == [("", "ws_1", "wanted")]
        table.change(READY)
        assert (await called(client, "send", name="hi")).content[0].text == "hi by x1 k"


async def test_a_tool_whose_workspace_is_not_known_says_what_was_looked_at(
    sqlite_table, monkeypatch
):
    monkeypatch.delenv("NB_WORKSPACE_ID")
    async with Client(acme(sqlite_table.url)) as client:
        result = await called(client, "send", name="hi")
    assert result.is_error
    assert result.content[0].text.startswith("No trusted source names the workspace")
    assert sqlite_table.rows() == []


async def test_a_refusal_that_another_tool_has_dealt_with_is_not_shown(sqlite_table):
    mcp = acme(sqlite_table.url)

    @mcp.tool()
    async def careful(ctx: Context[Any], fails: bool) -> str:
        try:
            await ctx.mcp_server.call_tool("send", {"name": "hi"}, ctx)
        except ToolError as error:
            if fails:
                raise ToolError("write a letter") from error
            return f"not yet: {type(error.__cause__).__name__}"
        return "sent"

    @mcp.tool()
    async def careless(ctx: Context[Any]) -> str:
        await ctx.mcp_server.call_tool("send", {"name": "hi"}, ctx)
        return "sent"

    async with Client(mcp) as client:
        result = await called(client, "careful", fails=False)
        assert not result.is_error
        assert result.content[0].text == "not yet: NotReady"
        result = await called(client, "careful", fails=True)
        assert result.is_error
        assert result.content[0].text == "Error executing tool careful: write a letter"
        assert (await called(client, "careless")).structured_content["phase"] == "pending"


def test_not_ready_is_an_error_of_ours_and_of_the_sdk():
    assert issubclass(NotReady, NimbleError)
    assert issubclass(NotReady, ToolError)


async def test_an_ordinary_call_notes_that_the_workspace_is_in_use(sqlite_table):
    async with Client(acme(sqlite_table.url)) as client:
        await called(client, "up")
        assert sqlite_table.rows()[0]["last_used_at"] is None
        assert (await called(client, "work")).content[0].text == "done"
        await asyncio.to_thread(sqlite_table.wait, lambda row: row["last_used_at"])


# -- what is refused -------------------------------------------------------------------------------


def handled(**settings):
    lifecycle = Lifecycle(**settings)
    lifecycle.on_ready(name="up")(lambda: "up")
    return lifecycle


async def started(mcp, lifecycle):
    async with lifecycle.lifespan()(mcp):
        pass


async def test_a_handler_that_comes_after_the_server_is_refused():
    lifecycle = handled()
    MCPServer("acme", extensions=[lifecycle])
    with pytest.raises(HandlerError, match="below it"):
        lifecycle.on_removing(name="down")(lambda: "down")


async def test_a_second_handler_is_refused():
    lifecycle = handled()
    with pytest.raises(HandlerError, match="second one"):
        lifecycle.on_ready(name="up_2")(lambda: "up")


async def test_a_server_that_was_not_given_the_extension_does_not_start():
    lifecycle = handled()
    with pytest.raises(ConfigurationError, match="extensions="):
        await started(MCPServer("acme"), lifecycle)


async def test_a_server_without_a_name_does_not_start(sqlite_url):
    lifecycle = handled()
    with pytest.raises(ConfigurationError, match="permanent name"):
        await started(MCPServer(extensions=[lifecycle]), lifecycle)
    named = handled(kind="acme", database_url=sqlite_url)
    await started(MCPServer(extensions=[named]), named)


async def test_another_tool_of_the_name_is_an_error_at_start():
    from mcp.server.mcpserver.tools import Tool

    lifecycle = handled()
    other = Tool.from_function(lambda: "mine", name="up")
    mcp = MCPServer("acme", tools=[other], extensions=[lifecycle])
    with pytest.raises(HandlerError, match="another tool named 'up'"):
        await started(mcp, lifecycle)


async def test_two_marked_tools_are_an_error_at_start():
    lifecycle = handled()
    mcp = MCPServer("acme", extensions=[lifecycle])
    mcp.add_tool(lambda: "mine", name="mine", meta={LIFECYCLE_ID: {"event": "ready"}})
    with pytest.raises(HandlerError, match="up, mine"):
        await started(mcp, lifecycle)


FORBIDDEN = """
from mcp.server import MCPServer
from nimble_lifecycle.sdk import Lifecycle
lifecycle = Lifecycle(forbidden_env=["ACME_ADMIN_TOKEN"])
MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan()).run()
"""


async def test_a_forbidden_variable_ends_the_process_with_1_and_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN],
        env={**os.environ, "ACME_ADMIN_TOKEN": "sk-very-secret", "XDG_DATA_HOME": str(tmp_path)},
        input="",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "'acme' must not have ACME_ADMIN_TOKEN" in done.stderr.splitlines()[0]
    assert "sk-very-secret" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# -- whose workspace -------------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize("stateless", [False, True])
async def test_tokens_that_the_sdk_verified_name_the_workspace_of_each_request(
    sqlite_table, era, stateless
):
    keys = RSAKeyPair.generate()

    def mint(workspace, tenant, seconds=3600):
        claims = {"workspace_id": workspace, "tenant_id": tenant}
        return keys.create_token(expires_in_seconds=seconds, additional_claims=claims)

    address = "https://acme.example"
    settings = AuthSettings(
        issuer_url=address, resource_server_url=address, validate_token_resource=False
    )
    mcp = acme(sqlite_table.url, auth=(JWTVerifier(public_key=keys.public_key), settings))
    async with serving(mcp, stateless=stateless) as url:
        with pytest.raises(NotConnected, match="HTTP 401"):
            async with Host(url, era=era, token=mint("ws_1", "t1", -1), timeout=PATIENCE):
                pass
        async with Host(url, era=era, token=mint("ws_1", "t1"), timeout=PATIENCE) as host:
            assert (await host.install()).notice == "install t1/ws_1 pending"
            host.token = mint("ws_1", "t2")
            await host.install()
            host.token = mint(None, None)
            assert "no claim 'workspace_id'" in (await host.call("ready")).text
            host.token = mint("ws_1", "t2")
            await host.remove()
    assert wanted(sqlite_table) == [("t1", "ws_1", "wanted"), ("t2", "ws_1", "release")]


@ERAS
async def test_a_trusted_edge_names_it_and_nobody_else(sqlite_table, era):
    mcp = acme(sqlite_table.url, trust_edge_headers={"x-edge-secret": "s3cret"})
    edge = {"workspace": "ws_edge", "tenant": "t1", "timeout": PATIENCE}
    async with serving(mcp) as url:
        async with Host(url, era=era, **edge) as host:
            assert "edge headers (not trusted" in (await host.call("ready")).text
        async with Host(url, era=era, headers={"x-edge-secret": "s3cret"}, **edge) as host:
            assert (await host.call("ready")).text == "resume t1/ws_edge pending"
    assert wanted(sqlite_table) == [("t1", "ws_edge", "wanted")]


async def test_a_function_of_the_author_gets_the_sdks_context(sqlite_table):
    def workspace(ctx):
        return Workspace(f"of {ctx.mcp_server.name}")

    async with Client(acme(sqlite_table.url, workspace=workspace)) as client:
        assert (await called(client, "up")).content[0].text == "resume /of acme pending"
        await called(client, "work")
    assert wanted(sqlite_table) == [("", "of acme", "wanted")]


def test_no_tool_takes_a_tenancy_from_its_caller():
    def bare(tenancy: Tenancy) -> str:
        return tenancy.workspace_id

    with pytest.raises(TypeError, match=r"Annotated\[Tenancy, lifecycle\.ready_tenancy\(\)\]"):
        MCPServer("acme").add_tool(bare)

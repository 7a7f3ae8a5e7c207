"""The host of the test kit, held against servers written by hand: what arrives, and when."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.dependencies import get_access_token, get_http_headers
from fastmcp.tools import Tool, ToolResult
from mcp.server import MCPServer
from mcp_types import ToolListChangedNotification
from waiting import PATIENCE

from nimble_lifecycle.errors import EraNotSpoken, NotConnected
from nimble_lifecycle.protocol import LIFECYCLE_ID, Reason
from nimble_lifecycle.testing.host import Failure, Host, Misbehaviour, serving

pytestmark = pytest.mark.anyio
OLD = Path(__file__).with_name("old_server.py")
BLOCK = {"host_version": "1.0", "lifecycle": {"on_ready": "up", "on_removing": "down"}}
SCHEMA = {"type": "object", "properties": {"reason": {"type": "string"}}}


class Recorder(Tool):
    """Takes whatever arguments come and answers what it is told to."""

    answer: Callable[..., Awaitable[str]]

    async def run(self, arguments):
        return ToolResult(content=await self.answer(self.name, arguments))


def handwritten(answer="done", *, marked=()):
    """Make a server with the two handlers; gives it and what was called."""
    calls = []

    async def say(name, arguments):
        calls.append((name, arguments))
        return answer if isinstance(answer, str) else await answer(arguments)

    mcp = FastMCP("handwritten")
    for name, event in (("up", "ready"), ("down", "removing")):
        meta = {LIFECYCLE_ID: {"event": event}} if event in marked else None
        mcp.add_tool(Recorder(name=name, parameters=SCHEMA, meta=meta, answer=say))
    return mcp, calls


def by_block(server, **settings):
    """Make a host that reads the block; no extension is advertised by these servers."""
    return Host(server, generation="A", block=BLOCK, **settings)


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_an_install_is_two_racing_calls_and_a_notice(era):
    server, calls = handwritten("Welcome")
    async with by_block(server, era=era) as host:
        assert host.protocol_version == era
        assert calls == []
        installed = await host.install()
    assert sorted(calls, key=str) == [("up", {"reason": "install"}), ("up", {"reason": "resume"})]
    assert (installed.notice, installed.warnings, installed.ok) == ("Welcome", [], True)


async def test_the_two_calls_of_an_install_are_there_at_the_same_time():
    both = asyncio.Barrier(2)

    async def answer(arguments):
        async with asyncio.timeout(PATIENCE):
            await both.wait()
        return "met"

    async with by_block(handwritten(answer)[0]) as host:
        assert [call.text for call in (await host.install()).calls] == ["met", "met"]


async def test_a_notice_is_cut_and_the_text_of_a_resume_is_none():
    async def answer(arguments):
        return arguments["reason"][0] * 501

    async with by_block(handwritten(answer)[0]) as host:
        for first in Reason:
            assert (await host.install(first)).notice == "i" * 500


async def test_a_failed_install_is_no_notice_and_a_restart_repeats_until_one_succeeds():
    failures = iter([True, True, True, False, True])

    async def answer(arguments):
        if next(failures):
            raise ToolError("not now")
        return "done"

    server, calls = handwritten(answer)
    async with by_block(server) as host:
        installed = await host.install()
        assert (installed.notice, installed.ok) == (None, False)
        assert [call.failure for call in installed.calls] == [Failure.TOOL] * 2
        assert [call.is_error for call in await host.restart()] == [True, False]
    assert len(calls) == 4


async def test_a_changed_list_repeats_a_ready_that_failed_and_no_other():
    failing = [True]

    async def answer(arguments):
        if failing[0]:
            raise ToolError("not now")
        return "done"

    async with by_block(handwritten(answer)[0]) as host:
        await host.install()
        failing[0] = False
        assert (await host.list_changed()).text == "done"
        assert await host.list_changed() is None


async def test_a_server_that_lists_nothing_is_not_yet_there():
    server = FastMCP("late")
    async with by_block(server) as host:
        assert await host.resume() is None
        assert not host.handlers.listed
        server.mount(handwritten("here")[0])
        assert (await host.list_changed()).text == "here"


async def test_notifications_of_a_changed_list_are_counted():
    server = FastMCP("changing")

    @server.tool
    async def up(ctx: Context, reason: str = "") -> str:
        await ctx.send_notification(ToolListChangedNotification())
        return reason

    async with Host(server, generation="A", era="2025-11-25", block=BLOCK) as host:
        await host.resume()
        async with asyncio.timeout(PATIENCE):
            while not host.list_changes:
                await asyncio.sleep(0.01)


async def test_removing_is_said_once_without_arguments_and_ends_the_connection():
    async def answer(arguments):
        raise ToolError("no")

    server, calls = handwritten(answer)
    async with by_block(server) as host:
        call = await host.remove()
        assert (call.failure, call.text) == (Failure.TOOL, "no")
        assert host.protocol_version is None
    assert calls == [("down", {})]


async def test_removing_is_waited_for_five_seconds(monkeypatch):
    monkeypatch.setattr("nimble_lifecycle.testing.host.host.REMOVING_LIMIT", 0.2)

    async def answer(arguments):
        await asyncio.sleep(60)

    async with by_block(handwritten(answer)[0]) as host:
        assert (await host.remove()).failure is Failure.TIMED_OUT


async def test_without_a_handler_nothing_is_called_and_a_demand_says_why():
    server, calls = handwritten(marked=["ready"])
    async with Host(server, generation="C") as host:
        assert (await host.install()).calls == ()
        assert await host.resume() is None
        assert await host.restart() == []
        assert await host.remove() is None
        with pytest.raises(NotConnected, match="generation C calls no ready: the server does not"):
            await host.call("ready")
    assert calls == []


async def test_any_arguments_can_be_sent_and_a_gateway_adds_its_own():
    server, calls = handwritten()
    async with by_block(server, extra={"_gateway": {"trace": 1}}) as host:
        await host.call("ready", {"reason": None})
        await host.remove()
    assert calls == [
        ("up", {"reason": None, "_gateway": {"trace": 1}}),
        ("down", {"_gateway": {"trace": 1}}),
    ]


async def test_a_duplicated_call_arrives_twice_and_a_burst_as_often_as_it_says():
    server, calls = handwritten()
    async with by_block(server) as host:
        with host.misbehaving(Misbehaviour.DUPLICATED):
            await host.resume()
        assert len(calls) == 2
        assert len(await host.burst("removing", 20)) == 20
    assert len(calls) == 22


async def test_a_lost_call_never_arrives_and_one_held_back_arrives_late():
    server, calls = handwritten()
    async with by_block(server) as host:
        with host.misbehaving("lost"):
            assert (await host.remove()).failure is Failure.TIMED_OUT
        with host.misbehaving("held back"):
            assert (await host.resume()).failure is Failure.TIMED_OUT
            assert (await host.remove()).failure is Failure.TIMED_OUT
        assert calls == []
        assert (await host.install()).ok
        calls.clear()
        await host.deliver()
        assert await host.deliver() == []
    assert calls == [("down", {}), ("up", {"reason": "resume"})]


@pytest.mark.parametrize("how", [Misbehaviour.GIVEN_UP, Misbehaviour.CUT_OFF])
@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_call_that_is_broken_off_is_cancelled_at_the_server(how, era):
    ended = asyncio.Event()

    async def answer(arguments):
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with by_block(handwritten(answer)[0], era=era) as host:
        with host.misbehaving(how, after=0.5):
            assert (await host.resume()).is_error
        async with asyncio.timeout(PATIENCE):
            await ended.wait()


async def test_over_http_a_host_names_workspace_and_tenant_as_an_edge_does():
    server = FastMCP("edge")

    @server.tool
    def up(reason: str = "") -> str:
        headers = get_http_headers(include_all=True)
        return f"{headers.get('x-tenant-id')} {headers.get('x-workspace-id')}"

    async with serving(server) as url:
        hosts = [
            by_block(url, workspace=f"ws_{number}", tenant=tenant)
            for number in (1, 2)
            for tenant in ("a", "b")
        ]

        async def texts(host):
            async with host:
                return [call.text for call in (await host.install()).calls]

        said = await asyncio.gather(*map(texts, hosts))
    assert said == [["a ws_1"] * 2, ["b ws_1"] * 2, ["a ws_2"] * 2, ["b ws_2"] * 2]


async def test_a_token_can_be_rotated_and_is_minted_anew_after_a_401():
    tokens = {
        name: {"client_id": name, "scopes": [], "workspace_id": name} for name in ("one", "two")
    }
    server = FastMCP("tokens", auth=StaticTokenVerifier(tokens))

    @server.tool
    def up(reason: str = "") -> str:
        return get_access_token().claims["workspace_id"]

    minted = iter(["one", "two"])
    async with serving(server) as url:
        async with by_block(url, token="one", workspace=None) as host:
            assert (await host.resume()).text == "one"
            host.token = "two"
            assert (await host.resume()).text == "two"
        async with by_block(url, token=lambda: next(minted)) as host:
            assert (await host.resume()).text == "one"
            del tokens["one"]
            assert (await host.resume()).text == "two"
        with pytest.raises(NotConnected, match="401"):
            async with by_block(url, token="expired"):
                pass


async def test_a_process_in_memory_serves_one_workspace(monkeypatch):
    monkeypatch.delenv("NB_WORKSPACE_ID", raising=False)
    server, _ = handwritten()
    async with by_block(server, workspace="ws_1"), by_block(server, workspace="ws_1"):
        with pytest.raises(NotConnected, match="NB_WORKSPACE_ID is 'ws_1'"):
            async with by_block(server, workspace="ws_2"):
                pass
    async with by_block(server, workspace="ws_2"):
        pass


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_server_of_the_official_sdk_is_a_target(era):
    server = MCPServer("sdk")

    @server.tool()
    def up(reason: str = "") -> str:
        return reason

    async with by_block(server, era=era) as host:
        assert (await host.install()).notice == "install"
        assert host.handlers.warnings == ["on_removing names 'down', which is not listed"]


async def test_what_is_not_there_is_one_error():
    with pytest.raises(NotConnected, match="cannot be reached"):
        async with Host("http://127.0.0.1:9/mcp"):
            pass
    with pytest.raises(NotConnected, match="cannot be reached"):
        async with Host(["/nonexistent/server"]):
            pass


async def test_a_process_that_speaks_the_old_era_is_called_for_the_workspace_it_serves():
    async with Host(OLD, era="2025-11-25", workspace="ws_old") as host:
        assert host.protocol_version == "2025-06-18"
        installed = await host.install()
        said = json.loads(installed.notice)
        # Its schema declares no reason, so none is sent.
        assert (said["name"], said["arguments"], said["workspace"]) == ("up", {}, "ws_old")
    with pytest.raises(EraNotSpoken, match="does not speak 2026-07-28, only 2025-06-18"):
        async with Host(OLD, era="2026-07-28"):
            pass


async def test_a_process_that_ends_is_started_again_by_the_next_call():
    async with Host(OLD, era="2025-11-25") as host:
        with host.misbehaving("cut off"):
            await host.resume()
        assert not (await host.resume()).is_error

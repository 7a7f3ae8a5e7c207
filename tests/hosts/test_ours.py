"""A server of ours under hosts that misbehave: one row for each workspace, the last word wins."""

import asyncio
from collections import Counter

import pytest
from fastmcp import FastMCP
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from matrix_server import acme
from starlette.applications import Starlette
from starlette.routing import Mount

from nimble_lifecycle import Lifecycle
from nimble_lifecycle.testing.host import Era, Host, Misbehaviour, serving

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("era", list(Era))


@ERAS
async def test_calls_that_are_doubled_lost_or_broken_off_leave_one_wanted_row(rows, era):
    async with Host(acme(), era=era, workspace="ws_1") as host:
        for how in Misbehaviour:
            with host.misbehaving(how, after=0.02):
                await host.install()
        assert not (await host.restart())[-1].is_error
        assert rows() == [("", "ws_1", "wanted")]
        await host.deliver()
        assert rows() == [("", "ws_1", "wanted")]


@ERAS
async def test_a_removing_that_arrives_after_the_reinstall_is_withdrawn_by_the_next_ready(
    rows, era
):
    async with Host(acme(), era=era, workspace="ws_1") as host:
        await host.install()
        with host.misbehaving(Misbehaviour.HELD_BACK):
            await host.remove()
        await host.install()
        await host.deliver()
        assert rows() == [("", "ws_1", "release")]
        await host.restart()
        assert rows() == [("", "ws_1", "wanted")]


async def test_a_removing_of_a_workspace_that_nobody_knows_makes_no_row(rows):
    async with Host(acme(), workspace="ws_1") as host:
        calls = [*await host.burst("removing", 3), await host.remove()]
    assert [call.failure for call in calls] == [None] * 4
    assert rows() == []


@ERAS
async def test_bursts_for_many_workspaces_of_two_tenants_make_a_row_each(rows, era):
    async with serving(acme(), stateless=True) as url:

        async def install(tenant, number):
            async with Host(url, era=era, tenant=tenant, workspace=f"ws_{number}") as host:
                return await host.burst("ready", 5)

        pairs = [(tenant, number) for tenant in ("t1", "t2") for number in range(5)]
        bursts = await asyncio.gather(*(install(*pair) for pair in pairs))
    assert Counter(call.failure for calls in bursts for call in calls) == {None: 50}
    assert rows() == sorted((tenant, f"ws_{number}", "wanted") for tenant, number in pairs)


@ERAS
async def test_a_rotated_token_with_another_workspace_in_one_session_uses_the_new_one(rows, era):
    tokens = {
        name: {"client_id": "host", "scopes": [], "workspace_id": name} for name in ("ws_1", "ws_2")
    }
    server = FastMCP("acme", auth=StaticTokenVerifier(tokens))
    lifecycle = Lifecycle(server, deadline=30.0)
    lifecycle.on_ready(name="up")(lambda: "up")
    lifecycle.on_removing(name="down")(lambda: "down")
    async with serving(server) as url, Host(url, era=era, token="ws_1") as host:
        await host.install()
        host.token = "ws_2"
        await host.install()
        await host.remove()
    assert rows() == [("", "ws_1", "wanted"), ("", "ws_2", "release")]


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_one_start_serves_three_sessions_however_it_is_mounted(rows, stateless, depth, capfd):
    server = acme()
    for _ in range(depth):
        root = FastMCP("root")
        root.mount(server)
        server = root
    async with serving(server, stateless=stateless) as url:
        for _ in range(3):
            async with Host(url, era="2025-11-25", workspace="ws_1") as host:
                assert (await host.install()).ok
    assert capfd.readouterr().err.count("nimble-lifecycle: 'acme' uses") == 1


async def test_one_start_serves_three_sessions_inside_a_starlette_application(rows, capfd):
    from fastmcp.utilities.tests import ASGIServer

    inner = acme().http_app(path="/mcp")
    app = Starlette(routes=[Mount("/acme", app=inner)], lifespan=inner.lifespan)
    server = ASGIServer("http://127.0.0.1/acme/mcp", app, "http")
    async with app.router.lifespan_context(app):
        for era in (*Era, Era.DISCOVER):
            edge = {"x-workspace-id": "ws_1"}
            async with Host(server.transport(headers=edge), era=era) as host:
                assert (await host.install()).ok
    assert capfd.readouterr().err.count("nimble-lifecycle: 'acme' uses") == 1
    assert rows() == [("", "ws_1", "wanted")]

"""The workspace of a call: verified claims, a trusted edge, the process; else a clear error."""

from contextlib import asynccontextmanager

import pytest
from fastmcp import Client, FastMCP
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.utilities.tests import asgi_server
from starlette.middleware import Middleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from nimble_lifecycle import Lifecycle, Workspace
from nimble_lifecycle.errors import ConfigurationError, WorkspaceUnknown

pytestmark = pytest.mark.anyio
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "up", "arguments": {}, "_meta": {"workspace_id": "ws_meta"}},
}


class From:
    """Makes every request come from one peer."""

    def __init__(self, app, peer):
        self.app, self.peer = app, peer

    async def __call__(self, scope, receive, send):
        await self.app({**scope, "client": self.peer}, receive, send)


def from_uvicorn(app, peer):
    """Make every request come from one peer, unless Uvicorn finds another in its headers."""
    return From(ProxyHeadersMiddleware(app), peer)


def token(**claims):
    return {"client_id": "host", "scopes": [], **claims}


TOKENS = {
    "one": token(workspace_id="ws_one", tenant_id="t"),
    "two": token(workspace_id="ws_two"),
    "none": token(),
    "number": token(workspace_id=7),
    "blank": token(workspace_id=" "),
    "own": token(org="o", team="ws_own"),
}


@asynccontextmanager
async def edge(table, peer=("10.1.2.3", 5), auth=False, behind=From, **settings):
    """Serve over HTTP; gives a function that calls `up` with headers and tells how it went."""
    mcp = FastMCP("acme", auth=StaticTokenVerifier(TOKENS) if auth else None)
    Lifecycle(mcp, database_url=table.url, **settings).on_ready(name="up")(lambda: "up")
    options = {"stateless_http": True, "json_response": True}
    async with (
        asgi_server(mcp, middleware=[Middleware(behind, peer=peer)], **options) as server,
        server.http_client() as http,
    ):

        async def call(*headers, bearer=None):
            sent = [("accept", "application/json, text/event-stream"), *headers]
            if bearer:
                sent.append(("authorization", f"Bearer {bearer}"))
            answer = await http.post(server.url, json=CALL, headers=sent)
            assert answer.status_code == 200, answer.text
            result = answer.json()["result"]
            return result["isError"], result["content"][0]["text"]

        yield call


def ws(value):
    return ("x-workspace-id", value)


def workspaces(table):
    return [(row["tenant_id"], row["workspace_id"]) for row in table.rows()]


async def test_claims_name_the_workspace_and_a_rotated_token_another(sqlite_table):
    async with edge(sqlite_table, auth=True) as call:
        assert await call(bearer="one") == (False, "up")
        assert await call(bearer="two") == (False, "up")
    assert workspaces(sqlite_table) == [("t", "ws_one"), ("", "ws_two")]


async def test_a_rotated_token_in_one_session_names_another_workspace(sqlite_table):
    mcp = FastMCP("acme", auth=StaticTokenVerifier(TOKENS))
    Lifecycle(mcp, database_url=sqlite_table.url).on_ready(name="up")(lambda: "up")
    bearer = ["one"]

    async def rotate(request):
        request.headers["authorization"] = f"Bearer {bearer[0]}"

    async with asgi_server(mcp) as server:

        def http_client(**settings):
            client = server.http_client(**settings)
            client.event_hooks["request"].append(rotate)
            return client

        transport = server.transport(httpx_client_factory=http_client)
        async with Client(transport, mode="legacy") as client:
            await client.call_tool("up", {})
            bearer[0] = "two"
            await client.call_tool("up", {})
    assert workspaces(sqlite_table) == [("t", "ws_one"), ("", "ws_two")]


async def test_the_claims_names_are_configurable(sqlite_table):
    async with edge(sqlite_table, auth=True, claims=("team", "org")) as call:
        assert await call(bearer="own") == (False, "up")
    assert workspaces(sqlite_table) == [("o", "ws_own")]


@pytest.mark.parametrize("bearer", ["none", "number", "blank"])
async def test_a_token_that_does_not_name_it_is_an_error_and_no_fall_through(sqlite_table, bearer):
    trust = {"trust_edge_headers": ["10.0.0.0/8"]}
    async with edge(sqlite_table, auth=True, **trust) as call:
        is_error, said = await call(ws("ws_edge"), bearer=bearer)
    assert is_error
    assert "token" in said
    assert sqlite_table.rows() == []


async def test_a_claim_and_a_trusted_header_must_agree(sqlite_table):
    trust = {"trust_edge_headers": ["10.0.0.0/8"]}
    async with edge(sqlite_table, auth=True, **trust) as call:
        assert (await call(ws("ws_two"), bearer="one"))[0]
        assert (await call(ws("ws_one"), ("x-tenant-id", "other"), bearer="one"))[0]
        assert sqlite_table.rows() == []
        assert not (await call(ws("ws_one"), bearer="one"))[0]
        assert not (await call(ws("ws_two"), ("x-tenant-id", "t2"), bearer="two"))[0]
    assert workspaces(sqlite_table) == [("t", "ws_one"), ("t2", "ws_two")]


TRUSTED = [
    (["192.168.0.0/16", "10.0.0.0/8"], ("10.9.9.9", 1), []),
    (["10.0.0.0/8"], ("::ffff:10.0.0.1", 1), []),
    (["fd00::/8"], ("fd00::1", 1), []),
    (["10.0.0.0/8"], ("10.1.2.3", 1), [("x-forwarded-for", "10.1.2.34, 8.8.8.8:10")]),
    (["10.0.0.0/8"], ("10.1.2.3", 1), [("x-real-ip", "unknown"), ("forwarded", "for=_hidden")]),
    (True, ("127.0.0.1", 1), []),
    (True, ("::1", 1), []),
    ({"x-edge": "s3cret"}, ("8.8.8.8", 1), [("x-edge", "s3cret"), ("x-real-ip", "8.8.8.8")]),
]
UNTRUSTED = [
    (False, ("127.0.0.1", 1), []),
    (True, ("10.0.0.1", 1), []),
    (True, None, []),
    (True, ("testclient", 1), []),
    ([], ("10.0.0.1", 1), []),
    (["10.0.0.0/8"], ("11.0.0.1", 1), [("x-forwarded-for", "10.0.0.1")]),
    ({"x-edge": "s3cret"}, ("127.0.0.1", 1), []),
    ({"x-edge": "s3cret"}, ("127.0.0.1", 1), [("x-edge", "wrong")]),
    ({"x-edge": "s3cret"}, ("127.0.0.1", 1), [("x-edge", "s3cret"), ("x-edge", "s3cret")]),
]


@pytest.mark.parametrize(("trust", "peer", "headers"), TRUSTED)
async def test_headers_of_a_trusted_edge_count(sqlite_table, trust, peer, headers):
    async with edge(sqlite_table, peer, trust_edge_headers=trust) as call:
        assert await call(ws("ws_edge"), ("x-tenant-id", "t"), *headers) == (False, "up")
    assert workspaces(sqlite_table) == [("t", "ws_edge")]


@pytest.mark.parametrize(("trust", "peer", "headers"), UNTRUSTED)
async def test_headers_of_anyone_else_do_not(sqlite_table, trust, peer, headers):
    async with edge(sqlite_table, peer, trust_edge_headers=trust) as call:
        is_error, said = await call(ws("ws_edge"), *headers)
    assert is_error
    assert "access token" in said
    assert "edge headers (not trusted" in said
    assert "NB_WORKSPACE_ID (not for calls over HTTP)" in said
    assert "s3cret" not in said
    assert sqlite_table.rows() == []


async def test_headers_that_no_setting_trusts_are_said_to_want_one(sqlite_table):
    unset = "edge headers (not trusted: trust_edge_headers of Lifecycle is not set)"
    async with edge(sqlite_table) as call:
        assert unset in (await call(ws("ws_edge")))[1]
        assert unset in (await call(("x-tenant-id", "t")))[1]
        assert "edge headers (no x-workspace-id)" in (await call())[1]
    async with edge(sqlite_table, trust_edge_headers=["11.0.0.0/8"]) as call:
        assert "edge headers (not trusted from this peer)" in (await call(ws("ws_edge")))[1]
        assert "edge headers (no x-workspace-id)" in (await call())[1]
    assert sqlite_table.rows() == []


@pytest.mark.parametrize("secret", ["s3cret\n", " s3cret", "s\u00e9cret"])
def test_a_secret_that_can_never_arrive_is_refused_at_once_and_not_shown(secret):
    with pytest.raises(ConfigurationError, match=r"'x-edge' .* can never arrive") as refused:
        Lifecycle(FastMCP("acme"), trust_edge_headers={"x-edge": secret})
    assert secret.strip() not in str(refused.value)


NETWORKS = ["10.0.0.0/8", "fd00::/8"]
HEARSAY = [
    (NETWORKS, "10.1.2.3", ("x-real-ip", "10.1.2.3")),
    (NETWORKS, "10.1.2.3", ("x-forwarded-for", "8.8.8.8," * 600)),
    (NETWORKS, "10.1.2.3", ("forwarded", 'proto=https;for="10.1.2.3:80"')),
    (NETWORKS, "fd00::1", ("forwarded", 'for=8.8.8.8, For="[fd00:0::1]:80"')),
]


@pytest.mark.parametrize(("trust", "peer", "header"), HEARSAY)
async def test_a_peer_the_request_itself_may_name_is_not_trusted(sqlite_table, trust, peer, header):
    async with edge(sqlite_table, (peer, 0), trust_edge_headers=trust) as call:
        is_error, said = await call(ws("ws_edge"), header)
    assert is_error
    assert "edge headers (not trusted" in said
    assert sqlite_table.rows() == []


TAKEN_FROM_THE_HEADER = [
    (NETWORKS, "10.1.2.3"),
    (NETWORKS, "10.1.2.3:80"),
    (NETWORKS, "::ffff:10.1.2.3"),
    (NETWORKS, "10.1.2.3, 127.0.0.1"),
    (NETWORKS, "[fd00::1]:80"),
    (NETWORKS, "fd00::1%a b"),
    (NETWORKS, "fd00::1%="),
    (NETWORKS, "fd00::1%a:80"),
    (True, "127.0.0.1"),
    (True, "127.0.0.2"),
    (True, "::1"),
]


@pytest.mark.parametrize(("trust", "value"), TAKEN_FROM_THE_HEADER)
async def test_a_peer_uvicorn_took_from_x_forwarded_for_is_not_trusted(sqlite_table, trust, value):
    peer = ("127.0.0.1", 5)
    async with edge(sqlite_table, peer, behind=from_uvicorn, trust_edge_headers=trust) as call:
        assert (await call(ws("ws_edge"), ("x-forwarded-for", value)))[0]
    assert sqlite_table.rows() == []


async def test_an_edge_before_uvicorn_is_trusted_though_it_forwards_for_callers(sqlite_table):
    async with edge(sqlite_table, behind=from_uvicorn, trust_edge_headers=NETWORKS) as call:
        assert await call(ws("ws_edge"), ("x-forwarded-for", "10.7.7.7")) == (False, "up")
    assert workspaces(sqlite_table) == [("", "ws_edge")]


@pytest.mark.parametrize("bearer", ["one", "two", None])
@pytest.mark.parametrize("tenants", [["t"], [""], ["t", "t"]])
async def test_a_tenant_header_without_a_workspace_is_an_error(sqlite_table, bearer, tenants):
    auth = bearer is not None
    async with edge(sqlite_table, auth=auth, trust_edge_headers=["10.0.0.0/8"]) as call:
        is_error, said = await call(*[("x-tenant-id", t) for t in tenants], bearer=bearer)
    assert is_error
    assert "x-tenant-id" in said
    assert sqlite_table.rows() == []


async def test_a_doubled_tenant_header_is_an_error_beside_a_token_too(sqlite_table):
    tenants = [("x-tenant-id", "t"), ("x-tenant-id", "t")]
    async with edge(sqlite_table, auth=True, trust_edge_headers=["10.0.0.0/8"]) as call:
        is_error, said = await call(ws("ws_one"), *tenants, bearer="one")
    assert is_error
    assert "2 x-tenant-id headers" in said
    assert sqlite_table.rows() == []


async def test_a_tenant_header_of_anyone_else_is_ignored(sqlite_table):
    async with edge(sqlite_table, auth=True, trust_edge_headers=True) as call:
        assert await call(("x-tenant-id", "other"), bearer="one") == (False, "up")
    assert workspaces(sqlite_table) == [("t", "ws_one")]


@pytest.mark.parametrize(
    "headers",
    [
        [ws("a"), ws("b")],
        [ws("a"), ws("a")],
        [ws("a"), ("x-tenant-id", "t"), ("x-tenant-id", "t")],
        [ws("")],
        [ws("x" * 300)],
        [("x-tenant-id", "t")],
    ],
)
async def test_doubled_or_unusable_headers_are_an_error(sqlite_table, headers):
    async with edge(sqlite_table, trust_edge_headers=["10.0.0.0/8"]) as call:
        assert (await call(*headers))[0]
    assert sqlite_table.rows() == []


async def test_the_process_workspace_counts_where_there_is_no_request(sqlite_table, monkeypatch):
    mcp = FastMCP("acme")
    Lifecycle(mcp, database_url=sqlite_table.url).on_ready(name="up")(lambda: "up")
    async with Client(mcp) as client:
        await client.call_tool("up", {"workspace_id": "ws_argument"})
        for unusable in (None, "", "a\nb"):
            if unusable is None:
                monkeypatch.delenv("NB_WORKSPACE_ID")
            else:
                monkeypatch.setenv("NB_WORKSPACE_ID", unusable)
            result = await client.call_tool("up", {}, raise_on_error=False)
            assert result.is_error
            assert "NB_WORKSPACE_ID" in result.content[0].text
    assert workspaces(sqlite_table) == [("", "ws_1")]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_of_the_author_replaces_all_sources(sqlite_table, is_async):
    def plain(ctx):
        return Workspace(f"of {ctx.fastmcp.name}", "t")

    async def coroutine(ctx):
        return plain(ctx)

    async with edge(sqlite_table, auth=True, workspace=coroutine if is_async else plain) as call:
        assert await call(bearer="one") == (False, "up")
    assert workspaces(sqlite_table) == [("t", "of acme")]


async def test_what_the_authors_function_cannot_give_is_an_error(sqlite_table, caplog):
    def unknown(ctx):
        raise WorkspaceUnknown("Ask for a seat first.")

    def broken(ctx):
        raise RuntimeError("postgresql://admin:hunter2@db")

    said = []
    for source in (unknown, broken, lambda _ctx: None):
        async with edge(sqlite_table, workspace=source) as call:
            is_error, text = await call()
            assert is_error
            said.append(text)
    assert said[0] == "Ask for a seat first."
    assert "hunter2" not in said[1]
    assert "no Workspace" in said[2]
    assert sqlite_table.rows() == []


@pytest.mark.parametrize("tenant_id", [None, 0, []])
async def test_a_tenant_that_is_no_text_is_refused_where_it_is_named(tenant_id):
    with pytest.raises((TypeError, AttributeError)):
        Workspace("ws", tenant_id)

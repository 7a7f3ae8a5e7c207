"""Signed tokens, headers and edges over real HTTP, and what they make of the rows.

Tokens are JWTs, verified by FastMCP; addresses are real ones of the loopback network.
"""

import socket
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import httpx2
import pytest
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.server.auth.providers.jwt import JWTVerifier, RSAKeyPair
from fastmcp.server.dependencies import get_access_token
from waiting import PATIENCE

from nimble_lifecycle import Lifecycle, Tenancy, Workspace
from nimble_lifecycle.errors import NotConnected
from nimble_lifecycle.testing.host import Era, Host, serving

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("era", list(Era))
ISSUER, AUDIENCE = "https://host.example", "https://acme.example/mcp"
EDGE, STRANGER = "127.0.0.7", "127.0.0.8"
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def keys():
    return RSAKeyPair.generate()


@pytest.fixture
def mint(keys):
    """Give a function that makes tokens as a host does."""

    def mint(workspace="ws_1", tenant="t1", *, by=keys, audience=AUDIENCE, lasts=HOUR, **claims):
        named = {"workspace_id": workspace, "tenant_id": tenant, **claims}
        return by.create_token(
            subject="host",
            issuer=ISSUER,
            audience=audience,
            expires_in_seconds=round(lasts.total_seconds()),
            additional_claims={name: value for name, value in named.items() if value is not None},
        )

    return mint


@pytest.fixture
def addresses():
    """Have two addresses on the loopback network to call from; not every system gives so many."""
    for address in (EDGE, STRANGER):
        with socket.socket() as trial:
            try:
                trial.bind((address, 0))
            except OSError:
                pytest.skip(f"{address} is no address of this machine")


def verified(keys):
    return JWTVerifier(public_key=keys.public_key, issuer=ISSUER, audience=AUDIENCE)


@asynccontextmanager
async def served(table, auth=None, *, stateless=False, **settings):
    """Serve a server with a lifecycle and one ordinary tool; gives its address."""
    mcp = FastMCP("acme", auth=auth)
    lifecycle = Lifecycle(mcp, database_url=table.url, **settings)
    lifecycle.on_ready(name="up")(lambda tenancy: f"up {tenancy.tenant_id}/{tenancy.workspace_id}")
    lifecycle.on_removing(name="down")(lambda: "down")

    @mcp.tool
    def key(tenancy: Tenancy = lifecycle.ready_tenancy()) -> str:
        return str(tenancy.details["key_ref"])

    async with serving(mcp, stateless=stateless) as url:
        yield url


def way(url, *headers, token=None, address=None):
    """Make the way to a server, with these headers on each request, from an address."""
    bearer = [("authorization", f"Bearer {token}")] if token else []

    async def put_on(request):
        pairs = [*request.headers.multi_items(), *bearer, *headers]
        request.headers = httpx2.Headers(pairs)

    def client(headers=None, timeout=None, auth=None, **_):
        transport = httpx2.AsyncHTTPTransport(local_address=address)
        hooks = {"request": [put_on]}
        return httpx2.AsyncClient(
            transport=transport, headers=headers, timeout=timeout, auth=auth, event_hooks=hooks
        )

    return StreamableHttpTransport(url, httpx_client_factory=client)


def edge(workspace, tenant=None):
    """Give the headers of a fleet's edge."""
    named = [("x-workspace-id", workspace), ("x-tenant-id", tenant)]
    return [pair for pair in named if pair[1] is not None]


async def ready(target, era, **settings):
    """Connect as a host of this era and say `ready`."""
    async with Host(target, era=era, timeout=PATIENCE, **settings) as host:
        return await host.call("ready")


def wanted(table):
    return [(row["tenant_id"], row["workspace_id"], row["desired"]) for row in table.rows()]


# -- tokens ----------------------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize("stateless", [False, True])
async def test_the_claims_of_a_signed_token_name_the_workspace(
    sqlite_table, keys, mint, era, stateless
):
    async with served(sqlite_table, verified(keys), stateless=stateless) as url:
        assert (await ready(url, era, token=mint())).text == "up t1/ws_1"
        assert (await ready(url, era, token=mint("ws_2", None))).text == "up /ws_2"
    assert wanted(sqlite_table) == [("t1", "ws_1", "wanted"), ("", "ws_2", "wanted")]


@ERAS
async def test_a_token_that_does_not_verify_is_http_401_and_makes_no_row(
    sqlite_table, keys, mint, era
):
    refused = [
        None,
        "ws_1",
        mint(lasts=-HOUR),
        mint(audience="https://other.example/mcp"),
        mint(iss="https://other.example"),
        mint(by=RSAKeyPair.generate()),
    ]
    settings = {"trust_edge_headers": ["127.0.0.0/8"]}
    async with served(sqlite_table, verified(keys), **settings) as url:
        for token in refused:
            with pytest.raises(NotConnected, match="HTTP 401"):
                await ready(url, era, token=token, workspace="ws_edge")
    assert sqlite_table.rows() == []


@ERAS
async def test_a_token_that_expires_on_the_way_is_minted_anew_and_nothing_is_lost(
    sqlite_table, keys, mint, era
):
    async with (
        served(sqlite_table, verified(keys)) as url,
        Host(url, era=era, token=mint(), timeout=PATIENCE) as host,
    ):
        await host.install()
        host.token = mint(lasts=-HOUR)
        refused = await host.call("removing")
        assert "401" in refused.text
        assert wanted(sqlite_table) == [("t1", "ws_1", "wanted")]
        lasting = iter([-HOUR, HOUR])
        host.token = lambda: mint(lasts=next(lasting))
        assert (await host.call("removing")).text == "down"
    assert wanted(sqlite_table) == [("t1", "ws_1", "release")]


@ERAS
async def test_a_rotated_token_names_another_workspace_on_the_same_connection(
    sqlite_table, keys, mint, era
):
    async with (
        served(sqlite_table, verified(keys)) as url,
        Host(url, era=era, token=mint("ws_1", "t1"), timeout=PATIENCE) as host,
    ):
        await host.install()
        host.token = mint("ws_2", "t2")
        await host.install()
        await host.remove()
    assert wanted(sqlite_table) == [("t1", "ws_1", "wanted"), ("t2", "ws_2", "release")]


@ERAS
async def test_a_token_without_the_claim_is_an_error_whatever_else_names_a_workspace(
    sqlite_table, keys, mint, era
):
    settings = {"trust_edge_headers": ["127.0.0.0/8"]}
    async with served(sqlite_table, verified(keys), **settings) as url:
        for unusable in (None, 7, ["ws_1"], "", " ", "ws\n1", "w" * 256):
            said = await ready(url, era, token=mint(unusable), workspace="ws_edge")
            assert said.is_error
            assert "token" in said.text
    assert sqlite_table.rows() == []


@ERAS
async def test_an_issuer_may_have_names_of_its_own_for_the_claims(sqlite_table, keys, mint, era):
    settings = {"claims": ("https://own.example/team", "org")}
    own = {"https://own.example/team": "ws_own", "org": "o1"}
    async with served(sqlite_table, verified(keys), **settings) as url:
        assert (await ready(url, era, token=mint(**own))).text == "up o1/ws_own"
        assert (await ready(url, era, token=mint())).is_error
    assert wanted(sqlite_table) == [("o1", "ws_own", "wanted")]


@ERAS
async def test_a_shared_key_of_ones_own_signs_as_well(sqlite_table, era):
    from joserfc import jwk, jwt

    shared = "a key that only the issuer and this server have"
    auth = JWTVerifier(public_key=shared, algorithm="HS256")
    token = jwt.encode({"alg": "HS256"}, {"team": "ws_own"}, jwk.import_key(shared, "oct"))
    async with served(sqlite_table, auth, claims=("team",)) as url:
        assert (await ready(url, era, token=token)).text == "up /ws_own"
    assert wanted(sqlite_table) == [("", "ws_own", "wanted")]


@pytest.mark.parametrize(("era", "is_async"), list(zip(Era, (False, True), strict=True)))
async def test_a_function_may_read_the_token_in_its_own_way(
    sqlite_table, keys, mint, era, is_async
):
    def nested(ctx):
        token = get_access_token()
        return Workspace(token.claims["installed"]["in"], f"of {ctx.fastmcp.name}")

    async def awaited(ctx):
        return nested(ctx)

    settings = {"workspace": awaited if is_async else nested}
    async with served(sqlite_table, verified(keys), **settings) as url:
        token = mint(installed={"in": "ws_own"})
        assert (await ready(url, era, token=token)).text == "up of acme/ws_own"
        assert (await ready(url, era, token=mint())).is_error
    assert wanted(sqlite_table) == [("of acme", "ws_own", "wanted")]


# -- tenants ---------------------------------------------------------------------------------------


@ERAS
async def test_tenants_with_the_same_workspace_id_are_kept_apart_to_the_last_row(
    table, keys, mint, era
):
    async def call(tenant):
        target = way(url, token=mint("ws_1", tenant))
        async with Client(target, mode="auto" if era is Era.DISCOVER else "legacy") as client:
            return await client.call_tool("key", {}, raise_on_error=False)

    async with served(table, verified(keys)) as url:
        for tenant in ("t1", "t2"):
            await ready(url, era, token=mint("ws_1", tenant))
        table.execute(
            "UPDATE nimble_tenancy SET create_started_at = first_seen_at, phase = 'ready',"
            " external_id = 'x1', details = '{\"key_ref\": \"k1\"}' WHERE tenant_id = 't1'"
        )
        assert (await call("t1")).content[0].text == "k1"
        assert (await call("t2")).structured_content["phase"] == "pending"
        async with Host(url, era=era, token=mint("ws_1", "t2"), timeout=PATIENCE) as host:
            assert (await host.remove()).text == "down"
        assert (await call("t1")).content[0].text == "k1"
    assert wanted(table) == [("t1", "ws_1", "wanted"), ("t2", "ws_1", "release")]


# -- headers ---------------------------------------------------------------------------------------


DISAGREEING = [
    edge("ws_2"),
    edge("ws_2", "t1"),
    edge("ws_1", "t2"),
    edge("ws_1") + edge("ws_1"),
    [*edge("ws_1", "t1"), ("x-tenant-id", "t1")],
    [("x-tenant-id", "t1")],
]


@ERAS
async def test_a_trusted_header_that_disagrees_or_is_doubled_is_an_error_beside_a_token(
    sqlite_table, keys, mint, era, addresses
):
    settings = {"trust_edge_headers": [f"{EDGE}/32"]}
    async with served(sqlite_table, verified(keys), **settings) as url:
        for headers in DISAGREEING:
            assert (await ready(way(url, *headers, token=mint(), address=EDGE), era)).is_error
        assert sqlite_table.rows() == []
        agreeing = way(url, *edge("ws_1", "t1"), token=mint(), address=EDGE)
        assert not (await ready(agreeing, era)).is_error
    assert wanted(sqlite_table) == [("t1", "ws_1", "wanted")]


@ERAS
async def test_a_header_of_anyone_else_beside_a_token_is_as_if_it_were_not_there(
    sqlite_table, keys, mint, era, addresses
):
    settings = {"trust_edge_headers": [f"{EDGE}/32"]}
    async with served(sqlite_table, verified(keys), **settings) as url:
        target = way(url, *edge("ws_2", "t2"), token=mint(), address=STRANGER)
        assert (await ready(target, era)).text == "up t1/ws_1"
    assert wanted(sqlite_table) == [("t1", "ws_1", "wanted")]


SECRET = ("x-edge-secret", "s3cret")
TRUST = {
    "network": ([f"{EDGE}/32"], {"address": EDGE}, {"address": STRANGER}),
    "secret": ({"x-edge-secret": "s3cret"}, [SECRET], [("x-edge-secret", "guess")]),
    "loopback": (True, {"address": "127.0.0.1"}, [("x-forwarded-for", "192.0.2.1")]),
}


@ERAS
@pytest.mark.parametrize("trust", list(TRUST))
async def test_headers_name_the_workspace_only_where_their_sender_is_trusted(
    sqlite_table, era, trust, addresses
):
    def sent(how, workspace):
        if isinstance(how, dict):
            return way(url, *edge(workspace, "t1"), **how)
        return way(url, *edge(workspace, "t1"), *how)

    setting, trusted, other = TRUST[trust]
    async with served(sqlite_table, trust_edge_headers=setting) as url:
        assert (await ready(sent(trusted, "ws_1"), era)).text == "up t1/ws_1"
        said = await ready(sent(other, "ws_2"), era)
    assert said.is_error
    assert "edge headers (not trusted" in said.text
    assert "s3cret" not in said.text
    assert wanted(sqlite_table) == [("t1", "ws_1", "wanted")]


@ERAS
async def test_without_any_trust_the_headers_and_the_process_name_nobody(sqlite_table, era):
    async with served(sqlite_table) as url:
        said = await ready(way(url, *edge("ws_1")), era)
    assert said.is_error
    assert "NB_WORKSPACE_ID (not for calls over HTTP)" in said.text
    assert sqlite_table.rows() == []


# -- keys ------------------------------------------------------------------------------------------


async def test_keys_that_the_issuer_publishes_may_be_rotated(sqlite_table, keys, mint):
    """The issuer's key set is read again for a key that is not known yet."""
    from joserfc import jwk
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    later = RSAKeyPair.generate()
    published = [("old", keys)]

    async def key_set(_request):
        shown = [
            {**jwk.import_key(pair.public_key, "RSA").as_dict(private=False), "kid": name}
            for name, pair in published
        ]
        return JSONResponse({"keys": shown})

    issuer = Starlette(routes=[Route("/jwks", key_set)])
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(issuer)) as to_issuer:
        auth = JWTVerifier(
            jwks_uri="https://host.example/jwks", http_client=to_issuer, jwks_refresh_interval=0
        )
        signed = partial(later.create_token, additional_claims={"workspace_id": "ws_2"}, kid="new")
        first = keys.create_token(additional_claims={"workspace_id": "ws_1"}, kid="old")
        async with served(sqlite_table, auth) as url:
            assert (await ready(url, Era.DISCOVER, token=first)).text == "up /ws_1"
            with pytest.raises(NotConnected, match="HTTP 401"):
                await ready(url, Era.DISCOVER, token=signed())
            published.append(("new", later))
            assert (await ready(url, Era.DISCOVER, token=signed())).text == "up /ws_2"
            assert (await ready(url, Era.DISCOVER, token=first)).text == "up /ws_1"
    assert wanted(sqlite_table) == [("", "ws_1", "wanted"), ("", "ws_2", "wanted")]

"""A handler no host could call is refused where it is written."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import Annotated

import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.dependencies import Depends
from mcp.server import MCPServer

from nimble_lifecycle import Lifecycle
from nimble_lifecycle.errors import ConfigurationError, HandlerError


@pytest.fixture
def mcp():
    return FastMCP("acme")


@pytest.fixture
def lifecycle(mcp, tmp_path):
    return Lifecycle(mcp, database_url=f"sqlite:///{tmp_path}/nimble.db")


def required(workspace_id): ...
def keyword_required(*, plan): ...
def star(*args): ...
def stars(**kwargs): ...
def positional(tenancy, /): ...


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (required, "workspace_id"),
        (keyword_required, "plan"),
        (star, "*args"),
        (stars, "**kwargs"),
        (positional, "tenancy"),
    ],
)
def test_what_a_host_cannot_supply_is_refused_by_name(lifecycle, mcp, function, parameter):
    with pytest.raises(HandlerError) as refused:
        lifecycle.on_ready(function)
    said = str(refused.value)
    assert parameter in said
    assert f"{function.__name__} ({__file__}:{function.__code__.co_firstlineno})" in said
    assert lifecycle.required_extensions() == ()


def yields():
    yield "words"


async def yields_later():
    yield "words"


@pytest.mark.parametrize("function", [yields, yields_later])
def test_a_function_that_yields_is_refused(lifecycle, function):
    with pytest.raises(HandlerError, match=f"{function.__name__}.* yields"):
        lifecycle.on_ready(function)


@pytest.mark.parametrize("kind", ["", " ", "*", "a\0b", "a\ud800", "k" * 256, 5])
def test_a_kind_that_no_worker_could_serve_is_refused(mcp, kind):
    with pytest.raises(ConfigurationError, match="kind"):
        Lifecycle(mcp, kind=kind)


@pytest.mark.parametrize(
    "settings", [{"trust_edge_headers": None}, {"trust_edge_headers": 1}, {"deadline": "3"}]
)
def test_a_setting_of_a_wrong_type_is_refused(mcp, settings):
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        Lifecycle(mcp, **settings)


def test_what_fastmcp_or_we_supply_is_accepted(lifecycle):
    def function(
        tenancy,
        *,
        reason,
        ctx: Context,
        db: Annotated[str, Depends(lambda: "db")],
        cache=Depends(lambda: "cache"),
        limit=5,
    ): ...

    assert lifecycle.on_ready(function) is function


def test_the_decorated_name_stays_the_plain_function(lifecycle):
    def function(tenancy, ctx: Context): ...

    before = str(function.__annotations__), hasattr(function, "__signature__")
    assert lifecycle.on_removing(title="Bye")(function) is function
    assert (str(function.__annotations__), hasattr(function, "__signature__")) == before


@pytest.mark.anyio
async def test_our_types_may_be_imported_for_type_checking_only(lifecycle, mcp):
    path = Path(__file__).with_name("annotated_handlers.py")
    spec = importlib.util.spec_from_file_location("annotated_handlers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lifecycle.on_ready(module.ready)
    async with Client(mcp) as client:
        result = await client.call_tool("ready", {"reason": "install"})
    assert result.content[0].text == "install ws_1 acme"


@pytest.mark.anyio
async def test_partials_methods_and_callable_objects_work(tmp_path):
    class Words:
        def __call__(self, ctx: Context):
            return f"object {ctx.fastmcp.name}"

        async def method(self, ctx: Context):
            return f"method {ctx.fastmcp.name}"

    def function(prefix, ctx: Context):
        return f"{prefix} {ctx.fastmcp.name}"

    for handler in (Words(), Words().method, partial(function, "partial")):
        mcp = FastMCP("acme")
        url = f"sqlite:///{tmp_path}/nimble.db"
        Lifecycle(mcp, database_url=url).on_ready(name="up")(handler)
        async with Client(mcp) as client:
            result = await client.call_tool("up", {})
        assert result.content[0].text.endswith(" acme")


def test_a_second_handler_for_an_event_is_refused(lifecycle):
    lifecycle.on_ready(name="one")(lambda: None)
    with pytest.raises(HandlerError, match="second"):
        lifecycle.on_ready(name="two")(lambda: None)


def test_a_function_without_a_name_needs_one(lifecycle):
    with pytest.raises(HandlerError, match="name="):
        lifecycle.on_ready(lambda: None)


def test_a_tool_of_the_same_name_registered_earlier_is_refused(lifecycle, mcp):
    def workspace_ready() -> str: ...

    mcp.tool(workspace_ready)

    with pytest.raises(HandlerError, match="workspace_ready"):
        lifecycle.on_ready(workspace_ready)


@pytest.mark.anyio
async def test_a_tool_of_the_same_name_registered_later_is_refused_at_start(lifecycle, mcp):
    lifecycle.on_ready(name="up")(lambda: None)
    mcp.tool(name="up")(lambda: "mine")
    await refused_at_start(mcp, "another tool named 'up'")


@pytest.mark.anyio
async def test_two_handlers_of_an_event_across_mounts_are_refused_at_start(tmp_path):
    servers = []
    for name in ("one", "two"):
        child = FastMCP(name)
        Lifecycle(child, database_url=f"sqlite:///{tmp_path}/x.db").on_ready(name=f"{name}_up")(
            lambda: None
        )
        servers.append(child)
    middle, root = FastMCP("middle"), FastMCP("root")
    middle.mount(servers[0], namespace="deep")
    root.mount(middle)
    root.mount(servers[1], namespace="two")
    await refused_at_start(root, "'one_up' of 'one' and 'two_up' of 'two'")


@pytest.mark.anyio
async def test_a_server_mounted_twice_is_two_handlers(lifecycle, mcp):
    lifecycle.on_ready(name="up")(lambda: None)
    root = FastMCP("root")
    root.mount(mcp, namespace="a")
    root.mount(mcp, namespace="b")
    await refused_at_start(root, "Two tools answer")


def test_a_second_lifecycle_is_refused(lifecycle, mcp):
    with pytest.raises(ConfigurationError, match="already has a Lifecycle"):
        Lifecycle(mcp)


def test_a_server_whose_name_changes_at_each_start_needs_one():
    with pytest.raises(ConfigurationError, match="permanent name"):
        Lifecycle(FastMCP())
    Lifecycle(FastMCP(), kind="acme")


@pytest.mark.parametrize(
    "settings",
    [
        {"deadline": 0},
        {"claims": "workspace_id"},
        {"claims": ()},
        {"trust_edge_headers": "10.0.0.0/8"},
        {"trust_edge_headers": ["10.0.0.0/99"]},
        {"trust_edge_headers": {}},
        {"trust_edge_headers": {"x-edge": ""}},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(mcp, settings):
    with pytest.raises(ConfigurationError):
        Lifecycle(mcp, **settings)


async def refused_at_start(mcp, words):
    with pytest.raises(HandlerError) as refused:
        async with mcp._lifespan_manager():
            pass
    assert words in str(refused.value)


def test_what_is_no_function_is_refused_where_it_is_written(lifecycle):
    with pytest.raises(HandlerError, match="decorates a function, not 'ready'"):
        lifecycle.on_ready("ready")


@pytest.mark.parametrize("wrong", [{"workspace": "ws_1"}, {"params": {}}])
def test_an_argument_that_is_no_function_is_refused_at_once(wrong):
    with pytest.raises(ConfigurationError, match="must be a function"):
        Lifecycle(FastMCP("acme"), **wrong)


def test_a_lifecycle_of_something_else_than_a_server_is_refused():
    with pytest.raises(ConfigurationError, match="takes a FastMCP server"):
        Lifecycle("acme")
    with pytest.raises(ConfigurationError, match=r"nimble_lifecycle\.sdk\.Lifecycle"):
        Lifecycle(MCPServer("acme"))

"""Handlers are what the wire lists under the marker, and nothing a host would refuse."""

import asyncio

import pytest
from fastmcp import FastMCP
from fastmcp.server.auth import require_scopes
from fastmcp.server.providers import Provider
from fastmcp.server.transforms import Transform
from mcp.types import Tool, ToolExecution

from nimble_lifecycle.manifest.block import Handlers, Listing, find_handlers, listing_of
from nimble_lifecycle.protocol import LIFECYCLE_ID, Event

READY = {LIFECYCLE_ID: {"event": "ready"}}
REMOVING = {LIFECYCLE_ID: {"event": "removing"}}


def handlers(server: FastMCP) -> Handlers:
    return find_handlers(asyncio.run(listing_of(server)))


@pytest.fixture
def server() -> FastMCP:
    mcp = FastMCP("acme")

    @mcp.tool(meta=READY)
    def workspace_ready(reason: str = "resume") -> str:
        return reason

    @mcp.tool(meta=REMOVING)
    def workspace_removing() -> str:
        return ""

    @mcp.tool
    def ordinary(needed: str) -> str:
        return needed

    return mcp


def tool(name: str, marker: object, **fields: object) -> Tool:
    schema = fields.pop("input_schema", {"type": "object"})
    return Tool(name=name, input_schema=schema, _meta={LIFECYCLE_ID: marker}, **fields)


def test_handlers_are_found_by_their_marker(server):
    found = handlers(server)
    assert found.names == {Event.READY: "workspace_ready", Event.REMOVING: "workspace_removing"}
    assert found.findings == []


def test_a_mounted_handler_has_the_name_that_the_wire_names(server):
    parent = FastMCP("parent")
    parent.mount(server, namespace="mail")
    assert handlers(parent).names[Event.READY] == "mail_workspace_ready"


def test_of_several_versions_the_newest_counts_as_on_the_wire():
    mcp = FastMCP("acme")
    for version, meta in [("1.0", READY), ("2.0", READY)]:
        mcp.tool(lambda: "", name="workspace_ready", version=version, meta=meta)
    for version, meta in [("1.0", REMOVING), ("2.0", None)]:
        mcp.tool(lambda: "", name="workspace_removing", version=version, meta=meta)
    found = handlers(mcp)
    assert (found.names, found.findings) == ({Event.READY: "workspace_ready"}, [])


def test_a_server_without_handlers_has_no_names():
    assert handlers(FastMCP("plain")) == Handlers({}, [])


def test_the_lifespan_is_not_entered():
    entered = []

    async def lifespan(_: FastMCP):
        entered.append(True)
        yield {}

    handlers(FastMCP("acme", lifespan=lifespan))
    assert entered == []


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        (
            [tool("a", {"event": "ready"}), tool("b", {"event": "ready"})],
            'event "ready" is marked on "a", "b": hosts call none; keep one',
        ),
        (
            [tool("a", {"event": "ready"}, input_schema={"type": "object", "required": ["x"]})],
            'tool "a" requires x: hosts call it without arguments; give each parameter a default',
        ),
        (
            [tool("a", {"event": "ready"}, execution=ToolExecution(task_support="optional"))],
            'tool "a" has task support "optional": hosts refuse it; set task=False',
        ),
        ([tool("a", {"event": "upgraded"})], 'tool "a" is marked for an event no host knows'),
        ([tool("a", {"event": ["ready"]})], 'tool "a" is marked for an event no host knows'),
        ([tool("a", "ready")], 'tool "a" is marked for an event no host knows'),
    ],
)
def test_a_handler_that_hosts_would_refuse_is_a_finding(tools, words):
    [finding] = find_handlers(Listing(tools)).findings
    assert finding.startswith(words)


def test_task_support_forbidden_is_no_finding():
    allowed = tool("a", {"event": "ready"}, execution=ToolExecution(task_support="forbidden"))
    assert find_handlers(Listing([allowed])).findings == []


def test_a_name_that_clients_may_refuse_is_a_finding(server):
    parent = FastMCP("parent")
    parent.mount(server, namespace="n" * 120)
    assert [finding.partition(" has ")[2] for finding in handlers(parent).findings] == [
        f"a name of {121 + len(name)} characters: clients may refuse more than 128; "
        "give it a shorter name or namespace"
        for name in ("workspace_ready", "workspace_removing")
    ]


def _disable(mcp: FastMCP) -> None:
    mcp.disable(names={"workspace_ready"})


def _disable_on_a_mount(mcp: FastMCP) -> FastMCP:
    parent = FastMCP("parent")
    _disable(mcp)
    parent.mount(mcp, namespace="mail")
    return parent


def _hide_by_tag(mcp: FastMCP) -> None:
    mcp.tool(lambda: "", name="tagged", meta=READY, tags={"internal"})
    mcp.local_provider.remove_tool("workspace_ready")
    mcp.disable(tags={"internal"})


def _need_a_scope(mcp: FastMCP) -> None:
    mcp.local_provider.remove_tool("workspace_ready")
    mcp.tool(lambda: "", name="guarded", meta=READY, auth=require_scopes("admin"))


@pytest.mark.parametrize("hide", [_disable, _disable_on_a_mount, _hide_by_tag, _need_a_scope])
def test_a_handler_that_no_host_will_see_is_a_finding(server, hide):
    found = handlers(hide(server) or server)
    [finding] = found.findings
    assert '" of "acme" is marked for "ready", but not listed: it is hidden' in finding
    assert Event.READY not in found.names


class Stripped(Transform):
    """What a proxy does that drops `_meta`."""

    async def list_tools(self, tools):
        return [tool.model_copy(update={"meta": None}) for tool in tools]


def test_a_second_handler_that_clients_do_not_see_is_a_finding(server):
    server.tool(lambda: "", name="second", meta=READY)
    server.disable(names={"second"})
    assert handlers(server).findings == [
        'event "ready" is marked on "workspace_ready" of "acme", "second" of "acme", '
        "seen or not: Lifecycle refuses; keep one"
    ]


class Deaf(Provider):
    """A provider that cannot say what its tools are."""

    async def list_tools(self):
        raise ConnectionError("not now")

    def __repr__(self):
        return "Deaf()"


def test_what_does_not_list_its_tools_is_told_and_the_rest_is_found(server):
    server.add_provider(Deaf())
    parent = FastMCP("parent")
    parent.mount(server, namespace="mail")
    listing = asyncio.run(listing_of(parent))
    assert listing.unheard == ['Deaf() of "acme": ConnectionError: not now']
    assert find_handlers(listing).names[Event.READY] == "mail_workspace_ready"


def test_a_marker_that_is_lost_on_the_way_is_a_finding(server):
    parent = FastMCP("parent")
    parent.mount(server, namespace="mail")
    parent.add_transform(Stripped())
    assert handlers(parent).findings == [
        f'tool "{name}" of "acme" is marked for "{event}", but listed as "mail_{name}" without '
        "its marker: a proxy, transform or later tool of that name drops its _meta; keep it"
        for name, event in [("workspace_ready", "ready"), ("workspace_removing", "removing")]
    ]


def test_a_handler_that_a_mount_renames_is_no_finding(server):
    parent = FastMCP("parent")
    parent.mount(server, tool_names={"workspace_ready": "hello"})
    found = handlers(parent)
    assert (found.names[Event.READY], found.findings) == ("hello", [])

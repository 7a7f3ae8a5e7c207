"""What a host of each generation finds and refuses, from the tools, the extension and the block."""

import pytest
from mcp_types import Tool, ToolExecution

from nimble_lifecycle.protocol import LIFECYCLE_ID
from nimble_lifecycle.testing.host import Generation, find

BLOCK = {"host_version": "1.0", "lifecycle": {"on_ready": "up", "on_removing": "down"}}


def tool(name, event=None, required=None, properties=None, support=None):
    schema = {"type": "object", "properties": properties or {}}
    return Tool(
        name=name,
        input_schema={**schema, "required": required} if required else schema,
        meta={LIFECYCLE_ID: {"event": event}} if event else None,
        execution=ToolExecution(task_support=support) if support else None,
    )


REASON = {"reason": {"type": "string"}}
PLAIN = [tool("up"), tool("down")]
MARKED = [tool("up", "ready"), tool("down", "removing")]


def names(found):
    return tuple(handler and handler.tool for handler in (found.ready, found.removing))


BOTH, NONE = ("up", "down"), (None, None)


@pytest.mark.parametrize(
    ("generation", "tools", "block", "advertised", "expected"),
    [
        ("A", PLAIN, BLOCK, False, BOTH),
        ("A", PLAIN, BLOCK, True, BOTH),
        ("A", MARKED, {}, True, NONE),
        ("B", PLAIN, BLOCK, False, BOTH),
        ("B", PLAIN, BLOCK, True, NONE),  # advertised: the block counts for nothing
        ("B", MARKED, {}, True, BOTH),
        ("B", MARKED, {}, False, NONE),
        ("C", PLAIN, BLOCK, False, NONE),
        ("C", PLAIN, BLOCK, True, NONE),
        ("C", MARKED, BLOCK, False, NONE),
        ("C", MARKED, {}, True, BOTH),
    ],
)
def test_each_generation_reads_where_it_reads(generation, tools, block, advertised, expected):
    found = find(Generation(generation), tools, block, advertised=advertised)
    assert names(found) == expected
    assert found.warnings == []


@pytest.mark.parametrize(
    ("generation", "declared", "sent"),
    [("A", False, True), ("A", True, True), ("C", False, False), ("C", True, True)],
)
def test_a_reason_is_sent_always_by_the_block_and_when_declared_by_the_wire(
    generation, declared, sent
):
    properties = REASON if declared else {}
    tools = [tool("up", "ready", properties=properties), tool("down", "removing", None, REASON)]
    found = find(Generation(generation), tools, BLOCK, advertised=True)
    assert found.ready.sends_reason is sent
    assert found.removing.sends_reason is False


@pytest.mark.parametrize(
    ("generation", "refused", "words"),
    [
        ("A", tool("up", required=["x"]), "requires x"),
        ("A", tool("up", support="optional"), "task support 'optional'"),
        ("A", tool("up", support="required"), "task support 'required'"),
        ("A", tool("other"), "names 'up', which is not listed"),
        ("C", tool("up", "ready", required=["x"]), "requires x"),
        ("C", tool("up", "ready", support="required"), "task support 'required'"),
        ("C", tool("up", "installed"), "an event that no host knows"),
    ],
)
def test_a_handler_that_is_refused_is_a_warning_and_the_other_is_called(generation, refused, words):
    tools = [refused, tool("down", "removing")]
    found = find(Generation(generation), tools, BLOCK, advertised=True)
    assert names(found) == (None, "down")
    (warning,) = found.warnings
    assert words in warning


@pytest.mark.parametrize(
    ("generation", "support"),
    [("A", "forbidden"), ("C", "forbidden"), ("C", "optional")],
)
def test_task_support_that_a_generation_accepts(generation, support):
    tools = [tool("up", "ready", support=support)]
    block = {"host_version": "1.0", "lifecycle": {"on_ready": "up"}}
    assert names(find(Generation(generation), tools, block, advertised=True)) == ("up", None)


@pytest.mark.parametrize("generation", ["B", "C"])
def test_of_two_tools_marked_for_an_event_neither_is_called(generation):
    tools = [*MARKED, tool("again", "ready")]
    found = find(Generation(generation), tools, BLOCK, advertised=True)
    assert names(found) == (None, "down")
    assert found.warnings == ["ready is marked on 'up', 'again', and none of them is called"]


@pytest.mark.parametrize("generation", ["A", "B", "C"])
def test_an_empty_list_of_tools_is_not_yet_and_no_warning(generation):
    found = find(Generation(generation), [], BLOCK, advertised=False)
    assert (found.listed, found.warnings, names(found)) == (False, (), NONE)


@pytest.mark.parametrize(
    "block",
    [
        {"lifecycle": {"on_ready": "up"}},
        {"host_version": "1.0", "lifecycle": "up"},
        {"host_version": "1.0", "lifecycle": {"on_ready": ["up"]}},
    ],
)
def test_a_block_that_hosts_cannot_read_is_a_warning(block):
    found = find(Generation.A, PLAIN, block, advertised=False)
    assert names(found) == NONE
    assert len(found.warnings) == 1

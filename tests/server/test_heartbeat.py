"""Ordinary tool calls note that a workspace is in use, and never notice it themselves."""

import asyncio

import pytest
from fastmcp import Client, FastMCP

from nimble_lifecycle import Lifecycle, Workspace
from nimble_lifecycle.core.heartbeat import (
    INTERVAL,
    MAX_WAITING,
    MAX_WORKSPACES,
    NO_ROW_INTERVAL,
    Heartbeat,
)
from nimble_lifecycle.store import IntentStore

pytestmark = pytest.mark.anyio
USED = "last_used_at"


def acme(url, **settings):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=url, **settings)
    lifecycle.on_ready(name="up")(lambda: "up")
    lifecycle.on_removing(name="down")(lambda: "down")
    mcp.tool(name="work")(lambda: "done")
    return mcp


async def used(table, after=None):
    return (await asyncio.to_thread(table.wait, lambda row: row[USED] not in (None, after)))[USED]


async def test_a_tool_call_refreshes_use_and_a_handler_does_not(table):
    async with Client(acme(table.url)) as client:
        await client.call_tool("up", {})
        await client.call_tool("up", {})
        assert table.rows()[0][USED] is None
        await client.call_tool("work", {})
        assert await used(table)


async def test_it_does_so_rarely_but_always_after_a_removing(table, monkeypatch):
    touches, touch = [], IntentStore.touch

    def counted(store, workspace, kind, *, until):
        touches.append(workspace)
        return touch(store, workspace, kind, until=until)

    monkeypatch.setattr(IntentStore, "touch", counted)
    async with Client(acme(table.url)) as client:
        await client.call_tool("up", {})
        table.change("create_started_at = first_seen_at, phase = 'ready', external_id = 'x'")
        await client.call_tool("work", {})
        first = await used(table)
        for _ in range(3):
            await client.call_tool("work", {})
        await client.call_tool("down", {})
        await client.call_tool("work", {})
        assert await used(table, after=first) > first
    assert len(touches) == 2  # they are made one after another: none is still to come


async def test_a_workspace_of_nobody_neither_fails_a_call_nor_makes_a_row(
    sqlite_table, monkeypatch
):
    async with Client(acme(sqlite_table.url)) as client:
        await client.call_tool("work", {})
        monkeypatch.delenv("NB_WORKSPACE_ID")
        assert not (await client.call_tool("work", {})).is_error
    assert sqlite_table.rows() == []


class Touched:
    """A heartbeat over a clock and a database of the test's own."""

    def __init__(self):
        self.now, self.workspaces, self.fails, self.answers = 0.0, [], False, asyncio.Event()
        self.current = Workspace("a")
        self.answers.set()
        self.there = True
        self.heartbeat = Heartbeat(self.touch, clock=lambda: self.now)

    async def workspace(self):
        return self.current

    async def touch(self, workspace):
        await self.answers.wait()
        if self.fails:
            raise OSError
        self.workspaces.append(workspace.workspace_id)
        return self.there

    async def beat(self, workspace_id="a"):
        self.current = Workspace(workspace_id)
        self.heartbeat.beat(self.workspace)
        for _ in range(6):
            await asyncio.sleep(0)


async def test_each_workspace_is_touched_once_an_interval():
    touched = Touched()
    for _ in range(3):
        await touched.beat("a")
        await touched.beat("b")
    assert touched.workspaces == ["a", "b"]
    touched.now = INTERVAL
    await touched.beat("a")
    assert touched.workspaces == ["a", "b", "a"]


async def test_a_touch_that_failed_is_tried_again_by_the_next_call():
    touched = Touched()
    touched.fails = True
    await touched.beat()
    touched.fails = False
    await touched.beat()
    assert touched.workspaces == ["a"]


async def test_use_of_a_workspace_without_a_row_is_soon_noted_once_it_has_one():
    touched = Touched()
    touched.there = False
    for _ in range(5):
        await touched.beat()
    assert touched.workspaces == ["a"], "one statement in ten seconds, however many calls"
    touched.there, touched.now = True, NO_ROW_INTERVAL
    for _ in range(5):
        await touched.beat()
    assert touched.workspaces == ["a", "a"]


async def test_what_waits_for_a_database_is_bounded():
    touched = Touched()
    touched.answers.clear()
    for number in range(MAX_WAITING + 50):
        await touched.beat(f"w{number}")
    touched.answers.set()
    for _ in range(5 * MAX_WAITING):
        await asyncio.sleep(0)
    assert len(touched.workspaces) == MAX_WAITING


async def test_what_it_remembers_is_bounded():
    touched = Touched()
    for number in range(MAX_WORKSPACES + 1):
        await touched.beat(f"w{number}")
    await touched.beat("w1")
    await touched.beat("w0")
    assert touched.workspaces[-2:] == [f"w{MAX_WORKSPACES}", "w0"]


async def test_closing_drops_what_hangs():
    touched = Touched()
    touched.answers.clear()
    await touched.beat()
    await touched.heartbeat.close()
    assert touched.workspaces == []

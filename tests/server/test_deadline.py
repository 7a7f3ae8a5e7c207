"""A call answers by its deadline whatever hangs, and what hangs starves nobody."""

import asyncio
import inspect
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from anyio.to_thread import current_default_thread_limiter
from fastmcp import Client, FastMCP
from pydantic import BaseModel
from waiting import LOOK, PATIENCE, comes, soon

from nimble_lifecycle import Lifecycle, Workspace
from nimble_lifecycle.core.service import HANDLER_SLOTS
from nimble_lifecycle.store import IntentStore

pytestmark = pytest.mark.anyio
DEFAULT = inspect.signature(Lifecycle).parameters["deadline"].default
DEADLINE = 0.5
MARGIN = 1.0  # FastMCP's own time is in it


class FreezingProxy:
    """A TCP proxy before a database that, while frozen, accepts and never answers."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._thawed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._sockets = [self._listener]
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def thaw(self) -> None:
        self._thawed.set()

    def close(self) -> None:
        for open_socket in self._sockets:
            open_socket.close()

    def _start(self, work, *arguments) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            if self._thawed.is_set():
                server = socket.create_connection(self._target)
                self._sockets.append(server)
                self._start(self._copy, client, server)
                self._start(self._copy, server, client)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[FreezingProxy]:
    target = urlsplit(postgres_url)
    proxy = FreezingProxy((target.hostname or "", target.port or 5432))
    yield proxy
    proxy.close()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Give what hanging functions wait for; set at the end, so that their threads go."""
    event = threading.Event()
    yield event
    event.set()


def acme(url, ready=lambda: "up", **settings):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=url, **settings)
    lifecycle.on_ready(name="up")(ready)
    lifecycle.on_removing(name="down")(lambda: "down")
    return mcp


async def call(client, tool="up"):
    return await client.call_tool(tool, {}, raise_on_error=False)


async def late(client, tool="up", calls=1):
    """Make calls at once that all end in an error, by a short deadline; give what they said."""
    results = await soon(
        DEADLINE + MARGIN, asyncio.gather(*(call(client, tool) for _ in range(calls)))
    )
    assert all(result.is_error for result in results)
    return results


async def late_until(holds, client, calls=1):
    """Go on so until it holds: where the machine stalls, a call ends before it got that far."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await late(client, calls=calls)


async def again(client, tool="up"):
    """Call until it is no error, as hosts do: a short deadline may pass while a machine stalls."""
    async with asyncio.timeout(PATIENCE):
        while (await call(client, tool)).is_error:
            await asyncio.sleep(LOOK)


def test_by_default_a_call_ends_before_hosts_give_up():
    assert 0 < DEFAULT < 5.0


@pytest.mark.postgres
async def test_a_database_that_never_answers_fails_every_call_in_time_and_recovers(
    proxy, postgres_url
):
    url = urlsplit(postgres_url)
    frozen = url._replace(netloc=f"{url.username}@127.0.0.1:{proxy.port}").geturl()
    async with Client(acme(frozen, deadline=DEADLINE)) as client:
        for _ in range(2):
            assert "127.0.0.1" not in repr(await late(client, calls=30))
        ours = [t for t in threading.enumerate() if t.name.startswith("nimble-call")]
        assert 1 <= len(ours) <= 8
        assert all(thread.daemon for thread in ours)
        proxy.thaw()
        await asyncio.gather(*(again(client) for _ in range(30)))


@pytest.mark.parametrize("patient", [True, False])
async def test_a_server_that_ends_while_its_database_hangs_leaves_nothing_once_that_answers(
    monkeypatch, sqlite_table, released, patient
):
    """Neither threads nor connections, whether or not somebody waits for its end."""
    before, closing, closed = set(threading.enumerate()), threading.Event(), threading.Event()
    close = IntentStore.close

    def slow(store) -> None:
        closing.set()
        released.wait()
        close(store)
        closed.set()

    monkeypatch.setattr(IntentStore, "close", slow)
    lifecycle = Lifecycle(FastMCP("acme"), database_url=sqlite_table.url, deadline=DEADLINE)

    async def serve() -> None:
        async with lifecycle.lifespan():
            pass

    serving = asyncio.ensure_future(serve())
    await comes(closing.is_set)
    if not patient:
        serving.cancel()
    await asyncio.wait([serving], timeout=PATIENCE)
    assert serving.done()
    released.set()
    await comes(closed.is_set)
    await comes(lambda: not [t for t in set(threading.enumerate()) - before if "nimble" in t.name])


async def test_a_function_that_hangs_ends_in_an_error_and_the_intent_stays(sqlite_table, released):
    begun = []

    def hang():
        begun.append(1)
        released.wait()

    async with Client(acme(sqlite_table.url, ready=hang, deadline=DEADLINE)) as client:
        await late_until(lambda: begun, client)
        assert [row["desired"] for row in sqlite_table.rows()] == ["wanted"]


async def test_an_async_function_that_hangs_does_too(sqlite_table):
    begun = []

    async def forever():
        begun.append(1)
        await asyncio.Event().wait()

    async with Client(acme(sqlite_table.url, ready=forever, deadline=DEADLINE)) as client:
        await late_until(lambda: begun, client)
    assert len(sqlite_table.rows()) == 1


class Hanging:
    """A server of many workspaces whose handlers hang until `released`, all slots of them."""

    def __init__(self, table, released):
        self.table, self.released = table, released
        self.workspace = Workspace("hanging")
        self.begun = []
        self.server = acme(
            table.url,
            ready=self.hang,
            workspace=lambda _: self.workspace,
            params=lambda _: Params(),
            deadline=DEADLINE,
        )

    def hang(self, tenancy):
        self.begun.append(tenancy.workspace_id)
        self.released.wait()

    async def fill(self, client):
        await late_until(lambda: len(self.begun) >= HANDLER_SLOTS, client, calls=HANDLER_SLOTS)


class Params(BaseModel):
    size: int = 1


async def test_functions_whose_turn_comes_too_late_are_not_begun(sqlite_table, released):
    server = Hanging(sqlite_table, released)
    async with Client(server.server) as client:
        await server.fill(client)
        server.workspace = Workspace("late")
        await late(client, calls=8)
        released.set()
        server.workspace = Workspace("in time")
        await again(client)
    assert server.begun[:HANDLER_SLOTS] == ["hanging"] * HANDLER_SLOTS
    assert set(server.begun[HANDLER_SLOTS:]) == {"in time"}


async def test_handlers_that_hang_keep_no_later_call_from_being_recorded(sqlite_table, released):
    server = Hanging(sqlite_table, released)

    async def recorded(tool, **rows):
        async with asyncio.timeout(PATIENCE):
            while {r["workspace_id"]: r["desired"] for r in sqlite_table.rows()} != rows:
                await soon(DEADLINE + MARGIN, call(client, tool))

    async with Client(server.server) as client:
        await server.fill(client)
        sqlite_table.change("create_started_at = first_seen_at, phase = 'ready', external_id = 'x'")
        server.workspace = Workspace("later")
        await recorded("up", hanging="wanted", later="wanted")
        server.workspace = Workspace("hanging")
        await recorded("down", hanging="release", later="wanted")
    assert "later" not in server.begun


async def test_an_authors_hundred_sleeping_tools_do_not_hold_up_ready(sqlite_table, released):
    mcp = acme(sqlite_table.url)

    @mcp.tool
    def sleep() -> str:
        released.wait()
        return "awake"

    async with Client(mcp) as client:
        sleeping = [asyncio.create_task(client.call_tool("sleep", {})) for _ in range(100)]
        try:
            await comes(lambda: current_default_thread_limiter().available_tokens == 0)
            result = await asyncio.wait_for(call(client), PATIENCE)
        finally:
            released.set()  # before anything can fail: the client waits for FastMCP's threads
            await asyncio.gather(*sleeping)
    assert not result.is_error


async def test_workspace_and_params_functions_are_under_the_deadline(sqlite_table, released):
    for setting in ("workspace", "params"):
        hanging = {setting: lambda _: released.wait()}
        async with Client(acme(sqlite_table.url, deadline=DEADLINE, **hanging)) as client:
            await late(client)
    assert sqlite_table.rows() == []


@contextmanager
def locked(table):
    """Hold the lock every write of the row needs, as another session."""
    engine = sa.create_engine(
        table.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    lock = (
        ["BEGIN IMMEDIATE"]
        if table.store.is_sqlite
        else ["BEGIN", "SELECT * FROM nimble_tenancy FOR UPDATE"]
    )
    with engine.connect() as connection:
        for statement in lock:
            connection.exec_driver_sql(statement)
        try:
            yield
        finally:
            connection.exec_driver_sql("ROLLBACK")
    engine.dispose()


def after_what_waited(table):
    """Write the row once whatever waited for it has had its turn; changes nothing."""
    table.change("last_reason = last_reason")


async def test_a_removing_that_waited_in_vain_is_not_applied_later(table, monkeypatch):
    async with Client(acme(table.url, deadline=DEADLINE)) as client:
        await again(client)
        with locked(table):
            await late(client, "down")
            await again(client)
        monkeypatch.setenv("NB_WORKSPACE_ID", "ws_2")
        await again(client)  # behind what may still wait in the server
        after_what_waited(table)
        assert {row["desired"] for row in table.rows()} == {"wanted"}


async def test_a_ready_that_waited_in_vain_is_not_applied_later(table, monkeypatch):
    async with Client(acme(table.url, deadline=DEADLINE)) as client:
        await again(client)
        table.change("create_started_at = first_seen_at, phase = 'ready', external_id = 'x'")
        await again(client, "down")
        with locked(table):
            await late(client)
        monkeypatch.setenv("NB_WORKSPACE_ID", "ws_2")
        await again(client)
        after_what_waited(table)
        assert [row["desired"] for row in table.rows()] == ["release", "wanted"]


async def test_a_heartbeat_that_cannot_write_delays_no_tool(table):
    mcp = acme(table.url, deadline=2 * PATIENCE)
    mcp.tool(name="work")(lambda: "done")
    async with Client(mcp) as client:
        await call(client)
        with locked(table):
            result = await asyncio.wait_for(call(client, "work"), PATIENCE)
            assert not result.is_error
            assert table.rows()[0]["last_used_at"] is None
        await asyncio.to_thread(table.wait, lambda row: row["last_used_at"])


async def test_a_commit_goes_on_when_the_host_gives_up(table, monkeypatch):
    begun, removing = threading.Event(), IntentStore.removing

    def seen(*arguments, **options):
        begun.set()
        return removing(*arguments, **options)

    monkeypatch.setattr(IntentStore, "removing", seen)
    async with Client(acme(table.url)) as client:
        await call(client)
        table.change("create_started_at = first_seen_at, phase = 'ready', external_id = 'x'")
        with locked(table):
            given_up = asyncio.create_task(call(client, "down"))
            await comes(begun.is_set)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert [row["desired"] for row in table.rows()] == ["wanted"]
        await asyncio.to_thread(table.wait, lambda row: row["desired"] == "release")
        assert table.tenancy("ws_1").workspace == Workspace("ws_1")

"""A call answers by its deadline whatever hangs, and what hangs starves nobody."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from fastmcp import Client, FastMCP
from pydantic import BaseModel

from nimble_lifecycle import Lifecycle, Workspace

pytestmark = pytest.mark.anyio
DEADLINE = 0.5
MARGIN = 0.7  # for a loaded machine of two cores; FastMCP's own time is in it


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
    lifecycle = Lifecycle(mcp, database_url=url, **{"deadline": DEADLINE, **settings})
    lifecycle.on_ready(name="up")(ready)
    lifecycle.on_removing(name="down")(lambda: "down")
    return mcp


async def timed(client, tool="up"):
    started = time.monotonic()
    result = await client.call_tool(tool, {}, raise_on_error=False)
    return result, time.monotonic() - started


@pytest.mark.postgres
async def test_a_database_that_never_answers_fails_every_call_in_time_and_recovers(
    proxy, postgres_url
):
    url = urlsplit(postgres_url)
    frozen = url._replace(netloc=f"{url.username}@127.0.0.1:{proxy.port}").geturl()
    async with Client(acme(frozen)) as client:
        for _ in range(2):
            answers = await asyncio.gather(*(timed(client) for _ in range(30)))
            assert all(result.is_error for result, _ in answers)
            assert max(took for _, took in answers) < DEADLINE + MARGIN
            assert "127.0.0.1" not in repr(answers)
        ours = [t for t in threading.enumerate() if t.name.startswith("nimble-store")]
        assert len(ours) <= 8
        assert all(thread.daemon for thread in ours)
        proxy.thaw()
        end = time.monotonic() + 5  # libpq gives up a connection attempt after 2 s at the earliest
        while (await timed(client))[0].is_error:
            assert time.monotonic() < end
        answers = await asyncio.gather(*(timed(client) for _ in range(30)))
        assert not any(result.is_error for result, _ in answers)


async def test_a_function_that_hangs_ends_in_an_error_and_the_intent_stays(sqlite_table, released):
    async with Client(acme(sqlite_table.url, ready=released.wait)) as client:
        result, took = await timed(client)
        assert result.is_error
        assert took < DEADLINE + MARGIN
        assert [row["desired"] for row in sqlite_table.rows()] == ["wanted"]


async def test_an_async_function_that_hangs_does_too(sqlite_table):
    async def forever():
        await asyncio.Event().wait()

    async with Client(acme(sqlite_table.url, ready=forever)) as client:
        result, took = await timed(client)
    assert result.is_error
    assert took < DEADLINE + MARGIN
    assert len(sqlite_table.rows()) == 1


async def test_functions_whose_turn_comes_too_late_are_not_begun(sqlite_table, released):
    begun = []

    def hang():
        begun.append(1)
        released.wait()

    async with Client(acme(sqlite_table.url, ready=hang)) as client:
        answers = await asyncio.gather(*(timed(client) for _ in range(40)))
        assert all(result.is_error for result, _ in answers)
        assert len(begun) == 32
        released.set()
        await asyncio.sleep(0.05)
        result, _ = await timed(client)
        assert not result.is_error
        assert len(begun) == 33


async def test_handlers_that_hang_keep_no_later_call_from_being_recorded(sqlite_table, released):
    class Params(BaseModel):
        size: int = 1

    def hang():
        begun.append(1)
        released.wait()

    begun = []
    workspace = Workspace("hanging")
    mcp = acme(
        sqlite_table.url,
        ready=hang,
        workspace=lambda _: workspace,
        params=lambda _: Params(),
    )
    async with Client(mcp) as client:
        await asyncio.gather(*(timed(client) for _ in range(40)))
        assert len(begun) == 32
        sqlite_table.change("create_started_at = first_seen_at, phase = 'ready', external_id = 'x'")
        workspace = Workspace("later")
        _, took = await timed(client)
        assert took < DEADLINE + MARGIN
        workspace = Workspace("hanging")
        _, took = await timed(client, "down")
        assert took < DEADLINE + MARGIN
    found = {row["workspace_id"]: row["desired"] for row in sqlite_table.rows()}
    assert found == {"hanging": "release", "later": "wanted"}


async def test_an_authors_hundred_sleeping_tools_do_not_hold_up_ready(sqlite_table, released):
    mcp = acme(sqlite_table.url)

    @mcp.tool
    def sleep() -> str:
        released.wait()
        return "awake"

    async with Client(mcp) as client:
        sleeping = [asyncio.create_task(client.call_tool("sleep", {})) for _ in range(100)]
        await asyncio.sleep(0.1)
        result, _ = await timed(client)
        released.set()  # before anything can fail: the client waits for FastMCP's threads
        await asyncio.gather(*sleeping)
    assert not result.is_error


async def test_workspace_and_params_functions_are_under_the_deadline(sqlite_table, released):
    for setting in ("workspace", "params"):
        hanging = {setting: lambda _: released.wait()}
        async with Client(acme(sqlite_table.url, **hanging)) as client:
            result, took = await timed(client)
        assert result.is_error
        assert took < DEADLINE + MARGIN
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


async def test_a_removing_that_waited_in_vain_is_not_applied_later(table):
    async with Client(acme(table.url)) as client:
        await timed(client)
        with locked(table):
            result, took = await timed(client, "down")
            assert result.is_error
            assert took < DEADLINE + MARGIN
            result, _ = await timed(client)
            assert not result.is_error
        await asyncio.sleep(0.2)
        assert [row["desired"] for row in table.rows()] == ["wanted"]


async def test_a_ready_that_waited_in_vain_is_not_applied_later(table):
    async with Client(acme(table.url)) as client:
        await timed(client)
        table.change("create_started_at = first_seen_at, phase = 'ready', external_id = 'x'")
        await timed(client, "down")
        with locked(table):
            result, _ = await timed(client)
            assert result.is_error
        await asyncio.sleep(0.2)
        assert [row["desired"] for row in table.rows()] == ["release"]


async def test_a_heartbeat_that_cannot_write_delays_no_tool(table):
    mcp = acme(table.url, deadline=2)
    mcp.tool(name="work")(lambda: "done")
    async with Client(mcp) as client:
        await timed(client)
        with locked(table):
            result, took = await timed(client, "work")
            assert not result.is_error
            assert took < MARGIN
            assert table.rows()[0]["last_used_at"] is None
        await asyncio.to_thread(table.wait, lambda row: row["last_used_at"])


async def test_a_commit_goes_on_when_the_host_gives_up(table):
    async with Client(acme(table.url, deadline=5)) as client:
        await timed(client)
        table.change("create_started_at = first_seen_at, phase = 'ready', external_id = 'x'")
        with locked(table):
            call = asyncio.create_task(timed(client, "down"))
            await asyncio.sleep(0.2)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert [row["desired"] for row in table.rows()] == ["wanted"]
        await asyncio.to_thread(table.wait, lambda row: row["desired"] == "release")
        assert table.tenancy("ws_1").workspace == Workspace("ws_1")

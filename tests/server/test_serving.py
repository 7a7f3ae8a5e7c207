"""A server as a process: what its start opens, refuses and survives, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager

import pytest
from fastmcp import Client, Context, FastMCP
from waiting import PATIENCE

from nimble_lifecycle import Lifecycle
from nimble_lifecycle.store import IntentStore

SERVER = """
import sys, time
from fastmcp import FastMCP
from nimble_lifecycle import Lifecycle
mcp = FastMCP("acme")
lifecycle = Lifecycle(mcp, deadline=600, forbidden_env=["ACME_ADMIN_TOKEN"])
@lifecycle.on_ready
def up() -> str:
    print("noise on stdout", flush=True)
    if "--hang" in sys.argv:
        time.sleep(600)
    return "up"
if __name__ == "__main__":
    mcp.run(show_banner=False)
"""

SDK_SERVER = """
import sys, time
from mcp.server import MCPServer
from nimble_lifecycle.sdk import Lifecycle
lifecycle = Lifecycle(deadline=600)
@lifecycle.on_ready
def up() -> str:
    print("noise on stdout", flush=True)
    if "--hang" in sys.argv:
        time.sleep(600)
    return "up"
mcp = MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan())
if __name__ == "__main__":
    mcp.run()
"""

FRAMEWORKS = pytest.mark.parametrize(
    "server", [SERVER, SDK_SERVER], indirect=True, ids=["fastmcp", "sdk"]
)

INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "host", "version": "1"},
}


@pytest.fixture
def server(request, tmp_path):
    path = tmp_path / "server.py"
    path.write_text(textwrap.dedent(getattr(request, "param", SERVER)))
    return path


@pytest.fixture
def environment(sqlite_table):
    """Give the environment of a server process."""
    return {**os.environ, "NIMBLE_DATABASE_URL": sqlite_table.url, "FASTMCP_LOG_LEVEL": "ERROR"}


class Host:
    """The raw wire of a stdio server."""

    def __init__(self, server, environment, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, str(server), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.send("initialize", INITIALIZE)
        self.initialized = self.read()
        self.send("notifications/initialized", None, is_request=False)

    def send(self, method, params, *, is_request=True):
        message = {"jsonrpc": "2.0", "method": method}
        if is_request:
            message["id"] = 1
        if params is not None:
            message["params"] = params
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def read(self):
        return json.loads(self.process.stdout.readline())["result"]

    def call(self, tool):
        self.send("tools/call", {"name": tool, "arguments": {"reason": "install", "x": None}})

    def hears(self, word):
        """Wait until the server says so on stderr."""
        while word not in self.process.stderr.readline():
            assert self.process.poll() is None

    def end(self):
        out, err = self.process.communicate(timeout=PATIENCE)
        return out, err, self.process.returncode


@FRAMEWORKS
def test_over_stdio_prints_never_reach_the_protocol_stream(server, environment, sqlite_table):
    host = Host(server, environment)
    assert host.initialized["capabilities"]["extensions"]["ai.nimblebrain/lifecycle"] == {}
    host.call("up")
    assert host.read()["content"] == [{"type": "text", "text": "up"}]
    out, err, code = host.end()
    assert (out, code) == ("", 0)
    assert "noise on stdout" in err
    assert f"nimble-lifecycle: 'acme' uses {sqlite_table.store.location}\n" in err
    assert [row["workspace_id"] for row in sqlite_table.rows()] == ["ws_1"]


@FRAMEWORKS
def test_end_of_input_in_the_middle_of_a_hanging_handler_ends_the_process(
    server, environment, sqlite_table
):
    host = Host(server, environment, "--hang")
    host.call("up")
    host.hears("noise on stdout")
    sqlite_table.wait(lambda row: row["desired"] == "wanted")
    out, _, code = host.end()
    assert code == 0
    assert all(json.loads(line) for line in out.splitlines())
    assert [row["desired"] for row in sqlite_table.rows()] == ["wanted"]


@FRAMEWORKS
def test_sigterm_in_the_middle_of_a_handler_then_a_restart_is_consistent(
    server, environment, sqlite_table
):
    host = Host(server, environment, "--hang")
    host.call("up")
    host.hears("noise on stdout")
    sqlite_table.wait(lambda row: row["desired"] == "wanted")
    host.process.send_signal(signal.SIGTERM)
    host.end()
    host = Host(server, environment)
    host.call("up")
    assert host.read()["isError"] is False
    host.end()
    assert [row["desired"] for row in sqlite_table.rows()] == ["wanted"]


@pytest.mark.parametrize(
    "command",
    [
        ["{server}"],
        ["-c", "import server; server.mcp.run(transport='http', port=0, show_banner=False)"],
    ],
)
def test_a_forbidden_variable_ends_it_with_1_and_one_line(server, environment, command):
    done = subprocess.run(
        [sys.executable, *(part.format(server=server) for part in command)],
        env={**environment, "ACME_ADMIN_TOKEN": "sk-very-secret"},
        cwd=server.parent,
        input="",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "ACME_ADMIN_TOKEN" in line
    assert "sk-very-secret" not in line


def acme(url, **settings):
    mcp = FastMCP("acme")
    Lifecycle(mcp, database_url=url, **settings).on_ready(name="up")(lambda: "up")
    return mcp


async def up(client):
    return await client.call_tool("up", {}, raise_on_error=False)


@pytest.mark.anyio
async def test_a_sqlite_file_is_made_on_first_use(empty_sqlite_url):
    async with Client(acme(empty_sqlite_url)) as client:
        assert not (await up(client)).is_error


@pytest.mark.anyio
@pytest.mark.postgres
async def test_without_tables_it_starts_and_names_the_command_until_they_are_made(
    empty_postgres_url, caplog
):
    async with Client(acme(empty_postgres_url)) as client:
        assert "nimble-reconcile migrate" in caplog.text
        assert "Traceback" not in caplog.text
        result = await up(client)
        assert result.is_error
        assert "nimble-reconcile migrate" in result.content[0].text
        assert "postgresql" not in result.content[0].text.lower()
        IntentStore(empty_postgres_url).migrate()
        assert not (await up(client)).is_error


@pytest.mark.anyio
async def test_a_database_that_is_down_at_start_answers_with_errors_until_it_is_back(
    sqlite_url, tmp_path, capfd
):
    path, away = tmp_path / "nimble.db", tmp_path / "away"
    path.rename(away)
    path.mkdir()  # nothing can be opened there
    async with Client(acme(sqlite_url)) as client:
        result = await up(client)
        assert result.is_error
        assert str(tmp_path) not in result.content[0].text
        path.rmdir()
        away.rename(path)
        assert not (await up(client)).is_error


@pytest.mark.anyio
@pytest.mark.postgres
async def test_nothing_listening_is_an_error_without_address_or_user():
    url = "postgresql://someone:hunter2@127.0.0.1:9/none"
    async with Client(acme(url)) as client:
        result = await up(client)
    assert result.is_error
    for word in ("127.0.0.1", "someone", "hunter2", "none"):
        assert word not in result.content[0].text


@pytest.mark.anyio
async def test_what_nobody_expected_of_the_database_is_not_shown(table):
    async with Client(acme(table.url)) as client:
        table.execute("ALTER TABLE nimble_tenancy RENAME COLUMN desired TO wished")
        result = await up(client)
    assert result.is_error
    for word in ("desired", "SELECT", "nimble_tenancy"):
        assert word not in result.content[0].text


@pytest.mark.anyio
async def test_an_argument_beats_the_environment(sqlite_table, monkeypatch, tmp_path):
    monkeypatch.setenv("NIMBLE_DATABASE_URL", f"sqlite:///{tmp_path}/other.db")
    async with Client(acme(sqlite_table.url)) as client:
        await up(client)
    assert len(sqlite_table.rows()) == 1
    assert not (tmp_path / "other.db").exists()


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_authors_own_lifespan_works_beside_ours(sqlite_table, mode):
    seen = []

    @asynccontextmanager
    async def own(server):
        seen.append(f"enter {server.name}")
        yield {"name": "berlin"}
        seen.append("leave")

    mcp = FastMCP("acme", lifespan=own)
    lifecycle = Lifecycle(mcp, database_url=sqlite_table.url)

    @lifecycle.on_ready(name="up")
    def ready(ctx: Context) -> str:
        return f"up in {ctx.lifespan_context['name']}"

    async with Client(mcp, mode=mode) as client:
        assert (await up(client)).content[0].text == "up in berlin"
    assert seen == ["enter acme", "leave"]
    assert [row["workspace_id"] for row in sqlite_table.rows()] == ["ws_1"]


@pytest.mark.anyio
async def test_a_handler_called_outside_the_lifespan_says_so(sqlite_url):
    with pytest.raises(Exception, match="lifespan has not been entered"):
        await acme(sqlite_url).call_tool("up", {})

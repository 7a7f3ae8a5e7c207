"""What a server prints, wherever it does: on stdio nothing but messages reaches stdout."""

import json
import os
import subprocess
import sys

import pytest
from waiting import PATIENCE

CHATTY = """
import logging, os, sys
from contextlib import asynccontextmanager
print("at import")
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
@asynccontextmanager
async def own(server):
    print("in the lifespan")
    yield {}
def up() -> str:
    print("in a handler")
    os.system("echo in a child")
    logging.info("logged in a handler")
    return "up"
"""

FASTMCP = """
from fastmcp import FastMCP
from nimble_lifecycle import Lifecycle
mcp = FastMCP("acme", lifespan=own)
Lifecycle(mcp).on_ready(up)
if __name__ == "__main__":
    mcp.run(show_banner=False)
"""

SDK = """
from mcp.server import MCPServer
from nimble_lifecycle.sdk import Lifecycle
lifecycle = Lifecycle()
lifecycle.on_ready(up)
mcp = MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan(own))
if __name__ == "__main__":
    mcp.run()
"""

CLIENT = {"name": "host", "version": "1"}
HANDSHAKE = [
    {
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT},
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": {"name": "up"}},
]
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
DISCOVER = [
    {"id": 1, "method": "server/discover", "params": {"_meta": META}},
    {"id": 2, "method": "tools/call", "params": {"name": "up", "_meta": META}},
]


def python(arguments, *, cwd, env):
    """Start Python as hosts do, with a stdout that waits in a buffer."""
    buffered = {name: value for name, value in env.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env=buffered,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


def talk(process, messages):
    """Send each message, wait for its answer, end the input: what came on stdout and stderr."""
    lines = []
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        if "id" in message:
            lines.append(process.stdout.readline())
    out, err = process.communicate(timeout=PATIENCE)
    return [*lines, *out.splitlines()], err


@pytest.mark.parametrize("framework", [FASTMCP, SDK], ids=["fastmcp", "sdk"])
@pytest.mark.parametrize("messages", [HANDSHAKE, DISCOVER], ids=["handshake", "discover"])
def test_nothing_that_is_printed_reaches_the_messages_of_stdio(
    tmp_path, empty_sqlite_url, framework, messages
):
    (tmp_path / "server.py").write_text(CHATTY + framework)
    env = {**os.environ, "NIMBLE_DATABASE_URL": empty_sqlite_url, "NB_WORKSPACE_ID": "ws_1"}
    process = python(["server.py"], cwd=tmp_path, env=env)
    lines, err = talk(process, messages)
    assert not [line for line in lines if line[0] != "{"]
    assert [json.loads(line)["id"] for line in lines] == [1, 2]
    assert json.loads(lines[1])["result"]["content"][0]["text"] == "up"
    said = ["at import", "in the lifespan", "in a handler", "in a child", "logged in a handler"]
    assert [words for words in said if words not in err] == []
    assert process.returncode == 0


def test_off_stdio_stdout_stays_the_authors(tmp_path, empty_sqlite_url):
    (tmp_path / "server.py").write_text(CHATTY + FASTMCP)
    (tmp_path / "host.py").write_text(
        "import asyncio\n"
        "from fastmcp import Client\n"
        "from server import mcp\n"
        "async def main():\n"
        "    async with Client(mcp) as client:\n"
        "        await client.call_tool('up')\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "NIMBLE_DATABASE_URL": empty_sqlite_url, "NB_WORKSPACE_ID": "ws_1"}
    out, _ = python(["host.py"], cwd=tmp_path, env=env).communicate(timeout=PATIENCE)
    for said in ("at import", "in the lifespan", "in a handler", "logged in a handler"):
        assert said in out


@pytest.mark.parametrize(
    ("before", "out", "err"),
    [
        ("", "after\n", "before\nmeanwhile\n"),
        ("os.close(2)", "after\n", ""),
        ("os.close(1)", "", ""),
        ("sys.stdout.close()", "", ""),
        ("sys.stdout = None", "", ""),
        ("sys.stdout = io.StringIO()", "", ""),
        ("sys.stdout = open('kept', 'w')", "", ""),
    ],
)
def test_a_stdout_that_is_not_the_process_own_is_let_be(tmp_path, before, out, err):
    code = f"""
import io, os, sys
from nimble_lifecycle.stdout import flush_stdout, printed_to_stderr
def say(words):
    try:
        print(words)
    except ValueError:  # closed
        pass
{before}
say("before")
with printed_to_stderr():
    say("meanwhile")
flush_stdout()
say("after")
os._exit(0) if {before!r} == "os.close(1)" else None
"""
    process = python(["-c", code], cwd=tmp_path, env=os.environ)
    assert process.communicate(timeout=PATIENCE) == (out, err)
    assert process.returncode == 0

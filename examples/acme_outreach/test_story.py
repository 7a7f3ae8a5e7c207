"""The example as a whole, on real parts."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from acme_process import ADMIN_TOKEN, PATIENCE, Acme
from fastmcp import Client, FastMCP
from mcp.server import MCPServer
from mcp_types import CallToolResult
from sdk_server import mcp as sdk_mcp
from server import mcp

HERE = Path(__file__).parent
CAMPAIGN = {"subject": "Spring", "body": "It is here.", "recipients": ["ada@example.com"]}


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@pytest.fixture
def shared(acme: Acme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Acme:
    """Give both halves what they share; the admin token is not part of it."""
    monkeypatch.setenv("NIMBLE_DATABASE_URL", f"sqlite:///{tmp_path}/rows.db")
    monkeypatch.setenv("NB_WORKSPACE_ID", "ws_berlin")
    monkeypatch.setenv("ACME_URL", acme.url)
    monkeypatch.setenv("ACME_SECRETS_DIR", str(tmp_path / "keys"))
    return acme


def reconcile() -> None:
    subprocess.run(
        [program("nimble-reconcile"), "run", "vendor:AcmeVendor", "--grace=0", "--exit-when-idle"],
        cwd=HERE,
        env={**os.environ, "ACME_ADMIN_TOKEN": ADMIN_TOKEN},
        check=True,
        timeout=120,
    )


async def called(tool: str, /, **arguments: object) -> CallToolResult:
    """Call a tool of the server; see `asked`."""
    return await asked(mcp, tool, **arguments)


async def asked(server: FastMCP | MCPServer, tool: str, /, **arguments: object) -> CallToolResult:
    """Call a tool, again where the server asks for it: this machine may stall past a deadline."""
    async with Client(server) as client, asyncio.timeout(PATIENCE):
        result: CallToolResult = await client.call_tool_mcp(tool, arguments)
        while "Call again." in text(result):
            result = await client.call_tool_mcp(tool, arguments)
        return result


def text(result: CallToolResult) -> str:
    return " ".join(part.text for part in result.content if part.type == "text")


@pytest.mark.anyio
async def test_a_workspace_comes_sends_mail_and_goes(shared: Acme) -> None:
    installed = await called("workspace_ready", reason="install")
    assert "in a few seconds" in text(installed)
    early = await called("send_campaign", **CAMPAIGN)
    assert early.is_error
    assert early.structured_content is not None
    assert early.structured_content["phase"] == "pending"

    reconcile()
    [tenancy] = shared.tenancies()
    sent = await called("send_campaign", **CAMPAIGN)
    assert not sent.is_error
    assert [mail["to"] for mail in shared.mail(str(tenancy["id"]))] == CAMPAIGN["recipients"]
    assert "ada@example.com" in text(await called("sent_mail"))

    await called("workspace_removing")
    reconcile()
    assert shared.tenancies() == []
    assert list(Path(os.environ["ACME_SECRETS_DIR"]).iterdir()) == []
    late = await called("send_campaign", **CAMPAIGN)
    assert late.is_error
    assert shared.tenancies() == []


@pytest.mark.anyio
async def test_the_server_of_the_sdk_serves_the_same_workspace(shared: Acme) -> None:
    installed = await asked(sdk_mcp, "workspace_ready", reason="install")
    assert "in a few seconds" in text(installed)
    early = await asked(sdk_mcp, "sender")
    assert early.structured_content is not None
    assert early.structured_content["phase"] == "pending"

    reconcile()
    [tenancy] = shared.tenancies()
    sender = text(await asked(sdk_mcp, "sender"))
    assert f"Sending as {sender}." == text(await called("workspace_ready"))
    assert not (await called("send_campaign", **CAMPAIGN)).is_error
    assert len(shared.mail(str(tenancy["id"]))) == 1

    await asked(sdk_mcp, "workspace_removing")
    reconcile()
    assert shared.tenancies() == []


@pytest.mark.parametrize("server", ["server.py:mcp", "sdk_server.py:mcp"])
def test_the_manifest_is_what_the_server_says(server: str) -> None:
    command = [program("nimble-manifest"), "check", server]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_server_refuses_to_start_with_the_admin_token(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "server.py"],
        cwd=HERE,
        env={**os.environ, "ACME_ADMIN_TOKEN": ADMIN_TOKEN, "XDG_DATA_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ACME_ADMIN_TOKEN" in done.stderr
    assert ADMIN_TOKEN not in done.stderr
    assert done.stdout == ""

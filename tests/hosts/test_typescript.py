"""The official TypeScript clients as outside witnesses, of both eras."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from matrix_server import acme

from nimble_lifecycle.testing.host import serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("typescript_host.mjs")
PACKAGES = ["@modelcontextprotocol/client@2.4.0", "@modelcontextprotocol/sdk@1.32.0"]
CROWD = 50


@pytest.fixture(scope="module")
def script(from_npm: Callable[..., Path]) -> Path:
    """Install the clients, and give the script beside them, where it finds them."""
    return Path(shutil.copy(SCRIPT, from_npm(*PACKAGES)))


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("client", ["sdk", "legacy", "2026-07-28"])
async def test_it_installs_bursts_and_removes(client, stateless, script, rows):
    async with serving(acme(), stateless=stateless) as url:
        node = await asyncio.create_subprocess_exec(
            "node", script, client, url, str(CROWD), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(node.communicate(), 240)
    assert node.returncode == 0, err.decode()
    seen = json.loads(out)
    assert seen["extensions"]["ai.nimblebrain/lifecycle"] == {}
    assert (seen["ready"], seen["removing"]) == ("up", "down")
    assert seen["install"] == {"failed": False, "text": f"install {client}/ws_one pending"}
    assert seen["resume"] == {"failed": False, "text": f"resume {client}/ws_one pending"}
    assert seen["extra"] == seen["resume"]
    assert seen["removed"] == {"failed": False, "text": "removing ws_one"}
    assert (seen["burst"], seen["crowd"]) == ([], [])
    crowd = [(client, f"ws_{number}", "wanted") for number in range(CROWD)]
    assert rows() == sorted([*crowd, (client, "ws_one", "release")])

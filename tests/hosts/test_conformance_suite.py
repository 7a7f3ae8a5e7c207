"""The protocol's own conformance suite as an outside witness."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest
from matrix_server import shaped

from nimble_lifecycle.testing.host import serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
PACKAGE = "@modelcontextprotocol/conformance@0.1.13"  # newer ones need a newer Node than Debian's


@pytest.fixture(scope="module")
def suite(from_npm: Callable[..., Path]) -> Path:
    """Install the command."""
    return from_npm(PACKAGE) / "node_modules" / ".bin" / "conformance"


@pytest.mark.parametrize("scenario", ["server-initialize", "ping", "tools-list"])
@pytest.mark.parametrize("shape", ["namespaced", "sdk"])
async def test_a_server_with_a_lifecycle_conforms(shape, scenario, suite, rows):
    async with serving(shaped(shape)) as url:
        command = (suite, "server", "--url", url, "--scenario", scenario)
        run = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        out, err = await asyncio.wait_for(run.communicate(), 240)
    assert run.returncode == 0, (out + err).decode()
    assert b"Passed: 1/1, 0 failed, 0 warnings" in out
    assert rows() == []

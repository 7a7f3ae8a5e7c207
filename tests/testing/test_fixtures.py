"""The fixtures are there for those who ask, and for nobody else."""

import os
import subprocess
import sys

import pytest

TEST = """
import os
import sqlite3
import asyncio
from fastmcp import FastMCP
from nimble_lifecycle import Lifecycle

def test_a_host_of_one_workspace_over_a_database_of_its_own(lifecycle_host, lifecycle_database):
    mcp = FastMCP("acme")
    Lifecycle(mcp).on_ready(name="up")(lambda: "up")

    async def installed():
        async with lifecycle_host(mcp) as host:
            return await host.install()

    assert asyncio.run(installed()).ok
    assert "NB_WORKSPACE_ID" not in os.environ
    database = sqlite3.connect(lifecycle_database.removeprefix("sqlite:///"))
    rows = database.execute("SELECT workspace_id, desired FROM nimble_tenancy").fetchall()
    database.close()
    assert rows == [("ws_test", "wanted")]
"""


@pytest.mark.parametrize(("asked", "code"), [(True, 0), (False, 1)])
def test_they_are_loaded_only_when_asked_for(tmp_path, asked, code):
    (tmp_path / "test_it.py").write_text(TEST)
    asks = 'pytest_plugins = ["nimble_lifecycle.testing.fixtures"]' if asked else ""
    (tmp_path / "conftest.py").write_text(asks)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env={**os.environ, "NB_WORKSPACE_ID": "ws_of_somebody"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert ("fixture 'lifecycle_host' not found" in done.stdout) is not asked

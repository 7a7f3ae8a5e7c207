"""Importing a server opens nothing and loads neither the database libraries nor the other half."""

import subprocess
import sys

HEAVY = (
    "sqlalchemy",
    "sqlmodel",
    "alembic",
    "psycopg",
    "tenacity",
    "nimble_lifecycle.store",
    "nimble_lifecycle.settings",
    "nimble_lifecycle.reconciler",
    "nimble_lifecycle.manifest",
)

SERVER = """
import sys
from fastmcp import FastMCP
from nimble_lifecycle import Lifecycle, NotReady, Reason, Tenancy
mcp = FastMCP("acme")
lifecycle = Lifecycle(
    mcp, database_url="postgresql://nobody@192.0.2.1/none", forbidden_env=["PATH"]
)
@lifecycle.on_ready
def up(tenancy: Tenancy, reason: Reason) -> str: ...
@lifecycle.on_removing
def down() -> str: ...
@mcp.tool
def send(tenancy: Tenancy = lifecycle.ready_tenancy()) -> str: ...
print(*sorted(sys.modules))
"""


def test_an_import_of_the_users_server_loads_nothing_heavy_and_opens_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SERVER],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    loaded = set(done.stdout.split())
    assert not [name for name in HEAVY if name in loaded]
    assert list(tmp_path.iterdir()) == []

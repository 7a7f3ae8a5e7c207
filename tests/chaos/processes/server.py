"""The server half of a chaos run, over HTTP: `python server.py PORT`.

CHAOS_WISHES names a JSON file with the `from_name` each workspace chose. Its store goes wrong as
the worker's does (`troubled.py`).
"""

import json
import os
import sys
from pathlib import Path

from fastmcp import FastMCP
from params import OutreachParams
from troubled import TroubledIntents

from nimble_lifecycle import Lifecycle, Tenancy, Workspace, store

WISHES = Path(os.environ["CHAOS_WISHES"])


def chosen(workspace: Workspace) -> OutreachParams:
    """Say what a workspace chose."""
    return OutreachParams(from_name=json.loads(WISHES.read_text())[workspace.workspace_id])


mcp = FastMCP("acme-outreach")
lifecycle = Lifecycle(mcp, params=chosen, trust_edge_headers=True)


@lifecycle.on_ready
def workspace_ready(tenancy: Tenancy) -> str:
    return str(tenancy.phase)


@lifecycle.on_removing
def workspace_removing() -> str:
    return "going"


if __name__ == "__main__":
    store.IntentStore = TroubledIntents  # type: ignore[misc]
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)

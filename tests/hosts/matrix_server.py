"""The server of the matrix in its four shapes: `python matrix_server.py SHAPE` speaks stdio."""

import sys

from fastmcp import FastMCP
from mcp.server import MCPServer

from nimble_lifecycle import Lifecycle, Reason, Tenancy, sdk

SHAPES = ("plain", "mounted", "namespaced", "sdk")
# A long deadline: what is tested here is not how fast the machine is.
SETTINGS = {"trust_edge_headers": True, "deadline": 30.0}


def up(tenancy: Tenancy, reason: Reason) -> str:
    return f"{reason} {tenancy.tenant_id}/{tenancy.workspace_id} {tenancy.phase}"


def down(tenancy: Tenancy) -> str:
    return f"removing {tenancy.workspace_id}"


def other(reason: str) -> str:
    """Do something that no host calls."""
    return reason


def acme() -> FastMCP:
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, **SETTINGS)
    lifecycle.on_ready(up)
    lifecycle.on_removing(down)
    mcp.tool(other)
    return mcp


def acme_of_the_sdk() -> MCPServer:
    lifecycle = sdk.Lifecycle(**SETTINGS)
    lifecycle.on_ready(up)
    lifecycle.on_removing(down)
    mcp = MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan())
    mcp.tool()(other)
    return mcp


def shaped(shape: str) -> FastMCP | MCPServer:
    """Make the server alone, mounted in another or two deep under a name, or with the SDK."""
    if shape == "sdk":
        return acme_of_the_sdk()
    if shape == "plain":
        return acme()
    root, middle = FastMCP("root"), FastMCP("middle")
    middle.mount(acme())
    root.mount(middle, namespace="deep" if shape == "namespaced" else None)
    return root


if __name__ == "__main__":
    server = shaped(sys.argv[1])
    server.run(**({"show_banner": False} if isinstance(server, FastMCP) else {}))

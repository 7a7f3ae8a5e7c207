"""The server of the matrix in its three shapes: `python matrix_server.py SHAPE` speaks stdio."""

import sys

from fastmcp import FastMCP

from nimble_lifecycle import Lifecycle, Reason, Tenancy

SHAPES = ("plain", "mounted", "namespaced")


def acme() -> FastMCP:
    mcp = FastMCP("acme")
    # A long deadline: what is tested here is not how fast the machine is.
    lifecycle = Lifecycle(mcp, trust_edge_headers=True, deadline=30.0)

    @lifecycle.on_ready
    def up(tenancy: Tenancy, reason: Reason) -> str:
        return f"{reason} {tenancy.tenant_id}/{tenancy.workspace_id} {tenancy.phase}"

    @lifecycle.on_removing
    def down(tenancy: Tenancy) -> str:
        return f"removing {tenancy.workspace_id}"

    @mcp.tool
    def other(reason: str) -> str:
        """Do something that no host calls."""
        return reason

    return mcp


def shaped(shape: str) -> FastMCP:
    """Make the server alone, mounted in another, or mounted two deep under a name."""
    if shape == "plain":
        return acme()
    root, middle = FastMCP("root"), FastMCP("middle")
    middle.mount(acme())
    root.mount(middle, namespace="deep" if shape == "namespaced" else None)
    return root


if __name__ == "__main__":
    shaped(sys.argv[1]).run(show_banner=False)

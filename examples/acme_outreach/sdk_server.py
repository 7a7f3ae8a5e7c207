"""The lifecycle of `server.py` in a server of the official SDK, without FastMCP.

`python sdk_server.py --port 8000` serves HTTP, without `--port` it speaks stdio. The tools have the
same names, so the manifest is the same; so are the rows, and the worker does not see a difference.
"""

from typing import Annotated

import cyclopts
from mcp.server import MCPServer
from params import OutreachParams

from nimble_lifecycle import Phase, Reason, Tenancy, Workspace
from nimble_lifecycle.sdk import Lifecycle


def chosen(_workspace: Workspace) -> OutreachParams:
    """Say what a workspace gets; asked at each `ready`."""
    return OutreachParams(plan="starter")


lifecycle = Lifecycle(
    params=chosen,
    trust_edge_headers=True,  # from loopback peers only
    forbidden_env=["ACME_ADMIN_TOKEN"],
)


@lifecycle.on_ready
def workspace_ready(tenancy: Tenancy, reason: Reason) -> str:
    """Set up the sending workspace; the host calls this when the connector becomes reachable."""
    if tenancy.phase is Phase.READY:
        return f"Sending as {tenancy.details.get('sender')}."
    if reason is Reason.INSTALL:
        return "Setting up your sending workspace. It will be ready in a few seconds."
    return f"Sending workspace: {tenancy.phase}."


@lifecycle.on_removing
def workspace_removing() -> str:
    """Release the sending workspace; the host calls this just before it removes the connector."""
    return "Releasing your sending workspace."


# The SDK reads the handlers when the server is made: below them, and above its other tools.
mcp = MCPServer("acme-outreach", extensions=[lifecycle], lifespan=lifecycle.lifespan())


@mcp.tool()
def sender(tenancy: Annotated[Tenancy, lifecycle.ready_tenancy()]) -> str:
    """Say which address this workspace sends from."""
    return str(tenancy.details["sender"])


def main(*, port: int | None = None) -> None:
    """Serve HTTP on a loopback port, or stdio where none is given."""
    if port is None:
        mcp.run()
    else:
        mcp.run("streamable-http", port=port)


if __name__ == "__main__":
    cyclopts.run(main)

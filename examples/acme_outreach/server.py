"""An MCP server that sends campaigns through a tenancy of its own for each workspace.

`python server.py --port 8000` serves HTTP, without `--port` it speaks stdio. It never sees Acme's
admin token: it records that a workspace wants a tenancy, and the worker makes it.
"""

from pathlib import Path
from typing import Annotated

import cyclopts
import httpx2
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from params import OutreachParams
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from nimble_lifecycle import Lifecycle, Phase, Reason, Tenancy, Workspace


class Settings(BaseSettings):
    """What the server reads from its environment, `ACME_*`."""

    model_config = SettingsConfigDict(env_prefix="ACME_", extra="ignore")

    url: str = "http://127.0.0.1:8800"
    secrets_dir: Path = Path("acme-secrets")
    growth_workspaces: frozenset[str] = frozenset()
    """Ids of workspaces on the bigger plan, as a JSON list."""


def chosen(workspace: Workspace) -> OutreachParams:
    """Say what a workspace gets; asked at each `ready`, a change reaches Acme by itself."""
    growing = workspace.workspace_id in Settings().growth_workspaces
    return OutreachParams(plan="growth" if growing else "starter")


mcp = FastMCP("acme-outreach")
lifecycle = Lifecycle(
    mcp,
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


@mcp.tool
async def send_campaign(
    subject: str,
    body: str,
    recipients: Annotated[list[str], Field(min_length=1, max_length=100)],
    tenancy: Tenancy = lifecycle.ready_tenancy(),
) -> str:
    """Send one mail to each recipient, from this workspace's own sender address."""
    async with acme(tenancy) as client:
        for recipient in recipients:
            mail = {"to": recipient, "subject": subject, "body": body}
            await answered(client, "POST", json=mail)
    return f"Sent to {len(recipients)} recipients as {tenancy.details['sender']}."


@mcp.tool
async def sent_mail(tenancy: Tenancy = lifecycle.ready_tenancy()) -> list[dict[str, object]]:
    """List what this workspace has sent."""
    async with acme(tenancy) as client:
        response = await answered(client, "GET")
    mail: list[dict[str, object]] = response.json()["mail"]
    return mail


def acme(tenancy: Tenancy) -> httpx2.AsyncClient:
    """Open Acme's API with the key that Acme issued for this tenancy."""
    settings = Settings()
    reference = Path(str(tenancy.details["key_ref"])).name  # never outside the directory
    key = (settings.secrets_dir / reference).read_text()
    headers = {"Authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=settings.url, headers=headers, timeout=5.0)


async def answered(
    client: httpx2.AsyncClient, method: str, *, json: dict[str, str] | None = None
) -> httpx2.Response:
    """Ask Acme's mail API, or say in words for an agent that it did not work."""
    try:
        return (await client.request(method, "/mail", json=json)).raise_for_status()
    except httpx2.HTTPError as error:
        raise ToolError("Acme did not take the request; try again in a minute.") from error


def main(*, port: int | None = None) -> None:
    """Serve HTTP on a loopback port, or stdio where none is given."""
    if port is None:
        mcp.run(show_banner=False)
    else:
        mcp.run(transport="http", host="127.0.0.1", port=port, show_banner=False)


if __name__ == "__main__":
    cyclopts.run(main)

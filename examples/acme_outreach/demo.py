"""The whole job on real parts: `make demo`.

Four processes and two databases: Acme's HTTP service with its own file, the MCP server over HTTP,
`nimble-reconcile` with the admin token, and this one, which plays the host. Each step is checked
against Acme's own listing; the first that is not what it should be ends the demo with exit code 1.

`DEMO_DATABASE_URL` names an empty PostgreSQL database to use instead of a SQLite file.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import httpx2
from acme_process import ADMIN_TOKEN, Acme, serving
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import McpError
from mcp_types import CallToolResult
from rich.console import Console
from rich.table import Table

HERE: Final = Path(__file__).parent
GRACE: Final = 8.0
PATIENCE: Final = 60.0
"""Seconds any one thing may take before the demo calls it wrong."""
TRIES: Final = 5
"""How often the user tries to think better of it in time, on a machine that stalls."""

console = Console(highlight=False, soft_wrap=True)


class StepError(Exception):
    """Something is not what it should be; the message says what."""


def check(true: bool, otherwise: str) -> None:
    """End the demo unless `true`."""
    if not true:
        raise StepError(otherwise)


# -- processes -------------------------------------------------------------------------------------


@dataclass
class Processes:
    """What the demo started; all of it ends with the stack."""

    folder: Path
    stack: ExitStack

    def start(self, name: str, *command: str, **environment: str) -> None:
        """Start a process whose talk goes to a log in the demo's folder."""
        log = self.stack.enter_context((self.folder / f"{name}.log").open("w"))
        process = subprocess.Popen(  # noqa: S603  # our own programs
            command,
            cwd=HERE,
            env=inherited() | {"PYTHONUNBUFFERED": "1"} | environment,
            stdout=log,
            stderr=log,
        )
        self.stack.callback(end, process)


def inherited() -> dict[str, str]:
    """Give the environment without anything that would change what the demo shows."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("NIMBLE_", "ACME_", "NB_"))}


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force where asking does not help."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Find a port nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def tool(name: str) -> str:
    """Find a command installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


# -- the people of the story -----------------------------------------------------------------------


@dataclass
class Rows:
    """The operator's view: `nimble-reconcile status --json`."""

    database_url: str

    def read(self) -> list[dict[str, object]]:
        """List the rows."""
        command = [tool("nimble-reconcile"), "status", "--json"]
        output = subprocess.run(  # noqa: S603  # our own program
            command,
            env=inherited() | {"NIMBLE_DATABASE_URL": self.database_url},
            capture_output=True,
            check=True,
        ).stdout
        rows: list[dict[str, object]] = json.loads(output)
        return rows

    def of(self, workspace: str) -> dict[str, object]:
        """Give the newest row of a workspace."""
        rows = [row for row in self.read() if row["workspace_id"] == workspace]
        check(bool(rows), f"no row of {workspace}")
        return max(rows, key=lambda row: int(str(row["incarnation"])))


@dataclass
class Host:
    """The platform: finds the handlers by their marker and calls them."""

    url: str

    @asynccontextmanager
    async def connection(self, workspace: str) -> AsyncIterator[Client[StreamableHttpTransport]]:
        """Connect for one workspace, as the platform's edge does."""
        headers = {"x-workspace-id": workspace}
        async with Client(StreamableHttpTransport(self.url, headers=headers)) as client:
            yield client

    async def tell(self, workspace: str, event: str, **arguments: str) -> str:
        """Call the tool marked for an event; what it says."""
        async with self.connection(workspace) as client:
            marked = [
                found.name
                for found in await client.list_tools()
                if ((found.meta or {}).get("ai.nimblebrain/lifecycle") or {}).get("event") == event
            ]
            check(len(marked) == 1, f"{len(marked)} tools are marked for {event}")
            result = await client.call_tool_mcp(marked[0], arguments)
            if "Call again." in text(result):  # the machine stalled for longer than a call may take
                result = await client.call_tool_mcp(marked[0], arguments)
        check(not result.is_error, f"{event} failed: {text(result)}")
        return text(result)

    async def install(self, workspace: str) -> str:
        """Install: two calls at once, one of which the user sees the answer of."""
        notice, _ = await asyncio.gather(
            self.tell(workspace, "ready", reason="install"),
            self.tell(workspace, "ready", reason="resume"),
        )
        return notice

    async def agent(self, workspace: str, name: str, **arguments: object) -> CallToolResult:
        """Call an ordinary tool, as an agent in the workspace would."""
        async with self.connection(workspace) as client:
            return await client.call_tool_mcp(name, arguments)


def text(result: CallToolResult) -> str:
    """Give the words of a result."""
    return " ".join(part.text for part in result.content if part.type == "text")


# -- telling ---------------------------------------------------------------------------------------


def chapter(title: str) -> None:
    """Begin a step of the story."""
    console.print(f"\n[bold cyan]{title}[/]")


def say(line: str) -> None:
    """Tell what happened."""
    console.print(f"  {line}", markup=False)


def show(rows: list[dict[str, object]]) -> None:
    """Show the rows beside what happened."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = ("workspace_id", "incarnation", "desired", "phase", "reason", "external_id")
    for column in columns:
        table.add_column(column, style="dim", header_style="dim")
    for row in rows:
        table.add_row(*(str(row[column] or "-") for column in columns))
    console.print(table)


async def until(what: str, happens: Callable[[], bool]) -> None:
    """Wait until something happens."""
    started = time.monotonic()
    while not happens():
        check(time.monotonic() - started < PATIENCE, f"waited {PATIENCE:.0f} s for: {what}")
        await asyncio.sleep(0.2)


# -- the story -------------------------------------------------------------------------------------


@dataclass
class Story:
    """The steps, in order."""

    acme: Acme
    host: Host
    rows: Rows

    async def tell(self) -> None:
        """Play everything."""
        await self.install("ws_berlin")
        await self.use("ws_berlin")
        await self.restart("ws_berlin")
        await self.undo("ws_berlin")
        await self.outage("ws_lisbon")
        await self.uninstall("ws_berlin", "ws_lisbon")

    def ids(self) -> list[str]:
        """Give the ids of what exists at Acme."""
        return [str(found["id"]) for found in self.acme.tenancies()]

    async def ready_at_acme(self, workspace: str) -> dict[str, object]:
        """Wait for a workspace's row to be ready and hold it against Acme's listing."""
        await until(f"{workspace} ready", lambda: self.rows.of(workspace)["phase"] == "ready")
        row = self.rows.of(workspace)
        ours = [a for a in self.acme.tenancies() if a["reference"] == row["idempotency_key"]]
        check(len(ours) == 1, f"Acme has {len(ours)} tenancies for {workspace}, not one")
        check(ours[0]["id"] == row["external_id"], "the row names another tenancy than Acme")
        return row

    async def install(self, workspace: str) -> None:
        """Install: ask twice at once, try too early, become ready."""
        chapter(f"1. The user installs the connector in {workspace}")
        say("The host calls ready twice, racing: once for the install, once for the reconnect.")
        say(f"Notice beside the install: {await self.host.install(workspace)!r}")
        early = await self.host.agent(workspace, "send_campaign", **CAMPAIGN)
        check(early.is_error, "a campaign went out before there was a tenancy")
        say(f"An agent is quicker than Acme and is told: {json.dumps(early.structured_content)}")
        row = await self.ready_at_acme(workspace)
        check(len(self.ids()) == 1, "two calls made two tenancies")
        say(f"The worker made one tenancy at Acme: {row['external_id']}")
        show(self.rows.read())

    async def use(self, workspace: str) -> None:
        """Send mail with the tenancy's own key."""
        chapter("2. The agent sends a campaign")
        sent = await self.host.agent(workspace, "send_campaign", **CAMPAIGN)
        check(not sent.is_error, f"the campaign failed: {text(sent)}")
        say(text(sent))
        mail = self.acme.mail(str(self.rows.of(workspace)["external_id"]))
        check(len(mail) == 2, f"Acme sent {len(mail)} mails, not two")  # noqa: PLR2004
        say(f"Acme's own log has {len(mail)} mails, the last to {mail[-1]['to']}.")

    async def restart(self, workspace: str) -> None:
        """Come back after a host restart: nothing may change."""
        chapter("3. The host restarts and says ready again (resume)")
        before = self.ids()
        say(f"The server answers: {await self.host.tell(workspace, 'ready', reason='resume')!r}")
        check(self.ids() == before, "a resume changed what exists at Acme")
        say("Nothing changed at Acme.")

    async def undo(self, workspace: str) -> None:
        """Uninstall and think better of it within the grace."""
        chapter(f"4. The user uninstalls, and reinstalls within the grace of {GRACE:.0f} s")
        for _ in range(TRIES):
            before, asked = self.ids(), time.monotonic()
            say(f"removing: {await self.host.tell(workspace, 'removing')!r}")
            rows = self.rows.read()
            say(f"ready: {await self.host.install(workspace)!r}")
            if time.monotonic() - asked < GRACE:
                break
            say("This machine took longer than the grace. Once more:")
            await self.ready_at_acme(workspace)
        else:
            raise StepError(f"this machine is too slow for a grace of {GRACE:.0f} s")
        check(rows[0]["phase"] == "release_pending", "no release is pending")
        show(rows)
        await asyncio.sleep(max(0.0, asked + GRACE + 2 - time.monotonic()))
        await self.ready_at_acme(workspace)
        check(self.ids() == before, "the undo cost a tenancy")
        say("The grace is over and the same tenancy is still there.")
        show(self.rows.read())

    async def outage(self, workspace: str) -> None:
        """Install while Acme is down: nobody has to mend anything on our side."""
        chapter(f"5. Acme is down while another user installs, in {workspace}")
        self.acme.misbehave("outage", seconds=2)
        say(f"Notice: {await self.host.install(workspace)!r}")
        await until("the outage noticed", lambda: self.rows.of(workspace)["last_error"] is not None)
        row = self.rows.of(workspace)
        say(f"The row waits: {row['phase']}, {row['reason']} ({row['last_error']})")
        self.acme.behave()
        check(len(self.ids()) == 1, "something was made while Acme was down")
        say("Acme is back. Nobody touches anything ...")
        row = await self.ready_at_acme(workspace)
        check(len(self.ids()) == 2, "the outage cost a tenancy or made one too many")  # noqa: PLR2004
        say(f"... and the tenancy is there: {row['external_id']}")
        show(self.rows.read())

    async def uninstall(self, *workspaces: str) -> None:
        """Uninstall for good: after the grace everything is gone at Acme."""
        chapter("6. Both users uninstall for good")
        asked = time.monotonic()
        for workspace in workspaces:
            say(f"removing {workspace}: {await self.host.tell(workspace, 'removing')!r}")
        await until("Acme to be empty", lambda: not self.ids())
        took = time.monotonic() - asked
        check(took >= GRACE, "released before the grace was over")
        say(f"{took:.0f} s later Acme lists nothing of ours.")
        await until(
            "released rows", lambda: {row["phase"] for row in self.rows.read()} == {"released"}
        )
        late = await self.host.agent(workspaces[0], "send_campaign", **CAMPAIGN)
        check(late.is_error and not self.ids(), "a tool call brought a released tenancy back")
        say(f"A late agent is told: {text(late)}")
        show(self.rows.read())


CAMPAIGN: Final[Mapping[str, object]] = {
    "subject": "Spring",
    "body": "It is here.",
    "recipients": ["ada@example.com", "grace@example.com"],
}


# -- setting the scene -----------------------------------------------------------------------------


@contextmanager
def scene(folder: Path) -> Iterator[Story]:
    """Start everything, and end it whatever happens."""
    keys = folder / "secrets"
    url = os.environ.get("DEMO_DATABASE_URL") or f"sqlite:///{folder / 'rows.db'}"
    with ExitStack() as stack:
        started = Processes(folder, stack)
        if not url.startswith("sqlite"):
            command = [tool("nimble-reconcile"), "migrate", "--database-url", url]
            subprocess.run(command, check=True, env=inherited())  # noqa: S603  # our own program
        service = serving(folder / "acme.db", ACME_PROVISIONING_SECONDS="1.5")
        acme = stack.enter_context(service)
        port = free_port()
        shared = {
            "ACME_URL": acme.url,
            "ACME_SECRETS_DIR": str(keys),
            "NIMBLE_DATABASE_URL": url,
        }
        started.start("server", sys.executable, "server.py", "--port", str(port), **shared)
        worker = (tool("nimble-reconcile"), "run", "vendor:AcmeVendor", "--grace", f"{GRACE}s")
        started.start("worker", *worker, **shared, ACME_ADMIN_TOKEN=ADMIN_TOKEN)
        wait_for_port(port)
        say(f"Acme's API      {acme.url}, with a database of its own")
        say(f"MCP server      http://127.0.0.1:{port}/mcp, without Acme's admin token")
        say("Worker          nimble-reconcile, the only one that has it")
        say(f"Rows            {'SQLite' if url.startswith('sqlite') else 'PostgreSQL'}")
        say(f"Logs            {folder}")
        yield Story(acme, Host(f"http://127.0.0.1:{port}/mcp"), Rows(url))


def wait_for_port(port: int) -> None:
    """Wait until the server listens."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise StepError("the MCP server did not start; see server.log")


def main() -> int:
    """Play the demo; give its exit code."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"acme-demo-{uuid4().hex[:6]}-"))
    try:
        with scene(folder) as story:
            asyncio.run(story.tell())
    except (StepError, McpError, httpx2.HTTPError, subprocess.CalledProcessError) as error:
        console.print(f"\n[bold red]Not as it should be:[/] {error}\nLogs are in {folder}")
        return 1
    console.print(f"\n[bold green]All as it should be[/], in {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A host's voice over MCP, and the server process it speaks to, which may be killed at any time."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from chaos.scene import PROCESSES, CallFailedError
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from nimble_lifecycle.protocol import Event

LIMIT = 15.0
"""Seconds for a call over the wire, three of which are the server's; a machine may be slow."""

TOOLS = {Event.READY: "workspace_ready", Event.REMOVING: "workspace_removing"}


class Server:
    """The server half as a process on a port of its own; `start` also starts it again."""

    def __init__(self, port: int, folder: Path, environment: Mapping[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.wishes = folder / "wishes.json"
        self.wishes.write_text("{}")
        self._command = [sys.executable, str(PROCESSES / "server.py"), str(port)]
        self._environment = {**environment, "CHAOS_WISHES": str(self.wishes)}
        self._log = folder / "server.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=PROCESSES,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()


class Wire:
    """Says things to a server as hosts do; usable from many threads."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, event: Event, from_name: str) -> None:
        if event is Event.READY:
            self._wish(name, from_name)
        try:
            failed = asyncio.run(self._call(name, event))
        except Exception as error:  # whatever a client raises: the call was not acknowledged
            raise CallFailedError from error
        if failed:
            raise CallFailedError

    def _wish(self, name: str, from_name: str) -> None:
        """Let the server find what the workspace chose, whole at any time."""
        with self._lock:
            self._names[name] = from_name
            draft = self._server.wishes.with_suffix(".draft")
            draft.write_text(json.dumps(self._names))
            draft.replace(self._server.wishes)

    async def _call(self, name: str, event: Event) -> bool:
        transport = StreamableHttpTransport(self._server.url, headers={"x-workspace-id": name})
        async with asyncio.timeout(LIMIT), Client(transport) as client:
            return bool((await client.call_tool_mcp(TOOLS[event], {})).is_error)

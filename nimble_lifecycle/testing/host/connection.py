"""One connection of a host to a server: in memory, over stdio or over HTTP, in either era."""

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import isawaitable
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import httpx2
from fastmcp import Client, FastMCP
from fastmcp.client.transports import ClientTransport, StdioTransport, StreamableHttpTransport
from fastmcp.client.transports.memory import FastMCPTransport
from mcp import MCPError
from mcp.server import MCPServer
from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION, Implementation

from nimble_lifecycle.core.identity import PROCESS_VARIABLE, workspace_of_process
from nimble_lifecycle.errors import EraNotSpoken, NotConnected
from nimble_lifecycle.manifest.block import Server

Target: TypeAlias = Server | ClientTransport | str | Path | Sequence[str]
"""A server object, an http(s) address, a command or script for stdio, or a client transport."""

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""An access token, or a function that mints one."""

TROUBLES: Final = (MCPError, httpx2.HTTPError, OSError, RuntimeError, ValueError, EOFError)
"""What a client raises where a server refuses, breaks the protocol, or is not there."""
LOST: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)

OTHER_ERA: Final = (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION)
"""Codes of a server's answer to the first request of an era that it does not know."""

_UNAUTHORIZED: Final = 401
_SCRIPTS: Final = {".py": sys.executable, ".js": "node", ".mjs": "node"}


class Era(StrEnum):
    """The two eras of the protocol, by the newest revision of each."""

    HANDSHAKE = "2025-11-25"
    """`initialize`; a server may answer with an older revision."""
    DISCOVER = "2026-07-28"
    """`server/discover`."""


@dataclass
class Caller:
    """Who a host says it calls for; None leaves out what names it."""

    workspace: str | None = None
    tenant: str | None = None
    token: Token | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    refused: int | None = None
    """Status of the last HTTP answer where that was no success: the client keeps it to itself."""

    def edge_headers(self) -> dict[str, str]:
        """Give the headers of a fleet edge, and whatever else goes with each request."""
        named = {"x-workspace-id": self.workspace, "x-tenant-id": self.tenant}
        edge = {name: value for name, value in named.items() if value is not None}
        return {**edge, **self.headers}

    def environment(self) -> dict[str, str]:
        """Give the environment of a process that serves this one workspace."""
        workspace = {} if self.workspace is None else {PROCESS_VARIABLE: self.workspace}
        return {**os.environ, **workspace, **self.env}


class Bearer(httpx2.Auth):
    """Sends the caller's token of the moment, and mints another where it is refused as expired."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._minted: str | None = None

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request, twice where the first answer is 401 and tokens can be minted."""
        token = await self._token()
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == _UNAUTHORIZED and callable(self._caller.token):
            self._minted = None
            request.headers["authorization"] = f"Bearer {await self._token()}"
            response = yield request
        self._caller.refused = None if response.is_success else response.status_code

    async def _token(self) -> str | None:
        token = self._caller.token
        if token is None or isinstance(token, str):
            return token
        if self._minted is None:
            made = token()
            self._minted = await made if isawaitable(made) else made
        return self._minted


def transport_to(target: Target, caller: Caller) -> ClientTransport:
    """Make the way to a target; a client transport carries its own headers and environment."""
    match target:
        case ClientTransport():
            return target
        case FastMCP() | MCPServer():
            return FastMCPTransport(target)
        case str() if target.startswith(("http://", "https://")):
            return StreamableHttpTransport(target, caller.edge_headers(), Bearer(caller))
        case str() | Path():
            program = _SCRIPTS.get(Path(target).suffix)
            command = [str(target)] if program is None else [program, str(target)]
        case _:
            command = list(target)
    return StdioTransport(
        command[0],
        command[1:],
        env=caller.environment(),
        keep_alive=False,
        log_file=sys.__stderr__,  # the process's own: one that a test has replaced is no file
    )


@asynccontextmanager
async def process_workspace(target: Target, caller: Caller) -> AsyncGenerator[None]:
    """Name the workspace of a server that runs in this process, where nobody named it yet.

    Raises NotConnected where this process already serves another workspace.
    """
    here = workspace_of_process()
    in_memory = isinstance(target, (FastMCP, MCPServer, FastMCPTransport))
    if not in_memory or caller.workspace in (None, here):
        yield
        return
    if here is not None:
        words = (
            f"a server in memory has the workspace of its process, and {PROCESS_VARIABLE} is"
            f" {here!r}: serve {caller.workspace!r} over HTTP, or in a process of its own"
        )
        raise NotConnected(words)
    os.environ[PROCESS_VARIABLE] = str(caller.workspace)
    try:
        yield
    finally:
        del os.environ[PROCESS_VARIABLE]


async def connected(
    transport: ClientTransport,
    era: Era,
    limit: float,
    caller: Caller,
    on_message: Callable[[object], None],
) -> Client[ClientTransport]:
    """Open a connection in an era and wait `limit` seconds for it; the caller closes it.

    Raises EraNotSpoken where the server answers in the other era only, and NotConnected where it
    does not answer at all.
    """

    async def handle(message: object) -> None:
        on_message(message)

    client = Client(
        transport,
        mode="auto" if era is Era.DISCOVER else "legacy",
        init_timeout=limit,
        client_info=Implementation(name="nimble-lifecycle", version="1"),
        message_handler=handle,
    )
    try:
        await client.__aenter__()  # type: ignore[no-untyped-call]
    except (*TROUBLES, *LOST) as error:
        if isinstance(error, MCPError) and error.code in OTHER_ERA:
            words = f"the server does not speak {era}: {words_of(error, caller)}"
            raise EraNotSpoken(words) from error
        late = f"it did not answer within {limit:g} s" if timed_out(error) else None
        words = f"the server cannot be reached: {late or words_of(error, caller)}"
        raise NotConnected(words) from error
    spoken = client.protocol_version
    if era is Era.DISCOVER and spoken != era:
        await closed(client)
        raise EraNotSpoken(f"the server does not speak {era}, only {spoken}")
    return client


async def closed(client: Client[ClientTransport]) -> None:
    """Close a connection, whatever still waits on it."""
    await client.close()  # type: ignore[no-untyped-call]


def timed_out(error: BaseException | None) -> bool:
    """Whether a time limit is what an error comes from: the client wraps it into others."""
    while error is not None and not isinstance(error, TimeoutError):
        error = error.__cause__ or error.__context__
    return error is not None


def words_of(error: BaseException, caller: Caller) -> str:
    """Give the message of an error in one line, with the status of HTTP where that was refused."""
    said = error.message if isinstance(error, MCPError) else str(error)
    words = " ".join(said.split()) or type(error).__name__
    return words if caller.refused is None else f"HTTP {caller.refused}: {words}"

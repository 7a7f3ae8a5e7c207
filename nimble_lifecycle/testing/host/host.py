"""A host as a test double: it installs, resumes and removes, and misbehaves where it is told to."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from fastmcp import Client, FastMCP
from fastmcp.client.transports import ClientTransport
from mcp import MCPError
from mcp.server import MCPServer
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolResult,
    TextContent,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from nimble_lifecycle.errors import NotConnected
from nimble_lifecycle.manifest.block import find_handlers, listing_of
from nimble_lifecycle.manifest.document import read_document
from nimble_lifecycle.protocol import HOST_ID, HOST_VERSION, LIFECYCLE_ID, Event, Json, Reason
from nimble_lifecycle.testing.host.connection import (
    LOST,
    TROUBLES,
    Caller,
    Era,
    Target,
    Token,
    closed,
    connected,
    process_workspace,
    transport_to,
    words_of,
)
from nimble_lifecycle.testing.host.handlers import Generation, Handler, Handlers, find

NOTICE: Final = 500
"""Characters of the `install` call's text that people see."""

REMOVING_LIMIT: Final = 5.0
"""Seconds a host waits for `removing`, which it never repeats."""

Block: TypeAlias = Mapping[str, Json] | Path
"""The host block of a catalog entry, or the manifest it stands in."""


class Failure(StrEnum):
    """Why a call counts as failed. To a host they are all the same."""

    TOOL = "tool error"
    PROTOCOL = "protocol error"
    TIMED_OUT = "timed out"
    DISCONNECTED = "disconnected"


_FAILURES: Final = {
    CONNECTION_CLOSED: Failure.DISCONNECTED,
    REQUEST_TIMEOUT: Failure.TIMED_OUT,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a handler and its outcome. `text` is the answer's, or says what went wrong."""

    event: Event
    tool: str
    arguments: Mapping[str, Json]
    text: str
    seconds: float
    failure: Failure | None = None

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
        return self.failure is not None


@dataclass(frozen=True, slots=True)
class Installed:
    """What an install came to.

    `notice` is what people see beside the confirmation: the text of the `install` call, cut at 500
    characters, or None where there was none. `warnings` are the handlers the host rejected.
    """

    notice: str | None
    warnings: Sequence[str]
    calls: Sequence[Call]

    @property
    def ok(self) -> bool:
        """Whether `ready` got through at least once; where not, a host repeats it on reconnect."""
        return any(not call.is_error for call in self.calls)


class Misbehaviour(StrEnum):
    """What may happen to a call on its way."""

    DUPLICATED = "duplicated"
    """It is delivered twice at once; the host sees the first answer."""
    LOST = "lost"
    """It never reaches the server; the host sees a time-out."""
    HELD_BACK = "held back"
    """It reaches the server when `deliver` says so; the host sees a time-out."""
    GIVEN_UP = "given up"
    """The host gives up waiting in mid-call, and says that it is cancelled."""
    CUT_OFF = "cut off"
    """The connection goes away in mid-call."""


class Host:
    """A host of one generation, for one workspace, that speaks one era of the protocol.

    `target` is a FastMCP server (or one of the SDK), an http(s) address, a command or script that
    speaks stdio, or a FastMCP client transport. Entering it connects and reads the tools; it calls
    nothing by itself.

    `block` is the host block of the catalog entry, or the path of the manifest that has it; without
    one it is what `nimble-manifest write` would make for a server object, and nothing for others.
    `workspace` and `tenant` go where hosts put them: headers of the edge over HTTP, and
    NB_WORKSPACE_ID for a process (in memory: for this one, which can serve only one workspace at a
    time). `token` is an access token or a function that mints one, asked again after a 401;
    assign to it to rotate. `extra` are keys that something in between adds to the arguments of each
    call. `timeout` is in seconds, for connecting and for `ready`.

    Raises NotConnected, and ConfigurationError for a manifest that cannot be read.
    """

    def __init__(
        self,
        target: Target,
        *,
        generation: Generation | str = Generation.C,
        era: Era | str = Era.DISCOVER,
        block: Block | None = None,
        workspace: str | None = None,
        tenant: str | None = None,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        extra: Mapping[str, Json] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.generation = Generation(generation)
        self.era = Era(era)
        self.handlers = Handlers(listed=False)
        """What was found when the tools were last read."""
        self.extra: Mapping[str, Json] = extra or {}
        self.list_changes = 0
        """Notifications `tools/list_changed` that came."""
        self.strays: list[str] = []
        """What came that is no message of the protocol, such as a `print` on stdout."""
        self._target = target
        self._given_block = block
        self._block: Mapping[str, Json] = {}
        self._caller = Caller(workspace, tenant, token, headers or {}, env or {})
        self._timeout = timeout
        self._client: Client[ClientTransport] | None = None
        self._was_ready = False
        self._misbehaviour: Misbehaviour | None = None
        self._after = 0.0
        self._held: list[tuple[Handler, dict[str, Json]]] = []
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._block = await self._read_block()
        await self._exit.enter_async_context(process_workspace(self._target, self._caller))
        try:
            await self._connect()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.disconnect()
        await self._exit.aclose()

    # -- what a host does --------------------------------------------------------------------------

    async def install(self, first: Reason = Reason.INSTALL) -> Installed:
        """Say `ready` twice at once, as an install and as a resume; `first` is sent first.

        A connector with an interactive sign-in gets no `install`: for that one call `resume`.
        """
        await self._connection()
        handler = self.handlers.ready
        if handler is None:
            return Installed(None, self.handlers.warnings, ())
        reasons = sorted(Reason, key=lambda reason: reason is not first)
        calls = await asyncio.gather(*(self._ready(handler, reason) for reason in reasons))
        installed = calls[reasons.index(Reason.INSTALL)]
        notice = None if installed.is_error else installed.text[:NOTICE] or None
        return Installed(notice, self.handlers.warnings, calls)

    async def resume(self) -> Call | None:
        """Say `ready` as on a reconnect; None where the host found no handler."""
        await self._connection()
        handler = self.handlers.ready
        return None if handler is None else await self._ready(handler, Reason.RESUME)

    async def restart(self, attempts: int = 3) -> list[Call]:
        """Come back as a new process: reconnect and say `ready` until it succeeds once.

        A real host has no limit; here `attempts` is one.
        """
        calls: list[Call] = []
        while len(calls) < attempts:
            await self.disconnect()
            call = await self.resume()
            if call is None:
                break
            calls.append(call)
            if not call.is_error:
                break
        return calls

    async def list_changed(self) -> Call | None:
        """React to `tools/list_changed`: read the tools again, and repeat a `ready` that failed."""
        await self._read_handlers(await self._connection())
        return None if self._was_ready else await self.resume()

    async def remove(self) -> Call | None:
        """Say `removing` once, wait for 5 seconds at most, and disconnect.

        None where the host found no handler. Afterwards the host may install again.
        """
        await self._connection()
        handler = self.handlers.removing
        call = None
        if handler is not None:
            call = await self._say(handler, {}, REMOVING_LIMIT)
        await self.disconnect()
        return call

    async def disconnect(self) -> None:
        """Go away; whatever the host does next connects anew."""
        client, self._client = self._client, None
        if client is not None:
            await closed(client)

    # -- what hosts should not do, and do ----------------------------------------------------------

    async def call(
        self,
        event: Event | str,
        arguments: Mapping[str, Json] | None = None,
        *,
        limit: float | None = None,
    ) -> Call:
        """Call a handler with just these arguments, and `extra`; wait `limit` seconds.

        Raises NotConnected where the host found no such handler.
        """
        await self._connection()
        handler = self.handlers.of(Event(event))
        if handler is None:
            why = "; ".join(self.handlers.warnings) or self._where()
            raise NotConnected(f"a host of generation {self.generation} calls no {event}: {why}")
        wait = self._timeout if limit is None else limit
        return await self._say(handler, dict(arguments or {}), wait)

    async def burst(self, event: Event | str, times: int) -> list[Call]:
        """Call a handler many times at once, as a host does that has lost count."""
        await self._connection()
        return await asyncio.gather(*(self.call(event) for _ in range(times)))

    @contextmanager
    def misbehaving(self, how: Misbehaviour | str, after: float = 0.05) -> Iterator[None]:
        """Let this happen to each call in the block; `after` says when mid-call is, in seconds."""
        before = self._misbehaviour, self._after
        self._misbehaviour, self._after = Misbehaviour(how), after
        try:
            yield
        finally:
            self._misbehaviour, self._after = before

    async def deliver(self) -> list[Call]:
        """Deliver what was held back, the last first; the host knows nothing of the answers."""
        held, self._held = self._held, []
        client = await self._connection()
        return [
            await self._deliver(client, handler, arguments, self._timeout)
            for handler, arguments in reversed(held)
        ]

    @property
    def token(self) -> Token | None:
        """The access token, or what mints it; a new one goes with the next request."""
        return self._caller.token

    @token.setter
    def token(self, token: Token | None) -> None:
        self._caller.token = token

    @property
    def protocol_version(self) -> str | None:
        """The revision that was negotiated; None without a connection."""
        return None if self._client is None else self._client.protocol_version

    @property
    def refused(self) -> int | None:
        """Status of the last HTTP answer where that was no success."""
        return self._caller.refused

    def _where(self) -> str:
        if not self.handlers.listed:
            return "the server lists no tools"
        if self.handlers.from_wire:
            return "the server does not advertise the extension, or marks no tool"
        return "the block names none"

    # -- connections -------------------------------------------------------------------------------

    async def _connection(self) -> Client[ClientTransport]:
        if self._client is not None and self._client.is_connected():
            return self._client
        await self.disconnect()
        return await self._connect()

    async def _connect(self) -> Client[ClientTransport]:
        transport = transport_to(self._target, self._caller)
        client = await connected(transport, self.era, self._timeout, self._caller, self._on_message)
        self._client = client
        self._was_ready = False
        try:
            async with asyncio.timeout(self._timeout):
                await self._read_handlers(client)
        except TimeoutError as error:
            await self.disconnect()
            words = f"the server does not list its tools within {self._timeout:g} s"
            raise NotConnected(words) from error
        except (*TROUBLES, *LOST) as error:
            await self.disconnect()
            words = f"the server does not list its tools: {words_of(error, self._caller)}"
            raise NotConnected(words) from error
        return client

    def _on_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.list_changes += 1
        elif isinstance(message, Exception):
            self.strays.append(_stray(message))

    async def _read_handlers(self, client: Client[ClientTransport]) -> None:
        capabilities = client.server_capabilities
        extensions = (capabilities.extensions if capabilities else None) or {}
        tools = await client.list_tools()
        advertised = LIFECYCLE_ID in extensions
        self.handlers = find(self.generation, tools, self._block, advertised=advertised)

    async def _read_block(self) -> Mapping[str, Json]:
        match self._given_block:
            case Path() as path:
                meta = read_document(path).content.get("_meta")
                block = meta.get(HOST_ID) if isinstance(meta, Mapping) else None
                return block if isinstance(block, Mapping) else {}
            case None if isinstance(self._target, (FastMCP, MCPServer)):
                names = find_handlers(await listing_of(self._target)).names
                lifecycle: dict[str, Json] = {
                    event.block_key: name for event, name in names.items()
                }
                return {"host_version": HOST_VERSION, "lifecycle": lifecycle}
            case block:
                return block or {}

    # -- calls -------------------------------------------------------------------------------------

    async def _ready(self, handler: Handler, reason: Reason) -> Call:
        arguments: dict[str, Json] = {"reason": reason.value} if handler.sends_reason else {}
        call = await self._say(handler, arguments, self._timeout)
        self._was_ready = self._was_ready or not call.is_error
        return call

    async def _say(self, handler: Handler, arguments: dict[str, Json], limit: float) -> Call:
        """Call a handler, with whatever happens to the call on its way."""
        arguments = {**arguments, **self.extra}
        client = await self._connection()
        deliver = partial(self._deliver, client, handler, arguments)
        match self._misbehaviour:
            case Misbehaviour.DUPLICATED:
                return (await asyncio.gather(deliver(limit), deliver(limit)))[0]
            case Misbehaviour.GIVEN_UP:
                return await deliver(self._after)
            case Misbehaviour.CUT_OFF:
                running = asyncio.ensure_future(deliver(limit))
                await asyncio.wait([running], timeout=self._after)
                await self.disconnect()
                return await running
            case Misbehaviour.LOST | Misbehaviour.HELD_BACK as how:
                if how is Misbehaviour.HELD_BACK:
                    self._held.append((handler, arguments))
                return Call(handler.event, handler.tool, arguments, "", limit, Failure.TIMED_OUT)
        return await deliver(limit)

    async def _deliver(
        self,
        client: Client[ClientTransport],
        handler: Handler,
        arguments: dict[str, Json],
        limit: float,
    ) -> Call:
        """Call a handler and wait for its answer for `limit` seconds."""
        started = time.monotonic()
        failure: Failure | None
        try:
            result = await client.call_tool_mcp(handler.tool, arguments, timeout=limit)
        except MCPError as error:
            text = words_of(error, self._caller)
            failure = _FAILURES.get(error.code, Failure.PROTOCOL)
        except (*TROUBLES, *LOST) as error:
            text, failure = words_of(error, self._caller), Failure.DISCONNECTED
        else:
            text, failure = _text(result), Failure.TOOL if result.is_error else None
        seconds = time.monotonic() - started
        return Call(handler.event, handler.tool, arguments, text, seconds, failure)


def _text(result: CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))


def _stray(error: Exception) -> str:
    """Give the text that could not be read as a message."""
    text = error.errors()[0]["input"] if isinstance(error, ValidationError) else error
    return str(text)

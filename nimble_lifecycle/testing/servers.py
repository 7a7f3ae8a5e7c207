"""What the hosts of each generation would do with a server, in either era of the protocol.

Each of them is played in turn, against the server as it is: installed, told the same twice, sent
what no schema declares, and removed.
"""

import asyncio
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from secrets import token_hex
from typing import Final

from fastmcp import FastMCP
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import ToolResult
from mcp_types import CallToolRequestParams

from nimble_lifecycle.core.identity import workspace_of_process
from nimble_lifecycle.errors import EraNotSpoken, NotConnected, TargetError
from nimble_lifecycle.manifest.target import load_server
from nimble_lifecycle.mounted import servers_of
from nimble_lifecycle.protocol import Event, Json
from nimble_lifecycle.testing.host import (
    Block,
    Call,
    Era,
    Generation,
    Host,
    Installed,
    Target,
    Token,
)
from nimble_lifecycle.testing.host.host import NOTICE, REMOVING_LIMIT
from nimble_lifecycle.testing.report import Checked, Verdict

CHECKS: Final = (
    "connection",
    "handlers",
    "agreement",
    "install",
    "notice",
    "duplicates",
    "reasons",
    "removing",
    "removing-again",
    "ready-again",
    "extra-arguments",
    "heard",
    "frames",
)
"""Every check, in the order in which they are made."""

DUPLICATES: Final = 5
"""Calls of `ready` at once."""

EXTRA: Final[Mapping[str, Json]] = {"_gateway": {"trace": 1}, "workspace_id": "ws_other"}
"""Keys as gateways and clients add them."""

REASONS: Final[Sequence[Json]] = (None, "null", 7, "a word from the future")
"""What hosts and clients have sent as a reason, or will."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the hosts of one generation would do with a server in one era.

    `protocol` is the revision that was agreed on; `ready` and `removing` are the tools they call,
    None where they call none. `notice` is what people see after an install.
    """

    generation: Generation
    era: Era
    protocol: str | None
    ready: str | None
    removing: str | None
    notice: str | None
    checks: Sequence[Checked]

    @property
    def label(self) -> str:
        """Name the generation and the era in short."""
        return f"{self.generation} {self.era[:4]}"


@dataclass(frozen=True, slots=True)
class ServerReport:
    """All that was found out about one server."""

    target: str
    seen: Sequence[Seen]

    @property
    def failed(self) -> list[str]:
        """Name the checks that failed for any host."""
        found = {
            check.check
            for seen in self.seen
            for check in seen.checks
            if check.verdict is Verdict.FAILED
        }
        return [name for name in CHECKS if name in found]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def words(self) -> dict[Checked, list[str]]:
        """Give what there is to say, each with the hosts it is true of; successes are left out."""
        said: dict[Checked, list[str]] = {}
        for seen in self.seen:
            for check in seen.checks:
                if check.words and check.verdict is not Verdict.OK:
                    said.setdefault(check, []).append(seen.label)
        return said

    def as_json(self) -> dict[str, Json]:
        """Give the report as JSON."""
        return {"target": self.target, "ok": self.ok, "seen": [asdict(each) for each in self.seen]}

    def __str__(self) -> str:
        return "\n".join(f"{seen.label} {check}" for seen in self.seen for check in seen.checks)


def find_target(words: Sequence[str]) -> Target:
    """Give what the words of a command line name: a server, an address, or a command for stdio.

    Raises TargetError where they name nothing that can be imported or run.
    """
    match words:
        case []:
            raise TargetError("name a target: file.py:attr, module:attr, an address, or -- COMMAND")
        case [word] if word.startswith(("http://", "https://")):
            return word
        case [word] if ":" in word or word.endswith(".json"):
            return asyncio.run(load_server(word))
        case [word] if Path(word).is_file():
            return Path(word)
        case [program, *_] if shutil.which(program) is None:
            raise TargetError(f"{program} is neither module:attr nor a program that can be run")
    return list(words)


def usual_workspace(target: Target) -> str | None:
    """Give the workspace of a process nobody named one for; requests over HTTP carry their own."""
    if isinstance(target, str):
        return None
    return workspace_of_process() or "ws_check"


async def check_server(
    target: Target,
    *,
    block: Block | None = None,
    workspace: str | None = None,
    tenant: str | None = None,
    token: Token | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,  # noqa: ASYNC109  # of each call, not of this one
) -> ServerReport:
    """Play the hosts of all generations and eras against a server, and say what each would do.

    The arguments are those of `Host`. The server is used for real: rows are written, and the
    workspace is left as removed. Where no block is given, hosts that read it are not judged, save
    for a server object, whose block is the one `nimble-manifest` would write.

    Raises NotConnected where the server cannot be reached at all.
    """
    seen: list[Seen] = []
    for era, generation in product(Era, Generation):
        host = Host(
            target,
            generation=generation,
            era=era,
            block=block,
            workspace=workspace,
            tenant=tenant,
            token=token,
            headers=headers,
            timeout=timeout,
        )
        with redirect_stdout(sys.stderr), _listening(target) as heard:
            seen.append(await _seen(host, seen, heard, judged=block is not None))
    if not any(each.protocol for each in seen):
        answers = "" if host.refused is None else f"answers HTTP {host.refused} and "
        words = f"the server {answers}speaks neither {' nor '.join(Era)}: check the address"
        raise NotConnected(words)
    return ServerReport(_label(target), seen)


def _label(target: Target) -> str:
    if isinstance(target, (str, Path)):
        return str(target)
    return shlex.join(target) if isinstance(target, Sequence) else str(getattr(target, "name", ""))


async def _seen(
    host: Host, before: Sequence[Seen], heard: "_Heard | None", *, judged: bool
) -> Seen:
    """Play one host, and compare what it found with what those before it did."""
    checks: list[Checked] = []
    protocol: str | None = None
    installed: Installed | None = None
    try:
        async with host:
            protocol = host.protocol_version
            checks.append(Checked("connection", Verdict.OK, f"speaks {protocol}"))
            checks.append(_handlers(host, judged=judged))
            checks += _agreement(host, before)
            if host.handlers.ready is not None:
                installed = await host.install()
                checks += _install(installed)
                checks += [check async for check in _repeated(host)]
            if host.handlers.removing is not None:
                checks += [check async for check in _removed(host)]
            checks += await _with_extra(host)
            checks += await _said_twice(host, heard)
            await host.remove()
            checks.append(_frames(host))
    except EraNotSpoken as error:
        words = f"{error}: hosts fall back to the other era"
        checks.append(Checked("connection", Verdict.WARNING, words))
    except NotConnected as error:
        if not before:
            raise
        checks.append(Checked("connection", Verdict.FAILED, str(error)))
    return Seen(
        host.generation,
        host.era,
        protocol,
        _name(host, Event.READY),
        _name(host, Event.REMOVING),
        None if installed is None else installed.notice,
        checks,
    )


def _name(host: Host, event: Event) -> str | None:
    handler = host.handlers.of(event)
    return None if handler is None else handler.tool


# -- what is found ---------------------------------------------------------------------------------


def _handlers(host: Host, *, judged: bool) -> Checked:
    """Say what the host found, or why it calls nothing."""
    found = host.handlers
    missing = [event for event in Event if found.of(event) is None]
    if found.warnings:
        return Checked("handlers", Verdict.FAILED, "; ".join(found.warnings))
    if not found.listed:
        return Checked("handlers", Verdict.FAILED, "no tool is listed: hosts come back later")
    if len(missing) == len(Event) and not (found.from_wire or judged):
        return Checked("handlers", Verdict.NOT_CHECKED, "these hosts read the block: give it")
    if len(missing) == len(Event):
        return Checked("handlers", Verdict.FAILED, _NOTHING[found.from_wire])
    if missing:
        words = f"{missing[0]} is never said: no tool is there for it"
        return Checked("handlers", Verdict.WARNING, words)
    return Checked("handlers", Verdict.OK)


_NOTHING: Final = {
    True: "nothing is called: advertise ai.nimblebrain/lifecycle and mark a tool for each event",
    False: "nothing is called: the block names no tool",
}


def _agreement(host: Host, before: Sequence[Seen]) -> list[Checked]:
    """Compare what the wire and the block name, once both were read in this era."""
    wire = {event: _name(host, event) for event in Event}
    if host.generation is not Generation.C or not any(wire.values()):
        return []
    for seen in before:
        block = {Event.READY: seen.ready, Event.REMOVING: seen.removing}
        if seen.era is host.era and seen.generation is Generation.A and any(block.values()):
            differ = [event for event in Event if block[event] != wire[event]]
            return [_agreed(event, block[event], wire[event]) for event in differ[:1]] or [
                Checked("agreement", Verdict.OK)
            ]
    return []


def _agreed(event: Event, block: str | None, wire: str | None) -> Checked:
    words = f"for {event} the block names {block or 'nothing'}, and the wire {wire or 'nothing'}"
    return Checked("agreement", Verdict.FAILED, words)


# -- what is said ----------------------------------------------------------------------------------


def _install(installed: Installed) -> list[Checked]:
    notice = installed.notice
    if notice is None:
        seen = Checked("notice", Verdict.WARNING, "people see none beside the confirmation")
    elif len(notice) == NOTICE:
        seen = Checked("notice", Verdict.WARNING, f"it may be cut: people see {NOTICE} characters")
    else:
        seen = Checked("notice", Verdict.OK)
    said = "of the two calls of an install, which race,"
    return [_all_well("install", installed.calls, said), seen]


async def _repeated(host: Host) -> AsyncIterator[Checked]:
    """Say `ready` again, as hosts do that have lost count, or with a reason nobody knows."""
    calls = await host.burst(Event.READY, DUPLICATES)
    yield _all_well("duplicates", calls, f"of {DUPLICATES} calls at once")
    calls = [await host.call(Event.READY, {"reason": reason}) for reason in REASONS]
    yield _all_well("reasons", calls, "with a reason that is null or unknown")


async def _removed(host: Host) -> AsyncIterator[Checked]:
    """Say `removing` once and again, and `ready` after it."""
    call = await host.call(Event.REMOVING, limit=REMOVING_LIMIT)
    yield _all_well("removing", [call], f"within the {REMOVING_LIMIT:g} s that hosts wait")
    calls = [await host.call(Event.REMOVING, limit=REMOVING_LIMIT) for _ in range(2)]
    yield _all_well("removing-again", calls, "said again")
    if host.handlers.ready is not None:
        again = await host.resume()
        yield _all_well("ready-again", [again] if again else [], "after a removing")


async def _with_extra(host: Host) -> list[Checked]:
    """Call each handler with keys that no schema declares, as gateways and clients add them."""
    found = [event for event in Event if host.handlers.of(event) is not None]
    calls = [await host.call(event, EXTRA) for event in found]
    said = "with arguments that something in between has added"
    return [_all_well("extra-arguments", calls, said)] if calls else []


async def _said_twice(host: Host, heard: "_Heard | None") -> list[Checked]:
    """Say what was never said before, and the same again, and see that both were heard."""
    found = [each for each in (host.handlers.ready, host.handlers.removing) if each is not None]
    if heard is None or not found:
        return []
    for handler in found:
        news: Mapping[str, Json] = {"_once": token_hex(8)}
        first, again = [await heard.during(host, handler.event, news) for _ in range(2)]
        if again < first:
            words = (
                f"{handler.tool}, said the same again, is answered from a cache and not called, as"
                " for every install but the first: leave handlers out of what is cached"
            )
            return [Checked("heard", Verdict.FAILED, words)]
    return [Checked("heard", Verdict.OK)]


class _Heard(Middleware):
    """Counts the calls that get past whatever else stands before the tools of a server."""

    def __init__(self) -> None:
        self.calls = 0

    async def on_call_tool(
        self,
        context: MiddlewareContext[CallToolRequestParams],
        call_next: CallNext[CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        """Count one, and let it pass."""
        self.calls += 1
        return await call_next(context)

    async def during(self, host: Host, event: Event, arguments: Mapping[str, Json]) -> int:
        """Make a call and count how many servers of the tree let it through."""
        before = self.calls
        await host.call(event, arguments)
        return self.calls - before


@contextmanager
def _listening(target: Target) -> Iterator[_Heard | None]:
    """Listen behind the middleware of each server of a tree; None: what is not ours to open."""
    if not isinstance(target, FastMCP):
        yield None
        return
    heard, servers = _Heard(), list(servers_of(target))
    for server in servers:
        server.add_middleware(heard)
    try:
        yield heard
    finally:
        for server in servers:
            server.middleware.remove(heard)


def _frames(host: Host) -> Checked:
    """Say what came between the messages: on stdio nothing else may reach stdout."""
    if not host.strays:
        return Checked("frames", Verdict.OK)
    words = f"{host.strays[0]!r} is no message of the protocol: print to stderr, at import too"
    return Checked("frames", Verdict.FAILED, words)


def _all_well(name: str, calls: Sequence[Call], said: str) -> Checked:
    """Say of the first call that failed how it failed."""
    for call in calls:
        if call.failure is not None:
            words = f"{call.tool}, {said} {dict(call.arguments)}: {call.failure}, {call.text!r}"
            return Checked(name, Verdict.FAILED, words)
    return Checked(name, Verdict.OK)

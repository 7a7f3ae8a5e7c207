"""`nimble-lifecycle`: check what others wrote for this package.

Findings go to stdout, talk to stderr. Exit codes: 0 nothing found, 1 a finding, or something could
not be removed again, 2 wrong use.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

import nimble_lifecycle
from nimble_lifecycle.errors import ConfigurationError, NimbleError, TargetError
from nimble_lifecycle.protocol import Json
from nimble_lifecycle.reconciler.limits import LEASES_PER_LIMIT
from nimble_lifecycle.reconciler.redact import described, redacted
from nimble_lifecycle.reconciler.tables import WIDE, print_json, safe
from nimble_lifecycle.reconciler.target import load_vendor
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.settings import parse_duration
from nimble_lifecycle.stdout import data_to_stdout
from nimble_lifecycle.target import load_target
from nimble_lifecycle.testing.conformance import Adapter
from nimble_lifecycle.testing.conformance import check_vendor as checked
from nimble_lifecycle.testing.report import Checked, Report, Verdict
from nimble_lifecycle.testing.sandbox import Sandbox

if TYPE_CHECKING:
    from nimble_lifecycle.testing.servers import ServerReport

DONE, FINDING, WRONG_USE = 0, 1, 2

LONG: Final = 5.0
"""Seconds of work after which a log is told how far it is."""

STUCK: Final = 2.0
"""Seconds, beyond a lease, after which an event loop that stands still is given up."""

_STYLES: Final[Mapping[Verdict, str]] = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.FAILED: "bold red",
    Verdict.NOT_CHECKED: "dim",
}

_SHORT: Final[Mapping[Verdict, str]] = {
    Verdict.OK: "ok",
    Verdict.WARNING: "warning",
    Verdict.FAILED: "FAILED",
    Verdict.NOT_CHECKED: "-",
}

app = App(
    name="nimble-lifecycle",
    help="Check what is written for nimble-lifecycle.",
    version=nimble_lifecycle.__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # whoever interrupts is told so, as of any other end
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    with data_to_stdout():
        code = _guarded(lambda: app(arguments, exit_on_error=False, print_error=False))
    sys.exit(code)


def _guarded(command: Callable[[], int | None]) -> int:
    try:
        code = command() or DONE
        sys.stdout.flush()
    except (CycloptsError, ConfigurationError) as error:
        return _failed(str(error), WRONG_USE)
    except NimbleError as error:
        return _failed(str(error), FINDING)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINDING
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _failed("interrupted", FINDING)
    return code


@app.command(name="check-vendor")
def check_vendor(
    target: str,
    *,
    sandbox: str | None = None,
    params: str = "{}",
    changed_params: str | None = None,
    timeout: str = "5m",
    crowd: Annotated[int, Parameter(validator=Number(gte=1))] = 3,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Run an adapter through repeated calls, crash points and faults, against its own vendor.

    It makes some dozens of resources there and removes them again: give it a sandbox account or a
    double of the vendor, never production.

    Parameters
    ----------
    target
        The adapter, a Vendor class or instance: module:attr, also of the working directory, or
        file.py:attr. Of a class each worker that is played has an object of its own.
    sandbox
        The other view of its vendor, a nimble_lifecycle.testing.Sandbox class or instance. Without
        it some checks are not made.
    params
        A JSON object that fits the adapter's params_model.
    changed_params
        What the params of a ready tenancy are changed to (default: the same).
    timeout
        For one resource to be made or removed.
    crowd
        Resources that are there at once when the inventory is looked at; more than a page finds
        more.
    as_json
        The report as JSON on stdout.
    """
    vendor = load_vendor(target)
    given = _object("--params", params)
    changed = given if changed_params is None else _object("--changed-params", changed_params)
    check = partial(
        checked,
        _of_class(target, vendor),
        sandbox=None if sandbox is None else _sandbox(sandbox),
        params=given,
        changed_params=changed,
        timeout=_seconds(timeout),
        crowd=crowd,
    )
    show = partial(_shown, sys.stdout, print_as_json if as_json else print_table)
    with redirect_stdout(sys.stderr):  # whatever the adapter prints is talk
        report = asyncio.run(_watched(vendor, check, show))
    show(report)
    return DONE if report.ok else FINDING


@app.command(name="check-server")
def check_server(
    *target: str,
    manifest: Path | None = None,
    workspace: str | None = None,
    tenant: str | None = None,
    header: Annotated[Sequence[str], Parameter(negative=())] = (),
    timeout: str = "30s",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Play the hosts of each generation against a server, and say what each would do with it.

    The server is used for real: it is installed into a workspace and removed again, some dozens of
    times. Give it a database and a workspace of its own.

    Parameters
    ----------
    target
        The server: file.py:attr, module:attr, a fastmcp.json, an http(s) address, or, after `--`,
        the command that runs it over stdio, in whatever language.
    manifest
        The manifest or catalog entry whose block hosts read (default: what nimble-manifest would
        write for a server object, none for others).
    workspace
        The workspace to install into. Over HTTP it goes into the header x-workspace-id (default:
        no header), to a process as NB_WORKSPACE_ID (default: ws_check, or what is set).
    tenant
        Goes into the header x-tenant-id.
    header
        A header of each request, `Name: value`; for a token `Authorization: Bearer ...`.
    timeout
        For connecting, and for one call.
    as_json
        The report as JSON on stdout.
    """
    from nimble_lifecycle.testing import servers  # noqa: PLC0415  # loads FastMCP

    found = servers.find_target(target)
    report = asyncio.run(
        servers.check_server(
            found,
            block=manifest,
            workspace=workspace or servers.usual_workspace(found),
            tenant=tenant,
            headers=_headers(header),
            timeout=_seconds(timeout),
        )
    )
    if as_json:
        print_json(report.as_json())
    else:
        _print_seen(report)
    return DONE if report.ok else FINDING


# -- arguments -------------------------------------------------------------------------------------


def _of_class(target: str, vendor: Vendor) -> Adapter:
    """Give the class where that is what a target names: of one object there is no other."""
    named = type(vendor)
    return named if target.endswith(f":{named.__qualname__}") else vendor


def _sandbox(target: str) -> Sandbox:
    with redirect_stdout(sys.stderr):
        found = load_target(target)
        try:
            made = found() if isinstance(found, type) and issubclass(found, Sandbox) else found
        except ConfigurationError:
            raise
        except Exception as error:
            words = f"{target} cannot be made without arguments: {described(error)}"
            raise TargetError(words) from error
    if not isinstance(made, Sandbox):
        raise TargetError(f"{target} is no nimble_lifecycle.testing.Sandbox")
    return made


def _headers(lines: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ConfigurationError("--header must be 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def _object(option: str, text: str) -> dict[str, Json]:
    try:
        return TypeAdapter(dict[str, Json]).validate_json(text)
    except ValidationError:
        raise ConfigurationError(f"{option} must be a JSON object") from None


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigurationError(f"--timeout: {error}") from None


# -- the run ---------------------------------------------------------------------------------------


async def _watched(
    vendor: Vendor, check: Callable[..., Awaitable[Report]], show: Callable[[Report], None]
) -> Report:
    """Run the checks, say which one is on, and end the process where the event loop is lost."""
    patience = STUCK + LEASES_PER_LIMIT * vendor.time_limit.total_seconds()
    watchdog = _Watchdog(vendor.kind, patience, show)
    console = Console(stderr=True)
    told = time.monotonic()
    with console.status("") as status:

        def progress(done: Sequence[Checked], name: str) -> None:
            nonlocal told
            watchdog.done, watchdog.now = done, name
            line = f"{len(done)} checks done, now {name}"
            status.update(line)
            if not console.is_terminal and time.monotonic() - told > LONG:
                told = time.monotonic()
                _say(line)

        with watchdog:
            _cancel_on_signals()
            return await check(progress=progress)


def _cancel_on_signals() -> None:
    """Let what was made be removed first, also where a shell started us with SIGINT ignored."""
    task = asyncio.current_task()
    if task is not None:
        with suppress(NotImplementedError):  # Windows
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)


class _Watchdog:
    """A thread that ends the process once the event loop has stood still for `patience` seconds.

    An adapter that blocks the loop for good leaves no other way to say so.
    """

    def __init__(self, kind: str, patience: float, show: Callable[[Report], None]) -> None:
        self.done: Sequence[Checked] = ()
        self.now = ""
        self._kind = kind
        self._patience = patience
        self._show = show
        self._over = threading.Event()

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._over.wait(1.0):
            beat = threading.Event()
            loop.call_soon_threadsafe(beat.set)
            if not beat.wait(self._patience) and not self._over.is_set():
                self._give_up()

    def _give_up(self) -> None:
        words = (
            f"the adapter held the event loop for more than {self._patience:g} s during"
            f" {self.now}, and the run was given up: await what waits, or make it a plain def"
        )
        self._show(Report(self._kind, [*self.done, Checked("event-loop", Verdict.FAILED, words)]))
        _say("what was made could not be removed: look for it at the vendor")
        os._exit(FINDING)


# -- output ----------------------------------------------------------------------------------------


def _shown(stdout: TextIO, show: Callable[[Report], None], report: Report) -> None:
    """Show a report on stdout, also where talk is being kept off it."""
    with redirect_stdout(stdout):
        show(report)
    stdout.flush()


def print_as_json(report: Report) -> None:
    """Print the report as JSON."""
    print_json(report.as_json())


def print_table(report: Report) -> None:
    """Print one line or more for each check, and what was left behind."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    table = Table(box=None)
    for column in ("check", "verdict", "what is wrong, and what to do"):
        table.add_column(column, overflow="fold")
    for each in report.checks:
        verdict = Text(each.verdict, style=_STYLES[each.verdict])
        table.add_row(each.check, verdict, Text(safe(each.words)))
    console.print(table)
    for left in report.left_behind:
        console.print(Text(safe(f"left behind, remove it by hand: {left}")), soft_wrap=True)


def _print_seen(report: "ServerReport") -> None:
    """Print a column for each host, and below what is wrong with which."""
    from nimble_lifecycle.testing.servers import CHECKS  # noqa: PLC0415  # loads FastMCP

    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    console.print(Text(safe(report.target)), soft_wrap=True)
    table = Table(box=None)
    table.add_column("")
    for seen in report.seen:
        table.add_column(seen.label, overflow="fold")
    table.add_row("tool for ready", *(Text(safe(seen.ready or "-")) for seen in report.seen))
    table.add_row("tool for removing", *(Text(safe(seen.removing or "-")) for seen in report.seen))
    columns = [{check.check: check.verdict for check in seen.checks} for seen in report.seen]
    for name in CHECKS:
        verdicts = [column.get(name, Verdict.NOT_CHECKED) for column in columns]
        table.add_row(name, *(Text(_SHORT[each], style=_STYLES[each]) for each in verdicts))
    console.print(table)
    for check, labels in report.words().items():
        line = f"{check.check}, {check.verdict} ({', '.join(labels)}): {check.words}"
        console.print(Text(safe(line), style=_STYLES[check.verdict]), soft_wrap=True)
    for notice in dict.fromkeys(seen.notice for seen in report.seen if seen.notice):
        console.print(Text(safe(f"people see: {notice}")), soft_wrap=True)


def _failed(text: str, code: int) -> int:
    _say(redacted(" ".join(text.split())))
    return code


def _say(text: str) -> None:
    print(f"nimble-lifecycle: {text}", file=sys.stderr)  # noqa: T201

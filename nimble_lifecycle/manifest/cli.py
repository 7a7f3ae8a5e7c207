"""The command `nimble-manifest`: write the lifecycle block, or fail the build on a wrong one.

Findings go to stdout, one a line; everything else, what the server prints at import included, goes
to stderr. Exit codes: 0 done or in line, 1 findings, 2 wrong use.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from cyclopts import App
from fastmcp import FastMCP

from nimble_lifecycle import __version__
from nimble_lifecycle.errors import ConfigurationError, TargetError
from nimble_lifecycle.manifest.block import Handlers, find_handlers, listed_tools
from nimble_lifecycle.manifest.document import Document, read_document, write_text
from nimble_lifecycle.target import load_target

DONE, FINDINGS, WRONG_USE = 0, 1, 2
MANIFEST = Path("manifest.json")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with `arguments`, by default the process's own, and exit."""
    app = App(name="nimble-manifest", help=__doc__, version=__version__)
    app.command(write)
    app.command(check)
    try:
        app(arguments)
    except ConfigurationError as error:
        _say(f"nimble-manifest: {error}")
        sys.exit(WRONG_USE)


def write(target: str, /, *, manifest: Path = MANIFEST) -> int:
    """Write the names of the server's lifecycle handlers into a manifest.

    Nothing else in the file changes; where a host would refuse a handler, nothing at all.

    Parameters
    ----------
    target
        The FastMCP server: `module:attr` or `file.py:attr`.
    manifest
        The file to change.
    """
    handlers, document = _handlers(target), read_document(manifest)
    if findings := _refusals(manifest, handlers, document):
        return _report(findings)
    edits = document.edits(handlers.names)
    if edits:
        write_text(manifest, document.edited(edits))
    names = ", ".join(f"{event.block_key} {name}" for event, name in handlers.names.items())
    state = "written" if edits else "already in line"
    _say(f"{manifest}: {state} ({names or f'{target} marks no tool as a lifecycle handler'})")
    return DONE


def check(target: str, /, *, manifest: Path = MANIFEST) -> int:
    """Exit with 1 and one line per finding where a manifest is not what `write` would make it.

    Parameters
    ----------
    target
        The FastMCP server: `module:attr` or `file.py:attr`.
    manifest
        The file to look at; it is not changed.
    """
    handlers, document = _handlers(target), read_document(manifest)
    if findings := _refusals(manifest, handlers, document):
        return _report(findings)
    repair = f"run nimble-manifest write {target} --manifest {manifest}"
    return _report([f"{manifest}: {edit.why}; {repair}" for edit in document.edits(handlers.names)])


def _handlers(target: str) -> Handlers:
    """Read the handlers off a server without running it."""
    with redirect_stdout(sys.stderr):
        server = load_target(target)
        if not isinstance(server, FastMCP):
            raise TargetError(f"{target} is a {type(server).__name__}, not a FastMCP server")
        try:
            tools = asyncio.run(listed_tools(server))
        except Exception as error:  # providers and middleware of the author may raise anything
            raise TargetError(
                f"the tools of {target} cannot be listed: {type(error).__name__}: {error}"
            ) from error
    return find_handlers(tools)


def _refusals(manifest: Path, handlers: Handlers, document: Document) -> list[str]:
    return [*handlers.findings, *(f"{manifest}: {words}" for words in document.refusals())]


def _report(findings: Sequence[str]) -> int:
    sys.stdout.writelines(f"{finding}\n" for finding in findings)
    return FINDINGS if findings else DONE


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")

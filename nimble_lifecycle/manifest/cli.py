"""The command `nimble-manifest`: write the lifecycle block, or fail the build on a wrong one.

Findings go to stdout, one a line; everything else, what the server prints included, goes to stderr.
Exit codes: 0 done or in line, 1 findings, 2 wrong use.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from nimble_lifecycle import __version__
from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.manifest.block import find_handlers
from nimble_lifecycle.manifest.check import (
    Comparison,
    Finding,
    compare,
    refuse_no_version,
    repair,
)
from nimble_lifecycle.manifest.target import read_listing
from nimble_lifecycle.protocol import HOST_VERSION
from nimble_lifecycle.stdout import data_to_stdout

DONE, FINDINGS, WRONG_USE = 0, 1, 2
MANIFEST = Path("manifest.json")

AsJson = Annotated[bool, Parameter(name="--json", negative=())]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with `arguments`, by default the process's own, and exit."""
    app = App(name="nimble-manifest", help=__doc__, version=__version__)
    app.command(write)
    app.command(check)
    app.command(print_block, name="print")
    with data_to_stdout():
        try:
            app(arguments)
        except ConfigurationError as error:
            _say(f"nimble-manifest: {error}")
            sys.exit(WRONG_USE)


def write(
    target: str,
    /,
    *,
    manifest: Path = MANIFEST,
    host_version: str | None = None,
    entry: str | None = None,
    as_json: AsJson = False,
) -> int:
    """Write the names of the server's lifecycle handlers into a manifest.

    Nothing else in the file changes; where a host would refuse a handler, nothing at all.

    Parameters
    ----------
    target
        The server (FastMCP's, or an `MCPServer` of the SDK), or a function that makes it:
        `file.py:attr`, `module:attr`, or a fastmcp.json.
    manifest
        The file to change: an MCPB manifest.json, or a server.json or catalog entry (JSON, YAML).
    host_version
        Raise the block's host_version to this. One that is there is never lowered; where there is
        none, 1.0 is written.
    entry
        The name of the one server of a catalog (`servers`) that has several.
    as_json
        One JSON object on stdout.
    """
    found = compare(target, manifest, host_version, entry)
    if found.refusals:
        return _report(found.refusals, found, as_json=as_json)
    found.write()
    if as_json:
        return _report([], found, as_json=True)
    _say_state("written" if found.edits else "already in line", target, found)
    return DONE


def check(
    target: str,
    /,
    *,
    manifest: Path = MANIFEST,
    host_version: str | None = None,
    entry: str | None = None,
    as_json: AsJson = False,
    github: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Exit with 1 and one line per finding where a manifest is not what `write` would make it.

    Parameters
    ----------
    target
        The server (FastMCP's, or an `MCPServer` of the SDK), or a function that makes it:
        `file.py:attr`, `module:attr`, or a fastmcp.json.
    manifest
        The file to look at; it is not changed.
    host_version
        The lowest host_version the block must have.
    entry
        The name of the one server of a catalog (`servers`) that has several.
    as_json
        One JSON object on stdout.
    github
        Findings as annotations of GitHub Actions.
    """
    found = compare(target, manifest, host_version, entry)
    again = repair(target, manifest, host_version, entry)
    stale = [Finding(f"{edit.why}; run {again}", manifest) for edit in found.edits]
    findings = [*found.refusals, *stale]
    if not findings:
        _say_state("in line", target, found)
    return _report(findings, found, as_json=as_json, github=github)


def print_block(target: str, /, *, host_version: str = HOST_VERSION) -> int:
    """Print the block that a manifest of the server needs, as JSON.

    Parameters
    ----------
    target
        The server (FastMCP's, or an `MCPServer` of the SDK), or a function that makes it:
        `file.py:attr`, `module:attr`, or a fastmcp.json.
    host_version
        The block's host_version.
    """
    refuse_no_version(host_version)
    handlers = find_handlers(read_listing(target))
    if handlers.findings:
        sys.stderr.writelines(f"{finding}\n" for finding in handlers.findings)
        return FINDINGS
    lifecycle = {event.block_key: name for event, name in handlers.names.items()}
    _print_json({"host_version": host_version, "lifecycle": lifecycle})
    return DONE


def _say_state(state: str, target: str, found: Comparison) -> None:
    """Say what became of the file, and which handlers it names: a server may have none."""
    names = ", ".join(f"{event.block_key} {name}" for event, name in found.names.items())
    none = f"{target} marks no tool as a lifecycle handler: hosts will call nothing"
    _say(f"{found.manifest}: {state} ({names or none})")


def _report(
    findings: Sequence[Finding], found: Comparison, *, as_json: bool, github: bool = False
) -> int:
    if as_json:
        _print_json(
            {
                "manifest": str(found.manifest),
                "lifecycle": {event.block_key: name for event, name in found.names.items()},
                "findings": [
                    {"file": finding.file and str(finding.file), "message": finding.words}
                    for finding in findings
                ],
            }
        )
    else:
        written = _annotation if github else str
        sys.stdout.writelines(f"{written(finding)}\n" for finding in findings)
    return FINDINGS if findings else DONE


def _annotation(finding: Finding) -> str:
    """Write a finding as GitHub's workflow commands want it (their documentation, error)."""
    file = f" file={_escaped(str(finding.file), ',:')}" if finding.file else ""
    return f"::error{file}::{_escaped(finding.words)}"


def _escaped(text: str, also: str = "") -> str:
    for character in f"%\r\n{also}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _print_json(shown: object) -> None:
    sys.stdout.write(json.dumps(shown, indent=2) + "\n")


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")

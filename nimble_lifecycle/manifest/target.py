"""Finds the server whose tools a manifest names, without running it."""

import asyncio
import json
import sys
from collections.abc import Awaitable
from contextlib import redirect_stdout
from inspect import isroutine
from pathlib import Path
from typing import Literal

from fastmcp import FastMCP
from mcp.server import MCPServer
from pydantic import BaseModel, ValidationError

from nimble_lifecycle.errors import TargetError
from nimble_lifecycle.manifest.block import Listing, Server, listing_of
from nimble_lifecycle.target import load_module, load_target, one_line

USUAL_NAMES = ("mcp", "server", "app")
"""Where FastMCP looks for the server of a file that names none (fastmcp.json, entrypoint)."""


class _Source(BaseModel):
    """What we read of the `source` of a fastmcp.json (FastMCP documentation, configuration)."""

    type: Literal["filesystem"] = "filesystem"
    path: str
    entrypoint: str | None = None


class _Configuration(BaseModel):
    source: _Source


def read_listing(target: str) -> Listing:
    """List the tools of the server that `target` names.

    `target` is `module:attr`, `file.py:attr` or a fastmcp.json; what it names is a FastMCP server,
    an `MCPServer` of the official SDK, or a function, async or not, that makes one. Whatever the
    code of the target prints goes to stderr. Raises TargetError in one line for whatever is wrong
    with it.
    """
    with redirect_stdout(sys.stderr):
        return asyncio.run(_listing(target))


async def load_server(target: str) -> Server:
    """Load the server that `target` names, as `read_listing` does, without running it."""
    with redirect_stdout(sys.stderr):
        found = _from_configuration(Path(target)) if _is_file(target) else load_target(target)
        server = await _made(target, found) if isroutine(found) else found
    if isinstance(server, (FastMCP, MCPServer)):
        return server
    words = "neither a FastMCP server nor an MCPServer"
    raise TargetError(f"{target} is a {type(server).__name__}, {words}")


def _is_file(target: str) -> bool:
    return target.endswith(".json")


def _from_configuration(path: Path) -> object:
    """Load what a fastmcp.json names; its path is relative to the file."""
    try:
        source = _Configuration.model_validate(json.loads(path.read_bytes())).source
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror}") from error
    except (ValidationError, ValueError) as error:
        raise TargetError(f"{path} has no source that names a file: {one_line(error)}") from error
    file, _, name = source.path.partition(":")
    place = path.parent / Path(file).expanduser()
    entrypoint = source.entrypoint or name
    if entrypoint:
        return load_target(f"{place}:{entrypoint}")
    module = load_module(str(place))
    for found in [getattr(module, usual, None) for usual in USUAL_NAMES]:
        if isinstance(found, FastMCP):
            return found
    raise TargetError(f"{place} has no server named {', '.join(USUAL_NAMES)}: name it in {path}")


async def _listing(target: str) -> Listing:
    server = await load_server(target)
    try:
        return await listing_of(server)
    except Exception as error:  # providers and middleware of the author may raise anything
        words = f"the tools of {target} cannot be listed: {one_line(error)}"
        raise TargetError(words) from error


async def _made(target: str, factory: object) -> object:
    try:
        made: object = factory()  # type: ignore[operator]  # it is a routine
        return await made if isinstance(made, Awaitable) else made
    except (Exception, SystemExit) as error:  # the author's function may raise anything
        raise TargetError(f"{target} makes no server: {one_line(error)}") from error

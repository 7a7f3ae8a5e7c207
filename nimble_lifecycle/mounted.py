"""A FastMCP server and those mounted in it, behind every wrapper, as no client sees them."""

from collections.abc import Iterator, Sequence

from fastmcp import FastMCP
from fastmcp.server.providers import FastMCPProvider, LocalProvider, Provider
from fastmcp.tools import Tool
from fastmcp.utilities.versions import dedupe_with_versions


async def local_tools(server: FastMCP) -> list[tuple[FastMCP, Tool]]:
    """List every tool of the tree with the server it was registered on.

    The names are those given there; nothing is hidden, renamed or left out.
    """
    return [
        (owner, tool)
        for owner in servers_of(server)
        for provider in map(_unwrapped, owner.providers)
        if isinstance(provider, LocalProvider)
        for tool in await provider.list_tools()
    ]


async def reachable_tools(server: FastMCP) -> list[Tool]:
    """List the tools of the tree under the names that its root serves, of each name the one.

    Nobody else is asked: no middleware runs, and what a proxy would fetch is left out. Raises what
    transforms of the author raise.
    """
    found = [tool for each in server.providers for tool in await _reachable_by(each)]
    tools = await _transformed(server, found)
    return list(dedupe_with_versions(list(tools), lambda tool: tool.name))


async def _reachable_by(provider: Provider) -> Sequence[Tool]:
    inner: Provider | None = getattr(provider, "_inner", None)
    if inner is not None:
        tools = await _reachable_by(inner)
    elif isinstance(provider, FastMCPProvider):
        tools = await reachable_tools(provider.server)
    elif isinstance(provider, LocalProvider):
        return await provider.list_tools()
    else:
        return ()
    return await _transformed(provider, tools)


async def _transformed(provider: Provider, tools: Sequence[Tool]) -> Sequence[Tool]:
    for transform in provider.transforms:
        tools = await transform.list_tools(tools)
    return tools


def servers_of(server: FastMCP) -> Iterator[FastMCP]:
    """Give a server and all that are mounted in it, at any depth."""
    yield server
    for provider in map(_unwrapped, server.providers):
        if isinstance(provider, FastMCPProvider):
            yield from servers_of(provider.server)


def _unwrapped(provider: Provider) -> Provider:
    """Look behind the wrappers a namespace or renamed tools make; they have no public name."""
    while (inner := getattr(provider, "_inner", None)) is not None:
        provider = inner
    return provider

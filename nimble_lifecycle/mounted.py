"""A FastMCP server and those mounted in it, behind every wrapper, as no client sees them."""

from collections.abc import Iterator

from fastmcp import FastMCP
from fastmcp.server.providers import FastMCPProvider, LocalProvider, Provider
from fastmcp.tools import Tool


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

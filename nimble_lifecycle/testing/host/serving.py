"""Serves a server object over HTTP on a loopback port, for as long as a test needs it."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from fastmcp import FastMCP
from starlette.applications import Starlette

from nimble_lifecycle.manifest.block import Server


@asynccontextmanager
async def serving(server: Server, *, stateless: bool = False) -> AsyncGenerator[str]:
    """Serve over a real socket from this event loop; gives the address.

    A stateless server keeps no session between two requests, as behind a load balancer.
    """
    if isinstance(server, FastMCP):
        app: Starlette = server.http_app(path="/mcp", stateless_http=stateless)
    else:
        app = server.streamable_http_app(stateless_http=stateless)
    config = uvicorn.Config(app, log_level="warning", lifespan="on", ws="none")
    uvicorn_server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(uvicorn_server.serve(sockets=[listening]))
        try:
            while not uvicorn_server.started and not running.done():  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.005)
            if running.done():
                await running
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            uvicorn_server.should_exit = True
            await asyncio.wait([running])

"""Serves a FastMCP server over HTTP on a loopback port, for as long as a test needs it."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastmcp import FastMCP


@asynccontextmanager
async def serving(server: FastMCP[Any], *, stateless: bool = False) -> AsyncGenerator[str]:
    """Serve over a real socket from this event loop; gives the address.

    A stateless server keeps no session between two requests, as behind a load balancer.
    """
    app = server.http_app(path="/mcp", stateless_http=stateless)
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

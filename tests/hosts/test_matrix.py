"""Every host, in both eras, over every transport, calls every shape of server correctly.

What counts are the rows. `make test` has a slice: everything in memory, and of the rest a few.
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest
from matrix_server import SHAPES, shaped

from nimble_lifecycle.protocol import HOST_VERSION
from nimble_lifecycle.testing.host import Era, Generation, Host, serving

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).with_name("matrix_server.py")
TRANSPORTS = ("memory", "stdio", "stateful", "stateless")
SLICE = {
    ("A", "2025-11-25", "stateful", "namespaced"),
    ("A", "2026-07-28", "stateless", "plain"),
    ("B", "2025-11-25", "stateless", "mounted"),
    ("C", "2025-11-25", "stateful", "plain"),
    ("C", "2025-11-25", "stdio", "mounted"),
    ("C", "2026-07-28", "stateless", "namespaced"),
    ("A", "2026-07-28", "stateless", "sdk"),
    ("B", "2025-11-25", "stdio", "sdk"),
    ("C", "2025-11-25", "stateful", "sdk"),
}


def cells():
    """Give a parameter set for each cell, slow unless it is in the slice."""
    for cell in product(Generation, Era, TRANSPORTS, SHAPES):
        fast = cell[2] == "memory" or cell in SLICE
        yield pytest.param(*cell, id="-".join(cell), marks=[] if fast else pytest.mark.slow)


def block_of(shape):
    """Give the block of a catalog entry, as nimble-manifest would write it."""
    prefix = "deep_" if shape == "namespaced" else ""
    lifecycle = {"on_ready": f"{prefix}up", "on_removing": f"{prefix}down"}
    return {"host_version": HOST_VERSION, "lifecycle": lifecycle}


@asynccontextmanager
async def reached(transport, shape):
    """Give the target of a host, and the tenants a server behind it can tell apart."""
    if transport == "memory":
        yield shaped(shape), [None]
    elif transport == "stdio":
        yield [sys.executable, str(SERVER), shape], [None]
    else:
        async with serving(shaped(shape), stateless=transport == "stateless") as url:
            yield url, ["t1", "t2"]


@pytest.mark.parametrize(("generation", "era", "transport", "shape"), list(cells()))
async def test_it_installs_resumes_and_removes(generation, era, transport, shape, rows):
    async with reached(transport, shape) as (target, tenants):
        block = block_of(shape)

        async def life(tenant):
            """Play one workspace's life; gives what the rows were at each turn."""
            told = f"{tenant or ''}/ws_1"
            who = {"workspace": "ws_1", "tenant": tenant, "extra": {"_gateway": {"trace": 1}}}
            async with Host(target, generation=generation, era=era, block=block, **who) as host:
                assert host.protocol_version == era
                assert host.handlers.warnings == []
                assert host.handlers.from_wire is (generation != "A")
                installed = await host.install()
                assert installed.notice == f"install {told} pending"
                assert [call.failure for call in installed.calls] == [None, None]
                turns = [mine(tenant)]
                assert (await host.resume()).text == f"resume {told} pending"
                await host.call("removing")
                turns.append(mine(tenant))
                await host.resume()
                turns.append(mine(tenant))
                assert (await host.remove()).text == "removing ws_1"
                turns.append(mine(tenant))
            return turns

        def mine(tenant):
            return [desired for of, _, desired in rows() if of == (tenant or "")]

        lives = await asyncio.gather(*map(life, tenants))
    wanted, release = ["wanted"], ["release"]
    assert lives == [[wanted, release, wanted, release]] * len(tenants)
    assert rows() == [(tenant or "", "ws_1", "release") for tenant in tenants]

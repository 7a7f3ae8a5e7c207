"""Adapters for a `World`: a vendor that really keeps resources and fails where it is told to."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import TypeVar

from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.vendor import (
    External,
    InProgress,
    Provisioned,
    Released,
    Vendor,
)
from nimble_lifecycle.testing.world import Fault, World

T = TypeVar("T")

_LOOK = 0.005
"""Seconds between two looks of a hanging call at whether it may go on."""


class MemoryVendor(Vendor):
    """An adapter for a `World`, with async methods.

    Subclass it to change what an adapter declares; `find = Vendor.find` takes the look-up away.
    """

    kind = "memory"
    repeatable = timedelta(hours=24)
    lag = timedelta(0)

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        """Make or change the resource."""
        repeatable = self.repeatable is not None
        make = partial(self.world.provision, tenancy, repeatable=repeatable)
        return await self._call("provision", make)

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        """Remove the resource."""
        return await self._call("release", partial(self.world.release, tenancy))

    async def poll(self, tenancy: Tenancy) -> Provisioned | Released | InProgress:
        """Ask about the operation."""
        return await self._call("poll", partial(self.world.poll, tenancy))

    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        """Look the resource up."""
        return await self._call("find", partial(self.world.find, tenancy))

    def inventory(self) -> Iterator[External]:
        """List every resource of ours."""
        return self.world.listing()

    async def _call(self, method: str, work: Callable[[], T]) -> T:
        with self.world.call(method) as fault:
            while fault.hangs and not self.world.thawed:
                await self._hang(fault)
            return fault.end(work)

    async def _hang(self, fault: Fault) -> None:
        try:
            await asyncio.sleep(_LOOK)
        except asyncio.CancelledError:
            if not fault.stubborn:
                raise


class PlainMemoryVendor(Vendor):
    """The same adapter with plain methods, which block the thread they run on."""

    kind = "memory"
    repeatable = timedelta(hours=24)
    lag = timedelta(0)

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()

    def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        """Make or change the resource."""
        repeatable = self.repeatable is not None
        make = partial(self.world.provision, tenancy, repeatable=repeatable)
        return self._call("provision", make)

    def release(self, tenancy: Tenancy) -> Released | InProgress:
        """Remove the resource."""
        return self._call("release", partial(self.world.release, tenancy))

    def poll(self, tenancy: Tenancy) -> Provisioned | Released | InProgress:
        """Ask about the operation."""
        return self._call("poll", partial(self.world.poll, tenancy))

    def find(self, tenancy: Tenancy) -> External | InProgress | None:
        """Look the resource up."""
        return self._call("find", partial(self.world.find, tenancy))

    def inventory(self) -> Iterator[External]:
        """List every resource of ours."""
        return self.world.listing()

    def _call(self, method: str, work: Callable[[], T]) -> T:
        with self.world.call(method) as fault:
            while fault.hangs and not self.world.thawed:
                time.sleep(_LOOK)
            return fault.end(work)

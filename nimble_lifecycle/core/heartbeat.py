"""Tells the store that a workspace is in use, in the background of ordinary tool calls.

A heartbeat can neither fail nor delay the call it belongs to. Touches run one at a time, so that a
database that hangs costs one of the store's slots, and what waits is bounded.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from nimble_lifecycle.protocol import Workspace

INTERVAL: Final = 300.0
"""Seconds between two touches of a workspace."""
NO_ROW_INTERVAL: Final = 10.0
"""Seconds between two touches of a workspace that has no row to touch."""
MAX_WORKSPACES: Final = 10_000
"""Workspaces remembered; the one touched longest ago is forgotten first."""
MAX_WAITING: Final = 256
"""Heartbeats in flight; further ones are dropped, the next call brings another."""

logger = logging.getLogger(__name__)


class Heartbeat:
    """Touches the workspaces of calls, each at most once in `INTERVAL`.

    `touch` tells whether there was a row to touch.
    """

    def __init__(
        self, touch: Callable[[Workspace], Awaitable[bool]], clock: Callable[[], float]
    ) -> None:
        self._touch = touch
        self._clock = clock
        self._touched: OrderedDict[Workspace, float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._one = asyncio.Semaphore(1)

    def beat(self, workspace: Callable[[], Awaitable[Workspace]]) -> None:
        """Note that a call uses its workspace, which `workspace` finds; returns at once."""
        if len(self._tasks) < MAX_WAITING:
            task = asyncio.create_task(self._beat(workspace))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget(self, workspace: Workspace) -> None:
        """Let the next call of the workspace touch it, however recent the last touch was."""
        self._touched.pop(workspace, None)

    async def close(self) -> None:
        """Drop what is still in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _beat(self, find: Callable[[], Awaitable[Workspace]]) -> None:
        try:
            workspace = await find()
        except Exception:  # noqa: BLE001  # the call itself says so where it needs the workspace
            logger.debug("no heartbeat: the workspace is not known")
            return
        if not self._is_due(workspace):
            return
        try:
            async with self._one:
                if not await self._touch(workspace):  # it has no row yet, and may get one soon
                    self._touched[workspace] = self._clock() - INTERVAL + NO_ROW_INTERVAL
        except Exception as error:  # noqa: BLE001  # may not fail the call; the next call retries
            self.forget(workspace)
            logger.debug("no heartbeat: %s", type(error).__name__)

    def _is_due(self, workspace: Workspace) -> bool:
        now = self._clock()
        last = self._touched.get(workspace)
        if last is not None and now - last < INTERVAL:
            return False
        self._touched[workspace] = now
        self._touched.move_to_end(workspace)
        if len(self._touched) > MAX_WORKSPACES:
            self._touched.popitem(last=False)
        return True

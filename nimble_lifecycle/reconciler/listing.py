"""Reads somebody's list to its end, part by part: an adapter's inventory, a host's installations.

A list counts only if it ends by itself. Whatever else happens (it raises, hangs, is no list) is a
`ListError`, and what came before it proves nothing.
"""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)
from typing import TypeAlias

from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.store.ports import Clock, Hop

Source: TypeAlias = Callable[[], object]
"""Gives an iterator, async or plain, or something that has one."""

PART = 1000
"""Items of a part at most."""

MOMENT = 0.5
"""Seconds after which a part is given, however short it is."""

_END = object()


class ListError(Exception):
    """A list did not come to its end; the text says why, without a secret."""


async def listed(
    source: Source, *, limit: float, clock: Clock, hop: Hop
) -> AsyncGenerator[list[object], None]:
    """Give the items of a list in parts; each item may take `limit` seconds, or a little more.

    A plain iterator runs by `hop`. Raises ListError where the list does not end by itself.
    """
    reader = _Reader(source, clock, hop)
    ended = False
    while not ended:
        ended = await _watched(reader, limit, clock)
        if reader.part:
            part, reader.part = reader.part, []
            yield part


async def _watched(reader: "_Reader", limit: float, clock: Clock) -> bool:
    """Read a part, as long as something comes within each `limit`; give whether it is the last."""
    task = asyncio.ensure_future(reader.read())
    before = -1
    try:
        while not task.done():
            if reader.came == before:
                raise ListError(f"nothing came for {limit:g} s")
            before = reader.came
            timer = asyncio.ensure_future(clock.sleep(limit))
            try:
                await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
    finally:
        if not task.done():
            reader.given_up = True
            task.add_done_callback(_forgotten)
            task.cancel()
    if task.cancelled():
        raise ListError("it was cancelled from inside")
    return task.result()


def _forgotten(task: "asyncio.Task[bool]") -> None:
    """Look at how an abandoned read ended, or asyncio complains that nobody did."""
    if not task.cancelled():
        task.exception()


class _Reader:
    """A list on its way; `came` counts its items, `part` are those that nobody took yet."""

    def __init__(self, source: Source, clock: Clock, hop: Hop) -> None:
        self._source = source
        self._clock = clock
        self._hop = hop
        self._stream: AsyncIterator[object] | Iterator[object] | None = None
        self.part: list[object] = []
        self.came = 0
        self.given_up = False

    async def read(self) -> bool:
        """Add to the part; give whether the list is at its end."""
        try:
            stream = self._stream = self._stream or await self._opened()
            if isinstance(stream, AsyncIterator):
                return await self._read(stream)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # somebody's code may raise anything
            raise _told(error) from None
        return await self._hop.run(lambda: self._read_plain(stream))

    async def _read(self, stream: AsyncIterator[object]) -> bool:
        until = self._clock.monotonic() + MOMENT
        while self._is_short(until):
            item = await anext(stream, _END)
            if item is _END:
                return True
            self._add(item)
        return False

    def _read_plain(self, stream: Iterator[object]) -> bool:
        until = self._clock.monotonic() + MOMENT
        try:
            while self._is_short(until) and not self.given_up:
                item = next(stream, _END)
                if item is _END:
                    return True
                self._add(item)
        except BaseException as error:  # noqa: BLE001  # somebody's code may raise anything
            raise _told(error) from None
        return False

    def _is_short(self, until: float) -> bool:
        return len(self.part) < PART and self._clock.monotonic() < until

    def _add(self, item: object) -> None:
        self.part.append(item)
        self.came += 1

    async def _opened(self) -> AsyncIterator[object] | Iterator[object]:
        on_loop = inspect.isasyncgenfunction(self._source) or inspect.iscoroutinefunction(
            self._source
        )
        found = self._source() if on_loop else await self._hop.run(self._begun)
        if isinstance(found, Awaitable):
            found = await found
        if isinstance(found, ListError):
            raise found
        if isinstance(found, AsyncIterable):
            return aiter(found)
        if isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
            return iter(found)
        raise ListError(f"it is {type(found).__name__}, no list")

    def _begun(self) -> object:
        # Caught on the thread: a StopIteration, for one, cannot travel through a future.
        try:
            return self._source()
        except BaseException as error:  # noqa: BLE001  # somebody's code may raise anything
            return _told(error)


def _told(error: BaseException) -> ListError:
    return error if isinstance(error, ListError) else ListError(described(error))

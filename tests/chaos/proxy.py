"""A TCP proxy that goes wrong on demand, for what goes between a half and what it talks to."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from waiting import PATIENCE

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, zero seconds. A close then sends a reset (socket(7))."""


class Link:
    """One connection through the proxy."""

    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self.client, self.server = ends
        self.deaf = False
        """Whether what the server says is thrown away."""
        self.open = asyncio.Event()
        self.open.set()

    def reset(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.transport.abort()


class Proxy:
    """Forwards a port of its own to another; runs on a thread of its own, for the `with` block."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._to = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._links: set[Link] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._delay = 0.0
        self._refusing = False
        self._cutting: tuple[str, int] | None = None
        self.port = 0

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self.port = self._on_loop(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- going wrong -----------------------------------------------------------------------------

    def drop(self) -> None:
        """Reset every connection there is."""
        self._do(self._drop)

    def refuse(self, *, on: bool = True) -> None:
        """Reset every connection there is, and all that come."""
        self._do(lambda: setattr(self, "_refusing", on), self._drop)

    def freeze(self) -> None:
        """Carry nothing on, in either direction; connections stay open."""
        self._do(self._open.clear)

    def hold_back(self) -> None:
        """Carry nothing on over the connections there are; those that come are fine."""
        self._do(lambda: [link.open.clear() for link in self._links])

    def thaw(self) -> None:
        """Carry on what waited, for whoever is still there, and what comes."""
        self._do(self._thaw)

    def delay(self, seconds: float) -> None:
        """Let everything arrive that much later; 0 ends it."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def cut_requests(self, count: int = 1) -> None:
        """Reset that many connections at their next request, before it arrives."""
        self._do(lambda: setattr(self, "_cutting", ("request", count)))

    def cut_answers(self, count: int = 1) -> None:
        """Reset that many connections at their next answer, in place of it."""
        self._do(lambda: setattr(self, "_cutting", ("answer", count)))

    def half_close(self) -> None:
        """Tell every client that its server has gone, while its server knows nothing of it."""
        self._do(self._half_close)

    def behave(self) -> None:
        """Do nothing wrong any more."""
        self._do(
            self._thaw,
            lambda: setattr(self, "_delay", 0.0),
            lambda: setattr(self, "_refusing", False),
            lambda: setattr(self, "_cutting", None),
        )

    @property
    def links(self) -> int:
        """How many connections there are."""
        return len(self._links)

    # -- on the loop -----------------------------------------------------------------------------

    def _do(self, *work: Callable[[], object]) -> None:
        async def all_of_it() -> None:
            for each in work:
                each()

        self._on_loop(all_of_it())

    def _on_loop(self, work):  # type: ignore[no-untyped-def]  # a coroutine of anything
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        self._drop()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def _drop(self) -> None:
        for link in self._links:
            link.reset()

    def _thaw(self) -> None:
        self._open.set()
        for link in self._links:
            link.open.set()

    def _half_close(self) -> None:
        for link in self._links:
            link.deaf = True
            with suppress(OSError, RuntimeError):
                link.client.write_eof()

    async def _link(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self._pumps.add(task := asyncio.current_task())  # type: ignore[arg-type]
        try:
            await self._carry(reader, client)
        except (OSError, asyncio.CancelledError):
            client.transport.abort()
        finally:
            self._pumps.discard(task)  # type: ignore[arg-type]

    async def _carry(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._refusing:
            Link(client, client).reset()
            return
        answers, server = await asyncio.open_connection(*self._to)
        link = Link(client, server)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(link, "request", reader, server))
                both.create_task(self._pump(link, "answer", answers, client))
        except* (OSError, RuntimeError):
            link.reset()
        finally:
            self._links.discard(link)
            client.close()
            server.close()

    async def _pump(
        self, link: Link, what: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            if self._cutting is not None and self._cutting[0] == what:
                count = self._cutting[1] - 1
                self._cutting = (what, count) if count else None
                raise ConnectionResetError
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._open.wait()
            await link.open.wait()
            if what == "answer" and link.deaf:
                continue
            writer.write(data)
            await writer.drain()
        if not writer.is_closing():
            writer.write_eof()

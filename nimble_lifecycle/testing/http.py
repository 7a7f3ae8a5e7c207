"""A sandbox for adapters that speak HTTP: the suite makes the troubles, by a gateway of its own.

The adapter is pointed at a loopback address that passes its requests on to the vendor, and refuses,
loses or delays them where it is told to. Needs httpx2, like `nimble_lifecycle.reconciler.http`.
"""

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Final

import httpx2

from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.testing.sandbox import RETRY_AFTER, Sandbox, Trouble

_STATUS: Final = {
    Trouble.REFUSED: 401,
    Trouble.FORBIDDEN: 403,
    Trouble.LIMITED: 429,
    Trouble.FAILING: 500,
}
"""Troubles that are an answer, which the gateway gives itself."""

_APPLIED: Final = (Trouble.ANSWER_LOST, Trouble.ANSWER_LATE, Trouble.ERROR_AFTER)
"""Troubles of one request that is passed on."""

_HOP: Final = {"connection", "content-encoding", "content-length", "host", "transfer-encoding"}
"""Headers that are about one connection, or that httpx2 and the server write themselves."""


class HttpSandbox(Sandbox):
    """Give `url` and `at`, and the suite can make every `Trouble`."""

    url: str
    """Where the vendor is: the base of what the adapter's requests go to."""

    def at(self, url: str) -> AbstractAsyncContextManager[Vendor]:
        """Give an adapter, open for use, whose vendor is at `url` instead (plain HTTP)."""
        raise NotImplementedError

    @asynccontextmanager
    async def under(
        self, vendor: Vendor, trouble: Trouble, after: int = 0
    ) -> AsyncIterator[Vendor]:
        """Give an adapter that reaches its vendor through a gateway that makes the trouble."""
        way = _nobody() if trouble is Trouble.UNREACHABLE else _gateway(self.url, trouble, after)
        with way as url:
            async with self.at(url) as troubled:
                yield troubled


@contextmanager
def _nobody() -> Iterator[str]:
    """Give an address that refuses connections: bound, so that nobody else takes it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def _gateway(upstream: str, trouble: Trouble, after: int) -> Iterator[str]:
    gateway = _Gateway(upstream, trouble, after)
    serving = threading.Thread(target=gateway.serve_forever, args=(0.05,), daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{gateway.server_port}"
    finally:
        gateway.over.set()
        gateway.shutdown()
        gateway.server_close()


class _Gateway(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: str, trouble: Trouble, after: int) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.over = threading.Event()
        self._upstream = upstream.rstrip("/")
        self._trouble = trouble
        self._after = after
        self._numbers = count()
        self._lock = threading.Lock()

    def trouble(self) -> Trouble | None:
        """Count a request and give the trouble it meets."""
        with self._lock:
            number = next(self._numbers)
        hit = number == self._after if self._trouble in _APPLIED else number >= self._after
        return self._trouble if hit else None

    def passed_on(self, request: "_Request", body: bytes) -> httpx2.Response:
        """Let the vendor answer; one that cannot be reached answers 502."""
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _HOP]
        try:
            with httpx2.Client(timeout=60.0) as client:
                return client.request(
                    request.command, self._upstream + request.path, headers=headers, content=body
                )
        except httpx2.RequestError:
            return httpx2.Response(502)


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Gateway

    def answer(self) -> None:
        """Serve one request, well or badly."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self.server.trouble()
        if trouble in _STATUS:
            self._send(httpx2.Response(_STATUS[trouble], headers=_asking_for(trouble)))
        elif trouble is Trouble.SILENT:
            self._hang_up_at_the_end()
        else:
            self._pass_on(trouble, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer  # noqa: N815

    def _pass_on(self, trouble: Trouble | None, body: bytes) -> None:
        answer = self.server.passed_on(self, body)
        match trouble:
            case None:
                self._send(answer)
            case Trouble.ERROR_AFTER:
                self._send(httpx2.Response(502))
            case Trouble.ANSWER_LATE:
                self._hang_up_at_the_end()
            case _:
                self.close_connection = True  # and nothing said

    def _hang_up_at_the_end(self) -> None:
        self.server.over.wait()
        self.close_connection = True

    def _send(self, answer: httpx2.Response) -> None:
        self.send_response_only(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if answer.status_code != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """Say nothing: stderr is the command line's."""


def _asking_for(trouble: Trouble) -> dict[str, str]:
    return {"Retry-After": f"{RETRY_AFTER:g}"} if trouble is Trouble.LIMITED else {}

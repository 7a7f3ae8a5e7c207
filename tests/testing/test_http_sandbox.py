"""The gateway of `HttpSandbox` does to requests what each trouble says."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx2
import pytest
from depot import Sound

from nimble_lifecycle.reconciler import Vendor
from nimble_lifecycle.testing import Trouble
from nimble_lifecycle.testing.http import HttpSandbox
from nimble_lifecycle.testing.sandbox import RETRY_AFTER


class Echo(BaseHTTPRequestHandler):
    """A vendor that counts what reaches it and says what it got."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        type(self).seen.append(body)
        said = json.dumps({"path": self.path, "body": body, "mark": self.headers["X-Mark"]})
        self.send_response(201)
        self.send_header("Content-Length", str(len(said)))
        self.send_header("X-Vendor", "echo")
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *_: object) -> None: ...


class EchoSandbox(HttpSandbox):
    """What `at` was given is what a test wants to know."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.given = ""

    @asynccontextmanager
    async def at(self, url: str) -> AsyncIterator[Vendor]:
        self.given = url
        yield Sound()


@pytest.fixture
def sandbox() -> Iterator[EchoSandbox]:
    Echo.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield EchoSandbox(f"http://127.0.0.1:{server.server_port}/base")
        server.shutdown()


def answers(
    sandbox: EchoSandbox, trouble: Trouble, *, after: int = 0, requests: int = 1
) -> list[object]:
    """Send requests through the gateway and give each answer, or the class of its failure."""

    async def send() -> list[object]:
        async with sandbox.under(Sound(), trouble, after), client() as sending:
            return [await answer(sending, number) for number in range(requests)]

    def client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=sandbox.given, timeout=1.0)

    async def answer(sending: httpx2.AsyncClient, number: int) -> object:
        try:
            return await sending.post("/x?y=1", content=f"{number}", headers={"X-Mark": "m"})
        except httpx2.RequestError as error:
            return type(error)

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("trouble", "status"),
    [
        (Trouble.REFUSED, 401),
        (Trouble.FORBIDDEN, 403),
        (Trouble.LIMITED, 429),
        (Trouble.FAILING, 500),
    ],
)
def test_a_refusal_meets_every_request_from_there_on_and_reaches_no_vendor(
    sandbox: EchoSandbox, trouble: Trouble, status: int
) -> None:
    first, *others = answers(sandbox, trouble, after=1, requests=3)
    assert isinstance(first, httpx2.Response)
    assert [getattr(each, "status_code", each) for each in others] == [status, status]
    waits = f"{RETRY_AFTER:g}" if trouble is Trouble.LIMITED else None
    assert [each.headers.get("Retry-After") for each in others] == [waits, waits]
    assert Echo.seen == ["0"]


def test_what_is_passed_on_arrives_as_it_was_sent_and_comes_back_as_it_was_answered(
    sandbox: EchoSandbox,
) -> None:
    [answer] = answers(sandbox, Trouble.FAILING, after=1)
    assert isinstance(answer, httpx2.Response)
    assert answer.json() == {"path": "/base/x?y=1", "body": "0", "mark": "m"}
    assert (answer.status_code, answer.headers["X-Vendor"]) == (201, "echo")


@pytest.mark.parametrize(
    ("trouble", "seen"),
    [
        (Trouble.ANSWER_LOST, httpx2.RemoteProtocolError),
        (Trouble.ANSWER_LATE, httpx2.ReadTimeout),
        (Trouble.ERROR_AFTER, 502),
    ],
)
def test_a_lost_answer_is_that_of_one_request_which_is_applied(
    sandbox: EchoSandbox, trouble: Trouble, seen: object
) -> None:
    got = answers(sandbox, trouble, after=1, requests=3)
    assert [getattr(each, "status_code", each) for each in got] == [201, seen, 201]
    assert Echo.seen == ["0", "1", "2"]


def test_silence_never_answers_and_reaches_no_vendor(sandbox: EchoSandbox) -> None:
    assert answers(sandbox, Trouble.SILENT) == [httpx2.ReadTimeout]
    assert Echo.seen == []


def test_nobody_listens_where_it_is_unreachable(sandbox: EchoSandbox) -> None:
    assert answers(sandbox, Trouble.UNREACHABLE) == [httpx2.ConnectError]
    assert Echo.seen == []

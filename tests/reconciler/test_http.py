import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest
from waiting import PATIENCE

from nimble_lifecycle.errors import (
    CredentialError,
    Gone,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
    UnknownOutcome,
    VendorError,
)
from nimble_lifecycle.reconciler.http import LONGEST_EXCERPT, LONGEST_WAIT, Call, outcome_of

CALLS = (Call.CREATE, Call.CHANGE, Call.READ, Call.LIST)
LOST = (UnknownOutcome, UnknownOutcome, TemporaryError, TemporaryError)

# What adapters rest on: status -> outcome of CREATE, CHANGE, READ, LIST.
PROMISED = {
    301: LOST,
    302: LOST,
    303: LOST,
    307: (TemporaryError,) * 4,
    308: (TemporaryError,) * 4,
    400: (PermanentError,) * 4,
    401: (CredentialError,) * 4,
    402: (CredentialError,) * 4,
    403: (CredentialError,) * 4,
    404: (PermanentError, Gone, Gone, TemporaryError),
    405: (PermanentError,) * 4,
    407: (CredentialError,) * 4,
    408: LOST,
    409: (NameConflict, TemporaryError, TemporaryError, TemporaryError),
    410: (PermanentError, Gone, Gone, TemporaryError),
    412: (NameConflict, TemporaryError, TemporaryError, TemporaryError),
    413: (PermanentError,) * 4,
    418: (PermanentError,) * 4,
    421: (TemporaryError,) * 4,
    422: (PermanentError,) * 4,
    423: (TemporaryError,) * 4,
    424: (TemporaryError,) * 4,
    425: (TemporaryError,) * 4,
    429: (RateLimited,) * 4,
    451: (PermanentError,) * 4,
    499: LOST,
    500: LOST,
    501: LOST,
    502: LOST,
    503: (UnknownOutcome, UnknownOutcome, Unavailable, Unavailable),
    504: LOST,
    599: LOST,
    700: LOST,
}
NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


def leaves(error: type[httpx2.RequestError]) -> Iterator[type[httpx2.RequestError]]:
    """Give what httpx2 really raises: the classes without subclasses."""
    if not error.__subclasses__():
        yield error
    for child in error.__subclasses__():
        yield from leaves(child)


PERHAPS_SENT = sorted(
    {error for error in leaves(httpx2.RequestError) if error.__module__ == "httpx2"}
    - {*NEVER_SENT},
    key=lambda error: error.__name__,
)


def outcome(call: Call, handler: Callable[[httpx2.Request], httpx2.Response]) -> VendorError | None:
    """Give the vendor error of one POST answered by `handler`."""
    url = "http://user:hunter2@vendor.example/things/7?token=hunter2"
    with httpx2.Client(transport=httpx2.MockTransport(handler)) as client:
        return error_of(call, lambda: client.post(url, headers={"Authorization": "hunter2"}))


def error_of(call: Call, request: Callable[[], httpx2.Response]) -> VendorError | None:
    try:
        with outcome_of(call):
            request().raise_for_status()
    except VendorError as error:
        return error
    return None


def answer(
    status: int, headers: dict[str, str] | None = None, body: bytes = b""
) -> Callable[[httpx2.Request], httpx2.Response]:
    return lambda _: httpx2.Response(status, headers=headers, content=body)


def fails(
    error: type[httpx2.RequestError],
) -> Callable[[httpx2.Request], httpx2.Response]:
    def handler(request: httpx2.Request) -> httpx2.Response:
        raise error(f"hunter2 {request.url}")

    return handler


@pytest.mark.parametrize("status", PROMISED)
def test_each_status_has_its_outcome_for_each_kind_of_call(status: int) -> None:
    assert tuple(type(outcome(call, answer(status))) for call in CALLS) == PROMISED[status]


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_success_raises_nothing(status: int) -> None:
    assert [outcome(call, answer(status)) for call in CALLS] == [None] * 4


@pytest.mark.parametrize("error", NEVER_SENT)
def test_what_never_left_was_certainly_not_applied(error: type[httpx2.RequestError]) -> None:
    assert [type(outcome(call, fails(error))) for call in CALLS] == [Unavailable] * 4


@pytest.mark.parametrize("error", PERHAPS_SENT)
def test_every_other_error_is_unknown_on_a_write(error: type[httpx2.RequestError]) -> None:
    assert tuple(type(outcome(call, fails(error))) for call in CALLS) == LOST


def test_what_is_not_a_url_is_permanent() -> None:
    with pytest.raises(PermanentError, match="not a URL"), outcome_of(Call.CREATE):
        httpx2.get("http://vendor.example:port/")


@pytest.mark.parametrize(
    "raised", [KeyError("x"), ValueError("not json"), asyncio.CancelledError()]
)
def test_anything_else_passes_unchanged(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as caught, outcome_of(Call.CREATE):
        raise raised
    assert caught.value is raised


def test_it_serves_async_clients_too() -> None:
    async def post() -> None:
        transport = httpx2.MockTransport(answer(429, {"Retry-After": "7"}))
        async with httpx2.AsyncClient(transport=transport) as client:
            with outcome_of(Call.CREATE):
                (await client.post("http://vendor.example/things")).raise_for_status()

    with pytest.raises(RateLimited) as caught:
        asyncio.run(post())
    assert caught.value.after == 7


@pytest.mark.parametrize(
    "handler",
    [answer(403), answer(302), fails(httpx2.ReadTimeout)],
    ids=["refused", "redirected", "lost"],
)
def test_neither_message_nor_traceback_shows_a_secret(
    handler: Callable[[httpx2.Request], httpx2.Response],
) -> None:
    error = outcome(Call.CHANGE, handler)
    assert error is not None
    assert str(error).startswith("POST /things/7: ")
    assert "hunter2" not in str(error)
    assert error.__suppress_context__
    assert error.__cause__ is None


QUOTED = {
    ("application/json", b'{"error":\n "region is closed"}'): ': {"error": "region is closed"}',
    ("Application/Problem+JSON; charset=utf-8", b'{"title": "no"}'): ': {"title": "no"}',
    ("text/plain", b"not \xc3\xbcber \x1b[31m10"): ": not \u00fcber [31m10",
    ("text/plain; charset=hex", b"plain"): ": plain",
    ("text/plain", b"\xff\xfe no text"): ": \ufffd\ufffd no text",
    ("text/plain", b" \n "): "",
    ("text/plain", b""): "",
    ("application/octet-stream", b"binary"): "",
    ("application/jsonx", b"other"): "",
    ("", b"untold"): "",
}


@pytest.mark.parametrize("said", QUOTED)
def test_the_message_quotes_what_the_vendor_said_in_words(said: tuple[str, bytes]) -> None:
    error = outcome(Call.CREATE, answer(422, {"Content-Type": said[0]}, said[1]))
    assert str(error) == f"POST /things/7: 422 Unprocessable Entity{QUOTED[said]}"


def test_what_is_quoted_is_short_and_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "quite-hidden")
    body = b"token=hunter2 " + b"x" * (LONGEST_EXCERPT - 15) + b" quite-hidden " + b"y" * 100_000
    said = str(outcome(Call.CREATE, answer(400, {"Content-Type": "text/plain"}, body)))
    assert "token=***" in said
    assert not any(part in said for part in ("hunter2", "qui"))
    assert len(said) <= len("POST /things/7: 400 Bad Request: ") + LONGEST_EXCERPT


def test_a_body_that_was_not_read_is_not_quoted() -> None:
    def streamed() -> httpx2.Response:
        with client.stream("POST", "http://vendor.example/things/7") as response:
            return response.raise_for_status()

    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"words"

    def handler(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(400, headers={"Content-Type": "text/plain"}, stream=Body())

    with httpx2.Client(transport=httpx2.MockTransport(handler)) as client:
        error = error_of(Call.CREATE, streamed)
    assert str(error) == "POST /things/7: 400 Bad Request"


def test_the_vendors_own_phrase_is_not_shown() -> None:
    def handler(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(500, extensions={"reason_phrase": b"hunter2"})

    assert str(outcome(Call.READ, handler)) == "POST /things/7: 500 Internal Server Error"
    assert str(outcome(Call.READ, answer(599))) == "POST /things/7: 599"


def test_a_long_path_is_cut() -> None:
    with httpx2.Client(transport=httpx2.MockTransport(answer(400))) as client:
        error = error_of(Call.READ, lambda: client.get("http://vendor.example/" + "x" * 9999))
    assert len(str(error)) < 250


def after(headers: dict[str, str], status: int = 429) -> float | None:
    error = outcome(Call.READ, answer(status, headers))
    if isinstance(error, TemporaryError):
        return error.delay
    assert isinstance(error, (RateLimited, Unavailable))
    return error.after


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("86400", LONGEST_WAIT),
        ("9" * 400, LONGEST_WAIT),
        ("0", None),
        ("-5", None),
        ("inf", None),
        ("nan", None),
        ("1_000", None),
        ("soon", None),
        ("1, 2", None),
        ("", None),
        ("Mon, 99 Nov 2026 25:00:00 GMT", None),
        ("Mon, 30 Nov 2026 09:00:00 +99999999999999999", None),
    ],
)
def test_retry_after_in_seconds_is_read_capped_or_ignored(text: str, seconds: float | None) -> None:
    assert after({"Retry-After": text}) == seconds


def test_a_retry_after_date_counts_from_the_vendors_own_clock() -> None:
    vendors_now = datetime(2001, 1, 1, tzinfo=UTC)
    headers = {
        "Date": format_datetime(vendors_now, usegmt=True),
        "Retry-After": format_datetime(vendors_now + timedelta(seconds=90), usegmt=True),
    }
    assert after(headers) == 90
    assert after(headers | {"Date": headers["Retry-After"]}) is None
    without_zone = headers["Retry-After"].replace("GMT", "-0000")
    assert after(headers | {"Retry-After": without_zone}) == 90


def test_a_retry_after_date_without_a_date_header_counts_from_ours() -> None:
    end = datetime.now(UTC) + timedelta(seconds=1000)
    seconds = after({"Retry-After": format_datetime(end, usegmt=True)})
    assert seconds is not None
    assert 900 < seconds <= 1000
    assert after({"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"}) is None


def test_retry_after_is_kept_where_the_outcome_can_carry_it() -> None:
    assert after({"Retry-After": "30"}, 503) == 30
    assert after({"Retry-After": "30"}, 500) == 30
    assert after({}, 503) is None


@contextmanager
def listener(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve one connection on a loopback port with `behave`."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            behave(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/things"
        thread.join()


def test_a_refused_connection_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/things"
    assert type(error_of(Call.CREATE, lambda: httpx2.post(url))) is Unavailable


def test_a_connection_closed_after_the_request_is_unknown() -> None:
    with listener(lambda connection: connection.close()) as url:
        assert type(error_of(Call.CREATE, lambda: httpx2.post(url))) is UnknownOutcome


def test_an_answer_cut_in_its_body_is_unknown_although_its_status_arrived() -> None:
    half = b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf"
    with listener(lambda connection: connection.sendall(half)) as url:
        assert type(error_of(Call.CREATE, lambda: httpx2.post(url))) is UnknownOutcome


def test_an_answer_that_does_not_come_in_time_is_unknown() -> None:
    given_up = threading.Event()
    limits = httpx2.Timeout(PATIENCE, read=0.05)

    def stay_silent(_: socket.socket) -> None:
        given_up.wait(PATIENCE)

    with listener(stay_silent) as url:
        error = error_of(Call.CREATE, lambda: httpx2.post(url, timeout=limits))
        given_up.set()
    assert type(error) is UnknownOutcome

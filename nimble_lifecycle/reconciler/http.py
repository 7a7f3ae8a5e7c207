"""How an HTTP answer, or the lack of one, reads as a vendor error: one table for all adapters.

For adapters built on httpx2, sync or async; nothing else in the worker needs httpx2. An outcome is
called certain only where HTTP itself makes it so. Whatever left this machine and was not answered
plainly may have been applied: gateways send any 5xx, also 503, after the vendor did the work.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import IntEnum
from http import HTTPStatus
from typing import Final, TypeAlias

import httpx2

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
from nimble_lifecycle.reconciler.redact import LONGEST_READ, redacted


class Call(IntEnum):
    """What a request does; the same answer means different things to each."""

    CREATE = 0
    """Makes something new in a collection; repeating it might make a second one."""
    CHANGE = 1
    """Changes or removes one thing named by its id."""
    READ = 2
    """Reads one thing named by its id."""
    LIST = 3
    """Reads a collection; a 404 says that the address is wrong, never that nothing is there."""


Outcomes: TypeAlias = tuple[
    type[VendorError], type[VendorError], type[VendorError], type[VendorError]
]
"""One outcome for each `Call`, in its order."""

LONGEST_WAIT: Final = 3600.0
"""Seconds a vendor's Retry-After is believed at most."""

LONGEST_EXCERPT: Final = 200
"""Characters of an answer that a message quotes at most."""

_CREDENTIAL: Final[Outcomes] = (CredentialError, CredentialError, CredentialError, CredentialError)
_LATER: Final[Outcomes] = (TemporaryError, TemporaryError, TemporaryError, TemporaryError)
_LIMITED: Final[Outcomes] = (RateLimited, RateLimited, RateLimited, RateLimited)
_LOST: Final[Outcomes] = (UnknownOutcome, UnknownOutcome, TemporaryError, TemporaryError)
_REFUSED: Final[Outcomes] = (PermanentError, PermanentError, PermanentError, PermanentError)
_UNSENT: Final[Outcomes] = (Unavailable, Unavailable, Unavailable, Unavailable)

_BY_STATUS: Final[dict[int, Outcomes]] = {
    # CREATE, CHANGE, READ, LIST
    307: _LATER,  # "repeat it elsewhere": not done here; 301 to 303 may follow a finished POST
    308: _LATER,
    401: _CREDENTIAL,
    402: _CREDENTIAL,  # the account is not paid: like a revoked key, one person mends it for all
    403: _CREDENTIAL,  # never Gone: a lost right must not look like a finished release
    404: (PermanentError, Gone, Gone, TemporaryError),
    407: _CREDENTIAL,  # the proxy's
    408: _LOST,  # some vendors answer it when their own back end was too slow
    409: (NameConflict, TemporaryError, TemporaryError, TemporaryError),
    410: (PermanentError, Gone, Gone, TemporaryError),
    412: (NameConflict, TemporaryError, TemporaryError, TemporaryError),  # If-None-Match: *
    421: _LATER,
    423: _LATER,
    424: _LATER,
    425: _LATER,
    429: _LIMITED,
    499: _LOST,  # gateways: the caller was thought to have gone away
    503: (UnknownOutcome, UnknownOutcome, Unavailable, Unavailable),
}
_BY_CLASS: Final[dict[int, Outcomes]] = {3: _LOST, 4: _REFUSED, 5: _LOST}

_NEVER_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


@contextmanager
def outcome_of(call: Call) -> Iterator[None]:
    """Raise the vendor error that what happens to the requests inside this block means.

    Call `raise_for_status()` on each response inside the block, and leave `follow_redirects` off,
    as httpx2 has it: after a redirect, a refused connection no longer proves that nothing was done.

        with outcome_of(Call.CREATE):
            response = await client.post("/buckets", json=body)
            response.raise_for_status()

    Messages name method, path and status, and quote the beginning of a text or JSON answer that was
    read, redacted; never the query or a header.
    """
    try:
        yield
    except httpx2.HTTPStatusError as error:
        raise _from_response(call, error.response) from None
    except _NEVER_SENT as error:
        raise _from_transport(_UNSENT[call], error) from None
    except httpx2.RequestError as error:
        raise _from_transport(_LOST[call], error) from None
    except httpx2.InvalidURL:
        raise PermanentError("the address made for this call is not a URL") from None


def retry_after(response: httpx2.Response) -> float | None:
    """Read Retry-After, seconds or an HTTP date, as seconds, at most `LONGEST_WAIT`.

    None where the vendor does not say, says it unreadably, or names no time to come.
    """
    text = response.headers.get("Retry-After", "").strip()
    seconds = float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else _until(text, response)
    return min(seconds, LONGEST_WAIT) if seconds > 0 else None


def _until(text: str, response: httpx2.Response) -> float:
    """Count from the vendor's own Date, since its clock need not be ours; 0 if unreadable."""
    end = _http_date(text)
    start = _http_date(response.headers.get("Date", "")) or datetime.now(UTC)
    return (end - start).total_seconds() if end else 0.0


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _from_response(call: Call, response: httpx2.Response) -> VendorError:
    status = response.status_code
    row = _BY_STATUS.get(status) or _BY_CLASS.get(status // 100, _LOST)
    message = f"{_named(response.request)}: {status} {_phrase(status)}".rstrip()
    excerpt = _excerpt(response)
    said = f"{message}: {excerpt}" if excerpt else message
    return _built(row[call], said, retry_after(response))


def _from_transport(kind: type[VendorError], error: httpx2.RequestError) -> VendorError:
    return _built(kind, f"{_named(error.request)}: {type(error).__name__}", None)


def _built(kind: type[VendorError], message: str, after: float | None) -> VendorError:
    if issubclass(kind, TemporaryError):
        return kind(message, delay=after)
    if issubclass(kind, (RateLimited, Unavailable)):
        return kind(message, after=after)
    return kind(message)


def _excerpt(response: httpx2.Response) -> str:
    """Give the beginning of an answer in words, on one line; empty where it has none."""
    sort = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"text/.+|application/(.+\+)?json", sort):
        return ""
    try:
        text = response.content[:LONGEST_READ].decode(errors="replace")  # whatever charset it names
    except httpx2.ResponseNotRead:
        return ""
    return " ".join(redacted(text).split())[:LONGEST_EXCERPT]  # cut last: half a secret is none


def _named(request: httpx2.Request) -> str:
    path = request.url.raw_path.partition(b"?")[0].decode("ascii", "replace")
    return f"{request.method} {path[:200]}"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase  # the one on the wire is free text of the vendor's
    except ValueError:
        return ""

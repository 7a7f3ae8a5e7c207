"""The contract between the worker and the author's adapter for a vendor.

An adapter subclasses `Vendor`, alone knows the credential, and says for each call how it ended: by
what it returns, or by one of the vendor errors of `nimble_lifecycle.errors`.
"""

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Literal, TypeAlias

from pydantic import BaseModel

from nimble_lifecycle.protocol import Json, Tenancy


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The resource exists and is usable.

    `external_id` is the vendor's own id, what `release` will act on: 1 to 1024 characters and at
    most 2048 bytes, none of them a control character. `details` is a JSON object of at most 8 KB
    and 100 levels that ordinary tools may read; it holds references to secrets, never a secret.
    Details that cannot be stored are dropped with a message; an id that cannot be makes the outcome
    unknown.
    """

    external_id: str
    details: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InProgress:
    """The vendor works on it; ask again with `poll`.

    `operation_id` is what `poll` will find in `tenancy.operation_id`; its form is that of an
    `external_id`. `poll_after` is in seconds, at most a day; 0 counts as not given.
    `deadline` is in seconds from the answer that began the operation, whatever id `poll` gives it
    later: past it a create counts as unknown, a release is stalled; None means one hour.
    """

    operation_id: str
    poll_after: float = 1.0
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The resource is gone, or was never there."""


@dataclass(frozen=True, slots=True)
class External:
    """A resource as the vendor shows it.

    `key` is the whole idempotency key it carries as our mark, `owner` the owner id alone; both None
    where the vendor cannot carry a mark. Returning one from `find` asserts that it is ours.
    """

    external_id: str
    key: str | None = None
    owner: str | None = None
    created_at: datetime | None = None
    details: Mapping[str, Json] = field(default_factory=dict)


Created: TypeAlias = "Provisioned | InProgress"
Removed: TypeAlias = "Released | InProgress"
Polled: TypeAlias = "Provisioned | Released | InProgress"
Found: TypeAlias = "External | InProgress | None"


class Vendor:
    """Base class of adapters. Methods may be async or plain; plain ones run on threads.

    Declare `kind` and implement `provision` and `release`; the rest is optional and makes the
    worker able to do more by itself. Each call gets at most `time_limit`; at the limit its outcome
    counts as unknown. A Vendor that is an async context manager is entered once before the first
    call and left after the last.
    """

    kind: ClassVar[str]
    """What is kept, by default the FastMCP server's name; rows of other kinds are left alone."""

    repeatable: timedelta | None = None
    """How long `provision` with the same key gives the same resource; None: never."""

    lag: timedelta = timedelta(seconds=10)
    """How long `find` may miss a resource after the call that creates it.

    An operation that `find` cannot show as `InProgress` counts with its longest time: a worker may
    end before it has noted the operation, and another must not create beside it.
    """

    time_limit: timedelta = timedelta(seconds=10)
    """Limit of one call. The lease of a row is three times as long."""

    max_concurrency: int | None = None
    """Calls the vendor takes at a time, over all workers of the database; None: any number."""

    max_rate: float | None = None
    """Calls a second the vendor takes, over all workers of the database; None: any number.

    Never more than that and a tenth of a second's share at once. A step may be two calls, where a
    name is taken and looked up.
    """

    params_model: type[BaseModel] | None = None
    """Checks `tenancy.params` before `provision`; what fails is `stalled: InvalidParams`."""

    on_release: Literal["delete", "keep"] = "delete"
    """`keep`: a release never calls the vendor; the row ends as `kept` and stays listed."""

    def provision(self, tenancy: Tenancy) -> "Created | Awaitable[Created]":
        """Create the resource under `tenancy.idempotency_key`, or bring it to `tenancy.params`.

        Called again with the same key after a failure, and with `tenancy.external_id` set when the
        params of a ready tenancy changed.
        """
        raise NotImplementedError

    def release(self, tenancy: Tenancy) -> "Removed | Awaitable[Removed]":
        """Remove `tenancy.external_id`; what is already gone is `Released()` or raises `Gone`."""
        raise NotImplementedError

    def poll(self, tenancy: Tenancy) -> "Polled | Awaitable[Polled]":
        """Say how `tenancy.operation_id` stands. Needed once `InProgress` is returned.

        Where the vendor has forgotten the operation, raise `Gone`: a create is then unknown, and an
        update or a release is begun once more.
        """
        raise NotImplementedError

    def find(self, tenancy: Tenancy) -> "Found | Awaitable[Found]":
        """Look up the resource that carries `tenancy.idempotency_key`; None: there is none."""
        raise NotImplementedError

    def inventory(self) -> "AsyncIterator[External] | Iterator[External]":
        """List every resource of ours at the vendor, completely or with an error."""
        raise NotImplementedError

    @classmethod
    def implements(cls, method: str) -> bool:
        """Whether this class brings its own `method`."""
        return getattr(cls, method) is not getattr(Vendor, method)

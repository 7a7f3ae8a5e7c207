"""What an author may tell the conformance suite about the vendor behind an adapter.

An adapter shows only what it wants to. A sandbox is the other view, of the vendor's own side: with
it the suite looks at the world instead of believing the adapter, and makes the vendor misbehave.
"""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final

from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.vendor import External, Provisioned, Vendor

RETRY_AFTER: Final = 120.0
"""Seconds that `Trouble.LIMITED` asks for."""


class Trouble(StrEnum):
    """A way for the vendor to misbehave."""

    REFUSED = "a credential that is refused (401)"
    FORBIDDEN = "a right that was taken away (403)"
    LIMITED = "a rate limit (429)"
    UNREACHABLE = "a refused connection"
    SILENT = "requests that are never answered"
    FAILING = "errors of the vendor's own (500)"
    ANSWER_LOST = "a request that is applied and its answer lost"
    ANSWER_LATE = "a request that is applied and never answered"
    ERROR_AFTER = "a request that is applied and answered with 502"


class Sandbox:
    """Base class of sandboxes; every method is optional, and each makes more checks possible.

    The account should be quiet during a run. A Sandbox that is an async context manager is entered
    before the adapter and left after it. Methods may raise anything: it ends the run.
    """

    async def resources(self) -> Iterable[External]:
        """List every resource there is, ours or not, as the vendor itself shows it.

        `key` where the vendor shows our mark. `details` is compared to see that what is not ours
        was not touched, and that changed params reach what is: show what params change, and leave
        out what changes by itself.
        """
        raise NotImplementedError

    async def usable(self, made: Provisioned) -> bool:
        """Whether a resource can be used, now that the adapter has called it ready."""
        raise NotImplementedError

    async def occupy(self, tenancy: Tenancy) -> str:
        """Make a resource without our mark, named as the adapter would name this tenancy's.

        Give its external id.
        """
        raise NotImplementedError

    async def remove(self, external_id: str) -> None:
        """Remove a resource behind the adapter's back; what is not there is no error."""
        raise NotImplementedError

    def under(
        self, vendor: Vendor, trouble: Trouble, after: int = 0
    ) -> AbstractAsyncContextManager[Vendor]:
        """Give an adapter that meets `trouble` with every request but the first `after`.

        Either `vendor` itself, while the vendor misbehaves, or another one made for this, say with
        a wrong credential. `ANSWER_LOST`, `ANSWER_LATE` and `ERROR_AFTER` are to hit one request
        only, the one that comes after those. Raise NotImplementedError for what cannot be made.
        """
        raise NotImplementedError

    @classmethod
    def implements(cls, method: str) -> bool:
        """Whether this class brings its own `method`."""
        return getattr(cls, method) is not getattr(Sandbox, method)

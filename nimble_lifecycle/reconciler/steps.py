"""One step of one row at the vendor: which method is called, and what is asked after it."""

import asyncio
import logging
from collections.abc import Callable

from pydantic import ValidationError

from nimble_lifecycle.errors import NameConflict, UnknownOutcome
from nimble_lifecycle.protocol import Tenancy, Why
from nimble_lifecycle.reconciler.calls import (
    Calls,
    Ended,
    Method,
    NoLookUpError,
    OverrunError,
    RefusedUnsentError,
    ended,
    is_mistake,
)
from nimble_lifecycle.reconciler.redact import described, traced
from nimble_lifecycle.reconciler.vendor import External, InProgress, Vendor
from nimble_lifecycle.store import Claim, Step
from nimble_lifecycle.store.ports import Clock, Hop

log = logging.getLogger("nimble_reconcile")


class Steps:
    """Takes claimed steps at the vendor; `hop` runs the adapter's plain methods."""

    def __init__(self, vendor: Vendor, clock: Clock, hop: Hop) -> None:
        self._vendor = vendor
        self._clock = clock
        self._hop = hop
        self._limit = vendor.time_limit.total_seconds()
        self._calls = Calls(limit=self._limit, clock=clock, hop=hop)

    def begin(self, claim: Claim, over: Callable[[Ended], None]) -> None:
        """Begin what the claim is for, and call `over` with how it ended, maybe at once.

        Nothing an adapter does is raised.
        """
        refused = self._refusal(claim)
        if refused is not None:
            over(refused)
            return
        method = self._method(claim.step)
        self._calls.begin(
            method, claim.tenancy, lambda outcome: over(self._heard(method, claim.tenancy, outcome))
        )

    def abandon(self) -> "set[asyncio.Task[Ended]]":
        """Cancel every call under way, of which nothing more is heard; give what ends then."""
        return self._calls.abandon()

    def _refusal(self, claim: Claim) -> Ended:
        """Say why the vendor is not to be called; None: it is."""
        match claim.step:
            case Step.CREATE | Step.UPDATE if not claim.readable:
                words = "the params are no JSON object"
                return RefusedUnsentError(words, reason=Why.INVALID_PARAMS)
            case Step.CREATE | Step.UPDATE:
                return invalid_identity(claim.tenancy) or invalid_params(
                    self._vendor, claim.tenancy
                )
            case Step.FIND if not self._vendor.implements("find"):
                reason = Why.CREATE_OUTCOME_UNKNOWN
                return NoLookUpError("the adapter has no look-up", reason=reason)
            case Step.FIND:
                return invalid_identity(claim.tenancy)
        return None

    def _method(self, step: Step) -> Method:
        match step:
            case Step.CREATE | Step.UPDATE:
                return self._vendor.provision
            case Step.FIND:
                return self._vendor.find
            case Step.POLL:
                return self._vendor.poll
            case Step.RELEASE:
                return self._vendor.release

    async def looked_up(self, claim: Claim, outcome: Ended) -> Ended:
        """Ask once, where the name of a create was taken, whether what has it carries our mark."""
        conflict = isinstance(outcome, NameConflict) and claim.step is Step.CREATE
        if not conflict or not self._vendor.implements("find"):
            return outcome
        find, tenancy = self._vendor.find, claim.tenancy
        asked = await ended(find, tenancy, limit=self._limit, clock=self._clock, hop=self._hop)
        found = self._heard(find, tenancy, asked)
        if isinstance(found, External | InProgress):
            return found
        if found is None or isinstance(found, NameConflict):
            return outcome
        if isinstance(found, OverrunError):
            return found  # whoever waits for its late end must know of it
        # It may be what this very create made, if the request was sent twice on its way.
        return UnknownOutcome("the name is taken, and the look-up did not say by whom")

    def _heard(self, method: Method, tenancy: Tenancy, outcome: Ended) -> Ended:
        """Take what no adapter means for its mistake, and tell of it."""
        if isinstance(outcome, InProgress) and not self._vendor.implements("poll"):
            outcome = TypeError("the adapter returned InProgress, but it has no method poll")
        if is_mistake(outcome):
            name = getattr(method, "__name__", "a method")
            log.error(
                "mistake in the adapter's %s for row %s:\n%s", name, tenancy.id, traced(outcome)
            )
        return outcome


def invalid_identity(tenancy: Tenancy) -> RefusedUnsentError | None:
    """Say what is wrong with the ids of a tenancy; the server's role can write any."""
    try:
        _ = tenancy.workspace
    except ValueError as error:
        return RefusedUnsentError(str(error), reason=Why.INVALID_IDENTITY)
    return None


def invalid_params(vendor: Vendor, tenancy: Tenancy) -> RefusedUnsentError | None:
    """Say what is wrong with the params of a tenancy, naming fields but no values."""
    if vendor.params_model is None:
        return None
    try:
        vendor.params_model.model_validate(dict(tenancy.params))
    except ValidationError as error:
        fields = ", ".join(sorted({str(e["loc"][0]) for e in error.errors() if e["loc"]}))
        where = f" at {fields}" if fields else ""
        return RefusedUnsentError(f"the params do not validate{where}", reason=Why.INVALID_PARAMS)
    except Exception as error:  # noqa: BLE001  # a validator of the author may raise anything
        text = f"the params cannot be checked: {described(error)}"
        return RefusedUnsentError(text, reason=Why.INVALID_PARAMS)
    return None

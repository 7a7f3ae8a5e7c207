"""One step of one row at the vendor: which method is called, and what is asked after it."""

import logging
from dataclasses import dataclass

from pydantic import ValidationError

from nimble_lifecycle.errors import NameConflict, PermanentError, UnknownOutcome
from nimble_lifecycle.protocol import Tenancy, Why
from nimble_lifecycle.reconciler.calls import Ended, Method, OverrunError, ended, is_mistake
from nimble_lifecycle.reconciler.redact import described, traced
from nimble_lifecycle.reconciler.vendor import External, InProgress, Vendor
from nimble_lifecycle.store import Claim, Step
from nimble_lifecycle.store.ports import Clock, Hop

log = logging.getLogger("nimble_reconcile")


@dataclass(frozen=True, slots=True)
class Steps:
    """Takes claimed steps at the vendor; `hop` runs the adapter's plain methods."""

    vendor: Vendor
    clock: Clock
    hop: Hop

    async def take(self, claim: Claim) -> Ended:
        """Do what the claim is for and give how it ended; nothing an adapter does is raised."""
        match claim.step:
            case Step.CREATE | Step.UPDATE:
                return await self._provision(claim)
            case Step.FIND:
                return await self._find(claim)
            case Step.POLL:
                return await self._call(self.vendor.poll, claim.tenancy)
            case Step.RELEASE:
                return await self._call(self.vendor.release, claim.tenancy)

    async def _provision(self, claim: Claim) -> Ended:
        if not claim.readable:
            return PermanentError("the params are no JSON object", reason=Why.INVALID_PARAMS)
        refused = invalid_identity(claim.tenancy) or invalid_params(self.vendor, claim.tenancy)
        if refused is not None:
            return refused
        outcome = await self._call(self.vendor.provision, claim.tenancy)
        if isinstance(outcome, NameConflict) and claim.step is Step.CREATE:
            return await self._ours_after_all(claim, outcome)
        return outcome

    async def _ours_after_all(self, claim: Claim, conflict: NameConflict) -> Ended:
        """Ask once whether what has the name carries our mark."""
        if not self.vendor.implements("find"):
            return conflict
        found = await self._call(self.vendor.find, claim.tenancy)
        if isinstance(found, External | InProgress):
            return found
        if found is None or isinstance(found, NameConflict):
            return conflict
        if isinstance(found, OverrunError):
            return found  # whoever waits for its late end must know of it
        # It may be what this very create made, if the request was sent twice on its way.
        return UnknownOutcome("the name is taken, and the look-up did not say by whom")

    async def _find(self, claim: Claim) -> Ended:
        if not self.vendor.implements("find"):
            return PermanentError("the adapter has no look-up", reason=Why.CREATE_OUTCOME_UNKNOWN)
        return await self._call(self.vendor.find, claim.tenancy)

    async def _call(self, method: Method, tenancy: Tenancy) -> Ended:
        limit = self.vendor.time_limit.total_seconds()
        outcome = await ended(method, tenancy, limit=limit, clock=self.clock, hop=self.hop)
        if isinstance(outcome, InProgress) and not self.vendor.implements("poll"):
            outcome = TypeError("the adapter returned InProgress, but it has no method poll")
        if is_mistake(outcome):
            name = getattr(method, "__name__", "a method")
            log.error(
                "mistake in the adapter's %s for row %s:\n%s", name, tenancy.id, traced(outcome)
            )
        return outcome


def invalid_identity(tenancy: Tenancy) -> PermanentError | None:
    """Say what is wrong with the ids of a tenancy; the server's role can write any."""
    try:
        _ = tenancy.workspace
    except ValueError as error:
        return PermanentError(str(error), reason=Why.INVALID_IDENTITY)
    return None


def invalid_params(vendor: Vendor, tenancy: Tenancy) -> PermanentError | None:
    """Say what is wrong with the params of a tenancy, naming fields but no values."""
    if vendor.params_model is None:
        return None
    try:
        vendor.params_model.model_validate(dict(tenancy.params))
    except ValidationError as error:
        fields = ", ".join(sorted({str(e["loc"][0]) for e in error.errors() if e["loc"]}))
        where = f" at {fields}" if fields else ""
        return PermanentError(f"the params do not validate{where}", reason=Why.INVALID_PARAMS)
    except Exception as error:  # noqa: BLE001  # a validator of the author may raise anything
        text = f"the params cannot be checked: {described(error)}"
        return PermanentError(text, reason=Why.INVALID_PARAMS)
    return None

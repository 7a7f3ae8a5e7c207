"""From how a vendor call ended to what is written about it: one pure function, no I/O.

Every call has one of three outcomes: applied, certainly not applied, unknown. The table follows the
Open Service Broker specification's "Orphan Mitigation" in spirit: an unknown create is settled
before anything else is done, and never by guessing.
"""

from dataclasses import replace
from typing import Final

from nimble_lifecycle.errors import (
    CredentialError,
    Gone,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
)
from nimble_lifecycle.protocol import Phase, Why
from nimble_lifecycle.reconciler.calls import UNSENT, Ended, NoLookUpError, RefusedUnsentError
from nimble_lifecycle.reconciler.settled import Policy, SettlementBuilder, pause_of, reason_of
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Released
from nimble_lifecycle.store import Claim, Settlement, Step

_PASSING: Final = (
    None,
    Why.BACKING_OFF,
    Why.CREDENTIAL_REFUSED,
    Why.IN_PROGRESS,
    Why.OPERATION_OVERDUE,
    Why.PERMISSION_DENIED,
    Why.RATE_LIMITED,
    Why.STILL_IN_USE,
    Why.VENDOR_UNAVAILABLE,
    Why.WAITING_FOR_PREDECESSOR,
)
"""Reasons of an unresolved row that go away by themselves; any other says what was refused."""


PROOF: Final = frozenset(
    {
        "provisioned",
        "in progress",
        "still in progress",
        "released",
        "not found",
        "not found yet",
        "found another's",
        "name taken",
    }
)
"""Outcomes that no vendor gives to a credential it refuses."""


def settlement(claim: Claim, ended: Ended, policy: Policy, *, seconds: float = 0.0) -> Settlement:
    """Say what the end of a step, which took so many seconds, means for its row."""
    row = SettlementBuilder(claim, policy, seconds)
    match claim.step:
        case Step.CREATE:
            return _create(row, ended)
        case Step.UPDATE:
            return _update(row, ended)
        case Step.FIND:
            return _find(row, ended)
        case Step.POLL:
            return _poll(row, ended)
        case Step.RELEASE:
            return _release(row, ended)


def shared(claim: Claim, policy: Policy) -> Settlement:
    """Say that the resource a vendor named belongs to another row already."""
    error = NameConflict("another tenancy has the resource that the vendor gave for this one")
    row = SettlementBuilder(claim, policy)
    stalled = row.stalled(Why.SHARED_RESOURCE, error, "shared")
    return replace(stalled, creates=row.not_created(), nothing_there=True)


def behind(settled: Settlement, claim: Claim, policy: Policy) -> Settlement:
    """Let a row whose name or resource its predecessor still has wait for that to be gone."""
    attempts = claim.attempts + 1
    return replace(
        settled,
        phase=Phase.PENDING,
        reason=Why.WAITING_FOR_PREDECESSOR,
        attempts=attempts,
        delay=policy.backoff.delay(attempts),
    )


def refused_to_all(settled: Settlement, claim: Claim, policy: Policy) -> Settlement:
    """Let a row wait for the credential, which the vendor refuses whatever the row is."""
    return replace(
        settled,
        reason=Why.CREDENTIAL_REFUSED,
        attempts=claim.attempts,
        delay=policy.backoff.delay(1),
    )


# -- create ----------------------------------------------------------------------------------------


def _create(row: SettlementBuilder, ended: Ended) -> Settlement:
    match ended:
        case Provisioned():
            return row.ready(ended.external_id, ended.details)
        case External():  # found by its mark after the name was refused
            return _found(row, ended)
        case InProgress():
            return row.waiting(Phase.PROVISIONING, ended)
        case PermanentError() | NameConflict():
            return _refused(row, ended)
        case TemporaryError() | CredentialError() | RateLimited() | Unavailable():
            return _not_applied(row, ended)
    return _unknown_create(row, _as_error(ended))


def _refused(row: SettlementBuilder, error: PermanentError | NameConflict) -> Settlement:
    """Stall, unless an earlier create under the same key may have been applied.

    It may still land for a lease. A vendor that remembers the key and refuses it after that has
    applied none: it would have given what that made.
    """
    outcome = "name taken" if isinstance(error, NameConflict) else "refused"
    claim = row.claim
    stalled = replace(
        row.stalled(reason_of(error), error, outcome),
        creates=0,
        nothing_there=_was_unsent(row, error),
    )
    for_good = claim.remembered and claim.reason == stalled.reason
    if row.not_created() == 0 or for_good:
        return stalled
    waits = _not_applied(row, error)
    delay = max(claim.create_ends_in, waits.delay or 0.0)
    said = replace(waits, reason=stalled.reason, message=stalled.message)
    return replace(said, outcome=outcome, delay=delay)


def _not_applied(row: SettlementBuilder, error: Exception) -> Settlement:
    # This create was not applied; an earlier one under the same key may have been.
    left = row.not_created()
    phase = Phase.UNRESOLVED if left else Phase.PENDING
    again = replace(row.again(phase, error, "not applied"), creates=left, operation_id=None)
    return replace(again, nothing_there=_was_unsent(row, error))


def _was_unsent(row: SettlementBuilder, error: Exception) -> bool:
    """Whether no create of the row ever reached the vendor; an adapter's word is no proof."""
    return isinstance(error, UNSENT) and row.claim.first_create


def _unknown_create(row: SettlementBuilder, error: Exception) -> Settlement:
    if row.policy.can_find or row.policy.repeatable:
        settled = replace(row.again(Phase.UNRESOLVED, error, "unknown"), operation_id=None)
        # All creates under a key the vendor remembers make one resource: they count as one.
        known = max(1, row.not_created()) if row.claim.remembered else settled.creates
        return replace(settled, creates=known)
    return row.stalled(Why.CREATE_OUTCOME_UNKNOWN, error, "unknown")


# -- update ----------------------------------------------------------------------------------------


def _update(row: SettlementBuilder, ended: Ended) -> Settlement:
    match ended:
        case Provisioned() if ended.external_id != row.claim.tenancy.external_id:
            # Which of the two is in use only a person can tell; neither is touched.
            other = PermanentError("the adapter answered an update with another resource's id")
            return _update(row, other)
        case Provisioned():
            return row.ready(ended.external_id, ended.details)
        case InProgress():
            return row.waiting(Phase.PROVISIONING, ended)
        case PermanentError() | NameConflict():
            # The resource is as it was and can be used; only the new params were refused.
            refused = row.stalled(reason_of(ended), ended, "refused")
            return replace(refused, phase=Phase.READY, attempts=0)
    return replace(row.again(Phase.READY, _as_error(ended), "failed"), operation_id=None)


# -- find ------------------------------------------------------------------------------------------


def _find(row: SettlementBuilder, ended: Ended) -> Settlement:
    match ended:
        case External():
            return _found(row, ended)
        case InProgress() if row.claim.reason == Why.OPERATION_OVERDUE:
            # The same operation: it gets no new deadline, and whoever looks sees what is wrong.
            late = row.again(Phase.UNRESOLVED, _overdue(), "still in progress")
            return replace(late, reason=Why.OPERATION_OVERDUE)
        case InProgress():
            return row.waiting(Phase.PROVISIONING, ended)
        case NameConflict():
            return _anothers(row, ended)
        case None | Gone():
            return _not_found(row)
        case RefusedUnsentError():
            # No host has its identity, which never changes: nothing was ever sent for it. But that
            # is our word, not the vendor's, and proves nothing of the credential.
            return replace(_not_found(row), outcome="never sent")
        case NoLookUpError():  # what the create met says more
            stalled = row.stalled(Why.CREATE_OUTCOME_UNKNOWN, ended, "no look-up")
            return replace(stalled, error=None)
        case PermanentError():
            return row.stalled(Why.CREATE_OUTCOME_UNKNOWN, ended, "no look-up")
    return row.again(Phase.UNRESOLVED, _as_error(ended), "look-up failed")


def _not_found(row: SettlementBuilder) -> Settlement:
    """Rule 6: believed only once the create can no longer run and the lag is over."""
    claim, policy = row.claim, row.policy
    why, message = claim.reason, claim.tenancy.message
    believable = claim.create_ends_in + policy.lag
    if believable > 0 and why in _PASSING and row.may_repeat():
        # The vendor answers, and under the same key there can be no second resource.
        return replace(row.settled(Phase.PROVISIONING, "not found yet"), delay=0.0)
    if believable > 0:
        early = row.settled(Phase.UNRESOLVED, "not found yet")
        return replace(early, delay=believable, reason=why, message=message)
    if why in _PASSING and claim.releasing:
        # Whoever asks it back meanwhile gets it back with its back-off.
        delay = policy.backoff.delay(claim.attempts) if claim.attempts else 0.0
        back = replace(row.settled(Phase.PENDING, "not found"), delay=delay, nothing_there=True)
        return replace(back, reason=why, message=message)
    if why in _PASSING:
        found = row.settled(Phase.PENDING, "not found")
        return replace(found, delay=0.0, nothing_there=True)
    # The last create was refused for good, and none before it left anything behind.
    refused = replace(row.settled(Phase.STALLED, "not found"), reason=why, message=message)
    return replace(refused, nothing_there=True)


def _anothers(row: SettlementBuilder, conflict: NameConflict) -> Settlement:
    """Leave alone what is not ours; what has our name proves that nothing of ours has it."""
    stalled = row.stalled(Why.NAME_CONFLICT, conflict, "found another's")
    return replace(stalled, nothing_there=True)


def _found(row: SettlementBuilder, external: External) -> Settlement:
    """Take what a look-up asserts to be ours, once what it shows agrees.

    It tells that the resource is there, not that the create got as far as the params: where there
    are any, an update follows at once.
    """
    key = row.claim.tenancy.idempotency_key or ""
    owner = key.partition("-")[0]
    if external.key not in (None, key) or external.owner not in (None, owner):
        return _anothers(row, NameConflict("what was found carries another mark"))
    found = row.ready(external.external_id, external.details)
    return replace(found, finished=False, delay=0.0) if row.claim.tenancy.params else found


# -- poll ------------------------------------------------------------------------------------------


def _poll(row: SettlementBuilder, ended: Ended) -> Settlement:
    tenancy = row.claim.tenancy
    if tenancy.phase is Phase.RELEASING:
        return _poll_release(row, ended)
    # A late worker may have given the row a resource while its create went on: what that makes is
    # then a surplus, known by the journal.
    made = isinstance(ended, Provisioned) and row.claim.creates > 0
    if tenancy.external_id is not None and not made:
        return _poll_update(row, ended)
    return _poll_create(row, ended)


def _poll_create(row: SettlementBuilder, ended: Ended) -> Settlement:
    match ended:
        case Provisioned():
            return row.ready(ended.external_id, ended.details)
        case InProgress() if not row.claim.overdue:
            return row.waiting(Phase.PROVISIONING, ended)
        case PermanentError() | NameConflict():
            return _refused(row, ended)
        case Released():
            return _not_applied(row, TemporaryError("the operation ended without a resource"))
        case Gone():  # the vendor knows the operation no more
            return _unknown_create(row, ended)
    if _is_overdue(row, ended):
        unknown = _unknown_create(row, _overdue())
        stalled = unknown.phase is Phase.STALLED
        return unknown if stalled else replace(unknown, reason=Why.OPERATION_OVERDUE)
    return row.again(Phase.PROVISIONING, _as_error(ended), "poll failed")


def _poll_update(row: SettlementBuilder, ended: Ended) -> Settlement:
    match ended:
        case Provisioned() | PermanentError() | NameConflict() | Gone() | Released():
            return _update(row, ended)
        case InProgress() if not row.claim.overdue:
            return _update(row, ended)
    if _is_overdue(row, ended):
        return _update(row, _overdue())
    return row.again(Phase.PROVISIONING, _as_error(ended), "poll failed")


def _poll_release(row: SettlementBuilder, ended: Ended) -> Settlement:
    match ended:
        case Released() | PermanentError() | NameConflict():
            return _release(row, ended)
        case InProgress() if not row.claim.overdue:
            return _release(row, ended)
        case Gone():
            # It may be the operation that the vendor has forgotten: `release` itself will tell.
            return replace(row.again(Phase.RELEASING, ended, "poll failed"), operation_id=None)
    if _is_overdue(row, ended):
        return row.stalled(Why.OPERATION_OVERDUE, _overdue(), "overdue")
    return row.again(Phase.RELEASING, _as_error(ended), "poll failed")


def _is_overdue(row: SettlementBuilder, ended: Ended) -> bool:
    """Whether to stop polling; not while it is the vendor as a whole that does not answer."""
    waiting = pause_of(ended) is not None or isinstance(ended, CredentialError)
    return row.claim.overdue and not waiting


def _overdue() -> TimeoutError:
    return TimeoutError("the vendor's operation is past its deadline")


# -- release ---------------------------------------------------------------------------------------


def _release(row: SettlementBuilder, ended: Ended) -> Settlement:
    match ended:
        case Released() | Gone():
            return row.released()
        case InProgress():
            return row.waiting(Phase.RELEASING, ended)
        case PermanentError() | NameConflict():
            return row.stalled(reason_of(ended), ended, "refused")
    return replace(row.again(Phase.RELEASING, _as_error(ended), "failed"), operation_id=None)


def _as_error(ended: Ended) -> Exception:
    """Take a value that makes no sense for its step for the adapter's mistake."""
    if isinstance(ended, Exception):
        return ended
    return TypeError(f"the adapter returned {type(ended).__name__}, which says nothing here")

"""The settlements that steps have in common: ready, waiting, backing off, stalled."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from nimble_lifecycle.errors import (
    CredentialError,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
)
from nimble_lifecycle.protocol import OPERATOR_ONLY, Json, Phase, Why
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.calls import Ended
from nimble_lifecycle.reconciler.redact import described, redacted
from nimble_lifecycle.reconciler.vendor import InProgress
from nimble_lifecycle.store import Claim, Settlement

MAX_DETAILS = 8192
"""Largest `details`, in bytes of JSON."""

MAX_NESTING = 100
"""Deepest `details`; neither Python nor SQLite reads JSON of any depth."""

OPERATION_LIMIT = 3600.0
"""Seconds an operation may take where the adapter names no deadline."""

POLL_AFTER = 1.0
"""Seconds between two questions about an operation where the adapter names none."""

MAX_OPERATION = 366 * 86400.0
"""Longest deadline of an operation, in seconds."""

MAX_PAUSE = 3600.0
"""Longest pause a vendor can ask for, in seconds."""

DEFAULT_PAUSE = 5.0
"""Seconds of a pause where the vendor names none."""

MAX_DELAY = 86400.0
"""Longest time until a row is looked at again that an adapter can ask for, in seconds."""

MAX_REASON = 64
"""Longest reason an adapter can give, in characters."""

"""The reason of a refusal whose adapter gives none."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the table needs to know besides the call. Times in seconds."""

    backoff: Backoff
    lag: float
    can_find: bool
    repeatable: bool
    max_creates: int


def pause_of(ended: Ended) -> tuple[float, Why] | None:
    """Give how long the whole vendor is to be left alone, and why; None: it is not."""
    if not isinstance(ended, (RateLimited, Unavailable)):
        return None
    limited = isinstance(ended, RateLimited)
    seconds = _seconds(_given(ended, "after"), otherwise=DEFAULT_PAUSE, longest=MAX_PAUSE)
    return seconds, Why.RATE_LIMITED if limited else Why.VENDOR_UNAVAILABLE


def reason_of(refused: PermanentError | NameConflict) -> str:
    """Give the stable word for why the vendor refused for good."""
    if isinstance(refused, NameConflict):
        return Why.NAME_CONFLICT
    given = _given(refused, "reason")
    # What only a person may settle is ours to say: not even changed params would wake the row.
    if not isinstance(given, str) or len(given) > MAX_REASON or given in OPERATOR_ONLY:
        return Why.REJECTED
    return redacted(given).strip() or Why.REJECTED


@dataclass(slots=True)  # a frozen one takes twice as long to make
class SettlementBuilder:
    """A claimed row, and what can be said about it whatever the step was, which took `seconds`."""

    claim: Claim
    policy: Policy
    seconds: float = 0.0

    def settled(self, phase: Phase, outcome: str) -> Settlement:
        """Say nothing but the phase; the row is not due again."""
        claim = self.claim
        return self._ended(phase, outcome, attempts=claim.attempts, creates=claim.creates)

    def ready(self, external_id: str, details: Mapping[str, Json]) -> Settlement:
        """Say that the resource exists and is as the claimed generation wants it."""
        kept, message = storable(details)
        # Not by `replace`, which takes as long again: this is how nearly all steps end.
        return self._ended(
            Phase.READY,
            "provisioned",
            external_id=external_id,
            details=kept,
            message=message,
            finished=True,
        )

    def _ended(
        self,
        phase: Phase,
        outcome: str,
        *,
        attempts: int = 0,
        creates: int = 0,
        external_id: str | None = None,
        details: dict[str, Json] | None = None,
        message: str | None = None,
        finished: bool = False,
    ) -> Settlement:
        claim = self.claim
        return Settlement(
            id=claim.tenancy.id,
            token=claim.token,
            generation=claim.generation,
            action=claim.step.value,
            outcome=outcome,
            phase=phase,
            attempts=attempts,
            creates=creates,
            external_id=external_id,
            details=details,
            message=message,
            finished=finished,
            seconds=self.seconds,
        )

    def released(self) -> Settlement:
        """Say that the resource is gone."""
        return replace(self.settled(Phase.RELEASED, "released"), attempts=0, finished=True)

    def waiting(self, phase: Phase, progress: InProgress) -> Settlement:
        """Come back for the vendor's operation."""
        return replace(
            self.settled(phase, "in progress"),
            reason=Why.IN_PROGRESS,
            operation_id=progress.operation_id,
            operation_limit=_seconds(
                progress.deadline, otherwise=OPERATION_LIMIT, longest=MAX_OPERATION
            ),
            # A vendor that says "now" is not asked in a loop.
            delay=_seconds(progress.poll_after, otherwise=POLL_AFTER, longest=MAX_DELAY)
            or POLL_AFTER,
        )

    def again(self, phase: Phase, error: Exception, outcome: str) -> Settlement:
        """Back off, or wait for the vendor as a whole; an open operation stays open."""
        whole = pause_of(error)
        attempts = self.claim.attempts + (1 if whole is None else 0)
        return replace(
            self.settled(phase, outcome),
            reason=_why(error),
            error=described(error),
            delay=self._delay(error, attempts),
            attempts=attempts,
            operation_id=self.claim.tenancy.operation_id,
        )

    def stalled(self, reason: str, error: Exception, outcome: str) -> Settlement:
        """Stop until a person, or changed params, make a difference."""
        text = described(error)
        stalled = self.settled(Phase.STALLED, outcome)
        return replace(stalled, reason=reason, error=text, message=text)

    def not_created(self) -> int:
        """Count the creates that may have been applied, without this one."""
        return max(0, self.claim.creates - 1)

    def may_repeat(self) -> bool:
        """Whether the create may be begun again now, under the same key."""
        claim = self.claim
        left = claim.creates < self.policy.max_creates
        return claim.remembered and left and not claim.releasing

    def _delay(self, error: Exception, attempts: int) -> float:
        backoff = self.policy.backoff
        if pause_of(error) is not None:
            return backoff.delay(1)  # it is the pause of the whole kind that holds it
        own = backoff.delay(attempts)
        if not isinstance(error, TemporaryError):
            return own
        # Never sooner than the shortest back-off: a vendor that says "now" is not asked in a loop.
        return max(
            backoff.first, _seconds(_given(error, "delay"), otherwise=own, longest=MAX_DELAY)
        )


def _why(error: Exception) -> Why:
    whole = pause_of(error)
    if whole is not None:
        return whole[1]
    return Why.PERMISSION_DENIED if isinstance(error, CredentialError) else Why.BACKING_OFF


def _given(error: Exception, name: str) -> object:
    """Read what an error says besides its text; None where it says nothing."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001  # the class of an adapter may be broken in any way
        return None


def _seconds(given: object, *, otherwise: float, longest: float) -> float:
    """Read a time an adapter gave; what is no number of seconds counts as not given.

    A timedelta is taken for its seconds: adapters declare their limits as such.
    """
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return otherwise
    try:
        seconds = float(given)
    except OverflowError:
        return otherwise
    return min(seconds, longest) if seconds >= 0 else otherwise  # NaN is not either


def storable(details: object) -> tuple[dict[str, Json] | None, str | None]:
    """Give details as they can be stored, or say why they are not."""
    if type(details) is dict and not details:
        return {}, None
    try:
        text = json.dumps(details, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except Exception:  # noqa: BLE001  # the mapping may be a class of the adapter
        return None, "the adapter's details are not JSON and were dropped"
    # Written out and read back: only then keys are text, and it is what the database will hold.
    kept = json.loads(text)
    if not isinstance(kept, dict) or r"\u0000" in text:
        return None, "the adapter's details are not a JSON object of text and were dropped"
    if size > MAX_DETAILS:
        return None, f"the adapter's details are over {MAX_DETAILS} bytes and were dropped"
    if _nesting(kept) > MAX_NESTING:
        return None, f"the adapter's details are over {MAX_NESTING} levels deep and were dropped"
    return kept, None


def _nesting(value: Json) -> int:
    """Count the levels of a document."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [inner for each in level for inner in _inside(each)]
    return depth


def _inside(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()

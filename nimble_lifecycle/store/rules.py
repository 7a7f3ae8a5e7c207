"""By what rules a worker judges rows: what its vendor can do, and what its operator wishes."""

from dataclasses import dataclass

from nimble_lifecycle.store.room import BURST


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a claim must know of the vendor and of the operator's wishes. Times in seconds."""

    kind: str
    owner: str
    lease: float
    grace: float
    max_creates: int
    repeatable: float | None
    can_find: bool
    keeps: bool
    backoff_first: float = 1.0
    backoff_longest: float = 600.0
    max_concurrency: int | None = None
    """Calls of this kind in flight, over all workers."""
    max_rate: float | None = None
    """Calls of this kind a second, over all workers."""
    max_live: int | None = None
    max_creates_per_hour: int | None = None
    release_share: float = 0.25
    """The part of the fleet that may be released in 24 hours."""
    release_least: int = 10
    """How many may be released in any case."""


def rule_values(rules: Rules) -> dict[str, object]:
    """Give the bound values of whatever judges rows by these rules."""
    rate = rules.max_rate
    return {
        "its_kind": rules.kind,
        "its_owner": rules.owner,
        "its_lease": rules.lease,
        "its_grace": rules.grace,
        "its_max_creates": rules.max_creates,
        # A call may reach the vendor as late as its lease allows.
        "its_repeatable": (rules.repeatable or 0.0) - rules.lease,
        "its_backoff_first": rules.backoff_first,
        "its_backoff_longest": rules.backoff_longest,
        "its_can_find": rules.can_find,
        "its_keeps": rules.keeps,
        "its_live_cap": rules.max_live,
        "its_hourly_cap": rules.max_creates_per_hour,
        "its_release_share": rules.release_share,
        "its_release_least": rules.release_least,
        "its_concurrency": rules.max_concurrency,
        "its_rate": rate,
        "its_burst": None if rate is None else max(1.0, rate * BURST),
        "its_capped": rules.max_live is not None or rules.max_creates_per_hour is not None,
        "its_paced": rules.max_concurrency is not None or rate is not None,
    }

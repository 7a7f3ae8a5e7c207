"""How much a worker does and how long it waits, and what claims and outcomes must know of that."""

import secrets
import socket
from dataclasses import dataclass, field

from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.settled import Policy
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.settings import LONGEST
from nimble_lifecycle.store import Rules
from nimble_lifecycle.store.room import BURST

LEASES_PER_LIMIT = 3
"""A lease lasts this many times the limit of one call, and is never renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a worker does and how long it waits; times in seconds."""

    concurrency: int = 20
    poll: float = 1.0
    grace: float = 86400.0
    drain: float = 10.0
    max_creates: int = 5
    max_live: int | None = None
    """Tenancies that may exist; None: any number."""
    max_creates_per_hour: int | None = None
    """Tenancies that may be begun within an hour; None: any number."""
    release_share: float = 0.25
    """The part of the fleet that may be released within a day."""
    release_least: int = 10
    """How many may be released within a day, however small the fleet."""
    backoff: Backoff = field(default_factory=Backoff)


def new_owner() -> str:
    """Name this process as the owner of leases; a restart on the same host is another owner."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"


def rules_of(vendor: Vendor, limits: Limits, owner: str) -> Rules:
    """Say what a claim must know of the vendor and of the operator's wishes."""
    repeatable = vendor.repeatable
    return Rules(
        kind=vendor.kind,
        owner=owner,
        lease=_lease(vendor),
        grace=limits.grace,
        max_creates=limits.max_creates,
        repeatable=None if repeatable is None else min(repeatable.total_seconds(), LONGEST),
        can_find=vendor.implements("find"),
        keeps=vendor.on_release == "keep",
        backoff_first=limits.backoff.first,
        backoff_longest=limits.backoff.longest,
        max_concurrency=vendor.max_concurrency,
        max_rate=vendor.max_rate,
        max_live=limits.max_live,
        max_creates_per_hour=limits.max_creates_per_hour,
        release_share=limits.release_share,
        release_least=limits.release_least,
    )


def turn_of(vendor: Vendor, limits: Limits) -> float:
    """Say how long to wait between two looks; a rate must be looked at as often as it has room."""
    if vendor.max_rate is None:
        return limits.poll
    return min(limits.poll, max(BURST, 1 / vendor.max_rate))


def policy_of(vendor: Vendor, limits: Limits) -> Policy:
    """Say what the outcome table must know of the vendor and of the operator's wishes."""
    return Policy(
        backoff=limits.backoff,
        lag=vendor.lag.total_seconds(),
        can_find=vendor.implements("find"),
        repeatable=can_repeat(vendor),
        max_creates=limits.max_creates,
    )


def can_repeat(vendor: Vendor) -> bool:
    """Whether the vendor remembers a key for longer than a call under it may take to arrive."""
    remembered = vendor.repeatable
    return remembered is not None and remembered.total_seconds() > _lease(vendor)


def _lease(vendor: Vendor) -> float:
    return vendor.time_limit.total_seconds() * LEASES_PER_LIMIT

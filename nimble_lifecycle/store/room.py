"""How much may be done now, as expressions for statements: what is counted, and what is left.

Every count is a subquery that is read only where something hangs on it, so that a claim that finds
nothing to count costs nothing more.
"""

from datetime import UTC, datetime

import sqlalchemy as sa

from nimble_lifecycle.protocol import Phase
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.models import vendor
from nimble_lifecycle.store.types import Instant, later, latest

FLEET = "*"
"""The kind of the row in `nimble_vendor` that holds an operator's pause of the whole fleet."""

HOUR = 3600.0
"""Seconds over which creates are counted."""

WINDOW = 86400.0
"""Seconds over which releases are counted."""

LONG_AGO = sa.literal(datetime(1970, 1, 1, tzinfo=UTC), Instant())
"""An instant before all others, for what never happened."""

Number = sa.ColumnElement[int]
Moment = sa.ColumnElement[datetime]

kind = sa.bindparam("its_kind", type_=sa.Text())

_begun = sa.and_(
    t.c.kind == kind,
    t.c.create_started_at.is_not(None),
    t.c.released_at.is_(None),
    t.c.retired_at.is_(None),
)
_ending = sa.and_(
    t.c.kind == kind, t.c.release_started_at.is_not(None), t.c.external_id.is_not(None)
)


def live() -> Number:
    """Count the tenancies that were begun and are neither released nor retired."""
    return sa.select(sa.func.count()).select_from(t).where(_begun).scalar_subquery()


def creates(now: Moment) -> Number:
    """Count the tenancies that were begun within the hour, whatever became of them."""
    since = later(now, -HOUR)
    still = sa.and_(_begun, t.c.create_started_at > since)
    over = sa.and_(
        _ending,
        t.c.release_started_at > since,
        t.c.create_started_at > since,
        sa.or_(t.c.released_at.is_not(None), t.c.retired_at.is_not(None)),
    )
    parts = [sa.select(sa.func.count()).select_from(t).where(each) for each in (still, over)]
    return parts[0].scalar_subquery() + parts[1].scalar_subquery()


def releases(now: Moment) -> Number:
    """Count the releases that were started within the window and since the last approval."""
    approved = sa.select(vendor.c.breaker_approved_at).where(vendor.c.kind == kind)
    since = latest(later(now, -WINDOW), sa.func.coalesce(approved.scalar_subquery(), LONG_AGO))
    return _started(since)


def fleet(now: Moment) -> Number:
    """Count the tenancies that have a resource, and those released within the window.

    Without the latter the releases themselves would lower the bar they are measured by.
    """
    kept = t.c.phase == Phase.KEPT.value
    there = sa.and_(
        t.c.kind == kind,
        t.c.external_id.is_not(None),
        t.c.released_at.is_(None),
        t.c.retired_at.is_(None),
        sa.not_(kept),
    )
    held = sa.select(sa.func.count()).select_from(t).where(there).scalar_subquery()
    return held + _started(later(now, -WINDOW), t.c.released_at.is_not(None))


def _started(since: Moment, *more: sa.ColumnElement[bool]) -> Number:
    # What is kept by policy is no release: the vendor is never asked for it.
    return (
        sa.select(sa.func.count())
        .select_from(t)
        .where(_ending, t.c.release_started_at > since, t.c.phase != Phase.KEPT.value, *more)
        .scalar_subquery()
    )

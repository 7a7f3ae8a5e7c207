"""How much may be done now, as expressions for statements: what is counted, and what is left.

Every count is a subquery that is read only where something hangs on it, so that a claim that finds
nothing to count costs nothing more.
"""

from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa

from nimble_lifecycle.protocol import FLEET, Phase
from nimble_lifecycle.store.models import begun, ending, vendor, with_resource
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.types import (
    Instant,
    elapsed,
    greatest,
    known,
    later,
    latest,
    least,
    number,
    whole,
    word,
)
from nimble_lifecycle.store.verdicts import Room

HOUR = 3600
"""Seconds over which creates are counted."""

WINDOW = 86400
"""Seconds over which releases are counted."""

RAMP = 10
"""Seconds after a pause during which a fleet comes back step by step."""

BURST = 0.1
"""Seconds whose calls may be made at once where a rate is declared."""

UNLIMITED = number(2**30)
"""More than any count, where nothing limits it."""

LONG_AGO = sa.literal_column("'1970-01-01 00:00:00.000000'", Instant())
"""An instant before all others, for what never happened."""

T = TypeVar("T")

Number = sa.ColumnElement[int] | sa.ColumnElement[float]
Moment = sa.ColumnElement[datetime]

kind = sa.bindparam("its_kind", type_=sa.Text())

_live_cap = known("live_cap", sa.Integer())
_hourly_cap = known("hourly_cap", sa.Integer())
_share = known("release_share", sa.Float())
_least = known("release_least", sa.Float())
_concurrency = known("concurrency", sa.Integer())
_rate = known("rate", sa.Float())
_burst = known("burst", sa.Float())

_begun = sa.and_(t.c.kind == kind, begun)
_ending = sa.and_(t.c.kind == kind, ending)


leased = t.c.lease_expires_at.is_not(None)
"""Whether somebody took a row and nobody settled it; PostgreSQL knows how few these are."""

lease_end = sa.func.coalesce(t.c.lease_expires_at, LONG_AGO)
"""When a lease ends, in a form that is in no index.

Of a comparison with a time PostgreSQL expects a third of all rows to pass; it would then rather
read the table than the index of leases.
"""


def live() -> Number:
    """Count the tenancies that were begun and are neither released nor retired."""
    return sa.select(sa.func.count()).select_from(t).where(_begun).scalar_subquery()


def creates(now: Moment) -> Number:
    """Count the tenancies that were begun within the hour, whatever became of them."""
    since = later(now, number(-HOUR))
    still = sa.and_(_begun, *_within(t.c.create_started_at, since, now))
    over = sa.and_(
        _ending,
        *_within(t.c.release_started_at, since, now),
        t.c.create_started_at >= since,
        sa.or_(t.c.released_at.is_not(None), t.c.retired_at.is_not(None)),
    )
    parts = [sa.select(sa.func.count()).select_from(t).where(each) for each in (still, over)]
    return parts[0].scalar_subquery() + parts[1].scalar_subquery()


def releases(now: Moment) -> Number:
    """Count the releases that were started within the window and since the last approval."""
    approved = sa.select(vendor.c.breaker_approved_at).where(vendor.c.kind == kind)
    since = latest(
        later(now, number(-WINDOW)), sa.func.coalesce(approved.scalar_subquery(), LONG_AGO)
    )
    return _started(since, now)


def fleet(now: Moment) -> Number:
    """Count the tenancies that have a resource, and those released within the window.

    Without the latter the releases themselves would lower the bar they are measured by.
    """
    kept = t.c.phase == word(Phase.KEPT)
    there = sa.and_(t.c.kind == kind, with_resource, sa.not_(kept))
    held = sa.select(sa.func.count()).select_from(t).where(there).scalar_subquery()
    return held + _started(later(now, number(-WINDOW)), now, t.c.released_at.is_not(None))


def _started(since: Moment, now: Moment, *more: sa.ColumnElement[bool]) -> Number:
    # What is kept by policy is no release: the vendor is never asked for it.
    kept = t.c.phase == word(Phase.KEPT)
    within = _within(t.c.release_started_at, since, now)
    counted = sa.select(sa.func.count()).select_from(t)
    return counted.where(_ending, *within, sa.not_(kept), *more).scalar_subquery()


def _within(column: Moment, since: Moment, now: Moment) -> tuple[sa.ColumnElement[bool], ...]:
    """Choose by a column's time. Two bounds let PostgreSQL expect few rows, and use the index.

    The upper one is later than now: a clock that was set back makes nothing uncounted.
    """
    return column >= since, column <= later(now, number(WINDOW))


# -- what is left ----------------------------------------------------------------------------------


def creates_left(now: Moment) -> Number:
    """Give how many tenancies may be begun, by both caps."""
    by_live = sa.case((_live_cap.is_(None), UNLIMITED), else_=_live_cap - live())
    by_hour = sa.case((_hourly_cap.is_(None), UNLIMITED), else_=_hourly_cap - creates(now))
    return _once(least(by_live, by_hour))


def releases_left(now: Moment) -> Number:
    """Give how many releases may be started; none while the breaker is open."""
    is_open = vendor.c.breaker_opened_at.is_not(None)
    bar = sa.case((is_open, number(0)), else_=greatest(vendor.c.fleet * _share, _least))
    return _once(sa.func.coalesce(_of_vendor(bar), _least) - releases(now))


def room_for(creates_left: Number, releases_left: Number) -> Room:
    """Say whether anything may be begun."""
    return Room(creates=creates_left >= number(1), releases=releases_left >= number(1))


def slots(now: Moment, limit: Number) -> Number:
    """Give how many rows may be taken: `limit`, or fewer by what the vendor can take.

    That is the concurrency and the rate it declares, over all workers, and for some seconds after a
    pause a number of calls in flight that grows with the square of the time.
    """
    in_flight = (
        sa.select(sa.func.count())
        .select_from(t)
        .where(t.c.kind == kind, leased, lease_end > now)
        .scalar_subquery()
    )
    v = vendor.c
    back = latest(
        sa.func.coalesce(v.paused_until, LONG_AGO), sa.func.coalesce(v.resumed_at, LONG_AGO)
    )
    since = elapsed(back, now)
    saved = elapsed(sa.func.coalesce(v.rate_at, LONG_AGO), now) * _rate
    of_vendor = least(
        sa.case((_rate.is_(None), UNLIMITED), else_=least(saved, _burst)),
        sa.case((since > number(RAMP), UNLIMITED), else_=number(1) + since * since - in_flight),
    )
    free = sa.case((_concurrency.is_(None), UNLIMITED), else_=_concurrency - in_flight)
    left = least(limit, free, sa.func.coalesce(_of_vendor(of_vendor), UNLIMITED))
    return whole(greatest(left, number(0)))


def rate_spent(now: Moment, calls: Number) -> Moment:
    """Give since when a rate has been saved up for, once this many calls are made."""
    full = later(now, -_burst / _rate)
    since = latest(sa.func.coalesce(vendor.c.rate_at, LONG_AGO), full)
    return sa.case((_rate.is_(None), vendor.c.rate_at), else_=later(since, calls / _rate))


def is_shut(now: Moment, probing: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Whether nothing of the kind may be called: paused, or halted unless it is to be probed."""
    return sa.or_(is_paused(now), sa.and_(is_halted(), sa.not_(probing)))


def is_paused(now: Moment) -> sa.ColumnElement[bool]:
    """Whether rows of the kind are left alone, by an operator's wish or the vendor's."""
    return sa.exists().where(
        vendor.c.kind.in_([kind, sa.literal_column(f"'{FLEET}'")]),
        sa.or_(vendor.c.paused, sa.func.coalesce(vendor.c.paused_until > now, sa.false())),
    )


def is_halted() -> sa.ColumnElement[bool]:
    """Whether the vendor refuses the credential. What needs no call goes on: a grace begins."""
    return sa.exists().where(vendor.c.kind == kind, vendor.c.halted_at.is_not(None))


def _of_vendor(value: sa.ColumnElement[T]) -> sa.ScalarSelect[T]:
    return sa.select(value).where(vendor.c.kind == kind).scalar_subquery()


def _once(value: sa.ColumnElement[T]) -> sa.ScalarSelect[T]:
    """Count once for a whole statement, and only if it is asked for."""
    counted = sa.select(value.label("number")).cte()
    return sa.select(counted.c.number).scalar_subquery()

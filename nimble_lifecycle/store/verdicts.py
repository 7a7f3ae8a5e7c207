"""What a claim makes of a row, judged by the row as it was before the claim.

The conditions are SQL expressions over the row. None of them is ever NULL, so each can be negated.
"""

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa

from nimble_lifecycle.protocol import OPERATOR_ONLY, Desired, Phase, Why
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.types import Expression, later, one_of


class Verdict(StrEnum):
    """What becomes of a row that is looked at: a vendor call, or none.

    With a call: `create`, `repeat` (a create under the same key, after an unknown one), `update`,
    `find`, `poll`, `release`. Without: `drop` and `keep` (released without the vendor), `spent` (no
    creates left), `rescue` (a resource was noted by a worker that had lost the row), `stay` (a
    grace goes on, and what was due waits for an undo), `look` (nothing to do).
    """

    CREATE = "create"
    REPEAT = "repeat"
    UPDATE = "update"
    FIND = "find"
    POLL = "poll"
    RELEASE = "release"
    DROP = "drop"
    KEEP = "keep"
    SPENT = "spent"
    RESCUE = "rescue"
    STAY = "stay"
    LOOK = "look"


CREATING = (Verdict.CREATE, Verdict.REPEAT)
CALLING = (*CREATING, Verdict.UPDATE, Verdict.FIND, Verdict.POLL, Verdict.RELEASE)
ENDING = (Verdict.RELEASE, Verdict.DROP, Verdict.KEEP)


def _phase_in(*phases: Phase) -> sa.ColumnElement[bool]:
    return one_of(t.c.phase, phases)


def _reason_in(*words: Why) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(one_of(t.c.reason, words), sa.false())


started = t.c.release_started_at.is_not(None)
"""The release has started; from then on `desired` is ignored."""

asked = sa.and_(
    # `hold` is null or `release`; compared with a word, a null would make the whole unknown.
    sa.or_(t.c.desired == Desired.RELEASE.value, t.c.hold.is_not(None)),
    t.c.release_started_at.is_(None),
)
"""A release is asked for and has not started."""

wanted = sa.not_(sa.or_(asked, started))

has_resource = t.c.external_id.is_not(None)

in_operation = t.c.operation_id.is_not(None)

is_open = _phase_in(Phase.PROVISIONING, Phase.UNRESOLVED)
"""A vendor call was begun whose outcome is not known yet."""

unsettled = sa.and_(is_open, sa.or_(sa.not_(has_resource), in_operation))
"""What there is to release is not known yet."""

unsure = sa.and_(
    _phase_in(Phase.STALLED),
    sa.not_(has_resource),
    _reason_in(Why.CREATE_OUTCOME_UNKNOWN, Why.QUARANTINED),
)
"""It may have a resource that nobody knows; only a person can tell."""

rescued = sa.and_(has_resource, t.c.created_at.is_(None), sa.not_(in_operation), sa.not_(started))
"""A worker that had lost the lease noted the resource it made; nobody acted on it yet."""

new_params = t.c.attempted_params_hash.is_distinct_from(t.c.params_hash)
"""The params are not those of the last attempt."""

reclaimed = t.c.lease_expires_at.is_not(None)
"""Whoever had the row did not settle it. (Claims take only rows without a live lease.)"""

_for_operator = sa.and_(_phase_in(Phase.STALLED), _reason_in(*OPERATOR_ONLY))
_going = sa.and_(started, sa.not_(_phase_in(Phase.RELEASED, Phase.KEPT)))
_releasable = sa.and_(asked, sa.not_(unsettled))


def _due(now: sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(t.c.due_at <= now, sa.false())


def verdict_of(
    now: sa.ColumnElement[datetime], grace_over: sa.ColumnElement[bool]
) -> sa.ColumnElement[str]:
    """Give a row's `Verdict`: the first whose condition fits."""
    cases: tuple[tuple[sa.ColumnElement[bool], Verdict], ...] = (
        *_under_way(now),
        *_release_asked(grace_over),
        *_wanted(now),
        (rescued, Verdict.RESCUE),
        (_releasable, Verdict.STAY),
    )
    return sa.case(*((fits, verdict.value) for fits, verdict in cases), else_=Verdict.LOOK.value)


def _under_way(
    now: sa.ColumnElement[datetime],
) -> tuple[tuple[sa.ColumnElement[bool], Verdict], ...]:
    """Judge rows with a call whose outcome is not known, or a release that has started."""
    due = _due(now)
    unknown = sa.and_(is_open, sa.not_(has_resource), due)
    # A look-up creates nothing, so it comes first where there is one: after each answered create,
    # and alone where a release is asked for. Once it has found nothing the row is `provisioning`
    # again, as after a crash, and the same key may be repeated.
    can_find = sa.bindparam("its_can_find", type_=sa.Boolean())
    looked = sa.and_(wanted, _phase_in(Phase.PROVISIONING))
    repeatable = sa.and_(is_remembered(now), _may_create(), sa.or_(looked, sa.not_(can_find)))
    return (
        (sa.and_(in_operation, sa.or_(is_open, _going), due), Verdict.POLL),
        (sa.and_(_going, due), Verdict.RELEASE),
        # Rule 6: the same key again while the vendor remembers it, else a look-up.
        (sa.and_(unknown, repeatable), Verdict.REPEAT),
        (unknown, Verdict.FIND),
    )


def _release_asked(
    grace_over: sa.ColumnElement[bool],
) -> tuple[tuple[sa.ColumnElement[bool], Verdict], ...]:
    """Judge rows whose release is asked for, and may start once the grace is over."""
    nothing = sa.and_(_releasable, sa.not_(has_resource))
    keeps = sa.bindparam("its_keeps", type_=sa.Boolean())
    return (
        (sa.and_(nothing, t.c.create_started_at.is_(None)), Verdict.DROP),
        (sa.and_(nothing, unsure), Verdict.LOOK),
        (sa.and_(nothing, grace_over), Verdict.DROP),
        (sa.and_(_releasable, grace_over, keeps), Verdict.KEEP),
        (sa.and_(_releasable, grace_over), Verdict.RELEASE),
    )


def _wanted(
    now: sa.ColumnElement[datetime],
) -> tuple[tuple[sa.ColumnElement[bool], Verdict], ...]:
    """Judge rows that are wanted: a create, or an update of what is there."""
    due = _due(now)
    fresh = sa.and_(
        wanted,
        sa.not_(has_resource),
        sa.not_(is_open),
        sa.not_(_for_operator),
        sa.or_(new_params, sa.and_(_phase_in(Phase.PENDING), due)),
    )
    # A row with a resource is due only where an update failed or nobody said how it ended.
    unfinished = sa.and_(due, t.c.created_at.is_not(None))
    update = sa.and_(
        wanted,
        has_resource,
        sa.not_(unsettled),
        sa.or_(sa.not_(_for_operator), rescued),
        sa.or_(new_params, unfinished),
    )
    return (
        (sa.and_(fresh, _may_create()), Verdict.CREATE),
        (fresh, Verdict.SPENT),
        (update, Verdict.UPDATE),
    )


def is_remembered(now: sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    """Whether the vendor still remembers the row's key, counted from its first use."""
    repeatable = sa.bindparam("its_repeatable", type_=sa.Float())
    return sa.func.coalesce(later(t.c.create_started_at, repeatable) > now, sa.false())


def _may_create() -> sa.ColumnElement[bool]:
    return t.c.creates < sa.bindparam("its_max_creates", type_=sa.Integer())


def is_verdict(column: Expression, *verdicts: Verdict) -> sa.ColumnElement[bool]:
    """Whether the verdict in `column` is one of these."""
    return one_of(column, verdicts)

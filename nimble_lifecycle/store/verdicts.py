"""What a claim makes of a row, judged by the row as it was before the claim.

The conditions are SQL expressions over the row. None of them is ever NULL, so each can be negated.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

import sqlalchemy as sa

from nimble_lifecycle.protocol import OPERATOR_ONLY, Desired, Phase, Why
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.types import Expression, is_any, known, later, least, number, word


class Verdict(StrEnum):
    """What becomes of a row that is looked at: a vendor call, or none.

    With a call: `create`, `repeat` (a create under the same key, after an unknown one), `update`,
    `find`, `poll`, `release`. Without: `drop` and `keep` (released without the vendor), `spent` (no
    creates left), `quarantine` (too many workers ended while they had it), `rescue` (a resource was
    noted by a worker that had lost the row), `held` (a cap or the breaker leaves no room for it),
    `inherit` (its predecessor, which never became ready, was backing off), `stay` (a grace goes on,
    and what was due waits for an undo), `look` (nothing to do).
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
    QUARANTINE = "quarantine"
    RESCUE = "rescue"
    HELD = "held"
    INHERIT = "inherit"
    STAY = "stay"
    LOOK = "look"


CREATING = (Verdict.CREATE, Verdict.REPEAT)
CALLING = (*CREATING, Verdict.UPDATE, Verdict.FIND, Verdict.POLL, Verdict.RELEASE)
ENDING = (Verdict.RELEASE, Verdict.DROP, Verdict.KEEP)

MAX_RECLAIMS = 3
"""How many workers in a row may end while they have a row, before it is left to a person."""


def _phase_in(*phases: Phase) -> sa.ColumnElement[bool]:
    return is_any(t.c.phase, phases)


def _reason_in(*words: Why) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(is_any(t.c.reason, words), sa.false())


started = t.c.release_started_at.is_not(None)
"""The release has started; from then on `desired` is ignored."""

asked = sa.and_(
    # `hold` is null or `release`; compared with a word, a null would make the whole unknown.
    sa.or_(t.c.desired == word(Desired.RELEASE), t.c.hold.is_not(None)),
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

reclaimed = sa.and_(t.c.lease_expires_at.is_not(None), t.c.lease_owner.is_not(None))
"""Whoever had the row did not settle it. (Claims take only rows without a live lease.)

A lease without an owner was taken away by an operator, or given up by a worker that was stopped:
nobody may have the row before it ends, but its end says nothing of whoever had it.
"""

looked_up = sa.and_(sa.or_(is_open, _phase_in(Phase.PENDING)), t.c.reclaims > number(0))
"""It ended a worker, and a look-up found nothing of what that one made."""

suspect = sa.or_(reclaimed, looked_up)
"""Rule 11: to be taken alone until a step of it has a result. A look-up that found nothing is no
result: the create that ended a worker comes next.
"""

never_begun = t.c.create_started_at.is_(None)
"""No create was ever begun."""

_proven_empty = t.c.last_observed_at.is_not(None)
"""Of a row without a resource: nothing of it is at the vendor, and no create was begun since."""

_killer = sa.and_(reclaimed, t.c.reclaims >= number(MAX_RECLAIMS - 1))
_for_operator = sa.and_(_phase_in(Phase.STALLED), _reason_in(*OPERATOR_ONLY))
_over = sa.or_(_phase_in(Phase.RELEASED, Phase.KEPT), _for_operator)
_going = sa.and_(started, sa.not_(_over))
_releasable = sa.and_(asked, sa.not_(unsettled))
_keeps = known("keeps", sa.Boolean())


def _due(now: sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(t.c.due_at <= now, sa.false())


@dataclass(frozen=True, slots=True)
class Room:
    """Whether anything may be begun now, or whatever the row is, it must wait."""

    creates: sa.ColumnElement[bool]
    """Whether a first create may be begun."""
    releases: sa.ColumnElement[bool]
    """Whether a release may be started."""


ROOM = Room(sa.true(), sa.true())
"""Nothing is held back: what rows ask for by themselves."""


def verdict_of(
    now: sa.ColumnElement[datetime], grace_over: sa.ColumnElement[bool], room: Room
) -> sa.ColumnElement[str]:
    """Give a row's `Verdict`: the first whose condition fits."""
    return _first(
        (_killer, Verdict.QUARANTINE),
        *_under_way(now),
        (is_held(now, grace_over, room), Verdict.HELD),
        *_release_asked(grace_over),
        *_wanted(now),
        (rescued, Verdict.RESCUE),
        (_releasable, Verdict.STAY),
        otherwise=Verdict.LOOK,
    )


_Case: TypeAlias = tuple[sa.ColumnElement[bool], Verdict | sa.ColumnElement[str]]


def _first(*cases: _Case, otherwise: Verdict) -> sa.ColumnElement[str]:
    """Give what stands beside the first condition that fits."""
    whens = ((fits, word(v) if isinstance(v, Verdict) else v) for fits, v in cases)
    return sa.case(*whens, else_=word(otherwise))


def is_held(
    now: sa.ColumnElement[datetime], grace_over: sa.ColumnElement[bool], room: Room
) -> sa.ColumnElement[bool]:
    """Whether the row would begin something for which there is no room."""
    ends = sa.and_(_releasable, has_resource, grace_over, sa.not_(_keeps))
    begins = sa.and_(_fresh(now), never_begun)
    return sa.or_(sa.and_(ends, sa.not_(room.releases)), sa.and_(begins, sa.not_(room.creates)))


def _under_way(
    now: sa.ColumnElement[datetime],
) -> tuple[_Case, ...]:
    """Judge rows with a call whose outcome is not known, or a release that has started."""
    due = _due(now)
    unknown = sa.and_(is_open, sa.not_(has_resource), due)
    # A look-up creates nothing, so it comes first where there is one: after each answered create,
    # and alone where a release is asked for. Once it has found nothing the row is `provisioning`
    # again, as after a crash, and the same key may be repeated.
    can_find = known("can_find", sa.Boolean())
    looked = sa.and_(wanted, _phase_in(Phase.PROVISIONING))
    repeatable = sa.and_(is_remembered(now), _may_create(), sa.or_(looked, sa.not_(can_find)))
    return (
        (sa.and_(in_operation, sa.or_(is_open, _going), due), Verdict.POLL),
        (sa.and_(_going, due), Verdict.RELEASE),
        # Rule 6: the same key again while the vendor remembers it, else a look-up.
        (sa.and_(unknown, repeatable), Verdict.REPEAT),
        (unknown, Verdict.FIND),
    )


def _release_asked(grace_over: sa.ColumnElement[bool]) -> tuple[_Case, ...]:
    """Judge rows whose release is asked for, and may start once the grace is over.

    That no create was applied is the adapter's word; where it can look, it must have looked.
    """
    nothing = sa.not_(has_resource)
    can_look = sa.and_(known("can_find", sa.Boolean()), sa.not_(_proven_empty))
    # The end of a grace is long to say, so it is said once.
    over = _first(
        (sa.and_(nothing, can_look), Verdict.FIND),
        (nothing, Verdict.DROP),
        (_keeps, Verdict.KEEP),
        otherwise=Verdict.RELEASE,
    )
    return (
        (sa.and_(_releasable, nothing, t.c.create_started_at.is_(None)), Verdict.DROP),
        (sa.and_(_releasable, nothing, unsure), Verdict.LOOK),
        (sa.and_(_releasable, grace_over), over),
    )


def _wanted(
    now: sa.ColumnElement[datetime],
) -> tuple[_Case, ...]:
    """Judge rows that are wanted: a create, or an update of what is there."""
    fresh = _fresh(now)
    # A row with a resource is due only where an update failed or nobody said how it ended.
    unfinished = sa.and_(_due(now), t.c.created_at.is_not(None))
    update = sa.and_(
        wanted,
        has_resource,
        sa.not_(unsettled),
        sa.or_(sa.not_(_for_operator), rescued),
        sa.or_(new_params, unfinished),
    )
    waits = sa.func.coalesce(inherited_until() > now, sa.false())
    return (
        (sa.and_(fresh, waits), Verdict.INHERIT),
        (sa.and_(fresh, _may_create()), Verdict.CREATE),
        (fresh, Verdict.SPENT),
        (update, Verdict.UPDATE),
    )


def _fresh(now: sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    """Whether a create is to be begun: nothing is there, and no create is of unknown outcome."""
    return sa.and_(
        wanted,
        sa.not_(has_resource),
        sa.not_(is_open),
        sa.not_(_for_operator),
        sa.or_(new_params, sa.and_(_phase_in(Phase.PENDING), _due(now))),
    )


def inherited_attempts() -> Expression:
    """Give the attempts of a predecessor that never became ready; NULL where there is none.

    Rule 8: a life that fails is not given new patience by being removed and wanted again. One that
    wants something else is.
    """
    return _inherited(sa.func.max(_before.c.attempts))


def inherited_attempt() -> Expression:
    """Give when that predecessor was last attempted: its own successor goes on from there."""
    return _inherited(sa.func.max(_before.c.create_attempted_at))


def inherited_until() -> Expression:
    """Give the end of that predecessor's back-off, without its spread."""
    doubled = number(1).bitwise_lshift(least(_before.c.attempts, number(20)))
    first_wait = known("backoff_first", sa.Float())
    longest = known("backoff_longest", sa.Float())
    wait = least(first_wait * doubled, longest)
    return _inherited(sa.func.max(later(_before.c.create_attempted_at, wait)))


_before = t.alias("before")


def _inherited(what: Expression) -> Expression:
    from_it = sa.select(what).where(
        _before.c.workspace_id == t.c.workspace_id,
        _before.c.kind == t.c.kind,
        _before.c.tenant_id == t.c.tenant_id,
        _before.c.incarnation == t.c.incarnation - number(1),
        sa.or_(_before.c.release_started_at.is_not(None), _before.c.retired_at.is_not(None)),
        _before.c.origin.is_(None),
        _before.c.created_at.is_(None),
        _before.c.attempts > number(0),
        _before.c.attempted_params_hash == t.c.params_hash,
    )
    new = sa.and_(never_begun, t.c.incarnation > number(1), t.c.attempts == number(0))
    return sa.case((new, from_it.scalar_subquery()))


def is_remembered(now: sa.ColumnElement[datetime]) -> sa.ColumnElement[bool]:
    """Whether the vendor still remembers the row's key, counted from its first use."""
    repeatable = known("repeatable", sa.Float())
    return sa.func.coalesce(later(t.c.create_started_at, repeatable) > now, sa.false())


def _may_create() -> sa.ColumnElement[bool]:
    return t.c.creates < known("max_creates", sa.Integer())


def is_verdict(column: Expression, *verdicts: Verdict) -> sa.ColumnElement[bool]:
    """Whether the verdict in `column` is one of these."""
    return is_any(column, verdicts)

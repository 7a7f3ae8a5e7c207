"""What a claim writes into the rows it takes: what it saw of the intent, and the write-ahead."""

from typing import Final

import sqlalchemy as sa

from nimble_lifecycle.protocol import Phase, Why
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.types import (
    Columns,
    Expression,
    elapsed,
    known,
    later,
    number,
    word,
)
from nimble_lifecycle.store.verdicts import (
    CALLING,
    CREATING,
    ENDING,
    Verdict,
    asked,
    inherited_attempt,
    inherited_attempts,
    inherited_until,
    is_open,
    is_verdict,
    looked_up,
    never_begun,
    new_params,
    reclaimed,
    rescued,
    started,
    unsettled,
    unsure,
)

QUARANTINE = "workers ended, one after the other, while they had this row"
"""The message of a row that is left to a person."""

_LEASE: Final = known("lease", sa.Float())


def written(took: Columns) -> dict[str, Expression]:
    """Give the columns that change, by what was judged of the rows that are taken."""
    return {**_intent(took), **_status(took), **_work(took)}


def _keeping(name: str, *whens: tuple[sa.ColumnElement[bool], object]) -> Expression:
    """Change a column in these cases only."""
    return sa.case(*whens, else_=t.c[name])


def _intent(took: Columns) -> dict[str, Expression]:
    """Set what the claim saw of the intent: the generation, and the release that is asked for."""
    verdict, none = took.verdict, sa.null()
    settled = sa.not_(sa.or_(unsettled, unsure, is_verdict(verdict, Verdict.FIND)))
    # A look that finds a ready row with nothing to do has finished what the generation asked for.
    resting = sa.and_(
        t.c.phase == word(Phase.READY), t.c.reason.is_(None), sa.not_(new_params), sa.not_(asked)
    )
    return {
        "claimed_generation": t.c.generation,
        "observed_generation": _keeping(
            "observed_generation",
            (is_verdict(verdict, Verdict.DROP, Verdict.KEEP), t.c.generation),
            (sa.and_(is_verdict(verdict, Verdict.LOOK), resting), t.c.generation),
            (sa.and_(is_verdict(verdict, Verdict.RESCUE), sa.not_(asked)), t.c.generation),
        ),
        "release_seen_at": sa.case((asked, took.seen), (started, t.c.release_seen_at), else_=none),
        "release_after": sa.case(
            (sa.and_(asked, settled), took.grace_end),
            (started, t.c.release_after),
            else_=none,
        ),
        "release_started_at": _keeping(
            "release_started_at", (sa.and_(asked, is_verdict(verdict, *ENDING)), took.now)
        ),
        "released_at": _keeping("released_at", (is_verdict(verdict, Verdict.DROP), took.now)),
    }


def _status(took: Columns) -> dict[str, Expression]:
    """Set the phase, and the write-ahead of a create: key, name and times."""
    verdict, none = took.verdict, sa.null()
    creating = is_verdict(verdict, *CREATING)
    usable = sa.or_(
        is_verdict(verdict, Verdict.RESCUE),
        sa.and_(is_verdict(verdict, Verdict.UPDATE), sa.or_(is_open, rescued)),
    )
    # A repeated create keeps the reason: it tells whether the one before was refused.
    begun = is_verdict(verdict, Verdict.CREATE)
    done = sa.or_(begun, usable, is_verdict(verdict, *ENDING))
    return {
        "phase": _keeping(
            "phase",
            (creating, word(Phase.PROVISIONING)),
            (is_verdict(verdict, Verdict.FIND), word(Phase.UNRESOLVED)),
            (is_verdict(verdict, Verdict.RELEASE), word(Phase.RELEASING)),
            (is_verdict(verdict, Verdict.DROP), word(Phase.RELEASED)),
            (is_verdict(verdict, Verdict.KEEP), word(Phase.KEPT)),
            (is_verdict(verdict, Verdict.SPENT, Verdict.QUARANTINE), word(Phase.STALLED)),
            (usable, word(Phase.READY)),
        ),
        "reason": _keeping(
            "reason",
            (is_verdict(verdict, Verdict.SPENT), word(Why.CREATE_OUTCOME_UNKNOWN)),
            (is_verdict(verdict, Verdict.QUARANTINE), word(Why.QUARANTINED)),
            (is_verdict(verdict, Verdict.INHERIT), word(Why.BACKING_OFF)),
            (done, none),
        ),
        "message": _keeping(
            "message", (is_verdict(verdict, Verdict.QUARANTINE), QUARANTINE), (done, none)
        ),
        "idempotency_key": _keeping(
            "idempotency_key", (creating, sa.func.coalesce(t.c.idempotency_key, took.key))
        ),
        "create_started_at": _keeping(
            "create_started_at", (creating, sa.func.coalesce(t.c.create_started_at, took.now))
        ),
        "create_attempted_at": _keeping(
            "create_attempted_at",
            (creating, took.now),
            (is_verdict(verdict, Verdict.INHERIT), inherited_attempt()),
        ),
        # A create that is an operation runs at the vendor for as long as it is asked about.
        "create_ends_at": _keeping(
            "create_ends_at",
            (creating, _lease_end(took)),
            (sa.and_(is_verdict(verdict, Verdict.POLL), t.c.creates > number(0)), _lease_end(took)),
        ),
        "last_observed_at": _keeping("last_observed_at", (creating, none)),
        "creates": t.c.creates + sa.case((creating, number(1)), else_=number(0)),
        "created_at": _keeping(
            "created_at",
            (
                is_verdict(verdict, Verdict.UPDATE, Verdict.RESCUE),
                sa.func.coalesce(t.c.created_at, took.now),
            ),
        ),
    }


def _lease_end(took: Columns) -> Expression:
    return later(took.now, _LEASE)


def _work(took: Columns) -> dict[str, Expression]:
    """Set the lease, when the row is looked at again, and what its attempts rest on."""
    verdict, none = took.verdict, sa.null()
    calling = is_verdict(verdict, *CALLING)
    anew = is_verdict(verdict, Verdict.CREATE, Verdict.UPDATE)
    other_call = sa.and_(calling, sa.not_(is_verdict(verdict, Verdict.POLL)))
    begun = sa.and_(is_verdict(verdict, Verdict.CREATE), never_begun, t.c.attempts == number(0))
    inheriting = sa.or_(is_verdict(verdict, Verdict.INHERIT), begun)
    stopped = is_verdict(verdict, Verdict.SPENT, Verdict.QUARANTINE)
    at_rest = sa.or_(stopped, is_verdict(verdict, Verdict.DROP, Verdict.KEEP, Verdict.RESCUE))
    lease_end = _lease_end(took)
    # Nobody could ask for so long (a pause, no worker): that is not the operation's time.
    late = elapsed(sa.func.coalesce(t.c.due_at, took.now), took.now)
    held_up = sa.and_(is_verdict(verdict, Verdict.POLL), late > _LEASE)
    return {
        # Creates under one key with different params: nobody knows whose were applied, and an
        # update follows.
        "attempted_params_hash": _keeping(
            "attempted_params_hash",
            (sa.or_(anew, is_verdict(verdict, Verdict.INHERIT)), t.c.params_hash),
            (sa.and_(is_verdict(verdict, Verdict.REPEAT), new_params), none),
        ),
        "operation_id": _keeping("operation_id", (other_call, none)),
        "operation_deadline_at": _keeping(
            "operation_deadline_at",
            (other_call, none),
            (held_up, later(t.c.operation_deadline_at, late)),
        ),
        "due_at": _keeping(
            "due_at",
            (calling, lease_end),
            (at_rest, none),
            (is_verdict(verdict, Verdict.INHERIT), inherited_until()),
            (sa.and_(is_verdict(verdict, Verdict.LOOK), t.c.due_at <= took.now), none),
        ),
        "attempts": _keeping(
            "attempts",
            (inheriting, sa.func.coalesce(inherited_attempts(), number(0))),
            (sa.and_(new_params, anew), number(0)),
            (is_verdict(verdict, Verdict.RESCUE), number(0)),
        ),
        "last_error": _keeping("last_error", (is_verdict(verdict, Verdict.RESCUE), none)),
        "reclaims": sa.case(
            (reclaimed, t.c.reclaims + number(1)), (looked_up, t.c.reclaims), else_=number(0)
        ),
        "lease_owner": sa.case((calling, sa.bindparam("its_owner")), else_=none),
        "lease_token": t.c.lease_token + number(1),
        "lease_expires_at": sa.case((calling, lease_end), else_=none),
    }

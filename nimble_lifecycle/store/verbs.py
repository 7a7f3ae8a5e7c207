"""The operator's verbs: what each forbids, in words, and what it changes.

A verb about a row raises its lease token, so that a worker in the middle of a call discards what
comes of it; the lease itself stays until its end, without an owner, so that nobody calls before
that call can no longer run. How verbs are run and journalled is said in `operators`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nimble_lifecycle.protocol import Desired, Phase, Why
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.models import vendor
from nimble_lifecycle.store.types import Columns, Expression, latest, next_number
from nimble_lifecycle.store.verdicts import (
    asked,
    has_resource,
    in_operation,
    is_open,
    reclaimed,
    started,
    unsure,
    wanted,
)

Insert: TypeAlias = "postgresql.Insert | sqlite.Insert"
Write: TypeAlias = "Callable[[Columns], sa.Update | Insert]"
Now: TypeAlias = sa.ColumnElement[datetime]
Refusal: TypeAlias = tuple[sa.ColumnElement[bool], str]
Refusals: TypeAlias = Sequence[Refusal]
Changes: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done, to what."""

    action: str
    judged: "sa.Select[Any]"
    """One row: `refusal`, which is null where nothing forbids it, and for a row its `id`."""
    write: Write
    """Makes the change where `judged`, given by its columns, has no refusal."""
    entry: Sequence[Expression]
    """What the journal says of the thing written, in the order of `ABOUT`."""
    outcome: str = "done"


ABOUT = ("tenancy_id", "kind", "generation", "lease_token", "external_id")
"""Columns of a journal's entry that say what it is about."""

# -- what forbids a verb about a row ---------------------------------------------------------------

_stalled = t.c.phase == Phase.STALLED.value
_refused_params = sa.and_(t.c.phase == Phase.READY.value, t.c.reason.is_not(None))

OVER: Refusal = (
    sa.or_(t.c.phase.in_([Phase.RELEASED.value, Phase.KEPT.value]), t.c.retired_at.is_not(None)),
    "its life is over, and nothing is done for it any more; a new one begins with the host's next"
    " ready",
)
STARTED: Refusal = (
    started,
    "its release has started, and from then on nothing asks it back; the host's next ready begins a"
    " new tenancy",
)

_GOES_ON: Refusal = (
    sa.and_(asked, sa.not_(sa.or_(is_open, unsure))),
    "a release is asked for and goes on by itself, and nothing else is tried; `undo` withdraws it",
)
_UNKNOWN: Refusal = (
    sa.and_(unsure, t.c.reason == Why.CREATE_OUTCOME_UNKNOWN.value),
    "whether its create was applied is unknown, and another one could make a second resource; look"
    " at the vendor, then `adopt` what is there, or `retry --assume-not-created`",
)
_NOT_UNKNOWN: Refusal = (
    sa.not_(unsure),
    "no create of unknown outcome stands still here; leave --assume-not-created away",
)
_UNDER_WAY: Refusal = (
    t.c.phase == Phase.PROVISIONING.value,
    "its create is under way; wait until a worker has found out how it ended",
)


def _calling(now: Now) -> Refusal:
    held = sa.func.coalesce(t.c.lease_expires_at > now, sa.false())
    return (
        sa.and_(held, t.c.lease_owner.is_not(None)),
        "a worker is calling the vendor for it, and how that ends is not known yet; wait for it",
    )


# -- verbs about a row -----------------------------------------------------------------------------


def retry(row: UUID, now: Now, *, assume_not_created: bool) -> Verb:
    """Try again at once what is stalled or backing off, its counts forgotten.

    `assume_not_created` is an operator's word that no create of this row was applied.
    """
    refusals = [OVER, _calling(now), _GOES_ON, _NOT_UNKNOWN if assume_not_created else _UNKNOWN]
    waits = sa.func.coalesce(t.c.due_at > now, sa.false())
    troubled = sa.or_(_stalled, waits, t.c.attempts > 0, reclaimed, _refused_params)
    refusals.append((sa.not_(troubled), "there is nothing to retry: a worker goes on by itself"))
    phase = sa.case(
        (sa.not_(_stalled), t.c.phase),
        (started, Phase.RELEASING.value),
        (in_operation, Phase.PROVISIONING.value),
        (has_resource, Phase.READY.value),
        (sa.or_(t.c.creates == 0, sa.literal(assume_not_created)), Phase.PENDING.value),
        # Rule 6: what a create left behind is settled before another one is begun.
        else_=Phase.UNRESOLVED.value,
    )
    changes: dict[str, object] = {
        "phase": phase,
        "reason": sa.case((_stalled, sa.null()), else_=t.c.reason),
        "message": sa.case((_stalled, sa.null()), else_=t.c.message),
        "due_at": now,
        **_AFRESH,
    }
    if not assume_not_created:
        return _about_row("retry", row, now, refusals, changes)
    ends = latest(sa.func.coalesce(t.c.create_ends_at, now), now)
    changes |= {
        "creates": 0,
        "last_observed_at": now,
        "lease_expires_at": sa.case((ends > now, ends)),
    }
    verb = _about_row("retry", row, now, refusals, changes)
    return replace(verb, outcome="assumed not created")


def release(row: UUID, now: Now) -> Verb:
    """Ask for its release, which waits for the grace and which only `undo` lifts."""
    held = (t.c.hold.is_not(None), "an operator asked for its release before; `undo` withdraws it")
    changes = {
        "hold": Desired.RELEASE.value,
        "release_requested_at": sa.case((asked, t.c.release_requested_at), else_=now),
        **_new_generation(now),
    }
    return _about_row("release", row, now, [OVER, STARTED, held], changes)


def undo(row: UUID, now: Now) -> Verb:
    """Withdraw a release that has not started, whoever asked for it."""
    not_asked = (sa.not_(asked), "no release is asked for, so there is none to undo")
    changes = {
        "hold": None,
        "desired": Desired.WANTED.value,
        "release_requested_at": None,
        **_new_generation(now),
    }
    return _about_row("undo", row, now, [OVER, STARTED, not_asked], changes)


def adopt(row: UUID, now: Now, external_id: str) -> Verb:
    """Take a resource for the row's own: an operator's word that it is ours.

    Where another row has it, the unique index forbids it.
    """
    refusals = [
        OVER,
        STARTED,
        (has_resource, "it has a resource already, and a tenancy has exactly one"),
        _calling(now),
        _UNDER_WAY,
    ]
    changes = {
        "external_id": external_id,
        "phase": Phase.READY.value,
        "reason": None,
        "message": None,
        "created_at": now,
        # Due, so that an update brings it to the params, and its details to the row.
        "due_at": now,
        "creates": 0,
        **_AFRESH,
    }
    return _about_row("adopt", row, now, refusals, changes)


def abandon(row: UUID, now: Now, reason: str) -> Verb:
    """Give its resource up without deleting it; the row ends as `kept` and stays listed."""
    needed = (
        sa.and_(wanted, sa.not_(_stalled)),
        "its workspace wants it and it is not stalled; ask for its `release` first",
    )
    changes = {
        "phase": Phase.KEPT.value,
        "reason": Why.ABANDONED.value,
        "message": reason,
        "release_started_at": sa.func.coalesce(t.c.release_started_at, now),
        "operation_id": None,
        "operation_deadline_at": None,
        "observed_generation": t.c.generation,
        "due_at": None,
        "lease_expires_at": None,  # nobody calls for it any more
        **_AFRESH,
    }
    return _about_row("abandon", row, now, [OVER, needed], changes)


def pause(row: UUID, now: Now) -> Verb:
    """Let no worker call the vendor for it."""
    paused = (t.c.paused, "it is paused already; `resume` lifts that")
    return _about_row("pause", row, now, [OVER, paused], {"paused": True})


def resume(row: UUID, now: Now) -> Verb:
    """Lift its pause; what is due at any time is due now."""
    words = "it is not paused itself; `resume` with --kind or --fleet lifts a pause of all"
    # What nothing is due for stays at rest: being due would be an update.
    due = sa.case((t.c.due_at.is_not(None), now))
    changes = {"paused": False, "due_at": due}
    return _about_row("resume", row, now, [(sa.not_(t.c.paused), words)], changes)


_AFRESH: Changes = {"attempts": 0, "reclaims": 0}


def _new_generation(now: Now) -> Changes:
    return {"generation": next_number(t.c.generation), "generation_at": now}


def _about_row(action: str, row: UUID, now: Now, refusals: Refusals, changes: Changes) -> Verb:
    judged = (
        sa.select(t.c.id, _first(refusals).label("refusal"))
        .where(t.c.id == row)
        .with_for_update(of=t)
    )
    lease = {
        "lease_token": t.c.lease_token + 1,
        "lease_owner": None,
        "lease_expires_at": sa.case((t.c.lease_expires_at > now, t.c.lease_expires_at)),
    }
    update = sa.update(t).values({**lease, **changes})
    entry = (t.c.id, t.c.kind, t.c.generation, t.c.lease_token, t.c.external_id)

    def write(judged: Columns) -> sa.Update:
        return update.where(t.c.id == judged.id, _free(judged))

    return Verb(action, judged, write, entry)


# -- verbs about a kind, or the fleet --------------------------------------------------------------


def pause_kind(kind: str, dialect: str) -> Verb:
    """Let no worker call the vendor for any row of the kind; `FLEET` means every kind."""
    refusals = [(_there(kind, vendor.c.paused), "it is paused already; `resume` lifts that")]
    insert = sqlite.insert(vendor) if dialect == "sqlite" else postgresql.insert(vendor)
    row = sa.select(sa.literal(kind).label("kind"), sa.true().label("paused"))

    def write(judged: Columns) -> Insert:
        new = insert.from_select(["kind", "paused"], row.where(_free(judged)), False)
        return new.on_conflict_do_update(index_elements=[vendor.c.kind], set_={"paused": True})

    return Verb("pause", _judged(refusals), write, _ABOUT_KIND)


def resume_kind(kind: str) -> Verb:
    """Lift an operator's pause of the kind, or of the fleet; a vendor's own ends by itself."""
    refusals = [(sa.not_(_there(kind, vendor.c.paused)), "no operator's pause is on it")]
    return _update_kind("resume", kind, refusals, {"paused": False})


def approve(kind: str, now: Now) -> Verb:
    """Close the open breakers of the kind: what they held back is done."""
    changes: dict[str, object] = {}
    opened = []
    for name in ("breaker", "sweep_breaker"):
        opened_at, approved_at = (vendor.c[f"{name}_{what}_at"] for what in ("opened", "approved"))
        opened.append(opened_at.is_not(None))
        approved = sa.case((opened[-1], now), else_=approved_at)
        changes |= {opened_at.name: None, approved_at.name: approved}
    refusals = [(sa.not_(_there(kind, sa.or_(*opened))), "no breaker of it is open")]
    return _update_kind("approve", kind, refusals, changes)


_ABOUT_KIND = (
    sa.cast(sa.null(), sa.Uuid()),
    vendor.c.kind,
    sa.literal(0),
    sa.literal(0),
    sa.cast(sa.null(), sa.Text()),
)


def _there(kind: str, condition: sa.ColumnElement[bool]) -> sa.Exists:
    return sa.exists().where(vendor.c.kind == kind, condition)


def _update_kind(action: str, kind: str, refusals: Refusals, changes: Changes) -> Verb:
    update = sa.update(vendor).where(vendor.c.kind == kind).values(dict(changes))

    def write(judged: Columns) -> sa.Update:
        return update.where(sa.exists().where(_free(judged)))

    return Verb(action, _judged(refusals), write, _ABOUT_KIND)


def _judged(refusals: Refusals) -> "sa.Select[Any]":
    return sa.select(_first(refusals).label("refusal"))


def _first(refusals: Refusals) -> Expression:
    return sa.case(*refusals, else_=sa.null())


def _free(judged: Columns) -> sa.ColumnElement[bool]:
    free: sa.ColumnElement[bool] = judged.refusal.is_(None)
    return free

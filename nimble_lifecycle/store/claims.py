"""The claim: one statement that takes rows, decides what each needs, and is the write-ahead.

It decides for each row it takes whether the vendor must be called (see `verdicts`), and where it
must, key, name, the time and that we are about to call are committed before the call. Rows that
need no call (a grace begins or goes on, nothing was ever created, an undo) are brought up to date
by the same statement and take no lease.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa

from nimble_lifecycle.protocol import Phase, Tenancy, Why
from nimble_lifecycle.store.models import deployment, look_at, vendor
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import Clock, instant_of
from nimble_lifecycle.store.types import (
    Columns,
    Expression,
    base32,
    earliest,
    elapsed,
    later,
    latest,
)
from nimble_lifecycle.store.verdicts import (
    CALLING,
    CREATING,
    ENDING,
    Verdict,
    asked,
    is_open,
    is_remembered,
    is_verdict,
    new_params,
    reclaimed,
    rescued,
    started,
    unsettled,
    unsure,
    verdict_of,
)
from nimble_lifecycle.store.views import SHOWN, tenancy_of


class Step(StrEnum):
    """The one vendor call a claim is for. The values are the journal's words."""

    CREATE = "create"
    UPDATE = "update"
    FIND = "find"
    POLL = "poll"
    RELEASE = "release"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A row taken for one step. `token` is the fence of every write that follows from it."""

    tenancy: Tenancy
    step: Step
    token: int
    generation: int
    attempts: int
    creates: int
    reclaims: int
    releasing: bool
    """Whether a release is asked for or under way."""
    attempt_age: float
    """Seconds since the last create of this row was begun."""
    overdue: bool
    """Whether the operation is past its deadline."""
    readable: bool
    """Whether the params are a JSON object at all; a server's role can write anything."""
    remembered: bool
    """Whether the vendor still remembers this row's key: repeating it makes no second resource."""


def claim_values(rules: Rules, limit: int) -> dict[str, object]:
    """Give the bound values of the claim statement."""
    return {
        "its_kind": rules.kind,
        "its_owner": rules.owner,
        "its_lease": rules.lease,
        "its_grace": rules.grace,
        "its_max_creates": rules.max_creates,
        # A call may reach the vendor as late as its lease allows.
        "its_repeatable": (rules.repeatable or 0.0) - rules.lease,
        "its_can_find": rules.can_find,
        "its_keeps": rules.keeps,
        "its_limit": limit,
    }


def claim_statement(clock: Clock) -> sa.Executable:
    """Build the claim; it returns every row it took, those without a call with no lease owner."""
    now = instant_of(clock)
    awaited = _awaited(now)
    age = elapsed(sa.func.coalesce(t.c.create_attempted_at, now), now)
    overdue = t.c.operation_deadline_at <= now
    remembered = is_remembered(now)
    statement: sa.Executable = (
        sa.update(t)
        .where(t.c.id == awaited.c.id)
        .values(**_intent(awaited.c), **_status(awaited.c), **_work(awaited.c))
        .returning(
            *SHOWN,
            t.c.lease_owner,
            t.c.lease_token,
            t.c.claimed_generation,
            t.c.attempts,
            t.c.creates,
            t.c.reclaims,
            age.label("attempt_age"),
            overdue.label("overdue"),
            remembered.label("remembered"),
        )
    )
    return statement


def claim_of(row: sa.RowMapping) -> Claim:
    """Read a claim from the row as the claim statement left it."""
    return Claim(
        tenancy=tenancy_of(row),
        step=_step_of(row),
        token=row["lease_token"],
        generation=row["claimed_generation"],
        attempts=row["attempts"],
        creates=row["creates"],
        reclaims=row["reclaims"],
        releasing=bool(row["release_seen_at"] or row["release_started_at"]),
        attempt_age=row["attempt_age"],
        overdue=bool(row["overdue"]),
        readable=isinstance(row["params"], dict),
        remembered=bool(row["remembered"]),
    )


def _step_of(row: sa.RowMapping) -> Step:
    # SQLite returns columns of the row only, so the verdict itself does not come back.
    if row["operation_id"] is not None:
        return Step.POLL
    if row["release_started_at"] is not None:
        return Step.RELEASE
    steps = {Phase.PROVISIONING: Step.CREATE, Phase.UNRESOLVED: Step.FIND}
    return steps.get(Phase(row["phase"]), Step.UPDATE)


def _awaited(now: sa.ColumnElement[datetime]) -> sa.CTE:
    """Select the rows to look at, locked, each with what the claim makes of it."""
    kind = sa.bindparam("its_kind", type_=sa.Text())
    free = sa.or_(t.c.lease_expires_at.is_(None), t.c.lease_expires_at <= now)
    paused = sa.exists().where(vendor.c.kind == kind, vendor.c.paused_until > now)
    seen = sa.case((_seen_before(), t.c.release_seen_at), else_=now)
    grace_end = _grace_end(now, seen)
    return (
        sa.select(
            t.c.id,
            verdict_of(now, grace_end <= now).label("verdict"),
            now.label("now"),
            seen.label("seen"),
            grace_end.label("grace_end"),
        )
        .where(t.c.kind == kind, sa.not_(t.c.paused), look_at <= now, free, sa.not_(paused))
        .order_by(look_at)
        .limit(sa.bindparam("its_limit", type_=sa.Integer()))
        .with_for_update(skip_locked=True, of=t)
        .cte("awaited")
    )


def _seen_before() -> sa.ColumnElement[bool]:
    """Whether this wish to release is the one that was seen: an undo between two looks ends it."""
    renewed = sa.func.coalesce(t.c.release_requested_at > t.c.release_seen_at, sa.false())
    return sa.and_(t.c.release_seen_at.is_not(None), sa.not_(renewed))


def _grace_end(
    now: sa.ColumnElement[datetime], seen: sa.ColumnElement[datetime]
) -> sa.ColumnElement[datetime]:
    """Rule 9: from the worker's first sight or the last use, which no row can put after now."""
    used = earliest(sa.func.coalesce(t.c.last_used_at, seen), now)
    return later(latest(seen, used), sa.bindparam("its_grace", type_=sa.Float()))


def _keeping(name: str, *whens: tuple[sa.ColumnElement[bool], object]) -> Expression:
    """Change a column in these cases only."""
    return sa.case(*whens, else_=t.c[name])


def _intent(took: Columns) -> dict[str, Expression]:
    """Set what the claim saw of the intent: the generation, and the release that is asked for."""
    verdict, none = took.verdict, sa.null()
    settled = sa.not_(sa.or_(unsettled, unsure))
    # A look that finds a ready row with nothing to do has finished what the generation asked for.
    resting = sa.and_(
        t.c.phase == Phase.READY.value, t.c.reason.is_(None), sa.not_(new_params), sa.not_(asked)
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
    done = sa.or_(creating, usable, is_verdict(verdict, *ENDING))
    key = sa.select(deployment.c.owner_id).scalar_subquery() + "-" + base32(t.c.id)
    return {
        "phase": _keeping(
            "phase",
            (creating, Phase.PROVISIONING.value),
            (is_verdict(verdict, Verdict.FIND), Phase.UNRESOLVED.value),
            (is_verdict(verdict, Verdict.RELEASE), Phase.RELEASING.value),
            (is_verdict(verdict, Verdict.DROP), Phase.RELEASED.value),
            (is_verdict(verdict, Verdict.KEEP), Phase.KEPT.value),
            (is_verdict(verdict, Verdict.SPENT), Phase.STALLED.value),
            (usable, Phase.READY.value),
        ),
        "reason": _keeping(
            "reason",
            (is_verdict(verdict, Verdict.SPENT), Why.CREATE_OUTCOME_UNKNOWN.value),
            (done, none),
        ),
        "message": _keeping("message", (done, none)),
        "idempotency_key": _keeping(
            "idempotency_key", (creating, sa.func.coalesce(t.c.idempotency_key, key))
        ),
        "external_name": _keeping(
            "external_name", (creating, sa.func.coalesce(t.c.external_name, key))
        ),
        "create_started_at": _keeping(
            "create_started_at", (creating, sa.func.coalesce(t.c.create_started_at, took.now))
        ),
        "create_attempted_at": _keeping("create_attempted_at", (creating, took.now)),
        "creates": t.c.creates + sa.case((creating, 1), else_=0),
        "created_at": _keeping(
            "created_at",
            (
                is_verdict(verdict, Verdict.UPDATE, Verdict.RESCUE),
                sa.func.coalesce(t.c.created_at, took.now),
            ),
        ),
    }


def _work(took: Columns) -> dict[str, Expression]:
    """Set the lease, when the row is looked at again, and what its attempts rest on."""
    verdict, none = took.verdict, sa.null()
    calling = is_verdict(verdict, *CALLING)
    anew = is_verdict(verdict, Verdict.CREATE, Verdict.UPDATE)
    other_call = sa.and_(calling, sa.not_(is_verdict(verdict, Verdict.POLL)))
    at_rest = is_verdict(verdict, Verdict.DROP, Verdict.KEEP, Verdict.SPENT, Verdict.RESCUE)
    lease_end = later(took.now, sa.bindparam("its_lease", type_=sa.Float()))
    return {
        # Creates under one key with different params: nobody knows whose were applied, and an update
        # follows.
        "attempted_params_hash": _keeping(
            "attempted_params_hash",
            (anew, t.c.params_hash),
            (sa.and_(is_verdict(verdict, Verdict.REPEAT), new_params), none),
        ),
        "operation_id": _keeping("operation_id", (other_call, none)),
        "operation_deadline_at": _keeping("operation_deadline_at", (other_call, none)),
        "due_at": _keeping(
            "due_at",
            (calling, lease_end),
            (at_rest, none),
            (sa.and_(is_verdict(verdict, Verdict.LOOK), t.c.due_at <= took.now), none),
        ),
        "attempts": _keeping(
            "attempts",
            (sa.and_(new_params, anew), 0),
            (is_verdict(verdict, Verdict.RESCUE), 0),
        ),
        "reclaims": t.c.reclaims + sa.case((reclaimed, 1), else_=0),
        "lease_owner": sa.case((calling, sa.bindparam("its_owner")), else_=none),
        "lease_token": t.c.lease_token + 1,
        "lease_expires_at": sa.case((calling, lease_end), else_=none),
    }

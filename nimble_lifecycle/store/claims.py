"""The claim: one statement that takes rows, decides what each needs, and is the write-ahead.

It decides for each row it takes whether the vendor must be called (see `verdicts`), and where it
must, key, name, the time and that we are about to call are committed before the call. Rows that
need no call (a grace begins or goes on, nothing was ever created, an undo) are brought up to date
by the same statement and take no lease.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from nimble_lifecycle.protocol import Phase, Tenancy
from nimble_lifecycle.store.claim_writes import written
from nimble_lifecycle.store.models import deployment, look_at, look_order, vendor
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import Clock, instant_of
from nimble_lifecycle.store.prepared import Prepared, Row
from nimble_lifecycle.store.room import (
    Moment,
    creates_left,
    is_halted,
    is_paused,
    kind,
    rate_spent,
    releases_left,
    room_for,
    slots,
)
from nimble_lifecycle.store.rules import Rules, rule_values
from nimble_lifecycle.store.types import (
    Expression,
    base32,
    earliest,
    elapsed,
    known,
    later,
    latest,
    number,
)
from nimble_lifecycle.store.verdicts import (
    CALLING,
    ROOM,
    Room,
    Verdict,
    asked,
    has_resource,
    is_held,
    is_remembered,
    is_verdict,
    never_begun,
    suspect,
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


@dataclass(slots=True, kw_only=True)  # a frozen one takes twice as long to make
class Claim:
    """A row taken for one step. `token` is the fence of every write that follows from it."""

    tenancy: Tenancy
    step: Step
    reason: str | None
    """Why the row is in its phase, as it is stored."""
    token: int
    generation: int
    attempts: int
    creates: int
    first_create: bool
    """Whether no create was begun before the last one."""
    reclaims: int
    releasing: bool
    """Whether a release is asked for or under way."""
    create_ends_in: float
    """Seconds until the last create of this row can no longer run; negative once it is over."""
    overdue: bool
    """Whether the operation is past its deadline."""
    readable: bool
    """Whether the params are a JSON object at all; a server's role can write anything."""
    remembered: bool
    """Whether the vendor still remembers this row's key: repeating it makes no second resource."""


_STEPS: Final = {Phase.PROVISIONING.value: Step.CREATE, Phase.UNRESOLVED.value: Step.FIND}
"""For what a row in this phase is claimed; in any other phase for an update."""


class ClaimStatements:
    """The statements of a claim by one set of rules, which are part of their texts."""

    def __init__(self, clock: Clock, dialect: sa.Dialect, rules: Rules) -> None:
        self._written = rule_values(rules)
        self._clock = clock
        self._dialect = dialect

    @cached_property
    def due(self) -> Prepared:
        """Take what is due, but suspects."""
        return self._prepared(self._claim(only=False))

    @cached_property
    def one(self) -> Prepared:
        """Take one row."""
        return self._prepared(self._claim(only=True))

    @cached_property
    def spending(self) -> Prepared:
        """Take the calls of a claim off the rate, where that is no part of it."""
        return self._prepared(spend_statement(self._clock))

    def _claim(self, *, only: bool) -> sa.UpdateBase:
        return claim_statement(self._clock, only=only, gated=self._dialect.name != "sqlite")

    def _prepared(self, statement: sa.UpdateBase) -> Prepared:
        return Prepared(statement, self._dialect, self._written)


def claim_values(
    rules: Rules,
    limit: int,
    *,
    owner_id: str | None,
    only: UUID | None = None,
    probing: bool = False,
) -> dict[str, object]:
    """Give the bound values of the claim statements; `owner_id` is of the deployment that asks."""
    values = {
        "its_kind": rules.kind,
        "its_owner": rules.owner,
        "its_limit": limit,
        "its_probing": probing,
        "its_owner_id": owner_id,
    }
    return values if only is None else {**values, "its_id": only}


def claim_statement(clock: Clock, *, only: bool, gated: bool) -> sa.UpdateBase:
    """Build the claim; it returns every row it took, those without a call with no lease owner.

    With `only` it is about one row, whoever left it behind; else about all but suspects. `gated`
    (PostgreSQL): of two claims at once that count before they act, one counts again next time.
    SQLite has but one at a time, and keeps the rate by `spend_statement`.
    """
    now = instant_of(clock)
    granted = _granted(now, only=only)
    passed = sa.exists(sa.select(_passed(now, granted).c.kind)) if gated else sa.true()
    # No planner can know how few these are; from an array PostgreSQL reads them by their key.
    ids = sa.func.array(sa.select(granted.c.id).scalar_subquery())
    by_key = t.c.id == sa.any_(ids) if gated else sa.true()
    ends_in = elapsed(now, sa.func.coalesce(t.c.create_ends_at, now))
    first_create = t.c.create_started_at == t.c.create_attempted_at
    overdue = t.c.operation_deadline_at <= now
    remembered = is_remembered(now)
    return (
        sa.update(t)
        .where(t.c.id == granted.c.id, by_key, sa.or_(sa.not_(granted.c.counted), passed))
        .values(written(granted.c))
        .returning(
            *SHOWN,
            t.c.lease_owner,
            t.c.lease_token,
            t.c.claimed_generation,
            t.c.attempts,
            t.c.creates,
            t.c.reclaims,
            first_create.label("first_create"),
            ends_in.label("create_ends_in"),
            overdue.label("overdue"),
            remembered.label("remembered"),
        )
    )


def claim_of(row: Row) -> Claim:
    """Read a claim from the row as the claim statement left it."""
    return Claim(
        tenancy=tenancy_of(row),
        step=_step_of(row),
        reason=row["reason"],
        token=row["lease_token"],
        generation=row["claimed_generation"],
        attempts=row["attempts"],
        creates=row["creates"],
        first_create=bool(row["first_create"]),
        reclaims=row["reclaims"],
        releasing=bool(row["release_seen_at"] or row["release_started_at"]),
        create_ends_in=row["create_ends_in"],
        overdue=bool(row["overdue"]),
        readable=isinstance(row["params"], dict),
        remembered=bool(row["remembered"]),
    )


def _step_of(row: Row) -> Step:
    # SQLite returns columns of the row only, so the verdict itself does not come back.
    if row["operation_id"] is not None:
        return Step.POLL
    if row["release_started_at"] is not None:
        return Step.RELEASE
    return _STEPS.get(row["phase"], Step.UPDATE)


def spend_statement(clock: Clock) -> sa.Update:
    """Build what follows a claim where it is no part of it: `its_calls` are taken of the rate."""
    calls = sa.bindparam("its_calls", type_=sa.Integer())
    spent = rate_spent(instant_of(clock), calls)
    return sa.update(vendor).where(vendor.c.kind == kind).values(rate_at=spent)


def judged(now: Moment, room: Room, *more: Expression) -> "sa.Select[*tuple[Any, ...]]":
    """Select rows with what a claim would make of them now, as `verdict`."""
    seen = sa.case((_seen_before(), t.c.release_seen_at), else_=now)
    grace_end = _grace_end(now, seen)
    return sa.select(
        t.c.id,
        verdict_of(now, grace_end <= now, room).label("verdict"),
        now.label("now"),
        seen.label("seen"),
        grace_end.label("grace_end"),
        *more,
    ).where(t.c.kind == kind, sa.not_(t.c.paused), t.c.retired_at.is_(None))


def _awaited(now: Moment, room: Room, *, only: bool) -> sa.CTE:
    """Select the rows to look at, locked, each with what the claim makes of it.

    A suspect is taken by itself only.
    """
    probing = sa.bindparam("its_probing", type_=sa.Boolean())
    at = sa.func.coalesce(look_at, now).label("at")
    owner = sa.select(deployment.c.owner_id).scalar_subquery()
    key = owner + "-" + base32(t.c.id)
    # Whoever was given the database meanwhile made keys of its own.
    ours = sa.func.coalesce(owner == sa.bindparam("its_owner_id", type_=sa.Text()), sa.true())
    since = t.c.generation_at.label("since")
    needed = (at, since, key.label("key"), never_begun.label("never_begun"), asked.label("asked"))
    # Of all rows those that are held are left out below: what is left is judged without.
    rows = judged(now, room if only else ROOM, *needed)
    free = sa.or_(t.c.lease_expires_at.is_(None), t.c.lease_expires_at <= now)
    if only:
        rows = rows.where(t.c.id == sa.bindparam("its_id", type_=sa.Uuid()), free)
    else:
        # What is held stays as it is, and must not stand in the way of the others.
        held = is_held(now, rows.selected_columns.grace_end <= now, room)
        rows = rows.where(look_at <= now, free, sa.not_(sa.or_(suspect, held)))
    limit = sa.bindparam("its_limit", type_=sa.Integer())
    needs_no_call = sa.not_(is_verdict(rows.selected_columns.verdict, *CALLING))
    open_ = sa.or_(sa.not_(is_halted()), probing, needs_no_call)
    return (
        rows.where(ours, sa.not_(is_paused(now)), open_)
        .order_by(*look_order)
        .limit(slots(now, limit))
        .with_for_update(skip_locked=True, of=t)
        .cte("awaited")
    )


def _granted(now: Moment, *, only: bool) -> sa.CTE:
    """Select those of the rows for which there is room, and whether that had to be counted."""
    creates, releases = creates_left(now), releases_left(now)
    awaited = _awaited(now, room_for(creates, releases), only=only)
    verdict = awaited.c.verdict
    begins = sa.and_(is_verdict(verdict, Verdict.CREATE), awaited.c.never_begun)
    ends = sa.and_(is_verdict(verdict, Verdict.RELEASE), awaited.c.asked)
    nth = sa.func.row_number().over(
        partition_by=(begins, ends), order_by=(awaited.c.at, awaited.c.since, awaited.c.id)
    )
    ranked = sa.select(*awaited.c, begins.label("begins"), ends.label("ends"), nth.label("nth"))
    each = ranked.cte("ranked")
    capped = known("capped", sa.Boolean())
    paced = known("paced", sa.Boolean())
    counted = sa.or_(
        each.c.ends,
        sa.and_(each.c.begins, capped),
        sa.and_(is_verdict(each.c.verdict, *CALLING), paced),
    )
    return (
        sa.select(*each.c, counted.label("counted"))
        .where(
            sa.or_(sa.not_(each.c.begins), each.c.nth <= creates),
            sa.or_(sa.not_(each.c.ends), each.c.nth <= releases),
        )
        .cte("granted")
    )


def _passed(now: Moment, granted: sa.CTE) -> sa.CTE:
    """Raise the gate if it stands where it stood when this statement counted.

    Another claim's update is waited for and then met by its new value (PostgreSQL manual, Read
    Committed): what that one took is not in our counts.
    """
    stood = vendor.alias("stood")
    calls = sa.select(sa.func.count()).where(is_verdict(granted.c.verdict, *CALLING))
    return (
        sa.update(vendor)
        .where(
            vendor.c.kind == kind,
            vendor.c.gate == sa.select(stood.c.gate).where(stood.c.kind == kind).scalar_subquery(),
            sa.exists(sa.select(granted.c.id).where(granted.c.counted)),
        )
        .values(gate=vendor.c.gate + number(1), rate_at=rate_spent(now, calls.scalar_subquery()))
        .returning(vendor.c.kind)
        .cte("passed")
    )


def _seen_before() -> sa.ColumnElement[bool]:
    """Whether this wish to release is the one that was seen: an undo between two looks ends it."""
    renewed = sa.func.coalesce(t.c.release_requested_at > t.c.release_seen_at, sa.false())
    return sa.and_(t.c.release_seen_at.is_not(None), sa.not_(renewed))


def _grace_end(now: Moment, seen: Moment) -> Moment:
    """Rule 9: from the worker's first sight or the last use, which no row can put after now."""
    used = earliest(sa.func.coalesce(t.c.last_used_at, seen), now)
    end = later(latest(seen, used), known("grace", sa.Float()))
    # Of a create that was repeated the first may still land, and would make anew what was released.
    repeated = sa.and_(t.c.create_attempted_at > t.c.create_started_at, has_resource)
    return latest(end, sa.func.coalesce(sa.case((repeated, t.c.create_ends_at)), end))

"""The settlement: how steps ended, written to rows and journal, a batch of any size at once.

Status is fenced by the lease: its token, still held. The journal is not, and a resource that was
made by a worker that had lost the lease is given to its row, so that it is never lost.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from nimble_lifecycle.protocol import Json, Phase
from nimble_lifecycle.store.models import journal
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import Clock, instant_of
from nimble_lifecycle.store.room import Moment
from nimble_lifecycle.store.types import (
    Columns,
    ColumnType,
    Expression,
    JsonObject,
    is_any,
    later,
    storable,
    word,
)
from nimble_lifecycle.store.verdicts import asked, is_open, new_params


@dataclass(slots=True, kw_only=True)  # a frozen one takes twice as long to make
class Settlement:
    """How a step ended, as it is written to the row and the journal. Times in seconds from now."""

    id: UUID
    token: int
    generation: int
    action: str
    outcome: str
    phase: Phase
    reason: str | None = None
    message: str | None = None
    external_id: str | None = None
    details: dict[str, Json] | None = None
    operation_id: str | None = None
    operation_limit: float | None = None
    delay: float | None = None
    """Until the row is due again; None: nothing is due."""
    attempts: int = 0
    creates: int = 0
    finished: bool = False
    """Whether what the generation asked for is done."""
    nothing_there: bool = False
    """Whether it is proven that no create of the row left anything at the vendor."""
    error: str | None = None
    seconds: float = 0.0
    """How long the call took."""


_FIELDS: dict[str, ColumnType] = {
    "id": sa.Uuid(),
    "token": sa.BigInteger(),
    "generation": sa.Integer(),
    "action": sa.Text(),
    "outcome": sa.Text(),
    "phase": sa.Text(),
    "reason": sa.Text(),
    "message": sa.Text(),
    "external_id": sa.Text(),
    "details": JsonObject,
    "operation_id": sa.Text(),
    "operation_limit": sa.Float(),
    "delay": sa.Float(),
    "attempts": sa.Integer(),
    "creates": sa.Integer(),
    "finished": sa.Boolean(),
    "nothing_there": sa.Boolean(),
    "error": sa.Text(),
    "seconds": sa.Float(),
}

_VALUES = attrgetter(*_FIELDS)

_TO_DO = (Phase.PENDING, Phase.PROVISIONING, Phase.UNRESOLVED)
"""Phases after which the create is still to be settled or begun."""


def settlement_values(batch: Sequence[Settlement], actor: str) -> dict[str, object]:
    """Give the bound values of the settlement statements: the whole batch as one parameter.

    What no database can store of an adapter's words is replaced, so that one row's cannot fail the
    batch.
    """
    rows: list[Json] = [_said_of(item) for item in batch]
    return {"its_batch": _storable_json(rows), "its_actor": actor}


def _said_of(settled: Settlement) -> dict[str, Json]:
    # By name: `dataclasses.asdict` copies what it finds, at three times the cost of all the rest.
    # What is missing is null in both databases, and most of it is.
    named = zip(_FIELDS, _VALUES(settled), strict=True)
    said = {name: value for name, value in named if value is not None}
    said["id"] = settled.id.hex
    return said


def _storable_json(rows: Json) -> str:
    """Write rows as JSON both databases can store, looked through only where they could not."""
    try:
        text = json.dumps(rows, allow_nan=False, ensure_ascii=False)
        text.encode()
    except ValueError:  # a number that is none, or half a character
        pass
    else:
        if r"\u0000" not in text:
            return text
    return json.dumps(storable(rows))


def settled_values(settled: Mapping[UUID, tuple[int, str | None]]) -> dict[str, object]:
    """Give the bound value that tells the later statements what the first one settled (SQLite).

    `settled` has the token and the resource of each row by its id.
    """
    return {"its_settled": json.dumps({row.hex: fields for row, fields in settled.items()})}


def settle_at_once(clock: Clock) -> "sa.Select[Any]":
    """Build settlement, journal and rescue as one statement (PostgreSQL)."""
    now = instant_of(clock)
    item = _batch_postgresql()
    # What the journal says comes back with the row: PostgreSQL, which expects to settle one, would
    # look for it in the batch once for each.
    said = [item.c[name].label(f"said_{name}") for name in _SAID]
    settle = _settle(now, item).returning(*_SETTLED, t.c.kind, *said)
    settled = settle.where(_among(sa.select(item.c.id))).cte("settled")
    took = _took(settled.c.said_external_id, settled.c.external_id)
    entries = _entries(
        now, {name: settled.c[f"said_{name}"] for name in _SAID}, settled.c.kind, took
    )
    held = sa.exists().where(settled.c.id == item.c.id)  # a row stands once in a batch
    lost = sa.select(*item.c).where(sa.not_(held)).cte("lost")
    of_lost = _among(sa.select(lost.c.id))
    # A step is journalled before its row is settled only where it had lost the row.
    late = _entries(now, lost.c, t.c.kind, sa.false()).where(
        t.c.id == lost.c.id, of_lost, sa.not_(_known(lost.c))
    )
    journalled = _journal(entries.union_all(late)).cte("journalled")
    rescued = _rescue(now, lost).where(of_lost).cte("rescued")
    return sa.select(settled.c.id).add_cte(journalled, rescued)


def _among(ids: "sa.Select[Any]") -> sa.ColumnElement[bool]:
    """Whether a tenancy is one of these, as an array: PostgreSQL then reads them by their key.

    What it knows of the table may be old, and from a join it may read all of it.
    """
    return t.c.id == sa.any_(sa.func.array(ids.scalar_subquery()))


def settle_one_by_one(clock: Clock) -> tuple[sa.UpdateBase, sa.Update, sa.Insert]:
    """Build settlement, rescue and journal as statements of one transaction (SQLite)."""
    now = instant_of(clock)
    item = _batch_sqlite()
    given = sa.func.json_each(sa.bindparam("its_settled", type_=sa.Text()))
    settled = given.table_valued("key", "value")
    token, resource = (sa.func.json_extract(settled.c.value, f"$[{at}]") for at in (0, 1))
    # By token too: a later claim may have followed.
    held = sa.and_(settled.c.key == item.c.id, token == item.c.token)
    took = sa.case((held, _took(item.c.external_id, resource)), else_=sa.false())
    entries = (
        _entries(now, item.c, t.c.kind, took)
        .select_from(item.join(t, t.c.id == item.c.id).outerjoin(settled, held))
        .where(sa.not_(_known(item.c)))
    )
    rescue = _rescue(now, item).where(sa.not_(sa.exists().where(held)))
    return _settle(now, item).returning(*_SETTLED), rescue, _journal(entries)


def _batch_postgresql() -> sa.FromClause:
    columns = [sa.column(name, type_) for name, type_ in _FIELDS.items()]
    given = (
        sa.func.jsonb_to_recordset(sa.cast(sa.bindparam("its_batch", type_=sa.Text()), JSONB()))
        .table_valued(*columns)
        .render_derived(name="given", with_types=True)
    )
    return sa.select(*given.c).cte("item")  # read once, though three statements look at it


def _batch_sqlite() -> sa.FromClause:
    each = sa.func.json_each(sa.bindparam("its_batch", type_=sa.Text())).table_valued("value")

    def field(name: str) -> Expression:
        value = sa.func.json_extract(each.c.value, f"$.{name}")
        # SQLAlchemy keeps a uuid on SQLite as its 32 digits.
        return sa.func.replace(value, "-", "") if name == "id" else value

    fields = (sa.type_coerce(field(name), type_).label(name) for name, type_ in _FIELDS.items())
    return sa.select(*fields).subquery("item")


_SETTLED = (t.c.id, t.c.lease_token, t.c.external_id)
"""What is to be known of a row that was settled."""

_SAID = (
    "id",
    "token",
    "generation",
    "action",
    "outcome",
    "external_id",
    "operation_id",
    "seconds",
    "error",
)
"""What the journal takes of a settlement."""


def _settle(now: Moment, item: sa.FromClause) -> Any:
    """Update the rows whose lease still holds.

    SQLAlchemy types an UPDATE with RETURNING by a class of its own for which a CTE is untyped.
    """
    i = item.c
    ready = i.phase == word(Phase.READY)
    # The params changed while the outcome of the attempt was open: they are still to be applied.
    unapplied = sa.and_(t.c.generation == i.generation, new_params)
    # A late worker gave the row a resource meanwhile: what this step made, and says, is a surplus.
    another = sa.func.coalesce(t.c.external_id != i.external_id, sa.false())
    # A vendor may give an operation another id with each answer: its time is one all the same.
    polled = sa.and_(i.action == "poll", t.c.operation_deadline_at.is_not(None))
    noted = _noted_operation(i)
    deadline = sa.case((polled, t.c.operation_deadline_at), else_=later(now, i.operation_limit))
    return (
        sa.update(t)
        .where(t.c.id == i.id, t.c.lease_token == i.token, t.c.lease_owner.is_not(None))
        .values(
            phase=sa.case((noted, Phase.PROVISIONING.value), else_=i.phase),
            reason=i.reason,
            message=i.message,
            external_id=sa.func.coalesce(t.c.external_id, i.external_id),
            details=sa.case((another, t.c.details), else_=sa.func.coalesce(i.details, t.c.details)),
            operation_id=sa.case((noted, t.c.operation_id), else_=i.operation_id),
            operation_deadline_at=sa.case(
                (noted, t.c.operation_deadline_at),
                (i.operation_id.is_(None), None),
                else_=deadline,
            ),
            observed_generation=sa.case(
                (sa.and_(ready, unapplied), t.c.observed_generation),
                (i.finished, i.generation),
                else_=t.c.observed_generation,
            ),
            created_at=sa.case(
                (ready, sa.func.coalesce(t.c.created_at, now)), else_=t.c.created_at
            ),
            # An update that failed shows nothing: it may have met that the resource is gone.
            last_observed_at=sa.case(
                (sa.or_(sa.and_(ready, i.finished), i.nothing_there), now),
                else_=t.c.last_observed_at,
            ),
            released_at=sa.case((i.phase == word(Phase.RELEASED), now), else_=t.c.released_at),
            due_at=_due(now, i, deadline),
            # As if its generation had not been seen: it is looked at once, and due it is not.
            claimed_generation=sa.case((_left(i, unapplied), 0), else_=t.c.claimed_generation),
            attempts=i.attempts,
            creates=i.creates,
            reclaims=sa.case((_found_nothing(i), t.c.reclaims), else_=0),
            # Kept until all is well: a look-up that says nothing must not hide why it was made.
            last_error=sa.case(
                (sa.or_(ready, i.phase == word(Phase.RELEASED)), i.error),
                else_=sa.func.coalesce(i.error, t.c.last_error),
            ),
            lease_owner=sa.null(),
            lease_expires_at=sa.null(),
        )
    )


def _due(now: Moment, i: Columns, deadline: Moment) -> Expression:
    """Say when the row is due again: an operation is asked about at its deadline at the latest."""
    due = later(now, i.delay)
    ends_first = sa.and_(i.operation_id.is_not(None), deadline > now, deadline < due)
    return sa.case((ends_first, deadline), else_=due)


def _noted_operation(i: Columns) -> sa.ColumnElement[bool]:
    """Whether a late worker noted an operation meanwhile, and this step did not settle the create.

    A claim forgets the operation of the row unless it is for a poll of it.
    """
    return sa.and_(
        t.c.operation_id.is_not(None),
        i.action != word("poll"),
        i.operation_id.is_(None),
        is_any(i.phase, _TO_DO),
    )


def _found_nothing(i: Columns) -> sa.ColumnElement[bool]:
    """Whether the step was a look-up after which all is still to be done."""
    return sa.and_(i.action == word("find"), i.operation_id.is_(None), is_any(i.phase, _TO_DO))


def _left(i: Columns, unapplied: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Whether the row comes to rest with something left to look at, though nothing is due.

    That is a release asked for while the outcome was open (its grace begins now) or until it was
    proven that there is nothing, params that were not applied, and a resource another worker noted
    meanwhile.
    """
    noted = sa.and_(
        t.c.external_id.is_not(None),
        t.c.created_at.is_(None),
        i.phase == word(Phase.STALLED),
    )
    at_rest = is_any(i.phase, (Phase.READY, Phase.STALLED))
    left = sa.and_(at_rest, i.delay.is_(None), sa.or_(asked, unapplied, noted))
    return sa.or_(left, sa.and_(i.nothing_there, asked))


def _took(said: Expression, resource: Expression) -> sa.ColumnElement[bool]:
    """Whether a settled row took what the step says, its resource with it."""
    return sa.or_(said.is_(None), sa.func.coalesce(said == resource, sa.false()))


def _entries(
    now: Moment, said: "Mapping[str, Expression] | Columns", kind: Expression, took: Expression
) -> "sa.Select[Any]":
    """Select what the journal says of each step."""
    entry = {
        "at": now,
        "tenancy_id": said["id"],
        "kind": kind,
        "action": said["action"],
        "outcome": said["outcome"],
        "actor": sa.bindparam("its_actor", type_=sa.Text()),
        "generation": said["generation"],
        "lease_token": said["token"],
        "settled": took,
        "external_id": said["external_id"],
        "operation_id": said["operation_id"],
        "seconds": said["seconds"],
        "note": said["error"],
    }
    return sa.select(*(value.label(name) for name, value in entry.items()))


def _known(i: Columns) -> sa.ColumnElement[bool]:
    """Whether it is journalled: a settlement may be repeated when its answer was lost."""
    same = sa.select(sa.literal(1)).where(
        journal.c.tenancy_id == i.id,
        journal.c.lease_token == i.token,
        journal.c.action == i.action,
        journal.c.outcome == i.outcome,
    )
    # With OFFSET it is no join, for which PostgreSQL would read a journal it takes for short.
    return same.offset(0).exists()


def _journal(entries: "sa.Select[Any] | sa.CompoundSelect[Any]") -> sa.Insert:
    names = [column.name for column in entries.selected_columns]
    return sa.insert(journal).from_select(names, entries, include_defaults=False)


def _rescue(now: Moment, item: sa.FromClause) -> sa.Update:
    """Take account of what a worker did at the vendor after losing the lease.

    A resource it made becomes its row's, where that has none, and so does an operation it began
    while the row is still open: the next step asks about that. A late update may have overwritten a
    newer one, and a late create may have brought older params: they count as not attempted, and are
    applied again.
    """
    i = item.c
    made = sa.and_(i.external_id.is_not(None), t.c.external_id.is_(None))
    began = sa.and_(
        i.action == word("create"),
        i.operation_id.is_not(None),
        is_open,
        t.c.external_id.is_(None),
        t.c.operation_id.is_(None),
        sa.not_(_known(i)),  # else it may be an operation that is over
    )
    overwrote = sa.and_(
        i.action == word("update"), t.c.external_id.is_not(None), t.c.release_started_at.is_(None)
    )
    return (
        sa.update(t)
        .where(
            t.c.id == i.id,
            sa.or_(made, began, overwrote),
            t.c.released_at.is_(None),
            t.c.retired_at.is_(None),
        )
        .values(
            external_id=sa.func.coalesce(t.c.external_id, i.external_id),
            details=sa.case((made, i.details), else_=t.c.details),
            operation_id=sa.case((began, i.operation_id), else_=t.c.operation_id),
            operation_deadline_at=sa.case(
                (began, later(now, i.operation_limit)), else_=t.c.operation_deadline_at
            ),
            due_at=sa.case((made, now), else_=t.c.due_at),
            attempted_params_hash=sa.case(
                (sa.or_(overwrote, i.generation != t.c.claimed_generation), None),
                else_=t.c.attempted_params_hash,
            ),
            claimed_generation=sa.case((overwrote, 0), else_=t.c.claimed_generation),
        )
    )

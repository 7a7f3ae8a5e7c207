"""What sweeps look at, and the acts that follow.

An act is one transaction that checks all it rests on once more, with the row locked: that the
finding still holds, that it was seen twice, that the sweep still has its turn, and that the breaker
lets it pass.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID, uuid5

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from nimble_lifecycle.protocol import FLEET, Desired, Origin, Phase, Why
from nimble_lifecycle.store.journal import entries_about
from nimble_lifecycle.store.models import deployment, live, sighting, vendor, with_resource
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.prepared import Prepared
from nimble_lifecycle.store.sightings import PAGE, Act, SightingStore, Sort, pages
from nimble_lifecycle.store.stretches import Stretch, cut, length_of, lies_in, values_of
from nimble_lifecycle.store.surpluses import insert_releasing
from nimble_lifecycle.store.types import Expression, Instant, next_number, word
from nimble_lifecycle.store.verdicts import asked

RELEASE = "sweep: release"
"""The journal's word for a release that a sweep asked for."""

UNKNOWN_WORKSPACE = "(unknown)"
"""The workspace of a resource whose row is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A live row as a sweep looks at it."""

    id: UUID
    tenant_id: str
    workspace_id: str
    incarnation: int
    desired: str
    hold: str | None
    paused: bool
    phase: str
    external_id: str | None
    lease_token: int
    lease_expires_at: datetime | None
    created_at: datetime | None
    last_observed_at: datetime | None
    last_seen_at: datetime

    @property
    def wanted(self) -> bool:
        """Whether no release is asked for."""
        return self.desired == Desired.WANTED and self.hold is None

    @property
    def proven_at(self) -> datetime | None:
        """When its resource was last known to be there."""
        known = [at for at in (self.created_at, self.last_observed_at) if at is not None]
        return max(known, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """The row that a key names, of whatever kind, live or not."""

    id: UUID
    tenant_id: str
    workspace_id: str
    kind: str
    incarnation: int
    create_started_at: datetime | None
    external_id: str | None
    is_live: bool

    @property
    def is_open(self) -> bool:
        """Whether it may still find out by itself that the resource is its own."""
        return self.is_live and self.external_id is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A live row whose create may have been applied between two times, and nobody can tell."""

    id: UUID
    tenant_id: str
    workspace_id: str
    incarnation: int
    create_started_at: datetime
    create_ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Loose:
    """A resource under a whole key of ours that no row has. `of` is the row the key names."""

    external_id: str
    owner_id: str
    named: UUID
    of: Keyed | None
    created_at: datetime


_MEMBER = tuple(t.c[name] for name in Member.__dataclass_fields__)
_keyed = sa.select(
    *(t.c[name] for name in Keyed.__dataclass_fields__ if name != "is_live"), live.label("is_live")
)


class SweepStore(SightingStore):
    """The store as sweeps see it."""

    # -- what there is ---------------------------------------------------------------------------

    def owner_id(self) -> str:
        """Read the first part of every key of this deployment."""
        return self._read(_owner_id)

    def paused(self, kind: str) -> str | None:
        """Say why the vendor is to be left alone now; None: it is not."""
        v = vendor.c
        why = sa.case(
            (v.paused, Why.PAUSED.value),
            (v.halted_at.is_not(None), Why.CREDENTIAL_REFUSED.value),
            (v.paused_until > self.instant(), v.pause_reason),
        )
        found = sa.select(why).where(v.kind.in_([kind, FLEET]), why.is_not(None))
        return self._read(lambda at: at.execute(found).scalars().first())

    def members(self, kind: str, after: UUID | None) -> list[Member]:
        """Read the next live rows of the kind, in the order of their ids."""
        statement = sa.select(*_MEMBER).where(t.c.kind == kind, live).order_by(t.c.id).limit(PAGE)
        if after is not None:
            statement = statement.where(t.c.id > after)
        rows = self._read(lambda at: at.execute(statement).mappings().all())
        return [Member(**row) for row in rows]

    def stretches(self) -> list[Stretch]:
        """Cut the table into parts of some milliseconds each, by where rows lie in it.

        Between two of them a row that is written may move: it is then met twice, or by the next
        sweep only.
        """
        length = length_of(t, self._store.engine.dialect)
        long = 0 if length is None else self._read(lambda at: at.execute(length).scalar_one())
        return cut(long, self._store.engine.dialect)

    def silent(self, kind: str, since: datetime, stretch: Stretch) -> list[Member]:
        """Read the live rows there that are wanted and were not heard from after that instant."""
        place = values_of(stretch, self._store.engine.dialect)
        values = {"its_kind": kind, "its_since": since, **place}
        rows = self._read(lambda at: self._silent.rows(at, values))
        return [Member(**row) for row in rows]

    @cached_property
    def _silent(self) -> Prepared:
        dialect = self._store.engine.dialect
        since = sa.bindparam("its_since", type_=Instant())
        # First by the one condition that few rows meet: PostgreSQL would look at it last, and
        # unpack every row as far as its last column for the others (measured: a third slower).
        quiet = sa.select(t).where(lies_in(dialect), t.c.last_seen_at <= since).cte()
        q = quiet.prefix_with("MATERIALIZED", dialect="postgresql").c
        statement = sa.select(*(q[column.name] for column in _MEMBER)).where(
            q.kind == sa.bindparam("its_kind", type_=sa.Text()),
            q.release_started_at.is_(None),
            q.retired_at.is_(None),
            q.desired == word(Desired.WANTED),
            q.hold.is_(None),
        )
        return Prepared(statement, dialect)

    def unknowns(self, kind: str) -> list[Unknown]:
        """Read the rows that wait for a person to say whether they were created."""
        names = Unknown.__dataclass_fields__
        statement = sa.select(*(t.c[name] for name in names)).where(
            t.c.kind == kind,
            live,
            t.c.phase == Phase.STALLED.value,
            t.c.reason == Why.CREATE_OUTCOME_UNKNOWN.value,
            t.c.external_id.is_(None),
            t.c.create_ends_at.is_not(None),
        )
        rows = self._read(lambda at: at.execute(statement).mappings().all())
        return [Unknown(**row) for row in rows]

    def kinds(self) -> list[str]:
        """Name every kind that has rows."""
        every = sa.select(t.c.kind).distinct()
        return self._read(lambda at: list(at.execute(every).scalars()))

    def owned(self, kinds: Collection[str], external_ids: Sequence[str]) -> set[str]:
        """Give those of the ids that a row has whose resource is not gone."""
        parts = (self._owned_of(kinds, names) for names in pages(external_ids))
        return set().union(*parts)

    def _owned_of(self, kinds: Collection[str], external_ids: Sequence[str]) -> set[str]:
        # A join: twice as fast as a long IN list (measured on PostgreSQL).
        named = self._named(external_ids)
        found = (
            sa.select(t.c.external_id)
            .select_from(named.join(t, t.c.external_id == named.c.value))
            .where(t.c.kind.in_(kinds), with_resource)
        )
        return self._read(lambda at: set(at.execute(found).scalars()))

    def _named(self, names: Sequence[str]) -> sa.FromClause:
        """Give texts as rows of one column, `value`."""
        if self._store.is_sqlite:
            given = sa.literal(json.dumps(names), sa.Text())
            return sa.func.json_each(given).table_valued(sa.column("value", sa.Text()))
        given = sa.literal(list(names), postgresql.ARRAY(sa.Text()))
        return sa.select(sa.func.unnest(given).label("value")).subquery()

    def keyed(self, ids: Sequence[UUID]) -> dict[UUID, Keyed]:
        """Read the rows with these ids, of whatever kind."""
        return {row.id: row for some in pages(ids) for row in self._keyed_of(some)}

    def _keyed_of(self, ids: Sequence[UUID]) -> list[Keyed]:
        found = _keyed.where(t.c.id.in_(ids))
        return self._read(lambda at: [Keyed(**row) for row in at.execute(found).mappings()])

    # -- acts ------------------------------------------------------------------------------------

    def retire_vanished(
        self,
        row_id: UUID,
        external_id: str,
        token: int,
        *,
        why: str,
        allowed: int | None = None,
        in_turn: bool = False,
    ) -> Act:
        """Retire a ready row whose resource is gone, and give its workspace the next incarnation.

        Only while `token` is the row's, no release is asked for, and `external_id` was sighted
        twice as `Sort.DRIFT` since it was last seen to be there. `allowed` is what the breaker lets
        pass where that is known already.
        """
        still = sa.and_(
            t.c.id == row_id,
            t.c.external_id == external_id,
            t.c.lease_token == token,
            t.c.phase == Phase.READY.value,
            live,
            sa.not_(asked),
            sa.not_(t.c.paused),
        )

        def write(at: sa.Connection) -> Act:
            row = at.execute(sa.select(t).where(still).with_for_update()).one_or_none()
            if row is None:
                return Act.CHANGED
            self._lock(at, row.kind, in_turn=in_turn)
            # What was seen before it was last there counts no more.
            at.execute(_outdated(row)).close()
            act, now = self._let_pass(
                at, row.kind, Sort.DRIFT, external_id, allowed=allowed, in_turn=in_turn
            )
            if act is Act.DONE:
                at.execute(_retired(row, now)).close()
                at.execute(_next_life(row, now)).close()
                self._note(at, row, now, action="sweep: retire", sort=Sort.DRIFT, why=why)
            return act

        return self._transact(write)

    def ask_release(
        self, member: Member, sort: Sort, silence: float, *, why: str, allowed: int
    ) -> Act:
        """Ask for the release of a live row whose workspace was silent for so many seconds.

        That is an intent like a host's: the grace begins, and a *ready* withdraws it.
        """

        def write(at: sa.Connection) -> Act:
            since = self._now(at) - timedelta(seconds=silence)
            still = sa.and_(
                t.c.id == member.id,
                live,
                sa.not_(asked),
                sa.not_(t.c.paused),
                t.c.last_seen_at <= since,
            )
            row = at.execute(sa.select(t).where(still).with_for_update()).one_or_none()
            if row is None:
                return Act.CHANGED
            act, now = self._let_pass(
                at, row.kind, sort, str(row.id), allowed=allowed, in_turn=True
            )
            if act is Act.DONE:
                wish = {
                    "desired": Desired.RELEASE.value,
                    "generation": next_number(t.c.generation),
                    "generation_at": now,
                    "release_requested_at": now,
                }
                at.execute(sa.update(t).where(t.c.id == row.id).values(**wish)).close()
                self._note(at, row, now, action=RELEASE, sort=sort, why=why)
            return act

        return self._transact(write)

    def release_loose(self, kind: str, loose: Loose, *, why: str, allowed: int, keeps: bool) -> Act:
        """Give a resource of ours that no row has a row of its own, which releases it.

        With `keeps` that row is only listed.
        """

        def write(at: sa.Connection) -> Act:
            of = None if loose.of is None else self._keyed_locked(at, loose.named)
            if (of is None) != (loose.of is None) or (of is not None and of.is_open):
                return Act.CHANGED
            if _owner_id(at) != loose.owner_id:  # it is a copy's database by now
                return Act.CHANGED
            act, now = self._let_pass(
                at, kind, Sort.ORPHAN, loose.external_id, allowed=allowed, in_turn=True
            )
            if act is not Act.DONE:
                return act
            origin = Origin.ORPHAN if of is None else Origin.SURPLUS
            what = _what(kind, loose, of, now)
            dialect = self._store.engine.dialect.name
            insert = insert_releasing(what, origin, now, keeps=keeps, dialect=dialect)
            at.execute(insert).close()
            row = at.execute(sa.select(t).where(t.c.id == what["id"])).one_or_none()
            if row is None:  # another row has the resource by now
                raise _Unchanged
            self._note(at, row, now, action=RELEASE, sort=Sort.ORPHAN, why=why)
            return act

        try:
            return self._transact(write)
        except _Unchanged:
            return Act.CHANGED

    def _keyed_locked(self, at: sa.Connection, row_id: UUID) -> Keyed | None:
        its = _keyed.where(t.c.id == row_id).with_for_update()
        row = at.execute(its).mappings().one_or_none()
        return None if row is None else Keyed(**row)

    def _note(
        self,
        at: sa.Connection,
        row: sa.Row[Any],
        now: datetime,
        *,
        action: str,
        sort: Sort,
        why: str,
    ) -> None:
        its = t.c.id == row.id
        entry = entries_about(
            its, now, action=action, outcome=sort.value, note=why, actor=self._actor
        )
        at.execute(entry).close()


class _Unchanged(Exception):
    """Ends a transaction whose act turned out to be none, so that it is not counted either."""


def _owner_id(at: sa.Connection) -> str:
    return str(at.execute(sa.select(deployment.c.owner_id)).scalar_one())


def _outdated(row: sa.Row[Any]) -> sa.Delete:
    """Forget that the row's resource was missing, where it was seen to be there after that."""
    # Null where nobody ever saw it: a late worker noted it.
    observed = sa.literal(row.last_observed_at, t.c.last_observed_at.type)
    return sa.delete(sighting).where(
        sighting.c.kind == row.kind,
        sighting.c.sort == Sort.DRIFT.value,
        sighting.c.subject == row.external_id,
        sighting.c.acted_at.is_(None),
        sighting.c.first_at < observed,
    )


def _retired(row: sa.Row[Any], now: datetime) -> sa.Update:
    return (
        sa.update(t)
        .where(t.c.id == row.id)
        .values(
            retired_at=now,
            reason=Why.VANISHED.value,
            message="the resource is no longer at the vendor",
            claimed_generation=row.generation,
            due_at=None,
            release_after=None,
            operation_id=None,
            operation_deadline_at=None,
            lease_owner=None,
            lease_token=row.lease_token + 1,
            lease_expires_at=None,
        )
    )


def _next_life(row: sa.Row[Any], now: datetime) -> sa.Insert:
    """Insert the next incarnation, which wants what this one wanted."""
    at = sa.literal(now, Instant())
    copied = ("tenant_id", "workspace_id", "kind", "desired", "params", "params_hash")
    contact = ("last_seen_at", "last_reason", "last_used_at", "attempts")
    new: dict[str, Expression] = {
        # With the instant: a stolen server's role could insert a row of an id that it can foretell.
        "id": sa.literal(uuid5(row.id, f"next {now.isoformat()}"), sa.Uuid()),
        "incarnation": next_number(t.c.incarnation),
        "first_seen_at": at,
        "generation": sa.literal(1),
        "generation_at": at,
        **{name: t.c[name] for name in (*copied, *contact)},
    }
    rows = sa.select(*(value.label(name) for name, value in new.items())).where(t.c.id == row.id)
    return sa.insert(t).from_select(list(new), rows, include_defaults=False)


def _what(kind: str, loose: Loose, of: Keyed | None, now: datetime) -> dict[str, object]:
    """Say whose a resource is that gets a row of its own, as far as that is known."""
    return {
        "id": uuid5(loose.named, f"{Sort.ORPHAN} {loose.external_id} {now.isoformat()}"),
        "external_id": loose.external_id,
        "tenant_id": "" if of is None else of.tenant_id,
        "workspace_id": UNKNOWN_WORKSPACE if of is None else of.workspace_id,
        "kind": kind,
        "incarnation": 0 if of is None else of.incarnation,
        "create_started_at": loose.created_at if of is None else of.create_started_at,
    }

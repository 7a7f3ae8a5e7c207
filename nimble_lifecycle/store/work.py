"""What the worker half does to rows: claim steps, settle them, and look around.

The claim and the settlement are statements of their own modules; the rest is here.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import cached_property, partial
from typing import cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from nimble_lifecycle.errors import SharedResource
from nimble_lifecycle.protocol import FLEET, Origin, Phase, Tenancy
from nimble_lifecycle.store import room
from nimble_lifecycle.store.claims import (
    Claim,
    ClaimStatements,
    claim_of,
    claim_values,
    judged,
)
from nimble_lifecycle.store.engines import plan_once
from nimble_lifecycle.store.fleet import FleetStore
from nimble_lifecycle.store.models import call, gone, look_at, vendor
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import Clock, instant_of
from nimble_lifecycle.store.prepared import Prepared, Row, Statement
from nimble_lifecycle.store.rules import Rules, rule_values
from nimble_lifecycle.store.setback import rows_set_back, vendor_set_back
from nimble_lifecycle.store.settlements import (
    Settlement,
    settle_at_once,
    settle_one_by_one,
    settled_values,
    settlement_values,
)
from nimble_lifecycle.store.standing import Notice, conditioned, notices_of, standing_of
from nimble_lifecycle.store.surpluses import (
    insert_releasing,
    loose_ends,
    surplus_of,
)
from nimble_lifecycle.store.types import Expression, later, storable
from nimble_lifecycle.store.verdicts import Verdict, asked
from nimble_lifecycle.store.views import external_name_of, plain, shown_phase

KEPT_CALLS = 100_000
"""Rows of the call log that are kept."""


class WorkStore(FleetStore):
    """The store as the privileged half sees it."""

    def __init__(self, url: str, *, clock: Clock | None = None, connections: int = 4) -> None:
        """Raise ConfigurationError for a URL that is neither SQLite nor PostgreSQL."""
        super().__init__(url, clock=clock, connections=connections)
        if not self.is_sqlite:
            plan_once(self.engine)
        self._by_rules: dict[Rules, ClaimStatements] = {}

    def prepare(self, rules: Rules) -> None:
        """Enter the kind, and build the long statements now rather than on a first lease's time."""
        self.enter(rules.kind)
        self.writing(self._limit(), partial(self._take, rules, 0))
        self.claim_only(rules, UUID(int=0))

    def recheck(self) -> None:
        """Check once more whose database it is; raises ForeignDatabase."""
        self.check_again(self._limit())

    def moment(self) -> datetime:
        """Read the database's clock."""
        read = sa.select(self.clock.now())
        return self.reading(self._limit(), lambda at: at.execute(read).scalar_one())

    def set_back(self, rules: Rules, seconds: float) -> None:
        """Bring back by so much what is ahead of a clock that was put back; see `setback`."""
        values = {"its_kind": rules.kind, "its_lease": rules.lease, "its_back": seconds}

        def write(at: sa.Connection) -> None:
            for statement in (rows_set_back(self.clock), vendor_set_back(self.clock)):
                at.execute(statement, values).close()

        self.transacting(self._limit(), write)

    def claim(self, rules: Rules, limit: int) -> list[Claim]:
        """Look at the rows that wait for it; give up to `limit` that need a vendor call.

        Fewer than that: nothing else can be taken now. Rows that need no call do not hold up the
        others, and neither do those for which there is no room. Suspects are left to `claim_only`.
        """
        claims: list[Claim] = []
        while left := limit - len(claims):
            rows = self.writing(self._limit(), partial(self._take, rules, left))
            claims += [claim_of(row) for row in rows if row["lease_owner"] is not None]
            if len(rows) < left:
                break
        return claims

    def claim_only(self, rules: Rules, row: UUID, *, probing: bool = False) -> Claim | None:
        """Take this row, a suspect or a probe, if nobody has it; None also where it needs no call.

        `probing`: although the vendor refuses the credential.
        """
        bound = claim_values(rules, 1, owner_id=self.owner_id, only=row, probing=probing)
        one = self._claiming(rules).one
        taken = self.writing(self._limit(), partial(self._take_by, rules, one, bound))
        return next((claim_of(each) for each in taken if each["lease_owner"] is not None), None)

    def _take(self, rules: Rules, limit: int, at: sa.Connection) -> Sequence[Row]:
        bound = claim_values(rules, limit, owner_id=self.owner_id)
        return self._take_by(rules, self._claiming(rules).due, bound, at)

    def _take_by(
        self, rules: Rules, statement: Prepared, bound: dict[str, object], at: sa.Connection
    ) -> Sequence[Row]:
        rows = statement.rows(at, bound)
        if self.is_sqlite and rules.max_rate is not None:
            calls = sum(row["lease_owner"] is not None for row in rows)
            if calls:
                self._claiming(rules).spending.row(at, {**bound, "its_calls": calls})
        return rows

    def settle(self, batch: Sequence[Settlement], *, actor: str) -> set[UUID]:
        """Write how steps ended; give the ids whose lease still held. `actor` goes to the journal.

        Where it did not, only the journal is written, and a resource that was created becomes its
        row's if that has none; see `mend` for any other. Raises SharedResource where an external id
        belongs to another row; what was written of the batch then may be written once more.
        """
        settled: set[UUID] = set()
        for part in _one_for_each_row(batch):
            bound = settlement_values(part, actor)
            try:
                settled |= self.writing(self._limit(), partial(self._settle_on, bound=bound))
            except IntegrityError as error:
                raise SharedResource("another row has the resource already") from error
        return settled

    def _settle_on(self, at: sa.Connection, bound: dict[str, object]) -> set[UUID]:
        if not self.is_sqlite:
            return {row["id"] for row in self._settle_at_once.rows(at, bound)}
        settle, rescue, write_journal = self._settle_one_by_one
        rows = settle.rows(at, bound)
        settled = {row["id"]: (row["lease_token"], row["external_id"]) for row in rows}
        fenced = {**bound, **settled_values(settled)}
        rescue.row(at, fenced)
        write_journal.row(at, fenced)
        return set(settled)

    def disown(self, rules: Rules) -> None:
        """Give up what this owner has under lease, whose end then says nothing against a row.

        The leases stay until their end: a call may still be on its way.
        """
        mine = (t.c.kind == rules.kind, room.leased, t.c.lease_owner == rules.owner)
        statement = sa.update(t).where(*mine).values(lease_owner=None)
        self.writing(self._limit(), lambda at: at.execute(statement).close())

    def mend(self, kind: str, *, keeps: bool) -> int:
        """Give every resource that only the journal knows a row that releases it.

        With `keeps` it is only listed. Gives how many there were.
        """
        loose = self.reading(
            self._limit(), lambda at: at.execute(loose_ends(kind)).mappings().all()
        )
        for each in loose:
            self.writing(self._limit(), partial(self._mend_one, each, keeps=keeps))
        return len(loose)

    def _mend_one(self, loose: sa.RowMapping, at: sa.Connection, *, keeps: bool) -> None:
        now: datetime = at.execute(sa.select(self.clock.now())).scalar_one()
        dialect = self.engine.dialect.name
        surplus = surplus_of(loose, now)
        insert = insert_releasing(surplus, Origin.SURPLUS, now, keeps=keeps, dialect=dialect)
        at.execute(insert).close()

    def predecessor_going(self, claimed: Tenancy) -> bool:
        """Whether an earlier tenancy of the workspace was there when this one's create was begun.

        It may be gone by now: what it still held is what the create met.
        """
        begun = sa.select(t.c.create_attempted_at).where(t.c.id == claimed.id).scalar_subquery()
        there = sa.or_(t.c.released_at.is_(None), t.c.released_at >= begun)
        going = (
            sa.select(sa.literal(1))
            .where(
                t.c.workspace_id == claimed.workspace_id,
                t.c.tenant_id == claimed.tenant_id,
                t.c.kind == claimed.kind,
                t.c.incarnation < claimed.incarnation,
                gone,
                there,
                t.c.retired_at.is_(None),
                t.c.phase != Phase.KEPT.value,
            )
            .limit(1)
        )
        return self.reading(self._limit(), lambda at: at.execute(going).first() is not None)

    def busy(self, rules: Rules, within: float) -> bool:
        """Whether anything is leased, left behind, open or due within that many seconds.

        Waiting longer than that, for a pause, a refused credential, a cap or the breaker, or for a
        person, is not being busy.
        """
        bound = {**rule_values(rules), "its_within": within}
        return self.reading(
            self._limit(), lambda at: at.execute(self._busy, bound).first() is not None
        )

    def kinds(self) -> list[str]:
        """Name every kind that has rows."""
        every = sa.select(t.c.kind).distinct().order_by(t.c.kind)
        return self.reading(self._limit(), lambda at: list(at.execute(every).scalars()))

    def trim_calls(self) -> None:
        """Keep the last hundred thousand rows of the call log."""
        oldest = sa.select(sa.func.max(call.c.id) - KEPT_CALLS).scalar_subquery()
        statement = sa.delete(call).where(call.c.id <= oldest)
        self.writing(self._limit(), lambda at: at.execute(statement).close())

    def status(
        self,
        *,
        kind: str | None = None,
        row: UUID | None = None,
        settled_within: float = 7 * 86400.0,
    ) -> list[dict[str, object]]:
        """List rows that are not settled, or were within that many seconds; kept ones always.

        With `row` it is that row alone, settled or not. Each has its columns as keys, with phase,
        reason and message as shown, and `settle`: the command for what needs a person, or None.
        """
        statement = conditioned(self.clock).order_by(
            t.c.kind, t.c.tenant_id, t.c.workspace_id, t.c.incarnation
        )
        if row is not None:
            statement = statement.where(t.c.id == row)
        else:
            statement = statement.where(_unsettled(later(instant_of(self.clock), -settled_within)))
        if kind is not None:
            statement = statement.where(t.c.kind == storable(kind))
        rows = self.reading(self._limit(), lambda at: at.execute(statement).mappings().all())
        return [_shown_row(found) for found in rows]

    def notices(self, *, kind: str | None = None) -> list[Notice]:
        """List what needs a person for a whole kind, or for the fleet."""
        statement = sa.select(vendor).order_by(vendor.c.kind)
        if kind is not None:
            statement = statement.where(vendor.c.kind.in_([storable(kind), FLEET]))
        rows = self.reading(self._limit(), lambda at: at.execute(statement).mappings().all())
        return [found for row in rows for found in notices_of(cast("Row", row))]

    # -- statements, built once -------------------------------------------------------------------

    def _prepared(self, statement: Statement) -> Prepared:
        return Prepared(statement, self.engine.dialect)

    def _claiming(self, rules: Rules) -> ClaimStatements:
        if rules not in self._by_rules:
            self._by_rules[rules] = ClaimStatements(self.clock, self.engine.dialect, rules)
        return self._by_rules[rules]

    @cached_property
    def _settle_at_once(self) -> Prepared:
        return self._prepared(settle_at_once(self.clock))

    @cached_property
    def _settle_one_by_one(self) -> tuple[Prepared, Prepared, Prepared]:
        settle, rescue, write_journal = settle_one_by_one(self.clock)
        return self._prepared(settle), self._prepared(rescue), self._prepared(write_journal)

    @cached_property
    def _busy(self) -> sa.Executable:
        now = instant_of(self.clock)
        soon = later(now, sa.bindparam("its_within", type_=sa.Float()))
        in_flight = sa.select(t.c.id).where(
            t.c.kind == room.kind, room.leased, room.lease_end > now
        )
        open_phase = t.c.phase.in_((Phase.PROVISIONING.value, Phase.UNRESOLVED.value))
        left = room.room_for(room.creates_left(now), room.releases_left(now))
        waiting = (
            judged(soon, left)
            .where(
                sa.or_(t.c.lease_expires_at.is_not(None), look_at <= soon, open_phase),
                sa.not_(room.is_shut(soon, sa.false())),
            )
            .subquery()
        )
        moves = sa.select(waiting.c.id).where(waiting.c.verdict != Verdict.HELD.value)
        return sa.select(sa.literal(1)).where(sa.or_(sa.exists(in_flight), sa.exists(moves)))


def _one_for_each_row(batch: Sequence[Settlement]) -> list[list[Settlement]]:
    """Part a batch so that no row stands twice in a part: one statement writes a row once."""
    if len({settled.id for settled in batch}) == len(batch):
        return [list(batch)]
    parts: list[list[Settlement]] = []
    seen: Counter[UUID] = Counter()
    for settled in batch:
        if seen[settled.id] == len(parts):
            parts.append([])
        parts[seen[settled.id]].append(settled)
        seen[settled.id] += 1
    return parts


def _unsettled(since: Expression) -> sa.ColumnElement[bool]:
    """Whether a row is not at rest, or came to rest after `since`."""
    over = sa.or_(t.c.phase == Phase.RELEASED.value, t.c.retired_at.is_not(None))
    fine = sa.and_(
        t.c.phase == Phase.READY.value,
        t.c.observed_generation == t.c.generation,
        t.c.reason.is_(None),
        t.c.due_at.is_(None),
    )
    at_rest = sa.or_(over, sa.and_(fine, sa.not_(t.c.paused), sa.not_(asked)))
    when = sa.func.coalesce(t.c.released_at, t.c.retired_at, t.c.generation_at)
    return sa.or_(sa.not_(at_rest), when > since)


def _shown_row(row: sa.RowMapping) -> dict[str, object]:
    fields = cast("Row", row)
    standing = standing_of(fields)
    shown = {column.name: plain(fields[column.name]) for column in t.c}
    named = {"phase": shown_phase(fields).value, "external_name": external_name_of(fields)}
    return {**shown, **named, **asdict(standing)}

"""What is known of a vendor as a whole, shared by all workers of a database (`nimble_vendor`)."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nimble_lifecycle.protocol import Why
from nimble_lifecycle.store import room
from nimble_lifecycle.store.claims import judged
from nimble_lifecycle.store.database import STATEMENT_LIMIT, Database
from nimble_lifecycle.store.models import journal, look_at, vendor
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import instant_of
from nimble_lifecycle.store.rules import Rules, rule_values
from nimble_lifecycle.store.types import known, later, least
from nimble_lifecycle.store.verdicts import (
    CALLING,
    MAX_RECLAIMS,
    Room,
    Verdict,
    is_verdict,
    looked_up,
    reclaimed,
)

SUSPECTS = 100
"""Suspects that are told at a time."""

LONGEST_PROBE = 60
"""Longest time between two probes of a refused credential, in seconds; the first waits one."""

_REFUSED = (Why.CREDENTIAL_REFUSED.value, Why.PERMISSION_DENIED.value)


class Suspect(NamedTuple):
    """A row that ended a worker, as far as can be known, and has had no result since."""

    id: UUID
    reclaims: int
    """How often it was taken over since its last result."""


@dataclass(frozen=True, slots=True)
class Attention:
    """What a worker must see to before it takes ordinary rows."""

    halted: bool = False
    """Whether the vendor refuses the credential."""
    pause: str | None = None
    """Why the vendor asks for patience now; None: it does not."""
    suspects: tuple[Suspect, ...] = ()
    """A hundred at most, those first that were taken over least."""


@dataclass(frozen=True, slots=True)
class Held:
    """What was counted for the breaker and the caps."""

    breaker_opened_at: datetime | None = None
    releases: int = 0
    """Releases that are due and for which the breaker leaves no room."""
    creates: int = 0
    """First creates that are due and for which the caps leave no room."""


class FleetStore(Database):
    """The part of the store that knows vendors rather than rows."""

    def enter(self, kind: str) -> None:
        """Make the vendor's row, which claims count by; a worker does so once, when it starts.

        A refused credential is probed at once: whoever starts a worker may have mended it.
        """
        self._vendor_write(self._enter, {"its_kind": kind})

    def attention(self, kind: str) -> Attention:
        """Say what a worker must see to first; nothing while nothing may be called."""
        bound = {"its_kind": kind, "its_probing": False}
        found = self.reading(self._limit(), lambda at: at.execute(self._attention, bound).all())
        return Attention(
            halted=any(row.halted for row in found),
            pause=next((row.pause for row in found), None),
            suspects=tuple(Suspect(row.id, row.reclaims) for row in found if row.id is not None),
        )

    def pause(self, kind: str, seconds: float, reason: str) -> None:
        """Let no worker of the database claim rows of this kind for that long."""
        self._vendor_write(
            self._pause, {"its_kind": kind, "its_seconds": seconds, "its_reason": reason}
        )

    def refused(self, kind: str, row: UUID, proof: Collection[str]) -> bool:
        """Note that the vendor refused the credential; give whether it does so for all rows.

        One row that meets it is refused alone. Two different ones, with no outcome that is `proof`
        of the credential in the journal between, halt the kind: only probes are called.
        """
        bound = {"its_kind": kind, "its_row": row, "its_proof": sorted(proof)}
        return self._vendor_write(self._refused, bound) is not None

    def take_probe(self, rules: Rules) -> UUID | None:
        """Give the row to try a refused credential on, if it is time; no other worker gets one.

        Rows that never met the refusal come first, else they take turns. Nobody else gets a probe
        for the length of a lease, or until `probed` says how this one ended.
        """
        row = self._vendor_write(self._take_probe, {**rule_values(rules), "its_probing": True})
        return row if isinstance(row, UUID) else None

    def probed(self, kind: str, row: UUID, *, proven: bool) -> None:
        """Say how a probe ended: resume the kind, or let the next probe wait, a minute at most."""
        bound = {"its_kind": kind, "its_row": row}
        self._vendor_write(self._resume if proven else self._probe_later, bound)

    def count(self, rules: Rules) -> Held:
        """Count the fleet, and open the breaker where more releases are due than may be started.

        Notes whether creates wait for a cap. Writes nothing where nothing changed.
        """
        bound = rule_values(rules)
        found = self.reading(
            self._limit(), lambda at: at.execute(self._count, bound).mappings().one()
        )
        opens = found["releases"] > 0 and found["breaker_opened_at"] is None
        capped = found["creates"] > 0
        told = (found["fleet"], found["capped_at"] is not None)
        if opens or told != (found["counted"], capped):
            counted = {"its_fleet": found["counted"], "its_approval": found["breaker_approved_at"]}
            held = {"its_opening": opens, "its_capping": capped}
            self._vendor_write(self._counted, {**bound, **counted, **held})
        opened_at = found["now"] if opens else found["breaker_opened_at"]
        return Held(opened_at, found["releases"], found["creates"])

    def _limit(self) -> float:
        return self.clock.monotonic() + STATEMENT_LIMIT

    def _vendor_write(self, statement: sa.Executable, bound: dict[str, object]) -> object:
        return self.writing(self._limit(), partial(_first_value, statement, bound))

    # -- statements, built once -------------------------------------------------------------------

    @cached_property
    def _enter(self) -> sa.Executable:
        insert = sqlite.insert(vendor) if self.is_sqlite else postgresql.insert(vendor)
        return insert.values(kind=room.kind).on_conflict_do_update(
            index_elements=[vendor.c.kind],
            set_={"probe_at": instant_of(self.clock)},
            where=vendor.c.halted_at.is_not(None),
        )

    @cached_property
    def _attention(self) -> sa.Executable:
        now = instant_of(self.clock)
        row = sa.select(t.c.id, t.c.reclaims).where(t.c.kind == room.kind)
        free = (sa.not_(t.c.paused), t.c.retired_at.is_(None))
        left_behind = row.where(reclaimed, room.lease_end <= now, *free)
        # Each has an index of its own, which neither database finds in an OR.
        ended = sa.and_(t.c.lease_owner.is_(None), t.c.lease_expires_at <= now)
        unleased = sa.or_(t.c.lease_expires_at.is_(None), ended)
        left_open = row.where(looked_up, unleased, look_at <= now, *free)
        each = sa.union_all(left_behind, left_open).subquery("each")
        suspects = (
            sa.select(each)
            .where(sa.not_(room.is_paused(now)))
            # While the credential is refused, only those that are left to a person.
            .where(sa.or_(sa.not_(room.is_halted()), each.c.reclaims >= MAX_RECLAIMS - 1))
            .order_by(each.c.reclaims)
            .limit(SUSPECTS)
            .subquery("suspects")
        )
        return (
            sa.select(
                vendor.c.halted_at.is_not(None).label("halted"),
                sa.case((vendor.c.paused_until > now, vendor.c.pause_reason)).label("pause"),
                *suspects.c,
            )
            .select_from(vendor.outerjoin(suspects, sa.true()))
            .where(vendor.c.kind == room.kind)
        )

    @cached_property
    def _pause(self) -> sa.Executable:
        insert = sqlite.insert(vendor) if self.is_sqlite else postgresql.insert(vendor)
        until = later(instant_of(self.clock), sa.bindparam("its_seconds", type_=sa.Float()))
        insert = insert.values(
            kind=sa.bindparam("its_kind"),
            paused_until=until,
            pause_reason=sa.bindparam("its_reason"),
        )
        said = insert.excluded.paused_until
        shorter = vendor.c.paused_until > said
        return insert.on_conflict_do_update(
            index_elements=[vendor.c.kind],
            set_={
                "paused_until": sa.case((shorter, vendor.c.paused_until), else_=said),
                "pause_reason": sa.case(
                    (shorter, vendor.c.pause_reason), else_=insert.excluded.pause_reason
                ),
            },
        )

    @cached_property
    def _refused(self) -> sa.Executable:
        # Each value is computed again from what another worker has just written: of two rows that
        # are refused at once, one is the second.
        now, v = instant_of(self.clock), vendor.c
        row = sa.bindparam("its_row", type_=sa.Uuid())
        proven = sa.exists().where(
            journal.c.id > v.refused_mark,
            journal.c.kind == v.kind,
            journal.c.outcome.in_(sa.bindparam("its_proof", expanding=True)),
        )
        halted = v.halted_at.is_not(None)
        alone = sa.or_(v.refused_id.is_(None), v.refused_id == row, proven)
        last = sa.select(sa.func.coalesce(sa.func.max(journal.c.id), 0)).scalar_subquery()
        return (
            sa.update(vendor)
            .where(v.kind == room.kind)
            .values(
                refused_id=sa.case((halted, v.refused_id), (alone, row), else_=v.refused_id),
                refused_mark=sa.case((halted, v.refused_mark), (alone, last), else_=v.refused_mark),
                halted_at=sa.case((halted, v.halted_at), (alone, sa.null()), else_=now),
                probe_at=sa.case((sa.or_(halted, alone), v.probe_at), else_=later(now, 1.0)),
                probes=sa.case((sa.or_(halted, alone), v.probes), else_=0),
            )
            .returning(v.halted_at)
        )

    @cached_property
    def _take_probe(self) -> sa.Executable:
        now, v = instant_of(self.clock), vendor.c
        last = vendor.alias("last")
        before = sa.select(last.c.probe_id).where(last.c.kind == room.kind).scalar_subquery()
        creates, releases = room.creates_left(now), room.releases_left(now)
        due = (
            judged(now, room.room_for(creates, releases), t.c.reason)
            .where(
                look_at <= now,
                sa.or_(t.c.lease_expires_at.is_(None), t.c.lease_expires_at <= now),
                sa.not_(room.is_shut(now, sa.true())),
            )
            .subquery("due")
        )
        met = sa.func.coalesce(due.c.reason.in_([*_REFUSED]), sa.false())
        candidate = (
            sa.select(due.c.id)
            .where(is_verdict(due.c.verdict, *CALLING))
            .order_by(
                sa.case((met, 1), else_=0), sa.case((due.c.id <= before, 1), else_=0), due.c.id
            )
            .limit(1)
            .cte("candidate")
        )
        lease = known("lease", sa.Float())
        return (
            sa.update(vendor)
            .where(
                v.kind == room.kind,
                v.halted_at.is_not(None),
                v.probe_at <= now,
                sa.exists(sa.select(candidate.c.id)),
            )
            .values(
                probe_id=sa.select(candidate.c.id).scalar_subquery(),
                probe_at=later(now, lease),
                probes=v.probes + 1,
            )
            .returning(v.probe_id)
        )

    @cached_property
    def _resume(self) -> sa.Executable:
        return (
            sa.update(vendor)
            .where(vendor.c.kind == room.kind, vendor.c.halted_at.is_not(None))
            .values(halted_at=None, refused_id=None, probes=0, resumed_at=instant_of(self.clock))
        )

    @cached_property
    def _probe_later(self) -> sa.Executable:
        v = vendor.c
        doublings = least(v.probes - 1, sa.literal(6))
        wait = least(sa.literal(1).bitwise_lshift(doublings), sa.literal(LONGEST_PROBE))
        return (
            sa.update(vendor)
            .where(
                v.kind == room.kind,
                v.halted_at.is_not(None),
                v.probe_id == sa.bindparam("its_row", type_=sa.Uuid()),
            )
            .values(probe_at=later(instant_of(self.clock), wait))
        )

    @cached_property
    def _count(self) -> sa.Executable:
        now, v = instant_of(self.clock), vendor.c
        creates, releases = room.creates_left(now), room.releases_left(now)
        ends = self._held(now, Room(creates=sa.true(), releases=releases >= 1))
        begins = self._held(now, Room(creates=creates >= 1, releases=sa.true()))
        return sa.select(
            now.label("now"),
            v.fleet,
            v.capped_at,
            v.breaker_opened_at,
            v.breaker_approved_at,
            room.fleet(now).label("counted"),
            sa.case((releases < 1, ends), else_=0).label("releases"),
            sa.case((creates < 1, begins), else_=0).label("creates"),
        ).where(v.kind == room.kind)

    @staticmethod
    def _held(now: room.Moment, left: Room) -> room.Number:
        due = judged(now, left).where(look_at <= now, t.c.lease_expires_at.is_(None)).subquery()
        held = sa.select(sa.func.count()).where(is_verdict(due.c.verdict, Verdict.HELD))
        return held.scalar_subquery()

    @cached_property
    def _counted(self) -> sa.Executable:
        now, v = instant_of(self.clock), vendor.c
        capping = sa.bindparam("its_capping", type_=sa.Boolean())
        approval = sa.bindparam("its_approval", type_=v.breaker_approved_at.type)
        # What was counted before an approval does not open what it has just closed.
        opening = sa.and_(
            sa.bindparam("its_opening", type_=sa.Boolean()),
            v.breaker_approved_at.is_not_distinct_from(approval),
            v.breaker_opened_at.is_(None),
        )
        return (
            sa.update(vendor)
            .where(v.kind == room.kind)
            .values(
                fleet=sa.bindparam("its_fleet", type_=sa.Integer()),
                capped_at=sa.case((capping, sa.func.coalesce(v.capped_at, now))),
                breaker_opened_at=sa.case((opening, now), else_=v.breaker_opened_at),
            )
        )


def _first_value(statement: sa.Executable, bound: dict[str, object], at: sa.Connection) -> object:
    result = at.execute(statement, bound)
    return result.scalars().first() if result.returns_rows else None

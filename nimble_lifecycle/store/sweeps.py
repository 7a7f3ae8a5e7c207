"""What sweeps read and write: their turn, what they saw before, their breaker, and their acts.

An act is one transaction that checks all it rests on once more, with the row locked: that the
finding still holds, that it was seen twice, that the sweep still has its turn, and that the breaker
lets it pass. All acts of a kind lock its row of `nimble_vendor`, so none is missed in the count.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar
from uuid import UUID, uuid5

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nimble_lifecycle.errors import SweepBusy
from nimble_lifecycle.protocol import Desired, Origin, Phase, Why
from nimble_lifecycle.store.database import Database
from nimble_lifecycle.store.models import deployment, journal, live, sighting, vendor
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.surpluses import insert_releasing
from nimble_lifecycle.store.types import Expression, Instant
from nimble_lifecycle.store.verdicts import asked

T = TypeVar("T")

PAGE = 1000
"""Rows and ids that one statement reads or names."""

CONFIRMED = 2
"""Strikes after which a finding is acted on."""

WINDOW = timedelta(days=1)
"""How far back the breaker counts."""

FEWEST = 3
"""Acts that the breaker lets pass however small the fleet is."""

SHARE = 10
"""It lets one act pass for so many tenancies that have a resource."""

STATEMENT_LIMIT = 30.0
"""Seconds a statement may take."""


class Sort(StrEnum):
    """What a sweep finds; the words are those of `nimble_sighting.sort`."""

    STALE = "stale"
    """A workspace that was not heard from for long."""
    ORPHAN = "orphan"
    """A resource of ours that no row has."""
    DRIFT = "drift"
    """A row whose resource is not there."""
    UNLISTED = "unlisted"
    """A workspace in which the host no longer has the server."""


class Act(StrEnum):
    """What became of an act."""

    DONE = "done"
    CHANGED = "changed"
    """What was found is no longer so, or was not seen twice; nothing was done."""
    HELD = "held"
    """The breaker is open, or was opened by this; nothing was done."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """How often something was seen: strikes count up to two, each one apart from the other."""

    strikes: int
    first_at: datetime
    last_at: datetime
    acted_at: datetime | None = None


def seen_again(known: Sighting | None, now: datetime, apart: float) -> Sighting:
    """Give what a sighting becomes when it is seen at `now`; the same object where nothing new."""
    if known is None:
        return Sighting(1, now, now)
    if known.acted_at is not None:  # the breaker counts it for as long as its window is
        return known if known.acted_at > now - WINDOW else Sighting(1, now, now)
    if known.strikes < CONFIRMED and known.last_at <= now - timedelta(seconds=apart):
        return replace(known, strikes=known.strikes + 1, last_at=now)
    return known


@dataclass(frozen=True, slots=True)
class Breaker:
    """How much sweeps of a kind did within a day, and how much they may."""

    acted: int
    allowed: int
    is_open: bool


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
class Loose:
    """A resource under a whole key of ours that no row has. `of` is the row the key names."""

    external_id: str
    named: UUID
    of: Keyed | None
    created_at: datetime


_MEMBER = tuple(t.c[name] for name in Member.__dataclass_fields__)
_KEYED = tuple(t.c[name] for name in Keyed.__dataclass_fields__ if name != "is_live")
_held = sa.and_(
    t.c.external_id.is_not(None), t.c.released_at.is_(None), t.c.retired_at.is_(None)
)

FLEET = "*"
"""The kind whose row of `nimble_vendor` holds the pause of the whole fleet."""

UNKNOWN_WORKSPACE = "(unknown)"
"""The workspace of a resource whose row is not there any more."""


class SweepStore:
    """The store as sweeps see it. All methods block; `actor` is what the journal calls us."""

    def __init__(self, store: Database, *, actor: str) -> None:
        self._store = store
        self._actor = actor

    # -- one sweep at a time ---------------------------------------------------------------------

    def take_turn(self, kind: str, seconds: float, *, rest: float = 0.0) -> bool:
        """Take the kind's one turn for so long; False where another sweep has it.

        False too where a sweep began within the last `rest` seconds.
        """
        now = self.instant()
        taken = {
            "sweep_owner": self._actor,
            "sweep_expires_at": now + timedelta(seconds=seconds),
            "swept_at": now,
        }
        free = sa.or_(vendor.c.sweep_expires_at.is_(None), vendor.c.sweep_expires_at <= now)
        rested = sa.or_(
            vendor.c.swept_at.is_(None), vendor.c.swept_at <= now - timedelta(seconds=rest)
        )
        statement = (
            self._insert(vendor)
            .values(kind=kind, **taken)
            .on_conflict_do_update(
                index_elements=[vendor.c.kind], set_=taken, where=sa.and_(free, rested)
            )
            .returning(vendor.c.kind)
        )
        return self._write(lambda at: at.execute(statement).first() is not None)

    def keep_turn(self, kind: str, seconds: float) -> None:
        """Go on having the turn; raises SweepBusy where it has ended."""
        now = self.instant()
        statement = (
            sa.update(vendor)
            .where(self._mine(kind, now))
            .values(sweep_expires_at=now + timedelta(seconds=seconds))
        )
        if self._write(lambda at: at.execute(statement).rowcount) == 0:
            raise _overtaken(kind)

    def give_turn_back(self, kind: str) -> None:
        """Let the next sweep begin."""
        statement = (
            sa.update(vendor)
            .where(vendor.c.kind == kind, vendor.c.sweep_owner == self._actor)
            .values(sweep_owner=None, sweep_expires_at=None)
        )
        self._write(lambda at: at.execute(statement).close())

    def _mine(self, kind: str, now: datetime) -> sa.ColumnElement[bool]:
        return sa.and_(
            vendor.c.kind == kind,
            vendor.c.sweep_owner == self._actor,
            vendor.c.sweep_expires_at > now,
        )

    # -- what was seen before --------------------------------------------------------------------

    def sightings(self, kind: str, sort: Sort) -> dict[str, Sighting]:
        """Read what was seen of this sort, by subject."""
        return self._read(lambda at: _sightings(at, kind, sort))

    def sight(self, kind: str, sort: Sort, subject: str, apart: float) -> int:
        """Note that something was seen, and give its strikes; see `strike`. No turn is needed."""
        return self.strike(kind, sort, [subject], apart, in_turn=False)[subject]

    def strike(
        self,
        kind: str,
        sort: Sort,
        subjects: Collection[str],
        apart: float,
        *,
        in_turn: bool = True,
    ) -> dict[str, int]:
        """Note that these were seen, and give their strikes.

        The second strike counts once it is `apart` seconds from the first; 0: it was acted on
        within a day. What is known already is not written again. Raises SweepBusy where the turn
        has ended.
        """

        def write(at: sa.Connection) -> dict[str, Sighting]:
            now, _ = self._lock(at, kind, in_turn=in_turn)
            known = _sightings(at, kind, sort)
            news = _news(known, subjects, now, apart)
            self._put(at, kind, sort, news)
            return known | news

        known = self.sightings(kind, sort)
        if _news(known, subjects, self.instant(), apart):
            known = self._transact(write)
        return {name: 0 if known[name].acted_at else known[name].strikes for name in subjects}

    def forget(self, kind: str, sort: Sort, subjects: Collection[str]) -> None:
        """Take back what was seen and is no longer so; what the breaker counts stays."""
        counted = sighting.c.acted_at > self.instant() - WINDOW
        for names in pages(list(subjects)):
            statement = sa.delete(sighting).where(
                sighting.c.kind == kind,
                sighting.c.sort == sort.value,
                sighting.c.subject.in_(names),
                sa.not_(sa.func.coalesce(counted, sa.false())),
            )
            self._write(lambda at, its=statement: at.execute(its).close())

    def _put(
        self, at: sa.Connection, kind: str, sort: Sort, news: Mapping[str, Sighting]
    ) -> None:
        if not news:
            return
        insert = self._insert(sighting)
        new = insert.excluded
        names = ("strikes", "first_at", "last_at", "acted_at")
        statement = insert.on_conflict_do_update(
            index_elements=list(sighting.primary_key), set_={name: new[name] for name in names}
        )
        rows = [
            {"kind": kind, "sort": sort.value, "subject": subject, **asdict(seen)}
            for subject, seen in news.items()
        ]
        at.execute(statement, rows).close()

    # -- the breaker -----------------------------------------------------------------------------

    def breaker(self, kind: str) -> Breaker:
        """Read how much was done and may be done."""

        def read(at: sa.Connection) -> Breaker:
            row = at.execute(sa.select(vendor).where(vendor.c.kind == kind)).one_or_none()
            return _breaker(at, kind, row, self._now(at), _allowed(at, kind))

        return self._read(read)

    def _let_pass(
        self,
        at: sa.Connection,
        kind: str,
        sort: Sort,
        subject: str,
        *,
        allowed: int | None,
        in_turn: bool,
    ) -> "tuple[Act, datetime]":
        """Count an act and let it pass, or say why not; locks the kind for the transaction."""
        now, row = self._lock(at, kind, in_turn=in_turn)
        mine = sa.and_(
            sighting.c.kind == kind, sighting.c.sort == sort.value, sighting.c.subject == subject
        )
        ripe = sa.and_(mine, sighting.c.strikes >= CONFIRMED, sighting.c.acted_at.is_(None))
        if at.execute(sa.select(sighting.c.subject).where(ripe)).first() is None:
            return Act.CHANGED, now
        limit = _allowed(at, kind) if allowed is None else allowed
        breaker = _breaker(at, kind, row, now, limit)
        if not breaker.is_open and breaker.acted < limit:
            at.execute(sa.update(sighting).where(mine).values(acted_at=now)).close()
            return Act.DONE, now
        if not breaker.is_open:
            opened = sa.update(vendor).where(vendor.c.kind == kind)
            at.execute(opened.values(sweep_breaker_opened_at=now)).close()
        return Act.HELD, now

    def _lock(
        self, at: sa.Connection, kind: str, *, in_turn: bool
    ) -> "tuple[datetime, sa.Row[tuple[object, ...]]]":
        """Lock the kind, and only then look at the clock."""
        its = sa.select(vendor).where(vendor.c.kind == kind).with_for_update()
        row = at.execute(its).one_or_none()
        if row is None:
            at.execute(self._insert(vendor).values(kind=kind).on_conflict_do_nothing()).close()
            row = at.execute(its).one()
        now = self._now(at)
        ours = row.sweep_owner == self._actor and row.sweep_expires_at > now
        if in_turn and not ours:
            raise _overtaken(kind)
        return now, row

    # -- what there is ---------------------------------------------------------------------------

    def instant(self) -> datetime:
        """Read the database's clock."""
        return self._read(self._now)

    def owner_id(self) -> str:
        """Read the first part of every key of this deployment."""
        return self._read(lambda at: at.execute(sa.select(deployment.c.owner_id)).scalar_one())

    def paused(self, kind: str) -> str | None:
        """Say why the vendor is to be left alone now; None: it is not."""
        now = self.instant()
        halted = sa.or_(
            vendor.c.paused, vendor.c.halted_at.is_not(None), vendor.c.paused_until > now
        )
        found = sa.select(vendor.c.pause_reason, vendor.c.paused).where(
            vendor.c.kind.in_([kind, FLEET]), halted
        )
        row = self._read(lambda at: at.execute(found).first())
        if row is None:
            return None
        return Why.PAUSED.value if row.paused else (row.pause_reason or Why.CREDENTIAL_REFUSED.value)

    def members(self, kind: str, after: UUID | None) -> list[Member]:
        """Read the next live rows of the kind, in the order of their ids."""
        statement = sa.select(*_MEMBER).where(t.c.kind == kind, live).order_by(t.c.id).limit(PAGE)
        if after is not None:
            statement = statement.where(t.c.id > after)
        rows = self._read(lambda at: at.execute(statement).mappings().all())
        return [Member(**row) for row in rows]

    def kinds(self) -> list[str]:
        """Name every kind that has rows."""
        every = sa.select(t.c.kind).distinct()
        return self._read(lambda at: list(at.execute(every).scalars()))

    def held(self, kinds: Collection[str], external_ids: Sequence[str]) -> set[str]:
        """Give those of the ids that a row has whose resource is not gone."""
        found: set[str] = set()
        for names in pages(external_ids):
            statement = sa.select(t.c.external_id).where(
                t.c.kind.in_(kinds), t.c.external_id.in_(names), _held
            )
            found |= self._read(lambda at, its=statement: set(at.execute(its).scalars()))
        return found

    def keyed(self, ids: Sequence[UUID]) -> dict[UUID, Keyed]:
        """Read the rows with these ids, of whatever kind."""
        found: dict[UUID, Keyed] = {}
        for some in pages(ids):
            statement = sa.select(*_KEYED, live.label("is_live")).where(t.c.id.in_(some))
            rows = self._read(lambda at, its=statement: at.execute(its).mappings().all())
            found |= {row["id"]: Keyed(**row) for row in rows}
        return found

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
        twice as `Sort.DRIFT`. `allowed` is what the breaker lets pass where that is known already.
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
            act, now = self._let_pass(
                at, row.kind, Sort.DRIFT, external_id, allowed=allowed, in_turn=in_turn
            )
            if act is Act.DONE:
                at.execute(_retired(row, now)).close()
                at.execute(_next_life(row, now)).close()
                self._note(at, row, "retire", Sort.DRIFT, now, why, external_id=external_id)
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
                    "generation": row.generation + 1,
                    "generation_at": now,
                    "release_requested_at": now,
                }
                at.execute(sa.update(t).where(t.c.id == row.id).values(**wish)).close()
                self._note(at, row, "sweep: release", sort, now, why, generation=row.generation + 1)
            return act

        return self._transact(write)

    def release_loose(
        self, kind: str, loose: Loose, *, why: str, allowed: int, keeps: bool
    ) -> Act:
        """Give a resource of ours that no row has a row of its own, which releases it.

        With `keeps` that row is only listed.
        """

        def write(at: sa.Connection) -> Act:
            of = None if loose.of is None else self._keyed_locked(at, loose.named)
            if (of is None) != (loose.of is None) or (of is not None and of.is_open):
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
            if at.execute(insert).rowcount == 0:  # a row has it by now
                raise _Unchanged
            row = at.execute(sa.select(t).where(t.c.id == what["id"])).one()
            self._note(
                at, row, "sweep: release", Sort.ORPHAN, now, why, external_id=loose.external_id
            )
            return act

        try:
            return self._transact(write)
        except _Unchanged:
            return Act.CHANGED

    def _keyed_locked(self, at: sa.Connection, row_id: UUID) -> Keyed | None:
        its = sa.select(*_KEYED, live.label("is_live")).where(t.c.id == row_id).with_for_update()
        row = at.execute(its).mappings().one_or_none()
        return None if row is None else Keyed(**row)

    def _note(
        self,
        at: sa.Connection,
        row: "sa.Row[tuple[object, ...]]",
        action: str,
        sort: Sort,
        now: datetime,
        why: str,
        *,
        generation: int | None = None,
        external_id: str | None = None,
    ) -> None:
        entry = sa.insert(journal).values(
            at=now,
            tenancy_id=row.id,
            kind=row.kind,
            action=action,
            outcome=sort.value,
            actor=self._actor,
            generation=row.generation if generation is None else generation,
            lease_token=row.lease_token,
            settled=True,
            external_id=external_id,
            note=why,
        )
        at.execute(entry).close()

    # -- running ---------------------------------------------------------------------------------

    def _now(self, at: sa.Connection) -> datetime:
        now: datetime = at.execute(sa.select(self._store.clock.now())).scalar_one()
        return now

    def _insert(self, table: sa.Table) -> "postgresql.Insert | sqlite.Insert":
        return sqlite.insert(table) if self._store.is_sqlite else postgresql.insert(table)

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        return self._store.reading(self._limit(), work)

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        return self._store.writing(self._limit(), work)

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        return self._store.transacting(self._limit(), work)

    def _limit(self) -> float:
        return self._store.clock.monotonic() + STATEMENT_LIMIT


class _Unchanged(Exception):  # noqa: N818
    """Ends a transaction whose act turned out to be none, so that it is not counted either."""


def pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut into parts of `PAGE`."""
    return (items[start : start + PAGE] for start in range(0, len(items), PAGE))


def _overtaken(kind: str) -> SweepBusy:
    return SweepBusy(f"the sweep of {kind!r} took too long, and lost its turn to another")


def _sightings(at: sa.Connection, kind: str, sort: Sort) -> dict[str, Sighting]:
    s = sighting.c
    statement = sa.select(s.subject, s.strikes, s.first_at, s.last_at, s.acted_at).where(
        s.kind == kind, s.sort == sort.value
    )
    return {row[0]: Sighting(*row[1:]) for row in at.execute(statement)}


def _news(
    known: Mapping[str, Sighting], subjects: Collection[str], now: datetime, apart: float
) -> dict[str, Sighting]:
    """Give the sightings of these subjects that are to be written."""
    seen = {name: seen_again(known.get(name), now, apart) for name in subjects}
    return {name: its for name, its in seen.items() if its is not known.get(name)}


def _allowed(at: sa.Connection, kind: str) -> int:
    """Count what the breaker lets pass within a day."""
    fleet = sa.select(sa.func.count()).select_from(t).where(t.c.kind == kind, _held, live)
    return max(FEWEST, int(at.execute(fleet).scalar_one()) // SHARE)


def _breaker(
    at: sa.Connection,
    kind: str,
    row: "sa.Row[tuple[object, ...]] | None",
    now: datetime,
    allowed: int,
) -> Breaker:
    opened = None if row is None else row.sweep_breaker_opened_at
    approved = None if row is None else row.sweep_breaker_approved_at
    since = now - WINDOW if approved is None else max(approved, now - WINDOW)
    acted = sa.select(sa.func.count()).where(sighting.c.kind == kind, sighting.c.acted_at > since)
    is_open = opened is not None and (approved is None or approved < opened)
    return Breaker(int(at.execute(acted).scalar_one()), allowed, is_open)


def _retired(row: "sa.Row[tuple[object, ...]]", now: datetime) -> sa.Update:
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


def _next_life(row: "sa.Row[tuple[object, ...]]", now: datetime) -> sa.Insert:
    """Insert the next incarnation, which wants what this one wanted."""
    at = sa.literal(now, Instant())
    copied = ("tenant_id", "workspace_id", "kind", "desired", "params", "params_hash")
    contact = ("last_seen_at", "last_reason", "last_used_at", "attempts")
    new: dict[str, Expression] = {
        "id": sa.literal(uuid5(row.id, "next"), sa.Uuid()),
        "incarnation": t.c.incarnation + 1,
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

"""What sweeps remember: whose turn it is, what was seen before, and how much was done.

One sweep at a time has the turn of a kind. A sighting is a strike against a subject; two of them,
apart in time, are what an act needs. The breaker counts the acts of a day. Whoever writes any of it
locks the kind's row of `nimble_vendor`, so that nothing is missed in the count.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nimble_lifecycle.errors import SweepBusy
from nimble_lifecycle.store.database import STATEMENT_LIMIT, Database
from nimble_lifecycle.store.models import sighting, vendor, with_resource
from nimble_lifecycle.store.models import tenancy as t

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
    MATCH = "match"
    """A resource without a mark that may be what a create of unknown outcome made."""


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

    @property
    def counting(self) -> int:
        """The strikes on which to act: none where that was done."""
        return self.strikes if self.acted_at is None else 0

    def is_counted(self, now: datetime) -> bool:
        """Whether the breaker counts what was done about it."""
        return self.acted_at is not None and self.acted_at > now - WINDOW


def seen_again(known: Sighting | None, now: datetime, apart: float) -> Sighting:
    """Give what a sighting becomes when it is seen at `now`; the same object where nothing new."""
    if known is None:
        return Sighting(1, now, now)
    if known.acted_at is not None:
        return known if known.is_counted(now) else Sighting(1, now, now)
    if known.strikes < CONFIRMED and known.last_at <= now - timedelta(seconds=apart):
        return replace(known, strikes=known.strikes + 1, last_at=now)
    return known


@dataclass(frozen=True, slots=True)
class Breaker:
    """How much sweeps of a kind did within a day, and how much they may."""

    acted: int
    allowed: int | None
    """None: nothing was to be done, and it was not counted."""
    is_open: bool


class SightingStore:
    """The store as whoever sights sees it. Methods block; `actor` is what the journal calls us."""

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

    def give_turn_back(self, kind: str, left: Mapping[str, int] = MappingProxyType({})) -> None:
        """Let the next sweep begin, and note how many findings this one `left` to a person.

        They are counted by sort; what is known of other sorts stays.
        """
        mine = sa.and_(vendor.c.kind == kind, vendor.c.sweep_owner == self._actor)

        def write(at: sa.Connection) -> None:
            row = at.execute(sa.select(vendor).where(mine).with_for_update()).one_or_none()
            if row is not None:
                noted = {**(row.left_to_person or {}), **left}
                given = {"sweep_owner": None, "sweep_expires_at": None, "left_to_person": noted}
                at.execute(sa.update(vendor).where(mine).values(given)).close()

        self._transact(write)

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
        return {name: known[name].counting for name in subjects}

    def forget(self, kind: str, sort: Sort, subjects: Collection[str]) -> None:
        """Take back what was seen and is no longer so; what the breaker counts stays."""
        for names in pages(list(subjects)):
            self._forget(kind, sort, names)

    def _forget(self, kind: str, sort: Sort, names: Sequence[str]) -> None:
        counted = sighting.c.acted_at > self.instant() - WINDOW
        statement = sa.delete(sighting).where(
            sighting.c.kind == kind,
            sighting.c.sort == sort.value,
            sighting.c.subject.in_(names),
            sa.not_(sa.func.coalesce(counted, sa.false())),
        )
        self._write(lambda at: at.execute(statement).close())

    def _put(self, at: sa.Connection, kind: str, sort: Sort, news: Mapping[str, Sighting]) -> None:
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

    def allowed(self, kind: str) -> int:
        """Count what the breaker lets pass within a day."""
        return self._read(lambda at: _allowed(at, kind))

    def breaker(self, kind: str, allowed: int | None = None) -> Breaker:
        """Read how much was done; `allowed` is what was counted, if it was."""

        def read(at: sa.Connection) -> Breaker:
            row = at.execute(sa.select(vendor).where(vendor.c.kind == kind)).one_or_none()
            return _breaker(at, kind, row, self._now(at), allowed)

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
    ) -> tuple[Act, datetime]:
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

    def _lock(self, at: sa.Connection, kind: str, *, in_turn: bool) -> tuple[datetime, sa.Row[Any]]:
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

    # -- running ---------------------------------------------------------------------------------

    def instant(self) -> datetime:
        """Read the database's clock."""
        return self._read(self._now)

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
    # Of those that have a resource, without those that are going: each count has its index.
    count = sa.select(sa.func.count()).select_from(t).where(t.c.kind == kind, with_resource)
    going = count.where(t.c.release_started_at.is_not(None))
    fleet = sa.select(count.scalar_subquery() - going.scalar_subquery())
    return max(FEWEST, int(at.execute(fleet).scalar_one()) // SHARE)


def _breaker(
    at: sa.Connection,
    kind: str,
    row: sa.Row[Any] | None,
    now: datetime,
    allowed: int | None,
) -> Breaker:
    opened = None if row is None else row.sweep_breaker_opened_at
    approved = None if row is None else row.sweep_breaker_approved_at
    since = now - WINDOW if approved is None else max(approved, now - WINDOW)
    acted = sa.select(sa.func.count()).where(sighting.c.kind == kind, sighting.c.acted_at > since)
    return Breaker(int(at.execute(acted).scalar_one()), allowed, is_open=opened is not None)

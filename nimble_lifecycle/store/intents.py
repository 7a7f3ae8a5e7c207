"""What the server half writes and reads: intents, contact, and the tenancy it may show.

Every statement names the row by workspace and kind and touches the live one only. A write carries
its own end: the database compares it with its clock once more when the row is locked, so that a
statement that arrives after its caller gave up changes nothing.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError

from nimble_lifecycle.errors import RekeyNeeded, StoreUnavailable
from nimble_lifecycle.protocol import Desired, Event, Json, Reason, Tenancy, Workspace
from nimble_lifecycle.store.database import Database
from nimble_lifecycle.store.models import call, gone, live
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import Clock, instant_of
from nimble_lifecycle.store.types import (
    NOT_IN_TIME,
    Expression,
    Instant,
    JsonObject,
    fingerprint_of,
    in_time,
    later,
    next_number,
    storable,
)
from nimble_lifecycle.store.views import SHOWN, tenancy_of
from nimble_lifecycle.store.wakeups import Notifier

CONTACT_INTERVAL = 60.0
"""Seconds: a call that changes nothing refreshes the contact columns at most this often."""

Values: TypeAlias = Mapping[str, object]


def _text(name: str) -> sa.BindParameter[str]:
    """Bind a text; its name differs from the column's, which SQLAlchemy takes for one to set."""
    return sa.bindparam(f"its_{name}", type_=sa.Text())


_mine = sa.and_(
    t.c.workspace_id == _text("workspace_id"),
    t.c.kind == _text("kind"),
    t.c.tenant_id == _text("tenant_id"),
)
# Not `EXISTS (SELECT *`: the server's role may not read every column.
_nameless = sa.select(sa.literal(1)).where(
    t.c.workspace_id == _text("workspace_id"), t.c.kind == _text("kind"), t.c.tenant_id == "", live
)
_own = sa.select(sa.literal(1)).where(_mine, live)
_known_nameless = sa.and_(_nameless.exists(), sa.not_(_own.exists()))
"""The workspace's live row is one without a tenant, and its host now names one."""

_not_after = sa.bindparam("not_after", type_=Instant())
_answer = (*SHOWN, (t.c.generation_at == t.c.last_seen_at).label("changed"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a host call left behind: the live tenancy, and whether it changed what is asked."""

    tenancy: Tenancy
    changed: bool


class UnderWay:
    """Workspaces whose `removing` may still be applied: it is under way, and in time.

    A `ready` that comes meanwhile (the host went away and came back) must not be answered from what
    a mere read shows: it waits for the row, behind the removing, and so comes last.
    """

    def __init__(self) -> None:
        self._ends: dict[Workspace, list[float]] = {}
        self._lock = threading.Lock()

    def holds(self, workspace: Workspace, now: float) -> bool:
        """Whether a mere read cannot be trusted for this workspace."""
        with self._lock:
            return any(until > now for until in self._ends.get(workspace, ()))

    @contextmanager
    def until(self, workspace: Workspace, end: float) -> Iterator[None]:
        """Hold the workspace for the block, but no longer than to `end`."""
        with self._lock:
            self._ends.setdefault(workspace, []).append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends[workspace].remove(end)
                if not self._ends[workspace]:
                    del self._ends[workspace]


class IntentStore(Database):
    """The store as the unprivileged half sees it. `until` is an instant of the clock's `monotonic`.

    `new_id` names new rows.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        connections: int = 8,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        """Raise ConfigurationError for a URL that is neither SQLite nor PostgreSQL."""
        super().__init__(url, clock=clock, connections=connections)
        self._new_id = new_id
        self._notifier = Notifier(self)
        self._removing_now = UnderWay()

    def ready(
        self,
        workspace: Workspace,
        kind: str,
        reason: Reason,
        params: Mapping[str, Json],
        *,
        until: float,
    ) -> Recorded:
        """Record that the workspace wants its tenancy, withdrawing a release that has not started.

        A duplicate writes nothing, or the contact columns once a minute. Raises StoreError when the
        database is down, busy or too late, and RekeyNeeded where the workspace is known without the
        tenant that is named now; then nothing was recorded.
        """
        asked = {str(storable(name)): storable(value) for name, value in params.items()}
        values = {
            **_named(workspace, kind),
            "its_id": self._new_id(),
            "its_params": asked,
            "its_params_hash": fingerprint_of(asked),
            "its_reason": reason.value,
            "its_event": Event.READY.value,
        }
        contested = self._removing_now.holds(workspace, self.clock.monotonic())
        if self.is_sqlite and not contested:
            # A read of its own first: a duplicate must not wait for the write lock.
            found = self.reading(until, lambda at: _row(at, self._settled, values))
            if found is not None:
                return Recorded(tenancy_of(found), changed=False)
        statement = self._ready_whatever if contested else self._ready

        def write(at: sa.Connection) -> sa.RowMapping:
            row = self._write(at, statement, values, until)
            if row is None:
                self._refuse_nameless(at, values)
                raise self._too_late()
            return row

        return self._recorded(self.writing(until, write))

    def removing(self, workspace: Workspace, kind: str, *, until: float) -> Recorded | None:
        """Record that the workspace releases its tenancy; None where it has no live one.

        Raises StoreError and RekeyNeeded as `ready` does; no row was changed then.
        """
        values = {**_named(workspace, kind), "its_event": Event.REMOVING.value, "its_reason": None}

        def write(at: sa.Connection) -> tuple[sa.RowMapping | None, bool]:
            row = self._write(at, self._removing, values, until)
            return row, row is None and _row(at, self._live, values) is not None

        with self._removing_now.until(workspace, until):
            row, missed = self.writing(until, write)
            if missed:
                # Too late, or the live row was replaced while the statement waited: once more.
                row, missed = self.writing(until, write)
            if missed:
                raise self._too_late()
        if row is None:
            # Whose the nameless row is only the operator knows: it is not released for this.
            self.reading(until, lambda at: self._refuse_nameless(at, values))
            return None
        return self._recorded(row)

    def touch(self, workspace: Workspace, kind: str, *, until: float) -> None:
        """Note that the workspace is in use; that holds a release, it withdraws none."""
        values = _named(workspace, kind)
        self.writing(until, lambda at: at.execute(self._touch, values).close())

    def tenancy(self, workspace: Workspace, kind: str, *, until: float) -> Tenancy | None:
        """Read the workspace's live tenancy, else its last one; None where it never had any."""
        values = _named(workspace, kind)

        def read(at: sa.Connection) -> sa.RowMapping | None:
            return _row(at, self._live, values) or _row(at, self._last, values)

        row = self.reading(until, read)
        return None if row is None else tenancy_of(row)

    def close(self) -> None:
        """End the wake-up thread and close idle connections."""
        self._notifier.close()
        super().close()

    # -- running ---------------------------------------------------------------------------------

    def _write(
        self, at: sa.Connection, statement: sa.Executable, values: Values, until: float
    ) -> sa.RowMapping | None:
        bound = {**values, "not_after": self.instant(at, until)}
        try:
            row = _row(at, statement, bound)
        except DataError as error:
            if getattr(error.orig, "sqlstate", None) == NOT_IN_TIME:
                raise self._too_late() from error
            raise
        if self.is_sqlite:  # where one statement cannot write two tables
            at.execute(self._said, bound).close()
        return row

    def _refuse_nameless(self, at: sa.Connection, values: Values) -> None:
        """Raise RekeyNeeded where the workspace has a live row that names no tenant."""
        if at.execute(sa.select(_known_nameless), values).scalar_one():
            raise RekeyNeeded(
                "the host names a tenant for a workspace that is known without one:"
                " run `nimble-reconcile rekey`"
            )

    def _recorded(self, row: sa.RowMapping) -> Recorded:
        if row["changed"]:
            self._notifier.wake()
        return Recorded(tenancy_of(row), bool(row["changed"]))

    def _too_late(self) -> StoreUnavailable:
        self.forget_clock()
        return StoreUnavailable(f"{self.location} answered too late; nothing changed, call again")

    # -- statements, built once -------------------------------------------------------------------

    @cached_property
    def _live(self) -> sa.Executable:
        return sa.select(*_answer).where(_mine, live)

    @cached_property
    def _last(self) -> sa.Executable:
        lives = sa.select(*_answer).where(_mine, gone, t.c.origin.is_(None))
        return lives.order_by(t.c.incarnation.desc()).limit(1)

    @cached_property
    def _settled(self) -> "sa.Select[*tuple[object, ...]]":
        """The live row where a `ready` with these params has nothing to write."""
        recent = later(instant_of(self.clock), -CONTACT_INTERVAL)
        return sa.select(*_answer).where(
            _mine,
            live,
            t.c.desired == Desired.WANTED.value,
            t.c.params_hash == _text("params_hash"),
            t.c.last_seen_at > recent,
        )

    @cached_property
    def _ready(self) -> sa.Executable:
        if self.is_sqlite:
            return self._ready_whatever
        settled = self._settled.cte("settled")
        written = self._written(sa.not_(sa.exists().select_from(settled)))
        unchanged = sa.select(*(sa.false() if c.name == "changed" else c for c in settled.c))
        rows = (column for column in written.c if column.name != "in_time")
        return sa.union_all(sa.select(*rows), unchanged).add_cte(self._log(written).cte("logged"))

    @cached_property
    def _ready_whatever(self) -> sa.Executable:
        """The `ready` that takes no duplicate for one, and so waits for whoever has the row."""
        if self.is_sqlite:
            return self._upsert(sqlite.insert(t), sa.true()).returning(*_answer)
        written = self._written(sa.true())
        rows = (column for column in written.c if column.name != "in_time")
        return sa.select(*rows).add_cte(self._log(written).cte("logged"))

    def _written(self, guard: sa.ColumnElement[bool]) -> sa.CTE:
        return (
            self._upsert(postgresql.insert(t), guard)
            # Waiting for another's insert of the same key comes after every condition above.
            .returning(*_answer, in_time(self._still()).label("in_time"))
            .cte("written")
        )

    def _upsert(
        self, insert: "postgresql.Insert | sqlite.Insert", guard: sa.ColumnElement[bool]
    ) -> "postgresql.Insert | sqlite.Insert":
        clock = sa.select(self.clock.now().label("now")).subquery("clock")
        named: dict[str, Expression] = {
            name: _text(name) for name in ("tenant_id", "workspace_id", "kind")
        }
        new: dict[str, Expression] = {
            "id": sa.bindparam("its_id", type_=sa.Uuid()),
            **named,
            "incarnation": _next_incarnation(),
            "first_seen_at": clock.c.now,
            "desired": sa.literal(Desired.WANTED.value),
            "params": sa.bindparam("its_params", type_=JsonObject),
            "params_hash": _text("params_hash"),
            "generation": sa.literal(1),
            "generation_at": clock.c.now,
            "last_seen_at": clock.c.now,
            "last_reason": _text("reason"),
        }
        rows = sa.select(*(value.label(name) for name, value in new.items())).where(
            clock.c.now < _not_after, guard, sa.not_(_known_nameless)
        )
        insert = insert.from_select(list(new), rows, include_defaults=False)
        said = insert.excluded
        changed = sa.or_(t.c.desired != said.desired, t.c.params_hash != said.params_hash)
        return insert.on_conflict_do_update(
            index_elements=[t.c.workspace_id, t.c.kind, t.c.tenant_id],
            index_where=live,
            set_={
                "desired": said.desired,
                "params": said.params,
                "params_hash": said.params_hash,
                "generation": sa.case((changed, next_number(t.c.generation)), else_=t.c.generation),
                "generation_at": sa.case((changed, said.last_seen_at), else_=t.c.generation_at),
                "release_requested_at": sa.null(),
                "last_seen_at": said.last_seen_at,
                "last_reason": said.last_reason,
            },
        )

    @cached_property
    def _removing(self) -> sa.Executable:
        if self.is_sqlite:
            once = instant_of(self.clock)
            return self._release(once).where(_mine, live, once < _not_after).returning(*_answer)
        # The lock first, the clock after it: an UPDATE that merely waited for a row would not
        # look at the clock again.
        row = sa.select(t.c.id).where(_mine, live).with_for_update().subquery("row")
        now = self.clock.now().label("now")
        locked = sa.select(row.c.id, now, in_time(self._still()).label("in_time")).cte("locked")
        written = (
            self._release(locked.c.now)
            .where(t.c.id == locked.c.id, locked.c.in_time == 1)
            .returning(*_answer)
            .cte("written")
        )
        return sa.select(written).add_cte(self._said.cte("logged"))

    def _release(self, now: Expression) -> sa.Update:
        changed = t.c.desired != Desired.RELEASE.value
        return sa.update(t).values(
            desired=Desired.RELEASE.value,
            generation=sa.case((changed, next_number(t.c.generation)), else_=t.c.generation),
            generation_at=sa.case((changed, now), else_=t.c.generation_at),
            release_requested_at=sa.case((changed, now), else_=t.c.release_requested_at),
            last_seen_at=now,
            last_reason=sa.null(),
        )

    @cached_property
    def _touch(self) -> sa.Executable:
        now = instant_of(self.clock)
        return sa.update(t).where(_mine, live).values(last_seen_at=now, last_used_at=now)

    def _still(self) -> sa.ColumnElement[bool]:
        """Whether the caller still waits; asked of the clock anew wherever it stands."""
        return self.clock.now() < _not_after

    @cached_property
    def _said(self) -> sa.Insert:
        return self._log()

    def _log(self, written: sa.CTE | None = None) -> sa.Insert:
        """Add what the host said to the call log; of a `ready` only where it was no duplicate."""
        columns = ("tenant_id", "workspace_id", "kind", "event", "reason")
        named = [_text(name).label(name) for name in columns]
        clock = sa.select(self.clock.now().label("at")).subquery("said")
        said = sa.select(clock.c.at, *named).where(clock.c.at < _not_after)
        if written is not None:
            said = said.where(sa.exists().select_from(written))
        return sa.insert(call).from_select(["at", *columns], said, include_defaults=False)


def _next_incarnation() -> Expression:
    last_gone = sa.select(sa.func.max(t.c.incarnation)).where(_mine, gone).scalar_subquery()
    # The live row counts too: its release may start while this statement waits for it.
    current = sa.select(t.c.incarnation).where(_mine, live).scalar_subquery()
    return next_number(sa.func.coalesce(current, last_gone, 0))


def _named(workspace: Workspace, kind: str) -> dict[str, object]:
    return {
        "its_tenant_id": workspace.tenant_id,
        "its_workspace_id": workspace.workspace_id,
        "its_kind": kind,
    }


def _row(at: sa.Connection, statement: sa.Executable, values: Values) -> sa.RowMapping | None:
    return at.execute(statement, values).mappings().one_or_none()

"""The statements of host calls, each built and compiled once.

Every statement names the row by workspace and kind and touches the live one only. A write carries
its own end: the database compares it with its clock once more when the row is locked, so that a
statement that arrives after its caller gave up changes nothing.
"""

from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nimble_lifecycle.protocol import Desired
from nimble_lifecycle.store.models import call, gone, live
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import Clock, instant_of
from nimble_lifecycle.store.prepared import Prepared, Statement
from nimble_lifecycle.store.types import (
    Expression,
    Instant,
    JsonObject,
    in_time,
    later,
    next_number,
    number,
    word,
)
from nimble_lifecycle.store.views import SHOWN

CONTACT_INTERVAL = 60
"""Seconds: a call that changes nothing refreshes the contact columns at most this often."""


def _text(name: str) -> sa.BindParameter[str]:
    """Bind a text; its name differs from the column's, which SQLAlchemy takes for one to set."""
    return sa.bindparam(f"its_{name}", type_=sa.Text())


_mine = sa.and_(
    t.c.workspace_id == _text("workspace_id"),
    t.c.kind == _text("kind"),
    t.c.tenant_id == _text("tenant_id"),
)
# Not `EXISTS (SELECT *`: the server's role may not read every column.
_nobodys = t.c.tenant_id == sa.literal_column("''", sa.Text())
_nameless = sa.select(number(1)).where(
    t.c.workspace_id == _text("workspace_id"), t.c.kind == _text("kind"), _nobodys, live
)
_own = sa.select(number(1)).where(_mine, live)
_known_nameless = sa.and_(_nameless.exists(), sa.not_(_own.exists()))
"""The workspace's live row is one without a tenant, and its host now names one."""

_not_after = sa.bindparam("not_after", type_=Instant())
_answer = (*SHOWN, (t.c.generation_at == t.c.last_seen_at).label("changed"))


class HostStatements:
    """What the server half says to one database.

    Values are named `its_…`, after the columns they are for, and `not_after`.
    """

    def __init__(self, clock: Clock, dialect: sa.Dialect) -> None:
        self._clock = clock
        self._dialect = dialect
        self._is_sqlite = dialect.name == "sqlite"

    def _prepared(self, statement: Statement) -> Prepared:
        return Prepared(statement, self._dialect)

    @cached_property
    def live(self) -> Prepared:
        """The workspace's live row."""
        return self._prepared(sa.select(*_answer).where(_mine, live))

    @cached_property
    def last(self) -> Prepared:
        """The last of its lives, whether or not it is over."""
        lives = sa.select(*_answer).where(_mine, gone, t.c.origin.is_(None))
        return self._prepared(lives.order_by(t.c.incarnation.desc()).limit(number(1)))

    @cached_property
    def settled(self) -> Prepared:
        """The live row where a `ready` with these params has nothing to write."""
        return self._prepared(self._unchanged())

    @cached_property
    def ready(self) -> Prepared:
        """The `ready` of a host; a duplicate writes nothing."""
        if self._is_sqlite:
            return self.ready_whatever
        settled = self._unchanged().cte("settled")
        written = self._written(sa.not_(sa.exists().select_from(settled)))
        unchanged = sa.select(*(sa.false() if c.name == "changed" else c for c in settled.c))
        rows = sa.union_all(sa.select(*_without_check(written)), unchanged)
        return self._prepared(rows.add_cte(self._log(written).cte("logged")))

    @cached_property
    def ready_whatever(self) -> Prepared:
        """The `ready` that takes no duplicate for one, and so waits for whoever has the row."""
        if self._is_sqlite:
            return self._prepared(self._upsert(sqlite.insert(t), sa.true()).returning(*_answer))
        written = self._written(sa.true())
        rows = sa.select(*_without_check(written))
        return self._prepared(rows.add_cte(self._log(written).cte("logged")))

    @cached_property
    def removing(self) -> Prepared:
        """The `removing` of a host; gives the row, None where there is no live one in time."""
        if self._is_sqlite:
            once = instant_of(self._clock)
            release = self._release(once).where(_mine, live, once < _not_after)
            return self._prepared(release.returning(*_answer))
        # The lock first, the clock after it: an UPDATE that merely waited for a row would not
        # look at the clock again.
        row = sa.select(t.c.id).where(_mine, live).with_for_update().subquery("row")
        now = self._clock.now().label("now")
        locked = sa.select(row.c.id, now, in_time(self._still()).label("in_time")).cte("locked")
        written = (
            self._release(locked.c.now)
            .where(t.c.id == locked.c.id, locked.c.in_time == number(1))
            .returning(*_answer)
            .cte("written")
        )
        return self._prepared(sa.select(written).add_cte(self._log().cte("logged")))

    @cached_property
    def touch(self) -> Prepared:
        """An ordinary call's sign of life."""
        now = instant_of(self._clock)
        return self._prepared(
            sa.update(t)
            .where(_mine, live)
            .values(last_seen_at=now, last_used_at=now)
            .returning(t.c.workspace_id)
        )

    @cached_property
    def said(self) -> Prepared:
        """What a host said, for the call log; part of the other statements on PostgreSQL."""
        return self._prepared(self._log())

    @cached_property
    def known_nameless(self) -> Prepared:
        """Whether the live row is one without a tenant, and its host now names one."""
        return self._prepared(sa.select(_known_nameless.label("known")))

    def _unchanged(self) -> "sa.Select[*tuple[Any, ...]]":
        recent = later(instant_of(self._clock), number(-CONTACT_INTERVAL))
        return sa.select(*_answer).where(
            _mine,
            live,
            t.c.desired == word(Desired.WANTED),
            t.c.params_hash == _text("params_hash"),
            t.c.last_seen_at > recent,
        )

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
        clock = sa.select(self._clock.now().label("now")).subquery("clock")
        named: dict[str, Expression] = {
            name: _text(name) for name in ("tenant_id", "workspace_id", "kind")
        }
        new: dict[str, Expression] = {
            "id": sa.bindparam("its_id", type_=sa.Uuid()),
            **named,
            "incarnation": _next_incarnation(),
            "first_seen_at": clock.c.now,
            "desired": word(Desired.WANTED),
            "params": sa.bindparam("its_params", type_=JsonObject),
            "params_hash": _text("params_hash"),
            "generation": number(1),
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

    def _release(self, now: Expression) -> sa.Update:
        changed = t.c.desired != word(Desired.RELEASE)
        return sa.update(t).values(
            desired=word(Desired.RELEASE),
            generation=sa.case((changed, next_number(t.c.generation)), else_=t.c.generation),
            generation_at=sa.case((changed, now), else_=t.c.generation_at),
            release_requested_at=sa.case((changed, now), else_=t.c.release_requested_at),
            last_seen_at=now,
            last_reason=sa.null(),
        )

    def _still(self) -> sa.ColumnElement[bool]:
        """Whether the caller still waits; asked of the clock anew wherever it stands."""
        return self._clock.now() < _not_after

    def _log(self, written: sa.CTE | None = None) -> sa.Insert:
        """Add what the host said to the call log; of a `ready` only where it was no duplicate."""
        columns = ("tenant_id", "workspace_id", "kind", "event", "reason")
        named = [_text(name).label(name) for name in columns]
        clock = sa.select(self._clock.now().label("at")).subquery("said")
        said = sa.select(clock.c.at, *named).where(clock.c.at < _not_after)
        if written is not None:
            said = said.where(sa.exists().select_from(written))
        return sa.insert(call).from_select(["at", *columns], said, include_defaults=False)


def _without_check(written: sa.CTE) -> list[Expression]:
    return [column for column in written.c if column.name != "in_time"]


def _next_incarnation() -> Expression:
    last_gone = sa.select(sa.func.max(t.c.incarnation)).where(_mine, gone).scalar_subquery()
    # The live row counts too: its release may start while this statement waits for it.
    current = sa.select(t.c.incarnation).where(_mine, live).scalar_subquery()
    return next_number(sa.func.coalesce(current, last_gone, number(0)))

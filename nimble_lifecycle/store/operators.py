"""The store as an operator sees it: finds rows by name and runs verbs.

A verb is one statement, or on SQLite one transaction: it judges what is there now, writes only
where nothing forbids it, and journals who did it and why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from nimble_lifecycle.errors import VerbRefused
from nimble_lifecycle.protocol import FLEET, is_external_id
from nimble_lifecycle.store import verbs
from nimble_lifecycle.store.models import journal, live
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import instant_of
from nimble_lifecycle.store.types import Expression, storable
from nimble_lifecycle.store.verbs import ABOUT, Verb
from nimble_lifecycle.store.views import plain
from nimble_lifecycle.store.wakeups import notify
from nimble_lifecycle.store.work import WorkStore

LISTED = 10
"""Rows that a refusal names where a name fits several."""

_WORKSPACE = (t.c.kind, t.c.tenant_id, t.c.workspace_id)
_NAMES = (t.c.id, *_WORKSPACE)


@dataclass(frozen=True, slots=True)
class By:
    """Who does it, and why; both go to the journal."""

    actor: str
    reason: str | None = None


def unknown_kind(kind: str, kinds: Sequence[str]) -> str | None:
    """Say that no row is of this kind but of these; None where some row is."""
    if kind in kinds:
        return None
    there = f"; there are rows of {', '.join(map(repr, kinds))}" if kinds else ""
    return f"there are no rows of the kind {kind!r}{there}"


class OperatorStore(WorkStore):
    """The store as an operator sees it: rows can be listed, found by name, and acted upon.

    Every verb raises VerbRefused where a rule forbids it, with the rule in words; then nothing was
    changed. `by` goes to the journal.
    """

    def find(self, name: str, *, tenant: str | None = None, kind: str | None = None) -> UUID:
        """Give the one row that `name` means: its id, `workspace` or `tenant/workspace`.

        Ids may hold slashes: every reading of `name` counts. Of a workspace's lives it is the
        live one, else the last. Raises VerbRefused where none fits, or several do.
        """
        name = str(storable(name))
        given = ((t.c.tenant_id, tenant), (t.c.kind, kind))
        narrowed = [column == storable(value) for column, value in given if value is not None]
        found = self._with_id(name, narrowed) or self._named(name, tenant, narrowed)
        if not found:
            raise VerbRefused(f"no row is named {name!r}; `status --json` lists rows with their id")
        if len(found) > 1:
            several = "; ".join(map(_described, found[:LISTED]))
            more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
            raise VerbRefused(f"{name!r} means several rows, name one by its id: {several}{more}")
        return cast("UUID", found[0]["id"])

    def entries(
        self, row: UUID | None = None, *, kind: str | None = None, limit: int
    ) -> list[dict[str, object]]:
        """Read the last entries of the journal, the latest last: of a row's workspace, or of all.

        Each has its columns as keys, and those that name its tenancy.
        """
        named = (t.c.tenant_id, t.c.workspace_id, t.c.incarnation)
        last = sa.select(*journal.c, *named).outerjoin_from(
            journal, t, journal.c.tenancy_id == t.c.id
        )
        if row is not None:
            its = sa.select(*_WORKSPACE).where(t.c.id == row)
            lives = sa.select(t.c.id).where(sa.tuple_(*_WORKSPACE).in_(its))
            last = last.where(journal.c.tenancy_id.in_(lives))
        if kind is not None:
            last = last.where(journal.c.kind == storable(kind))
        last = last.order_by(journal.c.id.desc()).limit(limit)
        found = self.reading(self._limit(), lambda at: at.execute(last).mappings().all())
        return [{name: plain(value) for name, value in each.items()} for each in reversed(found)]

    def retry(self, row: UUID, by: By, *, assume_not_created: bool = False) -> None:
        """Try again at once what is stalled or backing off, its counts forgotten.

        `assume_not_created` is an operator's word that no create of this row was applied.
        """
        self._run(verbs.retry(row, self._now, assume_not_created=assume_not_created), by)

    def release(self, row: UUID, by: By) -> None:
        """Ask for its release, which waits for the grace and which only `undo` lifts."""
        self._run(verbs.release(row, self._now), by)

    def undo(self, row: UUID, by: By) -> None:
        """Withdraw a release that has not started, whoever asked for it."""
        self._run(verbs.undo(row, self._now), by)

    def adopt(self, row: UUID, external_id: str, by: By) -> None:
        """Take a resource for the row's own: an operator's word that it is ours."""
        if not is_external_id(external_id):
            raise VerbRefused("adopt refused: no vendor may give such an id; check it")
        try:
            self._run(verbs.adopt(row, self._now, external_id), by)
        except IntegrityError as error:
            raise VerbRefused(
                "adopt refused: another row has this resource, and no two tenancies may share one"
            ) from error

    def abandon(self, row: UUID, by: By) -> None:
        """Give its resource up without deleting it; the row ends as `kept` and stays listed."""
        reason = str(storable(by.reason or "")).strip()
        if not reason:
            raise VerbRefused("abandon refused: what is given up stays at the vendor; say why")
        self._run(verbs.abandon(row, self._now, reason), by)

    def pause_row(self, row: UUID, by: By) -> None:
        """Let no worker call the vendor for it."""
        self._run(verbs.pause(row, self._now), by)

    def resume_row(self, row: UUID, by: By) -> None:
        """Lift its pause; what is due at any time is due now."""
        self._run(verbs.resume(row, self._now), by)

    def pause_kind(self, kind: str, by: By) -> None:
        """Let no worker call the vendor for any row of the kind; `FLEET` means every kind."""
        dialect = self.engine.dialect.name
        self._run(verbs.pause_kind(self._known(kind), dialect), by)

    def resume_kind(self, kind: str, by: By) -> None:
        """Lift an operator's pause of the kind, or of the fleet; a vendor's own ends by itself."""
        self._run(verbs.resume_kind(self._known(kind)), by)

    def approve(self, kind: str, by: By) -> None:
        """Close the open breakers of the kind: what they held back is done."""
        self._run(verbs.approve(self._known(kind), self._now), by)

    def _known(self, kind: str) -> str:
        """Give the kind as it is stored; no row of a kind is ever deleted, so this stays true."""
        kind = str(storable(kind))
        unknown = None if kind == FLEET else unknown_kind(kind, self.kinds())
        if unknown is not None:
            raise VerbRefused(unknown)
        return kind

    # -- running ---------------------------------------------------------------------------------

    @property
    def _now(self) -> "sa.ScalarSelect[datetime]":
        return instant_of(self.clock)

    def _run(self, verb: Verb, by: By) -> None:
        run = self._one_by_one if self.is_sqlite else self._at_once
        refused = self.writing(self._limit(), lambda at: run(at, verb, by))
        if refused is not None:
            raise VerbRefused(f"{verb.action} refused: {refused}")
        notify(self)

    def _at_once(self, at: sa.Connection, verb: Verb, by: By) -> str | None:
        judged = verb.judged.cte("judged")
        named = [column.label(name) for name, column in zip(ABOUT, verb.entry, strict=True)]
        written = verb.write(judged.c).returning(*named).cte("written")
        said = _said(verb, by, self.clock.now())
        entry = sa.select(*written.c, *(value.label(name) for name, value in said.items()))
        add = sa.insert(journal).from_select([*ABOUT, *said], entry, include_defaults=False)
        told = sa.select(judged.c.refusal).add_cte(add.cte("journalled"))
        return _refusal(at.execute(told).one_or_none())

    def _one_by_one(self, at: sa.Connection, verb: Verb, by: By) -> str | None:
        refused = _refusal(at.execute(verb.judged).one_or_none())
        if refused is not None:
            return refused
        # Under the same lock; of a row that changes with time alone nothing is written.
        write = verb.write(verb.judged.cte("judged").c).returning(*verb.entry)
        written = at.execute(write).one_or_none()
        if written is None:
            return "it is about to change; look at it and try again"
        about = dict(zip(ABOUT, written, strict=True))
        entry = {**about, **_said(verb, by, self.clock.now())}
        at.execute(sa.insert(journal).values(entry)).close()
        return None

    # -- names -----------------------------------------------------------------------------------

    def _with_id(
        self, name: str, narrowed: Sequence[sa.ColumnElement[bool]]
    ) -> Sequence[sa.RowMapping]:
        try:
            row = UUID(name)
        except ValueError:
            return []
        return self._select(sa.select(*_NAMES).where(t.c.id == row, *narrowed))

    def _named(
        self, name: str, tenant: str | None, narrowed: Sequence[sa.ColumnElement[bool]]
    ) -> Sequence[sa.RowMapping]:
        """Give one life of each workspace that `name` may mean, of those a host asked for."""
        both = sa.and_(t.c.tenant_id != "", t.c.tenant_id + "/" + t.c.workspace_id == name)
        alone = t.c.workspace_id == name
        lives = (
            sa.select(*_NAMES)
            .where(alone if tenant is not None else sa.or_(alone, both), *narrowed)
            .where(t.c.origin.is_(None))
            .order_by(*_WORKSPACE, sa.case((live, 0), else_=1), t.c.incarnation.desc())
        )
        first: dict[tuple[object, ...], sa.RowMapping] = {}
        for row in self._select(lives):
            first.setdefault(tuple(row[column.name] for column in _WORKSPACE), row)
        return list(first.values())

    def _select(self, statement: "sa.Select[Any]") -> Sequence[sa.RowMapping]:
        return self.reading(self._limit(), lambda at: at.execute(statement).mappings().all())


def _refusal(judged: "sa.Row[Any] | None") -> str | None:
    return "there is no such row" if judged is None else cast("str | None", judged.refusal)


def _described(row: sa.RowMapping) -> str:
    tenant = f"tenant {row['tenant_id']!r}, " if row["tenant_id"] else ""
    return f"{row['id']} ({tenant}workspace {row['workspace_id']!r}, kind {row['kind']!r})"


def _said(verb: Verb, by: By, now: sa.ColumnElement[datetime]) -> dict[str, Expression]:
    """Say what the journal keeps besides what it is about."""
    return {
        "at": now,
        "action": sa.literal(f"operator: {verb.action}"),
        "outcome": sa.literal(verb.outcome),
        "actor": sa.literal(str(storable(by.actor))),
        "settled": sa.true(),
        "note": sa.literal(storable(by.reason), sa.Text()),
    }

"""Gives rows that name no tenant the one their host has begun to name.

Identity is no part of the vendor's key, so tokens and leases stay: a call in the middle goes on and
is settled as ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from nimble_lifecycle.errors import ConfigurationError, VerbRefused
from nimble_lifecycle.protocol import LARGEST_NUMBER, Event, Workspace
from nimble_lifecycle.store.database import Database
from nimble_lifecycle.store.journal import entries_about
from nimble_lifecycle.store.models import call, live
from nimble_lifecycle.store.models import tenancy as t

LIMIT: Final = 3600.0
"""Seconds it may take; it writes every row of the workspaces."""

NAMED: Final = 5
"""Workspaces that a refusal names."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A workspace whose rows, each an incarnation, were given the tenant."""

    kind: str
    workspace_id: str
    rows: int
    removing_at: datetime | None
    """When its host, naming the tenant, said that the server is being removed there, if that is the
    last thing recorded of it. It was refused, and hosts do not say it twice."""


def rekey(
    database: Database,
    tenant_id: str,
    workspaces: Sequence[str] | None,
    *,
    kind: str | None = None,
    actor: str,
) -> list[Moved]:
    """Move the rows of these workspaces, or of all (None), from no tenant to this one.

    One transaction, journalled. Raises ConfigurationError for what is no tenant's id; VerbRefused,
    with nothing moved, where a workspace has no row without a tenant, or one has a live row with
    this tenant already; StoreError.
    """
    try:
        Workspace("any", tenant_id)
    except ValueError as error:
        raise ConfigurationError(f"TENANT cannot be used: {error}") from error
    if not tenant_id:
        raise ConfigurationError("TENANT is empty")
    nameless = _nameless(workspaces, kind)

    def move(at: sa.Connection) -> list[Moved]:
        at.execute(sa.select(t.c.id).where(nameless).with_for_update()).close()
        _refuse_taken(at, nameless, tenant_id)
        moved = _moved(at, nameless, tenant_id)
        _refuse_unknown(moved, workspaces or ())
        now = at.execute(sa.select(database.clock.now())).scalar_one()
        about = f"tenant {tenant_id}"
        at.execute(
            entries_about(
                nameless, now, action="operator: rekey", outcome="moved", note=about, actor=actor
            )
        ).close()
        at.execute(_counted_on(nameless, _had_by(tenant_id))).close()
        at.execute(sa.update(t).where(nameless).values(tenant_id=tenant_id)).close()
        return moved

    try:
        return database.transacting(database.clock.monotonic() + LIMIT, move)
    except IntegrityError as error:
        raise VerbRefused(
            f"a host was heard of with {tenant_id!r} meanwhile; nothing was moved, run it again"
        ) from error


def _nameless(workspaces: Sequence[str] | None, kind: str | None) -> sa.ColumnElement[bool]:
    of_kind = sa.true() if kind is None else t.c.kind == kind
    of_these = sa.true() if workspaces is None else t.c.workspace_id.in_(workspaces)
    return sa.and_(t.c.tenant_id == "", of_kind, of_these)


def _had_by(tenant_id: str) -> sa.Subquery:
    """Select what the tenant has, or had, already: of each workspace the last and any live life."""
    last = sa.func.max(t.c.incarnation).label("last")
    alive = sa.func.max(sa.case((live, 1), else_=0)).label("alive")
    key = (t.c.kind, t.c.workspace_id)
    had = sa.select(*key, last, alive).where(t.c.tenant_id == tenant_id).group_by(*key)
    return had.subquery("had")


def _same(had: sa.Subquery) -> sa.ColumnElement[bool]:
    return sa.and_(had.c.kind == t.c.kind, had.c.workspace_id == t.c.workspace_id)


def _counted_on(nameless: sa.ColumnElement[bool], had: sa.Subquery) -> sa.Update:
    """Count on from the lives the tenant had, in numbers that nobody can have made too large."""
    number = (sa.cast(t.c.incarnation, sa.BigInteger) + had.c.last) % LARGEST_NUMBER
    return sa.update(t).where(nameless, _same(had)).values(incarnation=number)


def _refuse_taken(at: sa.Connection, nameless: sa.ColumnElement[bool], tenant_id: str) -> None:
    had = _had_by(tenant_id)
    clash = (
        sa.select(t.c.workspace_id)
        .where(nameless, _same(had), had.c.alive == 1)
        .distinct()
        .order_by(t.c.workspace_id)
    )
    found = at.execute(clash).scalars().all()
    if found:
        raise VerbRefused(
            f"{tenant_id!r} has a live row of its own already for {_listed(found)}; nothing was"
            " moved. Release one of the two, or name the other workspaces alone"
        )


def _refuse_unknown(moved: Sequence[Moved], workspaces: Sequence[str]) -> None:
    unknown = sorted(set(workspaces) - {each.workspace_id for each in moved})
    if unknown:
        raise VerbRefused(f"no row without a tenant for {_listed(unknown)}; nothing was moved")


def _listed(workspaces: Sequence[str]) -> str:
    more = f" and {len(workspaces) - NAMED} more" if len(workspaces) > NAMED else ""
    return ", ".join(map(repr, workspaces[:NAMED])) + more


def _moved(at: sa.Connection, nameless: sa.ColumnElement[bool], tenant_id: str) -> list[Moved]:
    removed = _removed(at, tenant_id)
    key = (t.c.kind, t.c.workspace_id)
    counted = sa.select(*key, sa.func.count()).where(nameless).group_by(*key).order_by(*key)
    return [
        Moved(kind, workspace, rows, removed.get((kind, workspace)))
        for kind, workspace, rows in at.execute(counted)
    ]


def _removed(at: sa.Connection, tenant_id: str) -> dict[tuple[str, str], datetime]:
    """Give the tenant's workspaces of which the last thing a host said is that it removes."""
    key = (call.c.kind, call.c.workspace_id)
    last = sa.select(sa.func.max(call.c.id)).where(call.c.tenant_id == tenant_id).group_by(*key)
    said = sa.select(*key, call.c.at).where(
        call.c.id.in_(last), call.c.event == Event.REMOVING.value
    )
    return {(kind, workspace): when for kind, workspace, when in at.execute(said)}

"""Resources of ours that are no row's: found in the journal, and given rows of their own.

A worker that lost its lease may still make something at the vendor; the journal, which is not
fenced, knows its id. It becomes its row's where that has none (see `settlements`). Any other is a
surplus and gets a row in phase `releasing`, so that leases, back-off and `status` serve it like any
release. Such a row has no key and no name: those are its tenancy's, whose own resource must stay.
"""

from collections.abc import Mapping
from datetime import datetime
from uuid import uuid5

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nimble_lifecycle.protocol import Desired, Origin, Phase, Why
from nimble_lifecycle.store.models import journal
from nimble_lifecycle.store.models import tenancy as t

_KEPT_FROM_ITS_TENANCY = ("tenant_id", "workspace_id", "kind", "incarnation", "create_started_at")


def loose_ends(kind: str) -> "sa.Select[*tuple[object, ...]]":
    """Select what the journal knows of and no row has or had, with the row it was made for.

    A resource whose row was released before it was made exists again, and counts too.
    """
    owner = t.alias("owner")
    had = owner.c.released_at.is_(None) | (owner.c.released_at >= journal.c.at)
    kept = owner.c.retired_at.is_(None) | (owner.c.retired_at >= journal.c.at)
    owned = sa.exists().where(
        owner.c.kind == journal.c.kind, owner.c.external_id == journal.c.external_id, had, kept
    )
    return (
        sa.select(journal.c.id.label("entry"), journal.c.external_id.label("made"), *t.c)
        .select_from(journal.join(t, t.c.id == journal.c.tenancy_id))
        .where(
            journal.c.kind == kind,
            journal.c.external_id.is_not(None),
            sa.not_(journal.c.settled),
            t.c.reason.is_distinct_from(Why.FOREIGN.value),
            sa.not_(owned),
        )
        .order_by(journal.c.id)
    )


def surplus_of(loose: sa.RowMapping, now: datetime) -> dict[str, object]:
    """Say what tells this surplus from others: whose it is, its id, and an id for its row.

    The latter has the instant in it: a stolen server's role could insert a row of an id that it can
    foretell, and the surplus would never have one.
    """
    shared = {name: loose[name] for name in _KEPT_FROM_ITS_TENANCY}
    own = uuid5(loose["id"], f"surplus {loose['entry']} {now.isoformat()}")
    return {"id": own, "external_id": loose["made"], **shared}


def insert_releasing(
    what: Mapping[str, object], origin: Origin, now: datetime, *, keeps: bool, dialect: str
) -> sa.Executable:
    """Give a resource of ours that is no row's a row that is to be released; once, if repeated.

    `what` names id, external_id, tenant_id, workspace_id, kind, incarnation and create_started_at.
    Nothing happens where a row has the resource. With `keeps` nothing is ever released.
    """
    insert = sqlite.insert(t) if dialect == "sqlite" else postgresql.insert(t)
    reason = Why.SURPLUS if origin is Origin.SURPLUS else Why.ORPHAN
    times = ("first_seen_at", "last_seen_at", "generation_at", "release_requested_at")
    release = ("release_seen_at", "release_after", "release_started_at")
    return insert.values(
        **what,
        **dict.fromkeys((*times, *release), now),
        origin=origin.value,
        desired=Desired.RELEASE.value,
        params={},
        params_hash="",
        generation=1,
        claimed_generation=1,
        phase=Phase.KEPT.value if keeps else Phase.RELEASING.value,
        reason=reason.value,
        due_at=None if keeps else now,
    ).on_conflict_do_nothing()

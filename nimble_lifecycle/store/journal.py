"""Journal entries about rows as they stand, for what changes them without a vendor call."""

from datetime import datetime

import sqlalchemy as sa

from nimble_lifecycle.store.models import journal
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.types import Expression, Instant


def entries_about(
    rows: sa.ColumnElement[bool], now: datetime, *, action: str, outcome: str, note: str, actor: str
) -> sa.Insert:
    """Insert one entry for each tenancy that `rows` holds of, as it stands."""
    entry: dict[str, Expression] = {
        "at": sa.literal(now, Instant()),
        "tenancy_id": t.c.id,
        "kind": t.c.kind,
        "action": sa.literal(action),
        "outcome": sa.literal(outcome),
        "actor": sa.literal(actor),
        "generation": t.c.generation,
        "lease_token": t.c.lease_token,
        "settled": sa.true(),
        "external_id": t.c.external_id,
        "note": sa.literal(note),
    }
    entries = sa.select(*entry.values()).where(rows)
    return sa.insert(journal).from_select(list(entry), entries, include_defaults=False)

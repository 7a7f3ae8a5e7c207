"""What a clock that was put back leaves behind: instants ahead of it, brought back by as much.

What has passed is put where it belongs, so that nothing waits for an instant that was already
there. What is still to come is brought forward; at worst it comes early: a row is looked at, or the
vendor is asked, once more. A lease is touched only where it ends later than any lease can, and
neither a grace nor the deadline of an operation is: those may only become longer.
"""

import sqlalchemy as sa

from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.models import vendor
from nimble_lifecycle.store.ports import Clock, instant_of
from nimble_lifecycle.store.types import later

_back = sa.bindparam("its_back", type_=sa.Float())
_kind = sa.bindparam("its_kind", type_=sa.Text())
_lease = sa.bindparam("its_lease", type_=sa.Float())


def rows_set_back(clock: Clock) -> sa.Update:
    """Build the statement for the rows of `its_kind`, whose leases last `its_lease`."""
    now = instant_of(clock)
    longest = later(now, _lease)
    since = (t.c.due_at, t.c.create_started_at, t.c.create_attempted_at)
    until = (t.c.lease_expires_at, t.c.create_ends_at)
    ahead = {column: column > now for column in since}
    ahead |= {column: column > longest for column in until}
    return sa.update(t).where(t.c.kind == _kind, sa.or_(*ahead.values())).values(_brought(ahead))


def vendor_set_back(clock: Clock) -> sa.Update:
    """Build the statement for what is known of the vendor as a whole."""
    now, v = instant_of(clock), vendor.c
    columns = (v.paused_until, v.probe_at, v.resumed_at, v.rate_at, v.swept_at)
    ahead = {column: column > now for column in columns}
    return sa.update(vendor).where(v.kind == _kind, sa.or_(*ahead.values())).values(_brought(ahead))


def _brought(
    ahead: "dict[sa.Column[object], sa.ColumnElement[bool]]",
) -> "dict[str, sa.ColumnElement[object]]":
    return {
        column.name: sa.case((condition, later(column, -_back)), else_=column)
        for column, condition in ahead.items()
    }

"""What is known of a vendor as a whole: conditions, refused credentials, caps and breakers."""

import sqlalchemy as sa

from nimble_lifecycle.store import Conditions
from nimble_lifecycle.store.models import vendor


def set_vendor(rig, kind: str = "acme", **columns: object) -> None:
    """Write columns of a vendor's row, making it where there is none."""
    made = sa.insert(vendor).values(kind=kind, **columns)
    changed = sa.update(vendor).where(vendor.c.kind == kind).values(**columns)

    def write(at: sa.Connection) -> None:
        if at.execute(changed).rowcount == 0:
            at.execute(made)

    rig.work.writing(rig.soon(), write)


# -- conditions ------------------------------------------------------------------------------------


def test_a_kind_nobody_knows_is_held_back_by_nothing(rig) -> None:
    assert rig.work.conditions("acme") == Conditions(kind="acme")


def test_conditions_tell_what_holds_a_kind_back(rig) -> None:
    since = rig.clock.instant
    set_vendor(rig, kind="*", paused=True)
    set_vendor(
        rig,
        paused=True,
        paused_until=rig.after(60),
        pause_reason="RateLimited",
        halted_at=since,
        breaker_opened_at=since,
        sweep_breaker_opened_at=since,
        fleet=7,
    )
    assert rig.work.conditions("acme") == Conditions(
        kind="acme",
        paused=True,
        fleet_paused=True,
        paused_until=rig.after(60),
        pause_reason="RateLimited",
        halted_at=since,
        breaker_opened_at=since,
        sweep_breaker_opened_at=since,
        fleet=7,
    )
    rig.clock.advance(60)
    found = rig.work.conditions("acme")
    assert (found.paused_until, found.pause_reason) == (None, None)

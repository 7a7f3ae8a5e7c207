"""What is known of a vendor as a whole, shared by all workers of a database (`nimble_vendor`)."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import sqlalchemy as sa

from nimble_lifecycle.store import room
from nimble_lifecycle.store.database import Database
from nimble_lifecycle.store.models import vendor
from nimble_lifecycle.store.ports import instant_of

STATEMENT_LIMIT = 30.0
"""Seconds a worker's statement may take; a worker has time, but not for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What holds rows of a kind back, or would, whatever they are themselves."""

    kind: str
    paused: bool = False
    """An operator's pause of the kind."""
    fleet_paused: bool = False
    """An operator's pause of every kind."""
    paused_until: datetime | None = None
    """The vendor's own pause; None where it is over, or never was."""
    pause_reason: str | None = None
    """`RateLimited` or `VendorUnavailable`, while `paused_until` is set."""
    halted_at: datetime | None = None
    """Since when the vendor refuses the credential, so that only probes are called."""
    breaker_opened_at: datetime | None = None
    """Since when no release is started, until `approve`."""
    sweep_breaker_opened_at: datetime | None = None
    """Since when sweeps only report, until `approve`."""
    fleet: int = 0
    """Tenancies with a resource, as last counted: what the breaker measures releases by."""
    releases: int = 0
    """Releases started within 24 hours and since the last approval."""
    live: int = 0
    """Tenancies begun and neither released nor retired: what `--max-live` caps."""
    creates: int = 0
    """Tenancies begun within the hour: what `--max-creates-per-hour` caps."""


class FleetStore(Database):
    """The part of the store that knows vendors rather than rows."""

    def conditions(self, kind: str) -> Conditions:
        """Say what holds rows of this kind back."""
        bound = {"its_kind": kind}
        found = self.reading(
            self._limit(), lambda at: at.execute(self._conditions, bound).mappings().one()
        )
        return Conditions(**{**found, "kind": kind})

    def _limit(self) -> float:
        return self.clock.monotonic() + STATEMENT_LIMIT

    # -- statements, built once -------------------------------------------------------------------

    @cached_property
    def _conditions(self) -> sa.Executable:
        now = instant_of(self.clock)
        one = sa.select(sa.literal(1)).subquery("one")
        whole = vendor.alias("whole")
        v = vendor.c
        waiting = v.paused_until > now
        return (
            sa.select(
                sa.func.coalesce(v.paused, sa.false()).label("paused"),
                sa.func.coalesce(whole.c.paused, sa.false()).label("fleet_paused"),
                sa.case((waiting, v.paused_until)).label("paused_until"),
                sa.case((waiting, v.pause_reason)).label("pause_reason"),
                v.halted_at,
                v.breaker_opened_at,
                v.sweep_breaker_opened_at,
                sa.func.coalesce(v.fleet, 0).label("fleet"),
                room.releases(now).label("releases"),
                room.live().label("live"),
                room.creates(now).label("creates"),
            )
            .select_from(one)
            .outerjoin(vendor, v.kind == room.kind)
            .outerjoin(whole, whole.c.kind == room.FLEET)
        )

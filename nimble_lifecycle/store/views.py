"""From rows to what people and functions see."""

from datetime import datetime
from typing import Final
from uuid import UUID

from nimble_lifecycle.protocol import Desired, Json, Phase, Tenancy, Why
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.prepared import Row

SHOWN = (
    t.c.id,
    t.c.tenant_id,
    t.c.workspace_id,
    t.c.kind,
    t.c.incarnation,
    t.c.desired,
    t.c.hold,
    t.c.phase,
    t.c.reason,
    t.c.message,
    t.c.params,
    t.c.external_id,
    t.c.external_name,
    t.c.idempotency_key,
    t.c.operation_id,
    t.c.details,
    t.c.first_seen_at,
    t.c.last_used_at,
    t.c.release_seen_at,
    t.c.release_after,
    t.c.release_started_at,
)
"""The columns a `Tenancy` is made of; all the server's role ever reads."""


_PHASES: Final = {phase.value: phase for phase in Phase}


def release_asked(row: Row) -> bool:
    """Whether a release is asked for and has not started."""
    asked = row["desired"] == Desired.RELEASE or row["hold"] == Desired.RELEASE
    return asked and row["release_started_at"] is None


def shown_phase(row: Row) -> Phase:
    """Give the phase people see: the stored one, or that a release is pending."""
    return Phase.RELEASE_PENDING if release_asked(row) else _PHASES[row["phase"]]


def shown_reason(row: Row) -> str | None:
    """Give the reason people see: the stored one, or that use holds a release."""
    used: datetime | None = row["last_used_at"]
    seen: datetime | None = row["release_seen_at"]
    if used is not None and seen is not None and used > seen and release_asked(row):
        return Why.STILL_IN_USE
    stored: str | None = row["reason"]
    return stored


def external_name_of(row: Row) -> str | None:
    """Give the name of the resource: the key, where no other is stored."""
    name: str | None = row["external_name"] or row["idempotency_key"]
    return name


def tenancy_of(row: Row) -> Tenancy:
    """Make the public snapshot of a row."""
    return Tenancy(
        id=row["id"],
        tenant_id=row["tenant_id"],
        workspace_id=row["workspace_id"],
        kind=row["kind"],
        incarnation=row["incarnation"],
        phase=shown_phase(row),
        reason=shown_reason(row),
        message=row["message"],
        params=_object(row["params"]),
        external_id=row["external_id"],
        external_name=external_name_of(row),
        idempotency_key=row["idempotency_key"],
        operation_id=row["operation_id"],
        details=_object(row["details"]),
        first_seen_at=row["first_seen_at"],
        release_after=row["release_after"],
    )


def _object(value: object) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def plain(value: object) -> object:
    """Give a column's value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value

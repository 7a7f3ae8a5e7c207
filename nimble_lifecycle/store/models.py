"""The tables, as SQLModel models on a registry of our own.

We are a guest in somebody's process: their `SQLModel.metadata` stays clean. The models serve the
metadata and the migrations; statements use their tables. Which columns the server writes is said by
their `Part`; all others are the worker's. `grants` makes rights of it on PostgreSQL.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

from nimble_lifecycle.protocol import Json, Phase
from nimble_lifecycle.store.types import ColumnType, Instant, JsonObject, OpaqueText, long_ago


class Model(SQLModel, registry=registry()):
    """Base of our tables."""


class Part(StrEnum):
    """What the server writes of a tenancy's row; a column of no part is the worker's alone."""

    IDENTITY = "identity"
    """Inserted, never changed."""
    INTENT = "intent"
    CONTACT = "contact"


def _column(type_: ColumnType, part: Part | None = None, **kw: Any) -> sa.Column[Any]:
    return sa.Column(type_, info={"part": part}, **kw)


def _when(part: Part | None = None) -> sa.Column[Any]:
    return _column(Instant(), part, nullable=True)


def _count() -> sa.Column[Any]:
    return _column(sa.Integer(), nullable=False, server_default="0")


def _serial() -> sa.Column[Any]:
    # SQLite numbers rows by itself only where the type is spelled INTEGER.
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column(big, sa.Identity(), primary_key=True)


class TenancyRow(Model, table=True):
    """One incarnation of one workspace's tenancy."""

    __tablename__: ClassVar[str] = "nimble_tenancy"
    # Room in each page for the next version of its rows, so that contact writes stay HOT.
    __table_args__ = {"postgresql_with": {"fillfactor": 90}}  # SQLAlchemy's name

    # identity: inserted by the server
    id: UUID = Field(sa_column=_column(sa.Uuid(), Part.IDENTITY, primary_key=True))
    tenant_id: str = Field(sa_column=_column(OpaqueText, Part.IDENTITY, nullable=False))
    workspace_id: str = Field(sa_column=_column(OpaqueText, Part.IDENTITY, nullable=False))
    kind: str = Field(sa_column=_column(OpaqueText, Part.IDENTITY, nullable=False))
    incarnation: int = Field(sa_column=_column(sa.Integer(), Part.IDENTITY, nullable=False))
    first_seen_at: datetime = Field(sa_column=_column(Instant(), Part.IDENTITY, nullable=False))

    # intent: written by the server
    desired: str = Field(sa_column=_column(OpaqueText, Part.INTENT, nullable=False))
    params: dict[str, Json] = Field(sa_column=_column(JsonObject, Part.INTENT, nullable=False))
    params_hash: str = Field(sa_column=_column(OpaqueText, Part.INTENT, nullable=False))
    generation: int = Field(sa_column=_column(sa.Integer(), Part.INTENT, nullable=False))
    generation_at: datetime = Field(sa_column=_column(Instant(), Part.INTENT, nullable=False))
    release_requested_at: datetime | None = Field(sa_column=_when(Part.INTENT))

    # contact: written by the server
    last_seen_at: datetime = Field(sa_column=_column(Instant(), Part.CONTACT, nullable=False))
    last_reason: str | None = Field(sa_column=_column(OpaqueText, Part.CONTACT))
    last_used_at: datetime | None = Field(sa_column=_when(Part.CONTACT))

    # status: written by the worker
    phase: str = Field(
        sa_column=_column(OpaqueText, nullable=False, server_default=Phase.PENDING.value)
    )
    reason: str | None = Field(sa_column=_column(OpaqueText))
    message: str | None = Field(sa_column=_column(OpaqueText))
    claimed_generation: int = Field(sa_column=_count())
    observed_generation: int = Field(sa_column=_count())
    attempted_params_hash: str | None = Field(sa_column=_column(OpaqueText))

    # the vendor's side: written by the worker
    idempotency_key: str | None = Field(sa_column=_column(OpaqueText))
    external_name: str | None = Field(sa_column=_column(OpaqueText))
    """Null: the key is the name too."""
    external_id: str | None = Field(sa_column=_column(OpaqueText))
    details: dict[str, Json] | None = Field(sa_column=_column(JsonObject))
    operation_id: str | None = Field(sa_column=_column(OpaqueText))
    operation_deadline_at: datetime | None = Field(sa_column=_when())
    create_started_at: datetime | None = Field(sa_column=_when())
    create_attempted_at: datetime | None = Field(sa_column=_when())
    create_ends_at: datetime | None = Field(sa_column=_when())
    """When the last create can no longer run: the end of the lease it was begun under, or under
    which its operation was last asked about."""
    created_at: datetime | None = Field(sa_column=_when())
    release_seen_at: datetime | None = Field(sa_column=_when())
    release_after: datetime | None = Field(sa_column=_when())
    release_started_at: datetime | None = Field(sa_column=_when())
    released_at: datetime | None = Field(sa_column=_when())
    retired_at: datetime | None = Field(sa_column=_when())
    last_observed_at: datetime | None = Field(sa_column=_when())
    """When the resource was last seen to be as the row says; of a row without one, when it was
    proven that no create left anything, none begun since."""

    # work: written by the worker
    due_at: datetime | None = Field(sa_column=_when())
    attempts: int = Field(sa_column=_count())
    reclaims: int = Field(sa_column=_count())
    creates: int = Field(sa_column=_count())
    """Creates begun under this row's key and not known to have failed; bounded by the worker."""
    last_error: str | None = Field(sa_column=_column(OpaqueText))
    lease_owner: str | None = Field(sa_column=_column(OpaqueText))
    lease_token: int = Field(sa_column=_column(sa.BigInteger(), nullable=False, server_default="0"))
    lease_expires_at: datetime | None = Field(sa_column=_when())
    paused: bool = Field(sa_column=_column(sa.Boolean(), nullable=False, server_default=sa.false()))
    hold: str | None = Field(sa_column=_column(OpaqueText))
    origin: str | None = Field(sa_column=_column(OpaqueText))
    """Null: a host asked for it. `surplus` or `orphan`: a resource of ours without a row of its
    own, which the worker gave this one in order to release it."""


class CallRow(Model, table=True):
    """What a host said; nothing acts on it."""

    __tablename__: ClassVar[str] = "nimble_call"

    id: int = Field(sa_column=_serial())
    at: datetime = Field(sa_column=_column(Instant(), nullable=False))
    tenant_id: str = Field(sa_column=_column(OpaqueText, nullable=False))
    workspace_id: str = Field(sa_column=_column(OpaqueText, nullable=False))
    kind: str = Field(sa_column=_column(OpaqueText, nullable=False))
    event: str = Field(sa_column=_column(OpaqueText, nullable=False))
    reason: str | None = Field(sa_column=_column(OpaqueText))


class JournalRow(Model, table=True):
    """What the worker did and the vendor answered; only the worker writes it, only by adding."""

    __tablename__: ClassVar[str] = "nimble_journal"
    __table_args__ = (sa.Index("ix_nimble_journal_tenancy", "tenancy_id"),)

    id: int = Field(sa_column=_serial())
    at: datetime = Field(sa_column=_column(Instant(), nullable=False))
    tenancy_id: UUID | None = Field(sa_column=_column(sa.Uuid()))
    """Null: about the whole kind, or with the kind `*` about the fleet."""
    kind: str = Field(sa_column=_column(OpaqueText, nullable=False))
    action: str = Field(sa_column=_column(OpaqueText, nullable=False))
    outcome: str = Field(sa_column=_column(OpaqueText, nullable=False))
    actor: str = Field(sa_column=_column(OpaqueText, nullable=False))
    generation: int = Field(sa_column=_column(sa.Integer(), nullable=False))
    lease_token: int = Field(sa_column=_column(sa.BigInteger(), nullable=False))
    settled: bool = Field(sa_column=_column(sa.Boolean(), nullable=False))
    """Whether the lease was still held and the row was updated, including its external id."""
    external_id: str | None = Field(sa_column=_column(OpaqueText))
    operation_id: str | None = Field(sa_column=_column(OpaqueText))
    seconds: float | None = Field(sa_column=_column(sa.Float()))
    note: str | None = Field(sa_column=_column(OpaqueText))


class SightingRow(Model, table=True):
    """Strikes of sweeps: what was seen missing or in excess, how often, since when."""

    __tablename__: ClassVar[str] = "nimble_sighting"

    kind: str = Field(sa_column=_column(OpaqueText, primary_key=True))
    sort: str = Field(sa_column=_column(OpaqueText, primary_key=True))
    subject: str = Field(sa_column=_column(OpaqueText, primary_key=True))
    strikes: int = Field(sa_column=_column(sa.Integer(), nullable=False))
    first_at: datetime = Field(sa_column=_column(Instant(), nullable=False))
    last_at: datetime = Field(sa_column=_column(Instant(), nullable=False))
    acted_at: datetime | None = Field(sa_column=_when())
    """When a sweep acted on it; these are what its breaker counts."""


class VendorRow(Model, table=True):
    """What is known of a vendor as a whole, shared by all workers; of the kind `FLEET`, a pause."""

    __tablename__: ClassVar[str] = "nimble_vendor"

    kind: str = Field(sa_column=_column(OpaqueText, primary_key=True))
    paused: bool = Field(sa_column=_column(sa.Boolean(), nullable=False, server_default=sa.false()))
    """An operator's pause."""

    # the vendor's own pause, and its refusal of the credential
    paused_until: datetime | None = Field(sa_column=_when())
    pause_reason: str | None = Field(sa_column=_column(OpaqueText))
    refused_id: UUID | None = Field(sa_column=_column(sa.Uuid()))
    """The row that met a refused credential, alone so far."""
    refused_mark: int | None = Field(sa_column=_column(sa.BigInteger()))
    """The last entry of the journal then: a success after it acquits the credential."""
    halted_at: datetime | None = Field(sa_column=_when())
    """Since when nothing but probes is called, since the credential is refused."""
    probe_id: UUID | None = Field(sa_column=_column(sa.Uuid()))
    probe_at: datetime | None = Field(sa_column=_when())
    probes: int = Field(sa_column=_count())
    resumed_at: datetime | None = Field(sa_column=_when())

    # how much may be done: rates, and the breakers over releases
    gate: int = Field(sa_column=_column(sa.BigInteger(), nullable=False, server_default="0"))
    """Raised by every claim that counts before it acts: of two at once, one counts again."""
    rate_at: datetime | None = Field(sa_column=_when())
    fleet: int = Field(sa_column=_count())
    """Tenancies that have a resource, as last counted."""
    capped_at: datetime | None = Field(sa_column=_when())
    """Since when tenancies wait for a cap, as last counted; caps are a worker's settings."""
    breaker_opened_at: datetime | None = Field(sa_column=_when())
    breaker_approved_at: datetime | None = Field(sa_column=_when())
    sweep_breaker_opened_at: datetime | None = Field(sa_column=_when())
    sweep_breaker_approved_at: datetime | None = Field(sa_column=_when())

    # one sweep at a time
    sweep_owner: str | None = Field(sa_column=_column(OpaqueText))
    sweep_expires_at: datetime | None = Field(sa_column=_when())
    swept_at: datetime | None = Field(sa_column=_when())
    left_to_person: dict[str, int] | None = Field(sa_column=_column(JsonObject))
    """What the last whole sweep found and only a person settles: how many of each sort."""


class DeploymentRow(Model, table=True):
    """Which deployment this database belongs to, and which package can live with its tables."""

    __tablename__: ClassVar[str] = "nimble_deployment"

    id: int = Field(sa_column=_column(sa.Integer(), primary_key=True, autoincrement=False))
    owner_id: str = Field(sa_column=_column(OpaqueText, nullable=False))
    """Ten random characters a-z2-7, the first part of every key this deployment uses."""
    fingerprint: str | None = Field(sa_column=_column(OpaqueText))
    deployment: str | None = Field(sa_column=_column(OpaqueText))
    schema_number: int = Field(sa_column=_column(sa.Integer(), nullable=False))
    oldest_version: str = Field(sa_column=_column(OpaqueText, nullable=False))
    """The oldest package version that can live with this schema; only older code refuses."""
    created_at: datetime = Field(sa_column=_column(Instant(), nullable=False))


def _table(model: type[Model]) -> sa.Table:
    table: sa.Table = model.__table__  # type: ignore[attr-defined]  # set by SQLModel
    return table


metadata = Model.metadata
tenancy = _table(TenancyRow)
call = _table(CallRow)
journal = _table(JournalRow)
sighting = _table(SightingRow)
vendor = _table(VendorRow)
deployment = _table(DeploymentRow)


def columns_of(*parts: Part) -> list[sa.Column[Any]]:
    """Give the columns of a tenancy's row that belong to these parts."""
    return [column for column in tenancy.c if column.info["part"] in parts]


live = sa.and_(tenancy.c.release_started_at.is_(None), tenancy.c.retired_at.is_(None))
"""The one row per workspace and kind that host calls meet."""

gone = sa.or_(tenancy.c.release_started_at.is_not(None), tenancy.c.retired_at.is_not(None))
"""Every earlier incarnation: its release has started, or it was retired."""

look_at = sa.case(
    (tenancy.c.retired_at.is_not(None), sa.null()),
    (tenancy.c.generation != tenancy.c.claimed_generation, long_ago()),
    (
        sa.and_(tenancy.c.release_started_at.is_(None), tenancy.c.release_after.is_not(None)),
        tenancy.c.release_after,
    ),
    else_=tenancy.c.due_at,
)
"""When a worker must look at a row: at once after a change, at the end of a grace, or when it is
due; never again once it is retired. No instant that the server's role writes is part of it: one in
the future would hide the row. During a grace `due_at` keeps the back-off an undo returns to."""

look_order = (look_at, tenancy.c.generation_at)
"""In which order: of changed rows, the one whose change waits longest comes first."""

_key = (tenancy.c.workspace_id, tenancy.c.kind, tenancy.c.tenant_id)

sa.Index("uq_nimble_tenancy_live", *_key, unique=True, postgresql_where=live, sqlite_where=live)
sa.Index("ix_nimble_tenancy_gone", *_key, postgresql_where=gone, sqlite_where=gone)
with_resource = sa.and_(
    tenancy.c.external_id.is_not(None),
    tenancy.c.released_at.is_(None),
    tenancy.c.retired_at.is_(None),
)
"""Rows that have a resource, as far as is known."""

sa.Index(
    "uq_nimble_tenancy_external",
    tenancy.c.kind,
    tenancy.c.external_id,
    unique=True,
    postgresql_where=with_resource,
    sqlite_where=with_resource,
)
_awaited = sa.and_(look_at.is_not(None), sa.not_(tenancy.c.paused))
sa.Index(
    "ix_nimble_tenancy_look",
    tenancy.c.kind,
    *look_order,
    postgresql_where=_awaited,
    sqlite_where=_awaited,
)
_leased = tenancy.c.lease_expires_at.is_not(None)
sa.Index(
    "ix_nimble_tenancy_leased",
    tenancy.c.kind,
    tenancy.c.lease_expires_at,
    postgresql_where=_leased,
    sqlite_where=_leased,
)
_suspect = tenancy.c.reclaims > 0
sa.Index(
    "ix_nimble_tenancy_suspect",
    tenancy.c.kind,
    tenancy.c.reclaims,
    postgresql_where=_suspect,
    sqlite_where=_suspect,
)
begun = sa.and_(
    tenancy.c.create_started_at.is_not(None),
    tenancy.c.released_at.is_(None),
    tenancy.c.retired_at.is_(None),
)
"""Rows that a create was begun for and that are not over."""

sa.Index(
    "ix_nimble_tenancy_begun",
    tenancy.c.kind,
    tenancy.c.create_started_at,
    postgresql_where=begun,
    sqlite_where=begun,
)
ending = sa.and_(tenancy.c.release_started_at.is_not(None), tenancy.c.external_id.is_not(None))
"""Rows whose release has started, of what there was to release."""

sa.Index(
    "ix_nimble_tenancy_ending",
    tenancy.c.kind,
    tenancy.c.release_started_at,
    postgresql_where=ending,
    sqlite_where=ending,
)
_unsettled = sa.and_(journal.c.external_id.is_not(None), sa.not_(journal.c.settled))
sa.Index(
    "ix_nimble_journal_unsettled",
    journal.c.kind,
    journal.c.id,
    postgresql_where=_unsettled,
    sqlite_where=_unsettled,
)

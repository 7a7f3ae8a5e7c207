"""The tables, as first shipped.

Types are spelled out and no model is imported: a migration must mean the same for ever.
"""

import secrets
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

OLDEST_VERSION = "0.1.0"
SCHEMA_NUMBER = 1


def _instant() -> sa.types.TypeEngine[Any]:
    return sa.DateTime(timezone=True)


def _json() -> sa.types.TypeEngine[Any]:
    return sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def _text() -> sa.types.TypeEngine[Any]:
    # By a locale, indexes would be corrupt once the C library orders texts in another way.
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _serial() -> sa.Column[Any]:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", big, sa.Identity(), primary_key=True)


def _count(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=False, server_default="0")


def upgrade() -> None:
    """Make every table and index, and this deployment's owner id."""
    _tenancy()
    _indexes()
    _logs()
    _shared()
    _deployment()


def _plausible(*columns: str) -> list[sa.CheckConstraint]:
    """Refuse times that no worker could read; the server's role writes these columns."""
    return [
        sa.CheckConstraint(
            f"{column} BETWEEN '1970-01-02 00:00:00' AND '9000-01-01 00:00:00'",
            name=f"nimble_tenancy_{column}",
        )
        for column in columns
    ]


def _tenancy() -> None:
    op.create_table(
        "nimble_tenancy",
        # Widest first: PostgreSQL would pad between them, 40 bytes a row.
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("first_seen_at", _instant(), nullable=False),
        sa.Column("generation_at", _instant(), nullable=False),
        sa.Column("last_seen_at", _instant(), nullable=False),
        sa.Column("lease_token", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("release_requested_at", _instant()),
        sa.Column("last_used_at", _instant()),
        sa.Column("operation_deadline_at", _instant()),
        sa.Column("create_started_at", _instant()),
        sa.Column("create_attempted_at", _instant()),
        sa.Column("create_ends_at", _instant()),
        sa.Column("created_at", _instant()),
        sa.Column("release_seen_at", _instant()),
        sa.Column("release_after", _instant()),
        sa.Column("release_started_at", _instant()),
        sa.Column("released_at", _instant()),
        sa.Column("retired_at", _instant()),
        sa.Column("last_observed_at", _instant()),
        sa.Column("due_at", _instant()),
        sa.Column("lease_expires_at", _instant()),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        _count("claimed_generation"),
        _count("observed_generation"),
        _count("attempts"),
        _count("reclaims"),
        _count("creates"),
        sa.Column("paused", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("tenant_id", _text(), nullable=False),
        sa.Column("workspace_id", _text(), nullable=False),
        sa.Column("kind", _text(), nullable=False),
        sa.Column("desired", _text(), nullable=False),
        sa.Column("params", _json(), nullable=False),
        sa.Column("params_hash", _text(), nullable=False),
        sa.Column("phase", _text(), nullable=False, server_default="pending"),
        sa.Column("last_reason", _text()),
        sa.Column("reason", _text()),
        sa.Column("message", _text()),
        sa.Column("attempted_params_hash", _text()),
        sa.Column("idempotency_key", _text()),
        sa.Column("external_name", _text()),
        sa.Column("external_id", _text()),
        sa.Column("details", _json()),
        sa.Column("operation_id", _text()),
        sa.Column("last_error", _text()),
        sa.Column("lease_owner", _text()),
        sa.Column("hold", _text()),
        sa.Column("origin", _text()),
        sa.CheckConstraint("desired IN ('wanted', 'release')", name="nimble_tenancy_desired"),
        # A row that starts at 0, as no claim has seen it, would never be looked at.
        sa.CheckConstraint("generation >= 1", name="nimble_tenancy_generation"),
        *_plausible("first_seen_at", "generation_at", "release_requested_at"),
        *_plausible("last_seen_at", "last_used_at"),
        postgresql_with={"fillfactor": 90},
    )


def _indexes() -> None:
    key = ["workspace_id", "kind", "tenant_id"]
    # Spelled as statements spell it, or it is not found to be the same; each database has its way.
    long_ago = {
        "postgresql": "TIMESTAMP WITH TIME ZONE '1970-01-02 00:00:00+00'",
        "sqlite": "'1970-01-02 00:00:00.000000'",
    }[op.get_bind().dialect.name]
    look = (
        "CASE WHEN (retired_at IS NOT NULL) THEN NULL"
        f" WHEN (generation != claimed_generation) THEN {long_ago}"
        " WHEN (release_started_at IS NULL AND release_after IS NOT NULL) THEN release_after"
        " ELSE due_at END"
    )
    for name, columns, unique, where in (
        ("uq_nimble_tenancy_live", key, True, "release_started_at IS NULL AND retired_at IS NULL"),
        (
            "ix_nimble_tenancy_gone",
            key,
            False,
            "release_started_at IS NOT NULL OR retired_at IS NOT NULL",
        ),
        (
            "uq_nimble_tenancy_external",
            ["kind", "external_id"],
            True,
            "external_id IS NOT NULL AND released_at IS NULL AND retired_at IS NULL",
        ),
        (
            "ix_nimble_tenancy_leased",
            ["kind", "lease_expires_at"],
            False,
            "lease_expires_at IS NOT NULL",
        ),
        ("ix_nimble_tenancy_suspect", ["kind", "reclaims"], False, "reclaims > 0"),
        (
            "ix_nimble_tenancy_begun",
            ["kind", "create_started_at"],
            False,
            "create_started_at IS NOT NULL AND released_at IS NULL AND retired_at IS NULL",
        ),
        (
            "ix_nimble_tenancy_ending",
            ["kind", "release_started_at"],
            False,
            "release_started_at IS NOT NULL AND external_id IS NOT NULL",
        ),
    ):
        op.create_index(
            name,
            "nimble_tenancy",
            columns,
            unique=unique,
            postgresql_where=sa.text(where),
            sqlite_where=sa.text(where),
        )
    # SQLite spells the boolean as a number, and matches partial indexes by the spelling.
    op.create_index(
        "ix_nimble_tenancy_look",
        "nimble_tenancy",
        ["kind", sa.text(f"({look})"), "generation_at"],
        postgresql_where=sa.text(f"{look} IS NOT NULL AND NOT paused"),
        sqlite_where=sa.text(f"{look} IS NOT NULL AND paused = 0"),
    )


def _logs() -> None:
    op.create_table(
        "nimble_call",
        _serial(),
        sa.Column("at", _instant(), nullable=False),
        sa.Column("tenant_id", _text(), nullable=False),
        sa.Column("workspace_id", _text(), nullable=False),
        sa.Column("kind", _text(), nullable=False),
        sa.Column("event", _text(), nullable=False),
        sa.Column("reason", _text()),
    )
    op.create_table(
        "nimble_journal",
        _serial(),
        sa.Column("at", _instant(), nullable=False),
        sa.Column("tenancy_id", sa.Uuid()),
        sa.Column("kind", _text(), nullable=False),
        sa.Column("action", _text(), nullable=False),
        sa.Column("outcome", _text(), nullable=False),
        sa.Column("actor", _text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("external_id", _text()),
        sa.Column("operation_id", _text()),
        sa.Column("seconds", sa.Float()),
        sa.Column("note", _text()),
    )
    op.create_index("ix_nimble_journal_tenancy", "nimble_journal", ["tenancy_id"])
    op.create_index(
        "ix_nimble_journal_unsettled",
        "nimble_journal",
        ["kind", "id"],
        postgresql_where=sa.text("external_id IS NOT NULL AND NOT settled"),
        sqlite_where=sa.text("external_id IS NOT NULL AND settled = 0"),
    )


def _shared() -> None:
    op.create_table(
        "nimble_sighting",
        sa.Column("kind", _text(), primary_key=True),
        sa.Column("sort", _text(), primary_key=True),
        sa.Column("subject", _text(), primary_key=True),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("first_at", _instant(), nullable=False),
        sa.Column("last_at", _instant(), nullable=False),
        sa.Column("acted_at", _instant()),
    )
    op.create_table(
        "nimble_vendor",
        sa.Column("kind", _text(), primary_key=True),
        sa.Column("paused", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("paused_until", _instant()),
        sa.Column("pause_reason", _text()),
        sa.Column("refused_id", sa.Uuid()),
        sa.Column("refused_mark", sa.BigInteger()),
        sa.Column("halted_at", _instant()),
        sa.Column("probe_id", sa.Uuid()),
        sa.Column("probe_at", _instant()),
        _count("probes"),
        sa.Column("resumed_at", _instant()),
        sa.Column("gate", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("rate_at", _instant()),
        _count("fleet"),
        sa.Column("capped_at", _instant()),
        sa.Column("breaker_opened_at", _instant()),
        sa.Column("breaker_approved_at", _instant()),
        sa.Column("sweep_breaker_opened_at", _instant()),
        sa.Column("sweep_breaker_approved_at", _instant()),
        sa.Column("sweep_owner", _text()),
        sa.Column("sweep_expires_at", _instant()),
        sa.Column("swept_at", _instant()),
        sa.Column("left_to_person", _json()),
    )


def _deployment() -> None:
    table = op.create_table(
        "nimble_deployment",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("owner_id", _text(), nullable=False),
        sa.Column("fingerprint", _text()),
        sa.Column("deployment", _text()),
        sa.Column("schema_number", sa.Integer(), nullable=False),
        sa.Column("oldest_version", _text(), nullable=False),
        sa.Column("created_at", _instant(), nullable=False),
    )
    owner_id = "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(10))
    op.execute(
        sa.insert(table).values(
            id=1,
            owner_id=owner_id,
            schema_number=SCHEMA_NUMBER,
            oldest_version=OLDEST_VERSION,
            created_at=sa.func.current_timestamp(),
        )
    )

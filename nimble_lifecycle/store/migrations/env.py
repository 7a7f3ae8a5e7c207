"""Alembic's entry: runs migrations on the connection it is handed, in the caller's transaction."""

import sqlalchemy as sa
from alembic import context

from nimble_lifecycle.store.migrations import VERSION_TABLE
from nimble_lifecycle.store.models import metadata


def _ours(
    thing: sa.schema.SchemaItem, name: str | None, kind: str, reflected: bool, _other: object
) -> bool:
    # Alembic cannot compare an index over an expression; a test explains its use instead.
    return name != "ix_nimble_tenancy_look" if kind == "index" else _is_ours(kind, name)


def _is_ours(kind: str, name: str | None) -> bool:
    return kind != "table" or (name or "").startswith("nimble_")


connection: sa.Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    include_object=_ours,
    transactional_ddl=False,  # the caller has begun, and commits
)
context.run_migrations()

"""Commands about the database itself."""

from typing import Annotated

from cyclopts import Parameter

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.reconciler.cli.app import (
    DONE,
    Database,
    Named,
    acting,
    deployment_of,
    opened,
    say,
    unopened,
    user,
)
from nimble_lifecycle.reconciler.tables import safe
from nimble_lifecycle.store.grants import grants as sql_of_grants
from nimble_lifecycle.store.rekey import Moved
from nimble_lifecycle.store.rekey import rekey as moved_by_rekey


def migrate(*, database_url: Database = None) -> int:
    """Make or upgrade the tables; any number of processes may do so at once."""
    with unopened(database_url) as store:
        store.migrate()
        store.open()
        say(f"{store.location} is up to date")
    return DONE


def grants(
    *,
    server_role: str,
    worker_role: str,
    schema: str = "public",
    database_url: Database = None,
) -> int:
    """Print the SQL that lets each half do its work and nothing else (PostgreSQL).

    Parameters
    ----------
    server_role
        The role of the servers: says what workspaces want.
    worker_role
        The role of the workers and of these commands, but for migrate.
    schema
        Where the tables are.
    database_url
        The database both halves share; it is not connected to.
    """
    with unopened(database_url) as store:
        if store.is_sqlite:
            raise ConfigurationError(
                f"{store.location} keeps the halves apart by nothing but trust: whoever can write"
                " the file can write every column. Rights need PostgreSQL; say --database-url"
            )
    print(sql_of_grants(server_role=server_role, worker_role=worker_role, schema=schema), end="")  # noqa: T201
    return DONE


def claim_database(
    *,
    moved: bool = False,
    copy: bool = False,
    deployment: Named = None,
    database_url: Database = None,
) -> int:
    """Say what a database is that is not where it was, or not called what it was. Stop workers.

    Parameters
    ----------
    moved
        It is the same deployment's: everything goes on.
    copy
        It is a copy: what is at the vendor is the original's and is let alone, what is wanted gets
        a tenancy of its own.
    deployment
        This deployment's name, if it has one.
    database_url
        The database both halves share.
    """
    if moved == copy:
        raise ConfigurationError("say one of --moved and --copy")
    with opened(database_url) as store:
        claimed = deployment_of(store, deployment)
        if moved:
            news = "is this deployment's" if claimed.claim_moved() else "was this deployment's"
            say(f"{store.location} {news}; its tenancies go on")
            return DONE
        copied = claimed.claim_copy(actor=user())
        say(
            f"{store.location} is a deployment of its own: {copied.retired} tenancies are the"
            f" original's and retired, {copied.renewed} of them are wanted and begin anew"
        )
    return DONE


def rekey(
    tenant: str,
    *,
    workspace: Annotated[list[str] | None, Parameter(negative=())] = None,
    all_workspaces: Annotated[bool, Parameter(name="--all", negative=())] = False,
    kind: str | None = None,
    database_url: Database = None,
    deployment: Named = None,
) -> int:
    """Move rows without a tenant to the tenant that their host has begun to name.

    Parameters
    ----------
    tenant
        The tenant's id, as the host names it.
    workspace
        A workspace to move, with all its incarnations; may be repeated.
    all_workspaces
        Move every workspace that has no tenant; for databases that serve one tenant.
    kind
        Only this kind.
    database_url
        The database both halves share.
    deployment
        This deployment's name, if it has one.
    """
    if bool(workspace) == all_workspaces:
        raise ConfigurationError("say which workspaces: --workspace, or --all")
    with acting(database_url, deployment) as store:
        moved = moved_by_rekey(store, tenant, workspace, kind=kind, actor=user())
    for each in moved:
        _tell(each, tenant)
    say(f"{len(moved)} workspaces belong to {safe(tenant)} now")
    return DONE


def _tell(moved: Moved, tenant: str) -> None:
    to = f"{safe(tenant)}/{safe(moved.workspace_id)} ({safe(moved.kind)})"
    say(f"{to}: {moved.rows} rows moved")
    if moved.removing_at is not None:
        say(
            f"{to}: at {moved.removing_at:%Y-%m-%d %H:%M} UTC its host said that it is being"
            " removed, which was refused; where it is gone, ask for its release"
        )

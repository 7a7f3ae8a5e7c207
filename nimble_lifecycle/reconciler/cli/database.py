"""Commands about the database itself."""

import socket
from getpass import getuser

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.reconciler.cli.app import (
    DONE,
    Database,
    Named,
    deployment_of,
    opened,
    say,
)
from nimble_lifecycle.store.grants import grants as sql_of_grants


def migrate(*, database_url: Database = None) -> int:
    """Make or upgrade the tables; any number of processes may do so at once."""
    with opened(database_url) as store:
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
    with opened(database_url) as store:
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
        copied = claimed.claim_copy(actor=f"{getuser()}@{socket.gethostname()}")
        say(
            f"{store.location} is a deployment of its own: {copied.retired} tenancies are the"
            f" original's and retired, {copied.renewed} of them are wanted and begin anew"
        )
    return DONE

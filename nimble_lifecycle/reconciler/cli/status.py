"""The commands that only look: at rows, and at the journal."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from nimble_lifecycle.errors import ForeignDatabase
from nimble_lifecycle.reconciler.cli.app import (
    DONE,
    NEEDS_PERSON,
    AsJson,
    Database,
    Named,
    deployment_of,
    opened,
    say,
)
from nimble_lifecycle.reconciler.redact import redacted
from nimble_lifecycle.reconciler.tables import (
    needs_person,
    print_entries,
    print_json,
    print_needed,
    print_summary,
    print_table,
    safe,
)
from nimble_lifecycle.store.deployment import Deployment
from nimble_lifecycle.store.operators import unknown_kind
from nimble_lifecycle.store.standing import Notice


def status(
    *,
    database_url: Database = None,
    deployment: Named = None,
    kind: str | None = None,
    as_json: AsJson = False,
    summary: bool = False,
    exit_code: bool = False,
) -> int:
    """List tenancies that are not settled, or were settled within seven days, and what they need.

    Parameters
    ----------
    database_url
        The database both halves share.
    deployment
        This deployment's name, if it has one.
    kind
        Only this kind.
    as_json
        One JSON array on stdout.
    summary
        Counts by phase instead of rows.
    exit_code
        End with 5 when something needs a person.
    """
    with opened(database_url) as store:
        ours = _is_ours(deployment_of(store, deployment))
        rows = store.status(kind=kind)
        notices = store.notices(kind=kind)
        unknown = None if kind is None else unknown_kind(kind, store.kinds())
        if unknown is not None:
            say(safe(unknown))
        location = store.location
    if summary or as_json:
        _say_notices(notices)
    if summary:
        print_summary(rows, as_json=as_json)
    elif as_json:
        print_json(rows)
    else:
        print_table(rows, location)
        print_needed(notices, rows)
    needed = exit_code and (notices or not ours or any(map(needs_person, rows)))
    return NEEDS_PERSON if needed else DONE


def journal(
    row: str | None = None,
    *,
    database_url: Database = None,
    tenant: str | None = None,
    kind: str | None = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1))] = 50,
    as_json: AsJson = False,
) -> int:
    """List what workers and operators did and what the vendor answered, the latest last.

    Parameters
    ----------
    row
        Only of this workspace, in all its lives: a row's id, or workspace, or tenant/workspace.
    database_url
        The database both halves share.
    tenant
        The row's tenant id; then ROW is the workspace id alone.
    kind
        Only this kind.
    limit
        At most so many entries, the latest.
    as_json
        One JSON array on stdout.
    """
    with opened(database_url) as store:
        found = None if row is None else store.find(row, tenant=tenant, kind=kind)
        entries = store.entries(found, kind=kind, limit=limit)
    if as_json:
        print_json(entries)
    else:
        print_entries(entries)
    return DONE


def _say_notices(notices: Sequence[Notice]) -> None:
    """Tell what needs a person besides the rows, which is no part of the data."""
    for found in notices:
        say(safe(found.message if found.settle is None else f"{found.message}: {found.settle}"))


def _is_ours(deployment: Deployment) -> bool:
    """Say so where the database is another deployment's; looking at it is harmless."""
    try:
        deployment.check()
    except ForeignDatabase as error:
        say(redacted(str(error)))
        return False
    return True

"""The command that lists rows."""

from nimble_lifecycle.reconciler.cli.app import DONE, NEEDS_PERSON, AsJson, Database, opened
from nimble_lifecycle.reconciler.tables import (
    needs_person,
    print_json,
    print_needed,
    print_summary,
    print_table,
)


def status(
    *,
    database_url: Database = None,
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
        rows = store.status(kind=kind)
        notices = store.notices(kind=kind)
        location = store.location
    if summary:
        print_summary(rows, as_json=as_json)
    elif as_json:
        print_json(rows)
    else:
        print_table(rows, location)
        print_needed(notices, rows)
    needed = exit_code and (notices or any(map(needs_person, rows)))
    return NEEDS_PERSON if needed else DONE

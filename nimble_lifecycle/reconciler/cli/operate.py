"""The operator's commands: each changes one row, one kind or the fleet, and is journalled."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import UUID

from cyclopts import Parameter

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.protocol import FLEET
from nimble_lifecycle.reconciler.cli.app import DONE, AsJson, Database, Named, acting, say, user
from nimble_lifecycle.reconciler.tables import (
    name_of,
    print_json,
    print_notices,
    print_table,
    safe,
)
from nimble_lifecycle.store import By, OperatorStore


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What every verb may be given besides its object."""

    database_url: Database = None
    """The database both halves share."""
    deployment: Named = None
    """This deployment's name, if it has one."""
    tenant: str | None = None
    """The row's tenant id; then ROW is the workspace id alone."""
    kind: str | None = None
    """The row's kind; without a row, the kind itself."""
    by: Annotated[str | None, Parameter(name="--as")] = None
    """Who says so, for the journal (default: the user of this process)."""
    reason: str | None = None
    """Why, for the journal."""
    as_json: AsJson = False
    """What it is now as JSON on stdout, instead of a table."""

    @property
    def who(self) -> By:
        """Who does it, and why."""
        return By(self.by or user(), self.reason)


def retry(row: str, *, assume_not_created: bool = False, given: Given | None = None) -> int:
    """Try again at once what is stalled or backing off.

    Parameters
    ----------
    row
        Its id, or workspace, or tenant/workspace.
    assume_not_created
        Your word that no create of this row was applied; looked up at the vendor before.
    """
    verb = partial(OperatorStore.retry, assume_not_created=assume_not_created)
    return _with_row(row, given, verb, "is tried again")


def release(row: str, *, given: Given | None = None) -> int:
    """Ask for a release, which waits for the grace and which only `undo` lifts.

    Parameters
    ----------
    row
        Its id, or workspace, or tenant/workspace.
    """
    return _with_row(row, given, OperatorStore.release, "will be released after the grace")


def undo(row: str, *, given: Given | None = None) -> int:
    """Withdraw a release that has not started.

    Parameters
    ----------
    row
        Its id, or workspace, or tenant/workspace.
    """
    return _with_row(row, given, OperatorStore.undo, "is wanted again")


def adopt(row: str, external_id: str, *, given: Given | None = None) -> int:
    """Take a resource at the vendor for the row's own: your word that it is ours.

    Parameters
    ----------
    row
        Its id, or workspace, or tenant/workspace.
    external_id
        The vendor's id of the resource.
    """

    def verb(store: OperatorStore, found: UUID, by: By) -> None:
        store.adopt(found, external_id, by)

    return _with_row(row, given, verb, f"has the resource {safe(external_id)}")


def abandon(row: str, *, given: Given | None = None) -> int:
    """Give a resource up without deleting it, with --reason; it stays listed as kept.

    Parameters
    ----------
    row
        Its id, or workspace, or tenant/workspace.
    """
    return _with_row(row, given, OperatorStore.abandon, "is given up; its resource stays")


def pause(row: str | None = None, *, fleet: bool = False, given: Given | None = None) -> int:
    """Let no worker call the vendor: for a row, with --kind for a kind, with --fleet for all.

    Parameters
    ----------
    row
        Its id, or workspace, or tenant/workspace.
    fleet
        Every row of the database.
    """
    given = given or Given()
    if row is not None and not fleet:
        return _with_row(row, given, OperatorStore.pause_row, "is paused")
    kind = _kind(row, given, fleet=fleet)
    return _with_kind(kind, given, OperatorStore.pause_kind, "is paused")


def resume(row: str | None = None, *, fleet: bool = False, given: Given | None = None) -> int:
    """Lift a pause: of a row, with --kind of a kind, with --fleet of the fleet.

    Parameters
    ----------
    row
        Its id, or workspace, or tenant/workspace.
    fleet
        The pause of every row of the database.
    """
    given = given or Given()
    if row is not None and not fleet:
        return _with_row(row, given, OperatorStore.resume_row, "goes on")
    kind = _kind(row, given, fleet=fleet)
    return _with_kind(kind, given, OperatorStore.resume_kind, "goes on")


def approve(*, given: Given | None = None) -> int:
    """Close the open breakers of a kind (--kind): what they held back is done."""
    given = given or Given()
    if given.kind is None:
        raise ConfigurationError("name the kind whose breakers are to be closed: --kind")
    kind = _kind(None, given, fleet=False)
    return _with_kind(kind, given, OperatorStore.approve, "is approved; its breakers are closed")


def _with_row(
    row: str,
    given: Given | None,
    verb: Callable[[OperatorStore, UUID, By], None],
    done: str,
) -> int:
    given = given or Given()
    with acting(given.database_url, given.deployment) as store:
        found = store.find(row, tenant=given.tenant, kind=given.kind)
        verb(store, found, given.who)
        rows = store.status(row=found)
        say(f"{safe(name_of(rows[0]))} {done}")
        if given.as_json:
            print_json(rows[0])
        else:
            print_table(rows, store.location)
    return DONE


def _with_kind(
    kind: str, given: Given, verb: Callable[[OperatorStore, str, By], None], done: str
) -> int:
    with acting(given.database_url, given.deployment) as store:
        verb(store, kind, given.who)
        say(f"{'the fleet' if kind == FLEET else safe(kind)} {done}")
        print_notices(store.notices(kind=kind), as_json=given.as_json)
    return DONE


def _kind(row: str | None, given: Given, *, fleet: bool) -> str:
    """Give the kind that is meant; raises ConfigurationError unless it is just one thing."""
    if given.tenant is not None or row is not None or fleet == (given.kind is not None):
        raise ConfigurationError("name one thing: a row, or --kind, or --fleet")
    return FLEET if given.kind is None else given.kind

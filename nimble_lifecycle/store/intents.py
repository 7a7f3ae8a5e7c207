"""What the server half writes and reads: intents, contact, and the tenancy it may show.

The statements themselves are in `host_statements`.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DataError

from nimble_lifecycle.errors import RekeyNeeded, StoreUnavailable
from nimble_lifecycle.protocol import Event, Json, Reason, Tenancy, Workspace
from nimble_lifecycle.store.database import Database
from nimble_lifecycle.store.engines import plan_once
from nimble_lifecycle.store.host_statements import HostStatements
from nimble_lifecycle.store.ports import Clock
from nimble_lifecycle.store.prepared import Prepared, Row
from nimble_lifecycle.store.types import NOT_IN_TIME, fingerprint_of, storable
from nimble_lifecycle.store.views import tenancy_of
from nimble_lifecycle.store.wakeups import Notifier

Values: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a host call left behind: the live tenancy, and whether it changed what is asked."""

    tenancy: Tenancy
    changed: bool


class UnderWay:
    """Workspaces whose `removing` may still be applied: it is under way, and in time.

    A `ready` that comes meanwhile (the host went away and came back) must not be answered from what
    a mere read shows: it waits for the row, behind the removing, and so comes last.
    """

    def __init__(self) -> None:
        self._ends: dict[Workspace, list[float]] = {}
        self._lock = threading.Lock()

    def holds(self, workspace: Workspace, now: float) -> bool:
        """Whether a mere read cannot be trusted for this workspace."""
        with self._lock:
            return any(until > now for until in self._ends.get(workspace, ()))

    @contextmanager
    def until(self, workspace: Workspace, end: float) -> Iterator[None]:
        """Hold the workspace for the block, but no longer than to `end`."""
        with self._lock:
            self._ends.setdefault(workspace, []).append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends[workspace].remove(end)
                if not self._ends[workspace]:
                    del self._ends[workspace]


class IntentStore(Database):
    """The store as the unprivileged half sees it. `until` is an instant of the clock's `monotonic`.

    `new_id` names new rows.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        connections: int = 8,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        """Raise ConfigurationError for a URL that is neither SQLite nor PostgreSQL."""
        super().__init__(url, clock=clock, connections=connections)
        if not self.is_sqlite:
            plan_once(self.engine)
        self._new_id = new_id
        self._statements = HostStatements(self.clock, self.engine.dialect)
        self._notifier = Notifier(self)
        self._removing_now = UnderWay()

    def ready(
        self,
        workspace: Workspace,
        kind: str,
        reason: Reason,
        params: Mapping[str, Json],
        *,
        until: float,
    ) -> Recorded:
        """Record that the workspace wants its tenancy, withdrawing a release that has not started.

        A duplicate writes nothing, or the contact columns once a minute. Raises StoreError when the
        database is down, busy or too late, and RekeyNeeded where the workspace is known without the
        tenant that is named now; then nothing was recorded.
        """
        asked = {str(storable(name)): storable(value) for name, value in params.items()}
        values = {
            **_named(workspace, kind),
            "its_id": self._new_id(),
            "its_params": asked,
            "its_params_hash": fingerprint_of(asked),
            "its_reason": reason.value,
            "its_event": Event.READY.value,
        }
        says = self._statements
        contested = self._removing_now.holds(workspace, self.clock.monotonic())
        if self.is_sqlite and not contested:
            # A read of its own first: a duplicate must not wait for the write lock.
            found = self.reading(until, lambda at: says.settled.row(at, values))
            if found is not None:
                return Recorded(tenancy_of(found), changed=False)
        statement = says.ready_whatever if contested else says.ready

        def write(at: sa.Connection) -> Row:
            row = self._write(at, statement, values, until)
            if row is None:
                self._refuse_nameless(at, values)
                raise self._too_late()
            return row

        return self._recorded(self.writing(until, write))

    def removing(self, workspace: Workspace, kind: str, *, until: float) -> Recorded | None:
        """Record that the workspace releases its tenancy; None where it has no live one.

        Raises StoreError and RekeyNeeded as `ready` does; no row was changed then.
        """
        values = {**_named(workspace, kind), "its_event": Event.REMOVING.value, "its_reason": None}

        def write(at: sa.Connection) -> tuple[Row | None, bool]:
            row = self._write(at, self._statements.removing, values, until)
            return row, row is None and self._statements.live.row(at, values) is not None

        with self._removing_now.until(workspace, until):
            row, missed = self.writing(until, write)
            if missed:
                # Too late, or the live row was replaced while the statement waited: once more.
                row, missed = self.writing(until, write)
            if missed:
                raise self._too_late()
        if row is None:
            # Whose the nameless row is only the operator knows: it is not released for this.
            self.reading(until, lambda at: self._refuse_nameless(at, values))
            return None
        return self._recorded(row)

    def touch(self, workspace: Workspace, kind: str, *, until: float) -> bool:
        """Note that the workspace is in use; that holds a release, it withdraws none.

        False where it has no live row.
        """
        values = _named(workspace, kind)
        return self.writing(until, lambda at: self._statements.touch.row(at, values)) is not None

    def tenancy(self, workspace: Workspace, kind: str, *, until: float) -> Tenancy | None:
        """Read the workspace's live tenancy, else its last one; None where it never had any."""
        values = _named(workspace, kind)

        def read(at: sa.Connection) -> Row | None:
            return self._statements.live.row(at, values) or self._statements.last.row(at, values)

        row = self.reading(until, read)
        return None if row is None else tenancy_of(row)

    def close(self) -> None:
        """End the wake-up thread and close idle connections."""
        self._notifier.close()
        super().close()

    # -- running ---------------------------------------------------------------------------------

    def _write(
        self, at: sa.Connection, statement: Prepared, values: Values, until: float
    ) -> Row | None:
        bound = {**values, "not_after": self.instant(at, until)}
        try:
            row = statement.row(at, bound)
        except DataError as error:
            if getattr(error.orig, "sqlstate", None) == NOT_IN_TIME:
                raise self._too_late() from error
            raise
        if self.is_sqlite:  # where one statement cannot write two tables
            self._statements.said.row(at, bound)
        return row

    def _refuse_nameless(self, at: sa.Connection, values: Values) -> None:
        """Raise RekeyNeeded where the workspace has a live row that names no tenant."""
        if self._statements.known_nameless.row(at, values) == {"known": True}:
            raise RekeyNeeded(
                "the host names a tenant for a workspace that is known without one:"
                " run `nimble-reconcile rekey`"
            )

    def _recorded(self, row: Row) -> Recorded:
        if row["changed"]:
            self._notifier.wake()
        return Recorded(tenancy_of(row), bool(row["changed"]))

    def _too_late(self) -> StoreUnavailable:
        self.forget_clock()
        return StoreUnavailable(f"{self.location} answered too late; nothing changed, call again")


def _named(workspace: Workspace, kind: str) -> dict[str, object]:
    return {
        "its_tenant_id": workspace.tenant_id,
        "its_workspace_id": workspace.workspace_id,
        "its_kind": kind,
    }

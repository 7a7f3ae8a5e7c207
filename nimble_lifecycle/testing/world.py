"""What there is at a vendor double, and what is to go wrong there.

Tests look at the world, never at the calls: how many resources there are, whose they are, how many
were ever made.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from typing import TypeVar

from nimble_lifecycle.errors import Gone, NameConflict
from nimble_lifecycle.protocol import Json, Tenancy
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Released

T = TypeVar("T")

_LOOK = 0.005
"""Seconds between two looks of a hanging list at whether it may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with one call: it hangs, is applied or not, and raises or not."""

    raises: BaseException | None = None
    """Raised instead of an answer; None: the call ends as it should."""
    applied: bool = False
    """Whether it does its work before it raises."""
    hangs: bool = False
    """Whether it first waits until `World.thaw`."""
    stubborn: bool = False
    """Whether a hanging call goes on waiting when it is cancelled."""

    def end(self, work: Callable[[], T]) -> T:
        """Do the work, or not, and raise, or not."""
        if self.raises is None:
            return work()
        if self.applied:
            work()
        raise self.raises


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something at the vendor; `key` and `owner` are its mark, both None where it is not ours."""

    external_id: str
    key: str | None
    name: str
    workspace_id: str = ""
    params: dict[str, Json] = field(default_factory=dict)
    owner: str | None = None
    created_at: datetime | None = None


class World:
    """What there is at a vendor. Threads and event loops may share one.

    `polls` is how often an operation answers that it is in progress; with 0 a call is done at once.
    With `unique_names` a resource is named after its workspace, and a name can be taken.
    """

    def __init__(
        self, *, polls: int = 0, release_polls: int = 0, unique_names: bool = False
    ) -> None:
        self.resources: dict[str, Resource] = {}
        """Every resource that exists, by its id."""
        self.created = 0
        """How many were ever made."""
        self.deleted = 0
        """How many were ever removed."""
        self.most_at_once = 0
        """The largest number of calls that were ever in progress together."""
        self._polls = polls
        self._release_polls = release_polls
        self._unique_names = unique_names
        self._faults: dict[str, deque[Fault]] = {}
        self._operations: dict[str, int] = {}
        self._numbers = count(1)
        self._at_once = 0
        self._lock = threading.RLock()
        self._thawed = threading.Event()

    def fail(self, method: str, *faults: Fault) -> None:
        """Let the next calls of `method` meet these faults, one each, in this order."""
        with self._lock:
            self._faults.setdefault(method, deque()).extend(faults)

    def thaw(self) -> None:
        """Let hanging calls go on, now and until `freeze`."""
        self._thawed.set()

    def freeze(self) -> None:
        """Let calls hang again that are told to."""
        self._thawed.clear()

    def add(
        self,
        name: str,
        *,
        key: str | None = None,
        owner: str | None = None,
        created_at: datetime | None = None,
    ) -> Resource:
        """Put a resource there that nobody asked us for."""
        with self._lock:
            external_id = f"res-{next(self._numbers)}"
            made = Resource(
                external_id=external_id, key=key, name=name, owner=owner, created_at=created_at
            )
            self.resources[external_id] = made
            return made

    def remove(self, external_id: str) -> None:
        """Take a resource away behind our back."""
        with self._lock:
            del self.resources[external_id]

    def of(self, key: str | None) -> list[Resource]:
        """List the resources that carry this mark."""
        with self._lock:
            return [found for found in self.resources.values() if found.key == key]

    @property
    def in_progress(self) -> int:
        """How many calls are in progress now."""
        return self._at_once

    # -- what adapters call ----------------------------------------------------------------------

    @property
    def thawed(self) -> bool:
        """Whether hanging calls may go on."""
        return self._thawed.is_set()

    @contextmanager
    def call(self, method: str) -> Iterator[Fault]:
        """Count a call while it is in progress and give the fault it meets."""
        with self._lock:
            waiting = self._faults.get(method)
            fault = waiting.popleft() if waiting else Fault()
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield fault
        finally:
            with self._lock:
                self._at_once -= 1

    def provision(self, tenancy: Tenancy, *, repeatable: bool) -> Provisioned | InProgress:
        """Make a resource or change the one there is; the same key twice only if `repeatable`."""
        with self._lock:
            if tenancy.external_id is not None:
                return self._change(tenancy)
            known = self.of(tenancy.idempotency_key) if repeatable else []
            if known:
                return Provisioned(known[0].external_id, {"name": known[0].name})
            if self._unique_names and self._is_taken(tenancy.workspace_id):
                raise NameConflict(f"{tenancy.workspace_id} is taken")
            return self._make(tenancy)

    def poll(self, tenancy: Tenancy) -> Provisioned | InProgress | Released:
        """Say how an operation stands and finish it once it was asked about often enough."""
        operation = tenancy.operation_id or ""
        with self._lock:
            if operation not in self._operations:
                raise Gone(f"no operation {operation}")
            self._operations[operation] -= 1
            if self._operations[operation] > 0:
                return InProgress(operation, poll_after=0.01)
            del self._operations[operation]
            if operation.startswith("release-"):
                return self._delete(tenancy)
            return self._finish(tenancy)

    def find(self, tenancy: Tenancy) -> External | InProgress | None:
        """Look up what carries the tenancy's key."""
        with self._lock:
            operation = f"create-{tenancy.idempotency_key}"
            if operation in self._operations:
                return InProgress(operation, poll_after=0.01)
            for found in self.of(tenancy.idempotency_key):
                return External(found.external_id, key=found.key, details={"name": found.name})
            return None

    def release(self, tenancy: Tenancy) -> Released | InProgress:
        """Remove a resource; raises Gone where there is none."""
        with self._lock:
            if self._release_polls and tenancy.external_id in self.resources:
                return self._start(f"release-{tenancy.external_id}", self._release_polls)
            return self._delete(tenancy)

    def inventory(self) -> list[External]:
        """List everything that carries a mark."""
        with self._lock:
            found = list(self.resources.values())
        return [
            External(each.external_id, key=each.key, owner=each.owner, created_at=each.created_at)
            for each in found
            if each.key is not None or each.owner is not None
        ]

    def listing(self) -> Iterator[External]:
        """Give the inventory one by one; a fault that is applied comes after half of it."""
        with self.call("inventory") as fault:
            while fault.hangs and not self.thawed:
                time.sleep(_LOOK)
            found = self.inventory()
            if fault.raises is not None:
                yield from found[: len(found) // 2 if fault.applied else 0]
                raise fault.raises
            yield from found

    def _change(self, tenancy: Tenancy) -> Provisioned:
        found = self.resources.get(tenancy.external_id or "")
        if found is None:
            raise Gone(f"no resource {tenancy.external_id}")
        self.resources[found.external_id] = replace(found, params=dict(tenancy.params))
        return Provisioned(found.external_id, {"name": found.name})

    def _is_taken(self, name: str) -> bool:
        return any(found.name == name for found in self.resources.values())

    def _make(self, tenancy: Tenancy) -> Provisioned | InProgress:
        if self._polls:
            return self._start(f"create-{tenancy.idempotency_key}", self._polls)
        return self._finish(tenancy)

    def _start(self, operation: str, polls: int) -> InProgress:
        self._operations.setdefault(operation, polls)
        return InProgress(operation, poll_after=0.01)

    def _finish(self, tenancy: Tenancy) -> Provisioned:
        name = tenancy.workspace_id if self._unique_names else tenancy.external_name
        made = replace(
            self.add(name or "", key=tenancy.idempotency_key),
            workspace_id=tenancy.workspace_id,
            params=dict(tenancy.params),
        )
        self.resources[made.external_id] = made
        self.created += 1
        return Provisioned(made.external_id, {"name": made.name})

    def _delete(self, tenancy: Tenancy) -> Released:
        if self.resources.pop(tenancy.external_id or "", None) is None:
            raise Gone(f"no resource {tenancy.external_id}")
        self.deleted += 1
        return Released()

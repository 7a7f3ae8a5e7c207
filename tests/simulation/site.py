"""The vendor: a place where resources are really made and removed, in virtual time.

It lives in the world: what was sent to it happens, whatever became of the caller. Whoever may
object to what happens there (the oracle) is told at the instant it happens.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol
from uuid import UUID

from nimble_lifecycle.errors import (
    CredentialError,
    Gone,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
    UnknownOutcome,
)
from nimble_lifecycle.protocol import Json, Tenancy
from nimble_lifecycle.reconciler.vendor import (
    External,
    InProgress,
    Provisioned,
    Released,
    Vendor,
)
from tests.simulation.loop import Loop, Process
from tests.simulation.threads import this_fiber
from tests.simulation.troubles import Call, Troubles

KIND = "simulated"

FOREVER = 10 * 365 * 86400.0
"""Longer than any world lives, with all its calm: a key is remembered until all is settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a vendor's API can do. Times in seconds."""

    can_find: bool
    repeatable: float | None
    lag: float
    time_limit: float
    plain: bool
    """Whether its adapter's methods are plain functions."""
    create_time: float
    """How long it works on a create; 0: the answer says it is done."""
    release_time: float
    deadline: float | None
    """What its operations are said to take at most."""
    lists: bool
    """Whether it can list all there is."""
    unique_names: bool
    """Whether resources are named after workspaces, and a name can be taken."""

    @property
    def blind(self) -> bool:
        """Whether an unknown create can never be settled without a person."""
        return not self.can_find and self.repeatable is None

    @property
    def bears_untruth(self) -> bool:
        """Whether a create may be said not to be applied that is: it is found, or met again."""
        return self.can_find and self.repeatable == FOREVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something at the vendor; without a key it is not ours."""

    external_id: str
    key: str | None
    workspace_id: str
    name: str
    made_at: datetime
    visible_at: float
    params: dict[str, Json]


@dataclass(slots=True)
class Operation:
    """What the vendor works on."""

    name: str
    key: str
    visible_at: float
    tenancy: Tenancy
    made: Resource | None = None
    done: bool = False


class Witness(Protocol):
    """Told of everything that changes at the vendor, when it happens."""

    def asked(self, owner: str, tenancy: Tenancy, call: "asyncio.Future[Any]") -> None: ...
    def created(self, resource: Resource) -> None: ...
    def about_to_create(self, tenancy: Tenancy) -> None: ...
    def released(self, resource: Resource) -> None: ...


@dataclass
class Site:
    """What there is at the vendor."""

    loop: Loop
    traits: Traits
    troubles: Troubles
    witness: Witness
    resources: dict[str, Resource] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    first_used: dict[str, float] = field(default_factory=dict)
    by_key: dict[str, str] = field(default_factory=dict)
    """The id, or the operation, that a remembered key stands for."""
    refused_for_good: set[str] = field(default_factory=set)
    """Keys of tenancies that met a permanent error."""
    overtaken: set[str] = field(default_factory=set)
    """Keys of creates that landed after all that is assumed of the network."""
    overwritten: set[str] = field(default_factory=set)
    """Ids of resources whose update landed after its caller had given up."""
    denied: set[str] = field(default_factory=set)
    """Keys of creates that were said not to be applied, and were."""
    told: dict[str, tuple[Process, float]] = field(default_factory=dict)
    """Who was last told, and when, what was made under a key."""
    removed_by_hand: set[str] = field(default_factory=set)
    last_asked: dict[UUID, Process] = field(default_factory=dict)
    """Who last asked for something for each tenancy."""
    made: int = 0

    def adapter(self) -> Vendor:
        """Make an adapter, as one process has it."""
        t = self.traits
        methods: dict[str, object] = {
            "lag": timedelta(seconds=t.lag),
            "time_limit": timedelta(seconds=t.time_limit),
            "repeatable": None if t.repeatable is None else timedelta(seconds=t.repeatable),
        }
        if not t.can_find:
            methods["find"] = Vendor.find
        if not t.lists:
            methods["inventory"] = Vendor.inventory
        base = PlainAdapter if t.plain else Adapter
        return type("SimulatedVendor", (base,), methods)(self)

    # -- the network -----------------------------------------------------------------------------

    def request(self, process: Process, method: str, tenancy: Tenancy) -> "asyncio.Future[Any]":
        """Send a request; what the future gives is what an adapter would return or raise."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        plan = self.troubles.of_call(method)
        label = f"{method} {tenancy.workspace_id}#{tenancy.incarnation}"
        self.troubles.note(process.name, f"asks {label}")
        self.loop.later(0.0, self.witness.asked, process.name, tenancy, answer)
        self._let_loose(process, tenancy)
        self.troubles.strike(process)
        if plan.there is not None:
            self.loop.later(plan.there, self._land, process, label, method, tenancy, plan, answer)
        if plan.there is None or plan.back is None:
            # A blocking client gives up by itself, sooner or later than the worker; some never do.
            patience = self.troubles.chance.uniform(0.5, 4.0) * self.traits.time_limit
            if self.troubles.chance.random() < 0.9:
                self.loop.later(patience, _deliver, answer, TimeoutError("no answer"))
        return answer

    def _let_loose(self, process: Process, tenancy: Tenancy) -> None:
        """Let whoever had the row, and stood still since, go on when it does the most harm."""
        before = self.last_asked.get(tenancy.id)
        self.last_asked[tenancy.id] = process
        if before not in (None, process) and before.suspended:
            self.loop.later(self.troubles.chance.expovariate(5.0), before.resume)

    def _land(
        self,
        process: Process,
        label: str,
        method: str,
        tenancy: Tenancy,
        plan: Call,
        answer: "asyncio.Future[Any]",
    ) -> None:
        outcome: object = None
        if method == "provision" and plan.fault == "laggard" and tenancy.external_id is None:
            self.overtaken.add(tenancy.idempotency_key or "")
        if method == "provision" and plan.fault in ("late", "laggard") and tenancy.external_id:
            self.overwritten.add(tenancy.external_id)
        if plan.fault == "untrue" and tenancy.external_id is None:
            self.denied.add(tenancy.idempotency_key or "")
        if plan.applied:
            try:
                outcome = getattr(self, f"_{method}")(tenancy)
            except (Gone, NameConflict) as error:
                outcome = error
        if plan.fault in ("permanent", "untrue"):
            self.refused_for_good.add(tenancy.idempotency_key or "")
        outcome = self._said(plan, outcome)
        self.troubles.note("vendor", f"{label}: {plan.fault}, {_shown(outcome)}")
        if plan.back is not None:
            self.loop.later(plan.back, self._answer, process, tenancy, answer, outcome)

    def _answer(
        self, process: Process, tenancy: Tenancy, answer: "asyncio.Future[Any]", outcome: object
    ) -> None:
        told = isinstance(outcome, (Provisioned, External)) and not answer.done()
        if told and process.alive:
            self.told[tenancy.idempotency_key or ""] = process, self.loop.time()
        _deliver(answer, outcome)

    def _said(self, plan: Call, outcome: object) -> object:
        chance = self.troubles.chance
        match plan.fault:
            case "untrue":
                return chance.choice((TemporaryError("busy"), PermanentError("no")))
            case "temporary":
                return TemporaryError("busy", delay=chance.choice((None, 0.0, 7.0)))
            case "permanent":
                return PermanentError("no")
            case "unavailable":
                return Unavailable("maintenance", after=chance.choice((None, 20.0)))
            case "rate limit":
                return RateLimited("slow down", after=chance.choice((None, 30.0)))
            case "credential":
                return CredentialError("revoked")
            case "error before" | "error after":
                return chance.choice(
                    (UnknownOutcome("502"), TimeoutError("read"), OSError("reset"))
                )
        return outcome

    # -- what requests do ------------------------------------------------------------------------

    def _provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        key = tenancy.idempotency_key or ""
        if tenancy.external_id is not None:
            return self._change(tenancy)
        self.witness.about_to_create(tenancy)
        known = self.by_key.get(key) if self._remembers(key) else None
        if known is not None and known in self.operations:
            return self._progress(self.operations[known])
        if known in self.resources:
            return Provisioned(str(known), {"name": known})
        if self._taken(tenancy):
            raise NameConflict(f"{tenancy.workspace_id} is taken")
        self.first_used.setdefault(key, self.loop.time())
        if self.traits.create_time:
            return self._progress(self._begin(f"create-{self._number()}", tenancy))
        made = self._make(tenancy, visible_at=self._visible())
        self.by_key[key] = made.external_id
        return Provisioned(made.external_id, {"name": made.name})

    def _release(self, tenancy: Tenancy) -> Released | InProgress:
        found = self.resources.get(tenancy.external_id or "")
        if found is None:
            raise Gone(f"no resource {tenancy.external_id}")
        if self.traits.release_time:
            return self._progress(self._begin(f"release-{found.external_id}", tenancy))
        self._remove(found)
        return Released()

    def _find(self, tenancy: Tenancy) -> External | InProgress | None:
        key, now = tenancy.idempotency_key, self.loop.time()
        for operation in self.operations.values():
            creates = operation.name.startswith("create-") and not operation.done
            if creates and operation.key == key and operation.visible_at <= now:
                return self._progress(operation)
        for found in self.resources.values():
            if found.key == key and found.visible_at <= now:
                return External(found.external_id, key=key, details={"name": found.name})
        return None

    def _poll(self, tenancy: Tenancy) -> Provisioned | InProgress | Released:
        operation = self.operations.get(tenancy.operation_id or "")
        if operation is None:
            raise Gone(f"no operation {tenancy.operation_id}")
        if not operation.done:
            return self._progress(operation)
        if operation.made is None:
            return Released()
        return Provisioned(operation.made.external_id, {"name": operation.made.name})

    def _change(self, tenancy: Tenancy) -> Provisioned:
        found = self.resources.get(tenancy.external_id or "")
        if found is None:
            raise Gone(f"no resource {tenancy.external_id}")
        self.resources[found.external_id] = replace(found, params=dict(tenancy.params))
        return Provisioned(found.external_id, {"name": found.name})

    def _begin(self, name: str, tenancy: Tenancy) -> Operation:
        if name in self.operations and not self.operations[name].done:
            return self.operations[name]
        key = tenancy.idempotency_key or ""
        operation = Operation(name, key, self._visible(), tenancy)
        self.operations[name] = operation
        creates = name.startswith("create-")
        if creates:
            self.by_key[key] = name
        takes = self.traits.create_time if creates else self.traits.release_time
        self.loop.later(self.troubles.chance.uniform(0.5, 1.0) * takes, self._finish, operation)
        return operation

    def _finish(self, operation: Operation) -> None:
        operation.done = True
        if operation.name.startswith("create-"):
            operation.made = self._make(operation.tenancy, visible_at=operation.visible_at)
            self.by_key[operation.key] = operation.made.external_id
        else:
            found = self.resources.get(operation.tenancy.external_id or "")
            if found is not None:
                self._remove(found)
        self.troubles.note("vendor", f"finishes {operation.name}")
        if self.troubles.chance.random() < 0.2:
            self.loop.later(5.0, self.operations.pop, operation.name, None)

    def _progress(self, operation: Operation) -> InProgress:
        chance = self.troubles.chance
        return InProgress(operation.name, chance.uniform(0.5, 8.0), self.traits.deadline)

    def _make(self, tenancy: Tenancy, *, visible_at: float) -> Resource:
        made = Resource(
            external_id=f"res-{self._number()}",
            key=tenancy.idempotency_key,
            workspace_id=tenancy.workspace_id,
            name=self._name(tenancy),
            made_at=self.loop.instant,
            visible_at=visible_at,
            params=dict(tenancy.params),
        )
        self.resources[made.external_id] = made
        self.witness.created(made)
        return made

    def _remove(self, found: Resource) -> None:
        self.witness.released(found)
        del self.resources[found.external_id]

    def _remembers(self, key: str) -> bool:
        if self.traits.repeatable is None or key not in self.first_used:
            return False
        return self.loop.time() < self.first_used[key] + self.traits.repeatable

    def _visible(self) -> float:
        """Say when what is made now is shown: at once, or as late as is declared."""
        lag = self.troubles.chance.choice((0.0, 0.9, 1.0)) * self.traits.lag
        return self.loop.time() + lag

    def _name(self, tenancy: Tenancy) -> str:
        name = tenancy.workspace_id if self.traits.unique_names else tenancy.external_name
        return name or ""

    def _taken(self, tenancy: Tenancy) -> bool:
        if not self.traits.unique_names:
            return False
        name = self._name(tenancy)
        busy = (o.tenancy.workspace_id for o in self.operations.values() if not o.done)
        return name in busy or any(found.name == name for found in self.resources.values())

    def _number(self) -> int:
        self.made += 1
        return self.made

    # -- what others do there --------------------------------------------------------------------

    def add_foreign(self, name: str) -> Resource:
        """Put something there that is not ours."""
        made = Resource(
            external_id=f"res-{self._number()}",
            key=None,
            workspace_id="",
            name=name,
            made_at=self.loop.instant,
            visible_at=0.0,
            params={},
        )
        self.resources[made.external_id] = made
        return made

    def free_name(self, name: str, abandoned: Collection[str]) -> None:
        """Give what has a name that we need another one: another's, or what was given up."""
        for found in list(self.resources.values()):
            if found.name == name and (found.key is None or found.key in abandoned):
                self.resources[found.external_id] = replace(found, name=f"{name}-old")

    def works_on(self, key: str) -> bool:
        """Whether an operation for a key is under way."""
        return any(o.key == key and not o.done for o in self.operations.values())

    def made_for(self, key: str) -> Resource | None:
        """Look for what carries a key, as a person would."""
        return next((found for found in self.ours() if found.key == key), None)

    def inventory(self) -> list[External]:
        """List everything there is, ours and others'."""
        return [
            External(
                found.external_id,
                key=found.key,
                owner=None if found.key is None else found.key.partition("-")[0],
                created_at=found.made_at,
            )
            for found in self.resources.values()
        ]

    def remove_one_by_hand(self) -> None:
        """Take something of ours away, as a person at the vendor's console might."""
        there = [found.external_id for found in self.ours()]
        if there:
            name = self.troubles.chance.choice(there)
            self.removed_by_hand.add(name)
            del self.resources[name]
            self.troubles.figures["removed by hand"] += 1
            self.troubles.note("somebody", f"removes {name}")

    def ours(self) -> Iterator[Resource]:
        """List what carries a key."""
        return (found for found in self.resources.values() if found.key is not None)


def _deliver(answer: "asyncio.Future[Any]", outcome: object) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
        answer.exception()  # retrieved: its caller may be gone
    else:
        answer.set_result(outcome)


def _shown(outcome: object) -> str:
    match outcome:
        case Provisioned() | External():
            return f"{type(outcome).__name__} {outcome.external_id}"
        case InProgress():
            return f"InProgress {outcome.operation_id}"
    return type(outcome).__name__


class Adapter(Vendor):
    """The adapter with async methods."""

    kind: ClassVar[str] = KIND

    def __init__(self, site: Site) -> None:
        self._site = site
        self.process: Process

    async def provision(self, tenancy: Tenancy) -> Any:
        return await self._site.request(self.process, "provision", tenancy)

    async def release(self, tenancy: Tenancy) -> Any:
        return await self._site.request(self.process, "release", tenancy)

    async def poll(self, tenancy: Tenancy) -> Any:
        return await self._site.request(self.process, "poll", tenancy)

    async def find(self, tenancy: Tenancy) -> Any:
        return await self._site.request(self.process, "find", tenancy)

    async def inventory(self) -> AsyncIterator[External]:
        for found in self._site.inventory():
            yield found


class PlainAdapter(Vendor):
    """The adapter with plain methods, which block a thread."""

    kind: ClassVar[str] = KIND

    def __init__(self, site: Site) -> None:
        self._site = site
        self.process: Process

    def provision(self, tenancy: Tenancy) -> Any:
        return self._wait("provision", tenancy)

    def release(self, tenancy: Tenancy) -> Any:
        return self._wait("release", tenancy)

    def poll(self, tenancy: Tenancy) -> Any:
        return self._wait("poll", tenancy)

    def find(self, tenancy: Tenancy) -> Any:
        return self._wait("find", tenancy)

    def inventory(self) -> Iterator[External]:
        yield from self._site.inventory()

    def _wait(self, method: str, tenancy: Tenancy) -> Any:
        fiber = this_fiber()
        assert fiber is not None
        return fiber.wait(self._site.request(self.process, method, tenancy))

"""The bench an adapter is tried on: calls it as the worker does, and keeps book of what it made."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, TypeVar
from uuid import uuid4

from nimble_lifecycle.errors import (
    CredentialError,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
)
from nimble_lifecycle.protocol import Json, Phase, Tenancy
from nimble_lifecycle.reconciler.calls import Ended, Method, OverrunError, ended, entered
from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.reconciler.settled import pause_of
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Vendor
from nimble_lifecycle.store import Threads
from nimble_lifecycle.store.ports import Clock, DatabaseClock
from nimble_lifecycle.testing.conformance.interrupts import Cut, Interrupted, Watch
from nimble_lifecycle.testing.sandbox import Sandbox

T = TypeVar("T")

SHORTEST_WAIT: Final = 0.02
"""Seconds between two looks at something that is awaited."""


AT_ONCE: Final = 4
"""Rows that are led through the adapter at the same time, where there are many."""

TEMPORARY: Final = 30.0
"""Seconds for which a temporary error, or a vendor that is away, is taken at its word."""

LONG_ENOUGH: Final = 12
"""Characters that must be drawn anew, so that an id is surely nobody's."""

_MIDDLE: Final = "ghijklmnopqrstuvwxyz"
"""Letters that are no hexadecimal digits."""

_WITH_ID: Final = (Provisioned, InProgress, External)

_CERTAIN: Final = (TemporaryError, PermanentError, CredentialError, RateLimited, Unavailable)
"""Errors that say that nothing was applied."""


class Finding(Exception):
    """What the adapter got wrong, in a sentence that says what to do."""


class NotChecked(Exception):
    """Why a check could not be made."""


class Warned(Exception):
    """What is allowed, and worth knowing."""


@dataclass(slots=True)
class Life:
    """One row that was given to the adapter, and what came of it."""

    tenancy: Tenancy
    made: set[str] = field(default_factory=set)
    """Ids that creates were answered with."""
    known: set[str] = field(default_factory=set)
    """Those, and ids that were found: what a worker would know of."""
    seen: set[str] = field(default_factory=set)
    """Those, and ids from calls that were interrupted or too late."""
    creates: int = 0
    """Calls of provision under its key that may have made something."""
    operation: str | None = None
    """The operation that was last said to be under way."""
    stuck: bool = False
    """Whether that was waited for in vain."""


@dataclass(slots=True)
class Observed:
    """What was seen of all calls, whatever they were made for."""

    overrun: set[str] = field(default_factory=set)
    """Methods that were not over within the limit."""
    interrupted: set[str] = field(default_factory=set)
    """Methods that were ever interrupted."""
    swallowed: dict[str, str] = field(default_factory=dict)
    """How methods ended that were interrupted and went on all the same."""
    unusable: dict[str, str] = field(default_factory=dict)
    """What was wrong with ids that methods gave."""
    denied: list[str] = field(default_factory=list)
    """How creates ended that said that nothing was made, where something was."""
    holds: dict[str, list[float]] = field(default_factory=dict)
    """For each method and call, the longest time the event loop stood still, in seconds."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run: the adapter, the other view of its vendor, and what was made there."""

    vendor: Vendor
    sandbox: Sandbox
    threads: Threads
    params: Mapping[str, Json]
    changed_params: Mapping[str, Json]
    timeout: float
    """Seconds to wait for one resource to be made or removed, or one listing to end."""
    crowd: int
    """Resources that are there at once when listings are looked at."""
    make: Callable[[], Vendor] | None = None
    """Makes another object of the adapter, where its class is known."""
    heir: Vendor | None = None
    """The adapter object of the next worker, inside `succession`."""
    owner: str = field(default_factory=lambda: random_word(10))
    """The owner id of the deployment we play."""
    clock: Clock = field(default_factory=DatabaseClock)
    lives: dict[str, Life] = field(default_factory=dict)
    """By idempotency key."""
    released: set[str] = field(default_factory=set)
    """Ids whose release was answered with success."""
    foreign: set[str] = field(default_factory=set)
    """Ids of what the sandbox made without our mark."""
    before: dict[str, External] = field(default_factory=dict)
    """What was there before the run, by id."""
    reported: set[str] = field(default_factory=set)
    """Ids of strays that were told of."""
    passed: set[str] = field(default_factory=set)
    """Checks that ended well."""
    failed: set[str] = field(default_factory=set)
    """Checks that found something."""
    observed: Observed = field(default_factory=Observed)
    begun: tuple[Tenancy, InProgress] | None = None
    """The row of the first create and how that was answered, where it took its time."""
    ready: Tenancy | None = None
    """The row of the first create, once it is ready; most checks look at it."""
    _late: list["asyncio.Future[Ended]"] = field(default_factory=list)

    @property
    def lag(self) -> float:
        """Seconds in which a look-up may miss a resource."""
        return self.vendor.lag.total_seconds()

    @property
    def can_find(self) -> bool:
        """Whether the adapter can look up."""
        return self.vendor.implements("find")

    @property
    def looks_up(self) -> bool:
        """Whether it can, and what it finds can be believed."""
        return self.can_find and not self.failed & {"find", "find-absent", "find-whole-key"}

    @property
    def repeats(self) -> bool:
        """Whether the adapter says that a key may be repeated."""
        return self.vendor.repeatable is not None

    @property
    def lists(self) -> bool:
        """Whether what the adapter lists can be believed."""
        return "inventory" in self.passed and "inventory-released" not in self.failed

    def row(self, *, key: str | None = None, workspace: str | None = None) -> Tenancy:
        """Give a row that a worker has just claimed for a create."""
        mark = key or f"{self.owner}-{random_word(26)}"
        return Tenancy(
            id=uuid4(),
            tenant_id="",
            workspace_id=workspace or f"ws_check_{random_word(8)}",
            kind=self.vendor.kind,
            incarnation=1,
            phase=Phase.PROVISIONING,
            params=self.params,
            idempotency_key=mark,
            external_name=mark,
            first_seen_at=datetime.now(UTC),
        )

    def subject(self) -> Tenancy:
        """Give the ready row that checks look at; NotChecked where there is none."""
        if self.ready is None:
            raise NotChecked("nothing could be created")
        return self.ready

    def life(self, tenancy: Tenancy) -> Life:
        """Give what is known of a row; of one without a key nothing is."""
        key = tenancy.idempotency_key
        return Life(tenancy) if key is None else self.lives.setdefault(key, Life(tenancy))

    # -- workers ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def succession(self) -> AsyncIterator[None]:
        """Have a next worker, with an adapter object of its own, that takes over in the block.

        It does so where a call is interrupted, as by a crash, and leaves at the end of the block.
        """
        if self.make is None:
            yield
            return
        first, self.heir = self.vendor, self.make()
        try:
            async with entered(self.heir):
                yield
        finally:
            self.vendor, self.heir = first, None

    def take_over(self) -> None:
        """Let the next worker go on from here, where there is one."""
        self.vendor = self.heir or self.vendor

    # -- calls -----------------------------------------------------------------------------------

    async def call(
        self, name: str, tenancy: Tenancy, *, cut: Cut | None = None, by: Vendor | None = None
    ) -> Ended:
        """Call a method once, as the worker does; `Interrupted` where the cut fell into it."""
        watch, life = Watch(cut or Cut()), self.life(tenancy)
        if name == "provision":
            life.creates += 1
        method: Method = getattr(by or self.vendor, name)
        outcome = await ended(
            watch.over(method),
            tenancy,
            limit=self.vendor.time_limit.total_seconds(),
            clock=self.clock,
            hop=self.threads,
        )
        if isinstance(outcome, OverrunError) and by is None:
            self.observed.overrun.add(name)
        self._observe(name, watch, outcome, life)
        if watch.interrupted:
            self.take_over()
            return Interrupted(f"{name} was interrupted")
        if isinstance(outcome, Provisioned):
            life.made.add(outcome.external_id)
        if isinstance(outcome, (Provisioned, External)):
            life.known.add(outcome.external_id)
        life.operation = outcome.operation_id if isinstance(outcome, InProgress) else None
        return outcome

    def _observe(self, name: str, watch: Watch, outcome: Ended, life: Life) -> None:
        seen = self.observed
        if isinstance(outcome, OverrunError):
            outcome.late.add_done_callback(lambda task: _note_late(task, life))
            self._late.append(outcome.late)
        if isinstance(outcome, TypeError) and isinstance(watch.returned, _WITH_ID):
            seen.unusable[name] = str(outcome)
        if watch.longest_hold is not None:
            seen.holds.setdefault(name, []).append(watch.longest_hold)
        if watch.interrupted:
            seen.interrupted.add(name)
        if watch.swallowed:
            seen.swallowed[name] = said(outcome)
        _note(outcome, life)

    async def asked(self, name: str, tenancy: Tenancy, *, cut: Cut | None = None) -> Ended:
        """Call again for as long as the vendor asks for patience; NotChecked past the limit."""
        begun = self.clock.monotonic()
        while True:
            outcome = await self.call(name, tenancy, cut=cut)
            if name == "provision":
                await self._must_be_true(tenancy, outcome)
            if isinstance(outcome, OverrunError):
                raise NotChecked(f"{name} was not over within its limit: see time-limit")
            if name in self.observed.unusable:
                raise NotChecked(f"{name} gave an id that cannot be kept: see ids")
            wait = _patience(outcome)
            longest = self.timeout if isinstance(outcome, RateLimited) else TEMPORARY
            spent = self.clock.monotonic() - begun
            if wait is None or spent + wait > min(longest, self.timeout):
                return outcome
            await self.clock.sleep(wait)

    async def _must_be_true(self, tenancy: Tenancy, outcome: Ended) -> None:
        """Note where a first create is said to have made nothing, and has."""
        life = self.life(tenancy)
        if not isinstance(outcome, _CERTAIN) or life.creates != 1:
            return
        made = await self.was_made(tenancy)
        if life.creates != 1:  # another began meanwhile, and may have made it
            return
        if made:
            self.observed.denied.append(said(outcome))
        else:
            life.creates = 0

    async def late_calls(self) -> None:
        """Let calls that were left behind come to their end, so that what they made is known."""
        if self._late:
            await asyncio.wait(self._late, timeout=3 * self.vendor.time_limit.total_seconds())

    async def within_lag(self, look: Callable[[], Awaitable[T | None]]) -> T | None:
        """Look until there is something to see, or the lag is over."""
        end = self.clock.monotonic() + self.lag
        while (seen := await look()) is None and self.clock.monotonic() < end:
            await self.clock.sleep(max(SHORTEST_WAIT, self.lag / 20))
        return seen

    # -- the world -------------------------------------------------------------------------------

    async def inventory(self, by: Vendor | None = None) -> list[External]:
        """List by the adapter, and raise what it raises; Finding for a list that does not end."""
        listing, watch = (by or self.vendor).inventory(), Watch()
        try:
            async with asyncio.timeout(self.timeout):
                return await watch.rest(self._drained(listing))
        except TimeoutError:
            raise Finding(f"inventory was not at its end after {self.timeout:g} s") from None
        finally:
            if watch.longest_hold is not None and isinstance(listing, AsyncIterator):
                self.observed.holds.setdefault("inventory", []).append(watch.longest_hold)

    async def _drained(self, listing: object) -> list[External]:
        found: list[External] = []
        if isinstance(listing, AsyncIterator):
            async for each in listing:
                _add(found, each)
        elif isinstance(listing, Iterable):
            await self.threads.run(lambda: _drain(listing, found))
        else:
            if isinstance(listing, Coroutine):
                listing.close()
            raise Finding("inventory gives no iterator: write it as a generator, with yield")
        return found

    async def listing(self) -> list[External] | None:
        """List the vendor's resources by what can be believed; None: nothing can."""
        if self.sees:
            return list(await self.sandbox.resources())
        return await self.inventory() if self.lists else None

    async def was_made(self, tenancy: Tenancy) -> bool:
        """Whether anything carries the row's key, finished or not, as far as can be seen."""
        if self.looks_up and isinstance(await self.call("find", tenancy), (External, InProgress)):
            return True
        with suppress(Exception):  # an adapter may raise anything
            return any(each.key == tenancy.idempotency_key for each in await self.listing() or [])
        return False

    async def exists(self, tenancy: Tenancy) -> bool | None:
        """Whether `tenancy.external_id` is there; None: nobody can tell."""
        if not self.sees and self.looks_up:
            found = await self.asked("find", tenancy)
            if isinstance(found, External):
                return found.external_id == tenancy.external_id
            return isinstance(found, InProgress)
        listing = await self.listing()
        if listing is None:
            return None
        return any(each.external_id == tenancy.external_id for each in listing)

    async def is_gone(self, tenancy: Tenancy) -> bool | None:
        """Whether `tenancy.external_id` is gone, within the lag; None: nobody can tell."""
        end = self.clock.monotonic() + self.lag
        while (exists := await self.exists(tenancy)) and self.clock.monotonic() < end:
            await self.clock.sleep(max(SHORTEST_WAIT, self.lag / 20))
        return None if exists is None else not exists

    async def strays(self) -> list[External]:
        """List what this run made and no row knows of; each is given once."""
        known = {name for life in self.lives.values() for name in life.known}
        known |= self.foreign | self.before.keys() | self.reported
        listing = await self.listing() or []
        found = [each for each in listing if each.external_id not in known and self.is_ours(each)]
        self.reported |= {each.external_id for each in found}
        return found

    @property
    def sees(self) -> bool:
        """Whether the sandbox lists what there is, by the ids that the adapter gives."""
        return self.sandbox.implements("resources") and "made" not in self.failed

    def is_ours(self, shown: External) -> bool:
        """Whether this run made it, by its mark; where it has none, by its being new."""
        if shown.key is None and shown.owner is None:
            new = shown.external_id not in self.before.keys() | self.foreign
            return new and self.sees
        return shown.key in self.lives or self.owner in (shown.owner, _owner_of(shown.key))


async def at_once(work: Iterable[Callable[[], Coroutine[None, None, None]]]) -> None:
    """Do pieces of work, some at a time, all to their end; then raise the first error of any."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(piece: Callable[[], Coroutine[None, None, None]]) -> None:
        async with slots:
            await piece()

    ended = await asyncio.gather(*map(one, work), return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error


def said(outcome: Ended) -> str:
    """Say how a call ended, as the rest of a sentence."""
    if isinstance(outcome, OverrunError):
        return "was not over within its limit"
    if isinstance(outcome, Exception):
        return f"raised {described(outcome)}"
    return f"returned {'None' if outcome is None else type(outcome).__name__}"


def readied(tenancy: Tenancy, made: Provisioned | External) -> Tenancy:
    """Give a row as it is once its resource is there."""
    return replace(
        tenancy,
        phase=Phase.READY,
        operation_id=None,
        external_id=made.external_id,
        details=made.details,
    )


def random_word(length: int) -> str:
    """Give a word as owner ids and keys are made of."""
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(length))


def lookalike(name: str) -> str | None:
    """Give an id of the same shape that nothing has; None where it would be too short for that."""
    kept, separator, rest = name.rpartition(max("-_/.:", key=name.rfind))
    made = "".join(map(_other, rest))
    drawn = sum(character.isascii() and character.isalnum() for character in rest)
    return f"{kept}{separator}{made}" if drawn >= LONG_ENOUGH else None


def _other(character: str) -> str:
    for alphabet in ("0123456789", "abcdef", "ABCDEF", _MIDDLE, _MIDDLE.upper()):
        if character in alphabet:
            return secrets.choice(alphabet)
    return character


def _owner_of(key: str | None) -> str | None:
    return key.partition("-")[0] if key else None


def _note(outcome: Ended, life: Life) -> None:
    if isinstance(outcome, (Provisioned, External)):
        life.seen.add(outcome.external_id)


def _note_late(task: "asyncio.Future[Ended]", life: Life) -> None:
    if not task.cancelled() and task.exception() is None:
        _note(task.result(), life)


def _patience(outcome: Ended) -> float | None:
    """Give the seconds to wait before the same call makes sense again; None: it does not."""
    if not isinstance(outcome, (TemporaryError, RateLimited, Unavailable)):
        return None
    paused = pause_of(outcome)
    if paused is not None:
        return max(SHORTEST_WAIT, paused[0])
    delay: object = getattr(outcome, "delay", None)
    return max(SHORTEST_WAIT, delay) if isinstance(delay, (int, float)) else 0.5


def id_of(shown: object) -> object:
    """Give the id of what a listing yields, whatever that is."""
    return getattr(shown, "external_id", None)


def _drain(listing: Iterable[External], found: list[External]) -> None:
    for each in listing:
        _add(found, each)


def _add(found: list[External], each: External) -> None:
    """Collect; raise Finding for a listing that shows the same again and again."""
    found.append(each)
    if len(found) % 1000 == 0 and len(found) > 10 * len({id_of(each) for each in found}):
        raise Finding("inventory repeats itself and does not end: stop after the last page")

"""A vendor in memory that answers like an HTTP service, the other view of it, and a sound adapter.

The broken adapters are this sound one with one thing changed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import TypeVar
from uuid import uuid4

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
from nimble_lifecycle.reconciler import External, InProgress, Provisioned, Released, Vendor
from nimble_lifecycle.testing import Sandbox, Trouble
from nimble_lifecycle.testing.sandbox import RETRY_AFTER

T = TypeVar("T")


class Answer(Exception):
    """A refusal, as an HTTP status."""

    def __init__(self, status: int, after: float | None = None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.after = after


@dataclass
class Thing:
    """Something at the vendor. It is of use once it is active."""

    id: str
    name: str
    mark: str | None
    active: bool = False
    size: Json = None

    @property
    def owner(self) -> str | None:
        return self.mark.partition("-")[0] if self.mark else None


class Depot:
    """The vendor: names are unique, a key is remembered for good."""

    def __init__(self) -> None:
        self.things: dict[str, Thing] = {}
        self.made = 0
        self.operations: set[str] = set()
        self.trouble: Trouble | None = None
        self.after = 0
        self._keys: dict[str, str] = {}
        self._names: set[str] = set()

    async def ask(self, action: Callable[[], T]) -> T:
        """Send a request: it waits once on its way out and once on its way back."""
        await asyncio.sleep(0)
        before, behind = self._met()
        if before is not None:
            raise before
        result = action()
        await asyncio.sleep(0)
        if behind is not None:
            raise behind
        return result

    def _met(self) -> tuple[Exception | None, Exception | None]:
        """Give what happens to a request before it is applied, and to its answer."""
        self.after -= 1
        single = {
            Trouble.ANSWER_LOST: ConnectionResetError(),
            Trouble.ANSWER_LATE: TimeoutError(),
            Trouble.ERROR_AFTER: Answer(502),
        }
        if self.trouble in single:
            return None, single[self.trouble] if self.after == -1 else None
        every = {
            Trouble.REFUSED: Answer(401),
            Trouble.FORBIDDEN: Answer(403),
            Trouble.LIMITED: Answer(429, RETRY_AFTER),
            Trouble.FAILING: Answer(500),
            Trouble.SILENT: TimeoutError(),
            Trouble.UNREACHABLE: ConnectionRefusedError(),
        }
        return every.get(self.trouble) if self.trouble and self.after < 0 else None, None

    def create(self, name: str, mark: str | None, key: str | None = None) -> Thing:
        if key in self._keys:
            if self._keys[key] not in self.things:
                raise Answer(410)
            return self.things[self._keys[key]]
        if any(thing.name == name for thing in self.things.values()):
            raise Answer(409)
        thing = Thing(uuid4().hex, name, mark)
        self.things[thing.id] = thing
        self.made += 1
        if key is not None:
            self._keys[key] = thing.id
        return thing

    def get(self, name: str | None) -> Thing:
        if name not in self.things:
            raise Answer(404)
        return self.things[name]

    def activate(self, thing: Thing, size: Json) -> Thing:
        self.get(thing.id)
        thing.active, thing.size = True, size
        return thing

    def delete(self, name: str | None) -> None:
        del self.things[self.get(name).id]

    def page(self, number: int, size: int = 2) -> list[Thing]:
        return list(self.things.values())[number * size : (number + 1) * size]


class DepotSandbox(Sandbox):
    """The other view of a depot."""

    def __init__(self, depot: Depot) -> None:
        self.depot = depot

    async def resources(self) -> list[External]:
        return [
            External(thing.id, key=thing.mark, details={"name": thing.name, "size": thing.size})
            for thing in self.depot.things.values()
        ]

    async def usable(self, made: Provisioned) -> bool:
        return self.depot.get(made.external_id).active

    async def occupy(self, tenancy: Tenancy) -> str:
        return self.depot.create(str(tenancy.external_name), None).id

    async def remove(self, external_id: str) -> None:
        self.depot.things.pop(external_id, None)

    @asynccontextmanager
    async def under(
        self, vendor: Vendor, trouble: Trouble, after: int = 0
    ) -> AsyncIterator[Vendor]:
        self.depot.trouble, self.depot.after = trouble, after
        yield vendor
        self.depot.trouble = None


@contextmanager
def plain_words(change: type[Exception] = UnknownOutcome) -> Iterator[None]:
    """Say what a depot's answer means; `change` is what is said where nobody knows."""
    try:
        yield
    except ConnectionRefusedError as error:
        raise Unavailable("refused") from error
    except (OSError, TimeoutError) as error:
        raise change("no answer") from error
    except Answer as answer:
        words = str(answer)
        match answer.status:
            case 401 | 403:
                raise CredentialError(words) from answer
            case 404:
                raise Gone(words) from answer
            case 409:
                raise NameConflict(words) from answer
            case 429:
                raise RateLimited(words, after=answer.after) from answer
            case 410:
                raise PermanentError(words) from answer
        raise change(words) from answer


class Sound(Vendor):
    """What a careful author writes: makes a thing and activates it, resumable in between."""

    kind = "depot"
    repeatable = timedelta(hours=24)
    lag = timedelta(0)

    def __init__(self, depot: Depot | None = None) -> None:
        self.depot = depot or Depot()

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        with plain_words():
            if tenancy.external_id is not None:
                thing = await self.depot.ask(lambda: self.depot.get(tenancy.external_id))
            else:
                thing = await self.made(tenancy)
            await self.depot.ask(lambda: self.depot.activate(thing, tenancy.params.get("size")))
        return Provisioned(thing.id, self.details(thing))

    async def made(self, tenancy: Tenancy) -> Thing:
        key = tenancy.idempotency_key
        return await self.depot.ask(lambda: self.depot.create(str(tenancy.external_name), key, key))

    def details(self, thing: Thing) -> dict[str, Json]:
        return {"name": thing.name, "secret_ref": f"vault/{thing.id}"}

    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        with plain_words(TemporaryError):
            async for thing in self.everything():
                if self.is_it(thing, tenancy) and thing.active:
                    return self.shown(thing)
        return None

    def is_it(self, thing: Thing, tenancy: Tenancy) -> bool:
        return thing.mark == tenancy.idempotency_key

    def shown(self, thing: Thing) -> External:
        return External(
            thing.id,
            key=thing.mark,
            owner=thing.owner,
            created_at=datetime.now(UTC),
            details=self.details(thing),
        )

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        with plain_words():
            await self.depot.ask(lambda: self.depot.delete(tenancy.external_id))
        return Released()

    async def inventory(self) -> AsyncIterator[External]:
        with plain_words(TemporaryError):
            async for thing in self.everything():
                yield self.shown(thing)

    async def everything(self) -> AsyncIterator[Thing]:
        for number in count():
            page = await self.depot.ask(partial(self.depot.page, number))
            if not page:
                return
            for thing in page:
                yield thing

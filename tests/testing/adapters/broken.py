"""Adapters with one mistake each, and the checks that must find it: those and no others."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import uuid4

from depot import Answer, Depot, Sound, Thing, plain_words

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

# -- creating --------------------------------------------------------------------------------------


class NotIdempotent(Sound):
    async def made(self, tenancy: Tenancy) -> Thing:
        name = f"{tenancy.external_name}-{uuid4().hex}"
        return await self.depot.ask(lambda: self.depot.create(name, tenancy.idempotency_key))


class LooksFirstThenCreates(Sound):
    async def made(self, tenancy: Tenancy) -> Thing:
        async for thing in self.everything():
            if self.is_it(thing, tenancy):
                return thing
        return await NotIdempotent.made(self, tenancy)


class AdoptsByName(Sound):
    async def made(self, tenancy: Tenancy) -> Thing:
        try:
            return await super().made(tenancy)
        except Answer as answer:
            if answer.status != 409:
                raise
        async for thing in self.everything():
            if thing.name == tenancy.external_name:
                return thing
        raise NameConflict


class ChangesWhatHasTheName(AdoptsByName):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        made = await super().provision(tenancy)
        if self.depot.things[made.external_id].mark != tenancy.idempotency_key:
            raise NameConflict
        return made


class FailsWhereTheNameIsTaken(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        try:
            return await super().provision(tenancy)
        except NameConflict:
            raise PermanentError("it exists") from None


class NamesByWorkspace(Sound):
    async def made(self, tenancy: Tenancy) -> Thing:
        async for thing in self.everything():
            if thing.name == tenancy.workspace_id:
                return thing
        key = tenancy.idempotency_key
        return await self.depot.ask(lambda: self.depot.create(tenancy.workspace_id, key, key))


class ReadyTooEarly(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        if tenancy.external_id is not None:
            return await super().provision(tenancy)
        with plain_words():
            thing = await self.made(tenancy)
        return Provisioned(thing.id, self.details(thing))

    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        with plain_words(TemporaryError):
            async for thing in self.everything():
                if self.is_it(thing, tenancy):
                    return self.shown(thing)
        return None


class UpdateMakesAnother(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        if tenancy.external_id is not None:
            another = f"{tenancy.external_name}-{uuid4().hex}"
            with plain_words():
                thing = await self.depot.ask(
                    lambda: self.depot.create(another, tenancy.idempotency_key)
                )
            return Provisioned(thing.id, self.details(thing))
        return await super().provision(tenancy)


class SaysReadyOfWhatIsGone(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        try:
            return await super().provision(tenancy)
        except Gone:
            return Provisioned(str(tenancy.external_id))


class HalfMadeIsLost(Sound):
    """The mark is set by a second request: what dies between the two is nobody's."""

    repeatable = None

    async def made(self, tenancy: Tenancy) -> Thing:
        name = f"{tenancy.external_name}-{uuid4().hex}"
        thing = await self.depot.ask(lambda: self.depot.create(name, None))

        def mark() -> None:
            thing.mark = tenancy.idempotency_key

        await self.depot.ask(mark)
        return thing


class ForgetsTheSecondStep(Sound):
    """Takes what it finds for finished, though its second step may be missing."""

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        with plain_words():
            async for thing in self.everything():
                if self.is_it(thing, tenancy) and not thing.active:
                    return Provisioned(thing.id, self.details(thing))
        return await super().provision(tenancy)


class DrawsItsKeysInTheObject(Sound):
    """Idempotent for as long as the object lives."""

    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.drawn: dict[str | None, str] = {}

    async def made(self, tenancy: Tenancy) -> Thing:
        key = tenancy.idempotency_key
        drawn = self.drawn.setdefault(key, uuid4().hex)
        return await self.depot.ask(lambda: self.depot.create(drawn, key, drawn))


class MarksInTheObject(Sound):
    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.marks: dict[str, str | None] = {}

    async def made(self, tenancy: Tenancy) -> Thing:
        thing = await super().made(tenancy)
        self.marks[thing.id] = tenancy.idempotency_key
        return thing

    def is_it(self, thing: Thing, tenancy: Tenancy) -> bool:
        return self.marks.get(thing.id) == tenancy.idempotency_key


class RemembersTheSecondStepInTheObject(Sound):
    """Does its second step again only where it knows that it began."""

    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.begun: set[str | None] = set()

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        if tenancy.idempotency_key not in self.begun:
            with plain_words():
                async for thing in self.everything():
                    if self.is_it(thing, tenancy):
                        return Provisioned(thing.id, self.details(thing))
        self.begun.add(tenancy.idempotency_key)
        return await super().provision(tenancy)


class Refuses(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        raise KeyError("region")


class ReturnsTheAnswer(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        return {"id": "x"}


# -- ids, details, declarations --------------------------------------------------------------------


class EmptyId(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        return replace(await super().provision(tenancy), external_id=" ")


class NumberAsId(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        return replace(await super().provision(tenancy), external_id=17)


class IdNotStable(Sound):
    """One thing under several ids, as where an id has a version in it."""

    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.versions = count()

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        plain = replace(tenancy, external_id=tenancy.external_id and tenancy.external_id[:32])
        made = await super().provision(plain)
        return replace(made, external_id=f"{made.external_id}@{next(self.versions)}")

    def shown(self, thing: Thing) -> External:
        return replace(super().shown(thing), external_id=f"{thing.id}@{next(self.versions)}")

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        return await super().release(replace(tenancy, external_id=str(tenancy.external_id)[:32]))


class DetailsTooLarge(Sound):
    def details(self, thing: Thing) -> dict[str, Json]:
        return {"log": "x" * 9000}


class DetailsAreNoJson(Sound):
    def details(self, thing: Thing) -> dict[str, Json]:
        return {"made": datetime.now(UTC)}


class SecretInDetails(Sound):
    def details(self, thing: Thing) -> dict[str, Json]:
        return {"connection": {"api_key": f"k-{thing.id}"}}


class PasswordInDetails(Sound):
    def details(self, thing: Thing) -> dict[str, Json]:
        return {"url": f"postgresql://app:{thing.id}@db.example/app"}


class RemembersTooShortly(Sound):
    repeatable = timedelta(seconds=20)


# -- taking its time -------------------------------------------------------------------------------


class Slow(Sound):
    """Sound too: a vendor that needs an operation for each create and release."""

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        if tenancy.external_id is not None:
            return await super().provision(tenancy)
        with plain_words():
            thing = await self.made(tenancy)
        return self.operation(f"create-{thing.id}")

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        with plain_words():
            thing = await self.depot.ask(lambda: self.depot.get(tenancy.external_id))
        return self.operation(f"delete-{thing.id}")

    def operation(self, name: str) -> InProgress:
        self.depot.operations.add(name)
        return InProgress(name, poll_after=0.0, deadline=60.0)

    async def poll(self, tenancy: Tenancy) -> Provisioned | Released | InProgress:
        verb, _, name = str(tenancy.operation_id).partition("-")
        if tenancy.operation_id not in self.depot.operations:
            raise Gone
        with plain_words():
            if verb == "delete":
                await self.depot.ask(lambda: self.depot.delete(name))
                return Released()
            thing = await self.depot.ask(lambda: self.depot.get(name))
            await self.depot.ask(lambda: self.depot.activate(thing, tenancy.params.get("size")))
        return Provisioned(thing.id, self.details(thing))

    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        with plain_words(TemporaryError):
            async for thing in self.everything():
                if self.is_it(thing, tenancy):
                    return (
                        self.shown(thing) if thing.active else self.operation(f"create-{thing.id}")
                    )
        return None


class LooksUpOnly(Slow):
    """Sound as well: the vendor knows no keys, and whatever may have been made is looked for."""

    repeatable = None

    async def made(self, tenancy: Tenancy) -> Thing:
        return await NotIdempotent.made(self, tenancy)


class SaysInProgressAndCannotPoll(Slow):
    poll = Vendor.poll


class NeverDone(Slow):
    def operation(self, name: str) -> InProgress:
        return InProgress(name, poll_after=0.01, deadline=0.1)

    async def poll(self, tenancy: Tenancy) -> Provisioned | Released | InProgress:
        return self.operation(str(tenancy.operation_id))


class NegativeWait(Slow):
    def operation(self, name: str) -> InProgress:
        return replace(super().operation(name), poll_after=-1)


class ForgottenIsDone(Slow):
    async def poll(self, tenancy: Tenancy) -> Provisioned | Released | InProgress:
        try:
            return await super().poll(tenancy)
        except Gone:
            return Released()


class StillBeingMade(Slow):
    """Says Provisioned while its own find says that it is not over."""

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        with plain_words():
            if tenancy.external_id is not None:
                await self.depot.ask(lambda: self.depot.get(tenancy.external_id))
                return Provisioned(tenancy.external_id)
            thing = await self.made(tenancy)
        return Provisioned(thing.id, self.details(thing))


# -- looking ---------------------------------------------------------------------------------------


class FindRaisesWhereNothingIs(Sound):
    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        found = await super().find(tenancy)
        if found is None:
            raise LookupError("no such thing")
        return found


class FindsByPrefix(Sound):
    def is_it(self, thing: Thing, tenancy: Tenancy) -> bool:
        return (thing.mark or "").startswith(str(tenancy.idempotency_key)[:20])


class FindsByDeployment(Sound):
    def is_it(self, thing: Thing, tenancy: Tenancy) -> bool:
        return thing.owner == str(tenancy.idempotency_key).partition("-")[0]


class FindsByName(Sound):
    """Right about what it made itself; what else has the name is not."""

    def is_it(self, thing: Thing, tenancy: Tenancy) -> bool:
        return thing.name == tenancy.external_name

    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        with plain_words(TemporaryError):
            async for thing in self.everything():
                if self.is_it(thing, tenancy) and (thing.active or thing.mark is None):
                    return self.shown(thing)
        return None


class FindsNothing(Sound):
    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        return None


class FindGivesTheName(Sound):
    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        found = await super().find(tenancy)
        return replace(found, external_id=found.details["name"]) if found else None


class FindShowsHalfTheKey(Sound):
    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        found = await super().find(tenancy)
        return replace(found, key=str(found.key)[11:]) if found else None


class FindGivesNoDetails(Sound):
    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        found = await super().find(tenancy)
        return replace(found, details={}) if found else None


class ListsWhatIsGone(Sound):
    """Its vendor keeps a trace of what was removed, and it lists that too."""

    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.traces: list[External] = []

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        thing = self.depot.things.get(str(tenancy.external_id))
        outcome = await super().release(tenancy)
        if thing is not None:
            self.traces.append(self.shown(thing))
        return outcome

    async def inventory(self) -> AsyncIterator[External]:
        async for shown in super().inventory():
            yield shown
        for trace in self.traces:
            yield trace


class ListsTheFirstPage(Sound):
    async def inventory(self) -> AsyncIterator[External]:
        with plain_words(TemporaryError):
            for thing in await self.depot.ask(lambda: self.depot.page(0)):
                yield self.shown(thing)


class ListsForEver(Sound):
    async def inventory(self) -> AsyncIterator[External]:
        while True:
            with plain_words(TemporaryError):
                for thing in await self.depot.ask(lambda: self.depot.page(0)):
                    yield self.shown(thing)


class ListsWithoutATimeZone(Sound):
    async def inventory(self) -> AsyncIterator[External]:
        async for shown in super().inventory():
            yield replace(shown, created_at=datetime(2030, 1, 1))  # noqa: DTZ001


class ListsEverythingAsOurs(Sound):
    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.owner = ""

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        self.owner = self.owner or str(tenancy.idempotency_key).partition("-")[0]
        return await super().provision(tenancy)

    async def inventory(self) -> AsyncIterator[External]:
        async for shown in super().inventory():
            yield replace(shown, key=None, owner=self.owner)


class ListsWhatItIsAsked(Sound):
    """No generator: the caller gets a coroutine."""

    async def inventory(self) -> list[External]:
        return [shown async for shown in super().inventory()]


# -- releasing -------------------------------------------------------------------------------------


class ReleasesByKey(Sound):
    """Of what has no mark it takes any for the one it was given no key for."""

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        with plain_words():
            async for thing in self.everything():
                if self.is_it(thing, tenancy):
                    await self.depot.ask(lambda: self.depot.delete(thing.id))  # noqa: B023
                    break
        return Released()


class ReleaseNeedsDetails(Sound):
    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        assert tenancy.details["name"]
        return await super().release(tenancy)


class ReleasesWhatTheWorkspaceHas(Sound):
    """Remembers the workspace's thing and removes that, whatever id is named."""

    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.of: dict[str, str] = {}

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        made = await super().provision(tenancy)
        self.of[tenancy.workspace_id] = made.external_id
        return made

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        named = self.of.get(tenancy.workspace_id, tenancy.external_id)
        return await super().release(replace(tenancy, external_id=named))


class ReleasesTheWholeDeployment(Sound):
    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        owner = str(tenancy.idempotency_key).partition("-")[0]
        for thing in list(self.depot.things.values()):
            if thing.owner == owner and thing.id != tenancy.external_id:
                self.depot.delete(thing.id)
        return await super().release(tenancy)


class GoneIsAnError(Sound):
    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        try:
            return await super().release(tenancy)
        except Gone:
            raise PermanentError("404") from None


class SaysReleasedAtOnce(Sound):
    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        return Released()


class ForgetsTheRestOfARelease(Sound):
    """Two requests, and only the first call makes the second."""

    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.begun: set[str] = set()

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        name = str(tenancy.external_id)
        if name in self.begun:
            return Released()
        self.begun.add(name)
        return await super().release(tenancy)


class TidiesUp(Sound):
    """Removes what nobody seems to own while it is about it."""

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        for thing in list(self.depot.things.values()):
            if thing.mark is None and thing.name.startswith("a name"):
                self.depot.delete(thing.id)
        return await super().release(tenancy)


class Paints(Sound):
    """Changes whatever it lists."""

    async def everything(self) -> AsyncIterator[Thing]:
        async for thing in super().everything():
            if thing.mark is None and thing.name.startswith("a name"):
                thing.size = "painted"
            yield thing


class ReleaseNeverEnds(Slow):
    """An operation that finds nothing to remove begins anew."""

    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        with plain_words():
            await self.depot.ask(lambda: None)
        return self.operation(f"delete-{tenancy.external_id}")


# -- errors ----------------------------------------------------------------------------------------


class ForbiddenIsGone(Sound):
    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        try:
            return await super().release(tenancy)
        except CredentialError:
            return Released()


class ForbiddenIsNotFound(Sound):
    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        try:
            return await super().find(tenancy)
        except CredentialError:
            return None


class ForbiddenIsEmpty(Sound):
    async def inventory(self) -> AsyncIterator[External]:
        try:
            async for shown in super().inventory():
                yield shown
        except CredentialError:
            return


class LimitedIsTemporary(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        try:
            return await super().provision(tenancy)
        except RateLimited:
            raise TemporaryError from None


class LosesRetryAfter(Sound):
    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        try:
            return await super().release(tenancy)
        except RateLimited:
            raise RateLimited from None


class RefusedIsUnknown(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        try:
            return await super().provision(tenancy)
        except Unavailable:
            raise UnknownOutcome from None


class FailureIsNotFound(Sound):
    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        try:
            return await super().find(tenancy)
        except TemporaryError:
            return None


class FailureIsRejection(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        try:
            return await super().provision(tenancy)
        except UnknownOutcome as error:
            if isinstance(error.__cause__, Answer) and error.__cause__.status == 500:
                raise PermanentError from None
            raise


class LostAnswerIsCertain(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        try:
            return await super().provision(tenancy)
        except UnknownOutcome as error:
            raise TemporaryError("try again") from error


class DeniesWhatItMade(Sound):
    """Its vendor answers a create with "busy", and makes it."""

    def __init__(self, depot: Depot | None = None) -> None:
        super().__init__(depot)
        self.asked: set[str | None] = set()

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        made = await super().provision(tenancy)
        if tenancy.external_id is None and tenancy.idempotency_key not in self.asked:
            self.asked.add(tenancy.idempotency_key)
            raise TemporaryError("busy", delay=0.001)
        return made


class LostSecondStepIsCertain(Sound):
    """Takes the second of two requests for the whole, so that the first is forgotten."""

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        try:
            return await super().provision(tenancy)
        except UnknownOutcome as error:
            if any(self.is_it(thing, tenancy) for thing in self.depot.things.values()):
                raise PermanentError from error
            raise


class CreatesAgainByItself(Sound):
    """Repeats a create that was not answered, under another key."""

    async def made(self, tenancy: Tenancy) -> Thing:
        try:
            return await super().made(tenancy)
        except OSError:
            return await NotIdempotent.made(self, tenancy)


# -- running ---------------------------------------------------------------------------------------


class SwallowsCancellation(Sound):
    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        try:
            return await super().provision(tenancy)
        except asyncio.CancelledError:
            return await super().provision(tenancy)


class CancellationIsAFailure(Sound):
    async def release(self, tenancy: Tenancy) -> Released | InProgress:
        try:
            return await super().release(tenancy)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise UnknownOutcome from None
            raise


class BlocksTheLoop(Sound):
    repeatable = None  # fewer calls
    find = Vendor.find

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        time.sleep(0.12)
        return await super().provision(tenancy)


class BlocksTheLoopWhileListing(Sound):
    async def inventory(self) -> AsyncIterator[External]:
        time.sleep(0.15)
        async for shown in super().inventory():
            yield shown


class TooSlow(Sound):
    time_limit = timedelta(seconds=0.2)

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        await asyncio.sleep(60)
        return await super().provision(tenancy)


class TooSlowOnAThread(Sound):
    """What it made is only known once its thread is done."""

    time_limit = timedelta(seconds=0.2)

    def provision(self, tenancy: Tenancy) -> Provisioned:
        thing = self.depot.create(str(tenancy.external_name), tenancy.idempotency_key)
        time.sleep(0.4)
        return Provisioned(thing.id)


BROKEN: dict[type[Sound], set[str]] = {
    NotIdempotent: {"repeat"},
    LooksFirstThenCreates: {"repeat-at-once"},
    AdoptsByName: {"name-taken"},
    ChangesWhatHasTheName: {"name-taken"},
    FailsWhereTheNameIsTaken: {"name-taken"},
    NamesByWorkspace: {"other-keys"},
    ReadyTooEarly: {"usable"},
    UpdateMakesAnother: {"update"},
    SaysReadyOfWhatIsGone: {"update-of-gone"},
    HalfMadeIsLost: {"interrupted-create"},
    ForgetsTheSecondStep: {"interrupted-create"},
    DrawsItsKeysInTheObject: {"next-worker"},
    MarksInTheObject: {"next-worker"},
    RemembersTheSecondStepInTheObject: {"interrupted-create"},
    Refuses: {"provision"},
    ReturnsTheAnswer: {"provision"},
    EmptyId: {"ids"},
    NumberAsId: {"ids"},
    IdNotStable: {"made", "find", "inventory", "repeat"},
    DetailsTooLarge: {"details"},
    DetailsAreNoJson: {"details"},
    SecretInDetails: {"details"},
    PasswordInDetails: {"details"},
    RemembersTooShortly: {"declarations"},
    SaysInProgressAndCannotPoll: {"operation"},
    NeverDone: {"operation"},
    NegativeWait: {"operation"},
    ForgottenIsDone: {"forgotten-operation"},
    StillBeingMade: {"usable"},
    FindRaisesWhereNothingIs: {"find-absent"},
    FindsByPrefix: {"find-whole-key"},
    FindsByDeployment: {"find-whole-key"},
    FindsByName: {"name-taken"},
    FindsNothing: {"find"},
    FindGivesTheName: {"find"},
    FindShowsHalfTheKey: {"find"},
    FindGivesNoDetails: {"find-details"},
    ListsWhatIsGone: {"inventory-released"},
    ListsTheFirstPage: {"inventory"},
    ListsForEver: {"inventory"},
    ListsWithoutATimeZone: {"inventory"},
    ListsEverythingAsOurs: {"inventory-marks"},
    ListsWhatItIsAsked: {"inventory"},
    ReleasesByKey: {"release-by-id", "untouched"},
    ReleaseNeedsDetails: {"release-by-id"},
    ReleasesWhatTheWorkspaceHas: {"release-by-id"},
    ReleasesTheWholeDeployment: {"release"},
    GoneIsAnError: {"release-again"},
    SaysReleasedAtOnce: {"release"},
    ForgetsTheRestOfARelease: {"interrupted-release"},
    TidiesUp: {"untouched"},
    Paints: {"untouched"},
    ReleaseNeverEnds: {"release-again"},
    ForbiddenIsGone: {"credential"},
    ForbiddenIsNotFound: {"credential"},
    ForbiddenIsEmpty: {"credential"},
    LimitedIsTemporary: {"rate-limit"},
    LosesRetryAfter: {"rate-limit"},
    RefusedIsUnknown: {"unreachable"},
    FailureIsNotFound: {"no-answer"},
    FailureIsRejection: {"no-answer"},
    LostAnswerIsCertain: {"lost-answer"},
    DeniesWhatItMade: {"certain-errors"},
    LostSecondStepIsCertain: {"lost-answer"},
    CreatesAgainByItself: {"lost-answer"},
    SwallowsCancellation: {"cancellation"},
    CancellationIsAFailure: {"cancellation"},
    BlocksTheLoop: {"event-loop"},
    BlocksTheLoopWhileListing: {"event-loop"},
    TooSlow: {"time-limit"},
    TooSlowOnAThread: {"time-limit"},
}

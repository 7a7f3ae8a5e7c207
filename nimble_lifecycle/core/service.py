"""What runs while a server serves: host calls become rows, ordinary tools get the tenancy.

Made when serving starts and closed when it ends. No answer carries a DSN, a path, a stack or the
vendor's words.
"""

import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from pydantic import BaseModel

from nimble_lifecycle.core.call import Call
from nimble_lifecycle.core.deadline import AuthorError, Deadline, Late, awaited, blamed
from nimble_lifecycle.core.handler import Handler
from nimble_lifecycle.core.heartbeat import Heartbeat
from nimble_lifecycle.core.identity import EdgeTrust, Identity
from nimble_lifecycle.core.params import json_of
from nimble_lifecycle.errors import (
    ConfigurationError,
    NimbleError,
    RekeyNeeded,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    StoreError,
    WorkspaceUnknown,
)
from nimble_lifecycle.protocol import Event, Json, Reason, Tenancy, Workspace, check_kind

if TYPE_CHECKING:
    from nimble_lifecycle.store import IntentStore, Recorded
    from nimble_lifecycle.store.ports import SharedHop

T = TypeVar("T")
WorkspaceSource: TypeAlias = Callable[..., Workspace | Awaitable[Workspace]]
"""An author's function, plain or async, from the framework's `Context` of a call to `Workspace`."""
ParamsSource: TypeAlias = Callable[[Workspace], BaseModel | Awaitable[BaseModel]]
"""An author's function, plain or async, from a workspace to the params of its tenancy."""

STORE_SLOTS: Final = 8
"""Store calls in flight at most, counted until their threads end."""
SOURCE_SLOTS: Final = 32
"""Plain `workspace` and `params` functions running at most, likewise."""
HANDLER_SLOTS: Final = 32
"""Plain handlers running at most, likewise."""

_MIGRATE: Final = "Run `nimble-reconcile migrate`."
_NOT_RECORDED: Final[dict[type[StoreError], str]] = {
    SchemaMissing: f"The lifecycle database has no tables. {_MIGRATE}",
    SchemaOutdated: f"The lifecycle database is older than this server. {_MIGRATE}",
    SchemaTooNew: "The lifecycle database is newer than this server. Upgrade nimble-lifecycle.",
}
_REKEY: Final = (
    "This workspace is known here without the tenant its host names now, and nothing was recorded."
    " The operator runs `nimble-reconcile rekey`."
)
_UNAVAILABLE: Final = (
    "The lifecycle database cannot be used now; the server's log says why. Call again."
)
_LATE: Final = "The lifecycle call did not end in time. Call again."
_FAILED: Final = "A function of this server failed; its log says how. Call again later."
_WORDS: Final = {
    Event.READY: "This workspace's resource is being taken care of.",
    Event.REMOVING: "This workspace's resource will be released.",
}
_NOTHING_TO_RELEASE: Final = "There is nothing to release for this workspace."

logger = logging.getLogger(__name__)


class Refused(NimbleError):  # read as `raise Refused`
    """A call failed; the message is fit for whoever called, and all that they may know."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What the author told `Lifecycle`; see there. An empty kind: the server's name."""

    kind: str
    identity: Identity
    workspace: WorkspaceSource | None
    params: ParamsSource | None
    deadline: float

    @classmethod
    def read(
        cls,
        *,
        kind: str | None,
        workspace: WorkspaceSource | None,
        claims: Sequence[str],
        trust_edge_headers: EdgeTrust,
        params: ParamsSource | None,
        deadline: float,
    ) -> "Declaration":
        """Check what was declared; raises `ConfigurationError` for what cannot be meant."""
        for name, function in (("workspace", workspace), ("params", params)):
            if function is not None and not callable(function):
                raise ConfigurationError(f"{name} must be a function, not {function!r}")
        if type(deadline) not in (int, float) or not 0 < deadline < float("inf"):
            raise ConfigurationError("deadline must be a positive number of seconds")
        if kind is not None:
            refuse_no_kind(kind)
        return cls(
            kind=kind or "",
            identity=Identity(claims, trust_edge_headers),
            workspace=workspace,
            params=params,
            deadline=deadline,
        )


def refuse_no_kind(kind: str) -> None:
    """Raise `ConfigurationError` for what no worker could serve."""
    try:
        check_kind(kind)
    except (ValueError, TypeError) as error:
        words = f"{error}; it is the server's name, or what Lifecycle(kind=...) says"
        raise ConfigurationError(words) from None


class Service:
    """The serving side of one `Lifecycle`; belongs to one event loop.

    `threads` makes a pool of so many threads of this name.
    """

    def __init__(
        self, store: "IntentStore", author: Declaration, threads: "Callable[[int, str], SharedHop]"
    ) -> None:
        self._store = store
        self._author = author
        self._store_threads = threads(STORE_SLOTS, "nimble-call")
        # Counted apart: handlers that hang must not keep a later call from being recorded.
        self._source_threads = self._store_threads.beside(SOURCE_SLOTS)
        self._handler_threads = self._store_threads.beside(HANDLER_SLOTS)
        self._heartbeat = Heartbeat(self._touch, store.clock.monotonic)

    async def open(self) -> None:
        """Name the database on stderr and open it; a server whose database is down starts too."""
        sys.stderr.write(f"nimble-lifecycle: {self._author.kind!r} uses {self._store.location}\n")
        try:
            async with self._deadline().limit():
                await self._store_threads.run(self._store.open)
        except (StoreError, Late) as error:
            why = str(error) or f"no answer in {self._author.deadline:g} s"
            logger.warning("lifecycle calls fail until the database can be used: %s", why)
        except Exception:
            logger.exception("lifecycle calls fail until the database can be used")

    async def close(self) -> None:
        """End heartbeats, connections and idle threads, waiting for nothing that hangs."""
        await self._heartbeat.close()
        try:
            async with self._deadline().limit():
                await self._store_threads.run(self._store.close)
        except Late:
            logger.warning("the database did not close in time")
        finally:
            self._store_threads.close()

    def note_use(self, call: Call) -> None:
        """Note in the background that an ordinary call uses its workspace; returns at once."""
        self._heartbeat.beat(partial(self._used_workspace, call))

    async def answer(self, call: Call, handler: Handler, arguments: Mapping[str, object]) -> str:
        """Record what a host says, then ask the author's function for its words.

        Raises `Refused`; what was recorded before it stays recorded.
        """
        reason = Reason.parse(arguments.get("reason"))
        async with self._answering() as deadline:
            workspace = await self._workspace(call, deadline)
            if handler.event is Event.READY:
                record = await self._recording(workspace, reason, deadline)
                if handler.is_plain:
                    return await self._record_and_speak(record, handler, reason, deadline)
                recorded = await deadline.run(self._store_threads, record)
            else:
                found = await self._removing(workspace, deadline)
                if found is None:
                    return _NOTHING_TO_RELEASE
                recorded = found
            given = {"tenancy": recorded.tenancy, "reason": reason}
            words = await handler.call(call, given, self._handler_threads, deadline)
            return _text(handler, words)

    async def _record_and_speak(
        self, record: "Callable[[], Recorded]", handler: Handler, reason: Reason, deadline: Deadline
    ) -> str:
        """Do both in one hop to a thread: a hop costs as much as half the statement."""

        def speak(recorded: "Recorded") -> object:
            return handler.speak({"tenancy": recorded.tenancy, "reason": reason})

        words = await deadline.run_both(self._store_threads, record, self._handler_threads, speak)
        return _text(handler, await awaited(handler.label, words))

    async def tenancy(self, call: Call) -> Tenancy:
        """Give the tenancy of a call's workspace, ready or not; raises `Refused`.

        Where none was ever asked for, it is asked for now.
        """
        async with self._answering() as deadline:
            workspace = await self._workspace(call, deadline)
            self._heartbeat.beat(partial(_known, workspace))  # its tool may be another server's
            tenancy = await self._in_store(
                deadline, partial(self._store.tenancy, workspace, self._author.kind)
            )
            if tenancy is None:
                record = await self._recording(workspace, Reason.RESUME, deadline)
                tenancy = (await deadline.run(self._store_threads, record)).tenancy
        return tenancy

    def _deadline(self) -> Deadline:
        return Deadline(self._author.deadline, self._store.clock)

    @asynccontextmanager
    async def _answering(self) -> AsyncGenerator[Deadline]:
        """End the block at the deadline, and say in fixed words why it failed."""
        deadline = self._deadline()
        try:
            async with deadline.limit():
                yield deadline
        except WorkspaceUnknown as error:
            raise Refused(str(error)) from None
        except StoreError as error:
            logger.warning("a lifecycle call was not recorded: %s", error)
            raise Refused(_NOT_RECORDED.get(type(error), _UNAVAILABLE)) from None
        except RekeyNeeded as error:
            logger.warning("a lifecycle call was not recorded: %s", error)
            raise Refused(_REKEY) from None
        except Late:
            raise Refused(_LATE) from None
        except AuthorError:
            raise Refused(_FAILED) from None
        except Exception:
            # Its text may not be shown: a driver's text may hold anything.
            logger.exception("a lifecycle call failed")
            raise Refused(_FAILED) from None

    async def _workspace(self, call: Call, deadline: Deadline) -> Workspace:
        if self._author.workspace is None:
            return self._author.identity.workspace(call)
        ask = partial(self._author.workspace, call.context)
        found = await deadline.call(self._source_threads, "the `workspace` function", ask)
        if not isinstance(found, Workspace):
            raise WorkspaceUnknown("The server's `workspace` function gave no Workspace.")
        return found

    async def _params(self, workspace: Workspace, deadline: Deadline) -> dict[str, Json]:
        if self._author.params is None:
            return {}
        ask = partial(self._author.params, workspace)
        with blamed("the `params` function"):
            model = await deadline.call(self._source_threads, "the `params` function", ask)
            if not isinstance(model, BaseModel):
                raise TypeError(f"params must give a pydantic model, not {type(model).__name__}")
            return json_of(model)

    async def _recording(
        self, workspace: Workspace, reason: Reason, deadline: Deadline
    ) -> "Callable[[], Recorded]":
        """Give what records on a thread that the workspace wants its tenancy."""
        params = await self._params(workspace, deadline)
        ready = partial(self._store.ready, workspace, self._author.kind, reason, params)
        return partial(ready, until=deadline.until)

    async def _removing(self, workspace: Workspace, deadline: Deadline) -> "Recorded | None":
        write = partial(self._store.removing, workspace, self._author.kind)
        try:
            return await self._in_store(deadline, write)
        finally:
            # Whether or not this answer came in time: the next use of the workspace must be noted.
            self._heartbeat.forget(workspace)

    async def _in_store(self, deadline: Deadline, work: "Callable[..., T]") -> T:
        return await deadline.run(self._store_threads, partial(work, until=deadline.until))

    async def _used_workspace(self, call: Call) -> Workspace:
        deadline = self._deadline()
        async with deadline.limit():
            return await self._workspace(call, deadline)

    async def _touch(self, workspace: Workspace) -> bool:
        deadline = self._deadline()
        async with deadline.limit():
            touch = partial(self._store.touch, workspace, self._author.kind)
            return await self._in_store(deadline, touch)


async def _known(workspace: Workspace) -> Workspace:
    return workspace


def _text(handler: Handler, words: object) -> str:
    if isinstance(words, str):
        return words
    if words is not None:
        logger.warning("%s gave a %s, not a text", handler.label, type(words).__name__)
    return _WORDS[handler.event]

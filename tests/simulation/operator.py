"""The operator: verbs at random while everything fails, and in the end what `status` asks for."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from nimble_lifecycle.errors import StoreError, VerbRefused
from nimble_lifecycle.protocol import FLEET, Event, Why
from nimble_lifecycle.store.operators import By
from tests.simulation.loop import Loop, Process
from tests.simulation.oracle import ANY_PLAN, HostCall, Oracle
from tests.simulation.site import KIND, Site
from tests.simulation.threads import simulated_threads
from tests.simulation.wire import RemoteOperatorStore

LATEST = 60.0
"""Seconds after which a verb that was not answered is not done any more."""

BY = By("operator", "a simulation")

Shown = dict[str, object]
"""A row as `status` shows it."""


@dataclass
class Operator:
    """A person with the command line, as the commands are once they are parsed."""

    loop: Loop
    process: Process
    store: RemoteOperatorStore
    site: Site
    oracle: Oracle

    def __post_init__(self) -> None:
        self._threads = simulated_threads(self.loop, self.process, 4, "operator")

    async def meddle(self) -> None:
        """Do something that nobody needs, to a row or to the kind."""
        chance = self.loop.chance
        try:
            rows = await self._threads.run(self.store.status)
            if not rows:
                return
            row = chance.choice(rows)
            verb = chance.choice(
                ("retry", "release", "undo", "abandon", "pause", "resume", "kind", "fleet")
            )
            await self._do(verb, row)
        except StoreError:
            return

    async def settle(self) -> int:
        """Run each command that `status` shows; give how many there were."""
        shown = 0
        for row in await self._threads.run(self.store.status):
            if row["settle"] is not None:
                shown += 1
                self.oracle.needs_person(row)
                await self._settle(row, str(row["settle"]))
        for notice in await self._threads.run(self.store.notices):
            if notice.settle is not None:
                shown += 1
                await self._run(notice.settle)
        return shown

    async def _settle(self, row: Shown, command: str) -> None:
        """Do what is shown, after a look at the vendor where that is asked for."""
        if row["reason"] == Why.NAME_CONFLICT:
            self.site.free_name(str(row["workspace_id"]), self.oracle.abandoned())
        key = str(row["idempotency_key"])
        if row["reason"] == Why.CREATE_OUTCOME_UNKNOWN and self.site.works_on(key):
            return  # a person waits for that to end
        made = self.site.made_for(key)
        if row["reason"] == Why.CREATE_OUTCOME_UNKNOWN and made is not None:
            adopt = partial(self.store.adopt, UUID(str(row["id"])), made.external_id, BY)
            await self._try(f"adopt {row['workspace_id']} {made.external_id}", adopt)
        else:
            await self._run(command)

    async def _run(self, command: str) -> None:
        program, verb, *words = shlex.split(command)
        assert program == "nimble-reconcile"
        store = self.store
        match verb, words:
            case "retry", [row]:
                work = partial(store.retry, UUID(row), BY)
            case "retry", [row, "--assume-not-created"]:
                work = partial(store.retry, UUID(row), BY, assume_not_created=True)
            case "resume", ["--kind", kind]:
                work = partial(store.resume_kind, kind, BY)
            case "resume", ["--fleet"]:
                work = partial(store.resume_kind, FLEET, BY)
            case "resume", [row]:
                work = partial(store.resume_row, UUID(row), BY)
            case "approve", ["--kind", kind]:
                work = partial(store.approve, kind, BY)
            case _:
                self.oracle.object("no such command", command)
                return
        await self._try(f"{verb} {' '.join(words[1:])}", work)

    async def _do(self, verb: str, row: Shown) -> None:
        store, name = self.store, UUID(str(row["id"]))
        about = {
            "retry": partial(store.retry, name, BY),
            "release": partial(store.release, name, BY),
            "undo": partial(store.undo, name, BY),
            "pause": partial(store.pause_row, name, BY),
            "resume": partial(store.resume_row, name, BY),
            "abandon": partial(store.abandon, name, BY),
            "kind": partial(store.pause_kind, KIND, BY),
            "fleet": partial(store.pause_kind, FLEET, BY),
        }
        workspace_id = str(row["workspace_id"])
        events = {"release": Event.REMOVING, "undo": Event.READY}
        if verb not in events:
            await self._try(f"{verb} {workspace_id}", about[verb])
            return
        word = HostCall(workspace_id, events[verb], ANY_PLAN, self.loop.time(), by_operator=True)
        said = self.oracle.calls[workspace_id]
        said.append(word)
        done = await self._try(f"{verb} {workspace_id}", about[verb])
        word.recorded = done is True
        word.ended = self.loop.time() + (LATEST if done is None else 0.0)
        if done is False:
            said.remove(word)

    async def _try(self, what: str, work: Callable[[], None]) -> bool | None:
        """Do it; False: it was refused, None: nobody knows."""
        done: bool | None = True
        words = what
        try:
            await self._threads.run(work)
        except VerbRefused as refused:
            done, words = False, f"{what}: {refused}"
        except StoreError as error:
            done, words = None, f"{what}: {type(error).__name__}"
        self.oracle.figures[f"operator: {what.split(' ', maxsplit=1)[0]}"] += done is True
        self.site.troubles.note("operator", words)
        return done

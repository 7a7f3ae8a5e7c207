"""From a finding to an act: found twice, and within what the breaker lets pass."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from nimble_lifecycle.reconciler.findings import Finding, Outcome
from nimble_lifecycle.store.ports import Hop
from nimble_lifecycle.store.sightings import CONFIRMED, Act, Breaker, Sort, seen_again
from nimble_lifecycle.store.sweeps import SweepStore

_OUTCOMES = {Act.DONE: Outcome.DONE, Act.CHANGED: Outcome.CHANGED, Act.HELD: Outcome.HELD}


@dataclass(frozen=True, slots=True)
class Case:
    """A finding, and what can be done about it. `act` gets what the breaker lets pass a day."""

    finding: Finding
    subject: str
    act: Callable[[int], Act] | None = None
    """None: nothing, and it is not counted either."""


class Court:
    """Settles the cases of one sweep. `keep_turn` is awaited before whatever is written.

    In a dry run nothing is written, and what would be done is said instead.
    """

    def __init__(
        self,
        store: SweepStore,
        kind: str,
        database: Hop,
        *,
        began: datetime,
        keep_turn: Callable[[], Awaitable[None]],
        dry_run: bool,
    ) -> None:
        self._store = store
        self._kind = kind
        self._database = database
        self._began = began
        self._keep_turn = keep_turn
        self._dry_run = dry_run
        self._held = False
        self._allowed: int | None = None
        self._left = 0

    async def breaker(self) -> Breaker:
        """Read how much was done by now and may be done."""
        return await self._database.run(partial(self._store.breaker, self._kind, self._allowed))

    async def settle(self, sort: Sort, cases: Sequence[Case], apart: float) -> list[Finding]:
        """Settle the cases of a sort, which must be all there are.

        What was found before and is none of them is forgotten. Strikes are `apart` seconds apart.
        """
        await self._keep_turn()
        found = {case.subject for case in cases}
        open_to_act = [case.subject for case in cases if case.act is not None]
        strikes = await self._database.run(
            partial(self._strikes, sort, found, open_to_act, apart=apart)
        )
        return [await self._settled(case, strikes.get(case.subject, 0)) for case in cases]

    def _strikes(
        self, sort: Sort, found: Collection[str], open_to_act: Sequence[str], *, apart: float
    ) -> dict[str, int]:
        known = self._store.sightings(self._kind, sort)
        now = self._store.instant()
        # What is found now was seen at some time since the sweep began.
        apart += (now - self._began).total_seconds()
        if self._dry_run:
            return {name: seen_again(known.get(name), now, apart).counting for name in open_to_act}
        over = [
            name for name, its in known.items() if name not in found and not its.is_counted(now)
        ]
        self._store.forget(self._kind, sort, over)
        return self._store.strike(self._kind, sort, open_to_act, apart)

    async def _settled(self, case: Case, strikes: int) -> Finding:
        finding = replace(case.finding, strikes=strikes)
        if case.act is None:
            return finding
        if strikes < CONFIRMED:
            return replace(finding, outcome=Outcome.WAITING)
        return replace(finding, outcome=await self._outcome(case.act))

    async def _outcome(self, act: Callable[[int], Act]) -> Outcome:
        if self._held:
            return Outcome.HELD
        allowed = await self._counted()
        if self._dry_run:
            self._left -= 1
            return Outcome.DONE if self._left >= 0 else Outcome.HELD
        await self._keep_turn()
        done = await self._database.run(partial(act, allowed))
        self._held = done is Act.HELD
        return _OUTCOMES[done]

    async def _counted(self) -> int:
        """Count what the breaker lets pass, once: that looks at the whole fleet."""
        if self._allowed is None:
            self._allowed = await self._database.run(partial(self._store.allowed, self._kind))
            breaker = await self.breaker()
            self._left = 0 if breaker.is_open else self._allowed - breaker.acted
        return self._allowed

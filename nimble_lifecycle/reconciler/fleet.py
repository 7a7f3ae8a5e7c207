"""What a worker does about its vendor as a whole: pauses, a refused credential, alarms.

All of it is in the database, so that every worker of it sees the same. A line on stderr tells what
began or ended, once, and names the command that helps.
"""

import logging
from functools import partial

from nimble_lifecycle.errors import CredentialError
from nimble_lifecycle.reconciler.calls import Ended
from nimble_lifecycle.reconciler.outcome import PROOF, refused_to_all
from nimble_lifecycle.reconciler.settled import Policy, pause_of
from nimble_lifecycle.reconciler.settler import Settler
from nimble_lifecycle.store import Attention, Claim, Held, Rules, Settlement, WorkStore

log = logging.getLogger("nimble_reconcile")


class Fleet:
    """What one worker knows and says of its vendor as a whole. Its calls raise StoreError."""

    def __init__(self, store: WorkStore, settler: Settler, rules: Rules, policy: Policy) -> None:
        self._store = store
        self._settler = settler
        self._rules = rules
        self._policy = policy
        self._entered = False
        self._halted = False
        self._pause: str | None = None
        self._looked = False
        self._held = Held()

    async def attention(self) -> Attention:
        """Say what must be seen to before ordinary rows."""
        found = await self._settler.once(partial(self._store.attention, self._rules.kind))
        if found.halted != self._halted:
            self._halted = found.halted
            log.warning("%s: %s", self._rules.kind, self._said_of_credential())
        if found.pause != self._pause:
            self._pause = found.pause
            said = _CALLED if found.pause is None else f"{_LEFT_ALONE} ({found.pause})"
            log.warning("%s: %s", self._rules.kind, said)
        self._looked = True
        return found

    def _said_of_credential(self) -> str:
        if not self._halted:
            return _TAKEN
        return _REFUSED if self._looked else _REFUSED_BEFORE

    async def tend(self) -> None:
        """Count the fleet, open the breaker where it must be, and tell what is held back."""
        if not self._entered:
            await self._settler.once(partial(self._store.prepare, self._rules))
            self._entered = True
        held = await self._settler.once(partial(self._store.count, self._rules))
        kind = self._rules.kind
        opened = held.breaker_opened_at
        if opened is not None and opened != self._held.breaker_opened_at:
            log.warning(_BREAKER, kind, held.releases, kind)
        if held.creates and not self._held.creates:
            log.warning(_CAPPED, kind, held.creates)
        self._held = held

    async def probe(self) -> Claim | None:
        """Claim the row to try a refused credential on, if it is time."""
        row = await self._settler.once(partial(self._store.take_probe, self._rules))
        if row is None:
            return None
        claim = partial(self._store.claim_only, self._rules, row, probing=True)
        return await self._settler.once(claim)

    async def heard(
        self, claim: Claim, ended: Ended, settled: Settlement, *, probing: bool
    ) -> Settlement:
        """Note what an answer says of the vendor as a whole; give what it means for the row."""
        kind, row = self._rules.kind, claim.tenancy.id
        stored = self._settler.until_stored
        pause = pause_of(ended)
        if pause is not None:
            await stored(partial(self._store.pause, kind, *pause))
        if probing:
            proven = settled.outcome in PROOF
            await stored(partial(self._store.probed, kind, row, proven=proven))
        if not isinstance(ended, CredentialError):
            return settled
        to_all = await stored(partial(self._store.refused, kind, row, PROOF))
        return refused_to_all(settled, claim, self._policy) if to_all else settled


_REFUSED = (
    "the vendor refuses the credential; nothing but a probe now and then is called. Mend the"
    " credential and start the worker again; `nimble-reconcile status` lists what waits"
)
_REFUSED_BEFORE = (
    "the vendor refused the credential before this worker started; a probe tells whether it still"
    " does, and nothing else is called until then"
)
_TAKEN = "the vendor takes the credential again"
_LEFT_ALONE = "the vendor asks for patience and is left alone for now"
_CALLED = "the vendor is called again"
_BREAKER = (
    "%s: the release breaker is open and %d releases wait: look at `nimble-reconcile status`, and"
    " if they are meant, run `nimble-reconcile approve --kind %s`"
)
_CAPPED = (
    "%s: %d workspaces wait for a cap, --max-live or --max-creates-per-hour; `nimble-reconcile"
    " status` lists them"
)

"""What a worker does about a ready tenancy whose resource the vendor says is gone."""

import logging
from functools import partial

from nimble_lifecycle.reconciler.settler import Settler
from nimble_lifecycle.store import Claim, Rules, WorkStore
from nimble_lifecycle.store.sightings import CONFIRMED, Act, Sort
from nimble_lifecycle.store.sweeps import SweepStore

log = logging.getLogger("nimble_reconcile")


class Drift:
    """Repairs what an update met: two answers, the vendor's `lag` apart, and it is made anew.

    Sweeps find the same by the adapter's inventory; sightings and breaker are shared with them.
    """

    def __init__(self, store: WorkStore, settler: Settler, rules: Rules, lag: float) -> None:
        self._sweeps = SweepStore(store, actor=rules.owner)
        self._settler = settler
        self._kind = rules.kind
        self._lag = lag

    async def gone(self, claim: Claim) -> None:
        """Note that the resource of a settled claim is gone; retire its row when that is sure."""
        external_id = claim.tenancy.external_id
        if external_id is None:
            return
        sight = partial(self._sweeps.sight, self._kind, Sort.DRIFT, external_id, self._lag)
        if await self._settler.until_stored(sight) < CONFIRMED:
            return
        why = "the vendor said twice that its resource is gone"
        retire = partial(
            self._sweeps.retire_vanished, claim.tenancy.id, external_id, claim.token, why=why
        )
        act = await self._settler.until_stored(retire)
        if act is Act.HELD:
            log.warning(
                "%s: too much vanished at the vendor within a day; run `nimble-reconcile sweep` to"
                " see it, and `nimble-reconcile approve --kind` to go on",
                self._kind,
            )

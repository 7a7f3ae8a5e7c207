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

    async def is_sure(self, claim: Claim) -> bool:
        """Note that the resource of a claim is gone; give whether that is confirmed.

        To be asked before the claim is settled: what succeeds after that voids the sighting.
        """
        subject = str(claim.tenancy.external_id)
        sight = partial(self._sweeps.sight, self._kind, Sort.DRIFT, subject, self._lag)
        return await self._settler.until_stored(sight) >= CONFIRMED

    async def repair(self, claim: Claim) -> None:
        """Retire the row of a settled claim whose resource is surely gone."""
        external_id = str(claim.tenancy.external_id)
        why = "the vendor said twice that its resource is gone"
        retire = partial(
            self._sweeps.retire_vanished, claim.tenancy.id, external_id, claim.token, why=why
        )
        act = await self._settler.until_stored(retire)
        if act is Act.HELD:
            log.warning(
                "%s: too much vanished at the vendor within a day; look at it with"
                " `nimble-reconcile sweep TARGET`, and to go on run `nimble-reconcile approve"
                " --kind %s`",
                self._kind,
                self._kind,
            )

"""`nimble-reconcile` as it is shipped, over a store that can be made to go wrong.

CHAOS_OWNER names the file it writes its lease owner's name to, CHAOS_FATE where it is killed or
stopped (`fate.py`). With CHAOS_CLOCK=jumping the table `chaos_clock` moves its clock. CHAOS_PAGES
names a file with the number of pages a SQLite database may have.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from uuid import UUID

from fate import Fate
from jumping import JumpingClock
from pages import hold_to

from nimble_lifecycle.reconciler import cli
from nimble_lifecycle.store import Claim, Rules, Settlement, WorkStore

CLOCKS = {"jumping": JumpingClock}


class ChaosStore(WorkStore):
    """The worker's store, told by the environment how to go wrong."""

    def __init__(self, url: str, *, connections: int = 4) -> None:
        clock = CLOCKS.get(os.environ.get("CHAOS_CLOCK", ""))
        super().__init__(url, clock=clock and clock(), connections=connections)
        if pages := os.environ.get("CHAOS_PAGES"):
            hold_to(self.engine, Path(pages))
        self._fate = Fate.from_environment()
        self._owner = Path(os.environ["CHAOS_OWNER"])

    def claim(self, rules: Rules, limit: int) -> list[Claim]:
        if not self._owner.exists():
            self._owner.write_text(rules.owner)
        claims = super().claim(rules, limit)
        self._fate.at("claimed", *(claim.step for claim in claims))
        return claims

    def settle(self, batch: Sequence[Settlement], *, actor: str) -> set[UUID]:
        steps = [settled.action for settled in batch]
        self._fate.at("answered", *steps)
        settled = super().settle(batch, actor=actor)
        self._fate.at("settled", *steps)
        return settled


if __name__ == "__main__":
    import_module("nimble_lifecycle.reconciler.cli.run").WorkStore = ChaosStore
    cli.main()

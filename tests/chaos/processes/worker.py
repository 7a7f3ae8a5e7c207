"""`nimble-reconcile` as it is shipped, over a store that goes wrong (`troubled.py`) and may die.

CHAOS_OWNER names the file it writes its lease owner's name to, CHAOS_FATE where it is killed or
stopped (`fate.py`).
"""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from uuid import UUID

from fate import Fate
from troubled import TroubledWork

from nimble_lifecycle.reconciler import cli
from nimble_lifecycle.store import Claim, Rules, Settlement


class FatedWork(TroubledWork):
    """A worker's store that knows the points around its claims and settlements."""

    def __init__(self, url: str, **options: object) -> None:
        super().__init__(url, **options)
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
    import_module("nimble_lifecycle.reconciler.cli.run").WorkStore = FatedWork
    cli.main()

"""Stores of either half that go wrong as the environment of their process says.

With CHAOS_CLOCK=jumping the table `chaos_clock` moves their clock. CHAOS_PAGES names a file with
the number of pages a SQLite database may have.
"""

import os
from pathlib import Path

from jumping import JumpingClock
from pages import hold_to

from nimble_lifecycle.store import IntentStore, WorkStore
from nimble_lifecycle.store.database import Database


class Troubled(Database):
    """The trouble the two have in common."""

    def __init__(self, url: str, **options: object) -> None:
        if os.environ.get("CHAOS_CLOCK") == "jumping":
            options["clock"] = JumpingClock()
        super().__init__(url, **options)  # type: ignore[arg-type]
        if pages := os.environ.get("CHAOS_PAGES"):
            hold_to(self.engine, Path(pages))


class TroubledIntents(Troubled, IntentStore):
    """The server's store."""


class TroubledWork(Troubled, WorkStore):
    """The worker's store."""

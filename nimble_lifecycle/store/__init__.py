"""The only room that speaks to the database: rows, statements, migrations, connections."""

from nimble_lifecycle.store.claims import Claim, Step
from nimble_lifecycle.store.fleet import Attention, Held, Suspect
from nimble_lifecycle.store.intents import IntentStore, Recorded
from nimble_lifecycle.store.operators import By, OperatorStore
from nimble_lifecycle.store.rules import Rules
from nimble_lifecycle.store.settlements import Settlement
from nimble_lifecycle.store.threads import Threads
from nimble_lifecycle.store.work import WorkStore

__all__ = [
    "Attention",
    "By",
    "Claim",
    "Held",
    "IntentStore",
    "OperatorStore",
    "Recorded",
    "Rules",
    "Settlement",
    "Step",
    "Suspect",
    "Threads",
    "WorkStore",
]

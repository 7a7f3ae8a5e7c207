"""The real stores over one database, kept from seed to seed: statements take long to compile."""

from collections import defaultdict
from itertools import chain
from typing import Any

import sqlalchemy as sa

from nimble_lifecycle.store.models import deployment, metadata
from tests.simulation.wire import (
    RemoteIntentStore,
    RemoteOperatorStore,
    RemoteWorkStore,
    VirtualClock,
)

OWNER_ID = "simulation"


class Stores:
    """Gives stores over one migrated database, which is emptied between two seeds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: defaultdict[type, list[Any]] = defaultdict(list)
        self._given: list[Any] = []
        self.observer = self._new(RemoteWorkStore)
        self.observer.migrate()
        self._checked(self.observer)

    def work(self) -> RemoteWorkStore:
        """Give a worker's store."""
        return self._give(RemoteWorkStore)

    def intent(self) -> RemoteIntentStore:
        """Give a server's store."""
        return self._give(RemoteIntentStore)

    def operator(self) -> RemoteOperatorStore:
        """Give an operator's store."""
        return self._give(RemoteOperatorStore)

    def reset(self) -> None:
        """Take all stores back and empty the database."""
        for store in self._given:
            self._free[type(store)].append(store)
        self._given.clear()
        with self.observer.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            for table in reversed(metadata.sorted_tables):
                if table is not deployment:
                    connection.execute(sa.delete(table))
            connection.execute(sa.update(deployment).values(owner_id=OWNER_ID))
            if not self.observer.is_sqlite:
                for table in ("nimble_call", "nimble_journal"):
                    connection.exec_driver_sql(f"ALTER SEQUENCE {table}_id_seq RESTART")
            connection.exec_driver_sql("COMMIT")

    def close(self) -> None:
        """Close every connection."""
        for store in chain([self.observer], self._given, *self._free.values()):
            store.engine.dispose()

    def _give(self, sort: type) -> Any:
        store = self._free[sort].pop() if self._free[sort] else self._new(sort)
        self._checked(store)
        store.forget_clock()
        self._given.append(store)
        return store

    def _new(self, sort: type) -> Any:
        store = sort(self._url, clock=VirtualClock())
        if store.is_sqlite:
            sa.event.listen(store.engine, "connect", _hurry)
        return store

    def _checked(self, store: Any) -> None:
        store.clock.loop = None
        store.open()  # before any thread of the simulation would


def _hurry(connection: Any, _: object) -> None:
    """Do not wait for the disk: what a simulation may lose, it makes again."""
    connection.execute("PRAGMA synchronous = OFF")

"""A call that was answered as failed changes nothing later, whatever it waited for."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
import sqlalchemy as sa

from nimble_lifecycle.errors import StoreUnavailable
from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.store import IntentStore
from nimble_lifecycle.store.models import tenancy as t

WORKSPACE = Workspace("ws_1")
LIMIT = 0.4

Blocker = Callable[[sa.Connection], object]


class Patient(IntentStore):
    """Does not hang up at the deadline, so that its statements arrive late: a thawed network."""

    def _set_end(self, connection: sa.Connection, until: float) -> None:
        super()._set_end(connection, until + 5.0)


@pytest.fixture
def store(database_url: str) -> Iterator[IntentStore]:
    store = Patient(database_url)
    store.open()
    yield store
    store.close()


def ready(store: IntentStore, seconds: float = 3.0) -> None:
    until = time.monotonic() + seconds
    store.ready(WORKSPACE, "acme", Reason.INSTALL, {}, until=until)


def removing(store: IntentStore, seconds: float = 3.0) -> object:
    return store.removing(WORKSPACE, "acme", until=time.monotonic() + seconds)


def rows(store: IntentStore) -> list[dict[str, object]]:
    until = time.monotonic() + 3.0
    select = sa.select(t)
    found = store.reading(until, lambda at: at.execute(select).mappings().all())
    return [dict(row) for row in found]


@contextmanager
def blocked(store: IntentStore, hold: Blocker, seconds: float) -> Iterator[None]:
    """Hold a lock on another connection for that long, then roll back."""
    engine = sa.create_engine(store.engine.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if store.is_sqlite else "BEGIN")
        hold(connection)
        let_go = threading.Timer(seconds, lambda: connection.exec_driver_sql("ROLLBACK"))
        let_go.start()
        try:
            yield
        finally:
            let_go.join()
    engine.dispose()


def row_lock(connection: sa.Connection) -> None:
    connection.execute(sa.select(t.c.id).with_for_update()).all()


def update(connection: sa.Connection) -> None:
    connection.execute(sa.update(t).values(last_reason="other"))


HOLDS = [row_lock, update]


@pytest.mark.parametrize("hold", HOLDS)
def test_a_late_removing_changes_nothing(store, hold) -> None:
    ready(store)
    before = rows(store)
    with blocked(store, hold, LIMIT + 0.3), pytest.raises(StoreUnavailable):
        removing(store, LIMIT)
    assert rows(store) == before


@pytest.mark.parametrize("hold", HOLDS)
def test_a_late_ready_changes_nothing(store, hold) -> None:
    ready(store)
    removing(store)
    before = rows(store)
    with blocked(store, hold, LIMIT + 0.3), pytest.raises(StoreUnavailable):
        ready(store, LIMIT)
    assert rows(store) == before


def insert(connection: sa.Connection) -> None:
    now = sa.func.current_timestamp()
    connection.execute(
        sa.insert(t).values(
            id=uuid4(),
            tenant_id="",
            workspace_id="ws_1",
            kind="acme",
            incarnation=1,
            first_seen_at=now,
            desired="wanted",
            params={},
            params_hash="",
            generation=1,
            generation_at=now,
            last_seen_at=now,
        )
    )


def test_a_late_ready_that_waited_for_anothers_insert_makes_no_row(store) -> None:
    with blocked(store, insert, LIMIT + 0.3), pytest.raises(StoreUnavailable):
        ready(store, LIMIT)
    assert rows(store) == []


def test_a_call_that_waited_but_is_in_time_counts(store) -> None:
    ready(store)
    with blocked(store, update, 0.3):
        removing(store)
    assert [row["desired"] for row in rows(store)] == ["release"]


def test_what_came_in_between_stands(store) -> None:
    """Rule 7: a frozen `ready` is answered as failed, then `removing` commits, then it thaws."""
    ready(store)
    with blocked(store, update, LIMIT + 0.6):
        late = threading.Thread(target=_refused, args=(lambda: ready_changed(store, LIMIT),))
        late.start()
        time.sleep(0.05)
        removing(store)
    late.join()
    (row,) = rows(store)
    assert (row["desired"], row["params"]) == ("release", {})


def ready_changed(store: IntentStore, seconds: float) -> None:
    until = time.monotonic() + seconds
    store.ready(WORKSPACE, "acme", Reason.INSTALL, {"late": True}, until=until)


def _refused(call: Callable[[], object]) -> None:
    with pytest.raises(StoreUnavailable):
        call()


def test_a_ready_behind_a_removing_that_still_waits_comes_last(store) -> None:
    ready(store)
    with blocked(store, row_lock, 0.6):
        waiting = threading.Thread(target=removing, args=(store,))
        waiting.start()
        ends = time.monotonic() + 0.3
        while not store._removing_now.holds(WORKSPACE, time.monotonic()):
            assert time.monotonic() < ends, "the removing is not known to be under way"
            time.sleep(0.005)
        time.sleep(0.1)  # the removing has its place in the queue for the row
        ready(store)  # though a read shows a row that is wanted already
        waiting.join()
    (row,) = rows(store)
    assert (row["desired"], row["generation"]) == ("wanted", 3)


def test_a_ready_after_a_removing_that_was_given_up_waits_for_nothing(store) -> None:
    ready(store)
    with blocked(store, row_lock, 0.8):
        with pytest.raises(StoreUnavailable):
            removing(store, 0.1)
        ready(store, 0.3)  # the row is still locked, and the removing changes nothing any more
    (row,) = rows(store)
    assert (row["desired"], row["generation"]) == ("wanted", 1)


def test_what_came_too_late_is_not_in_the_call_log(store) -> None:
    ready(store)
    with blocked(store, row_lock, LIMIT + 0.3), pytest.raises(StoreUnavailable):
        removing(store, LIMIT)
    select = "SELECT event FROM nimble_call"
    until = time.monotonic() + 3.0
    said = store.reading(until, lambda at: at.exec_driver_sql(select).scalars().all())
    assert said == ["ready"]

"""A call that was answered as failed changes nothing later, whatever it waited for."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import pytest
import sqlalchemy as sa
from waiting import PATIENCE, until

from nimble_lifecycle.errors import StoreUnavailable
from nimble_lifecycle.protocol import Json, Reason, Workspace
from nimble_lifecycle.store import IntentStore
from nimble_lifecycle.store.models import tenancy as t

WORKSPACE = Workspace("ws_1")
LIMIT = 0.4

Blocker = Callable[[sa.Connection], object]


class Patient(IntentStore):
    """Does not hang up at the deadline, so that its statements arrive late: a thawed network."""

    def _set_end(self, connection: sa.Connection, until: float) -> None:
        super()._set_end(connection, until + PATIENCE)


@pytest.fixture
def store(database_url: str) -> Iterator[IntentStore]:
    store = Patient(database_url)
    store.open()
    yield store
    store.close()


def after(seconds: float) -> float:
    return time.monotonic() + seconds


def ready(store: IntentStore, end: float | None = None, **params: Json) -> None:
    store.ready(WORKSPACE, "acme", Reason.INSTALL, params, until=end or after(PATIENCE))


def removing(store: IntentStore, end: float | None = None) -> object:
    return store.removing(WORKSPACE, "acme", until=end or after(PATIENCE))


def passes(end: float) -> None:
    """Wait for a deadline to be over."""
    until(lambda: time.monotonic() > end)


def rows(store: IntentStore) -> list[dict[str, object]]:
    select = sa.select(t)
    found = store.reading(after(PATIENCE), lambda at: at.execute(select).mappings().all())
    return [dict(row) for row in found]


@contextmanager
def blocked(store: IntentStore, hold: Blocker) -> Iterator[Callable[[], None]]:
    """Hold a lock on another connection until what is given is called, or the block ends."""
    engine = sa.create_engine(store.engine.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, ExitStack() as held:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if store.is_sqlite else "BEGIN")
        held.callback(connection.exec_driver_sql, "ROLLBACK")
        hold(connection)
        yield held.close
    engine.dispose()


def waits(store: IntentStore) -> bool:
    """Whether a write of the store waits for the lock."""
    if store.is_sqlite:
        return store._writer.locked()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    mine = f"{waiting} AND datname = current_database()"
    return bool(store.reading(after(PATIENCE), lambda at: at.exec_driver_sql(mine).scalar_one()))


@contextmanager
def meanwhile(call: Callable[[], object]) -> Iterator[Future[object]]:
    """Make a call on a thread, which has ended when the block does."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(call)


def refused_late(store: IntentStore, hold: Blocker, call: Callable[[float], object]) -> None:
    """Make a call that gets the lock only after its deadline, and is refused."""
    with blocked(store, hold) as let_go:
        end = after(LIMIT)
        with meanwhile(lambda: call(end)) as late:
            passes(end)
            let_go()
            with pytest.raises(StoreUnavailable):
                late.result()


def row_lock(connection: sa.Connection) -> None:
    connection.execute(sa.select(t.c.id).with_for_update()).all()


def update(connection: sa.Connection) -> None:
    connection.execute(sa.update(t).values(last_reason="other"))


HOLDS = [row_lock, update]


@pytest.mark.parametrize("hold", HOLDS)
def test_a_late_removing_changes_nothing(store, hold) -> None:
    ready(store)
    before = rows(store)
    refused_late(store, hold, lambda end: removing(store, end))
    assert rows(store) == before


@pytest.mark.parametrize("hold", HOLDS)
def test_a_late_ready_changes_nothing(store, hold) -> None:
    ready(store)
    removing(store)
    before = rows(store)
    refused_late(store, hold, lambda end: ready(store, end))
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
    refused_late(store, insert, lambda end: ready(store, end))
    assert rows(store) == []


def test_a_call_that_waited_but_is_in_time_counts(store) -> None:
    ready(store)
    with blocked(store, update) as let_go, meanwhile(lambda: removing(store)):
        until(lambda: waits(store))
        let_go()
    assert [row["desired"] for row in rows(store)] == ["release"]


def test_what_came_in_between_stands(store) -> None:
    """Rule 7: a frozen `ready` is answered as failed, then `removing` commits, then it thaws."""
    ready(store)
    with blocked(store, update) as let_go:
        end = after(LIMIT)
        with meanwhile(lambda: ready(store, end, late=True)) as late:
            until(lambda: waits(store) or late.done())
            with meanwhile(lambda: removing(store)):
                passes(end)
                let_go()
            with pytest.raises(StoreUnavailable):
                late.result()
    (row,) = rows(store)
    assert (row["desired"], row["params"]) == ("release", {})


def test_a_ready_behind_a_removing_that_still_waits_comes_last(store) -> None:
    ready(store)
    with blocked(store, row_lock) as let_go, meanwhile(lambda: removing(store)):
        until(lambda: waits(store))
        assert store._removing_now.holds(WORKSPACE, time.monotonic())
        with meanwhile(lambda: ready(store)):  # though a read shows a row that is wanted already
            time.sleep(0.1)
            let_go()
    (row,) = rows(store)
    assert (row["desired"], row["generation"]) == ("wanted", 3)


def test_a_ready_after_a_removing_that_was_given_up_waits_for_nothing(store) -> None:
    ready(store)
    with blocked(store, row_lock) as let_go:
        end = after(LIMIT)
        with meanwhile(lambda: removing(store, end)) as given_up:
            passes(end)
            ready(store)  # the row is still locked, and the removing changes nothing any more
            let_go()
            with pytest.raises(StoreUnavailable):
                given_up.result()
    (row,) = rows(store)
    assert (row["desired"], row["generation"]) == ("wanted", 1)


def test_what_came_too_late_is_not_in_the_call_log(store) -> None:
    ready(store)
    refused_late(store, row_lock, lambda end: removing(store, end))
    select = "SELECT event FROM nimble_call"
    said = store.reading(after(PATIENCE), lambda at: at.exec_driver_sql(select).scalars().all())
    assert said == ["ready"]

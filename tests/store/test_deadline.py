"""Every wait for a database ends, however it fails to answer."""

import select
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from waiting import PATIENCE, until, within

from nimble_lifecycle.errors import StoreUnavailable
from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.store import IntentStore
from nimble_lifecycle.store.engines import why

SLACK = 1.0


class Proxy:
    """Stands between a store and its database, and can stop passing anything on."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flows = threading.Event()
        self._flows.set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self.port: int = self._listener.getsockname()[1]

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._ended.set()
        self._flows.set()
        self._thread.join(3.0)
        self._listener.close()

    def _accept(self) -> None:
        pairs: list[threading.Thread] = []
        self._listener.settimeout(0.05)
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            pairs.append(threading.Thread(target=self._pass_on, args=(near,), daemon=True))
            pairs[-1].start()
        for pair in pairs:
            pair.join(3.0)

    def _pass_on(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._target) as far:
            other = {near: far, far: near}
            while not self._ended.is_set():
                readable, _, _ = select.select(list(other), [], [], 0.02)
                for side in readable:
                    self._flows.wait()
                    try:
                        data = side.recv(65536)
                        if not data:
                            return
                        other[side].sendall(data)
                    except OSError:
                        return


@pytest.fixture
def proxied(postgres_url: str) -> Iterator[tuple[Proxy, IntentStore]]:
    parts = urlsplit(postgres_url)
    with closing(Proxy((parts.hostname, parts.port))) as proxy:
        user = parts.netloc.rpartition("@")[0]
        url = parts._replace(netloc=f"{user}@127.0.0.1:{proxy.port}").geturl()
        with closing(IntentStore(url, connections=4)) as store:
            yield proxy, store


def ready(store: IntentStore, name: str = "ws_1", seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    store.ready(Workspace(name), "acme", Reason.INSTALL, {}, until=until)


def refused(store: IntentStore, seconds: float) -> str:
    """Make a call that is refused at its deadline, and give what it said."""
    with pytest.raises(StoreUnavailable) as caught:
        ready(store, "ws_frozen", seconds)
    return str(caught.value)


def says(words: str, store: IntentStore) -> bool:
    """Whether a call refused in time says so; where the machine stalls, it does not get so far."""
    return words in within(0.2 + SLACK, lambda: refused(store, 0.2))


def test_a_connection_that_freezes_ends_at_the_deadline_and_recovers(proxied) -> None:
    proxy, store = proxied
    store.open()  # one connection, which nobody else uses: a wake-up would
    proxy.freeze()
    within(0.3 + SLACK, lambda: refused(store, 0.3))
    proxy.thaw()
    ready(store, "ws_2")


def test_a_database_that_accepts_and_never_answers_ends_within_one_attempt(proxied) -> None:
    proxy, store = proxied
    proxy.freeze()
    # The driver takes no shorter limit than two seconds for a new connection.
    within(2.0 + SLACK, lambda: refused(store, 0.3))
    proxy.thaw()
    ready(store)


def test_a_crowd_through_a_frozen_network_ends_and_healthy_calls_are_served(proxied) -> None:
    proxy, store = proxied
    ready(store)
    proxy.freeze()
    with ThreadPoolExecutor(20) as crowd:
        calls = [crowd.submit(refused, store, 0.4) for _ in range(20)]
        within(2.0 + 0.4 + SLACK, lambda: [call.result() for call in calls])
    proxy.thaw()
    for _ in range(4):
        ready(store, "ws_2")


def test_waiting_for_a_free_connection_ends_at_the_deadline(database_url: str) -> None:
    with closing(IntentStore(database_url, connections=1)) as store:
        store.open()
        inside, go_on = threading.Event(), threading.Event()

        def hold(at: object) -> None:
            inside.set()
            go_on.wait()

        call = threading.Thread(target=store.reading, args=(time.monotonic() + PATIENCE, hold))
        call.start()
        try:
            assert inside.wait(PATIENCE)
            until(lambda: says("no connection is free", store))
        finally:
            go_on.set()
            call.join()


def test_a_locked_file_ends_at_the_deadline_and_reads_go_on(sqlite_url: str) -> None:
    with closing(IntentStore(sqlite_url)) as store:
        store.open()
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as other:
            other.isolation_level = None
            other.execute("BEGIN IMMEDIATE")
            until(lambda: says("locked by another process", store))
            end = time.monotonic() + PATIENCE
            assert store.tenancy(Workspace("ws_1"), "acme", until=end) is None
            other.execute("ROLLBACK")
        ready(store)


def test_a_database_that_is_down_is_said_without_user_or_password() -> None:
    store = IntentStore("postgresql://me:hunter2@127.0.0.1:1/app")
    with closing(store), pytest.raises(StoreUnavailable) as caught:
        ready(store)
    assert "nothing listens there" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "me" not in str(caught.value).split()


SAID = {
    'FATAL:  role "full" does not exist': "it has no such role; create it",
    'FATAL:  database "refused" does not exist': "it does not exist; create it",
    "port 1 failed: Connection refused\n\tIs the server running?": "nothing listens there; start",
    'on socket "/x" failed: No such file\n\tIs the server running locally': "nothing listens there",
    "failed to resolve host 'db.full.test': [Errno -2] not known": "its host is not known",
    'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "time"': "see its pg_hba.conf",
    'FATAL:  password authentication failed for user "time"': "the user or password",
    "fe_sendauth: no password supplied": "it wants a password",
    'ERROR:  prepared statement "_pg3_0" does not exist': "a proxy changed the connection",
    "something new": "the connection failed",
}


@pytest.mark.parametrize("text", SAID)
def test_what_keeps_postgresql_away_is_told_apart_without_a_name(text: str) -> None:
    said = why(OperationalError("SELECT 1", {}, psycopg.OperationalError(text)))
    assert SAID[text] in said
    assert not any(name in said for name in ("full", "refused", "time", "10.0.0.1", "db.", "/x"))


@pytest.mark.postgres
def test_a_missing_database_is_told_as_such(postgres_server: str) -> None:
    url = urlsplit(postgres_server)._replace(path="/nimble_nowhere").geturl()
    with (
        closing(IntentStore(url)) as store,
        pytest.raises(StoreUnavailable, match="it does not exist; create it"),
    ):
        store.open()

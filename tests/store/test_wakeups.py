"""Hints from the server to the worker, and that nothing is left open."""

import gc
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from waiting import PATIENCE, until

from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.store import IntentStore, WorkStore
from nimble_lifecycle.store.wakeups import Listener, Notifier


@contextmanager
def listening(url: str) -> Iterator[threading.Event]:
    heard = threading.Event()
    with closing(WorkStore(url)) as store:
        store.open()
        listener = Listener(store, heard.set)
        listener.start()
        try:
            assert heard.wait(PATIENCE), "something may have been missed before the start"
            heard.clear()
            yield heard
        finally:
            listener.close()


def ready(store: IntentStore, workspace: str = "ws_1") -> None:
    end = time.monotonic() + PATIENCE
    store.ready(Workspace(workspace), "acme", Reason.INSTALL, {}, until=end)


def test_a_change_is_heard(database_url: str) -> None:
    with listening(database_url) as heard, closing(IntentStore(database_url)) as store:
        ready(store)
        assert heard.wait(PATIENCE)


def test_a_duplicate_wakes_nobody(database_url: str) -> None:
    with listening(database_url) as heard, closing(IntentStore(database_url)) as store:
        ready(store)
        assert heard.wait(PATIENCE)
        heard.clear()
        ready(store)
        assert not heard.wait(0.2)


def test_listening_comes_back_after_the_server_ended_it(postgres_url: str) -> None:
    with listening(postgres_url) as heard:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            mine = f"{others} AND datname = current_database()"
            admin.execute(f"SELECT pg_terminate_backend(pid) {mine}")
        assert heard.wait(PATIENCE), "listening again says so: something may have been missed"
        heard.clear()
        with closing(IntentStore(postgres_url)) as store:
            ready(store)
            assert heard.wait(PATIENCE)


def test_a_notifier_whose_database_is_away_never_fails_its_caller() -> None:
    with closing(IntentStore("postgresql://nobody@127.0.0.1:1/none")) as store:
        notifier = Notifier(store)
        for _ in range(3):
            notifier.wake()
            time.sleep(0.02)
        notifier.close()
        notifier.wake()


def test_a_wake_up_for_which_no_thread_can_be_had_fails_no_caller(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with listening(postgres_url) as heard, closing(IntentStore(postgres_url)) as store:
        heard.clear()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            ready(store, "ws_1")
        ready(store, "ws_2")
        assert heard.wait(PATIENCE), "the next call tries again"
    with monkeypatch.context() as patched, closing(IntentStore(postgres_url)) as store:
        patched.setattr(threading.Thread, "start", refuse)
        ready(store, "ws_3")


def test_close_leaves_no_connection_and_no_thread(database_url: str) -> None:
    before = set(threading.enumerate())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with listening(database_url):
            for number in range(5):
                with closing(IntentStore(database_url)) as store:
                    ready(store, f"ws_{number}")
        until(lambda: set(threading.enumerate()) <= before)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_call_in_flight_at_close_closes_its_own_connection(database_url: str) -> None:
    store = WorkStore(database_url)
    inside, go_on = threading.Event(), threading.Event()

    def read(at: object) -> None:
        inside.set()
        go_on.wait(PATIENCE)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call = threading.Thread(target=store.reading, args=(time.monotonic() + PATIENCE, read))
        call.start()
        assert inside.wait(PATIENCE)
        store.close()
        go_on.set()
        call.join()
        del call, store
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize("times", [1, 2])
def test_close_may_be_called_again(database_url: str, times: int) -> None:
    store = IntentStore(database_url)
    store.open()
    for _ in range(times):
        store.close()

"""The network between the halves and PostgreSQL, and between the worker and Acme, goes wrong."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from chaos.proxy import Proxy
from chaos.scene import LEASE, Host, Scene, port_of, said_to, through, until

from nimble_lifecycle.store import IntentStore


def drops(proxy: Proxy) -> None:
    proxy.drop()


def loses_answers(proxy: Proxy) -> None:
    proxy.cut_answers(4)


def loses_requests(proxy: Proxy) -> None:
    proxy.cut_requests(4)


def is_slow(proxy: Proxy) -> None:
    proxy.delay(0.05)
    time.sleep(1.0)


def half_closes(proxy: Proxy) -> None:
    proxy.half_close()


def refuses(proxy: Proxy) -> None:
    proxy.refuse()
    time.sleep(0.5)


def stands_still(proxy: Proxy) -> None:
    """Carry everything on at last, later than any lease."""
    proxy.freeze()
    time.sleep(LEASE + 0.5)


def loses_what_it_held(proxy: Proxy) -> None:
    proxy.freeze()
    time.sleep(0.5)
    proxy.drop()


NETWORK = [drops, loses_answers, loses_requests, is_slow, half_closes, refuses, loses_what_it_held]


def go_through(scene: Scene, proxy: Proxy, fault: Callable[[Proxy], None]) -> None:
    """Let workspaces come, change and go while the network goes wrong, until all is well again."""
    changing, going, *new = (f"{fault.__name__} {name}" for name in ("change", "go", "a", "b", "c"))
    assert scene.host.ready(changing, going)
    scene.settled()
    fault_meets = (changing, *new)
    scene.host.ready(*new)
    scene.host.ready(changing, from_name="changed")
    scene.host.removing(going)
    until("a worker is busy", lambda: scene.busy(*fault_meets))
    fault(proxy)
    proxy.behave()
    scene.settled()
    assert scene.books.made_twice() == []


@pytest.fixture(scope="module")
def to_postgres(
    postgres: Any, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Scene, Proxy]]:
    """Set a scene whose workers reach PostgreSQL through a proxy."""
    with ExitStack() as stack:
        url = stack.enter_context(postgres.fresh(postgres_template))
        proxy = stack.enter_context(Proxy(port_of(url)))
        folder = tmp_path_factory.mktemp("to-postgres")
        stage = Scene(url, folder, stack)
        for _ in range(2):
            stage.worker(NIMBLE_DATABASE_URL=through(url, proxy.port))
        yield stage, proxy


@pytest.mark.postgres
@pytest.mark.parametrize("fault", [*NETWORK, stands_still])
def test_nothing_is_lost_or_doubled_where_the_network_to_postgresql(
    to_postgres: tuple[Scene, Proxy], fault: Any
) -> None:
    go_through(*to_postgres, fault)


@pytest.fixture(scope="module")
def to_acme(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Scene, Proxy]]:
    """Set a scene whose workers reach Acme through a proxy."""
    folder = tmp_path_factory.mktemp("to-acme")
    shutil.copyfile(sqlite_template, folder / "nimble.db")
    with ExitStack() as stack:
        stage = Scene(f"sqlite:///{folder / 'nimble.db'}", folder, stack)
        proxy = stack.enter_context(Proxy(port_of(stage.acme.url)))
        for _ in range(2):
            stage.worker(ACME_URL=through(stage.acme.url, proxy.port))
        yield stage, proxy


@pytest.mark.parametrize("fault", NETWORK)
def test_nothing_is_lost_or_doubled_where_the_network_to_the_vendor(
    to_acme: tuple[Scene, Proxy], fault: Any
) -> None:
    go_through(*to_acme, fault)


@pytest.mark.chaos
def test_a_create_that_the_network_held_back_is_waited_for_and_not_made_again(
    sqlite_scene: Scene,
) -> None:
    scene = sqlite_scene
    with Proxy(port_of(scene.acme.url)) as proxy:
        scene.worker(ACME_URL=through(scene.acme.url, proxy.port), CHAOS_LAG="10")
        scene.host.ready("before")
        until("its connection to Acme is open", lambda: scene.ready("before"))
        proxy.hold_back()
        scene.host.ready("late")
        until("it was looked for in vain", lambda: scene.looked_up() or scene.ready("late"))
        proxy.thaw()
        scene.settled()
    assert scene.books.made_twice() == []


@pytest.mark.parametrize("adapter", ["Acme", pytest.param("Keyed", marks=pytest.mark.chaos)])
def test_requests_that_reach_the_vendor_later_than_any_lease_double_nothing_under_one_key(
    sqlite_scene: Scene, adapter: str
) -> None:
    scene = sqlite_scene
    with Proxy(port_of(scene.acme.url)) as proxy:
        scene.worker(adapter=adapter, ACME_URL=through(scene.acme.url, proxy.port))
        go_through(scene, proxy, stands_still)


@pytest.mark.postgres
def test_calls_that_the_network_held_back_change_nothing_when_it_moves_again(
    postgres_scene: Scene,
) -> None:
    scene = postgres_scene
    with Proxy(port_of(scene.url)) as proxy:
        url = through(scene.url, proxy.port)
        with closing(IntentStore(url)) as there:
            assert Host(said_to(there)).ready("coming", "going")
            held = Host(said_to(there, limit=3.0))
            proxy.freeze()
            assert not held.ready("going", from_name="too late")
            assert not held.removing("coming")
            assert scene.host.ready("coming")
            assert scene.host.removing("going")
        proxy.thaw()
        until("what was held back has arrived", lambda: proxy.links == 0)
    scene.finish()
    assert scene.verdict() == {}

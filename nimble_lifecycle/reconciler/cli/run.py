"""The worker as a command: signals, drain, exit."""

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from random import SystemRandom

from nimble_lifecycle.errors import ForeignDatabase
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.cases import Wishes
from nimble_lifecycle.reconciler.cli.app import (
    DONE,
    FAILED,
    FOREIGN_DATABASE,
    INTERRUPTED,
    LINGER,
    SLOTS_LOST,
    Database,
    Named,
    end_after,
    say,
    settings_of,
)
from nimble_lifecycle.reconciler.cli.sweep import SweepOptions, given_of, wishes_of
from nimble_lifecycle.reconciler.limits import Limits, can_repeat, new_owner
from nimble_lifecycle.reconciler.schedule import Schedule
from nimble_lifecycle.reconciler.sweep import Ports, Sweep
from nimble_lifecycle.reconciler.tables import safe
from nimble_lifecycle.reconciler.target import load_vendor
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.reconciler.worker import Worker
from nimble_lifecycle.settings import WorkerSettings
from nimble_lifecycle.store import Threads, WorkStore
from nimble_lifecycle.store.deployment import Deployment
from nimble_lifecycle.store.sweeps import SweepStore
from nimble_lifecycle.store.wakeups import Listener

SHORT_GRACE = 600.0
"""Seconds; a shorter grace makes a reinstall likely to lose its tenancy."""

DATABASE_THREADS = 4

IMPATIENT = 1.0
"""Seconds after which a Ctrl-C is one more, and not the other half of the first."""

COLLECT = (50_000, 20, 20)
"""When to look for circular garbage, as `gc.set_threshold` takes it."""


def run(
    target: str,
    *,
    database_url: Database = None,
    deployment: Named = None,
    concurrency: int | None = None,
    grace: str | None = None,
    poll: str | None = None,
    drain: str | None = None,
    max_live: int | None = None,
    max_creates_per_hour: int | None = None,
    exit_when_idle: bool = False,
    sweep_every: str | None = None,
    sweeps: SweepOptions | None = None,
) -> int:
    """Reconcile, for ever.

    Parameters
    ----------
    target
        The adapter, a Vendor class or instance: module:attr, also of the working directory, or
        file.py:attr.
    database_url
        The database both halves share.
    deployment
        This deployment's name, which tells a copy of its database from the original.
    concurrency
        Vendor calls in flight at most (default 20).
    grace
        Between the first sight of a wish to release and the release (default 24h).
    poll
        Longest time between two looks at the database (default 1s).
    drain
        How long SIGTERM waits for calls in flight (default 10s).
    max_live
        Tenancies that may exist; no further one is begun (default: any number).
    max_creates_per_hour
        Tenancies that may be begun within an hour (default: any number).
    exit_when_idle
        End once nothing is due or in flight.
    sweep_every
        Between two sweeps (default 1h); 0: none.
    sweeps
        What sweeps tell and do; as for the command sweep.
    """
    settings = settings_of(
        database_url=database_url,
        deployment=deployment,
        concurrency=concurrency,
        grace=grace,
        poll=poll,
        drain=drain,
        max_live=max_live,
        max_creates_per_hour=max_creates_per_hour,
        sweep_every=sweep_every,
        **given_of(sweeps),
    )
    vendor, wishes = load_vendor(target), wishes_of(settings)
    store = WorkStore(settings.database_url.get_secret_value(), connections=DATABASE_THREADS)
    try:
        store.open()
        Deployment(store, settings.deployment).enter()
        _greet(vendor, store, settings)
        serving = _serve(vendor, store, settings, wishes, exit_when_idle=exit_when_idle)
        with collecting_rarely():
            return asyncio.run(serving)
    finally:
        store.close()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Have Python look for circular garbage less often, in the whole process, for the block.

    By default it looks through what is young whenever 700 objects more are there than before, and a
    row on its way is dozens: a quarter of the worker's time. Little of what it makes is circular.
    """
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _serve(
    vendor: Vendor,
    store: WorkStore,
    settings: WorkerSettings,
    wishes: Wishes,
    *,
    exit_when_idle: bool,
) -> int:
    database = Threads(DATABASE_THREADS, "nimble-store")
    threads = Threads(settings.concurrency, "nimble-vendor")
    lists = Threads(1, "nimble-list")
    owner = new_owner()
    sweep = Sweep(
        vendor,
        SweepStore(store, actor=owner),
        wishes,
        Ports(clock=store.clock, database=database, threads=lists),
    )
    worker = Worker(
        vendor,
        store,
        _limits(settings),
        database=database,
        threads=threads,
        owner=owner,
        beside=_sweeping(sweep, settings.sweep_every),
    )
    tell = partial(_tell, asyncio.get_running_loop())
    _drain_on_signals(partial(tell, worker.stop), settings.drain)
    listener = Listener(store, partial(tell, worker.wake))
    listener.start()
    code = FAILED
    try:
        with closing(listener):
            await worker.run(until_idle=exit_when_idle)
        code = SLOTS_LOST if worker.all_slots_lost else DONE
    except ForeignDatabase:
        code = FOREIGN_DATABASE
        raise
    finally:
        # Python's end restores the handlers that were there before, and a late signal would kill.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        database.close()
        threads.close()
        lists.close()
        # A call that takes no cancellation, or a thread of the adapter's, must not hold us here.
        end_after(LINGER, code)
    return code


def _sweeping(sweep: Sweep, every: float) -> list[Callable[[], Coroutine[None, None, None]]]:
    """Sweep by schedule; the first time after a random part of it, so that workers take turns."""
    if every == 0:
        return []
    return [Schedule(sweep, every, first=SystemRandom().uniform(0, every)).run]


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    """Call `what` on the loop, from another thread; a loop that is closed needs no telling."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


def _drain_on_signals(stop: Callable[[], None], drain: float) -> None:
    """Call `stop` on SIGTERM and SIGINT, and end in time with a blocked event loop too.

    The interpreter writes each signal to a socket as it comes, whatever the main thread is doing;
    a thread of its own reads it there, for ever: of a socket that is closed the number would soon
    be another file's, and the next signal would be written into that. Further signals change
    nothing (many who stop a process send two), but for a Ctrl-C of somebody who will not wait.
    """
    heard, said = socket.socketpair()
    said.setblocking(False)

    def wait_for_signals(_open: socket.socket) -> None:
        heard.recv(1)
        begun = time.monotonic()
        end_after(drain + LINGER, DONE)
        stop()
        while heard.recv(1)[0] != signal.SIGINT or time.monotonic() - begun < IMPATIENT:
            pass
        os._exit(INTERRUPTED)

    signal.set_wakeup_fd(said.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    # The thread also keeps the other socket from being closed with the last name for it.
    threading.Thread(
        target=wait_for_signals, args=(said,), name="nimble-signals", daemon=True
    ).start()


def _limits(settings: WorkerSettings) -> Limits:
    return Limits(
        concurrency=settings.concurrency,
        poll=settings.poll,
        grace=settings.grace,
        drain=settings.drain,
        max_creates=settings.max_creates,
        max_live=settings.max_live,
        max_creates_per_hour=settings.max_creates_per_hour,
        backoff=Backoff(settings.backoff_first, settings.backoff_longest),
    )


def _greet(vendor: Vendor, store: WorkStore, settings: WorkerSettings) -> None:
    """Say what is watched and what is worth knowing about it before the first claim."""
    kinds = store.kinds()
    empty = "" if vendor.kind in kinds else ", which has no rows of this kind yet"
    trust = (
        "; SQLite keeps the halves apart by nothing but trust: for development and one machine"
        if store.is_sqlite
        else ""
    )
    say(f"watching {store.location} for {vendor.kind!r}{empty}{trust}")
    if settings.grace < SHORT_GRACE:
        say(f"a grace of {settings.grace:g} s leaves little time to undo an uninstall")
    others = [safe(kind) for kind in kinds if kind != vendor.kind]
    if others:
        say(f"rows of other kinds are left alone: {', '.join(others)}")
    if not can_repeat(vendor) and not vendor.implements("find"):
        short = "" if vendor.repeatable is None else ", which a lease (3 x time_limit) outlasts"
        say(
            f"the adapter can neither repeat{short} nor look up: unknown creates will wait for a"
            " person"
        )

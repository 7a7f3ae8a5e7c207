"""The worker as a command: signals, drain, exit."""

import asyncio
import os
import signal
import socket
import threading
from contextlib import suppress

from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.cli.app import (
    DONE,
    SLOTS_LOST,
    Database,
    Named,
    say,
    settings_of,
)
from nimble_lifecycle.reconciler.limits import Limits
from nimble_lifecycle.reconciler.tables import safe
from nimble_lifecycle.reconciler.target import load_vendor
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.reconciler.worker import Worker
from nimble_lifecycle.settings import WorkerSettings
from nimble_lifecycle.store import Threads, WorkStore
from nimble_lifecycle.store.deployment import Deployment

SHORT_GRACE = 600.0
"""Seconds; a shorter grace makes a reinstall likely to lose its tenancy."""

LINGER = 3.0
"""Seconds the process may take to end once it is done, or the drain is over."""

DATABASE_THREADS = 4


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
    )
    vendor = load_vendor(target)
    store = WorkStore(settings.database_url.get_secret_value(), connections=DATABASE_THREADS)
    try:
        store.open()
        Deployment(store, settings.deployment).enter()
        _greet(vendor, store, settings)
        return asyncio.run(_serve(vendor, store, settings, exit_when_idle=exit_when_idle))
    finally:
        store.close()


async def _serve(
    vendor: Vendor, store: WorkStore, settings: WorkerSettings, *, exit_when_idle: bool
) -> int:
    database = Threads(DATABASE_THREADS, "nimble-store")
    threads = Threads(settings.concurrency, "nimble-vendor")
    worker = Worker(vendor, store, _limits(settings), database=database, threads=threads)
    _drain_on_signals(worker, settings.drain)
    try:
        await worker.run(until_idle=exit_when_idle)
    finally:
        database.close()
        threads.close()
        code = SLOTS_LOST if worker.all_slots_lost else DONE
        # A call that takes no cancellation, or a thread of the adapter's, must not hold us here.
        _end_after(LINGER, code)
    return code


def _drain_on_signals(worker: Worker, drain: float) -> None:
    """Drain on SIGTERM and SIGINT, and end in time with a blocked event loop too.

    The interpreter writes each signal to a socket as it comes, whatever the main thread is doing;
    a thread of its own reads it there.
    """
    heard, said = socket.socketpair()
    said.setblocking(False)
    loop = asyncio.get_running_loop()

    def wait_for_signal(_open: socket.socket) -> None:
        heard.recv(1)
        _end_after(drain + LINGER, DONE)
        with suppress(RuntimeError):  # the loop is closed: we are ending anyway
            loop.call_soon_threadsafe(worker.stop)

    signal.set_wakeup_fd(said.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    # The thread also keeps the socket from being closed with the last name for it.
    threading.Thread(
        target=wait_for_signal, args=(said,), name="nimble-signals", daemon=True
    ).start()


def _end_after(seconds: float, code: int) -> None:
    """End the process by then, unless it has ended by itself."""
    watchdog = threading.Timer(seconds, os._exit, args=(code,))
    watchdog.daemon = True
    watchdog.start()


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
    if vendor.repeatable is None and not vendor.implements("find"):
        say("the adapter can neither repeat nor look up: unknown creates will wait for a person")

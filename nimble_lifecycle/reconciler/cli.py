"""`nimble-reconcile`: run the worker, look at rows, migrate the database.

Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 failed, 2 wrong use, 3 every slot is held
by a call that does not end, 5 (`status --exit-code`) something needs a person.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError

import nimble_lifecycle
from nimble_lifecycle.errors import ConfigurationError, NimbleError
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.limits import Limits
from nimble_lifecycle.reconciler.redact import described, redacted
from nimble_lifecycle.reconciler.tables import (
    needs_person,
    print_json,
    print_summary,
    print_table,
    safe,
)
from nimble_lifecycle.reconciler.target import load_vendor
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.reconciler.worker import Worker
from nimble_lifecycle.settings import WorkerSettings
from nimble_lifecycle.store import Threads, WorkStore
from nimble_lifecycle.store.wakeups import Listener

DONE, FAILED, WRONG_USE, SLOTS_LOST, NEEDS_PERSON = 0, 1, 2, 3, 5

SHORT_GRACE = 600.0
"""Seconds; a shorter grace makes a reinstall likely to lose its tenancy."""

LINGER = 3.0
"""Seconds the process may take to end once it is done, or the drain is over."""

DATABASE_THREADS = 4

app = App(
    name="nimble-reconcile",
    help="Make the vendor match what workspaces want.",
    version=nimble_lifecycle.__version__,
    result_action="return_value",
)

Database = Annotated[
    str | None,
    Parameter(help="sqlite:///… or postgresql://… (default: NIMBLE_DATABASE_URL, else a file)."),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("nimble_reconcile").setLevel(logging.INFO)
    sys.exit(_guarded(lambda: app(arguments, exit_on_error=False, print_error=False)))


def _guarded(command: Callable[[], int | None]) -> int:
    try:
        return command() or DONE
    except CycloptsError as error:
        return _failed(str(error), WRONG_USE)
    except ValidationError as error:
        return _failed("; ".join(_named_settings(error)), WRONG_USE)
    except ConfigurationError as error:
        return _failed(str(error), WRONG_USE)
    except NimbleError as error:
        return _failed(str(error), FAILED)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _failed(described(error), FAILED)
    except KeyboardInterrupt:
        return _failed("interrupted", FAILED)


def _named_settings(error: ValidationError) -> list[str]:
    """Say what is wrong with which setting, by both its names and without its value."""
    return [
        f"--{name.replace('_', '-')} (NIMBLE_{name.upper()}): {found['msg']}"
        for found in error.errors(include_url=False, include_input=False)
        for name in [str(found["loc"][0])]
    ]


def _failed(text: str, code: int) -> int:
    _say(redacted(" ".join(text.split())))
    return code


@app.command
def run(
    target: str,
    *,
    database_url: Database = None,
    concurrency: int | None = None,
    grace: str | None = None,
    poll: str | None = None,
    drain: str | None = None,
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
    concurrency
        Vendor calls in flight at most (default 20).
    grace
        Between the first sight of a wish to release and the release (default 24h).
    poll
        Longest time between two looks at the database (default 1s).
    drain
        How long SIGTERM waits for calls in flight (default 10s).
    exit_when_idle
        End once nothing is due or in flight.
    """
    settings = _settings(
        database_url=database_url, concurrency=concurrency, grace=grace, poll=poll, drain=drain
    )
    vendor = load_vendor(target)
    store = WorkStore(settings.database_url.get_secret_value(), connections=DATABASE_THREADS)
    try:
        store.open()
        _greet(vendor, store, settings)
        return asyncio.run(_serve(vendor, store, settings, exit_when_idle=exit_when_idle))
    finally:
        store.close()


@app.command
def migrate(*, database_url: Database = None) -> int:
    """Make or upgrade the tables; any number of processes may do so at once."""
    store = WorkStore(_settings(database_url=database_url).database_url.get_secret_value())
    try:
        store.migrate()
        store.open()
        _say(f"{store.location} is up to date")
    finally:
        store.close()
    return DONE


@app.command
def status(
    *,
    database_url: Database = None,
    kind: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    summary: bool = False,
    exit_code: bool = False,
) -> int:
    """List tenancies that are not settled, or were settled within seven days.

    Parameters
    ----------
    database_url
        The database both halves share.
    kind
        Only this kind.
    as_json
        One JSON array on stdout.
    summary
        Counts by phase instead of rows.
    exit_code
        End with 5 when something needs a person.
    """
    store = WorkStore(_settings(database_url=database_url).database_url.get_secret_value())
    try:
        rows = store.status(kind=kind)
        location = store.location
    finally:
        store.close()
    if summary:
        print_summary(rows, as_json=as_json)
    elif as_json:
        print_json(rows)
    else:
        print_table(rows, location)
    return NEEDS_PERSON if exit_code and any(map(needs_person, rows)) else DONE


# -- running ---------------------------------------------------------------------------------------


async def _serve(
    vendor: Vendor, store: WorkStore, settings: WorkerSettings, *, exit_when_idle: bool
) -> int:
    database = Threads(DATABASE_THREADS, "nimble-store")
    threads = Threads(settings.concurrency, "nimble-vendor")
    worker = Worker(vendor, store, _limits(settings), database=database, threads=threads)
    tell = partial(_tell, asyncio.get_running_loop())
    _drain_on_signals(partial(tell, worker.stop), settings.drain)
    listener = Listener(store, partial(tell, worker.wake))
    listener.start()
    try:
        with closing(listener):
            await worker.run(until_idle=exit_when_idle)
    finally:
        database.close()
        threads.close()
        code = SLOTS_LOST if worker.all_slots_lost else DONE
        # A call that takes no cancellation, or a thread of the adapter's, must not hold us here.
        _end_after(LINGER, code)
    return code


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    """Call `what` on the loop, from another thread; a loop that is closed needs no telling."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


def _drain_on_signals(stop: Callable[[], None], drain: float) -> None:
    """Call `stop` on SIGTERM and SIGINT, and end in time with a blocked event loop too.

    The interpreter writes each signal to a socket as it comes, whatever the main thread is doing;
    a thread of its own reads it there.
    """
    heard, said = socket.socketpair()
    said.setblocking(False)

    def wait_for_signal(_open: socket.socket) -> None:
        heard.recv(1)
        _end_after(drain + LINGER, DONE)
        stop()

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
        backoff=Backoff(settings.backoff_first, settings.backoff_longest),
    )


def _settings(*, database_url: str | None, **given: int | str | None) -> WorkerSettings:
    """Read the environment; an argument beats it, and what it beats need not be valid."""
    arguments: dict[str, object] = {**given, "database_url": database_url}
    return WorkerSettings.model_validate(
        {name: value for name, value in arguments.items() if value is not None}
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
    _say(f"watching {store.location} for {vendor.kind!r}{empty}{trust}")
    if settings.grace < SHORT_GRACE:
        _say(f"a grace of {settings.grace:g} s leaves little time to undo an uninstall")
    others = [safe(kind) for kind in kinds if kind != vendor.kind]
    if others:
        _say(f"rows of other kinds are left alone: {', '.join(others)}")
    if vendor.repeatable is None and not vendor.implements("find"):
        _say("the adapter can neither repeat nor look up: unknown creates will wait for a person")


def _say(text: str) -> None:
    print(f"nimble-reconcile: {text}", file=sys.stderr)  # noqa: T201

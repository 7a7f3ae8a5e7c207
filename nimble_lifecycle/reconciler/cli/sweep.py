"""The command that sweeps once, and the options it shares with `run`."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from nimble_lifecycle.reconciler.calls import entered
from nimble_lifecycle.reconciler.cases import Wishes
from nimble_lifecycle.reconciler.cli.app import (
    DONE,
    FAILED,
    LINGER,
    NEEDS_PERSON,
    AsJson,
    Database,
    Named,
    end_after,
    say,
    settings_of,
)
from nimble_lifecycle.reconciler.findings import Report
from nimble_lifecycle.reconciler.limits import new_owner
from nimble_lifecycle.reconciler.sweep import Ports, Sweep
from nimble_lifecycle.reconciler.tables import print_findings, print_json
from nimble_lifecycle.reconciler.target import load_installations, load_vendor
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.settings import WorkerSettings
from nimble_lifecycle.store import Threads, WorkStore
from nimble_lifecycle.store.deployment import Deployment
from nimble_lifecycle.store.sweeps import SweepStore

DATABASE_THREADS = 2

TELL_EVERY = 10.0
"""Seconds between two words on how far a sweep is, where nobody watches a terminal."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What sweeps tell and do."""

    stale_after: str | None = None
    """Silence of a workspace that is told (default 30d)."""
    release_stale_after: str | None = None
    """Silence of a workspace after which its release is asked for; at least 7d (default: never)."""
    release_orphans: bool | None = None
    """Release resources that carry a whole key of ours and are no row's."""
    installations: str | None = None
    """Lists (tenant id, workspace id) of where the host has the server: module:attr or
    file.py:attr, an async iterator or what gives one."""
    release_unlisted: bool | None = None
    """Ask for the release of workspaces that are not listed there."""


def given_of(options: SweepOptions | None) -> dict[str, str | bool | None]:
    """Give the options by the names of their settings."""
    return {} if options is None else asdict(options)


def wishes_of(settings: WorkerSettings) -> Wishes:
    """Give what the operator wants of sweeps; raises TargetError for what cannot be loaded."""
    named = settings.installations
    return Wishes(
        stale_after=settings.stale_after,
        release_stale_after=settings.release_stale_after,
        release_orphans=settings.release_orphans,
        release_unlisted=settings.release_unlisted,
        installations=None if named is None else load_installations(named),
    )


def sweep(
    target: str,
    *,
    database_url: Database = None,
    deployment: Named = None,
    options: SweepOptions | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    as_json: AsJson = False,
    exit_code: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Look for what no single row can know: stale workspaces, orphans, vanished resources.

    What vanished is made anew once two sweeps found it gone. Releases are only reported unless an
    option asks for them; they too need two sweeps, an hour apart.

    Parameters
    ----------
    target
        The adapter, as for the command run.
    database_url
        The database both halves share.
    deployment
        This deployment's name, if it has one.
    options
        What sweeps tell and do; as for the command run.
    dry_run
        Write nothing at all, and say what would be done.
    as_json
        One JSON object on stdout.
    exit_code
        End with 5 when something needs a person.
    """
    settings = settings_of(database_url=database_url, deployment=deployment, **given_of(options))
    vendor, wishes = load_vendor(target), wishes_of(settings)
    store = WorkStore(settings.database_url.get_secret_value(), connections=DATABASE_THREADS)
    try:
        store.open(make=False)
        whose = Deployment(store, settings.deployment)
        if dry_run:
            whose.check()
        else:
            whose.enter()
        report = asyncio.run(_swept(vendor, store, wishes, dry_run=dry_run, as_json=as_json))
    finally:
        store.close()
    if not report.complete:
        return FAILED
    return NEEDS_PERSON if exit_code and report.needs_person else DONE


async def _swept(
    vendor: Vendor, store: WorkStore, wishes: Wishes, *, dry_run: bool, as_json: bool
) -> Report:
    """Sweep, and print what came of it here: a list that hangs may hold up the end of the loop."""
    with redirect_stdout(sys.stderr), _progress() as progress:  # what an adapter prints is no data
        report = await _sweep(vendor, store, wishes, progress, dry_run=dry_run)
    if as_json:
        print_json(report.as_json())
    else:
        print_findings(report, store.location)
    for alert in report.alerts:
        say(alert)
    if asyncio.all_tasks() != {asyncio.current_task()}:
        sys.stdout.flush()
        end_after(LINGER, FAILED)
    return report


async def _sweep(
    vendor: Vendor,
    store: WorkStore,
    wishes: Wishes,
    progress: Callable[[str, int], None],
    *,
    dry_run: bool,
) -> Report:
    database = Threads(DATABASE_THREADS, "nimble-store")
    threads = Threads(1, "nimble-list")
    try:
        ports = Ports(clock=store.clock, database=database, threads=threads, progress=progress)
        sweep = Sweep(vendor, SweepStore(store, actor=new_owner()), wishes, ports)
        async with entered(vendor):
            return await sweep.run(dry_run=dry_run)
    finally:
        database.close()
        threads.close()


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """Tell how far it is: a line that changes on a terminal, else a line from time to time."""
    if sys.stderr.isatty():
        with Console(stderr=True).status("sweeping") as status:
            yield lambda what, count: status.update(f"sweeping: {count} {what} read")
        return
    told = time.monotonic()

    def tell(what: str, count: int) -> None:
        nonlocal told
        if time.monotonic() - told >= TELL_EVERY:
            told = time.monotonic()
            say(f"sweeping: {count} {what} read")

    yield tell

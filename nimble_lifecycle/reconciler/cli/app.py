"""What the commands share: the app they register on, its exit codes, settings, and talk."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from typing import Annotated

from cyclopts import App, Parameter

import nimble_lifecycle
from nimble_lifecycle.settings import WorkerSettings
from nimble_lifecycle.store import OperatorStore, WorkStore
from nimble_lifecycle.store.deployment import Deployment

DONE, FAILED, WRONG_USE, SLOTS_LOST, FOREIGN_DATABASE, NEEDS_PERSON = range(6)
"""Exit codes of every command."""

INTERRUPTED = 130
"""The exit code of a worker that was told twice to stop, as of a shell's command after a Ctrl-C."""

LINGER = 3.0
"""Seconds the process may take to end once it is done, or the drain is over."""

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

Named = Annotated[
    str | None,
    Parameter(
        name="--deployment",
        help="This deployment's name, if it has one (default: NIMBLE_DEPLOYMENT).",
    ),
]

AsJson = Annotated[bool, Parameter(name="--json", negative=())]


def settings_of(*, database_url: str | None, **given: float | str | None) -> WorkerSettings:
    """Read the environment; an argument beats it, and what it beats need not be valid."""
    arguments: dict[str, object] = {**given, "database_url": database_url}
    return WorkerSettings.model_validate(
        {name: value for name, value in arguments.items() if value is not None}
    )


@contextmanager
def opened(database_url: str | None) -> Iterator[OperatorStore]:
    """Give the store of a command that needs what the halves made, closed at the end."""
    with unopened(database_url) as store:
        store.open(make=False)
        yield store


@contextmanager
def unopened(database_url: str | None) -> Iterator[OperatorStore]:
    """Give the store of a command that is no worker, not connected to, closed at the end."""
    settings = settings_of(database_url=database_url)
    store = OperatorStore(settings.database_url.get_secret_value())
    try:
        yield store
    finally:
        store.close()


@contextmanager
def acting(database_url: str | None, deployment: str | None) -> Iterator[OperatorStore]:
    """Give the store of a command that leads to vendor calls; raises ForeignDatabase."""
    with opened(database_url) as store:
        deployment_of(store, deployment).check()
        yield store


def deployment_of(store: WorkStore, name: str | None) -> Deployment:
    """Say as which deployment a command looks at the store."""
    return Deployment(store, settings_of(database_url=None, deployment=name).deployment)


def end_after(seconds: float, code: int) -> None:
    """End the process by then, unless it has ended by itself."""
    watchdog = threading.Timer(seconds, os._exit, args=(code,))
    watchdog.daemon = True
    watchdog.start()


def user() -> str:
    """Name who runs the command, for the journal."""
    try:
        return getuser()
    except (OSError, KeyError):  # no name for the user id, as in some containers
        return f"uid {os.getuid()}"


def say(text: str) -> None:
    """Talk to whoever runs the command; data goes to stdout, this does not."""
    print(f"nimble-reconcile: {text}", file=sys.stderr)  # noqa: T201

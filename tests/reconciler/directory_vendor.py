"""An adapter for a vendor that is a directory, so that it survives whoever is killed.

A resource is a file named by an id of the vendor's own and holding our key. The vendor knows no
idempotency keys: the same create twice is two files. Making one takes a moment before and after.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from nimble_lifecycle.reconciler import External, Provisioned, Released, Tenancy, Vendor

WORLD = Path(os.environ.get("VENDOR_DIRECTORY", "world"))


class DirectoryVendor(Vendor):
    kind = "directory"
    lag = timedelta(0)
    time_limit = timedelta(seconds=2)
    pause = 0.02

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        await asyncio.sleep(self.pause)
        name = uuid4().hex
        draft = WORLD / f".{name}"
        draft.write_text(str(tenancy.idempotency_key))
        draft.rename(WORLD / name)
        await asyncio.sleep(self.pause)
        return Provisioned(name)

    async def find(self, tenancy: Tenancy) -> External | None:
        for path in WORLD.glob("[!.]*"):
            if path.read_text() == tenancy.idempotency_key:
                return External(path.name, key=tenancy.idempotency_key)
        return None

    async def inventory(self) -> AsyncIterator[External]:
        for path in WORLD.glob("[!.]*"):
            made = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            yield External(path.name, key=path.read_text(), created_at=made)

    async def release(self, tenancy: Tenancy) -> Released:
        (WORLD / str(tenancy.external_id)).unlink(missing_ok=True)
        return Released()


class Patient(DirectoryVendor):
    """Its calls take a second; the limit is far away."""

    time_limit = timedelta(seconds=30)
    pause = 0.5


class Unhurried(DirectoryVendor):
    """None of its calls is ever too late, however slow the machine."""

    time_limit = timedelta(minutes=10)


class Endless(Unhurried):
    """Its calls wait for something that does not come."""

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        await asyncio.Event().wait()
        return Provisioned("never")


class Killer(DirectoryVendor):
    """Its process does not outlive a create for the workspace `killer`."""

    time_limit = timedelta(seconds=1)
    lag = timedelta(0)
    pause = 0.3

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        if tenancy.workspace_id == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().provision(tenancy)


class KillsInEachCall(Killer):
    """Its process does not outlive a look-up for it either."""

    async def find(self, tenancy: Tenancy) -> External | None:
        if tenancy.workspace_id == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().find(tenancy)


class Blocking(DirectoryVendor):
    """Stops the event loop for good."""

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        (WORLD / "blocked").write_text("")
        time.sleep(600)
        return Provisioned("never")


class Signalled(DirectoryVendor):
    """Opens a file of its own between two signals."""

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        (WORLD / "begun").touch()
        await asyncio.sleep(0.3)
        file = os.open(WORLD / "precious", os.O_RDWR | os.O_CREAT)
        os.pwrite(file, b"mine", 0)
        while not (WORLD / "go on").exists():
            await asyncio.sleep(0.01)
        os.close(file)
        return await super().provision(tenancy)


class Hanging(DirectoryVendor):
    """Its plain calls never end."""

    time_limit = timedelta(seconds=0.05)

    def provision(self, tenancy: Tenancy) -> Provisioned:  # type: ignore[override]
        time.sleep(600)
        return Provisioned("never")


class Failing(DirectoryVendor):
    """Tells its secrets when it fails."""

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        raise RuntimeError("postgresql://admin:hunter2@acme/db\n\x1b[31m[bold]alarm[/bold]")


class Unlisted(DirectoryVendor):
    """Its list breaks off, and tells a secret."""

    async def inventory(self) -> AsyncIterator[External]:
        async for each in super().inventory():
            yield each
            raise RuntimeError("postgresql://admin:hunter2@acme/db\n\x1b[31m[bold]alarm[/bold]")


class Chatty(DirectoryVendor):
    """Prints while it lists, and has a child that does."""

    async def inventory(self) -> AsyncIterator[External]:
        sys.stdout.write("a print\n")
        subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
        async for each in super().inventory():
            yield each


async def installations() -> AsyncIterator[tuple[str, str]]:
    yield ("", "a")


class CannotOpen(DirectoryVendor):
    async def __aenter__(self) -> "CannotOpen":
        raise ConnectionRefusedError("https://admin:hunter2@acme.test refused")

    async def __aexit__(self, *_: object) -> None: ...


class Lacking(Vendor):
    kind = "directory"

    async def provision(self, tenancy: Tenancy) -> Provisioned:
        return Provisioned("x")


sys.stdout.write("talk of the module's own, which must not meet the data on stdout\n")

"""Acme's service as a process of its own, for the demo and the tests of this example."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx2

ADMIN_TOKEN = "admin-token-of-the-tests"  # noqa: S105
PATIENCE = 60.0
"""Seconds that a request of a test, or the end of the process, may take on a slow machine."""


@dataclass(frozen=True)
class Acme:
    """A running service: its address, its file, and a client that has the admin token."""

    url: str
    database: Path
    admin: httpx2.Client
    label: str = ""
    """Begins every idempotency key of a test: Acme remembers those of the tests before."""

    def misbehave(self, kind: str, **how: object) -> None:
        """Switch a fault on."""
        self.admin.put("/faults", json={"kind": kind, **how}).raise_for_status()

    def misbehaving(self) -> bool:
        """Whether the next requests will meet a fault."""
        return self.admin.get("/faults").raise_for_status().json() is not None

    def behave(self) -> None:
        """Switch any fault off."""
        self.admin.delete("/faults").raise_for_status()

    def tenancies(self, **query: str) -> list[dict[str, str | None]]:
        """List what exists."""
        answer = self.admin.get("/tenancies", params={"limit": "100", **query})
        found: list[dict[str, str | None]] = answer.raise_for_status().json()["tenancies"]
        return found

    def mail(self, tenancy_id: str) -> list[dict[str, str]]:
        """List what a tenancy sent."""
        answer = self.admin.get(f"/tenancies/{tenancy_id}/mail")
        sent: list[dict[str, str]] = answer.raise_for_status().json()["mail"]
        return sent

    def finish(self) -> None:
        """Let what is being provisioned be done, as if its time had passed."""
        with closing(sqlite3.connect(self.database, timeout=PATIENCE)) as books, books:
            books.execute("UPDATE tenancy SET active_at = created_at")

    def clear(self) -> None:
        """Make it as new."""
        self.behave()
        for tenancy in self.tenancies():
            self.admin.delete(f"/tenancies/{tenancy['id']}")


@contextmanager
def serving(database: Path, *, log: IO[bytes] | None = None, **environment: str) -> Iterator[Acme]:
    """Run the service on a free port for the time of the block; it talks to `log`, or to stderr."""
    program = Path(__file__).with_name("vendor_api.py")
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, program, "--port", "0", "--database", database],
        env={**os.environ, "ACME_ADMIN_TOKEN": ADMIN_TOKEN, **environment},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    assert process.stdout is not None  # noqa: S101
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    try:
        url = process.stdout.readline().strip()
        with httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE) as admin:
            yield Acme(url, database, admin)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()

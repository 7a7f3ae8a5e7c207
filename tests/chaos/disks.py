"""Disks that can be filled, for a SQLite database to lie on."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, TypeAlias

from chaos.processes.pages import ROOMY


class Tmpfs:
    """A disk with room for a write-ahead log, which may be 4 MB before SQLite reuses it."""

    environment: ClassVar[dict[str, str]] = {}

    def __init__(self, place: Path) -> None:
        self._filler = place / "filler"

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as filler, suppress(OSError):
            while filler.write(b"\0" * 4096):
                pass

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


class Pages:
    """A database that may not grow, where nobody lets us mount a disk."""

    def __init__(self, place: Path) -> None:
        self._limit = place / "pages"
        self.environment = {"CHAOS_PAGES": str(self._limit)}
        self.free()

    def fill(self) -> None:
        self._limit.write_text("1")

    def free(self) -> None:
        self._limit.write_text(str(ROOMY))


Disk: TypeAlias = Tmpfs | Pages


@contextmanager
def small_disk(place: Path) -> Iterator[Disk]:
    """Give a small disk at a new directory; a real one where mounting is allowed."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "nimble", place]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield Pages(place)
        return
    try:
        yield Tmpfs(place)
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)

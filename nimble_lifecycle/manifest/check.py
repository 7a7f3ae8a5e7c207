"""A manifest held against a server: what is wrong, and what writing would change."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.manifest.block import find_handlers
from nimble_lifecycle.manifest.document import Document, Edit, read_document, write_text
from nimble_lifecycle.manifest.target import read_listing
from nimble_lifecycle.protocol import Event


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a build should fail, in one line that says what to do; `file` where it is about one."""

    words: str
    file: Path | None = None

    def __str__(self) -> str:
        return self.words if self.file is None else f"{self.file}: {self.words}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What stands between a manifest and its server.

    Where `refusals` is not empty, nothing can be written; `edits` is what writing would change.
    """

    manifest: Path
    document: Document
    names: Mapping[Event, str]
    refusals: Sequence[Finding]
    edits: Sequence[Edit]

    def write(self) -> None:
        """Make the edits, if there are any, in the file. Raises ConfigurationError."""
        if self.edits:
            write_text(self.manifest, self.document.edited(self.edits))


def compare(
    target: str, manifest: Path, host_version: str | None = None, entry: str | None = None
) -> Comparison:
    """Hold a manifest against the server that `target` names.

    `host_version` raises the block's own, which is never lowered; `entry` names one server of a
    catalog. Raises ConfigurationError for a target, a file or a version that cannot be used, and
    where a name would be removed while it cannot be known whether its handler is gone.
    """
    refuse_no_version(host_version)
    listing = read_listing(target)
    handlers = find_handlers(listing)
    document = read_document(manifest, entry)
    about_server = [Finding(words) for words in handlers.findings]
    about_file = [Finding(words, manifest) for words in document.refusals(handlers)]
    refusals = [*about_server, *about_file]
    edits = [] if refusals else document.edits(handlers.names, host_version)
    if listing.unheard and any(edit.value is None for edit in edits):
        raise ConfigurationError(
            f"no name is removed from {manifest} while a part of {target} does not list its tools: "
            f"mend or start it ({'; '.join(listing.unheard)})"
        )
    return Comparison(manifest, document, handlers.names, refusals, edits)


def repair(target: str, manifest: Path, host_version: str | None, entry: str | None) -> str:
    """Give the command that makes the edits of a comparison."""
    command = ["nimble-manifest", "write", target, "--manifest", str(manifest)]
    command += ["--host-version", host_version] if host_version else []
    command += ["--entry", entry] if entry else []
    return shlex.join(command)


def refuse_no_version(host_version: str | None) -> None:
    """Raise ConfigurationError for a host version that is none."""
    try:
        Version(host_version or "0")
    except InvalidVersion:
        raise ConfigurationError(
            f"host version {host_version!r} is no version: write for example 1.5"
        ) from None

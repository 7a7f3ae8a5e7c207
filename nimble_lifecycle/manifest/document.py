"""A manifest.json: what is wrong with it, what must change, and the change itself.

Only `host_version` (where missing) and the names of the lifecycle block are ever changed.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from pydantic import ValidationError

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.manifest.block import Manifest
from nimble_lifecycle.manifest.edit import remove, set_value
from nimble_lifecycle.protocol import HOST_ID, HOST_VERSION, Event, Json

_HOST = ("_meta", HOST_ID)
_LIFECYCLE = (*_HOST, "lifecycle")


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: the value that `path` must have, None where it must go, and why."""

    path: tuple[str, ...]
    value: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a manifest and what it says; read with `read_document`."""

    text: str
    content: dict[str, Json]

    def refusals(self) -> list[str]:
        """Say why this manifest cannot carry the block as it is; empty where it can."""
        try:
            Manifest.model_validate(self.content)
        except ValidationError as error:
            return [
                f"{'.'.join(map(str, problem['loc']))}: {_words(problem['msg'])}"
                for problem in error.errors()
            ]
        return []

    def edits(self, names: Mapping[Event, str]) -> list[Edit]:
        """List what must change for hosts to call exactly the tools in `names`."""
        host = Manifest.model_validate(self.content).meta.host
        said: dict[str, Json] = host.lifecycle.model_dump(exclude_unset=True)
        wanted = {event.block_key: name for event, name in names.items()}
        edits = []
        if wanted and "host_version" not in host.model_fields_set:
            why = f'host_version is missing, must be "{HOST_VERSION}"'
            edits.append(Edit((*_HOST, "host_version"), HOST_VERSION, why))
        gone = {event.block_key for event in Event} & said.keys() - wanted.keys()
        if "lifecycle" in host.model_fields_set and not wanted and gone == said.keys():
            why = "lifecycle names handlers that the server does not list"
            return [Edit(_LIFECYCLE, None, why)]
        for key, name in wanted.items():
            if said.get(key) != name:
                edits.append(Edit((*_LIFECYCLE, key), name, _mismatch(key, said.get(key), name)))
        for key in sorted(gone):
            why = f"{key} is {json.dumps(said[key])}, but no listed tool is marked for it"
            edits.append(Edit((*_LIFECYCLE, key), None, why))
        return edits

    def edited(self, edits: list[Edit]) -> str:
        """Give the text with `edits` made and every other character kept."""
        text = self.text
        for edit in edits:
            text = (
                remove(text, edit.path)
                if edit.value is None
                else set_value(text, edit.path, edit.value)
            )
        return text


def read_document(path: Path) -> Document:
    """Read a manifest; raises ConfigurationError where there is none or it is no JSON object."""
    try:
        text = path.read_bytes().decode()
        content = json.loads(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} is not a manifest: its JSON is not an object")
    return Document(text, content)


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file at once: a reader sees the old or the new, never a part.

    Raises ConfigurationError where the directory or the file may not be written.
    """
    path = path.resolve()  # a symbolic link stays one
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
                shutil.copymode(path, file.name)
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


def _mismatch(key: str, said: Json, name: str) -> str:
    if said is None:
        return f"{key} is missing, must be {json.dumps(name)}"
    return f"{key} is {json.dumps(said)}, must be {json.dumps(name)}"


def _words(message: str) -> str:
    return message.removeprefix("Value error, ")

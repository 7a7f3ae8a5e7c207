"""A manifest: what is wrong with it, what must change, and the change itself.

MCPB `manifest.json` files and MCP Registry entries (`server.json`, in catalogs also YAML, or one of
several under `servers`) carry the same `_meta`; in any other file no host looks. Only
`host_version` (where missing, or asked for) and the names of the lifecycle block are ever changed.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType

import yaml
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.manifest import json_text, yaml_text
from nimble_lifecycle.manifest.block import Handlers
from nimble_lifecycle.manifest.json_text import Place
from nimble_lifecycle.protocol import HOST_ID, HOST_VERSION, Event, Json

OLDEST_MANIFEST = Version("0.3")
"""First MCPB manifest version that allows `_meta`."""

_ENTRY_KEYS = ("name", "description", "version")
"""What a catalog entry must have (schema of the MCP Registry, ServerDetail)."""

_ENTRY_NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
"""What the `name` of a catalog entry looks like (the same)."""

_HOST = ("_meta", HOST_ID)
_LIFECYCLE = (*_HOST, "lifecycle")


class Lifecycle(BaseModel):
    """Names of the tools a host calls; other keys are not ours and stay."""

    model_config = ConfigDict(extra="allow")

    on_ready: str | None = None
    on_removing: str | None = None


class HostBlock(BaseModel):
    """What we touch of `_meta["ai.nimblebrain/host"]`."""

    host_version: str = HOST_VERSION
    lifecycle: Lifecycle = Lifecycle()


class Meta(BaseModel):
    """What we touch of a manifest's `_meta`. Its values are objects (MCPB schema, 0.3)."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Json]] = Field(init=False)

    host: HostBlock = Field(default=HostBlock(), alias=HOST_ID)


class Manifest(BaseModel):
    """What we touch of a manifest. An MCPB one older than 0.3 cannot carry `_meta` at all."""

    manifest_version: str | None = None
    dxt_version: str | None = None
    meta: Meta = Field(default=Meta(), alias="_meta")

    @field_validator("manifest_version", "dxt_version")
    @classmethod
    def _allows_meta(cls, value: str | None) -> str | None:
        try:
            too_old = value is not None and Version(value) < OLDEST_MANIFEST
        except InvalidVersion:
            raise ValueError(f"{value!r} is not a version: write for example 0.3") from None
        if too_old:
            raise ValueError(
                f"{value} does not allow _meta, where hosts look for the lifecycle block: "
                f"raise it to {OLDEST_MANIFEST} or newer"
            )
        return value


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
    whole: dict[str, Json]
    """All that the text says."""
    place: Place
    """Where in it the manifest is: `()`, or `("servers", 2)` in a catalog."""
    language: ModuleType
    """`json_text` or `yaml_text`: what edits such text."""

    @property
    def content(self) -> dict[str, Json]:
        """The manifest itself."""
        return _at(self.whole, self.place)

    def refusals(self, handlers: Handlers) -> list[str]:
        """Say why this manifest cannot carry the block as it is; empty where it can."""
        try:
            manifest = Manifest.model_validate(self.content)
        except ValidationError as error:
            return [
                f"{'.'.join(map(str, problem['loc']))}: {_words(problem)}"
                for problem in error.errors()
            ]
        said: dict[str, Json] = manifest.meta.host.lifecycle.model_dump(exclude_unset=True)
        return [
            f'{event.block_key} names "{said[event.block_key]}", which is listed but not marked: '
            f"hosts that read the wire never call it; register it with lifecycle.{event.block_key}"
            for event in Event
            if event not in handlers.names and said.get(event.block_key) in handlers.listed
        ]

    def edits(self, names: Mapping[Event, str], host_version: str | None = None) -> list[Edit]:
        """List what must change for hosts to call exactly the tools in `names`.

        `host_version` raises the one that is there, and never lowers it.
        """
        host = Manifest.model_validate(self.content).meta.host
        said: dict[str, Json] = host.lifecycle.model_dump(exclude_unset=True)
        wanted = {event.block_key: name for event, name in names.items()}
        edits = _version_edits(host, host_version) if wanted else []
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

    def edited(self, edits: Sequence[Edit]) -> str:
        """Give the text with `edits` made and every other character kept.

        Raises ConfigurationError where the text is written in a way that does not allow it.
        """
        try:
            text = reduce(self._with, edits, self.text)
            in_place = self.language.loaded(text) == self._applied(edits)
        except yaml.YAMLError:  # the text had an alias of what is gone
            in_place = False
        if not in_place:
            raise ConfigurationError(
                "the block cannot be written in place: write _meta as a plain mapping first, "
                "without anchors and aliases"
            )
        return text

    def _with(self, text: str, edit: Edit) -> str:
        if edit.value is None:
            return str(self.language.remove(text, edit.path, self.place))
        return str(self.language.set_value(text, edit.path, edit.value, self.place))

    def _applied(self, edits: Sequence[Edit]) -> dict[str, Json]:
        """Make the edits on what the text says, as a check of what they made of the text."""
        after = deepcopy(self.whole)
        for edit in edits:
            inner = _at(after, self.place)
            for key in edit.path[:-1]:
                inside = inner.get(key)
                if not isinstance(inside, dict):
                    inside = inner[key] = {}
                inner = inside
            if edit.value is None:
                del inner[edit.path[-1]]
            else:
                inner[edit.path[-1]] = edit.value
        return after


def read_document(path: Path, entry: str | None = None) -> Document:
    """Read a manifest, in a catalog of several the one named `entry`.

    Raises ConfigurationError where there is none, or where it is one that no host reads.
    """
    language = yaml_text if path.suffix.lower() in (".yaml", ".yml") else json_text
    name = "YAML" if language is yaml_text else "JSON"
    try:
        text = path.read_bytes().decode()
        whole = language.loaded(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        what = " ".join(str(error).split())
        raise ConfigurationError(f"{path} is not {name}: {what}") from error
    if not isinstance(whole, dict):
        raise ConfigurationError(f"{path} is not a manifest: its {name} is not an object")
    servers = None if _is_bundle(whole) else whole.get("servers")
    place = _place(servers, path, entry) if isinstance(servers, list) else ()
    if entry is not None and not place:
        raise ConfigurationError(f"{path} has no list of servers: leave out --entry {entry}")
    _refuse_unread(_at(whole, place), ".".join([str(path), *map(str, place)]))
    return Document(text, whole, place, language)


def _is_bundle(content: Mapping[str, Json]) -> bool:
    """Whether it says that it is the manifest of a bundle (MCPB, before that DXT)."""
    return any(content.get(name) is not None for name in ("manifest_version", "dxt_version"))


def _place(servers: Sequence[Json], path: Path, entry: str | None) -> Place:
    """Find the one server of a catalog that is meant."""
    names = [server.get("name") if isinstance(server, dict) else None for server in servers]
    meant = [at for at, name in enumerate(names) if entry is None or name == entry]
    if len(meant) == 1:
        return "servers", meant[0]
    known = ", ".join(map(str, names)) or "none"
    if entry is None:
        raise ConfigurationError(f"{path} has {len(names)} servers: name one with --entry: {known}")
    raise ConfigurationError(
        f"{path} has {len(meant)} servers named {entry}: its names are {known}"
    )


def _at(whole: dict[str, Json], place: Place) -> dict[str, Json]:
    """Give the manifest in what its file says; nothing where it is no object."""
    inner: Json = whole
    for key in place:
        inner = inner[key]  # type: ignore[index]  # the place was found in it
    return inner if isinstance(inner, dict) else {}


def _refuse_unread(content: Mapping[str, Json], label: str) -> None:
    """Raise ConfigurationError for what is neither of the two kinds that hosts read."""
    if _is_bundle(content):
        return
    wrapped = content.get("server")
    if isinstance(wrapped, dict) and "name" in wrapped:
        raise ConfigurationError(
            f"{label} is an answer of a registry: write what is under server to a file of its own "
            "and name that with --manifest"
        )
    lacking = [key for key in _ENTRY_KEYS if not isinstance(content.get(key), str)]
    named = _ENTRY_NAME.fullmatch(str(content.get("name")))
    if named and not lacking:
        return
    missing = f"no text for {', '.join(lacking)}"
    why = missing if lacking else "a name that is not like io.github.user/tool"
    raise ConfigurationError(
        f"{label} is neither an MCPB manifest (it has no manifest_version) nor a catalog entry (it "
        f"has {why}), and no host reads it: mend it, or name another file with --manifest"
    )


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


def _version_edits(host: HostBlock, asked: str | None) -> list[Edit]:
    path = (*_HOST, "host_version")
    if "host_version" not in host.model_fields_set:
        wanted = asked or HOST_VERSION
        return [Edit(path, wanted, f'host_version is missing, must be "{wanted}"')]
    if asked is None or not _is_lower(host.host_version, asked):
        return []
    return [Edit(path, asked, f'host_version is "{host.host_version}", must be "{asked}"')]


def _is_lower(said: str, asked: str) -> bool:
    """Whether a version is below another; one that is no version is somebody's, and stays."""
    try:
        return Version(said) < Version(asked)
    except InvalidVersion:
        return False


def _mismatch(key: str, said: Json, name: str) -> str:
    if said is None:
        return f"{key} is missing, must be {json.dumps(name)}"
    return f"{key} is {json.dumps(said)}, must be {json.dumps(name)}"


def _words(problem: ErrorDetails) -> str:
    """Say in a manifest's own words what is wrong with a value of it."""
    match problem["type"], problem["input"]:
        case "string_type", (bool() | int() | float()) as value:
            return f"{json.dumps(value)} is not text; quote it"
        case "string_type", _:
            return "must be text; write it in quotes, or remove it"
        case "model_type" | "dict_type", value:
            return f"{json.dumps(value, default=str)} is no object; make it one or remove it"
    return problem["msg"].removeprefix("Value error, ")

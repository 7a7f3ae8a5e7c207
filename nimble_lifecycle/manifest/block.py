"""The lifecycle block of a manifest, and what a host would read of a server to fill it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastmcp import FastMCP
from fastmcp.utilities.versions import dedupe_with_versions
from mcp_types import Tool
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, field_validator

from nimble_lifecycle.protocol import HOST_ID, HOST_VERSION, LIFECYCLE_ID, Event

OLDEST_MANIFEST = Version("0.3")
"""First MCPB manifest version that allows `_meta`."""


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
    """What we touch of a manifest's `_meta`."""

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
class Handlers:
    """The marked tools of a server: a name for each event, and why hosts would refuse them.

    Where `findings` is not empty, `names` must not be written anywhere.
    """

    names: Mapping[Event, str] = field(default_factory=dict)
    findings: Sequence[str] = ()


async def listed_tools(server: FastMCP) -> list[Tool]:
    """List the tools of a server as its clients see them, without running it."""
    newest = dedupe_with_versions(list(await server.list_tools()), lambda tool: tool.name)
    return [tool.to_mcp_tool() for tool in newest]


def find_handlers(tools: Sequence[Tool]) -> Handlers:
    """Find the tool marked for each event, and everything for which a host would refuse one."""
    marked: dict[Event, list[Tool]] = {event: [] for event in Event}
    findings = []
    for tool in tools:
        marker = (tool.meta or {}).get(LIFECYCLE_ID)
        if marker is None:
            continue
        event = marker.get("event") if isinstance(marker, dict) else None
        if event in list(Event):
            marked[Event(event)].append(tool)
            findings += _refusals(tool)
        else:
            findings.append(
                f'tool "{tool.name}" is marked for an event no host knows: '
                f"the marker's event must be {' or '.join(Event)}"
            )
    for event, several in marked.items():
        if len(several) > 1:
            names = ", ".join(f'"{tool.name}"' for tool in several)
            findings.append(f'event "{event}" is marked on {names}: hosts call none; keep one')
    names_found = {event: found[0].name for event, found in marked.items() if found}
    return Handlers(names_found, findings)


def _refusals(tool: Tool) -> list[str]:
    findings = []
    if required := tool.input_schema.get("required"):
        findings.append(
            f'tool "{tool.name}" requires {", ".join(map(str, required))}: '
            "hosts call it without arguments; give each parameter a default"
        )
    support = tool.execution.task_support if tool.execution else None
    if support in ("optional", "required"):
        findings.append(
            f'tool "{tool.name}" has task support "{support}": hosts refuse it; set task=False'
        )
    return findings

"""What a host reads of a lifecycle tool: a constant, flat schema, and the marker of its event."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mcp_types import ToolAnnotations

from nimble_lifecycle.core.handler import Handler
from nimble_lifecycle.protocol import LIFECYCLE_ID, Event, Json, Reason

_DESCRIPTION: Final = {
    Event.READY: "Called by the host when this server becomes reachable in a workspace.",
    Event.REMOVING: "Called by the host just before this server is removed from a workspace.",
}

REASON: Final[dict[str, Json]] = {
    "type": "string",
    "enum": [reason.value for reason in Reason],
    "default": Reason.RESUME.value,
    "description": "Why the host calls: a person's install, or anything else.",
}
"""The schema of the one property that hosts send, on the tool of `ready`."""


@dataclass(frozen=True, kw_only=True)
class ToolTexts:
    """What the author says about a tool; None leaves it to the function."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    meta: Mapping[str, Json]

    def of(self, handler: Handler) -> "ToolTexts":
        """Fill in what the handler says of itself, and merge the marker over the author's meta."""
        return replace(
            self,
            name=handler.name,
            description=self.description or handler.description or _DESCRIPTION[handler.event],
            meta={**self.meta, LIFECYCLE_ID: {"event": handler.event.value}},
        )


def annotations_of(event: Event) -> ToolAnnotations:
    """Tell clients what a lifecycle tool may do."""
    return ToolAnnotations(
        read_only_hint=False,
        destructive_hint=event is Event.REMOVING,
        idempotent_hint=True,
        open_world_hint=False,
    )

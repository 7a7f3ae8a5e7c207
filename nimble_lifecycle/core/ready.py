"""What ordinary tools get where the tenancy is not ready: a tool error an agent can act on."""

from typing import Final

from nimble_lifecycle.errors import NimbleError
from nimble_lifecycle.protocol import Json, Phase, Tenancy

_SETTING_UP: Final = "This workspace's resource is being set up."
_GONE: Final = (
    "This workspace's resource has been removed. Install the server again to get a new one."
)
_STATES: Final[dict[Phase, tuple[str, float | None]]] = {
    Phase.PENDING: (_SETTING_UP, 5.0),
    Phase.PROVISIONING: (_SETTING_UP, 5.0),
    Phase.READY: (_SETTING_UP, 5.0),
    Phase.UNRESOLVED: ("Setting up this workspace's resource takes longer than usual.", 60.0),
    Phase.STALLED: ("Setting up this workspace's resource needs the operator's attention.", 600.0),
    Phase.RELEASE_PENDING: ("This workspace's resource is about to be removed.", None),
    Phase.RELEASING: ("This workspace's resource is being removed.", None),
    Phase.RELEASED: (_GONE, None),
    Phase.KEPT: (_GONE, None),
}


class NotReady(NimbleError):  # a state, not a fault
    """The workspace's tenancy cannot be used now.

    `phase` is the one shown, `message` a fixed sentence (never the vendor's words),
    `retry_after_seconds` when to call again; None: only another install helps.
    """

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.message, self.retry_after_seconds = _STATES[phase]
        again = self.retry_after_seconds
        advice = "" if again is None else f" Try again in {again:g} seconds."
        super().__init__(f"{self.message}{advice}")

    @property
    def content(self) -> dict[str, Json]:
        """The structured content of the tool error that callers see."""
        return {
            "phase": self.phase.value,
            "message": self.message,
            "retry_after_seconds": self.retry_after_seconds,
        }


def usable(tenancy: Tenancy) -> bool:
    """Whether tools may use the tenancy: its resource is there, and no release has started.

    It is there, too, while the vendor brings it to other params, as an operation.
    """
    if tenancy.phase in (Phase.PROVISIONING, Phase.RELEASE_PENDING):
        return tenancy.external_id is not None
    return tenancy.phase is Phase.READY

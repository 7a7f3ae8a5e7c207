"""Own something per workspace at a vendor, exactly while your MCP server is installed there.

The names here are what the author of a server needs; each is loaded when it is first used, so that
importing one half of the package never loads another. The worker's names are in
`nimble_lifecycle.reconciler`, the test kit in `nimble_lifecycle.testing`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nimble_lifecycle.protocol import Phase, Reason, Tenancy, Workspace
    from nimble_lifecycle.server import Lifecycle, NotReady

__version__ = "0.1.0"

__all__ = ["Lifecycle", "NotReady", "Phase", "Reason", "Tenancy", "Workspace"]

_ROOMS = {
    "Lifecycle": "nimble_lifecycle.server",
    "NotReady": "nimble_lifecycle.server",
    "Phase": "nimble_lifecycle.protocol",
    "Reason": "nimble_lifecycle.protocol",
    "Tenancy": "nimble_lifecycle.protocol",
    "Workspace": "nimble_lifecycle.protocol",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The test kit: doubles that misbehave when they are told to, and checks for what others wrote.

The host and what rests on it are loaded when they are first used: they load FastMCP, which tests of
adapters do without.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from nimble_lifecycle.testing.clock import ManualClock
from nimble_lifecycle.testing.conformance import check_vendor
from nimble_lifecycle.testing.report import Checked, Leftover, Report, Verdict
from nimble_lifecycle.testing.sandbox import Sandbox, Trouble
from nimble_lifecycle.testing.vendor import MemoryVendor, PlainMemoryVendor
from nimble_lifecycle.testing.world import Fault, Resource, World

if TYPE_CHECKING:
    from nimble_lifecycle.testing.host import Host, Misbehaviour, serving
    from nimble_lifecycle.testing.servers import ServerReport, check_server

__all__ = [
    "Checked",
    "Fault",
    "Host",
    "Leftover",
    "ManualClock",
    "MemoryVendor",
    "Misbehaviour",
    "PlainMemoryVendor",
    "Report",
    "Resource",
    "Sandbox",
    "ServerReport",
    "Trouble",
    "Verdict",
    "World",
    "check_server",
    "check_vendor",
    "serving",
]

_LATER = {
    "Host": "host",
    "Misbehaviour": "host",
    "ServerReport": "servers",
    "check_server": "servers",
    "serving": "host",
}


def __getattr__(name: str) -> object:
    """Load a name of the host on first use (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"nimble_lifecycle.testing.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The test kit: doubles that misbehave when they are told to, and checks for adapters."""

from nimble_lifecycle.testing.clock import ManualClock
from nimble_lifecycle.testing.conformance import check_vendor
from nimble_lifecycle.testing.report import Checked, Leftover, Report, Verdict
from nimble_lifecycle.testing.sandbox import Sandbox, Trouble
from nimble_lifecycle.testing.vendor import MemoryVendor, PlainMemoryVendor
from nimble_lifecycle.testing.world import Fault, Resource, World

__all__ = [
    "Checked",
    "Fault",
    "Leftover",
    "ManualClock",
    "MemoryVendor",
    "PlainMemoryVendor",
    "Report",
    "Resource",
    "Sandbox",
    "Trouble",
    "Verdict",
    "World",
    "check_vendor",
]

"""The test kit: doubles of what a lifecycle depends on, that misbehave when they are told to."""

from nimble_lifecycle.testing.clock import ManualClock
from nimble_lifecycle.testing.vendor import MemoryVendor, PlainMemoryVendor
from nimble_lifecycle.testing.world import Fault, Resource, World

__all__ = [
    "Fault",
    "ManualClock",
    "MemoryVendor",
    "PlainMemoryVendor",
    "Resource",
    "World",
]

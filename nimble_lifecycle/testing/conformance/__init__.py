"""The public conformance suite for adapters: what it calls, what it looks at, what it finds."""

from nimble_lifecycle.testing.conformance.suite import Adapter, check_vendor

__all__ = ["Adapter", "check_vendor"]

"""The privileged half: the contract for adapters and the worker that drives them."""

from nimble_lifecycle.errors import (
    CredentialError,
    Gone,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
    UnknownOutcome,
    VendorError,
)
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Released, Vendor

__all__ = [
    "CredentialError",
    "External",
    "Gone",
    "InProgress",
    "NameConflict",
    "PermanentError",
    "Provisioned",
    "RateLimited",
    "Released",
    "TemporaryError",
    "Tenancy",
    "Unavailable",
    "UnknownOutcome",
    "Vendor",
    "VendorError",
]

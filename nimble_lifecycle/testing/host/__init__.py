"""A host as a test double: what the hosts of three generations read, call and refuse."""

from nimble_lifecycle.testing.host.connection import Era, Target, Token
from nimble_lifecycle.testing.host.handlers import Generation, Handler, Handlers, find
from nimble_lifecycle.testing.host.host import Block, Call, Failure, Host, Installed, Misbehaviour
from nimble_lifecycle.testing.host.serving import serving

__all__ = [
    "Block",
    "Call",
    "Era",
    "Failure",
    "Generation",
    "Handler",
    "Handlers",
    "Host",
    "Installed",
    "Misbehaviour",
    "Target",
    "Token",
    "find",
    "serving",
]

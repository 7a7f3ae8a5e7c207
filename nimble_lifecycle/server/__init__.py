"""The unprivileged half: two decorators that turn functions into lifecycle tools.

Importing it opens nothing and loads no database driver; the store is loaded when serving starts.
"""

from nimble_lifecycle.server.lifecycle import Lifecycle
from nimble_lifecycle.server.ready import NotReady

__all__ = ["Lifecycle", "NotReady"]

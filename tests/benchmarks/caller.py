"""Which workspace calls: every side reads it the same way, so that none pays more for it."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from uuid import uuid4

from nimble_lifecycle import Workspace


@dataclass(slots=True)
class Caller:
    """A host, calling for one workspace after the other."""

    workspace_id: str = ""
    _name: str = field(default_factory=lambda: uuid4().hex)
    _numbers: "count[int]" = field(default_factory=count)

    def install(self) -> None:
        """Call for a workspace that never called before."""
        self.workspace_id = f"{self._name}_{next(self._numbers)}"

    def resume(self, among: int = 1) -> None:
        """Call for one of so many workspaces, each after the others."""
        self.workspace_id = f"{self._name}_{next(self._numbers) % among}"


current: ContextVar[Caller] = ContextVar("current")
"""Who calls. What is served in the background of a caller shares it."""


async def workspace(_context: object) -> Workspace:
    """Give `Lifecycle(workspace=...)` the workspace of the call.

    A coroutine, since it waits for nothing: a plain function would be given a thread.
    """
    return Workspace(current.get().workspace_id)

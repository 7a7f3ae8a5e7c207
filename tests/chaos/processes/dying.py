"""Where a process of the chaos tests kills itself, as SIGKILL from outside would."""

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Death:
    """A named point of a step: `claimed`, `applied`, `answered` or `settled`; empty for none."""

    step: str = ""
    point: str = ""

    @classmethod
    def from_environment(cls) -> "Death":
        """Read CHAOS_DEATH, `step:point`."""
        step, _, point = os.environ.get("CHAOS_DEATH", "").partition(":")
        return cls(step, point)

    def at(self, point: str, *steps: str) -> None:
        """Die if this is the point, and one of these the step."""
        if self.point == point and self.step in steps:
            os.kill(os.getpid(), signal.SIGKILL)

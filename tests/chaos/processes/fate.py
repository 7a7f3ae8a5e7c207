"""Where a process of the chaos tests sends itself a signal, as if it came from outside just then."""

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Fate:
    """A named point of a step, and the signal that comes there; no step: none comes.

    The points, in order: `claimed`, `begun` (the request is about to be sent), `applied` (the
    answer has not reached the adapter), `answered` (the row is not settled), `settled`.
    """

    step: str
    point: str
    signal: signal.Signals

    @classmethod
    def from_environment(cls) -> "Fate":
        """Read CHAOS_FATE, `step:point:signal`."""
        step, point, number = os.environ.get("CHAOS_FATE", "::SIGKILL").split(":")
        return cls(step, point, signal.Signals[number])

    def at(self, point: str, *steps: str) -> None:
        """Meet it if this is the point, and one of these the step."""
        if self.point == point and self.step in steps:
            os.kill(os.getpid(), self.signal)

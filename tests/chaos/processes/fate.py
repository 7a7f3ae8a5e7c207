"""Where a process of the chaos tests sends itself a signal, as if it came from outside."""

import os
import signal
import threading


class Fate:
    """A named point of a step, and the signal that comes there; no step: none comes.

    The points, in order: `claimed`, `begun` (the request is about to be sent), `applied` (the
    answer has not reached the adapter), `answered` (the row is not settled), `settled`.
    """

    def __init__(self, step: str, point: str, number: str, spared: str) -> None:
        self._step = step
        self._point = point
        self._signal = signal.Signals[number]
        self._spared = int(spared)

    @classmethod
    def from_environment(cls) -> "Fate":
        """Read CHAOS_FATE, `step:point:signal:spared`: it comes after it has spared that many."""
        return cls(*os.environ.get("CHAOS_FATE", "::SIGKILL:0").split(":"))

    def at(self, point: str, *steps: str) -> None:
        """Meet it if this is the point, and one of these the step."""
        if self._point != point or self._step not in steps:
            return
        if self._spared == 0:
            # To this thread: another may take its time, and this one meanwhile goes on.
            signal.pthread_kill(threading.get_ident(), self._signal)
        self._spared -= 1

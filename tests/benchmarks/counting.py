"""What every worker calls: nothing, or something slow, counted and timed."""

import asyncio
import random
import time
from collections.abc import Callable

WARM = 0.2
"""The part of the calls that warm up; rates are taken of the others."""


class Counting:
    """Counts `calls` that are to come, 0 where nobody knows, and notes when each began.

    `latency` gives the seconds of one call.
    """

    def __init__(self, calls: int, latency: Callable[[], float] | None = None) -> None:
        self.begun: list[float] = []
        self._calls = calls
        self._first = int(calls * WARM)
        self._latency = latency
        self._cpu: list[float] = []

    async def call(self) -> None:
        """Be called once."""
        if self._calls and len(self.begun) in (self._first, self._calls - 1):
            self._cpu.append(time.process_time())  # a system call: not for each
        self.begun.append(time.monotonic())
        if self._latency is not None:
            await asyncio.sleep(self._latency())

    def rate(self, since: float = WARM, until: float = 1.0) -> float:
        """Give calls a second between these parts of all calls."""
        self.check()
        first, last = int(self._calls * since), int(self._calls * until) - 1
        return (last - first) / (self.begun[last] - self.begun[first])

    def cpu(self) -> float:
        """Give the CPU seconds that one call cost this process."""
        self.check()
        first, last = self._cpu
        return (last - first) / (self._calls - 1 - self._first)

    def check(self) -> None:
        """Refuse to say anything where something was called twice, or not at all."""
        if len(self.begun) != self._calls:
            raise AssertionError(f"{len(self.begun)} calls for {self._calls} rows")


def exponential(mean: float) -> Callable[[], float]:
    """Give latencies that are spread as those of a busy vendor are."""
    chance = random.Random(7)
    return lambda: chance.expovariate(1 / mean)

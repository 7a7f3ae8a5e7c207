"""What every worker calls: nothing, or something slow, counted and timed."""

import asyncio
import random
import time
from collections.abc import Callable

WARM = 0.2
"""The part of the calls that warm up; rates are taken of the others."""
LOOK = 0.05
"""Seconds between two looks at calls that others make."""


class Counting:
    """Counts `calls` that are to come, 0 where nobody knows, and notes when each began.

    `latency` gives the seconds of one call.
    """

    def __init__(self, calls: int, latency: Callable[[], float] | None = None) -> None:
        self.begun: list[float] = []
        self.calls = calls
        self._first = int(calls * WARM)
        self._latency = latency
        self._cpu: list[float] = []

    async def call(self) -> None:
        """Be called once."""
        if self.calls and len(self.begun) in (self._first, self.calls - 1):
            self._cpu.append(time.process_time())  # a system call: not for each
        self.begun.append(time.monotonic())
        if self._latency is not None:
            await asyncio.sleep(self._latency())

    def wait(self) -> None:
        """Block until every call has begun, on other threads than this."""
        while len(self.begun) < self.calls:
            time.sleep(LOOK)

    def rate(self, since: float = WARM, until: float = 1.0) -> float:
        """Give calls a second between these parts of all calls."""
        self.check()
        first, last = int(self.calls * since), int(self.calls * until) - 1
        return (last - first) / (self.begun[last] - self.begun[first])

    def cpu(self) -> float:
        """Give the CPU seconds that one call cost this process."""
        self.check()
        first, last = self._cpu
        return (last - first) / (self.calls - 1 - self._first)

    def check(self) -> None:
        """Refuse to say anything where something was called twice, or not at all."""
        if len(self.begun) != self.calls:
            raise AssertionError(f"{len(self.begun)} calls for {self.calls} rows")


def exponential(mean: float) -> Callable[[], float]:
    """Give latencies that are spread as those of a busy vendor are."""
    chance = random.Random(7)
    return lambda: chance.expovariate(1 / mean)

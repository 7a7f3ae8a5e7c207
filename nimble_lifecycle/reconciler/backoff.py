"""The back-off of a row, computed from its `attempts` by tenacity's wait strategies."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import RetryCallState, Retrying, wait_exponential


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential from `first` to `longest` seconds, spread so that rows come back one by one."""

    first: float = 1.0
    longest: float = 600.0
    between: Callable[[float, float], float] = random.uniform
    """Chooses the delay between the shortest and the longest of its attempt."""

    def delay(self, attempts: int) -> float:
        """Give the seconds to wait after the `attempts`-th failure in a row."""
        shortest = min(self.first, self.longest)
        wait = wait_exponential(multiplier=2 * self.first, min=shortest, max=self.longest)
        state = RetryCallState(retry_object=Retrying(), fn=None, args=(), kwargs={})
        state.attempt_number = max(1, attempts)
        return self.between(shortest, wait(state))

"""The back-off of a row, computed from its `attempts` by tenacity's wait strategies."""

from dataclasses import dataclass

from tenacity import RetryCallState, Retrying, wait_random_exponential


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential from `first` to `longest` seconds, spread so that rows come back one by one."""

    first: float = 1.0
    longest: float = 600.0

    def delay(self, attempts: int) -> float:
        """Give the seconds to wait after the `attempts`-th failure in a row."""
        wait = wait_random_exponential(
            multiplier=2 * self.first, min=min(self.first, self.longest), max=self.longest
        )
        state = RetryCallState(retry_object=Retrying(), fn=None, args=(), kwargs={})
        state.attempt_number = max(1, attempts)
        return wait(state)

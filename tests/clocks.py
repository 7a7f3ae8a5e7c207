"""A clock that shows too much, until it is put right."""

from datetime import datetime, timedelta

from nimble_lifecycle.testing import ManualClock

HOUR = 3600.0


class WrongClock(ManualClock):
    """The test kit's clock, whose instants are ahead; its monotonic side never shows it."""

    ahead = HOUR

    @property
    def instant(self) -> datetime:
        """Where the clock stands."""
        return super().instant + timedelta(seconds=self.ahead)

"""Sweeps by schedule, beside a worker's loop."""

import logging
from dataclasses import dataclass

from nimble_lifecycle.errors import SweepBusy
from nimble_lifecycle.reconciler.findings import Report
from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.reconciler.sweep import Sweep

log = logging.getLogger("nimble_reconcile")

CONFIRM = 60.0
"""Seconds until a second look at what seems to have vanished; the adapter's lag where longer."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sweeps every so many seconds, the first time after `first`.

    Several workers may have one each: whoever comes within half the time of another's sweep skips
    its own.
    """

    sweep: Sweep
    every: float
    first: float

    async def run(self) -> None:
        """Sweep, for ever; what goes wrong is told, and tried again the next time."""
        sleep = self.sweep.ports.clock.sleep
        await sleep(self.first)
        while True:
            report = await self._once(rest=self.every / 2)
            if report is not None and report.unconfirmed:
                await sleep(max(CONFIRM, self.sweep.vendor.lag.total_seconds()))
                await self._once(only_drift=True)
            await sleep(self.every)

    async def _once(self, *, rest: float = 0.0, only_drift: bool = False) -> Report | None:
        try:
            report = await self.sweep.run(rest=rest, only_drift=only_drift)
        except SweepBusy:
            return None
        except Exception as error:  # noqa: BLE001  # the worker goes on without its sweeps
            log.warning("a sweep ended early: %s", described(error))
            return None
        for alert in report.alerts:
            log.warning("%s", alert)
        if report.findings:
            log.info(
                "a sweep found: %s; `nimble-reconcile sweep --dry-run` lists it", report.summary
            )
        return report

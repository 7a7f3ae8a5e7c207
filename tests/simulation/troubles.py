"""What goes wrong, drawn from the seed, until everything is healed; and the trace of it all."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.simulation.loop import Loop, Process


@dataclass(frozen=True, slots=True)
class Trip:
    """What becomes of one call to the database. Times in seconds."""

    there: float
    back: float
    refused: bool = False
    loses_answer: bool = False
    dies_with_caller: bool = True


@dataclass(frozen=True, slots=True)
class Call:
    """What becomes of one call to the vendor. Times in seconds.

    `fault` names it; `there` is when the request lands, None: never; `back` when the answer is
    there, counted from the landing.
    """

    fault: str
    there: float | None
    back: float | None

    @property
    def applied(self) -> bool:
        return self.fault in APPLIED


APPLIED = ("none", "error after", "no answer", "late", "laggard", "untrue")
"""Faults of calls that do their work."""

UNTOLD = 0.6
"""How many creates end so, where most faults come after the work."""


@dataclass(frozen=True, slots=True)
class Window:
    """A time during which every call meets one fault."""

    begin: float
    end: float
    fault: str


@dataclass
class Troubles:
    """Draws what each call meets, counts it, and writes the trace."""

    loop: Loop
    chance: Random
    time_limit: float
    database_faults: float = 0.0
    answer_time: float = 0.2
    vendor_faults: float = 0.0
    after_the_work: bool = False
    laggards: float = 0.0
    permanent: float = 0.0
    untrue: float = 0.0
    ambushes: float = 0.0
    strikes: float = 0.0
    database_windows: tuple[Window, ...] = ()
    vendor_windows: tuple[Window, ...] = ()
    trace: list[str] = field(default_factory=list)
    figures: "Counter[str]" = field(default_factory=Counter)
    healed: bool = False

    def note(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        self.trace.append(f"{self.loop.time():.6f} {who}: {what}")

    def heal(self) -> None:
        """Let everything work from now on."""
        self.healed = True
        self.note("world", "healed")

    def ambush(self, process: Process) -> None:
        """Strike a process just when the database is called or answers, or not."""
        self._strike(process, self.ambushes)

    def strike(self, process: Process) -> None:
        """Strike a process between write-ahead and settlement, or not."""
        self._strike(process, self.strikes)

    def _strike(self, process: Process, often: float) -> None:
        if self.healed or not process.alive or self.chance.random() >= often:
            return
        match self.chance.choice(("kill", "kill soon", "suspend", "cut off")):
            case "kill":
                self.loop.later(0.0, process.kill)
            case "kill soon":
                self.loop.later(self.chance.expovariate(2.0), process.kill)
            case "suspend":
                self.suspend(process)
            case "cut off":
                seconds = self.chance.uniform(0.5, 4.0) * 3 * self.time_limit
                self.figures["cut off from the database"] += 1
                self.note(process.name, f"is cut off for {seconds:.3f}")
                process.cut_off_until = self.loop.time() + seconds

    def suspend(self, process: Process) -> None:
        """Let a process stand still, often for longer than its leases last."""
        if process.alive and not process.suspended:
            seconds = self.chance.uniform(0.5, 4.0) * 3 * self.time_limit
            self.figures["suspended"] += 1
            self.note(process.name, f"is suspended for {seconds:.3f}")
            process.suspend(seconds)

    def of_trip(self, process: Process) -> Trip:
        """Say what becomes of the next call to the database."""
        chance = self.chance
        there, back = chance.expovariate(50.0), chance.expovariate(50.0)
        if self.healed and not process.rough:
            return Trip(there, back)
        lands = chance.random() < 0.5
        cut_off = process.cut_off_until - self.loop.time()
        if cut_off > 0:  # what was sent arrives in the end, or not
            return Trip(cut_off + there, back, refused=not lands, dies_with_caller=False)
        if self._window(self.database_windows) is not None:
            self.figures["database outage"] += 1
            return Trip(there, back, refused=True)
        if chance.random() >= self.database_faults:
            return Trip(there, back, dies_with_caller=not lands)
        fault = chance.choice(("refused", "answer lost", "slow", "slow back"))
        self.figures[f"database {fault}"] += 1
        return Trip(
            there=chance.uniform(0.5, 15.0) if fault == "slow" else there,
            back=chance.uniform(0.5, 15.0) if fault == "slow back" else back,
            refused=fault == "refused",
            loses_answer=fault == "answer lost",
            dies_with_caller=not lands,
        )

    def of_call(self, method: str) -> Call:
        """Say what becomes of the next call to the vendor."""
        chance = self.chance
        mean = 1 / self.answer_time
        there, back = chance.expovariate(mean), chance.expovariate(mean)
        # Within the limit; a fault says otherwise.
        there, back = min(there, 0.45 * self.time_limit), min(back, 0.45 * self.time_limit)
        if self.healed:
            return Call("none", there, back)
        fault = self._window(self.vendor_windows) or self._single_fault(method)
        if fault == "permanent" and method == "poll":
            fault = "temporary"  # "certainly not applied" would be a lie about what is under way
        if fault != "none":
            self.figures[f"vendor {fault}"] += 1
        limit = self.time_limit
        match fault:
            case "no answer":
                return Call(fault, there, None)
            case "lost":
                return Call(fault, None, None)
            case "late":  # as late as the lease allows, which outlasts the call by one limit
                return Call(fault, chance.uniform(limit, 1.99 * limit), back)
            case "laggard":
                return Call(fault, chance.uniform(3 * limit, 12 * limit), back)
        return Call(fault, there, back)

    def _single_fault(self, method: str) -> str:
        if self.after_the_work and method == "provision" and self.chance.random() < UNTOLD:
            return self.chance.choice(("error after", "no answer", "late"))
        if self.chance.random() >= self.vendor_faults:
            return "none"
        if method == "provision" and self.chance.random() < self.untrue:
            return "untrue"
        if self.chance.random() < self.permanent:
            return "permanent"
        if self.chance.random() < self.laggards:
            return "laggard"
        kinds = ("temporary", "error before", "lost", "error after", "no answer", "late")
        return self.chance.choice(kinds)

    def _window(self, windows: tuple[Window, ...]) -> str | None:
        now = self.loop.time()
        return next((w.fault for w in windows if w.begin <= now < w.end), None)

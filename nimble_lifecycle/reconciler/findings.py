"""What a sweep reports."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from shlex import quote
from uuid import UUID

from nimble_lifecycle.store.sightings import Breaker, Sort
from nimble_lifecycle.store.views import plain


class Outcome(StrEnum):
    """What was done about a finding; of a dry run, what would be."""

    REPORTED = "reported"
    """Nothing, and nothing will be: a person, or one of the command's options, settles it."""
    WAITING = "waiting"
    """Nothing yet: a later sweep that finds it again settles it."""
    DONE = "done"
    """Its release was asked for or begun, or its next incarnation was made."""
    CHANGED = "changed"
    """Nothing: the finding no longer held."""
    HELD = "held"
    """Nothing: the breaker is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a sweep found."""

    sort: Sort
    outcome: Outcome
    why: str
    tenancy_id: UUID | None = None
    tenant_id: str | None = None
    workspace_id: str | None = None
    incarnation: int | None = None
    external_id: str | None = None
    since: datetime | None = None
    """Last heard from, last known to be there, or made."""
    strikes: int = 0
    """Sweeps that found it, apart in time; two are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSeen:
    """What came of reading a list."""

    items: int
    problem: str | None = None
    """Why nothing was done on its word; None: it was complete."""
    foreign: int = 0
    """Resources of other deployments, which are left alone; so are the next."""
    unmarked: int = 0
    """Resources that no row has and that carry no mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a sweep found and did. `inventory` and `installations` are None where none was read."""

    kind: str
    dry_run: bool
    findings: Sequence[Finding]
    inventory: ListSeen | None = None
    installations: ListSeen | None = None
    breaker: Breaker = field(default_factory=lambda: Breaker(0, 0, is_open=False))

    @property
    def alerts(self) -> list[str]:
        """Say what somebody should hear of, one sentence each."""
        lists = (("inventory", self.inventory), ("list of installations", self.installations))
        said = [
            f"the {name} does not count, and nothing was done on its word: {seen.problem}"
            for name, seen in lists
            if seen is not None and seen.problem is not None
        ]
        held = sum(finding.outcome is Outcome.HELD for finding in self.findings)
        if held:
            said.append(
                f"the sweep breaker is open: {self.breaker.allowed} acts a day are let pass, and"
                f" {held} more wait for `nimble-reconcile approve --kind {quote(self.kind)}`"
            )
        return said

    @property
    def complete(self) -> bool:
        """Whether every list that was read counts."""
        return all(
            seen is None or seen.problem is None for seen in (self.inventory, self.installations)
        )

    @property
    def needs_person(self) -> bool:
        """Whether something will not settle itself."""
        return any(each.outcome in (Outcome.REPORTED, Outcome.HELD) for each in self.findings)

    @property
    def left(self) -> dict[str, int]:
        """Count by sort what only a person settles; nothing of what a list that fails would show.

        Silence is none of it, which need not mean anything; nor are vanished resources: what is not
        made anew is a row that somebody paused.
        """
        counts = Counter(each.sort for each in self.findings if each.outcome is Outcome.REPORTED)
        shown_by = {
            Sort.UNLISTED: self.installations,
            Sort.ORPHAN: self.inventory,
            Sort.MATCH: self.inventory,
        }
        return {
            sort.value: counts[sort]
            for sort, seen in shown_by.items()
            if seen is None or seen.problem is None
        }

    @property
    def unconfirmed(self) -> bool:
        """Whether a second look soon would tell what is really gone."""
        return any(
            each.sort is Sort.DRIFT and each.outcome is Outcome.WAITING for each in self.findings
        )

    @property
    def summary(self) -> str:
        """Count the findings by what they are and what was done."""
        counts = Counter((each.sort.value, each.outcome.value) for each in self.findings)
        return ", ".join(f"{count} {sort} {outcome}" for (sort, outcome), count in counts.items())

    def as_json(self) -> dict[str, object]:
        """Give it as plain values; the keys are the names of the fields."""
        findings = [
            {name: plain(value) for name, value in asdict(each).items()} for each in self.findings
        ]
        lists = {"inventory": self.inventory, "installations": self.installations}
        return {
            "kind": self.kind,
            "dry_run": self.dry_run,
            "complete": self.complete,
            "alerts": self.alerts,
            "breaker": asdict(self.breaker),
            **{name: None if seen is None else asdict(seen) for name, seen in lists.items()},
            "findings": findings,
        }


def spoken(seconds: float) -> str:
    """Say a length of time in its largest unit."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"

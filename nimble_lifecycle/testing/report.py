"""What a conformance run found out: plain values that print as text, a table or JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from nimble_lifecycle.protocol import Json


class Verdict(StrEnum):
    """How one check ended. Only `FAILED` is a finding."""

    OK = "ok"
    WARNING = "warning"
    """Allowed, and worth knowing before it happens."""
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Checked:
    """One check: its name, its verdict, and a sentence where there is something to say."""

    check: str
    verdict: Verdict
    words: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.verdict}" + (f": {self.words}" if self.words else "")


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something a run made and could not remove again.

    `external_id` is None where only the key is known, or the operation that was to make it.
    """

    external_id: str | None
    key: str | None
    words: str

    def __str__(self) -> str:
        named = self.external_id or f"what was made under {self.key}"
        return f"{named}: {self.words}"


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found out about one adapter. Texts are redacted."""

    kind: str
    checks: Sequence[Checked]
    left_behind: Sequence[Leftover] = field(default=())
    """What the run made and could not remove: remove it by hand."""

    @property
    def failed(self) -> list[str]:
        """Name the checks that failed."""
        return [each.check for each in self.checks if each.verdict is Verdict.FAILED]

    @property
    def ok(self) -> bool:
        """Whether no check failed and nothing was left behind."""
        return not self.failed and not self.left_behind

    def as_json(self) -> dict[str, Json]:
        """Give the report as JSON."""
        return {
            "kind": self.kind,
            "ok": self.ok,
            "checks": [asdict(each) for each in self.checks],
            "left_behind": [asdict(each) for each in self.left_behind],
        }

    def __str__(self) -> str:
        left = [f"left behind: {each}" for each in self.left_behind]
        return "\n".join([*map(str, self.checks), *left])

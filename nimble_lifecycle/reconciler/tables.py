"""Rows as people and programs read them. Values may be forged and are never taken at their word."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nimble_lifecycle.protocol import Phase
from nimble_lifecycle.reconciler.findings import Finding, Report
from nimble_lifecycle.store.standing import Notice

ShownRow: TypeAlias = Mapping[str, object]
"""A row as `WorkStore.status` gives it."""

Cells: TypeAlias = tuple[object, ...]

WIDE = 10_000
"""Columns of a table that goes to a file or another program: a row is a line there."""


def print_json(shown: object) -> None:
    """Print JSON; everything beyond ASCII is escaped."""
    print(json.dumps(shown, indent=2, ensure_ascii=True))  # noqa: T201


def print_summary(rows: Sequence[ShownRow], *, as_json: bool) -> None:
    """Print how many rows are in which phase; lives that ended by being retired count apart."""
    phases = ("retired" if row["retired_at"] else str(row["phase"]) for row in rows)
    counts = dict(sorted(Counter(phases).items()))
    if as_json:
        print_json(counts)
        return
    for phase, count in counts.items():
        print(f"{safe(phase):>16} {count}")  # noqa: T201


def print_table(rows: Sequence[ShownRow], location: str) -> None:
    """Print one line or more for each row."""
    console = _console()
    console.print(Text(safe(location)), soft_wrap=True)
    columns = ("workspace", "kind", "phase", "reason", "external id", "due", "why")
    console.print(_table(columns, map(_cells, rows)))


def print_entries(entries: Sequence[ShownRow]) -> None:
    """Print one line or more for each entry of the journal."""
    columns = ("at", "workspace", "kind", "action", "outcome", "by", "took", "external id", "note")
    _console().print(_table(columns, map(_entry_cells, entries)))


def print_needed(notices: Sequence[Notice], rows: Sequence[ShownRow]) -> None:
    """Print what needs a person, each with the command that settles it, each command once."""
    of_rows: dict[str, str] = {}
    for row in filter(needs_person, rows):
        of_rows.setdefault(str(row["settle"]), f"{name_of(row)}: {row['message'] or row['reason']}")
    for found in notices:
        of_rows.pop(found.settle or "", None)
    needs = [(found.message, found.settle) for found in notices]
    needs += [(message, command) for command, message in of_rows.items()]
    if needs:
        print("\nNeeds a person:")  # noqa: T201
    for message, command in needs:
        print(f"  {safe(message)}")  # noqa: T201
        if command is not None:
            print(f"      {safe(command)}")  # noqa: T201


def print_notices(notices: Sequence[Notice], *, as_json: bool) -> None:
    """Print what needs a person for a whole kind."""
    if as_json:
        print_json([asdict(found) for found in notices])
    else:
        print_needed(notices, ())


def needs_person(row: ShownRow) -> bool:
    """Whether the worker can do nothing more by itself; `settle` says what a person can do."""
    return row["settle"] is not None


def print_findings(report: Report, location: str) -> None:
    """Print one line or more for each finding, and what came of the lists."""
    console = _console()
    what = "would be done" if report.dry_run else "was done"
    title = f"{location}, {report.kind!r}: {len(report.findings)} findings, and what {what}"
    console.print(Text(safe(title)), soft_wrap=True)
    columns = ("finding", "outcome", "seen", "workspace", "external id", "since", "why")
    if report.findings:
        console.print(_table(columns, map(_finding_cells, report.findings)))
    for line in _lists(report):
        console.print(Text(safe(line)), soft_wrap=True)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def _table(columns: Sequence[str], rows: Iterable[Cells]) -> Table:
    table = Table(box=None)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(value)) for value in row))
    return table


def _entry_cells(entry: ShownRow) -> Cells:
    seconds = entry["seconds"]
    return (
        _to_seconds(entry["at"]),
        None if entry["workspace_id"] is None else name_of(entry),
        entry["kind"],
        entry["action"],
        entry["outcome"],
        entry["actor"],
        f"{seconds:.2f} s" if isinstance(seconds, float) else None,
        entry["external_id"],
        entry["note"],
    )


def _finding_cells(each: Finding) -> Cells:
    tenant = f"{each.tenant_id}/" if each.tenant_id else ""
    workspace = "" if each.workspace_id is None else f"{tenant}{each.workspace_id}"
    return (
        each.sort,
        each.outcome,
        each.strikes or None,
        workspace if each.incarnation is None else f"{workspace} #{each.incarnation}",
        each.external_id,
        None if each.since is None else each.since.isoformat(timespec="seconds"),
        each.why,
    )


def _lists(report: Report) -> Iterator[str]:
    seen = report.inventory
    if seen is None:
        yield "the adapter has no inventory: orphans and vanished resources are not looked for"
    else:
        yield (
            f"inventory: {seen.items} resources, {seen.foreign} of them of other deployments,"
            f" {seen.unmarked} without a mark"
        )
    if report.installations is not None:
        yield f"installations: {report.installations.items} workspaces"


def _cells(row: ShownRow) -> Cells:
    waits_for_grace = row["phase"] == Phase.RELEASE_PENDING
    return (
        name_of(row),
        row["kind"],
        row["phase"],
        row["reason"],
        row["external_id"],
        _to_seconds(row["release_after"] if waits_for_grace else row["due_at"]),
        row["message"] or row["last_error"],
    )


def name_of(row: ShownRow) -> str:
    """Name a row as people do: its tenant, workspace and life."""
    tenant = f"{row['tenant_id']}/" if row["tenant_id"] else ""
    return f"{tenant}{row['workspace_id']} #{row['incarnation']}"


def _to_seconds(instant: object) -> str | None:
    """Give an instant, as JSON has it, without its fractions."""
    if not isinstance(instant, str):
        return None
    return datetime.fromisoformat(instant).isoformat(timespec="seconds")


def safe(value: object) -> str:
    """Show a value that may be forged: nothing in it reaches the terminal as a command."""
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

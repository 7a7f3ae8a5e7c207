"""Holds the world against the promise: at the vendor first, then what the rows say of it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from chaos.books import Books, Resource

from nimble_lifecycle.protocol import Phase

Row: TypeAlias = Mapping[str, Any]
"""A row of `nimble_tenancy`, by column."""

Verdict: TypeAlias = dict[str, list[str]]
"""What is not as promised, by the kind of wrong; empty where the promise holds."""

KINDS = ("doubled", "lost", "leaked", "foreign", "astray", "unsettled")
"""`doubled`: two resources under one mark. `lost`: a wanted workspace without one. `leaked`: a
resource no live row stands for. `foreign`: somebody else's was touched. `astray`: row and vendor
disagree, or the workspace did not get what it asked for last. `unsettled`: a row that still waits.
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a workspace last asked for and was told is recorded."""

    wanted: bool
    from_name: str = ""


def verdict(
    wishes: Mapping[str, Wish], rows: Sequence[Row], books: Books, secrets: Path
) -> Verdict:
    """Name whatever is not as promised."""
    ours = books.ours()
    live = {row["workspace_id"]: row for row in rows if row["released_at"] is None}
    wrong: Verdict = defaultdict(list)
    wrong["foreign"] += books.foreign_touched()
    wrong["doubled"] += [f"{len(found)} of {mark}" for mark, found in ours.items() if found[1:]]
    wanted = {workspace: wish for workspace, wish in wishes.items() if wish.wanted}
    for workspace, wish in wanted.items():
        row = live.get(workspace)
        found = ours.pop(row["idempotency_key"], []) if row else []
        if not row or not found:
            wrong["lost"].append(workspace)
        elif disagreement := _disagreement(row, found, wish, secrets):
            wrong["astray"].append(f"{workspace}: {disagreement}")
    wrong["leaked"] += [each.id for found in ours.values() for each in found]
    wrong["astray"] += [
        f"{workspace}: {row['phase']} row of an unwanted workspace"
        for workspace, row in live.items()
        if workspace not in wanted
    ]
    wrong["unsettled"] += [_shown(row) for row in rows if not _settled(row)]
    return {kind: found for kind, found in wrong.items() if found}


def _disagreement(row: Row, found: Sequence[Resource], wish: Wish, secrets: Path) -> str | None:
    named = next((each for each in found if each.id == row["external_id"]), None)
    if named is None:
        return f"its row names {row['external_id']}, Acme has {[each.id for each in found]}"
    if named.from_name != wish.from_name:
        return f"asked for {wish.from_name!r}, Acme has {named.from_name!r}"
    if not named.opens_with(secrets / f"{named.id}.key"):
        return "the key that is kept is not the one Acme means"
    return None


def _settled(row: Row) -> bool:
    at_rest = row["lease_owner"] is None and row["reason"] is None
    return at_rest and row["phase"] in (Phase.READY, Phase.RELEASED)


def _shown(row: Row) -> str:
    return f"{row['workspace_id']}: {row['phase']}, {row['reason']} ({row['last_error']})"

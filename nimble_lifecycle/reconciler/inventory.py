"""What an adapter lists, compared with the rows: what is theirs, and what is ours but no row's."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from nimble_lifecycle.protocol import is_external_id
from nimble_lifecycle.reconciler.vendor import External
from nimble_lifecycle.store.sweeps import Keyed, SweepStore, Unknown
from nimble_lifecycle.store.types import uuid_of_base32

SKEW = timedelta(minutes=1)
"""How far the vendor's clock may be from the database's, for what only a person decides on."""


class Mark(NamedTuple):
    """The deployment a resource names, and the row where it carries a whole key."""

    owner: str | None
    row: UUID | None


@dataclass(frozen=True, slots=True)
class Stray:
    """A resource that carries our mark and is no row's.

    `named` is the row its whole key names, None where it carries the owner id alone; `of` is that
    row, if it exists.
    """

    external: External
    named: UUID | None
    of: Keyed | None


@dataclass(slots=True)
class Inventory:
    """What was listed so far.

    It keeps every id, about a hundred bytes each: what is missing is known only at the end.
    """

    store: SweepStore
    kind: str
    owner_id: str
    unknowns: Sequence[Unknown] = ()
    ids: set[str] = field(default_factory=set)
    strays: list[Stray] = field(default_factory=list)
    matches: list[tuple[Unknown, External]] = field(default_factory=list)
    foreign: int = 0
    unmarked: int = 0
    unreadable: int = 0

    def add(self, part: Sequence[object]) -> None:
        """Take a part of the list; an item that comes twice counts once. Blocks."""
        fresh: dict[str, External] = {}
        for item in part:
            external = readable(item)
            if external is None:
                self.unreadable += 1
            elif external.external_id not in self.ids:
                fresh.setdefault(external.external_id, external)
        self.ids |= fresh.keys()
        owned = self.store.owned([self.kind], list(fresh))
        self._sort([external for name, external in fresh.items() if name not in owned])

    def _sort(self, loose: Sequence[External]) -> None:
        ours: list[tuple[External, UUID | None]] = []
        for external in loose:
            mark = mark_of(external)
            if mark.owner == self.owner_id:
                ours.append((external, mark.row))
            elif external.key is None and external.owner is None:
                self.unmarked += 1
                self.matches += [(row, external) for row in self.unknowns if may_be(row, external)]
            else:
                self.foreign += 1
        if ours:
            self._add_strays(ours)

    def _add_strays(self, ours: Sequence[tuple[External, UUID | None]]) -> None:
        rows = self.store.keyed([row for _, row in ours if row is not None])
        others = [kind for kind in self.store.kinds() if kind != self.kind]
        elsewhere = self.store.owned(others, [external.external_id for external, _ in ours])
        waiting = {row.id: row for row in self.unknowns}
        for external, named in ours:
            of = None if named is None else rows.get(named)
            another_kinds = of is not None and of.kind != self.kind
            # A row whose create is still open finds what it made by itself, or waits to be told.
            its_own = of is not None and of.is_open
            if its_own and named in waiting:
                self.matches.append((waiting[named], external))
            if not (another_kinds or its_own or external.external_id in elsewhere):
                self.strays.append(Stray(external, named, of))


def mark_of(external: External) -> Mark:
    """Read a resource's mark. One that contradicts itself is nobody's."""
    owner, dash, rest = (external.key or "").partition("-")
    row = uuid_of_base32(rest) if dash else None
    if row is None:  # no key, or one of another making
        return Mark(external.owner or (owner if dash else None), None)
    return Mark(owner, row) if external.owner in (None, owner) else Mark(None, None)


def may_be(row: Unknown, external: External) -> bool:
    """Whether a resource was made while a create of this row may have been applied."""
    at = external.created_at
    return at is not None and row.create_started_at - SKEW <= at <= row.create_ends_at + SKEW


def readable(item: object) -> External | None:
    """Give an item of an inventory if it can be read at all; a naive time counts as not given."""
    if not isinstance(item, External) or not is_external_id(item.external_id):
        return None
    marks: tuple[object, ...] = (item.key, item.owner)
    if not all(mark is None or isinstance(mark, str) for mark in marks):
        return None
    at: object = item.created_at
    known = isinstance(at, datetime) and at.tzinfo is not None
    return item if known or at is None else replace(item, created_at=None)

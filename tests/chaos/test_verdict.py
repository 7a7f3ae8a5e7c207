"""The verdict sees every kind of wrong, and a seed stands for one schedule."""

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from chaos.books import Books
from chaos.schedule import FLEET, REMOVALS, schedule
from chaos.verdict import KINDS, Wish, verdict
from vendor_ledger import Ledger, NewTenancy

OWNER = "ourownerid"


class Small:
    """A world of two workspaces in which everything is as promised: `one` is there, `two` gone."""

    def __init__(self, folder: Path) -> None:
        self.books = Books(folder / "acme.db", OWNER)
        self.secrets = folder
        self.wishes = {"one": Wish(True, "One"), "two": Wish(False)}
        self.rows = [row("one", external_id=self.make("one")), row("two", released_at="then")]

    def make(self, name: str) -> str:
        """Make a tenancy at Acme, complete with its key."""
        made = sum(map(len, self.books.ours().values()))
        new = NewTenancy(name=f"{name}-{made}", owner=OWNER, reference=f"{OWNER}-{name}")
        with closing(Ledger(self.books.path)) as ledger:
            tenancy, _ = ledger.create(new, f"key-{made}", 0.0)
            id_ = str(tenancy["id"])
            (self.secrets / f"{id_}.key").write_text(ledger.issue_key(id_))
        self.at_acme("UPDATE tenancy SET from_name = 'One' WHERE id = ?", id_)
        return id_

    def at_acme(self, statement: str, *values: str) -> None:
        with closing(sqlite3.connect(self.books.path)) as at, at:
            at.execute(statement, values)

    def wrong(self) -> dict[str, list[str]]:
        return verdict(self.wishes, self.rows, self.books, self.secrets)


def row(name: str, **columns: object) -> dict[str, object]:
    at_rest = dict.fromkeys(("external_id", "reason", "last_error", "lease_owner", "released_at"))
    phase = "released" if "released_at" in columns else "ready"
    key = f"{OWNER}-{name}"
    return {**at_rest, "workspace_id": name, "idempotency_key": key, "phase": phase, **columns}


def make_another(small: Small) -> None:
    small.make("one")


def take_it_away(small: Small) -> None:
    small.at_acme("DELETE FROM tenancy WHERE owner = ?", OWNER)


def forget_the_row(small: Small) -> None:
    del small.rows[0]


def make_for_the_removed(small: Small) -> None:
    small.make("two")


def make_for_nobody(small: Small) -> None:
    small.make("nobody")


def change_somebody_elses(small: Small) -> None:
    small.at_acme("UPDATE tenancy SET plan = 'growth' WHERE owner <> ?", OWNER)


def take_somebody_elses_away(small: Small) -> None:
    small.at_acme("DELETE FROM tenancy WHERE owner <> ?", OWNER)


def name_another(small: Small) -> None:
    small.rows[0]["external_id"] = "ten_other"


def keep_the_old_params(small: Small) -> None:
    small.wishes["one"] = Wish(True, "Two")


def lose_the_key(small: Small) -> None:
    next(small.secrets.glob("*.key")).write_text(hashlib.sha256(b"other").hexdigest())


def keep_the_removed(small: Small) -> None:
    small.rows[1] = row("two")


def leave_it_leased(small: Small) -> None:
    small.rows[0]["lease_owner"] = "somebody"


def let_it_wait(small: Small) -> None:
    small.rows[0] |= {"phase": "stalled", "reason": "Quarantined"}


@pytest.mark.parametrize(
    ("done", "kinds"),
    [
        (make_another, {"doubled"}),
        (take_it_away, {"lost"}),
        (forget_the_row, {"lost", "leaked"}),
        (make_for_the_removed, {"leaked"}),
        (make_for_nobody, {"leaked"}),
        (change_somebody_elses, {"foreign"}),
        (take_somebody_elses_away, {"foreign"}),
        (name_another, {"astray"}),
        (keep_the_old_params, {"astray"}),
        (lose_the_key, {"astray"}),
        (keep_the_removed, {"astray"}),
        (leave_it_leased, {"unsettled"}),
        (let_it_wait, {"unsettled"}),
    ],
)
def test_the_verdict_names_what_is_wrong(
    tmp_path: Path, done: Callable[[Small], None], kinds: set[str]
) -> None:
    small = Small(tmp_path)
    assert small.wrong() == {}
    done(small)
    assert set(small.wrong()) == kinds
    assert kinds <= set(KINDS)


def test_a_resource_made_twice_is_told_even_when_one_is_gone(tmp_path: Path) -> None:
    small = Small(tmp_path)
    small.at_acme("DELETE FROM tenancy WHERE id = ?", small.make("one"))
    assert small.wrong() == {}
    assert small.books.made_twice() == [f"{OWNER}-one"]


@pytest.mark.parametrize("postgresql", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_the_same_seed_gives_the_same_schedule(postgresql: bool, keyed: bool) -> None:
    acts = schedule("7", 60.0, postgresql=postgresql, keyed=keyed)
    assert acts == schedule("7", 60.0, postgresql=postgresql, keyed=keyed)
    assert acts != schedule("8", 60.0, postgresql=postgresql, keyed=keyed)
    assert acts == sorted(acts, key=lambda act: act.at)
    removed = [act.workspace for act in acts if act.what == "removing"]
    assert len(set(removed)) == len(removed) <= REMOVALS
    assert len({act.workspace for act in acts if act.workspace}) <= FLEET

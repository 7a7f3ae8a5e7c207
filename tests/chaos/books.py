"""What Acme's own books say: what exists, what was ever made, and whether foreign things stand."""

import hashlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from vendor_ledger import Ledger, NewTenancy

AUDIT = """
CREATE TABLE audit (number INTEGER PRIMARY KEY, what TEXT, id TEXT, owner TEXT, reference TEXT);
CREATE TRIGGER made AFTER INSERT ON tenancy BEGIN
    INSERT INTO audit (what, id, owner, reference)
    VALUES ('made', new.id, new.owner, new.reference); END;
CREATE TRIGGER changed AFTER UPDATE ON tenancy BEGIN
    INSERT INTO audit (what, id, owner, reference)
    VALUES ('changed', old.id, old.owner, old.reference); END;
CREATE TRIGGER gone AFTER DELETE ON tenancy BEGIN
    INSERT INTO audit (what, id, owner, reference)
    VALUES ('gone', old.id, old.owner, old.reference); END;
"""


@dataclass(frozen=True, slots=True)
class Resource:
    """A tenancy as Acme has it; `reference` is the mark it carries."""

    id: str
    owner: str
    reference: str
    from_name: str
    key_digest: str | None

    def opens_with(self, key: Path) -> bool:
        """Whether this file holds the key that Acme means."""
        held = key.read_bytes() if key.exists() else b""
        return hashlib.sha256(held).hexdigest() == self.key_digest


class Books:
    """Acme's ledger file, which keeps a record of its own of every change to its tenancies."""

    def __init__(self, path: Path, owner: str) -> None:
        """Open new books, with tenancies of others whose marks come close to those of `owner`."""
        self.path = path
        self.owner = owner
        ledger = Ledger(path)
        for number, other in enumerate((f"{owner}2", owner[:-1], "somebody-else")):
            mark = f"{other}-{'a' * 26}"
            new = NewTenancy(name=f"theirs-{number}", owner=other, reference=mark)
            ledger.create(new, f"theirs-{number}", 0.0)
        ledger.close()
        with self._reading() as at:
            at.executescript(AUDIT)

    def ours(self) -> dict[str, list[Resource]]:
        """List what carries this deployment's owner id, by mark."""
        found = defaultdict(list)
        with self._reading() as at:
            for row in at.execute(
                "SELECT id, owner, reference, from_name, key_digest FROM tenancy"
                " WHERE owner = ? ORDER BY number",
                (self.owner,),
            ):
                resource = Resource(*row)
                found[resource.reference].append(resource)
        return dict(found)

    def made(self) -> int:
        """Count the tenancies of ours that were ever made."""
        return sum(self._makes().values())

    def made_twice(self) -> list[str]:
        """Name the marks under which more than one tenancy was ever made, gone or not."""
        return [mark for mark, count in self._makes().items() if count > 1]

    def _makes(self) -> Counter[str]:
        made = "SELECT reference FROM audit WHERE what = 'made' AND owner = ?"
        with self._reading() as at:
            return Counter(mark for (mark,) in at.execute(made, (self.owner,)))

    def foreign_touched(self) -> list[str]:
        """Name what was done to tenancies of others."""
        with self._reading() as at:
            rows = at.execute("SELECT what, id FROM audit WHERE owner <> ?", (self.owner,))
            return [f"{what} {id_}" for what, id_ in rows]

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=10)) as at:
            yield at

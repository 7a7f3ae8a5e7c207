"""Acme's books: the tenancies, idempotency keys and mail of `vendor_api` in one SQLite file."""

import hashlib
import secrets
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

KEY_MEMORY: Final = 24 * 3600.0
"""Seconds an idempotency key is remembered."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tenancy (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    reference TEXT NOT NULL,
    plan TEXT NOT NULL DEFAULT 'starter',
    from_name TEXT NOT NULL DEFAULT '',
    operation_id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    active_at REAL NOT NULL,
    key_digest TEXT UNIQUE
);
CREATE TABLE IF NOT EXISTS idempotency (
    key TEXT PRIMARY KEY, body TEXT NOT NULL, tenancy_id TEXT NOT NULL, used_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS mail (
    number INTEGER PRIMARY KEY,
    tenancy_id TEXT NOT NULL REFERENCES tenancy (id) ON DELETE CASCADE,
    recipient TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL,
    sent_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS tenancy_reference ON tenancy (reference);
"""

Label = Field(min_length=1, max_length=128)


class NewTenancy(BaseModel):
    """Body of POST /tenancies. `owner` and `reference` are the customer's own labels."""

    name: str = Label
    owner: str = Label
    reference: str = Label


class Change(BaseModel):
    """Body of PATCH /tenancies/{id}; what is left out stays as it is."""

    plan: Literal["starter", "growth"] | None = None
    from_name: str | None = Field(default=None, max_length=100)


class NewMail(BaseModel):
    """Body of POST /mail."""

    to: str = Field(min_length=3, max_length=320)
    subject: str = Field(max_length=500)
    body: str = Field(max_length=100_000)


class Page(BaseModel):
    """Query of GET /tenancies; `after` is the `next` of the page before."""

    owner: str | None = None
    reference: str | None = None
    after: int = 0
    limit: int = Field(default=50, ge=1, le=100)


class Ledger:
    """Acme's books: one SQLite file, used from one thread, a transaction for each change."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(f"PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; {SCHEMA}")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def create(self, new: NewTenancy, key: str, seconds: float) -> tuple[sqlite3.Row, bool]:
        """Give the tenancy of this idempotency key, and whether it was made just now."""
        now = time.time()
        with self._db:
            self._db.execute("DELETE FROM idempotency WHERE used_at < ?", (now - KEY_MEMORY,))
            used = self._one("SELECT * FROM idempotency WHERE key = ?", key)
            if used is not None:
                return self._replay(used, new), False
            if self._one("SELECT id FROM tenancy WHERE name = ?", new.name) is not None:
                raise HTTPException(409, "name_taken")
            tenancy_id, operation_id = f"ten_{secrets.token_hex(8)}", f"op_{secrets.token_hex(8)}"
            self._db.execute(
                "INSERT INTO tenancy (id, name, owner, reference, operation_id, created_at,"
                " active_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (tenancy_id, new.name, new.owner, new.reference, operation_id, now, now + seconds),
            )
            self._db.execute(
                "INSERT INTO idempotency VALUES (?, ?, ?, ?)",
                (key, new.model_dump_json(), tenancy_id, now),
            )
        return self.tenancy(tenancy_id), True

    def _replay(self, used: sqlite3.Row, new: NewTenancy) -> sqlite3.Row:
        if used["body"] != new.model_dump_json():
            raise HTTPException(422, "idempotency_key_reused")
        made = self._one("SELECT * FROM tenancy WHERE id = ?", used["tenancy_id"])
        if made is None:
            raise HTTPException(410, "tenancy_deleted")
        return made

    def tenancy(self, tenancy_id: str) -> sqlite3.Row:
        """Give one tenancy, or 404."""
        return self._need("SELECT * FROM tenancy WHERE id = ?", tenancy_id)

    def operation(self, operation_id: str) -> sqlite3.Row:
        """Give the tenancy an operation is about, or 404."""
        return self._need("SELECT * FROM tenancy WHERE operation_id = ?", operation_id)

    def page(self, page: Page) -> list[sqlite3.Row]:
        """List one row more than the page has, if there is one."""
        return self._db.execute(
            "SELECT * FROM tenancy WHERE number > :after"
            " AND (:owner IS NULL OR owner = :owner)"
            " AND (:reference IS NULL OR reference = :reference)"
            " ORDER BY number LIMIT :limit + 1",
            page.model_dump(),
        ).fetchall()

    def change(self, tenancy_id: str, change: Change) -> sqlite3.Row:
        """Set what the change names."""
        with self._db:
            self._db.execute(
                "UPDATE tenancy SET plan = coalesce(?, plan), from_name = coalesce(?, from_name)"
                " WHERE id = ?",
                (change.plan, change.from_name, tenancy_id),
            )
        return self.tenancy(tenancy_id)

    def issue_key(self, tenancy_id: str) -> str:
        """Make the tenancy's API key anew; only its digest is kept."""
        if time.time() < self.tenancy(tenancy_id)["active_at"]:
            raise HTTPException(409, "not_active_yet")
        key = f"acme_{secrets.token_urlsafe(24)}"
        with self._db:
            self._db.execute(
                "UPDATE tenancy SET key_digest = ? WHERE id = ?", (digest(key), tenancy_id)
            )
        return key

    def delete(self, tenancy_id: str) -> None:
        """Delete a tenancy with its key and its mail, or 404."""
        with self._db:
            done = self._db.execute("DELETE FROM tenancy WHERE id = ?", (tenancy_id,))
        if done.rowcount == 0:
            raise HTTPException(404, "no_such_thing")

    def owner_of(self, api_key: str) -> sqlite3.Row:
        """Give the tenancy an API key belongs to, or 401."""
        owner = self._one("SELECT * FROM tenancy WHERE key_digest = ?", digest(api_key))
        if owner is None:
            raise HTTPException(401, "wrong_key")
        return owner

    def send(self, tenancy_id: str, mail: NewMail) -> int | None:
        """Store one mail as sent; give its number."""
        with self._db:
            return self._db.execute(
                "INSERT INTO mail (tenancy_id, recipient, subject, body, sent_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (tenancy_id, mail.to, mail.subject, mail.body, time.time()),
            ).lastrowid

    def mail(self, tenancy_id: str) -> list[sqlite3.Row]:
        """List what a tenancy has sent."""
        return self._db.execute(
            "SELECT number AS id, recipient AS 'to', subject, body, sent_at FROM mail"
            " WHERE tenancy_id = ? ORDER BY number",
            (tenancy_id,),
        ).fetchall()

    def _one(self, statement: str, argument: str) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute(statement, (argument,)).fetchone()
        return row

    def _need(self, statement: str, argument: str) -> sqlite3.Row:
        row = self._one(statement, argument)
        if row is None:
            raise HTTPException(404, "no_such_thing")
        return row


def digest(api_key: str) -> str:
    """Give what is kept of an API key."""
    return hashlib.sha256(api_key.encode()).hexdigest()


def public(row: sqlite3.Row) -> dict[str, str | None]:
    """Show a tenancy; of its API key only a fingerprint, to tell one key from another."""
    return {
        **{name: row[name] for name in ("id", "name", "owner", "reference", "operation_id")},
        "plan": row["plan"],
        "from_name": row["from_name"],
        "sender": sender(row),
        "state": "provisioning" if time.time() < row["active_at"] else "active",
        "created_at": datetime.fromtimestamp(row["created_at"], UTC).isoformat(),
        "key_fingerprint": row["key_digest"] and row["key_digest"][:16],
    }


def sender(row: sqlite3.Row) -> str:
    """Give the address a tenancy sends from."""
    return f"{row['id']}@mail.acme.example"

"""Which deployment a database belongs to, so that a copy of one never acts on the original's.

A database is known by a fingerprint of where it is and by the name its deployment was given, if
any; the first worker to run on it records both. On another one it is foreign until an operator says
whether it was moved or copied.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from nimble_lifecycle.errors import ForeignDatabase, VerbRefused
from nimble_lifecycle.protocol import Desired, Why
from nimble_lifecycle.store.database import Database
from nimble_lifecycle.store.journal import entries_about
from nimble_lifecycle.store.models import Part, columns_of, journal, sighting
from nimble_lifecycle.store.models import deployment as d
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.types import BASE32, Expression, Instant, new_id, next_number
from nimble_lifecycle.store.wakeups import AT_WORK

OWNER_LENGTH: Final = 10
"""Characters of an owner id."""

LIMIT: Final = 30.0
"""Seconds to find out whose database it is."""

COPY_LIMIT: Final = 3600.0
"""Seconds a copy may take to be made a deployment of its own; it writes every row."""

_COPIED: Final = "the database was copied: the resource is the original's"

_WHERE: Final = sa.text(
    "SELECT current_database(), oid,"
    " has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"
    " FROM pg_catalog.pg_database WHERE datname = current_database()"
)
_SYSTEM: Final = sa.text("SELECT system_identifier FROM pg_catalog.pg_control_system()")
_LISTENING: Final = sa.text(
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND database ="
    " (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
    " AND classid = :family AND objid = :lock"
).bindparams(family=AT_WORK[0], lock=AT_WORK[1])


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of the rows of a copy."""

    retired: int
    """Tenancies that are the original's."""
    renewed: int
    """Of them, wanted: they have a next incarnation here."""


class Deployment:
    """Whose database this is, as seen by the deployment called `name` (None: it has no name).

    All methods block, and raise StoreError when the database cannot be used.
    """

    def __init__(self, database: Database, name: str | None) -> None:
        self._database = database
        self._name = name

    def check(self) -> None:
        """Raise ForeignDatabase unless the database is this deployment's, or nobody's yet."""
        self._database.reading(self._until(LIMIT), self._check_on)

    def enter(self) -> None:
        """Take the database where it is nobody's, check it, and check each connection from now on.

        A database that is swapped under a running worker, by a failover or a changed name, is so
        found out before the first statement on it; and where it is given to another deployment,
        claims with the owner id of this one find nothing. Raises ForeignDatabase.
        """
        self._database.transacting(self._until(LIMIT), self._record)
        self._database.guard(self._check_on)
        self.check()
        self._database.owner_id = self._database.reading(
            self._until(LIMIT), lambda at: at.execute(sa.select(d.c.owner_id)).scalar_one()
        )

    def claim_moved(self) -> bool:
        """Say that the database is this deployment's; give whether that was news.

        The name it had stays where this deployment has none.
        """

        def move(at: sa.Connection) -> bool:
            self._record(at)
            if self._mismatch(at) is None:
                return False
            self._sign(at, name=sa.func.coalesce(sa.literal(self._name, sa.Text()), d.c.deployment))
            return True

        return self._database.transacting(self._until(LIMIT), move)

    def claim_copy(self, *, actor: str) -> Copied:
        """Make a copy a deployment of its own, without a call to the vendor.

        Every tenancy that is not gone is the original's: it is retired, and no worker looks at it
        again. Wanted ones get a next incarnation, and so a key that only this deployment has. What
        sweeps saw is forgotten. Raises VerbRefused where nothing tells the database from the
        original, or only a name and a worker is at work on it.
        """

        def copy(at: sa.Connection) -> Copied:
            at.execute(sa.select(d.c.id).with_for_update()).close()  # one of two at once
            if self._mismatch(at) is None:
                raise VerbRefused(
                    f"{self._database.location} is the one this deployment knows, or nobody's yet;"
                    " as a copy it needs a name that tells it from the original: --deployment"
                )
            now = at.execute(sa.select(self._database.clock.now())).scalar_one()
            self._refuse_at_work(at, now)
            copied = _made_foreign(at, now, actor)
            at.execute(sa.delete(sighting)).close()
            self._sign(at, name=sa.literal(self._name, sa.Text()), owner=_new_owner())
            return copied

        return self._database.transacting(self._until(COPY_LIMIT), copy)

    # -- on a connection ---------------------------------------------------------------------------

    def _check_on(self, at: sa.Connection) -> None:
        mismatch = self._mismatch(at)
        if mismatch is not None:
            raise ForeignDatabase(
                f"{mismatch}. Nothing was done. Say which it is: `nimble-reconcile claim-database"
                " --moved` where this is the same deployment, `--copy` where it is a copy"
            )

    def _mismatch(self, at: sa.Connection) -> str | None:
        """Say what tells this database, or this deployment, from the one that was recorded."""
        known = at.execute(sa.select(d.c.fingerprint, d.c.deployment)).one()
        if known.fingerprint is None:
            return None
        here = self._fingerprint(at)
        if known.fingerprint != here:
            return f"{self._database.location} was known as {known.fingerprint}, but this is {here}"
        if known.deployment == self._name:
            return None
        owner = f"to {known.deployment!r}" if known.deployment else "to a deployment without a name"
        ours = f"is {self._name!r}" if self._name else "has no name (--deployment)"
        return f"{self._database.location} belongs {owner}, but this deployment {ours}"

    def _refuse_at_work(self, at: sa.Connection, now: datetime) -> None:
        """Keep a slip of the name from taking a running deployment's rows from it.

        A worker holds leases, and on PostgreSQL the lock of a session that listens.
        """
        if at.execute(sa.select(d.c.fingerprint)).scalar_one() != self._fingerprint(at):
            return
        leased = at.execute(sa.select(t.c.id).where(t.c.lease_expires_at > now).limit(1)).first()
        listening = None if self._database.is_sqlite else at.execute(_LISTENING).first()
        if leased or listening:
            raise VerbRefused(
                f"a worker is at work on {self._database.location}, or was half a minute ago; stop"
                " it first, if this is the copy. Nothing was changed"
            )

    def _record(self, at: sa.Connection) -> None:
        """Write whose it is, once.

        Databases may be made by copying one that was never run on: each gets an owner id of its
        own, unless a key was made with the one it has.
        """
        known = at.execute(sa.select(d.c.fingerprint)).scalar_one()
        if known is None:
            used = sa.exists().where(t.c.idempotency_key.is_not(None))
            owner = sa.case((used, d.c.owner_id), else_=_new_owner())
            self._sign(at, d.c.fingerprint.is_(None), name=self._name, owner=owner)

    def _sign(
        self,
        at: sa.Connection,
        *still: sa.ColumnElement[bool],
        name: "Expression | str | None",
        owner: "Expression | str" = d.c.owner_id,
    ) -> None:
        values = {"fingerprint": self._fingerprint(at), "deployment": name, "owner_id": owner}
        at.execute(sa.update(d).where(*still).values(values)).close()

    def _fingerprint(self, at: sa.Connection) -> str:
        """Say where the database is: a SQLite file by its path, else cluster and name."""
        if self._database.is_sqlite:
            return f"sqlite:{Path(self._database.engine.url.database or '').resolve()}"
        name, oid, may_ask = at.execute(_WHERE).one()
        # Everybody may ask by default. Without it, the number that the cluster gave the database.
        system = f"system {at.execute(_SYSTEM).scalar_one()}" if may_ask else f"database {oid}"
        return f"postgresql:{system}:{name}"

    def _until(self, seconds: float) -> float:
        return self._database.clock.monotonic() + seconds


def _new_owner() -> str:
    return "".join(secrets.choice(BASE32) for _ in range(OWNER_LENGTH))


def _made_foreign(at: sa.Connection, now: datetime, actor: str) -> Copied:
    """Retire what is not gone, journal it, and let what is wanted begin anew."""
    foreign = sa.and_(t.c.retired_at == sa.literal(now, Instant()), t.c.reason == Why.FOREIGN.value)
    retired = at.execute(
        sa.update(t)
        .where(t.c.released_at.is_(None), t.c.retired_at.is_(None))
        .values(
            retired_at=now,
            reason=Why.FOREIGN.value,
            message=_COPIED,
            due_at=None,
            lease_owner=None,
            lease_expires_at=None,
            lease_token=t.c.lease_token + 1,
        )
    )
    at.execute(_no_loose_ends()).close()
    about = entries_about(
        foreign,
        now,
        action="operator: claim-database",
        outcome="retired",
        note=_COPIED,
        actor=actor,
    )
    at.execute(about).close()
    wanted = sa.and_(
        foreign,
        t.c.release_started_at.is_(None),
        t.c.desired == Desired.WANTED.value,
        t.c.hold.is_(None),
    )
    counted = {"preserve_rowcount": True}  # of an INSERT, SQLAlchemy keeps no count by itself
    renewed = at.execute(_next_incarnations(now, wanted), execution_options=counted)
    return Copied(retired.rowcount, renewed.rowcount)


def _no_loose_ends() -> sa.Update:
    """Mark as foreign, too, what is gone, but for which a late call made something again.

    The journal knows the id, and a worker would release by it what only the original may.
    """
    made_late = sa.select(journal.c.tenancy_id).where(
        journal.c.external_id.is_not(None), sa.not_(journal.c.settled)
    )
    return sa.update(t).where(t.c.id.in_(made_late)).values(reason=Why.FOREIGN.value)


def _next_incarnations(now: datetime, wanted: sa.ColumnElement[bool]) -> sa.Insert:
    """Insert what begins anew, with all that was asked and heard, and an operator's pause."""
    row: dict[str, Expression] = {
        **{column.name: column for column in columns_of(*Part)},
        "id": new_id(),
        "incarnation": next_number(t.c.incarnation),
        "first_seen_at": sa.literal(now, Instant()),
        "paused": t.c.paused,
    }
    rows = sa.select(*row.values()).where(wanted)
    return sa.insert(t).from_select(list(row), rows, include_defaults=False)

"""A store of both halves on a clock the test owns, and a hand on its rows."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from waiting import PATIENCE

from nimble_lifecycle.protocol import Json, Phase, Reason, Workspace
from nimble_lifecycle.store import Claim, IntentStore, Recorded, Rules, Settlement, WorkStore
from nimble_lifecycle.store.models import call, journal, sighting, vendor
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.ports import Clock, DatabaseClock, instant_of
from nimble_lifecycle.store.room import Moment
from nimble_lifecycle.testing import ManualClock

KIND = "acme"
WORKSPACE = Workspace("ws_1", "tenant")
RULES = Rules(
    kind=KIND,
    owner="me",
    lease=30.0,
    grace=3600.0,
    max_creates=5,
    repeatable=None,
    can_find=True,
    keeps=False,
)

Row = dict[str, object]


class Rig:
    """Both halves on one database, with short names for what hosts, workers and tests do."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.clock = ManualClock()
        self.intents = IntentStore(url, clock=clock or self.clock)
        self.work = WorkStore(url, clock=clock or self.clock)

    def close(self) -> None:
        self.intents.close()
        self.work.close()

    def empty(self) -> None:
        for table in (t, call, journal, sighting, vendor):
            statement = sa.delete(table)
            self.work.writing(self.soon(), lambda at, s=statement: at.execute(s).close())
        self.work.enter(KIND)

    # -- the host --------------------------------------------------------------------------------

    def ready(
        self,
        params: dict[str, Json] | None = None,
        *,
        workspace: Workspace = WORKSPACE,
        reason: Reason = Reason.INSTALL,
        kind: str = KIND,
    ) -> Recorded:
        return self.intents.ready(workspace, kind, reason, params or {}, until=self.soon())

    def removing(self, workspace: Workspace = WORKSPACE) -> Recorded | None:
        return self.intents.removing(workspace, KIND, until=self.soon())

    def touch(self) -> None:
        self.intents.touch(WORKSPACE, KIND, until=self.soon())

    def soon(self) -> float:
        return self.clock.monotonic() + PATIENCE

    # -- the worker ------------------------------------------------------------------------------

    def claim(self, limit: int = 10, **changed: object) -> list[Claim]:
        """Take what a worker would: rows nobody has, and one by one those somebody left behind."""
        rules = replace(RULES, **changed)  # type: ignore[arg-type]
        left = self.work.attention(rules.kind).suspects
        alone = [self.work.claim_only(rules, suspect.id) for suspect in left]
        return [*filter(None, alone), *self.work.claim(rules, limit)]

    def claim_one(self, **changed: object) -> Claim:
        (claim,) = self.claim(**changed)
        return claim

    def busy(self, within: float = 10.0, **changed: object) -> bool:
        return self.work.busy(replace(RULES, **changed), within)  # type: ignore[arg-type]

    def settle(self, claim: Claim, phase: Phase, **more: object) -> bool:
        settled = self.work.settle([self.settlement(claim, phase, **more)], actor="me")
        return settled == {claim.tenancy.id}

    def settlement(self, claim: Claim, phase: Phase, **more: object) -> Settlement:
        fields: dict[str, object] = {
            "id": claim.tenancy.id,
            "token": claim.token,
            "generation": claim.generation,
            "action": claim.step.value,
            "outcome": phase.value,
            "phase": phase,
            "creates": claim.creates,
            "attempts": claim.attempts,
            **more,
        }
        return Settlement(**fields)  # type: ignore[arg-type]

    def make_ready(self, params: dict[str, Json] | None = None, external_id: str = "x1") -> Claim:
        """Bring the workspace to a ready tenancy and give the claim that did."""
        self.ready(params)
        claim = self.claim_one()
        assert self.settle(claim, Phase.READY, external_id=external_id, finished=True, creates=0)
        return claim

    # -- the rows --------------------------------------------------------------------------------

    def rows(self, table: sa.Table = t) -> list[Row]:
        order = (t.c.workspace_id, t.c.incarnation) if table is t else table.primary_key
        select = sa.select(table).order_by(*order)
        found = self.work.reading(self.soon(), lambda at: at.execute(select).mappings().all())
        return [dict(row) for row in found]

    def row(self) -> Row:
        (row,) = self.rows()
        return row

    def vendor(self) -> Row:
        (row,) = [row for row in self.rows(vendor) if row["kind"] == RULES.kind]
        return row

    def counted(self, what: Callable[[Moment], sa.ColumnElement[int]]) -> int:
        """Count as a claim would, now."""
        select, bound = sa.select(what(instant_of(self.clock))), {"its_kind": RULES.kind}
        return self.work.reading(self.soon(), lambda at: at.execute(select, bound).scalar_one())

    def calls(self) -> list[Row]:
        return self.rows(call)

    def journal(self) -> list[Row]:
        return self.rows(journal)

    def change(self, **columns: object) -> None:
        """Write columns of every row."""
        statement = sa.update(t).values(**columns)
        self.work.writing(self.soon(), lambda at: at.execute(statement).close())

    def insert(self, id_: UUID, workspace_id: str) -> None:
        """Insert a wanted row of this id, as whoever has the server's role can."""
        now = self.clock.instant
        times = dict.fromkeys(("first_seen_at", "generation_at", "last_seen_at"), now)
        row = {"id": id_, "tenant_id": "", "workspace_id": workspace_id, "kind": KIND}
        intent = {"incarnation": 1, "desired": "wanted", "params": {}, "params_hash": ""}
        statement = sa.insert(t).values(**row, **intent, **times, generation=1)
        self.work.writing(self.soon(), lambda at: at.execute(statement).close())

    def after(self, seconds: float) -> datetime:
        return self.clock.instant + timedelta(seconds=seconds)


@pytest.fixture(scope="session")
def kept_sqlite_rig(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> Iterator[Rig]:
    path = tmp_path_factory.mktemp("rig") / "nimble.db"
    shutil.copyfile(sqlite_template, path)
    with closing(Rig(f"sqlite:///{path}")) as rig:
        yield rig


@pytest.fixture(scope="session")
def kept_postgres_rig(postgres, postgres_template: str) -> Iterator[Rig]:
    with postgres.fresh(postgres_template) as url, closing(Rig(url)) as rig:
        yield rig


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def rig(request: pytest.FixtureRequest) -> Rig:
    """Both halves on a database without rows, on each of the two; made once, for speed."""
    rig: Rig = request.getfixturevalue(f"kept_{request.param}_rig")
    rig.empty()
    return rig


@pytest.fixture
def postgres_rig(kept_postgres_rig: Rig) -> Rig:
    """The same on PostgreSQL alone."""
    kept_postgres_rig.empty()
    return kept_postgres_rig


@pytest.fixture
def real_rig(database_url: str) -> Iterator[Rig]:
    """Both halves on a database of the test's own, and on that database's clock."""
    with closing(Rig(database_url, DatabaseClock())) as rig:
        rig.work.enter(KIND)
        yield rig


@pytest.fixture
def owners_rig(halves) -> Iterator[Rig]:
    """Both halves on a PostgreSQL database on which two roles have rights."""
    with closing(Rig(halves.owner)) as rig:
        rig.work.enter(KIND)
        yield rig

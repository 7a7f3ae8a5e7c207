"""What somebody with the server's role can still do to the rows, and what comes of it.

`docs/security.md` has a line for each test here; `tests/reconciler/test_stolen_role.py` has those
that need a worker.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

import psycopg
import pytest
from psycopg.types.json import Jsonb

from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store.operators import By, OperatorStore
from nimble_lifecycle.store.sightings import Act, Sort
from nimble_lifecycle.store.sweeps import SweepStore

pytestmark = pytest.mark.postgres

GRACE = 3600.0
INSERT = """
INSERT INTO nimble_tenancy (id, tenant_id, workspace_id, kind, incarnation, first_seen_at, desired,
                            params, params_hash, generation, generation_at, last_seen_at)
VALUES (gen_random_uuid(), 'tenant', %(workspace)s, 'acme', %(incarnation)s, %(first_seen_at)s,
        'wanted', %(params)s, '', %(generation)s, now(), now())
"""
FAR_FUTURE = datetime.fromisoformat("8999-12-31T00:00:00+00:00")
FAR_PAST = datetime.fromisoformat("1970-01-02T00:00:00+00:00")


class Thief:
    """A session of the server's role, in hands that are not the server's."""

    def __init__(self, url: str) -> None:
        self.session = psycopg.connect(url, autocommit=True)

    def change(self, **columns: object) -> None:
        """Write columns of every row."""
        assignments = ", ".join(f"{name} = %({name})s" for name in columns)
        self.session.execute(f"UPDATE nimble_tenancy SET {assignments}", columns)  # type: ignore[arg-type]

    def invent(self, workspace: str = "ws_1", **columns: object) -> None:
        values = {
            "workspace": workspace,
            "incarnation": 1,
            "first_seen_at": FAR_PAST,
            "params": Jsonb({}),
            "generation": 1,
            **columns,
        }
        self.session.execute(INSERT, values)


@pytest.fixture
def rig(owners_rig):
    return owners_rig


@pytest.fixture
def thief(halves) -> Iterator[Thief]:
    thief = Thief(halves.server)
    yield thief
    thief.session.close()


def claimed(rig) -> list[str]:
    return [claim.step.value for claim in rig.claim(grace=GRACE)]


# -- releases --------------------------------------------------------------------------------------


def test_a_release_of_every_row_waits_for_the_grace_and_is_undone_by_ready(rig, thief) -> None:
    rig.make_ready()
    thief.change(
        desired="release",
        generation=2,
        generation_at=FAR_PAST,
        release_requested_at=FAR_PAST,
        last_seen_at=FAR_PAST,
        last_used_at=FAR_PAST,
    )
    assert claimed(rig) == []
    assert rig.row()["release_after"] == rig.after(GRACE)
    rig.clock.advance(GRACE - 1)
    assert claimed(rig) == []
    rig.ready()
    rig.clock.advance(GRACE)
    assert claimed(rig) == []
    assert rig.row()["phase"] == "ready"


@pytest.mark.parametrize("column", ["last_used_at", "release_requested_at"])
def test_times_in_the_future_hold_a_release_and_begin_none(rig, thief, column: str) -> None:
    rig.make_ready()
    rig.removing()
    claimed(rig)
    thief.change(**{column: FAR_FUTURE})
    for _ in range(3):
        rig.clock.advance(GRACE)
        assert claimed(rig) == []
        assert rig.row()["release_after"] == rig.after(GRACE)
    thief.change(**{column: FAR_PAST})
    rig.clock.advance(GRACE)
    assert claimed(rig) == ["release"]


def test_an_operators_release_is_not_withdrawn(rig, thief) -> None:
    rig.make_ready()
    rig.change(hold="release", claimed_generation=0)
    claimed(rig)
    thief.change(desired="wanted", generation=7)
    rig.clock.advance(GRACE)
    assert claimed(rig) == ["release"]


def test_a_release_that_has_started_goes_on_whatever_is_written(rig, thief) -> None:
    rig.make_ready()
    rig.removing()
    release = rig.claim_one(grace=0.0)
    thief.change(desired="wanted", generation=9, params=Jsonb({"x": 1}), params_hash="x")
    assert rig.settle(release, Phase.RELEASED, finished=True)
    assert claimed(rig) == []
    assert rig.row()["phase"] == "released"


# -- rows that are hidden, or in the way -----------------------------------------------------------


@pytest.mark.parametrize("at", [FAR_FUTURE, FAR_PAST])
def test_no_time_of_a_row_hides_it_from_the_worker(rig, thief, at: datetime) -> None:
    thief.invent(first_seen_at=at)
    thief.change(generation_at=at, last_seen_at=at)
    assert claimed(rig) == ["create"]


def test_a_row_that_no_claim_would_see_cannot_be_inserted(rig, thief) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        thief.invent(generation=0)


def test_a_generation_set_back_hides_a_wish_until_the_next_one(rig, thief) -> None:
    rig.make_ready()
    rig.removing()
    thief.change(generation=1)
    assert claimed(rig) == []
    (shown,) = rig.work.status()
    assert shown["phase"] == "release_pending"
    rig.ready()
    rig.removing()
    assert claimed(rig) == []
    assert rig.row()["release_after"] == rig.after(GRACE)


def test_numbers_at_their_end_do_not_stop_a_workspace(rig, thief) -> None:
    largest = 2**31 - 1
    thief.invent(generation=largest, incarnation=largest)
    claim = rig.claim_one()
    rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    assert rig.ready({"region": "us"}).changed
    assert claimed(rig) == ["update"]
    rig.change(lease_owner=None, lease_expires_at=None)
    assert rig.removing().changed
    rig.claim(grace=0.0)
    assert rig.ready().tenancy.incarnation == 2


def test_numbers_at_their_end_stop_neither_an_operator_nor_a_sweep(rig, thief) -> None:
    largest = 2**31 - 1
    thief.invent(generation=largest, incarnation=largest)
    claim = rig.claim_one()
    rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    row = claim.tenancy.id
    with closing(OperatorStore(rig.url, clock=rig.clock)) as operator:
        operator.release(row, By("me"))
        thief.change(generation=largest)
        operator.undo(row, By("me"))
    thief.change(generation=largest)
    sweeps = SweepStore(rig.work, actor="sweep")
    for _ in range(2):
        rig.clock.advance(1)
        sweeps.sight("acme", Sort.DRIFT, "x1", 1.0)
    token = rig.row()["lease_token"]
    assert sweeps.retire_vanished(row, "x1", token, why="gone") is Act.DONE
    assert [each["retired_at"] is None for each in rig.rows()] == [True, False]


def test_a_workspace_has_one_live_row_however_many_are_inserted(rig, thief) -> None:
    thief.invent()
    with pytest.raises(psycopg.errors.UniqueViolation):
        thief.invent(incarnation=2)


def test_a_retired_row_is_never_looked_at_again(rig, thief) -> None:
    rig.make_ready()
    rig.change(retired_at=rig.clock.instant, due_at=rig.clock.instant)
    thief.change(generation=5, params=Jsonb({"x": 1}), params_hash="x")
    assert claimed(rig) == []
    thief.change(desired="release", generation=6)
    assert rig.claim(grace=0.0) == []


# -- what hosts are said to have said --------------------------------------------------------------


def test_lies_in_the_call_log_change_nothing(rig, thief) -> None:
    rig.make_ready()
    before = rig.row()
    thief.session.execute(
        "INSERT INTO nimble_call (at, tenant_id, workspace_id, kind, event)"
        " SELECT now(), 'tenant', 'ws_1', 'acme', 'removing' FROM generate_series(1, 1000)"
    )
    assert claimed(rig) == []
    assert rig.row() == before


def test_it_reads_the_params_and_details_of_every_workspace_but_no_lease(rig, thief) -> None:
    rig.make_ready({"region": "eu"})
    rig.change(details={"secret": "vault:ref"})
    found = thief.session.execute("SELECT params, details FROM nimble_tenancy").fetchall()
    assert found == [({"region": "eu"}, {"secret": "vault:ref"})]


# -- locks -----------------------------------------------------------------------------------------


def test_a_lock_on_rows_delays_what_is_written_of_them_and_loses_nothing(rig, thief) -> None:
    rig.ready()
    rig.ready(workspace=Workspace("ws_2", "tenant"))
    one, two = sorted(rig.claim(), key=lambda claim: claim.tenancy.workspace_id)
    lock = "SELECT 1 FROM nimble_tenancy WHERE workspace_id = 'ws_1' FOR UPDATE"
    ending = {"phase": Phase.READY, "external_id": "x1", "finished": True}
    waiting = threading.Thread(target=rig.settle, args=(one,), kwargs=ending)
    with thief.session.transaction():
        thief.session.execute(lock)
        waiting.start()
        assert rig.settle(two, Phase.READY, external_id="x2", finished=True)
        assert [row["phase"] for row in rig.rows()] == ["provisioning", "ready"]
    waiting.join()
    assert [row["phase"] for row in rig.rows()] == ["ready", "ready"]

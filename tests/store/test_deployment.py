"""Whose database it is, with real copies: a SQLite file elsewhere, a PostgreSQL database's copy."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa
from waiting import PATIENCE

from nimble_lifecycle.errors import ForeignDatabase, StoreError, VerbRefused
from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store import WorkStore
from nimble_lifecycle.store.deployment import Copied, Deployment
from nimble_lifecycle.store.models import deployment, journal, sighting
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.surpluses import loose_ends
from nimble_lifecycle.store.wakeups import Listener
from tests.store.conftest import RULES

Copy = Callable[[str], str]


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copy]:
    """Give a function that copies a database and gives the copy's URL."""
    with ExitStack() as stack:

        def copied(url: str) -> str:
            if url.startswith("sqlite"):
                path = tmp_path / "elsewhere" / "nimble.db"
                path.parent.mkdir()
                shutil.copyfile(url.removeprefix("sqlite:///"), path)
                return f"sqlite:///{path}"
            databases = request.getfixturevalue("postgres")
            return stack.enter_context(databases.fresh(urlsplit(url).path.removeprefix("/")))

        yield copied


@pytest.fixture
def stores() -> Iterator[Callable[[str], WorkStore]]:
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(WorkStore(url)))


def entered(store: WorkStore, name: str | None = None) -> Deployment:
    made = Deployment(store, name)
    made.enter()
    return made


def known(store: WorkStore) -> sa.Row[tuple[object, ...]]:
    columns = (deployment.c.owner_id, deployment.c.fingerprint, deployment.c.deployment)
    until = store.clock.monotonic() + PATIENCE
    return store.reading(until, lambda at: at.execute(sa.select(*columns)).one())


def run(store: WorkStore, statement: sa.Executable) -> None:
    until = store.clock.monotonic() + PATIENCE
    store.writing(until, lambda at: at.execute(statement).close())


# -- who may go on ---------------------------------------------------------------------------------


def test_the_first_worker_says_whose_it_is_and_the_next_ones_agree(
    database_url: str, stores
) -> None:
    assert known(stores(database_url)).fingerprint is None
    entered(stores(database_url), "production")
    first = known(stores(database_url))
    assert first.deployment == "production"
    entered(stores(database_url), "production")
    Deployment(stores(database_url), "production").check()
    assert known(stores(database_url)) == first


def test_a_database_that_is_nobodys_is_nobodys_after_a_mere_check(
    database_url: str, stores
) -> None:
    Deployment(stores(database_url), "production").check()
    assert known(stores(database_url)).fingerprint is None


def test_a_copy_elsewhere_is_foreign_and_the_original_is_not(
    database_url: str, copy: Copy, stores
) -> None:
    with closing(WorkStore(database_url)) as store:
        entered(store)
    url = copy(database_url)
    there, before = stores(url), known(stores(url))
    for look in (Deployment(there, None).check, Deployment(there, None).enter):
        with pytest.raises(ForeignDatabase, match=r"claim-database --moved.*--copy"):
            look()
    assert known(stores(url)) == before
    entered(stores(database_url))


@pytest.mark.parametrize(("first", "then"), [("a", "b"), ("a", None), (None, "a")])
def test_a_name_tells_a_copy_in_the_same_place(
    database_url: str, stores, first: str | None, then: str | None
) -> None:
    entered(stores(database_url), first)
    with pytest.raises(ForeignDatabase):
        Deployment(stores(database_url), then).check()


def test_a_copy_of_a_database_nobody_ran_on_is_another_owner(
    database_url: str, copy: Copy, stores
) -> None:
    with closing(WorkStore(database_url)) as store:
        owner = known(store).owner_id
    there, here = stores(copy(database_url)), stores(database_url)
    assert known(there).owner_id == owner
    entered(here)
    entered(there)
    assert known(here).owner_id != known(there).owner_id
    assert {len(str(known(store).owner_id)) for store in (here, there)} == {10}


def test_an_owner_id_that_is_in_keys_already_stays(real_rig) -> None:
    real_rig.ready()
    owner = known(real_rig.work).owner_id
    real_rig.claim_one()
    entered(real_rig.work)
    assert known(real_rig.work).owner_id == owner


def test_two_that_are_first_at_once_agree(database_url: str, stores) -> None:
    names = ["a", "b"]
    failed: list[str] = []

    def enter(store: WorkStore, name: str) -> None:
        try:
            entered(store, name)
        except ForeignDatabase:
            failed.append(name)

    work = [threading.Thread(target=enter, args=(stores(database_url), name)) for name in names]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    (loser,) = failed
    assert {known(stores(database_url)).deployment, loser} == set(names)


def test_a_database_swapped_under_a_worker_is_seen_before_a_statement_on_it(real_rig) -> None:
    real_rig.ready()
    entered(real_rig.work)
    assert real_rig.work.kinds() == ["acme"]
    run(real_rig.intents, sa.update(deployment).values(fingerprint="somewhere else"))
    real_rig.work.engine.dispose()  # its connections are made anew, as after a failover
    with pytest.raises(ForeignDatabase):
        real_rig.claim()
    assert real_rig.intents.reading(
        real_rig.soon(), lambda at: at.execute(sa.select(t.c.lease_token)).scalars().all()
    ) == [0]


@pytest.mark.postgres
def test_every_role_knows_the_same_database_by_the_same_fingerprint(halves, stores) -> None:
    entered(stores(halves.worker))
    found = known(stores(halves.owner)).fingerprint
    assert str(found).startswith("postgresql:system ")
    Deployment(stores(halves.owner), None).check()


@pytest.mark.postgres
def test_where_the_system_may_not_be_asked_the_database_is_known_by_its_number(
    halves, stores
) -> None:
    with psycopg.connect(halves.owner, autocommit=True) as owner:
        owner.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    entered(stores(halves.worker))
    assert "postgresql:database " in str(known(stores(halves.owner)).fingerprint)
    Deployment(stores(halves.worker), None).check()


# -- moved -----------------------------------------------------------------------------------------


def test_what_was_moved_goes_on_as_it_was(database_url: str, copy: Copy, stores) -> None:
    with closing(WorkStore(database_url)) as store:
        entered(store, "production")
        before = known(store)
    there = stores(copy(database_url))
    assert Deployment(there, None).claim_moved()
    after = known(there)
    assert (after.owner_id, after.deployment) == (before.owner_id, "production")
    assert after.fingerprint != before.fingerprint
    entered(there, "production")
    assert not Deployment(there, "production").claim_moved()
    assert known(there) == after


def test_a_deployment_is_given_a_name(database_url: str, stores) -> None:
    store = stores(database_url)
    entered(store)
    assert Deployment(store, "production").claim_moved()
    entered(stores(database_url), "production")


# -- copied ----------------------------------------------------------------------------------------


def lives(rig) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = {}
    for row in rig.rows():
        found.setdefault(str(row["workspace_id"]), []).append(row)
    return found


def leases_end(rig) -> None:
    """Let the leases run out, as they have on a copy that is half a minute old."""
    over = rig.rows()[0]["first_seen_at"]
    run(rig.work, sa.update(t).where(t.c.lease_owner.is_not(None)).values(lease_expires_at=over))


@pytest.fixture
def original(real_rig):
    """Fill a database with a row in each state, and make it somebody's: `original`."""
    rig = real_rig
    for name in ("ready", "leaving", "releasing", "released", "paused", "held"):
        rig.ready({"n": name}, workspace=Workspace(name))
        claim = rig.claim_one()
        rig.settle(claim, Phase.READY, external_id=f"x-{name}", finished=True, creates=0)
    for name in ("released", "releasing"):
        rig.removing(Workspace(name))
        release = rig.claim_one(grace=0.0)
        if name == "released":
            rig.settle(release, Phase.RELEASED, finished=True)
    rig.removing(Workspace("leaving"))
    mine = {name: t.c.workspace_id == name for name in ("paused", "held")}
    run(rig.work, sa.update(t).where(mine["paused"]).values(paused=True))
    run(rig.work, sa.update(t).where(mine["held"]).values(hold="release"))
    rig.ready(workspace=Workspace("leased"))
    rig.claim_one(grace=3600.0)
    leases_end(rig)
    rig.ready({"n": 1}, workspace=Workspace("pending"))
    moment = rig.rows()[0]["first_seen_at"]
    strike = {"kind": "acme", "sort": "orphan", "subject": "x", "strikes": 1}
    run(rig.work, sa.insert(sighting).values(**strike, first_at=moment, last_at=moment))
    entered(rig.work, "original")
    return rig


def test_a_copy_retires_what_is_not_gone_and_begins_anew_what_is_wanted(original) -> None:
    before = lives(original)
    owner = known(original.work).owner_id
    copied = Deployment(original.work, "copy").claim_copy(actor="me")
    assert copied == Copied(retired=7, renewed=4)
    after = lives(original)
    assert after["released"] == before["released"]
    for name in set(before) - {"released"}:
        old = after[name][0]
        assert (old["reason"], old["lease_owner"], old["due_at"]) == ("Foreign", None, None), name
        assert old["retired_at"] is not None
        assert old["lease_token"] == before[name][0]["lease_token"] + 1
        assert old["external_id"] == before[name][0]["external_id"]
    renewed = {name: rows[1] for name, rows in after.items() if len(rows) == 2}
    assert set(renewed) == {"ready", "paused", "leased", "pending"}
    for name, new in renewed.items():
        old = before[name][0]
        for column in ("desired", "params", "params_hash", "last_seen_at", "last_used_at"):
            assert new[column] == old[column], column
        assert (new["phase"], new["incarnation"], new["attempts"]) == ("pending", 2, 0)
        assert new["id"] != old["id"]
        assert new["external_id"] is new["idempotency_key"] is new["create_started_at"] is None
        assert new["paused"] == (name == "paused")
    assert known(original.work).owner_id != owner
    assert original.rows(sighting) == []


def test_a_copy_journals_what_it_retired(original) -> None:
    Deployment(original.work, "copy").claim_copy(actor="me")
    entries = [entry for entry in original.rows(journal) if "claim-database" in entry["action"]]
    assert len(entries) == 7
    assert {(entry["outcome"], entry["actor"], entry["settled"]) for entry in entries} == {
        ("retired", "me", True)
    }


def test_on_a_copy_only_what_begins_anew_is_claimed_and_under_keys_of_its_own(original) -> None:
    keys = {row["idempotency_key"] for row in original.rows()}
    Deployment(original.work, "copy").claim_copy(actor="me")
    entered(original.work, "copy")
    owner = known(original.work).owner_id
    claims = original.claim(grace=0.0)
    assert {claim.tenancy.workspace_id for claim in claims} == {"ready", "leased", "pending"}
    assert {claim.step.value for claim in claims} == {"create"}
    for claim in claims:
        assert str(claim.tenancy.idempotency_key).startswith(f"{owner}-")
        assert claim.tenancy.idempotency_key not in keys


def test_what_a_late_worker_made_for_the_original_is_not_released_by_the_copy(real_rig) -> None:
    rig = real_rig
    rig.ready()
    late = rig.claim_one()
    run(rig.work, sa.update(t).values(lease_token=9, external_id="x1", phase="ready"))
    run(rig.work, sa.update(t).values(lease_owner=None, lease_expires_at=None))
    rig.removing()
    release = rig.claim_one(grace=0.0)
    rig.settle(release, Phase.RELEASED, finished=True)
    assert not rig.settle(late, Phase.READY, external_id="x2", finished=True)
    entered(rig.work, "original")
    Deployment(rig.work, "copy").claim_copy(actor="me")
    assert loose(rig) == []


def test_the_original_releases_what_a_late_worker_made(real_rig) -> None:
    rig = real_rig
    rig.ready()
    late = rig.claim_one()
    run(rig.work, sa.update(t).values(lease_token=9, external_id="x1", phase="ready"))
    assert not rig.settle(late, Phase.READY, external_id="x2", finished=True)
    assert loose(rig) == ["x2"]


def loose(rig) -> list[object]:
    until = rig.soon()
    return rig.work.reading(
        until, lambda at: [row["made"] for row in at.execute(loose_ends("acme")).mappings()]
    )


def test_a_worker_that_was_in_the_middle_on_a_copy_writes_nothing(real_rig) -> None:
    real_rig.ready()
    claim = real_rig.claim_one()
    leases_end(real_rig)
    entered(real_rig.work, "original")
    Deployment(real_rig.work, "copy").claim_copy(actor="me")
    assert not real_rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    old, new = real_rig.rows()
    assert (old["external_id"], new["external_id"]) == (None, None)
    assert new["phase"] == "pending"


def test_what_nothing_tells_from_the_original_is_not_made_a_copy(original) -> None:
    before = original.rows()
    with pytest.raises(VerbRefused, match="--deployment"):
        Deployment(original.work, "original").claim_copy(actor="me")
    assert original.rows() == before


def test_a_slip_of_the_name_takes_no_row_from_a_worker_that_has_a_lease(original) -> None:
    original.claim()
    before = original.rows()
    with pytest.raises(VerbRefused, match="a worker is at work"):
        Deployment(original.work, "slip").claim_copy(actor="me")
    assert original.rows() == before


@pytest.mark.postgres
def test_a_slip_of_the_name_takes_no_row_from_an_idle_worker(halves, stores) -> None:
    store = stores(halves.worker)
    entered(store, "original")
    worker = threading.Event()
    listener = Listener(store, worker.set)
    listener.start()
    assert worker.wait(10)
    ends = time.monotonic() + PATIENCE
    while (refusal := refusal_of_a_copy(store)) is None:  # it is heard before it listens
        assert time.monotonic() < ends, "the listening session was not seen"
    assert "a worker is at work" in refusal
    listener.close()


def test_a_worker_claims_nothing_of_a_database_that_was_given_to_another(
    real_rig,
) -> None:
    rig = real_rig
    rig.ready()
    entered(rig.work, "original")
    Deployment(rig.work, "copy").claim_copy(actor="me")  # who did not see that one is at work
    before = rig.rows()
    assert rig.claim() == []
    assert rig.work.claim_only(RULES, before[-1]["id"]) is None
    assert rig.rows() == before
    with pytest.raises(ForeignDatabase):
        rig.work.recheck()
    entered(rig.work, "copy")
    assert len(rig.claim()) == 1


def refusal_of_a_copy(store: WorkStore) -> str | None:
    """Give why the database cannot be made a copy; where it can, make it the original's again."""
    try:
        Deployment(store, "slip").claim_copy(actor="me")
    except VerbRefused as refused:
        return str(refused)
    Deployment(store, "original").claim_moved()
    return None


def test_what_nobody_ran_on_needs_no_claim(real_rig) -> None:
    real_rig.ready()
    with pytest.raises(VerbRefused, match="nobody's yet"):
        Deployment(real_rig.work, "copy").claim_copy(actor="me")
    assert real_rig.row()["retired_at"] is None


def test_of_two_copies_at_once_one_is_made(original, stores) -> None:
    results: list[object] = []

    def claim(store: WorkStore) -> None:
        try:
            results.append(Deployment(store, "copy").claim_copy(actor="me"))
        except VerbRefused as refused:
            results.append(refused)

    work = [threading.Thread(target=claim, args=(stores(original.url),)) for _ in range(2)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert sorted(type(result).__name__ for result in results) == ["Copied", "VerbRefused"]
    assert len(lives(original)["ready"]) == 2


def test_hosts_that_call_meanwhile_leave_one_live_row_each(original) -> None:
    stop = threading.Event()
    failed: list[Exception] = []

    def call() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for name in ("ready", "leaving", "pending", "new"):
                try:
                    original.ready({"n": number}, workspace=Workspace(name))
                except StoreError as error:
                    failed.append(error)

    callers = [threading.Thread(target=call) for _ in range(2)]
    for thread in callers:
        thread.start()
    try:
        Deployment(original.work, "copy").claim_copy(actor="me")
    finally:
        stop.set()
        for thread in callers:
            thread.join()
    assert failed == []
    original.ready({"n": 0}, workspace=Workspace("new"))
    for name, rows in lives(original).items():
        live = [row for row in rows if not (row["release_started_at"] or row["retired_at"])]
        assert len(live) == (0 if name in ("releasing", "released", "held") else 1), name
        # What the host first asked for on the copy, after the claim, belongs to the copy.
        assert all(row["external_id"] is None for row in live)


def test_a_claim_that_fails_leaves_everything_as_it_was(original) -> None:
    before, whose = original.rows(), known(original.work)
    if original.work.is_sqlite:
        trap = (
            "CREATE TRIGGER trap BEFORE INSERT ON nimble_tenancy"
            " BEGIN SELECT RAISE(ABORT, 'stop'); END"
        )
    else:
        trap = "ALTER TABLE nimble_tenancy ADD CONSTRAINT trap CHECK (incarnation < 2) NOT VALID"
    original.work.writing(original.soon(), lambda at: at.exec_driver_sql(trap).close())
    with pytest.raises(sa.exc.IntegrityError):
        Deployment(original.work, "copy").claim_copy(actor="me")
    assert original.rows() == before
    assert known(original.work) == whose

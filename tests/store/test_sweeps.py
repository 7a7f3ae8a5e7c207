"""What sweeps remember and do, row by row: turns, strikes, the breaker, and the last checks."""

import threading
from datetime import datetime, timedelta
from uuid import uuid4, uuid5

import pytest
import sqlalchemy as sa

from nimble_lifecycle.errors import SweepBusy
from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store import stretches
from nimble_lifecycle.store.models import deployment, sighting, vendor
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.sightings import Act, Sort
from nimble_lifecycle.store.sweeps import Keyed, Loose, Member, SweepStore
from nimble_lifecycle.store.types import base32_of

KIND = "acme"
HOUR = 3600.0
DAY = 86400.0


class Sweeper:
    """A rig and a sweep that has its turn."""

    def __init__(self, rig) -> None:
        self.rig = rig
        self.store = SweepStore(rig.work, actor="me")
        self.other = SweepStore(rig.work, actor="another")
        assert self.store.take_turn(KIND, 30 * DAY)

    def twice(self, sort: Sort, subject: object, *, apart: float = HOUR) -> None:
        """Let it be found twice, apart in time."""
        self.store.strike(KIND, sort, [str(subject)], apart)
        self.rig.clock.advance(apart)
        self.store.strike(KIND, sort, [str(subject)], apart)

    def member(self) -> Member:
        (member,) = self.store.members(KIND, None)
        return member

    def silent(self, since: datetime) -> list[Member]:
        parts = (self.store.silent(KIND, since, each) for each in self.store.stretches())
        return [member for part in parts for member in part]

    def sightings(self) -> list[dict[str, object]]:
        return self.rig.rows(sighting)

    def vendor(self) -> dict[str, object]:
        (row,) = self.rig.rows(vendor)
        return row

    def approve(self) -> None:
        now = self.rig.clock.instant
        closed = {"sweep_breaker_approved_at": now, "sweep_breaker_opened_at": None}
        statement = sa.update(vendor).values(**closed)
        self.rig.work.writing(self.rig.soon(), lambda at: at.execute(statement).close())

    def retire(self, **changed: object) -> Act:
        row = self.rig.rows()[0]
        given = {"row_id": row["id"], "external_id": "x1", "token": row["lease_token"], **changed}
        return self.store.retire_vanished(**given, why="gone")

    def ask(self, *, silence: float = HOUR, allowed: int = 3) -> Act:
        return self.store.ask_release(
            self.member(), Sort.STALE, silence, why="silent", allowed=allowed
        )

    def loose(self, external_id: str = "stray", of: Keyed | None = None) -> Loose:
        return Loose(
            external_id=external_id,
            owner_id=self.store.owner_id(),
            named=uuid4() if of is None else of.id,
            of=of,
            created_at=self.rig.clock.instant - timedelta(days=8),
        )

    def release(self, loose: Loose, *, keeps: bool = False) -> Act:
        return self.store.release_loose(KIND, loose, why="ours", allowed=3, keeps=keeps)


@pytest.fixture
def sweeper(rig) -> Sweeper:
    return Sweeper(rig)


# -- one sweep at a time ---------------------------------------------------------------------------


def test_only_wanted_rows_that_were_not_heard_from_are_silent(sweeper: Sweeper) -> None:
    for name in ("silent", "released", "heard"):
        sweeper.rig.ready(workspace=Workspace(name))
    sweeper.rig.removing(Workspace("released"))
    since = sweeper.rig.clock.instant
    sweeper.rig.clock.advance(HOUR)
    sweeper.rig.ready(workspace=Workspace("heard"))
    assert [each.workspace_id for each in sweeper.silent(since)] == ["silent"]


@pytest.mark.parametrize(
    "other",
    [
        lambda rig: {"hold": "release"},
        lambda rig: {"kind": "other"},
        lambda rig: {"release_started_at": rig.clock.instant},
        lambda rig: {"retired_at": rig.clock.instant},
    ],
    ids=["held", "of another kind", "going", "retired"],
)
def test_silence_is_asked_of_live_wanted_rows_of_the_kind_alone(sweeper: Sweeper, other) -> None:
    rig = sweeper.rig
    rig.ready()
    assert len(sweeper.silent(rig.clock.instant)) == 1
    rig.change(**other(rig))
    assert sweeper.silent(rig.clock.instant) == []


def test_every_silent_row_is_met_once_in_a_table_of_several_stretches(
    sweeper: Sweeper, monkeypatch
) -> None:
    monkeypatch.setattr(stretches, "_STRETCH", {"postgresql": 1, "sqlite": 7})
    names = [f"ws_{number}" for number in range(60)]
    for name in names:
        sweeper.rig.ready(workspace=Workspace(name))
    since = sweeper.rig.clock.instant
    assert len(sweeper.store.stretches()) > 1
    assert sorted(each.workspace_id for each in sweeper.silent(since)) == sorted(names)


def test_a_postgresql_that_reads_all_for_a_part_is_asked_once(postgres_rig, monkeypatch) -> None:
    monkeypatch.setattr(stretches, "_STRETCH", {"postgresql": 1})
    sweeper = Sweeper(postgres_rig)
    fleet(postgres_rig, 40)
    assert len(sweeper.store.stretches()) > 1
    monkeypatch.setattr(postgres_rig.work.engine.dialect, "server_version_info", (13, 9))
    assert [each.start for each in sweeper.store.stretches()] == [0]
    assert len(sweeper.silent(postgres_rig.clock.instant)) == 40


def test_stretches_are_cut_without_a_gap_and_the_last_takes_any_row(sweeper: Sweeper) -> None:
    dialect = sweeper.rig.work.engine.dialect
    each, last = (10_000, 2**63 - 1) if dialect.name == "sqlite" else (768, 2**32 - 1)
    first, second = stretches.cut(each, dialect)
    assert (first.start, first.end, second.start, second.end) == (0, each, each, last)


def test_an_empty_table_is_one_stretch_of_whatever_comes(sweeper: Sweeper) -> None:
    (only,) = stretches.cut(0, sweeper.rig.work.engine.dialect)
    fleet(sweeper.rig, 3)
    assert only.start == 0
    assert len(sweeper.store.silent(KIND, sweeper.rig.clock.instant, only)) == 3


def test_one_sweep_of_a_kind_has_the_turn_and_other_kinds_have_theirs(sweeper: Sweeper) -> None:
    assert not sweeper.other.take_turn(KIND, 60.0)
    assert not sweeper.store.take_turn(KIND, 60.0)
    assert sweeper.other.take_turn("other", 60.0)


def test_a_turn_is_given_back_by_who_has_it_only(sweeper: Sweeper) -> None:
    sweeper.other.give_turn_back(KIND, {"orphan": 7})
    assert list(sweeper.store._store.notices()) == []
    assert not sweeper.other.take_turn(KIND, 60.0)
    sweeper.store.give_turn_back(KIND)
    assert sweeper.other.take_turn(KIND, 60.0)


def test_a_turn_ends_by_itself_unless_it_is_extended(rig) -> None:
    first, second = (SweepStore(rig.work, actor=name) for name in ("a", "b"))
    assert first.take_turn(KIND, 60.0)
    rig.clock.advance(50)
    first.keep_turn(KIND, 60.0)
    rig.clock.advance(50)
    assert not second.take_turn(KIND, 60.0)
    rig.clock.advance(10)
    assert second.take_turn(KIND, 60.0)
    with pytest.raises(SweepBusy):
        first.keep_turn(KIND, 60.0)


def test_a_turn_is_not_taken_so_soon_after_the_last_one_began(rig) -> None:
    store = SweepStore(rig.work, actor="a")
    assert store.take_turn(KIND, 60.0, rest=100.0)
    store.give_turn_back(KIND)
    rig.clock.advance(99)
    assert not store.take_turn(KIND, 60.0, rest=100.0)
    rig.clock.advance(1)
    assert store.take_turn(KIND, 60.0, rest=100.0)


def test_of_many_that_want_the_turn_at_once_one_gets_it(real_rig) -> None:
    got: list[bool] = []

    def take(name: str) -> None:
        got.append(SweepStore(real_rig.work, actor=name).take_turn(KIND, 60.0))

    threads = [threading.Thread(target=take, args=(str(n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 5 + [True]


# -- what was seen before --------------------------------------------------------------------------


def test_a_second_strike_needs_its_time_apart(sweeper: Sweeper) -> None:
    assert sweeper.store.sight(KIND, Sort.DRIFT, "x", 60.0) == 1
    sweeper.rig.clock.advance(59)
    assert sweeper.store.sight(KIND, Sort.DRIFT, "x", 60.0) == 1
    sweeper.rig.clock.advance(1)
    assert sweeper.store.sight(KIND, Sort.DRIFT, "x", 60.0) == 2


def test_what_is_known_already_is_not_written_again(sweeper: Sweeper) -> None:
    sweeper.twice(Sort.ORPHAN, "x")
    before = sweeper.sightings()
    sweeper.rig.clock.advance(DAY)
    assert sweeper.store.strike(KIND, Sort.ORPHAN, ["x"], HOUR) == {"x": 2}
    assert sweeper.sightings() == before


def test_strikes_are_kept_apart_by_kind_and_sort(sweeper: Sweeper) -> None:
    sweeper.twice(Sort.ORPHAN, "x")
    assert sweeper.store.sight(KIND, Sort.DRIFT, "x", 0.0) == 1
    assert sweeper.store.sight("other", Sort.ORPHAN, "x", 0.0) == 1


def test_a_sighting_that_is_taken_back_starts_anew(sweeper: Sweeper) -> None:
    sweeper.store.sight(KIND, Sort.DRIFT, "x", 0.0)
    sweeper.store.forget(KIND, Sort.DRIFT, ["x"])
    assert sweeper.store.sight(KIND, Sort.DRIFT, "x", 0.0) == 1


def test_a_sweep_that_lost_its_turn_strikes_nothing(sweeper: Sweeper) -> None:
    with pytest.raises(SweepBusy):
        sweeper.other.strike(KIND, Sort.ORPHAN, ["x"], HOUR)
    assert sweeper.sightings() == []


def test_many_are_struck_at_once(sweeper: Sweeper) -> None:
    names = [f"x{n}" for n in range(2500)]
    assert set(sweeper.store.strike(KIND, Sort.ORPHAN, names, HOUR).values()) == {1}
    sweeper.store.forget(KIND, Sort.ORPHAN, names[1:])
    assert len(sweeper.sightings()) == 1


# -- a resource that vanished ----------------------------------------------------------------------


def test_a_vanished_resource_gives_way_to_the_next_incarnation(sweeper: Sweeper) -> None:
    rig = sweeper.rig
    rig.make_ready({"plan": "pro"})
    rig.change(attempts=4)
    ready = rig.row()
    sweeper.twice(Sort.DRIFT, "x1")
    assert sweeper.retire() is Act.DONE
    old, new = rig.rows()
    assert (old["retired_at"], old["reason"]) == (rig.clock.instant, "Vanished")
    assert (new["incarnation"], new["phase"], new["desired"]) == (2, "pending", "wanted")
    same = ("tenant_id", "workspace_id", "kind", "params", "params_hash", "attempts")
    assert [new[name] for name in same] == [old[name] for name in same]
    assert new["last_seen_at"] == old["last_seen_at"]
    assert (new["external_id"], new["idempotency_key"]) == (None, None)
    claim = rig.claim_one()
    assert claim.tenancy.id == new["id"]
    assert claim.tenancy.idempotency_key not in (None, old["idempotency_key"])
    assert rig.journal()[-1]["action"] == "sweep: retire"
    assert old["lease_token"] > ready["lease_token"]


def test_a_resource_that_only_a_late_worker_noted_may_vanish_too(sweeper: Sweeper) -> None:
    sweeper.rig.make_ready()
    sweeper.rig.change(last_observed_at=None)
    sweeper.twice(Sort.DRIFT, "x1")
    assert sweeper.retire() is Act.DONE


def test_a_row_with_the_id_that_the_next_incarnation_might_have_had_stops_nothing(
    sweeper: Sweeper,
) -> None:
    rig = sweeper.rig
    rig.make_ready()
    rig.clock.advance(60)
    sweeper.twice(Sort.DRIFT, "x1", apart=10.0)
    rig.insert(uuid5(rig.row()["id"], "next"), "ws_forged")
    assert sweeper.retire() is Act.DONE
    first, second, forged = rig.rows()
    assert (first["retired_at"], second["incarnation"]) == (rig.clock.instant, 2)
    assert (second["workspace_id"], second["retired_at"]) == ("ws_1", None)
    assert (forged["workspace_id"], forged["lease_token"]) == ("ws_forged", 0)


def test_a_retired_row_is_never_looked_at_again(sweeper: Sweeper) -> None:
    rig = sweeper.rig
    rig.make_ready()
    sweeper.twice(Sort.DRIFT, "x1")
    rig.ready({"changed": True})  # a generation that no worker has seen yet
    assert sweeper.retire() is Act.DONE
    claim = rig.claim_one()
    assert claim.tenancy.params == {"changed": True}
    assert rig.settle(claim, Phase.READY, external_id="x2", finished=True)
    rig.clock.advance(DAY)
    assert rig.claim() == []


def test_a_ready_that_comes_afterwards_meets_the_next_incarnation(sweeper: Sweeper) -> None:
    sweeper.rig.make_ready()
    sweeper.twice(Sort.DRIFT, "x1")
    sweeper.retire()
    sweeper.rig.ready({"plan": "new"})
    assert [row["incarnation"] for row in sweeper.rig.rows()] == [1, 2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rig: rig.removing(),
        lambda rig: rig.change(hold="release"),
        lambda rig: rig.change(external_id="adopted"),
        lambda rig: rig.change(paused=True),
        lambda rig: rig.change(phase="stalled"),
        lambda rig: rig.change(lease_token=t.c.lease_token + 1),
        lambda rig: rig.change(release_started_at=rig.clock.instant),
    ],
    ids=["asked", "held", "adopted", "paused", "not ready", "claimed", "releasing"],
)
def test_nothing_is_retired_that_changed_meanwhile(sweeper: Sweeper, spoil) -> None:
    rig = sweeper.rig
    rig.make_ready()
    token = rig.row()["lease_token"]
    sweeper.twice(Sort.DRIFT, "x1")
    spoil(rig)
    assert sweeper.retire(token=token) is Act.CHANGED
    assert rig.row()["retired_at"] is None


def test_one_sighting_retires_nothing(sweeper: Sweeper) -> None:
    sweeper.rig.make_ready()
    sweeper.store.sight(KIND, Sort.DRIFT, "x1", 0.0)
    assert sweeper.retire() is Act.CHANGED
    assert sweeper.rig.row()["retired_at"] is None


def test_a_worker_retires_by_the_token_of_its_own_lease(sweeper: Sweeper) -> None:
    rig = sweeper.rig
    rig.make_ready()
    rig.ready({"plan": "new"})
    claim = rig.claim_one()
    for _ in range(2):
        sweeper.other.sight(KIND, Sort.DRIFT, "x1", 0.0)
    done = sweeper.other.retire_vanished(claim.tenancy.id, "x1", claim.token, why="gone")
    assert done is Act.DONE
    assert not rig.settle(claim, Phase.READY, external_id="x1")  # its settlement comes too late
    old, new = rig.rows()
    assert (old["lease_owner"], old["lease_expires_at"]) == (None, None)
    assert (new["phase"], new["params"]) == ("pending", {"plan": "new"})


# -- the breaker -----------------------------------------------------------------------------------


def fleet(rig, size: int) -> None:
    for n in range(size):
        rig.ready(workspace=Workspace(f"ws_{n:03}"))
    for claim in rig.claim(size):
        name = claim.tenancy.workspace_id
        assert rig.settle(claim, Phase.READY, external_id=name, finished=True, creates=0)


def retire_all(sweeper: Sweeper) -> list[Act]:
    """Find the resource of every live row gone, twice, and retire what the breaker lets pass."""
    members = [m for m in sweeper.store.members(KIND, None) if m.external_id is not None]
    names = [str(member.external_id) for member in members]
    sweeper.store.strike(KIND, Sort.DRIFT, names, 0.0)
    sweeper.store.strike(KIND, Sort.DRIFT, names, 0.0)
    return [
        sweeper.store.retire_vanished(m.id, str(m.external_id), m.lease_token, why="gone")
        for m in members
    ]


def test_a_small_fleet_may_lose_three_a_day_and_the_fourth_opens_the_breaker(
    sweeper: Sweeper,
) -> None:
    fleet(sweeper.rig, 5)
    assert retire_all(sweeper) == [Act.DONE] * 3 + [Act.HELD] * 2
    assert sweeper.vendor()["sweep_breaker_opened_at"] == sweeper.rig.clock.instant
    assert sum(row["retired_at"] is not None for row in sweeper.rig.rows()) == 3


def test_a_large_fleet_may_lose_a_tenth_a_day(sweeper: Sweeper) -> None:
    fleet(sweeper.rig, 50)
    assert sweeper.store.allowed(KIND) == 5
    # The fleet shrinks by what is retired, and with it what is let pass.
    assert retire_all(sweeper).count(Act.DONE) == 4


def test_what_is_going_already_lets_no_more_pass(sweeper: Sweeper) -> None:
    rig = sweeper.rig
    fleet(rig, 50)
    rig.change(release_started_at=rig.clock.instant)
    assert sweeper.store.allowed(KIND) == 3


def test_three_within_a_day_keep_the_breaker_closed(sweeper: Sweeper) -> None:
    fleet(sweeper.rig, 3)
    assert retire_all(sweeper) == [Act.DONE] * 3
    assert sweeper.vendor()["sweep_breaker_opened_at"] is None
    assert sweeper.store.breaker(KIND).acted == 3


def test_an_open_breaker_stays_open_however_long_it_takes(sweeper: Sweeper) -> None:
    fleet(sweeper.rig, 5)
    retire_all(sweeper)
    opened = sweeper.vendor()["sweep_breaker_opened_at"]
    sweeper.rig.clock.advance(3 * DAY)
    assert sweeper.store.breaker(KIND).acted == 0
    assert set(retire_all(sweeper)) == {Act.HELD}
    assert sum(row["retired_at"] is not None for row in sweeper.rig.rows()) == 3
    assert sweeper.vendor()["sweep_breaker_opened_at"] == opened


def test_an_approved_breaker_lets_pass_as_much_again_and_can_open_again(sweeper: Sweeper) -> None:
    fleet(sweeper.rig, 8)
    assert retire_all(sweeper).count(Act.DONE) == 3
    sweeper.rig.clock.advance(60)
    sweeper.approve()
    sweeper.rig.clock.advance(1)
    assert not sweeper.store.breaker(KIND).is_open
    again = retire_all(sweeper)
    assert again.count(Act.DONE) == 3
    assert again.count(Act.HELD) == 2
    assert sweeper.store.breaker(KIND).is_open


def test_acts_of_an_earlier_day_are_not_counted(sweeper: Sweeper) -> None:
    fleet(sweeper.rig, 6)
    members = sweeper.store.members(KIND, None)
    for member in members:
        sweeper.twice(Sort.DRIFT, member.external_id, apart=0.0)
    acts = []
    for member in members:
        acts.append(
            sweeper.store.retire_vanished(
                member.id, str(member.external_id), member.lease_token, why="gone"
            )
        )
        sweeper.rig.clock.advance(DAY / 2.5)
    assert acts == [Act.DONE] * 6


def test_the_breaker_is_exact_when_several_act_at_once(real_rig) -> None:
    sweeper = Sweeper(real_rig)
    fleet(real_rig, 8)
    members = sweeper.store.members(KIND, None)
    for member in members:
        sweeper.twice(Sort.DRIFT, member.external_id, apart=0.0)
    acts: list[Act] = []

    def act(member: Member) -> None:
        store = SweepStore(real_rig.work, actor="worker")
        acts.append(
            store.retire_vanished(
                member.id, str(member.external_id), member.lease_token, why="gone"
            )
        )

    threads = [threading.Thread(target=act, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(acts) == [Act.DONE] * 3 + [Act.HELD] * 5
    assert sum(row["retired_at"] is not None for row in real_rig.rows()) == 3


def test_a_sweep_that_lost_its_turn_does_nothing(sweeper: Sweeper) -> None:
    sweeper.rig.make_ready()
    sweeper.twice(Sort.DRIFT, "x1")
    sweeper.store.give_turn_back(KIND)
    assert sweeper.other.take_turn(KIND, 60.0)
    with pytest.raises(SweepBusy):
        sweeper.retire(in_turn=True)
    assert sweeper.rig.row()["retired_at"] is None
    assert sweeper.store.breaker(KIND).acted == 0


# -- a release that a sweep asks for ---------------------------------------------------------------


def test_an_asked_release_is_an_intent_that_a_ready_withdraws(sweeper: Sweeper) -> None:
    rig = sweeper.rig
    rig.make_ready()
    member = sweeper.member()
    sweeper.twice(Sort.STALE, member.id)
    before = rig.row()
    assert sweeper.ask() is Act.DONE
    row = rig.row()
    now = rig.clock.instant
    assert (row["desired"], row["generation"]) == ("release", before["generation"] + 1)
    assert (row["generation_at"], row["release_requested_at"]) == (now, now)
    assert [row[name] for name in ("last_seen_at", "last_used_at", "last_reason")] == [
        before[name] for name in ("last_seen_at", "last_used_at", "last_reason")
    ]
    assert rig.claim() == []  # the worker sees it, and the grace begins
    assert rig.row()["release_after"] == rig.after(HOUR)
    (entry,) = [entry for entry in rig.journal() if entry["action"] == "sweep: release"]
    assert (entry["outcome"], entry["note"], entry["actor"]) == ("stale", "silent", "me")
    rig.ready()
    rig.claim()
    assert (rig.row()["desired"], rig.row()["release_after"]) == ("wanted", None)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rig: rig.touch(),
        lambda rig: rig.removing(),
        lambda rig: rig.change(hold="release"),
        lambda rig: rig.change(paused=True),
        lambda rig: rig.change(retired_at=rig.clock.instant),
    ],
    ids=["heard from", "asked", "held", "paused", "retired"],
)
def test_no_release_is_asked_of_what_changed_meanwhile(sweeper: Sweeper, spoil) -> None:
    rig = sweeper.rig
    rig.make_ready()
    member = sweeper.member()
    sweeper.twice(Sort.STALE, member.id)
    spoil(rig)
    before = rig.row()
    act = sweeper.store.ask_release(member, Sort.STALE, HOUR, why="silent", allowed=3)
    assert act is Act.CHANGED
    assert rig.row() == before


# -- a resource without a row ----------------------------------------------------------------------


def test_an_orphan_gets_a_row_that_the_ordinary_machinery_releases(sweeper: Sweeper) -> None:
    sweeper.twice(Sort.ORPHAN, "stray")
    assert sweeper.release(sweeper.loose()) is Act.DONE
    row = sweeper.rig.row()
    assert (row["origin"], row["phase"], row["external_id"]) == ("orphan", "releasing", "stray")
    assert (row["idempotency_key"], row["external_name"]) == (None, None)
    claim = sweeper.rig.claim_one()
    assert (claim.step, claim.tenancy.external_id) == ("release", "stray")
    assert sweeper.rig.settle(claim, Phase.RELEASED)
    assert sweeper.rig.journal()[0]["action"] == "sweep: release"


def test_a_surplus_is_released_and_its_tenancy_stays(sweeper: Sweeper) -> None:
    rig = sweeper.rig
    claim = rig.make_ready()
    of = sweeper.store.keyed([claim.tenancy.id])[claim.tenancy.id]
    sweeper.twice(Sort.ORPHAN, "stray")
    assert sweeper.release(sweeper.loose(of=of)) is Act.DONE
    own, surplus = sorted(rig.rows(), key=lambda row: row["origin"] is not None)
    assert (surplus["origin"], surplus["workspace_id"]) == ("surplus", own["workspace_id"])
    assert (own["phase"], own["external_id"], own["release_started_at"]) == ("ready", "x1", None)
    rig.ready()  # the workspace's live row is still its own
    assert len(rig.rows()) == 2


def test_where_nothing_is_ever_deleted_an_orphan_is_only_listed(sweeper: Sweeper) -> None:
    sweeper.twice(Sort.ORPHAN, "stray")
    assert sweeper.release(sweeper.loose(), keeps=True) is Act.DONE
    assert sweeper.rig.row()["phase"] == "kept"
    assert sweeper.rig.claim() == []


def test_nothing_is_released_that_a_row_has_by_now(sweeper: Sweeper) -> None:
    sweeper.twice(Sort.ORPHAN, "stray")
    loose = sweeper.loose()
    sweeper.rig.make_ready(external_id="stray")
    assert sweeper.release(loose) is Act.CHANGED
    assert sweeper.rig.row()["phase"] == "ready"
    assert sweeper.store.breaker(KIND).acted == 0  # what was not done is not counted


def test_nothing_is_released_whose_row_may_still_find_it_by_itself(sweeper: Sweeper) -> None:
    rig = sweeper.rig
    claim = rig.make_ready()
    of = sweeper.store.keyed([claim.tenancy.id])[claim.tenancy.id]
    rig.change(external_id=None, phase="unresolved")
    sweeper.twice(Sort.ORPHAN, "stray")
    assert sweeper.release(sweeper.loose(of=of)) is Act.CHANGED
    assert len(rig.rows()) == 1


def test_a_database_that_became_a_copys_releases_nothing_of_the_original(sweeper: Sweeper) -> None:
    sweeper.twice(Sort.ORPHAN, "stray")
    loose = sweeper.loose()
    before = loose.owner_id

    def rename(owner_id: str) -> None:
        statement = sa.update(deployment).values(owner_id=owner_id)
        sweeper.rig.work.writing(sweeper.rig.soon(), lambda at: at.execute(statement).close())

    rename("aaaaaaaaaa")
    try:
        assert sweeper.release(loose) is Act.CHANGED
        assert sweeper.rig.rows() == []
    finally:
        rename(before)


def test_an_orphan_that_is_acted_on_is_left_alone_for_a_day(sweeper: Sweeper) -> None:
    sweeper.twice(Sort.ORPHAN, "stray")
    assert sweeper.release(sweeper.loose()) is Act.DONE
    assert sweeper.rig.settle(sweeper.rig.claim_one(), Phase.RELEASED)
    # The vendor still lists it: it may lag, or the release was none.
    assert sweeper.store.strike(KIND, Sort.ORPHAN, ["stray"], HOUR) == {"stray": 0}
    sweeper.store.forget(KIND, Sort.ORPHAN, ["stray"])
    assert sweeper.store.breaker(KIND).acted == 1
    assert sweeper.release(sweeper.loose()) is Act.CHANGED
    sweeper.rig.clock.advance(DAY)
    assert sweeper.store.strike(KIND, Sort.ORPHAN, ["stray"], HOUR) == {"stray": 1}


def test_keys_lead_back_to_their_rows(sweeper: Sweeper) -> None:
    claim = sweeper.rig.make_ready()
    owner, _, rest = str(claim.tenancy.idempotency_key).partition("-")
    assert owner == sweeper.store.owner_id()
    assert rest == base32_of(claim.tenancy.id)
    found = sweeper.store.keyed([claim.tenancy.id, uuid4()])
    assert found.keys() == {claim.tenancy.id}
    assert (found[claim.tenancy.id].is_live, found[claim.tenancy.id].is_open) == (True, False)

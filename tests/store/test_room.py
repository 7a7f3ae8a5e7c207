"""How much may be done: caps on creates, the breaker over releases, concurrency and rate."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
import sqlalchemy as sa

from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store import Claim, Held, Step, room
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.models import vendor
from tests.store.conftest import RULES
from tests.store.test_fleet import set_vendor
from tests.store.test_races import at_once

HOUR, DAY = 3600.0, 86400.0


def install(rig, number: int, *, since: int = 0) -> None:
    for each in range(since, since + number):
        rig.ready(workspace=Workspace(f"ws_{each:03}"))
        rig.clock.advance(0.001)  # one after the other, so that they are taken in this order


def uninstall(rig, number: int, *, since: int = 0) -> None:
    for each in range(since, since + number):
        rig.removing(Workspace(f"ws_{each:03}"))


def settle_all(rig, claims: list[Claim]) -> None:
    """Let every claim end as it should."""
    for claim in claims:
        if claim.step is Step.RELEASE:
            rig.settle(claim, Phase.RELEASED, finished=True)
        else:
            own = str(claim.tenancy.id)
            rig.settle(claim, Phase.READY, external_id=own, finished=True, creates=0)


def make_fleet(rig, number: int) -> None:
    """Make that many ready tenancies, and let the store know of them."""
    install(rig, number)
    settle_all(rig, rig.claim(limit=number))
    count(rig)


def count(rig, **changed: object) -> Held:
    return rig.work.count(replace(RULES, **changed))


def release(rig, limit: int = 100, **changed: object) -> int:
    """Start and finish releases whose grace is over, and give how many."""
    claims = rig.claim(limit=limit, grace=0.0, **changed)
    assert {claim.step for claim in claims} <= {Step.RELEASE}
    settle_all(rig, claims)
    return len(claims)


def phases(rig, phase: str) -> int:
    return sum(row["phase"] == phase for row in rig.rows())


# -- caps on creates -------------------------------------------------------------------------------


def test_no_more_tenancies_are_begun_than_may_live(rig) -> None:
    install(rig, 5)
    begun = sorted(claim.tenancy.workspace_id for claim in rig.claim(max_live=3))
    assert begun == ["ws_000", "ws_001", "ws_002"], "those that wait longest"
    waiting = [row for row in rig.rows() if row["phase"] == "pending"]
    assert rig.claim(max_live=3) == []
    assert [row for row in rig.rows() if row["phase"] == "pending"] == waiting, "as they were"
    assert len(rig.claim(max_live=4)) == 1
    assert len(rig.claim()) == 1


def test_a_released_tenancy_makes_room_for_another(rig) -> None:
    install(rig, 3)
    settle_all(rig, rig.claim(max_live=2))
    uninstall(rig, 1)
    assert release(rig, max_live=2) == 1
    assert [claim.step for claim in rig.claim(max_live=2)] == [Step.CREATE]


def test_a_create_that_was_begun_is_gone_on_with_whatever_the_caps(rig) -> None:
    install(rig, 1)
    rig.settle(rig.claim_one(max_live=1), Phase.PENDING, delay=0.0, attempts=1, creates=0)
    assert rig.claim_one(max_live=0, max_creates_per_hour=0).step is Step.CREATE


def test_no_more_tenancies_are_begun_within_an_hour(rig) -> None:
    install(rig, 9)
    settle_all(rig, rig.claim(max_creates_per_hour=3))
    rig.clock.advance(HOUR - 1)
    assert rig.claim(max_creates_per_hour=3) == []
    rig.clock.advance(2)
    assert len(rig.claim(max_creates_per_hour=3)) == 3


def test_what_was_released_meanwhile_counts_for_the_hour_all_the_same(rig) -> None:
    install(rig, 4)
    settle_all(rig, rig.claim(limit=2, max_creates_per_hour=3))
    uninstall(rig, 2)
    assert release(rig, limit=2, max_creates_per_hour=0) == 2
    assert rig.counted(room.creates) == 2
    assert len(rig.claim(max_creates_per_hour=3)) == 1


def test_rows_a_cap_holds_do_not_hold_up_others_and_are_nothing_to_wait_for(rig) -> None:
    install(rig, 1)
    settle_all(rig, rig.claim())
    install(rig, 30, since=1)
    rig.clock.advance(1)
    rig.ready({"changed": True}, workspace=Workspace("ws_000"))
    assert [claim.step for claim in rig.claim(limit=5, max_live=1)] == [Step.UPDATE]
    settle_all(rig, [])
    rig.change(lease_expires_at=None, lease_owner=None, due_at=None)
    assert not rig.busy(max_live=1)
    assert rig.busy(max_live=2)
    assert count(rig, max_live=1) == Held(creates=30)
    told = [row["reason"] for row in rig.work.status()]
    assert told == [None, *["CapReached"] * 30]
    assert count(rig, max_live=2) == Held()
    assert {row["reason"] for row in rig.work.status()} == {None}


def test_a_workspace_that_left_before_its_turn_costs_nothing(rig) -> None:
    install(rig, 1)
    uninstall(rig, 1)
    assert rig.claim(max_live=0) == []
    assert phases(rig, "released") == 1


# -- the breaker over releases ---------------------------------------------------------------------


def test_ten_releases_a_day_are_fine_and_the_eleventh_opens_the_breaker(rig) -> None:
    make_fleet(rig, 14)
    uninstall(rig, 13)
    assert count(rig, grace=0.0) == Held(), "there is still room"
    assert release(rig) == 10
    before = rig.rows()
    assert release(rig) == 0
    assert rig.rows() == before, "held rows stay as they are"
    opened = rig.clock.instant
    assert count(rig, grace=0.0) == Held(breaker_opened_at=opened, releases=3)
    assert rig.vendor()["breaker_opened_at"] == opened
    rig.clock.advance(3 * DAY)
    assert release(rig) == 0, "it stays open"
    assert count(rig, grace=0.0) == Held(breaker_opened_at=opened, releases=3)


def test_an_approval_lets_as_many_go_again(rig) -> None:
    make_fleet(rig, 30)
    uninstall(rig, 25)
    assert release(rig) == 10
    count(rig, grace=0.0)
    rig.clock.advance(60)
    set_vendor(rig, breaker_opened_at=None, breaker_approved_at=rig.clock.instant)
    assert release(rig) == 10
    count(rig, grace=0.0)
    assert rig.vendor()["breaker_opened_at"] == rig.clock.instant


def test_a_quarter_of_a_large_fleet_may_go_and_a_shrinking_one_has_no_lower_bar(rig) -> None:
    make_fleet(rig, 80)
    uninstall(rig, 60)
    done = 0
    while started := release(rig, limit=4):
        done += started
        count(rig, grace=0.0)
    assert done == 20
    assert rig.vendor()["fleet"] == 80


def test_room_comes_back_after_a_day_where_the_breaker_never_opened(rig) -> None:
    make_fleet(rig, 20)
    uninstall(rig, 10)
    assert release(rig) == 10
    rig.clock.advance(DAY - 1)
    uninstall(rig, 1, since=10)
    assert release(rig) == 0
    rig.clock.advance(2)
    assert release(rig) == 1


def test_a_release_under_way_goes_on_though_the_breaker_is_open(rig) -> None:
    make_fleet(rig, 2)
    uninstall(rig, 2)
    (first,) = rig.claim(limit=1, grace=0.0)
    rig.settle(first, Phase.RELEASING, delay=0.0, attempts=1)
    set_vendor(rig, breaker_opened_at=rig.clock.instant)
    assert release(rig) == 1
    assert (phases(rig, "released"), phases(rig, "ready")) == (1, 1)


def test_the_open_breaker_holds_releases_only_and_is_nothing_to_wait_for(rig) -> None:
    make_fleet(rig, 12)
    uninstall(rig, 12)
    rig.claim(limit=20)
    rig.clock.advance(HOUR)
    set_vendor(rig, breaker_opened_at=rig.clock.instant)
    assert rig.claim() == []
    assert not rig.busy()
    rig.ready(workspace=Workspace("ws_new"))
    assert rig.busy()
    assert [claim.step for claim in rig.claim(limit=1)] == [Step.CREATE]


def test_what_a_vendor_keeps_is_no_release(rig) -> None:
    make_fleet(rig, 15)
    uninstall(rig, 15)
    assert rig.claim(limit=30, grace=0.0, keeps=True) == []
    assert phases(rig, "kept") == 15
    assert rig.counted(room.releases) == 0


def test_rows_that_came_to_be_releasing_by_other_ways_count_too(rig) -> None:
    make_fleet(rig, 14)
    began = sa.update(t).where(t.c.workspace_id < "ws_008")
    began = began.values(release_started_at=rig.clock.instant, origin="orphan", phase="releasing")
    rig.work.writing(rig.soon(), lambda at: at.execute(began).close())
    uninstall(rig, 6, since=8)
    assert release(rig) == 2


def test_counting_a_fleet_that_did_not_change_writes_nothing(rig) -> None:
    make_fleet(rig, 3)
    before = rig.rows(vendor)
    assert before[0]["fleet"] == 3
    count(rig)
    assert rig.rows(vendor) == before


def test_what_was_counted_before_an_approval_opens_nothing(rig, monkeypatch) -> None:
    make_fleet(rig, 11)
    uninstall(rig, 11)
    assert release(rig) == 10
    write = rig.work._vendor_write

    def approved_first(*arguments: object) -> object:
        set_vendor(rig, breaker_approved_at=rig.clock.instant)
        return write(*arguments)

    monkeypatch.setattr(rig.work, "_vendor_write", approved_first)
    count(rig, grace=0.0)
    assert rig.vendor()["breaker_opened_at"] is None


# -- concurrency and rate --------------------------------------------------------------------------


def test_no_more_calls_are_in_flight_than_the_vendor_takes(rig) -> None:
    install(rig, 9)
    first = rig.claim(max_concurrency=4)
    assert len(first) == 4
    assert rig.claim(max_concurrency=4) == []
    assert rig.busy(max_concurrency=4)
    settle_all(rig, first[:1])
    assert len(rig.claim(max_concurrency=4)) == 1


def test_a_lost_lease_is_in_flight_until_it_is_over(rig) -> None:
    install(rig, 3)
    rig.claim(limit=1, max_concurrency=1)
    rig.clock.advance(29)
    assert rig.claim(max_concurrency=1) == []
    rig.clock.advance(1)
    assert len(rig.claim(max_concurrency=1)) == 1


@pytest.mark.parametrize("rate", [0.5, 3.0, 40.0])
def test_calls_keep_to_the_rate_the_vendor_takes(rig, rate: float) -> None:
    install(rig, 60)
    seconds, taken = 0.0, []
    while len(taken) < 40 and seconds < 30:
        taken += [seconds] * len(rig.claim(limit=100, max_rate=rate, lease=600.0))
        rig.clock.advance(0.05)
        seconds += 0.05
    burst = max(1.0, rate / 10)
    for start in range(len(taken)):
        for end in range(start, len(taken)):
            assert end - start + 1 <= burst + rate * (taken[end] - taken[start]) + 0.01
    assert len(taken) >= 0.8 * min(40.0, rate * seconds), "and it is made use of"


# -- many workers ----------------------------------------------------------------------------------


def rush(rig, **changed: object) -> int:
    """Let four workers claim at once until none gets anything more; give how much they got."""

    def claims() -> int:
        got = 0
        for _ in range(6):
            got += len(rig.work.claim(replace(RULES, **changed), 4))
        return got

    return sum(at_once(*[claims] * 4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limits",
    [{"max_live": 5}, {"max_creates_per_hour": 5}, {"max_concurrency": 5}, {"max_rate": 50.0}],
    ids=lambda limits: next(iter(limits)),
)
def test_workers_at_once_never_exceed_what_there_is_room_for(rig, limits) -> None:
    for _ in range(3):
        rig.empty()
        install(rig, 40)
        assert rush(rig, **limits) <= 5
        rush(rig, **limits)
        assert phases(rig, "provisioning") == 5


def test_workers_at_once_never_start_more_releases_than_there_is_room_for(rig) -> None:
    for _ in range(3):
        rig.empty()
        make_fleet(rig, 30)
        uninstall(rig, 30)
        assert rush(rig, grace=0.0) <= 10
        rush(rig, grace=0.0)
        assert phases(rig, "releasing") == 10


@contextmanager
def another_claim(rig) -> Iterator[None]:
    """Hold the gate as a claim does that is just being committed."""
    with psycopg.connect(rig.url) as other:
        other.execute("UPDATE nimble_vendor SET gate = gate + 1 WHERE kind = 'acme'")
        yield


def overtaken(rig, **changed: object) -> list[Claim]:
    """Give what a claim takes that counted before another one ended."""
    claims: list[Claim] = []
    with another_claim(rig):
        late = threading.Thread(target=lambda: claims.extend(rig.claim(grace=0.0, **changed)))
        late.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while not rig.work.reading(
            rig.soon(),
            lambda at: at.exec_driver_sql(f"{waiting} AND datname = current_database()").scalar(),
        ):
            assert late.is_alive()
    late.join()
    return claims


@pytest.mark.postgres
def test_a_claim_that_counted_before_another_ended_takes_nothing_counted(postgres_rig) -> None:
    rig = postgres_rig
    rig.empty()
    make_fleet(rig, 2)
    uninstall(rig, 1)
    rig.ready({"changed": True}, workspace=Workspace("ws_001"))
    assert [claim.step for claim in overtaken(rig)] == [Step.UPDATE], "that one is not counted"
    assert rig.claim_one(grace=0.0).step is Step.RELEASE


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        ({"max_concurrency": 5}, []),
        ({"max_rate": 50.0}, []),
        ({"max_live": 5}, [Step.UPDATE]),
        ({"max_creates_per_hour": 5}, [Step.UPDATE]),
    ],
    ids=str,
)
def test_what_is_counted_of_a_call_that_creates_nothing(postgres_rig, limits, taken) -> None:
    rig = postgres_rig
    rig.empty()
    make_fleet(rig, 1)
    install(rig, 1, since=1)  # a first create, which every one of the limits counts
    rig.ready({"changed": True}, workspace=Workspace("ws_000"))
    assert [claim.step for claim in overtaken(rig, **limits)] == taken
    assert {claim.step for claim in rig.claim(**limits)} | {*taken} == {Step.CREATE, Step.UPDATE}

"""Rows whose last owner did not settle them: taken alone, and left to a person in the end."""

from contextlib import closing
from dataclasses import replace

import pytest

from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store import By, OperatorStore, Step
from tests.store.conftest import KIND, RULES
from tests.store.test_races import at_once


def suspects(rig) -> int:
    return len(rig.work.attention(KIND).suspects)


def ordinary(rig, limit: int = 10, **changed: object) -> list[object]:
    return rig.work.claim(replace(RULES, **changed), limit)


def kill(rig, times: int, **changed: object) -> None:
    """Let that many workers end while they have the one row."""
    for _ in range(times):
        assert len(rig.claim(**changed)) == 1
        rig.clock.advance(31)


def test_what_an_owner_left_behind_is_no_ordinary_row(rig) -> None:
    rig.ready()
    kill(rig, 1)
    rig.ready({"changed": True})
    assert ordinary(rig) == []
    assert suspects(rig) == 1
    assert rig.claim_one().reclaims == 1


def test_a_suspect_is_told_once_its_lease_is_over_and_until_somebody_has_it(rig) -> None:
    rig.ready()
    rig.claim_one()
    rig.clock.advance(29)
    assert suspects(rig) == 0
    rig.clock.advance(1)
    assert suspects(rig) == 1
    rig.claim_one()
    assert suspects(rig) == 0


def test_a_row_somebody_has_is_not_taken_by_name_either(rig) -> None:
    rig.ready()
    row = rig.claim_one().tenancy.id
    assert rig.work.claim_only(RULES, row) is None


def test_of_two_workers_one_gets_the_suspect(rig) -> None:
    rig.ready()
    row = rig.claim_one().tenancy.id
    rig.clock.advance(31)
    taken = at_once(*[lambda: rig.work.claim_only(RULES, row)] * 4)
    assert sum(claim is not None for claim in taken) == 1
    assert rig.row()["reclaims"] == 1


def test_a_step_that_has_a_result_starts_the_count_anew(rig) -> None:
    rig.make_ready()
    for _ in range(4):
        rig.ready({"changed": rig.row()["generation"]})
        kill(rig, 2)
        rig.settle(rig.claim_one(), Phase.READY, finished=True)
        assert rig.row()["reclaims"] == 0
    assert rig.row()["phase"] == "ready"


@pytest.mark.parametrize("left", [Phase.PENDING, Phase.UNRESOLVED, Phase.PROVISIONING])
def test_a_look_up_without_result_leaves_a_suspect_one(rig, left: Phase) -> None:
    rig.ready()
    kill(rig, 1)
    looking = rig.claim_one()
    assert (looking.step, looking.reclaims) == (Step.FIND, 1)
    rig.settle(looking, left, delay=5.0)
    assert (rig.row()["reclaims"], suspects(rig), ordinary(rig)) == (1, 0, [])
    assert rig.busy()
    rig.clock.advance(5)
    assert (suspects(rig), ordinary(rig)) == (1, [])
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    assert (rig.row()["reclaims"], suspects(rig)) == (0, 0)


def test_creates_that_end_their_workers_are_quarantined_whatever_is_looked_up_between(rig) -> None:
    rig.ready()
    for deaths in (1, 2):
        kill(rig, 1)
        looking = rig.claim_one()
        assert (looking.step, looking.reclaims) == (Step.FIND, deaths)
        rig.settle(looking, Phase.PENDING, delay=0.0)
    kill(rig, 1)
    assert rig.claim() == []
    assert (rig.row()["reason"], rig.row()["creates"]) == ("Quarantined", 3)


def test_an_operation_found_by_a_look_up_is_a_result(rig) -> None:
    rig.ready()
    kill(rig, 1)
    looking = rig.claim_one()
    rig.settle(looking, Phase.PROVISIONING, delay=0.0, operation_id="op-1", operation_limit=60.0)
    assert (rig.row()["reclaims"], suspects(rig)) == (0, 0)
    (polling,) = ordinary(rig)
    assert polling.step is Step.POLL


def test_the_old_owner_of_a_suspect_may_still_settle_it(rig) -> None:
    rig.ready()
    late = rig.claim_one()
    rig.clock.advance(31)
    assert suspects(rig) == 1
    assert rig.settle(late, Phase.READY, external_id="x1", finished=True)
    assert suspects(rig) == 0
    assert rig.row()["phase"] == "ready"


def test_once_a_suspect_is_taken_its_old_owner_changes_nothing(rig) -> None:
    rig.ready()
    late = rig.claim_one()
    rig.clock.advance(31)
    rig.claim_one()
    before = rig.row()
    assert not rig.settle(late, Phase.STALLED, reason="Rejected")
    assert rig.row() == before


def test_a_lease_that_an_operator_took_away_ends_without_suspicion(rig) -> None:
    rig.ready()
    rig.claim_one()
    rig.change(lease_owner=None)
    rig.clock.advance(29)
    assert ordinary(rig) == []
    rig.clock.advance(1)
    assert suspects(rig) == 0
    (claim,) = ordinary(rig)
    assert claim.reclaims == 0


def test_what_was_taken_over_least_is_told_first(rig) -> None:
    for number in range(3):
        rig.ready(workspace=Workspace(f"ws_{number}"))
        rig.claim()
        rig.clock.advance(31)
    found = rig.work.attention(KIND).suspects
    assert [suspect.reclaims for suspect in found] == [0, 1, 2]


# -- quarantine ------------------------------------------------------------------------------------


def test_three_workers_that_ended_with_a_row_quarantine_it_without_a_call(rig) -> None:
    rig.ready()
    kill(rig, 3)
    assert rig.claim() == []
    row = rig.row()
    assert (row["phase"], row["reason"], row["reclaims"]) == ("stalled", "Quarantined", 3)
    assert (row["lease_owner"], row["lease_expires_at"], row["due_at"]) == (None, None, None)
    assert row["message"]
    assert suspects(rig) == 0
    assert not rig.busy()


def test_a_quarantined_row_waits_for_a_person_whatever_the_host_says(rig) -> None:
    rig.ready()
    kill(rig, 3)
    rig.claim()
    rig.ready({"a": 2})
    assert rig.claim() == []
    rig.removing()
    rig.clock.advance(10**6)
    assert rig.claim() == []
    row = rig.row()
    assert (row["phase"], row["reason"]) == ("stalled", "Quarantined")
    assert row["release_after"] is None, "nobody knows what there is to release"


def test_a_look_clears_the_count_of_a_quarantined_row_and_takes_it_out_of_nothing(rig) -> None:
    rig.ready()
    kill(rig, 3)
    assert rig.claim() == []
    for ask in (rig.removing, rig.ready):
        ask()
        assert rig.claim() == []
        row = rig.row()
        assert (row["phase"], row["reason"], row["reclaims"]) == ("stalled", "Quarantined", 0)
    assert (suspects(rig), rig.busy()) == (0, False)


def test_a_quarantined_row_with_a_resource_is_released_after_the_grace(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    kill(rig, 3)
    rig.claim()
    rig.removing()
    rig.claim()
    rig.clock.advance(3600)
    assert rig.claim_one().step is Step.RELEASE


def test_a_release_that_ends_its_workers_is_quarantined_and_not_begun_again(rig) -> None:
    rig.make_ready()
    rig.removing()
    kill(rig, 3, grace=0.0)
    assert rig.claim() == []
    rig.change(due_at=rig.clock.instant)
    assert rig.claim() == []
    row = rig.row()
    assert (row["phase"], row["reason"]) == ("stalled", "Quarantined")
    assert row["release_started_at"] is not None
    assert row["released_at"] is None


def test_quarantine_is_about_one_row(rig) -> None:
    rig.ready()
    kill(rig, 3)
    rig.ready(workspace=Workspace("ws_2"))
    assert [claim.tenancy.workspace_id for claim in rig.claim()] == ["ws_2"]


def test_what_a_person_starts_again_gets_three_workers_again(rig) -> None:
    rig.ready()
    kill(rig, 3)
    rig.claim()
    operators = OperatorStore(rig.url, clock=rig.clock)
    operators.retry(rig.row()["id"], By("ada", "mended"), assume_not_created=True)
    operators.close()
    assert rig.claim_one().reclaims == 0


# -- what suspects wait for ------------------------------------------------------------------------


def test_suspects_wait_out_every_pause(rig) -> None:
    rig.ready()
    kill(rig, 1)
    rig.change(paused=True)
    assert suspects(rig) == 0
    rig.change(paused=False)
    assert suspects(rig) == 1
    rig.work.pause(KIND, 60.0, "RateLimited")
    assert suspects(rig) == 0
    assert rig.work.claim_only(RULES, rig.row()["id"]) is None
    rig.clock.advance(60)
    assert suspects(rig) == 1


def test_suspects_are_work_to_do(rig) -> None:
    rig.ready()
    kill(rig, 1)
    assert rig.busy(0.0)
    rig.change(paused=True)
    assert not rig.busy(0.0)


@pytest.mark.parametrize("asked", [False, True])
def test_a_suspect_that_needs_no_call_is_one_no_more(rig, asked: bool) -> None:
    rig.make_ready()
    rig.change(lease_owner="gone", lease_expires_at=rig.after(-1))
    if asked:
        rig.removing()
    assert rig.claim() == []
    assert suspects(rig) == 0
    assert (rig.row()["release_after"] is not None) == asked


def test_a_suspect_the_breaker_holds_is_an_ordinary_row_again(rig) -> None:
    rig.make_ready()
    rig.removing()
    rig.change(lease_owner="gone", lease_expires_at=rig.after(-1))
    assert rig.claim(grace=0.0, release_least=0) == []
    assert suspects(rig) == 0
    assert rig.row()["phase"] == "ready"
    assert rig.claim_one(grace=0.0).step is Step.RELEASE


def test_a_retired_row_is_never_taken(rig) -> None:
    rig.ready()
    kill(rig, 1)
    rig.change(retired_at=rig.clock.instant)
    assert suspects(rig) == 0
    assert rig.work.claim_only(RULES, rig.row()["id"]) is None
    rig.change(lease_expires_at=None)
    assert ordinary(rig) == []


def test_a_suspect_that_a_verb_took_from_its_worker_is_told_once_the_lease_is_over(rig) -> None:
    rig.ready()
    kill(rig, 1)
    looking = rig.claim_one()
    rig.settle(looking, Phase.UNRESOLVED, delay=0.0)
    held = rig.claim_one()
    with closing(OperatorStore(rig.url, clock=rig.clock)) as operator:
        operator.release(held.tenancy.id, By("ada", "ticket 7"))
    assert (suspects(rig), rig.row()["lease_owner"]) == (0, None)
    rig.clock.advance(31)
    assert (suspects(rig), ordinary(rig)) == (1, [])
    assert rig.claim_one().step is Step.FIND

"""What a claim makes of each kind of row."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from nimble_lifecycle.protocol import OPERATOR_ONLY, Phase, Why, Workspace
from nimble_lifecycle.store import Step

NOT_COMPARED = {
    # A removing and a ready later these have moved on; everything else is as it was.
    "generation",
    "generation_at",
    "claimed_generation",
    "observed_generation",
    "lease_token",
    "last_seen_at",
    "last_reason",
}


def same(row: dict[str, object], other: dict[str, object]) -> bool:
    return {k: v for k, v in row.items() if k not in NOT_COMPARED} == {
        k: v for k, v in other.items() if k not in NOT_COMPARED
    }


# -- a create, from the write-ahead to the end ---------------------------------------------------


def test_a_new_row_is_claimed_for_a_create_with_its_write_ahead(rig) -> None:
    rig.ready({"a": 1})
    claim = rig.claim_one()
    row = rig.row()
    assert claim.step is Step.CREATE
    assert (claim.token, claim.generation, claim.creates, claim.reclaims) == (1, 1, 1, 0)
    assert row["phase"] == "provisioning"
    key = row["idempotency_key"]
    assert claim.tenancy.idempotency_key == claim.tenancy.external_name == key
    assert row["external_name"] is None  # it is the key, which is stored once
    owner, _, number = claim.tenancy.idempotency_key.partition("-")
    assert (len(owner), len(number)) == (10, 26)
    assert row["create_started_at"] == row["create_attempted_at"] == rig.clock.instant
    assert row["attempted_params_hash"] == row["params_hash"]
    assert (row["claimed_generation"], row["observed_generation"]) == (1, 0)
    assert row["lease_owner"] == "me"
    assert row["lease_expires_at"] == row["due_at"] == rig.after(30)


def test_a_leased_row_is_not_claimed(rig) -> None:
    rig.ready()
    rig.claim_one()
    rig.ready({"changed": True})
    rig.clock.advance(29)
    assert rig.claim() == []


@pytest.mark.parametrize(
    ("rules", "step", "creates"),
    [
        ({"can_find": True}, Step.FIND, 1),
        ({"can_find": False}, Step.FIND, 1),
        ({"can_find": True, "repeatable": 3600.0}, Step.CREATE, 2),
        ({"can_find": True, "repeatable": 10.0}, Step.FIND, 1),
        ({"can_find": True, "repeatable": 3600.0, "max_creates": 1}, Step.FIND, 1),
    ],
    ids=["look-up", "neither", "repeated", "forgotten", "spent"],
)
def test_a_create_whose_worker_died_is_settled_the_vendors_way(rig, rules, step, creates) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    claim = rig.claim_one(**rules)
    assert (claim.step, claim.creates, claim.reclaims) == (step, creates, 1)
    assert claim.token == first.token + 1
    assert claim.tenancy.idempotency_key == first.tenancy.idempotency_key
    assert claim.create_ends_in == pytest.approx(-1.0 if step is Step.FIND else 30.0, abs=0.001)
    phase = "unresolved" if step is Step.FIND else "provisioning"
    assert rig.row()["phase"] == phase
    assert rig.row()["create_started_at"] == rig.after(-31)


def test_a_release_asked_for_meanwhile_makes_a_look_up_better_than_a_repeat(rig) -> None:
    rig.ready()
    rig.claim_one()
    rig.removing()
    rig.clock.advance(31)
    claim = rig.claim_one(repeatable=3600.0)
    assert claim.step is Step.FIND
    assert claim.releasing
    row = rig.row()
    assert row["release_seen_at"] == rig.clock.instant
    assert row["release_after"] is None, "what there is to release is not known yet"


def test_after_an_answer_that_says_nothing_a_look_up_comes_before_the_same_key_again(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(repeatable=3600.0), Phase.UNRESOLVED, delay=0.0, creates=1)
    looked = rig.claim_one(repeatable=3600.0)
    assert (looked.step, looked.creates, looked.remembered) == (Step.FIND, 1, True)
    rig.settle(looked, Phase.PROVISIONING, delay=0.0, creates=1)  # it found nothing
    repeat = rig.claim_one(repeatable=3600.0)
    assert (repeat.step, repeat.creates) == (Step.CREATE, 2)


def test_a_key_is_remembered_from_its_first_use(rig) -> None:
    rig.ready()
    rig.claim_one(repeatable=100.0)
    rig.clock.advance(60)
    rig.claim_one(repeatable=100.0)
    rig.clock.advance(60)
    assert not rig.claim_one(repeatable=100.0).remembered


def test_rows_that_need_no_call_do_not_use_up_the_slots_of_those_that_do(rig) -> None:
    for number in range(30):
        workspace = Workspace(f"ws_{number:02}")
        rig.ready(workspace=workspace)
        if number % 3:
            rig.removing(workspace)
    assert len(rig.claim(limit=10)) == 10


def test_without_a_look_up_the_repeat_settles_it_though_a_release_is_asked_for(rig) -> None:
    rig.ready()
    rig.claim_one()
    rig.removing()
    rig.clock.advance(31)
    assert rig.claim_one(repeatable=3600.0, can_find=False).step is Step.CREATE


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.UNRESOLVED])
def test_a_back_off_is_respected_by_a_bare_generation(rig, phase) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), phase, delay=60.0, attempts=1, creates=0, reason="BackingOff")
    rig.removing()
    rig.ready()
    assert rig.claim() == []
    assert rig.row()["due_at"] == rig.after(60)
    rig.clock.advance(60)
    assert len(rig.claim()) == 1


def test_changed_params_go_at_once_and_start_the_back_off_over(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PENDING, delay=600.0, attempts=4, creates=0)
    rig.ready({"a": 2})
    claim = rig.claim_one()
    assert (claim.step, claim.attempts) == (Step.CREATE, 0)


def test_no_creates_left_is_stalled_for_a_person(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PENDING, delay=0.0, creates=5)
    assert rig.claim() == []
    row = rig.row()
    assert (row["phase"], row["reason"]) == ("stalled", "CreateOutcomeUnknown")
    assert row["due_at"] is None


@pytest.mark.parametrize("reason", OPERATOR_ONLY)
def test_stalled_for_a_person_changed_params_do_not_wake_it(rig, reason) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.STALLED, reason=reason)
    rig.ready({"a": 2})
    assert rig.claim() == []
    assert rig.row()["phase"] == "stalled"


def test_stalled_otherwise_changed_params_wake_it(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.STALLED, reason="Rejected", creates=0)
    assert rig.claim() == []
    rig.ready({"a": 2})
    assert rig.claim_one().step is Step.CREATE


# -- updates -------------------------------------------------------------------------------------


def test_changed_params_of_a_ready_row_are_an_update(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    claim = rig.claim_one()
    assert claim.step is Step.UPDATE
    assert rig.row()["phase"] == "ready"
    assert rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    assert rig.row()["observed_generation"] == 2
    assert rig.claim() == []


def test_an_update_whose_worker_died_is_done_again(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    rig.claim_one()
    rig.clock.advance(31)
    claim = rig.claim_one()
    assert (claim.step, claim.reclaims) == (Step.UPDATE, 1)
    assert rig.row()["observed_generation"] == 1


def test_a_failed_update_is_tried_again_after_its_back_off(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    rig.settle(rig.claim_one(), Phase.READY, delay=60.0, attempts=1, reason="BackingOff")
    rig.removing()
    rig.ready({"a": 2})
    assert rig.claim() == []
    assert rig.row()["observed_generation"] == 1, "what was asked for is not done"
    rig.clock.advance(61)
    assert rig.claim_one().step is Step.UPDATE


def test_an_update_held_up_by_the_vendor_as_a_whole_is_done_later(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    rig.settle(rig.claim_one(), Phase.READY, delay=60.0, attempts=0, reason="RateLimited")
    rig.clock.advance(60)
    assert rig.claim_one().step is Step.UPDATE


def test_a_refused_update_is_not_repeated_by_an_undo(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    claim = rig.claim_one()
    rig.removing()
    rig.settle(claim, Phase.READY, reason="Rejected")
    assert rig.claim() == []
    rig.ready({"a": 2})
    assert rig.claim() == []
    row = rig.row()
    assert (row["phase"], row["reason"], row["observed_generation"]) == ("ready", "Rejected", 1)


def test_an_update_of_unknown_outcome_is_done_again(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    rig.settle(rig.claim_one(), Phase.UNRESOLVED, delay=60.0, attempts=0)
    rig.clock.advance(61)
    assert rig.claim_one().step is Step.UPDATE
    assert rig.row()["phase"] == "ready"


def test_an_update_in_progress_is_polled_and_survives_a_bare_generation(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    rig.settle(rig.claim_one(), Phase.PROVISIONING, operation_id="op", delay=5.0)
    rig.removing()
    rig.ready({"a": 2})
    assert rig.claim() == []
    assert rig.row()["phase"] == "provisioning"
    rig.clock.advance(5)
    claim = rig.claim_one()
    assert claim.step is Step.POLL
    assert claim.tenancy.operation_id == "op"


def test_an_update_in_progress_is_settled_before_a_release(rig) -> None:
    rig.make_ready()
    rig.ready({"a": 2})
    rig.settle(rig.claim_one(), Phase.PROVISIONING, operation_id="op", delay=7200.0)
    rig.removing()
    assert rig.claim() == []
    rig.clock.advance(3601)
    assert rig.claim() == []
    rig.clock.advance(3599)
    poll = rig.claim_one()
    assert poll.step is Step.POLL
    rig.settle(poll, Phase.READY, external_id="x1", finished=True)
    assert rig.claim_one().step is Step.RELEASE


def test_params_changed_while_the_outcome_was_open_are_applied_after_it(rig) -> None:
    rig.ready({"a": 1})
    rig.settle(rig.claim_one(), Phase.UNRESOLVED, delay=60.0, attempts=1)
    rig.ready({"a": 2})
    assert rig.claim() == []
    rig.clock.advance(60)
    assert rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    assert rig.row()["observed_generation"] == 0
    claim = rig.claim_one()
    assert (claim.step, dict(claim.tenancy.params)) == (Step.UPDATE, {"a": 2})


def test_params_changed_before_a_repeat_are_applied_after_it(rig) -> None:
    rig.ready({"a": 1})
    rig.claim_one()
    rig.ready({"a": 2})
    rig.clock.advance(31)
    repeat = rig.claim_one(repeatable=3600.0)
    rig.settle(repeat, Phase.READY, external_id="x1", finished=True)
    assert rig.claim_one().step is Step.UPDATE


def test_params_changed_and_changed_back_around_a_repeat_are_applied_after_all(rig) -> None:
    rig.ready({"a": 1})
    rig.claim_one()
    rig.ready({"a": 2})
    rig.clock.advance(31)
    rig.claim_one(repeatable=3600.0)  # it may be this one that made the resource, with a 2
    rig.ready({"a": 1})
    rig.clock.advance(31)
    repeat = rig.claim_one(repeatable=3600.0)
    rig.settle(repeat, Phase.READY, external_id="x1", finished=True)
    claim = rig.claim_one()
    assert (claim.step, claim.tenancy.params) == (Step.UPDATE, {"a": 1})
    rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    assert rig.claim() == []


# -- operations ----------------------------------------------------------------------------------


def test_an_operation_is_polled_when_it_is_due_and_says_when_it_is_overdue(rig) -> None:
    rig.ready()
    operation = {"operation_id": "op", "operation_limit": 100.0, "delay": 5.0}
    rig.settle(rig.claim_one(), Phase.PROVISIONING, **operation)
    assert rig.claim() == []
    rig.clock.advance(5)
    claim = rig.claim_one()
    assert (claim.step, claim.overdue) == (Step.POLL, False)
    rig.settle(claim, Phase.PROVISIONING, **{**operation, "delay": 95.0})
    rig.clock.advance(95)
    assert rig.claim_one().overdue, "a poll does not move the deadline"


def test_an_operation_nobody_could_ask_about_has_its_time_all_the_same(rig) -> None:
    rig.ready()
    operation = {"operation_id": "op", "operation_limit": 100.0, "delay": 5.0}
    rig.settle(rig.claim_one(), Phase.PROVISIONING, **operation)
    rig.work.pause("acme", 3600.0, "VendorUnavailable")
    rig.clock.advance(3600)
    claim = rig.claim_one()
    assert not claim.overdue
    assert rig.row()["operation_deadline_at"] == rig.after(95)
    rig.settle(claim, Phase.PROVISIONING, **{**operation, "delay": 95.0})
    rig.clock.advance(95)
    assert rig.claim_one().overdue


def test_a_worker_that_died_polling_is_followed_by_a_poll_of_the_same_operation(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PROVISIONING, operation_id="op", delay=0.0)
    rig.claim_one()
    rig.clock.advance(31)
    claim = rig.claim_one(repeatable=3600.0)
    assert (claim.step, claim.tenancy.operation_id) == (Step.POLL, "op")


def test_an_operation_that_is_over_is_forgotten_by_the_next_call(rig) -> None:
    rig.make_ready()
    rig.change(operation_id="over", operation_deadline_at=rig.after(-1))
    rig.ready({"a": 2})
    claim = rig.claim_one()
    assert (claim.step, claim.overdue) == (Step.UPDATE, False)
    assert rig.row()["operation_deadline_at"] is None


# -- releases ------------------------------------------------------------------------------------


def test_a_row_that_never_began_a_create_is_dropped_without_grace_or_vendor(rig) -> None:
    rig.ready()
    rig.removing()
    assert rig.claim() == []
    row = rig.row()
    assert row["phase"] == "released"
    assert row["released_at"] == row["release_started_at"] == rig.clock.instant
    assert row["observed_generation"] == row["generation"]


def test_the_grace_starts_at_the_workers_first_sight(rig) -> None:
    rig.make_ready()
    rig.removing()
    rig.change(release_requested_at=rig.after(-9999))
    rig.clock.advance(100)
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(3600)
    rig.clock.advance(3599)
    assert rig.claim() == []
    rig.clock.advance(1)
    claim = rig.claim_one()
    row = rig.row()
    assert claim.step is Step.RELEASE
    assert claim.tenancy.external_id == "x1"
    assert (row["phase"], row["release_started_at"]) == ("releasing", rig.clock.instant)


def test_use_holds_a_release_for_one_grace_more(rig) -> None:
    rig.make_ready()
    rig.removing()
    rig.claim()
    rig.clock.advance(3000)
    rig.touch()
    rig.clock.advance(600)
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(3000)
    rig.clock.advance(3000)
    assert rig.claim_one().step is Step.RELEASE


def test_a_release_waits_until_a_create_that_was_repeated_can_no_longer_land(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.UNRESOLVED, delay=1.0, creates=1)
    rig.clock.advance(11)
    rules = {"can_find": False, "repeatable": 3600.0, "grace": 0.0}
    claim = rig.claim_one(**rules)
    rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    rig.removing()
    rig.clock.advance(1)
    assert rig.claim(**rules) == []
    assert rig.row()["release_after"] == rig.row()["create_ends_at"] == rig.after(29)
    rig.clock.advance(28)
    assert rig.claim(**rules) == []
    rig.clock.advance(1)
    assert rig.claim_one(**rules).step is Step.RELEASE


def test_use_in_the_future_counts_as_use_now(rig) -> None:
    rig.make_ready()
    rig.removing()
    rig.claim()
    rig.change(last_used_at=rig.after(10**8))
    rig.clock.advance(3600)
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(3600)


def test_a_started_release_is_tried_until_it_is_done_whatever_the_host_says(rig) -> None:
    rig.make_ready()
    rig.removing()
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASING, delay=60.0, attempts=1)
    assert rig.claim() == []
    rig.clock.advance(60)
    claim = rig.claim_one()
    assert (claim.step, claim.attempts) == (Step.RELEASE, 1)
    rig.clock.advance(31)
    claim = rig.claim_one()
    assert (claim.step, claim.reclaims) == (Step.RELEASE, 1)
    rig.settle(claim, Phase.RELEASED, finished=True)
    assert rig.claim() == []
    assert rig.row()["released_at"] == rig.clock.instant


def test_a_vendor_that_keeps_is_never_called_for_a_release(rig) -> None:
    rig.make_ready()
    rig.removing()
    rig.claim(keeps=True)
    rig.clock.advance(3600)
    assert rig.claim(keeps=True) == []
    row = rig.row()
    assert (row["phase"], row["released_at"]) == ("kept", None)
    assert row["release_started_at"] == rig.clock.instant
    assert rig.ready().tenancy.incarnation == 2


def test_where_nothing_can_look_a_row_whose_create_certainly_failed_is_dropped_after_the_grace(
    rig,
) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PENDING, delay=60.0, attempts=1, creates=0)
    rig.removing()
    assert rig.claim(can_find=False) == []
    assert rig.row()["phase"] == "pending"
    rig.clock.advance(3600)
    assert rig.claim(can_find=False) == []
    assert rig.row()["phase"] == "released"


SAID = {
    "temporary": (Phase.PENDING, {"delay": 10**6, "attempts": 1, "reason": "BackingOff"}),
    "refused": (Phase.STALLED, {"reason": "Rejected"}),
    "name taken": (Phase.STALLED, {"reason": "NameConflict"}),
}


@pytest.mark.parametrize(("phase", "more"), SAID.values(), ids=SAID.keys())
def test_a_create_that_is_said_to_have_failed_is_looked_up_before_its_row_is_dropped(
    rig, phase, more
) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), phase, creates=0, **more)
    rig.removing()
    assert rig.claim() == []
    rig.clock.advance(3600)
    claim = rig.claim_one()
    assert (claim.step, claim.releasing) == (Step.FIND, True)
    assert rig.settle(claim, Phase.UNRESOLVED, delay=60.0, outcome="look-up failed")
    assert rig.claim() == [], "its back-off goes on"
    rig.clock.advance(60)
    again = rig.claim_one()
    assert again.step is Step.FIND
    assert rig.settle(again, phase, creates=0, nothing_there=True, **more)
    assert rig.claim() == []
    row = rig.row()
    assert (row["phase"], row["released_at"]) == ("released", rig.clock.instant)


def test_what_that_look_up_finds_is_released(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PENDING, delay=10**6, creates=0)
    rig.removing()
    rig.claim()
    rig.clock.advance(3600)
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", delay=0.0, creates=0)
    claim = rig.claim_one()
    assert (claim.step, claim.tenancy.external_id) == (Step.RELEASE, "x1")


def test_what_that_look_up_finds_is_kept_where_nothing_is_ever_released(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PENDING, delay=10**6, creates=0)
    rig.removing()
    rig.claim(keeps=True)
    rig.clock.advance(3600)
    look = rig.claim_one(keeps=True)
    rig.settle(look, Phase.READY, external_id="x1", delay=0.0, creates=0)
    assert rig.claim(keeps=True) == []
    assert (rig.row()["phase"], rig.row()["external_id"]) == ("kept", "x1")


def test_a_row_asked_back_during_that_look_up_keeps_its_back_off(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PENDING, delay=10**6, creates=0, attempts=3)
    rig.removing()
    rig.claim()
    rig.clock.advance(3600)
    claim = rig.claim_one()
    rig.ready()
    rig.settle(claim, Phase.PENDING, delay=60.0, nothing_there=True)
    assert rig.claim() == []
    rig.clock.advance(60)
    claim = rig.claim_one()
    assert (claim.step, claim.attempts) == (Step.CREATE, 3)


def test_a_proof_that_nothing_is_there_holds_until_another_create_is_begun(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.STALLED, reason="Rejected", creates=0, nothing_there=True)
    rig.ready({"a": 2})
    rig.settle(rig.claim_one(), Phase.STALLED, reason="Rejected", creates=0)
    rig.removing()
    rig.claim()
    rig.clock.advance(3600)
    assert rig.claim_one().step is Step.FIND


def test_what_was_never_sent_is_dropped_without_a_look_up(rig) -> None:
    rig.ready()
    rig.settle(
        rig.claim_one(), Phase.STALLED, reason="InvalidParams", creates=0, nothing_there=True
    )
    rig.removing()
    rig.claim()
    rig.clock.advance(3600)
    assert rig.claim() == []
    assert rig.row()["phase"] == "released"


def test_only_the_first_create_of_a_row_is_its_first(rig) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(1)
    rig.settle(first, Phase.PENDING, delay=0.0, creates=0)
    assert (first.first_create, rig.claim_one().first_create) == (True, False)


@pytest.mark.parametrize("reason", [Why.CREATE_OUTCOME_UNKNOWN, Why.QUARANTINED])
def test_a_row_that_may_have_a_resource_nobody_knows_is_not_dropped(rig, reason) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.STALLED, reason=reason)
    rig.removing()
    assert rig.claim() == []
    rig.clock.advance(10**6)
    rig.change(due_at=rig.clock.instant)
    assert rig.claim() == []
    row = rig.row()
    assert (row["phase"], row["release_after"], row["due_at"]) == ("stalled", None, None)


@pytest.mark.parametrize("reason", ["Rejected", "NameConflict"])
def test_a_create_refused_while_a_release_was_asked_for_does_not_strand_the_row(
    rig, reason
) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.UNRESOLVED, delay=60.0)
    rig.removing()
    assert rig.claim() == []
    rig.clock.advance(60)
    rig.settle(rig.claim_one(), Phase.STALLED, reason=reason, creates=0)
    assert rig.claim() == []
    assert rig.row()["release_after"] is not None
    rig.clock.advance(3600)
    rig.settle(rig.claim_one(), Phase.STALLED, reason=reason, creates=0, nothing_there=True)
    rig.claim()
    assert rig.row()["phase"] == "released"


def test_a_create_that_succeeds_while_a_release_is_asked_for_is_released_after_the_grace(
    rig,
) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.UNRESOLVED, delay=60.0)
    rig.removing()
    rig.claim()
    rig.clock.advance(60)
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    assert rig.busy(0.0), "looked at once, for its grace"
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(3600 - 60)
    rig.clock.advance(3600)
    assert rig.claim_one().step is Step.RELEASE


def test_an_operators_hold_releases_whatever_is_desired(rig) -> None:
    rig.make_ready()
    rig.change(hold="release", due_at=rig.clock.instant)
    assert rig.claim() == []
    rig.clock.advance(3600)
    assert rig.claim_one().step is Step.RELEASE


# -- undo ----------------------------------------------------------------------------------------


@dataclass
class Was:
    phase: Phase
    columns: dict[str, object] = field(default_factory=dict)


UNDONE = {
    "ready": Was(Phase.READY, {"external_id": "x1", "finished": True, "creates": 0}),
    "ready, update backing off": Was(
        Phase.READY,
        {"external_id": "x1", "delay": 60.0, "attempts": 3, "reason": "BackingOff", "error": "E"},
    ),
    "pending, backing off": Was(
        Phase.PENDING,
        {"delay": 60.0, "attempts": 3, "creates": 0, "reason": "BackingOff", "error": "E: no"},
    ),
    "stalled": Was(Phase.STALLED, {"reason": "Rejected", "message": "no", "creates": 0}),
    "quarantined": Was(Phase.STALLED, {"reason": "Quarantined"}),
    "unknown": Was(Phase.STALLED, {"reason": "CreateOutcomeUnknown"}),
    "unresolved": Was(Phase.UNRESOLVED, {"delay": 60.0, "attempts": 2}),
    "in progress": Was(Phase.PROVISIONING, {"operation_id": "op", "delay": 60.0}),
}


@pytest.mark.parametrize("was", UNDONE.values(), ids=UNDONE.keys())
def test_undo_puts_the_row_back_exactly_as_it_was(rig, was: Was) -> None:
    rig.ready()
    assert rig.settle(rig.claim_one(), was.phase, **was.columns)
    before = rig.row()
    rig.removing()
    assert rig.claim() == []
    rig.clock.advance(50)
    rig.ready()
    assert rig.claim() == []
    assert same(rig.row(), before)


@pytest.mark.parametrize(
    ("was", "step"),
    [("pending, backing off", Step.CREATE), ("ready, update backing off", Step.UPDATE)],
)
def test_undo_after_the_back_off_goes_on_where_it_was(rig, was, step) -> None:
    rig.ready({"a": 1})
    rig.settle(rig.claim_one(), UNDONE[was].phase, **UNDONE[was].columns)
    rig.clock.advance(61)
    rig.removing()
    assert rig.claim() == []
    rig.clock.advance(61)
    rig.ready({"a": 1})
    claim = rig.claim_one()
    assert (claim.step, claim.attempts) == (step, 3)


# -- what a worker that lost its lease made ------------------------------------------------------

FINDINGS = {
    "unresolved": (Phase.UNRESOLVED, {"delay": 600.0, "attempts": 1}),
    "pending": (Phase.PENDING, {"delay": 600.0}),
    "stalled": (Phase.STALLED, {"reason": "CreateOutcomeUnknown"}),
    "refused": (Phase.STALLED, {"reason": "NameConflict"}),
}


def lost_create(rig, phase: Phase, more: dict[str, object]) -> None:
    """A first worker loses its lease, a second settles without a resource, the first comes late."""
    rig.ready({"a": 1})
    first = rig.claim_one()
    rig.clock.advance(31)
    assert rig.settle(rig.claim_one(), phase, **more)
    assert not rig.settle(first, Phase.READY, external_id="late", finished=True)


@pytest.mark.parametrize(("phase", "more"), FINDINGS.values(), ids=FINDINGS.keys())
def test_a_late_resource_makes_its_row_ready_without_a_call(rig, phase, more) -> None:
    lost_create(rig, phase, more)
    assert rig.claim() == []
    row = rig.row()
    assert (row["phase"], row["reason"], row["external_id"]) == ("ready", None, "late")
    assert row["created_at"] == rig.clock.instant
    assert row["observed_generation"] == row["generation"]
    assert (row["due_at"], row["attempts"]) == (None, 0)


@pytest.mark.parametrize(("phase", "more"), FINDINGS.values(), ids=FINDINGS.keys())
def test_a_late_resource_of_a_row_with_changed_params_is_updated(rig, phase, more) -> None:
    lost_create(rig, phase, more)
    rig.ready({"a": 2})
    assert rig.claim_one().step is Step.UPDATE
    rig.clock.advance(31)
    assert rig.claim_one().step is Step.UPDATE


def test_a_late_resource_made_with_other_params_is_updated(rig) -> None:
    rig.ready({"a": 1})
    first = rig.claim_one()
    rig.clock.advance(31)
    rig.settle(rig.claim_one(), Phase.PENDING, creates=0, delay=0.0)  # looked, and found nothing
    rig.ready({"a": 2})
    rig.settle(rig.claim_one(), Phase.STALLED, reason="CreateOutcomeUnknown")
    rig.settle(first, Phase.READY, external_id="late", finished=True)  # it has a 1
    assert rig.claim_one().step is Step.UPDATE


@pytest.mark.parametrize(("phase", "more"), FINDINGS.values(), ids=FINDINGS.keys())
def test_a_late_resource_of_a_row_that_is_to_go_is_released(rig, phase, more) -> None:
    lost_create(rig, phase, more)
    rig.removing()
    assert rig.claim() == []
    rig.clock.advance(3600)
    claim = rig.claim_one()
    assert (claim.step, claim.tenancy.external_id) == (Step.RELEASE, "late")


def test_a_resource_noted_while_another_has_the_row_is_used_when_that_one_gives_up(rig) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    second = rig.claim_one()
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    rig.settle(second, Phase.STALLED, reason="CreateOutcomeUnknown")
    assert rig.claim() == []
    assert (rig.row()["phase"], rig.row()["external_id"]) == ("ready", "late")


# -- what is left alone --------------------------------------------------------------------------


def test_waiting_out_a_long_pause_of_the_vendor_is_not_being_busy(rig) -> None:
    rig.ready()
    rig.work.pause("acme", 60.0, "RateLimited")
    assert not rig.busy(within=10.0)
    assert rig.busy(within=60.0)


def test_paused_rows_and_kinds_and_other_kinds_are_left_alone(rig) -> None:
    rig.ready()
    rig.ready(kind="other")
    assert [claim.tenancy.kind for claim in rig.claim()] == ["acme"]
    assert rig.claim(kind="nobody's") == []
    rig.change(paused=True)
    assert rig.claim(kind="other") == []
    rig.change(paused=False)
    rig.work.pause("other", 60.0, "RateLimited")
    assert rig.claim(kind="other") == []
    rig.clock.advance(60)
    assert len(rig.claim(kind="other")) == 1
    assert rig.work.kinds() == ["acme", "other"]


def test_a_longer_pause_is_not_shortened(rig) -> None:
    rig.ready()
    rig.work.pause("acme", 100.0, "RateLimited")
    rig.work.pause("acme", 5.0, "VendorUnavailable")
    rig.clock.advance(50)
    assert rig.claim() == []
    rig.clock.advance(50)
    assert len(rig.claim()) == 1


def test_a_claim_takes_no_more_than_its_limit(rig) -> None:
    for number in range(5):
        rig.ready(workspace=Workspace(f"ws_{number}"))
    assert [len(rig.claim(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_rows_that_need_no_call_do_not_hold_up_the_others(rig) -> None:
    for number in range(12):
        rig.ready(workspace=Workspace(f"gone_{number}"))
        rig.removing(Workspace(f"gone_{number}"))
    rig.clock.advance(1)
    rig.ready()
    assert [claim.tenancy.workspace_id for claim in rig.claim(limit=3)] == ["ws_1"]
    assert Counter(row["phase"] for row in rig.rows()) == {"released": 12, "provisioning": 1}


def test_busy_until_nothing_is_leased_open_or_due(rig) -> None:
    def busy(within: float = 10.0) -> bool:
        return rig.busy(within)

    assert not busy()
    rig.ready()
    assert busy()
    claim = rig.claim_one()
    assert busy()
    rig.settle(claim, Phase.PENDING, delay=60.0)
    assert not busy()
    assert busy(60.0)
    rig.clock.advance(60)
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    assert not busy()
    rig.removing()
    rig.claim()
    assert not busy(), "waiting for the grace"
    assert busy(3600.0)


def test_a_removal_after_an_undo_that_no_worker_saw_has_a_grace_of_its_own(rig) -> None:
    rig.make_ready()
    rig.removing()
    assert rig.claim() == []
    rig.clock.advance(3000)
    rig.ready()
    rig.clock.advance(1)
    rig.removing()
    rig.clock.advance(599)
    assert rig.claim() == [], "3600 s after the first removal, 599 s after the second"
    assert rig.row()["release_after"] == rig.after(3600)


def test_a_key_is_not_repeated_so_late_that_the_vendor_may_have_forgotten_it(rig) -> None:
    rig.ready()
    rig.claim_one(repeatable=100.0)
    rig.clock.advance(71)
    assert not rig.claim_one(repeatable=100.0).remembered, "a call may be under way for the lease"


def test_a_live_lease_is_not_even_looked_at(rig) -> None:
    rig.ready()
    rig.claim_one()
    rig.ready({"changed": True})
    before = rig.row()
    rig.clock.advance(29)
    rig.claim()
    assert rig.row() == before


def test_the_row_that_waits_longest_is_taken_first(rig) -> None:
    names = ["ws_c", "ws_a", "ws_b"]
    for name in names:
        rig.ready(workspace=Workspace(name))
        rig.clock.advance(1)
    assert [rig.claim(limit=1)[0].tenancy.workspace_id for _ in names] == names


@pytest.mark.parametrize(
    "forged", ["[1, 2]", "null", '"x"', "5", "3.5", "1" * 5000, "[" * 1200 + "]" * 1200]
)
def test_params_that_are_no_object_are_told_and_stop_nobody(rig, forged) -> None:
    rig.ready()
    rig.ready(workspace=Workspace("ws_2"))
    cast = "CAST(:forged AS jsonb)" if not rig.work.is_sqlite else ":forged"
    statement = sa.text(f"UPDATE nimble_tenancy SET params = {cast} WHERE workspace_id = 'ws_1'")
    forge = {"forged": forged}
    rig.work.writing(rig.soon(), lambda at: at.execute(statement, forge).close())
    readable = {claim.tenancy.workspace_id: claim.readable for claim in rig.claim()}
    assert readable == {"ws_1": False, "ws_2": True}
    assert len(rig.work.status()) == 2


def test_times_no_worker_could_read_are_refused_by_the_database(rig) -> None:
    rig.ready()
    forge = "UPDATE nimble_tenancy SET last_used_at = '{}'"
    times = ["z"] if rig.work.is_sqlite else ["infinity", "-infinity", "20000-01-01"]
    for time in times:
        with pytest.raises(IntegrityError):
            rig.work.writing(
                rig.soon(), lambda at, time=time: at.exec_driver_sql(forge.format(time)).close()
            )

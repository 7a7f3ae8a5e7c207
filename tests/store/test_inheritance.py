"""The back-off goes on over incarnations: a life that fails gets no new patience by a reinstall."""

import pytest

from nimble_lifecycle.protocol import Phase
from nimble_lifecycle.store import Step


def fail_and_remove(rig, attempts: int = 6) -> None:
    """Let the first life fail so often, be removed and end without a resource."""
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PENDING, attempts=attempts, creates=0, delay=60.0)
    rig.removing()
    look = rig.claim_one(grace=0.0)
    assert look.attempts == attempts
    rig.settle(look, Phase.PENDING, delay=60.0, nothing_there=True)
    assert rig.claim(grace=0.0) == []
    assert rig.row()["phase"] == "released"


def test_a_new_life_waits_for_the_back_off_of_one_that_never_became_ready(rig) -> None:
    fail_and_remove(rig)
    rig.clock.advance(10)
    rig.ready()
    assert rig.claim() == []
    row = rig.rows()[-1]
    assert (row["incarnation"], row["phase"], row["reason"]) == (2, "pending", "BackingOff")
    assert (row["attempts"], row["due_at"]) == (6, rig.after(64 - 10))
    rig.clock.advance(54)
    claim = rig.claim_one()
    assert (claim.step, claim.attempts) == (Step.CREATE, 6)


def test_a_back_off_that_is_over_is_not_waited_for_but_counts(rig) -> None:
    fail_and_remove(rig)
    rig.clock.advance(100)
    rig.ready()
    claim = rig.claim_one()
    assert (claim.step, claim.attempts) == (Step.CREATE, 6)


def test_it_goes_on_over_three_lives(rig) -> None:
    fail_and_remove(rig)
    rig.ready()
    assert rig.claim() == []
    rig.removing()
    assert rig.claim(grace=0.0) == []
    rig.ready()
    assert rig.claim() == []
    row = rig.rows()[-1]
    assert (row["incarnation"], row["attempts"], row["due_at"]) == (3, 6, rig.after(64))


def test_a_life_that_wants_something_else_starts_afresh(rig) -> None:
    fail_and_remove(rig)
    rig.ready({"plan": "other"})
    claim = rig.claim_one()
    assert (claim.step, claim.attempts) == (Step.CREATE, 0)


def test_a_life_that_was_ready_hands_nothing_on(rig) -> None:
    rig.make_ready()
    rig.change(attempts=4)
    rig.removing()
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASED, finished=True, attempts=4)
    rig.ready()
    assert rig.claim_one().attempts == 0


@pytest.mark.parametrize("attempts", [9, 40])
def test_the_wait_is_never_longer_than_the_longest(rig, attempts: int) -> None:
    fail_and_remove(rig, attempts)
    rig.ready()
    assert rig.claim(backoff_longest=120.0) == []
    assert rig.rows()[-1]["due_at"] == rig.after(120)

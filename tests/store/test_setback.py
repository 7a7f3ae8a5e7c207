"""A database clock that is put back: what has to wait for it again, and what has not."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from clocks import HOUR, WrongClock
from store.conftest import KIND, RULES, Rig

from nimble_lifecycle.protocol import Phase, Why
from nimble_lifecycle.store import Step


@pytest.fixture
def rig(database_url: str) -> Iterator[Rig]:
    clock = WrongClock()
    with closing(Rig(database_url, clock)) as rig:
        rig.clock = clock
        rig.work.enter(KIND)
        yield rig


def put_back(rig: Rig) -> None:
    rig.clock.ahead = 0.0
    rig.work.set_back(RULES, HOUR)


def test_a_back_off_goes_on_from_where_it_was(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PENDING, delay=60.0, creates=0)
    rig.clock.advance(20)
    put_back(rig)
    assert rig.row()["due_at"] == rig.after(40)
    rig.clock.advance(39)
    assert rig.claim() == []
    rig.clock.advance(1)
    assert rig.claim_one().step is Step.CREATE


def test_the_row_of_a_dead_worker_is_taken_up_when_its_lease_would_have_ended(rig) -> None:
    rig.ready()
    rig.claim_one()
    rig.clock.advance(20)
    put_back(rig)
    rig.clock.advance(9)
    assert rig.claim() == []
    rig.clock.advance(1)
    assert rig.claim_one().step is Step.FIND


def test_a_lease_that_was_taken_since_is_left_alone(rig) -> None:
    rig.ready()
    rig.clock.ahead = 0.0
    rig.claim_one()
    rig.clock.advance(20)
    rig.work.set_back(RULES, HOUR)
    assert rig.row()["lease_expires_at"] == rig.after(10)
    rig.clock.advance(9)
    assert rig.claim() == []


def test_twice_is_no_more_than_once(rig) -> None:
    rig.ready()
    rig.claim_one()
    put_back(rig)
    before = rig.row()
    rig.work.set_back(RULES, HOUR)
    after = rig.row()
    assert {**after, "due_at": None} == {**before, "due_at": None}


def test_a_look_up_is_not_believed_before_the_create_can_no_longer_run(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.UNRESOLVED, delay=1.0)
    rig.clock.advance(20)
    put_back(rig)
    assert rig.row()["create_ends_at"] == rig.after(10)
    claim = rig.claim_one()
    assert (claim.step, claim.create_ends_in) == (Step.FIND, pytest.approx(10.0, abs=0.001))


def test_a_key_is_remembered_no_longer_than_it_was(rig) -> None:
    rig.ready()
    rules = {"can_find": False, "repeatable": 60.0}
    rig.settle(rig.claim_one(**rules), Phase.UNRESOLVED, delay=1.0)
    rig.clock.advance(20)
    put_back(rig)
    rig.clock.advance(11)
    assert rig.claim_one(**rules).step is Step.FIND


def test_a_pause_of_the_vendor_ends_when_it_would_have(rig) -> None:
    rig.work.pause(KIND, 60.0, Why.RATE_LIMITED)
    rig.ready()
    rig.clock.advance(20)
    put_back(rig)
    rig.clock.advance(39)
    assert rig.claim() == []
    rig.clock.advance(1)
    assert rig.claim_one().step is Step.CREATE


def test_a_rate_has_room_again(rig) -> None:
    rules = {"max_rate": 1.0}
    rig.ready()
    rig.settle(rig.claim_one(**rules), Phase.PENDING, delay=0.0, creates=0)
    put_back(rig)
    rig.clock.advance(1)
    assert rig.claim_one(**rules).step is Step.CREATE


def test_a_grace_is_not_shortened(rig) -> None:
    rig.make_ready()
    rig.removing()
    rig.claim()
    put_back(rig)
    rig.clock.advance(HOUR)
    assert rig.claim() == []
    rig.clock.advance(HOUR)
    assert rig.claim_one().step is Step.RELEASE


def test_rows_of_other_kinds_are_anothers(rig) -> None:
    rig.ready()
    rig.claim_one()
    before = rig.row()
    rig.clock.ahead = 0.0
    rig.work.set_back(replace(RULES, kind="another"), HOUR)
    assert rig.row() == before


def test_without_it_a_row_waits_for_the_time_before(rig) -> None:
    rig.ready()
    rig.claim_one()
    rig.clock.ahead = 0.0
    rig.clock.advance(HOUR + 29)
    assert rig.claim() == []

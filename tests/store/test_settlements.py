"""How steps end: the fence, the journal, and batches."""

import random

import pytest
from sqlalchemy.exc import OperationalError

from nimble_lifecycle.errors import SharedResource
from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store import Step


def test_a_settlement_writes_status_and_journal_and_gives_the_lease_back(rig) -> None:
    rig.ready({"a": 1})
    claim = rig.claim_one()
    rig.clock.advance(2)
    assert rig.settle(
        claim,
        Phase.READY,
        external_id="x1",
        details={"secret": {"ref": "vault/1"}},
        finished=True,
        creates=0,
        seconds=1.5,
    )
    row = rig.row()
    assert (row["phase"], row["external_id"], row["creates"]) == ("ready", "x1", 0)
    assert row["details"] == {"secret": {"ref": "vault/1"}}
    assert row["created_at"] == row["last_observed_at"] == rig.clock.instant
    assert row["observed_generation"] == row["generation"] == 1
    assert (row["lease_owner"], row["lease_expires_at"], row["due_at"]) == (None, None, None)
    (entry,) = rig.journal()
    assert (entry["action"], entry["outcome"], entry["actor"]) == ("create", "ready", "me")
    assert (entry["tenancy_id"], entry["kind"]) == (row["id"], "acme")
    assert (entry["settled"], entry["external_id"]) == (True, "x1")
    assert (entry["lease_token"], entry["generation"], entry["seconds"]) == (1, 1, 1.5)
    assert entry["at"] == rig.clock.instant


def test_details_are_kept_where_a_settlement_brings_none(rig) -> None:
    rig.make_ready()
    rig.change(details={"a": 1}, due_at=rig.clock.instant, attempts=1)
    rig.settle(rig.claim_one(), Phase.READY, finished=True)
    assert rig.row()["details"] == {"a": 1}


@pytest.mark.postgres
def test_a_value_the_database_can_never_hold_is_not_told_for_an_outage(postgres_rig) -> None:
    postgres_rig.ready()
    chance = random.Random(0)
    too_large = "".join(chr(chance.randrange(0x4E00, 0x9F00)) for _ in range(1024))
    with pytest.raises(OperationalError):
        postgres_rig.settle(postgres_rig.claim_one(), Phase.READY, external_id=too_large)


def test_a_lost_lease_writes_the_journal_and_notes_the_resource_only(rig) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    second = rig.claim_one()
    before = rig.row()
    assert not rig.settle(first, Phase.READY, external_id="late", finished=True)
    noted = {"external_id": "late", "due_at": rig.clock.instant}
    assert rig.row() == {**before, **noted}
    (entry,) = rig.journal()
    assert (entry["settled"], entry["external_id"], entry["lease_token"]) == (False, "late", 1)
    assert rig.settle(second, Phase.READY, external_id="other", finished=True)
    assert rig.row()["external_id"] == "late", "the other is a surplus, known by the journal"


def test_a_lost_lease_does_not_replace_a_resource(rig) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    before = rig.row()
    assert not rig.settle(first, Phase.READY, external_id="late", finished=True)
    assert rig.row() == before
    assert [entry["external_id"] for entry in rig.journal()] == ["x1", "late"]


def test_a_settlement_repeated_because_its_answer_was_lost_is_harmless(rig) -> None:
    rig.ready()
    claim = rig.claim_one()
    settlement = rig.settlement(claim, Phase.PENDING, delay=60.0, attempts=1)
    assert rig.work.settle([settlement], actor="me") == {claim.tenancy.id}
    before = rig.row(), rig.journal()
    rig.clock.advance(5)
    assert rig.work.settle([settlement], actor="me") == set()
    assert (rig.row(), rig.journal()) == before


def test_a_token_settles_once(rig) -> None:
    rig.ready()
    claim = rig.claim_one()
    rig.settle(claim, Phase.UNRESOLVED, delay=60.0)
    assert not rig.settle(claim, Phase.READY, outcome="late: ready", external_id="x1")
    row = rig.row()
    assert (row["phase"], row["external_id"]) == ("unresolved", "x1")
    assert [entry["settled"] for entry in rig.journal()] == [True, False]


def test_an_expired_lease_that_nobody_took_still_settles(rig) -> None:
    rig.ready()
    claim = rig.claim_one()
    rig.clock.advance(300)
    assert rig.settle(claim, Phase.READY, external_id="x1", finished=True)


def test_a_change_meanwhile_keeps_the_row_due(rig) -> None:
    rig.ready({"a": 1})
    claim = rig.claim_one()
    rig.ready({"a": 2})
    rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    row = rig.row()
    assert (row["observed_generation"], row["generation"]) == (1, 2)
    assert rig.claim_one().step is Step.UPDATE


def test_a_batch_settles_in_one_go(rig) -> None:
    for number in range(120):
        rig.ready(workspace=Workspace(f"ws_{number:03}"))
    claims = rig.claim(limit=200)
    batch = [
        rig.settlement(claim, Phase.READY, external_id=f"x{number}", finished=True)
        for number, claim in enumerate(claims)
    ]
    assert rig.work.settle(batch, actor="me") == {claim.tenancy.id for claim in claims}
    assert {row["phase"] for row in rig.rows()} == {"ready"}
    assert len({row["external_id"] for row in rig.rows()}) == len(rig.journal()) == 120
    assert rig.claim() == []


def test_an_empty_batch_is_nothing(rig) -> None:
    assert rig.work.settle([], actor="me") == set()


def test_a_resource_of_another_row_fails_the_batch_and_nothing_is_written(rig) -> None:
    for number in range(3):
        rig.ready(workspace=Workspace(f"ws_{number}"))
    claims = rig.claim()
    batch = [
        rig.settlement(claim, Phase.READY, external_id="shared", finished=True) for claim in claims
    ]
    before = rig.rows()
    with pytest.raises(SharedResource):
        rig.work.settle(batch, actor="me")
    assert rig.rows() == before
    assert rig.journal() == []
    assert rig.work.settle(batch[:1], actor="me") == {claims[0].tenancy.id}


def test_the_resource_of_a_released_row_may_come_back(rig) -> None:
    rig.make_ready(external_id="x1")
    rig.removing()
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASED, finished=True)
    rig.ready()
    assert rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)


def test_words_no_database_can_store_do_not_fail_the_batch(rig) -> None:
    rig.ready()
    assert rig.settle(
        rig.claim_one(),
        Phase.PENDING,
        delay=1.0,
        error="E: a\0b \ud83d \\u0000",
        message="'; DROP TABLE x; --",
        details={"odd": float("inf"), "nul\0": "\0"},
    )
    row = rig.row()
    assert row["last_error"] == "E: a\ufffdb \ufffd\ufffd\ufffd \\u0000"
    assert row["message"] == "'; DROP TABLE x; --"
    assert row["details"] == {"odd": None, "nul\ufffd": "\ufffd"}


def test_an_operation_keeps_its_deadline_whatever_id_each_answer_gives_it(rig) -> None:
    rig.ready()
    more = {"delay": 0.0, "operation_limit": 100.0}
    rig.settle(rig.claim_one(), Phase.PROVISIONING, operation_id="a", **more)
    deadline = rig.after(100)
    for name in ("a", "b", "c", "d"):
        rig.clock.advance(25)
        claim = rig.claim_one()
        rig.settle(claim, Phase.PROVISIONING, operation_id=name, **more)
        assert (rig.row()["operation_id"], rig.row()["operation_deadline_at"]) == (name, deadline)
    assert claim.overdue


def test_an_operation_is_asked_about_at_its_deadline_at_the_latest(rig) -> None:
    rig.ready()
    more = {"delay": 7200.0, "operation_limit": 100.0}
    rig.settle(rig.claim_one(), Phase.PROVISIONING, operation_id="a", **more)
    assert rig.row()["due_at"] == rig.after(100)
    rig.clock.advance(100)
    claim = rig.claim_one()
    assert claim.overdue
    rig.settle(claim, Phase.PROVISIONING, operation_id="a", delay=50.0)  # the poll failed
    assert rig.row()["due_at"] == rig.after(50), "then its back-off holds as ever"


def test_what_a_call_begins_has_a_deadline_of_its_own(rig) -> None:
    begun = {"operation_id": "a", "delay": 0.0, "operation_limit": 100.0}
    rig.ready()
    rig.settle(rig.claim_one(), Phase.PROVISIONING, **begun)
    rig.clock.advance(10)
    rig.settle(rig.claim_one(), Phase.PENDING, delay=0.0, creates=0)  # a poll: it was refused
    assert rig.row()["operation_deadline_at"] is None
    rig.settle(rig.claim_one(), Phase.PROVISIONING, **begun)
    assert rig.row()["operation_deadline_at"] == rig.after(100)
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    rig.clock.advance(10)
    rig.ready({"a": 2})
    rig.settle(rig.claim_one(), Phase.PROVISIONING, **begun)
    assert rig.row()["operation_deadline_at"] == rig.after(100)
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    rig.clock.advance(31)
    rig.removing()
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASING, **begun)
    assert rig.row()["operation_deadline_at"] == rig.after(100)
    rig.settle(rig.claim_one(), Phase.RELEASED, finished=True)
    assert rig.row()["operation_deadline_at"] is None


def test_a_row_gets_to_the_operation_of_a_create_that_lost_its_lease(rig) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    second = rig.claim_one()
    before = rig.row()
    begun = rig.settlement(
        first, Phase.PROVISIONING, operation_id="a", delay=1.0, operation_limit=100.0
    )
    assert rig.work.settle([begun], actor="me") == set()
    noted = {"operation_id": "a", "operation_deadline_at": rig.after(100)}
    assert rig.row() == {**before, **noted}
    assert rig.settle(second, Phase.UNRESOLVED, delay=0.0), "it looked, and found nothing yet"
    assert rig.row()["operation_deadline_at"] == rig.after(100)
    claim = rig.claim_one()
    assert (claim.step, claim.tenancy.operation_id) == (Step.POLL, "a")


def test_an_operation_noted_while_a_look_up_found_nothing_is_not_created_beside(rig) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    second = rig.claim_one()
    rig.settle(first, Phase.PROVISIONING, operation_id="a", operation_limit=100.0)
    assert rig.settle(second, Phase.PENDING, delay=0.0)
    assert rig.claim_one().step is Step.POLL


@pytest.mark.parametrize(
    "settled",
    [
        {"phase": Phase.READY, "external_id": "x1", "finished": True},
        {"phase": Phase.PENDING, "delay": 60.0},
        {"phase": Phase.STALLED, "reason": "Rejected"},
    ],
)
def test_an_operation_is_noted_only_where_its_create_is_still_open(rig, settled) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    rig.settle(rig.claim_one(), **settled)
    before = rig.row()
    rig.settle(first, Phase.PROVISIONING, operation_id="a", operation_limit=100.0)
    assert rig.row() == before


def test_an_operation_that_is_over_does_not_come_back_with_a_repeated_settlement(rig) -> None:
    rig.ready()
    claim = rig.claim_one()
    begun = rig.settlement(
        claim, Phase.PROVISIONING, operation_id="a", delay=0.0, operation_limit=100.0
    )
    assert rig.work.settle([begun], actor="me") == {claim.tenancy.id}
    rig.settle(rig.claim_one(), Phase.UNRESOLVED, delay=60.0)  # a poll: the vendor has forgotten it
    before = rig.row()
    assert rig.work.settle([begun], actor="me") == set()
    assert rig.row() == before


def test_a_predecessor_is_going_until_it_is_gone(rig) -> None:
    rig.make_ready()
    rig.removing()
    release = rig.claim_one(grace=0.0)
    rig.ready()
    create = rig.claim_one()
    assert rig.work.predecessor_going(create.tenancy)
    rig.clock.advance(1)
    rig.settle(release, Phase.RELEASED, finished=True)
    assert rig.work.predecessor_going(create.tenancy), "it was there when the create was begun"
    rig.settle(create, Phase.PENDING, delay=1.0, creates=0)
    rig.clock.advance(1)
    assert not rig.work.predecessor_going(rig.claim_one().tenancy)


def test_status_lists_what_is_not_settled_and_what_was_lately(rig) -> None:
    def listed() -> list[object]:
        return [row["phase"] for row in rig.work.status(kind="acme")]

    rig.make_ready()
    assert listed() == ["ready"]
    rig.clock.advance(8 * 86400)
    assert listed() == []
    rig.removing()
    assert listed() == ["release_pending"]
    assert rig.work.status(kind="other") == []
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASED, finished=True)
    assert listed() == ["released"]
    rig.clock.advance(8 * 86400)
    assert listed() == []


def test_the_call_log_is_trimmed_to_its_last_rows(rig, monkeypatch) -> None:
    monkeypatch.setattr("nimble_lifecycle.store.work.KEPT_CALLS", 2)
    rig.work.trim_calls()
    for number in range(4):
        rig.ready(workspace=Workspace(f"ws_{number}"))
    rig.work.trim_calls()
    assert [said["workspace_id"] for said in rig.calls()] == ["ws_2", "ws_3"]


def test_a_late_result_in_one_batch_with_the_present_one_is_not_taken_for_it(rig) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    second = rig.claim_one()
    late = rig.settlement(first, Phase.READY, external_id="late", finished=True)
    present = rig.settlement(second, Phase.PENDING, creates=0, delay=5.0)
    assert rig.work.settle([late, present], actor="me") == {second.tenancy.id}
    assert {entry["lease_token"]: entry["settled"] for entry in rig.journal()} == {
        1: False,
        2: True,
    }


def test_a_late_resource_is_not_noted_on_a_row_that_is_gone(rig) -> None:
    rig.ready()
    first = rig.claim_one()
    rig.change(
        phase="released", release_started_at=rig.clock.instant, released_at=rig.clock.instant
    )
    rig.change(lease_owner=None, lease_expires_at=None, lease_token=9, due_at=None)
    assert not rig.settle(first, Phase.READY, external_id="late", finished=True)
    assert rig.row()["external_id"] is None
    assert rig.journal()[0]["external_id"] == "late"


def test_params_that_a_late_update_may_have_overwritten_are_applied_again(rig) -> None:
    rig.make_ready({"v": 0})
    rig.ready({"v": 1})
    old = rig.claim_one()
    rig.clock.advance(31)
    rig.ready({"v": 2})
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    assert rig.claim() == []
    rig.settle(old, Phase.READY, external_id="x1", finished=True)  # v1 is at the vendor now
    again = rig.claim_one()
    assert (again.step, again.tenancy.params) == (Step.UPDATE, {"v": 2})


def test_an_error_is_shown_until_all_is_well(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.UNRESOLVED, delay=0.0, error="RuntimeError: no")
    rig.settle(rig.claim_one(), Phase.PENDING, delay=0.0)
    assert rig.row()["last_error"] == "RuntimeError: no"
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True)
    assert rig.row()["last_error"] is None

"""What only the journal knows: it becomes its row's resource, or a row of its own."""

from uuid import uuid5

from nimble_lifecycle.protocol import Phase
from nimble_lifecycle.store import Step


def late_create(rig, external_id: str = "late"):
    """Let a worker lose its lease in the middle of a create, and give both claims."""
    rig.ready()
    first = rig.claim_one()
    rig.clock.advance(31)
    return first, rig.claim_one()


def surpluses(rig) -> list[dict[str, object]]:
    return [row for row in rig.rows() if row["origin"] == "surplus"]


def mend(rig, keeps: bool = False) -> int:
    return rig.work.mend("acme", keeps=keeps)


def test_a_late_create_beside_the_rows_resource_gets_a_row_that_is_releasing(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    assert mend(rig) == 1
    (surplus,) = surpluses(rig)
    assert (surplus["phase"], surplus["reason"]) == ("releasing", "Surplus")
    assert (surplus["external_id"], surplus["workspace_id"]) == ("late", "ws_1")
    assert (surplus["idempotency_key"], surplus["external_name"]) == (None, None)
    claim = rig.claim_one()
    assert (claim.step, claim.tenancy.external_id) == (Step.RELEASE, "late")
    assert rig.settle(claim, Phase.RELEASED, finished=True)
    assert [row["phase"] for row in rig.rows() if row["origin"] is None] == ["ready"]


def test_a_create_of_the_present_worker_is_the_surplus_where_a_late_one_came_first(rig) -> None:
    first, second = late_create(rig)
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    rig.settle(second, Phase.READY, external_id="other", finished=True)
    assert mend(rig) == 1
    assert [row["external_id"] for row in surpluses(rig)] == ["other"]


def test_a_resource_keeps_its_own_details_beside_a_surplus(rig) -> None:
    first, second = late_create(rig)
    its, others = {"inbox": "late"}, {"inbox": "other"}
    rig.settle(first, Phase.READY, external_id="late", details=its, finished=True)
    rig.settle(second, Phase.READY, external_id="other", details=others, finished=True)
    assert (rig.row()["external_id"], rig.row()["details"]) == ("late", its)


def test_what_was_made_late_for_a_released_row_is_released_too(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.removing()
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASED, finished=True)
    rig.clock.advance(1)
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    assert mend(rig) == 1
    assert [row["external_id"] for row in surpluses(rig)] == ["late"]


def test_a_resource_made_again_after_its_release_is_released_again(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.removing()
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASED, finished=True)
    rig.clock.advance(1)
    rig.settle(first, Phase.READY, external_id="x1", finished=True)
    assert mend(rig) == 1
    assert [row["external_id"] for row in surpluses(rig)] == ["x1"]


def test_a_resource_made_again_after_its_row_was_retired_is_released(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.change(retired_at=rig.clock.instant)
    rig.clock.advance(1)
    rig.settle(first, Phase.READY, external_id="x1", finished=True)
    assert mend(rig) == 1
    assert [row["external_id"] for row in surpluses(rig)] == ["x1"]


def test_a_late_answer_about_the_rows_own_resource_is_no_surplus(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.settle(first, Phase.READY, external_id="x1", finished=True)
    assert mend(rig) == 0
    rig.removing()
    rig.clock.advance(1)
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASED, finished=True)
    assert mend(rig) == 0
    assert surpluses(rig) == []


def test_a_resource_that_another_row_has_is_no_surplus(rig) -> None:
    from nimble_lifecycle.protocol import Workspace

    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.ready(workspace=Workspace("ws_2"))
    rig.settle(rig.claim_one(), Phase.READY, external_id="x2", finished=True, creates=0)
    rig.settle(first, Phase.READY, external_id="x2", finished=True)
    assert mend(rig) == 0


def test_a_surplus_gets_one_row_however_often_it_is_looked_for(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    assert [mend(rig), mend(rig)] == [1, 0]
    rig.settle(rig.claim_one(), Phase.RELEASED, finished=True)
    assert mend(rig) == 0
    assert len(surpluses(rig)) == 1


def test_a_row_with_the_id_that_a_surplus_might_have_had_hides_none(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    entry = rig.journal()[-1]["id"]
    rig.insert(uuid5(rig.row()["id"], f"surplus {entry}"), "ws_forged")
    assert [mend(rig), mend(rig)] == [1, 0]
    (surplus,) = surpluses(rig)
    assert (surplus["external_id"], surplus["workspace_id"]) == ("late", "ws_1")
    forged = next(row for row in rig.rows() if row["workspace_id"] == "ws_forged")
    assert (forged["phase"], forged["external_id"], forged["origin"]) == ("pending", None, None)


def test_a_surplus_of_another_kind_is_left_to_its_own_worker(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    assert rig.work.mend("another", keeps=False) == 0
    assert surpluses(rig) == []


def test_a_vendor_that_keeps_what_is_released_keeps_surpluses_too(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    assert mend(rig, keeps=True) == 1
    assert [row["phase"] for row in surpluses(rig)] == ["kept"]
    assert rig.claim() == []


def test_a_late_and_a_present_result_in_one_batch_lose_neither_resource(rig) -> None:
    first, second = late_create(rig)
    batch = [
        rig.settlement(second, Phase.READY, external_id="x1", finished=True, creates=0),
        rig.settlement(first, Phase.READY, external_id="late", finished=True),
    ]
    assert rig.work.settle(batch, actor="me") == {second.tenancy.id}
    assert mend(rig) == 1
    known = {row["external_id"] for row in rig.rows()}
    assert known == {"x1", "late"}
    assert [row["phase"] for row in rig.rows() if row["external_id"] == "x1"] == ["ready"]


def test_an_unsure_row_takes_what_a_late_worker_made(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.STALLED, reason="CreateOutcomeUnknown")
    batch = [rig.settlement(first, Phase.READY, external_id="late", finished=True)]
    rig.work.settle(batch, actor="me")
    assert mend(rig) == 0, "the settlement itself gave it to the row"
    assert rig.row()["external_id"] == "late"


def test_a_row_takes_the_details_of_what_a_late_worker_made(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.STALLED, reason="CreateOutcomeUnknown")
    rig.settle(first, Phase.READY, external_id="late", details={"inbox": "late"}, finished=True)
    rig.claim()
    row = rig.row()
    assert (row["phase"], row["details"]) == ("ready", {"inbox": "late"})


def test_a_ready_after_a_surplus_reads_the_life_of_its_workspace(rig) -> None:
    first, second = late_create(rig)
    rig.settle(second, Phase.READY, external_id="x1", finished=True, creates=0)
    rig.settle(first, Phase.READY, external_id="late", finished=True)
    mend(rig)
    rig.removing()
    (claim,) = [c for c in rig.claim(grace=0.0) if c.tenancy.external_id == "x1"]
    rig.settle(claim, Phase.RELEASED, finished=True)
    shown = rig.intents.tenancy(claim.tenancy.workspace, "acme", until=rig.soon())
    assert shown is not None
    assert shown.id == claim.tenancy.id
    assert rig.ready().tenancy.incarnation == 2

"""What host calls leave behind."""

import pytest

from nimble_lifecycle.errors import StoreUnavailable
from nimble_lifecycle.protocol import Phase, Reason, Workspace


def test_ready_makes_one_pending_row(rig) -> None:
    recorded = rig.ready({"region": "eu"})
    row = rig.row()
    assert recorded.changed
    assert recorded.tenancy.phase is Phase.PENDING
    assert (row["desired"], row["generation"], row["incarnation"]) == ("wanted", 1, 1)
    assert row["params"] == {"region": "eu"}
    assert row["first_seen_at"] == row["last_seen_at"] == rig.clock.instant
    assert [said["event"] for said in rig.calls()] == ["ready"]


def test_a_duplicate_ready_writes_nothing(rig) -> None:
    rig.ready({"region": "eu"})
    before = rig.row()
    rig.clock.advance(59)
    recorded = rig.ready({"region": "eu"}, reason=Reason.RESUME)
    assert not recorded.changed
    assert rig.row() == before
    assert len(rig.calls()) == 1


def test_a_duplicate_ready_refreshes_contact_after_a_minute(rig) -> None:
    rig.ready({"region": "eu"})
    before = rig.row()
    rig.clock.advance(61)
    assert not rig.ready({"region": "eu"}, reason=Reason.RESUME).changed
    after = rig.row()
    assert after["last_seen_at"] == rig.clock.instant
    assert after["last_reason"] == "resume"
    contact = {"last_seen_at": None, "last_reason": None}
    assert {**after, **contact} == {**before, **contact}


def test_the_order_of_params_is_no_change(rig) -> None:
    rig.ready({"a": 1, "b": 2})
    assert not rig.ready({"b": 2, "a": 1}).changed


def test_changed_params_are_a_new_generation(rig) -> None:
    rig.ready({"region": "eu"})
    assert rig.ready({"region": "us"}).changed
    row = rig.row()
    assert (row["generation"], row["params"]) == (2, {"region": "us"})


def test_params_no_database_can_store_are_replaced(rig) -> None:
    recorded = rig.ready({"nul\0": "a\0b", "half": "\ud83d", "odd": float("nan")})
    assert dict(recorded.tenancy.params) == {
        "nul\ufffd": "a\ufffdb",
        "half": "\ufffd\ufffd\ufffd",
        "odd": None,
    }


def test_removing_asks_for_a_release_and_ready_withdraws_it(rig) -> None:
    rig.ready()
    rig.clock.advance(1)
    removed = rig.removing()
    assert removed is not None
    assert removed.changed
    assert removed.tenancy.phase is Phase.RELEASE_PENDING
    assert rig.row()["release_requested_at"] == rig.clock.instant
    rig.clock.advance(1)
    assert rig.ready().changed
    row = rig.row()
    assert (row["desired"], row["generation"], row["release_requested_at"]) == ("wanted", 3, None)


def test_removing_of_an_unknown_workspace_makes_no_row(rig) -> None:
    assert rig.removing() is None
    assert rig.rows() == []


def test_removing_twice_is_one_change(rig) -> None:
    rig.ready()
    rig.clock.advance(1)
    rig.removing()
    first = rig.row()
    rig.clock.advance(1)
    again = rig.removing()
    assert again is not None
    assert not again.changed
    assert rig.row() == {**first, "last_seen_at": rig.clock.instant}


def test_ready_after_a_release_started_is_the_next_incarnation(rig) -> None:
    rig.make_ready()
    rig.removing()
    (claim,) = rig.claim(grace=0.0)
    recorded = rig.ready()
    assert recorded.changed
    assert recorded.tenancy.incarnation == 2
    old, new = rig.rows()
    assert old["id"] == claim.tenancy.id
    assert old["release_started_at"] is not None
    assert (new["desired"], new["phase"]) == ("wanted", "pending")
    assert rig.removing().tenancy.id == new["id"]


def test_an_operators_hold_is_not_withdrawn_by_ready(rig) -> None:
    rig.make_ready()
    rig.change(hold="release")
    assert rig.ready().tenancy.phase is Phase.RELEASE_PENDING
    assert rig.row()["hold"] == "release"


def test_tenants_kinds_and_workspaces_are_apart(rig) -> None:
    rig.ready()
    rig.ready(workspace=Workspace("ws_1", "other"))
    rig.ready(workspace=Workspace("ws_1"))
    rig.ready(kind="other")
    rig.removing()
    assert sorted(row["desired"] for row in rig.rows()) == ["release", "wanted", "wanted", "wanted"]


def test_touch_notes_use_of_the_live_row_and_changes_no_intent(rig) -> None:
    rig.ready()
    rig.clock.advance(5)
    rig.removing()
    before = rig.row()
    rig.clock.advance(5)
    rig.touch()
    now = rig.clock.instant
    assert rig.row() == {**before, "last_seen_at": now, "last_used_at": now}


def test_the_tenancy_shown_is_the_live_one_else_the_last(rig) -> None:
    def shown() -> object:
        return rig.intents.tenancy(Workspace("ws_1", "tenant"), "acme", until=rig.soon())

    assert shown() is None
    rig.make_ready()
    rig.removing()
    release = rig.claim_one(grace=0.0)
    assert shown().phase is Phase.RELEASING
    rig.settle(release, Phase.RELEASED, finished=True)
    assert shown().phase is Phase.RELEASED
    rig.ready()
    assert (shown().incarnation, shown().phase) == (2, Phase.PENDING)


def test_no_time_left_is_said_before_anything_is_done(rig) -> None:
    late = rig.clock.monotonic() - 1.0
    with pytest.raises(StoreUnavailable, match="no time is left"):
        rig.intents.ready(Workspace("ws_1"), "acme", Reason.INSTALL, {}, until=late)
    assert rig.rows() == []

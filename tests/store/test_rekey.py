"""A host that begins to name tenants: refused until an operator has moved the rows."""

import pytest
import sqlalchemy as sa

from nimble_lifecycle.errors import ConfigurationError, RekeyNeeded, VerbRefused
from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.rekey import Moved, rekey
from tests.store.sent import statements_sent

BARE = Workspace("ws_1")
NAMED = Workspace("ws_1", "acme-inc")


@pytest.fixture
def known_without(rig):
    """Give a rig on which `ws_1` is ready, as a host without tenants made it."""
    rig.ready(workspace=BARE)
    claim = rig.claim_one()
    rig.settle(claim, Phase.READY, external_id="x1", finished=True, creates=0)
    return rig


def move(rig, *names: str, **options: object) -> list[Moved]:
    return rekey(rig.work, "acme-inc", names or None, actor="me", **options)


def sent(rig, work) -> list[str]:
    """Give the statements that the server's store sends for `work`."""
    with statements_sent(rig.intents) as statements:
        work()
    return [
        each.text
        for each in statements
        if "nimble_tenancy" in each.text and "pg_notify" not in each.text
    ]


# -- what hosts are answered -----------------------------------------------------------------------


def test_a_ready_that_names_a_tenant_is_refused_and_nothing_is_recorded(known_without) -> None:
    rig = known_without
    rows, calls = rig.rows(), rig.calls()
    with pytest.raises(RekeyNeeded, match="nimble-reconcile rekey"):
        rig.ready({"n": 1}, workspace=NAMED)
    assert (rig.rows(), rig.calls()) == (rows, calls)


def test_a_removing_that_names_a_tenant_is_refused_and_releases_nothing(known_without) -> None:
    rig = known_without
    rows = rig.rows()
    with pytest.raises(RekeyNeeded, match="nimble-reconcile rekey"):
        rig.removing(NAMED)
    assert rig.rows() == rows
    assert rig.calls()[-1]["event"] == "removing"


def test_another_kind_or_workspace_of_the_tenant_is_served(known_without) -> None:
    rig = known_without
    assert rig.ready(workspace=Workspace("ws_2", "acme-inc")).changed
    assert rig.ready(workspace=NAMED, kind="other").changed
    assert rig.removing(Workspace("ws_3", "acme-inc")) is None


def test_a_tenant_whose_workspace_is_known_goes_on_beside_a_host_without_tenants(rig) -> None:
    rig.ready(workspace=NAMED)
    assert rig.ready(workspace=BARE).changed
    assert rig.ready({"n": 1}, workspace=NAMED).changed
    assert not rig.ready({"n": 1}, workspace=NAMED).changed
    assert rig.removing(NAMED).changed


def test_what_is_released_without_a_tenant_is_in_nobodys_way(known_without) -> None:
    rig = known_without
    rig.removing(BARE)
    rig.claim_one(grace=0.0)
    assert rig.ready(workspace=NAMED).changed


def test_the_guard_costs_no_further_statement(rig) -> None:
    one = 1 if not rig.intents.is_sqlite else 2  # SQLite reads first and logs the call apart
    assert len(sent(rig, lambda: rig.ready(workspace=NAMED))) == one
    assert len(sent(rig, lambda: rig.ready(workspace=NAMED))) == 1
    assert len(sent(rig, lambda: rig.removing(NAMED))) == 1


# -- the operator ----------------------------------------------------------------------------------


def test_rekey_moves_every_life_of_the_workspace_and_the_host_is_served(known_without) -> None:
    rig = known_without
    rig.removing(BARE)
    release = rig.claim_one(grace=0.0)
    rig.ready({"n": 1}, workspace=BARE)
    rig.ready(workspace=Workspace("ws_2"))
    before = rig.rows()
    assert move(rig, "ws_1") == [Moved("acme", "ws_1", 2, None)]
    for old, new in zip(before, rig.rows(), strict=True):
        tenant = "acme-inc" if old["workspace_id"] == "ws_1" else ""
        assert new == {**old, "tenant_id": tenant}
    assert not rig.ready({"n": 1}, workspace=NAMED).changed
    assert rig.settle(release, Phase.RELEASED, finished=True)


def test_a_worker_in_the_middle_settles_as_ever(rig) -> None:
    rig.ready(workspace=BARE)
    claim = rig.claim_one()
    move(rig)
    assert rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    row = rig.row()
    assert (row["tenant_id"], row["phase"], row["external_id"]) == ("acme-inc", "ready", "x1")
    assert row["idempotency_key"] == claim.tenancy.idempotency_key


def test_rekey_is_journalled(known_without) -> None:
    move(known_without)
    entry = known_without.journal()[-1]
    assert (entry["action"], entry["outcome"]) == ("operator: rekey", "moved")
    assert (entry["actor"], entry["note"]) == ("me", "tenant acme-inc")
    assert entry["tenancy_id"] == known_without.row()["id"]


def test_all_means_all_without_a_tenant_and_a_kind_only_that_kind(rig) -> None:
    rig.ready(workspace=Workspace("a"))
    rig.ready(workspace=Workspace("b"))
    rig.ready(workspace=Workspace("a"), kind="other")
    rig.ready(workspace=Workspace("c", "theirs"))
    assert [each.workspace_id for each in move(rig, kind="acme")] == ["a", "b"]
    assert move(rig) == [Moved("other", "a", 1, None)]
    assert move(rig) == []
    assert sorted(str(row["tenant_id"]) for row in rig.rows()) == ["acme-inc"] * 3 + ["theirs"]


def test_a_workspace_the_tenant_has_already_is_refused_and_nothing_moved(rig) -> None:
    rig.ready(workspace=NAMED)
    rig.ready(workspace=BARE)
    rig.ready(workspace=Workspace("ws_2"))
    before = rig.rows()
    with pytest.raises(VerbRefused, match="'ws_1'"):
        move(rig)
    assert rig.rows() == before
    assert move(rig, "ws_2") == [Moved("acme", "ws_2", 1, None)]


def test_lives_the_tenant_had_before_are_counted_first(known_without) -> None:
    rig = known_without
    run = sa.update(t).values(tenant_id="acme-inc", release_started_at=rig.clock.instant)
    rig.work.writing(rig.soon(), lambda at: at.execute(run).close())
    rig.ready(workspace=BARE)
    move(rig)
    assert [row["incarnation"] for row in rig.rows()] == [1, 2]


def test_a_workspace_without_such_a_row_is_named_and_nothing_moved(known_without) -> None:
    with pytest.raises(VerbRefused, match="'ws_9'"):
        move(known_without, "ws_1", "ws_9")
    assert known_without.row()["tenant_id"] == ""


def test_what_a_host_said_in_vain_is_told(known_without) -> None:
    rig = known_without
    rig.clock.advance(5)
    with pytest.raises(RekeyNeeded):
        rig.removing(NAMED)
    assert move(rig) == [Moved("acme", "ws_1", 1, rig.clock.instant)]


@pytest.mark.parametrize("tenant", ["", " ", "a\x00b", "x" * 256])
def test_what_is_no_tenants_id_is_refused(rig, tenant: str) -> None:
    with pytest.raises(ConfigurationError, match="TENANT"):
        rekey(rig.work, tenant, None, actor="me")

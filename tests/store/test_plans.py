"""The statements that run all day find their rows by index, whatever the number of idle rows."""

from uuid import uuid4

import pytest
import sqlalchemy as sa

from nimble_lifecycle.errors import RekeyNeeded
from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.stretches import Stretch
from nimble_lifecycle.store.sweeps import SweepStore
from tests.store.conftest import RULES
from tests.store.sent import Sent, statements_sent

IDLE = 2000


class Plans:
    """Explains the statements the store really sends, with the values it sends."""

    def __init__(self, rig) -> None:
        self.rig = rig
        self.sqlite = rig.work.is_sqlite

    def of(self, work, *, on) -> str:
        """Run `work` and give the plans of the statements it sent to the database of `on`."""
        with statements_sent(on) as sent:
            work()
        # Neither settings nor a NOTIFY have a plan.
        planned = [each for each in sent if "nimble_tenancy" in each.text]
        return "\n".join(self._explained(each) for each in planned)

    def _explained(self, sent: Sent) -> str:
        explain = "EXPLAIN QUERY PLAN " if self.sqlite else "EXPLAIN "

        def read(at: sa.Connection) -> str:
            rows = at.exec_driver_sql(explain + sent.text, sent.values).all()
            return "\n".join(str(row[-1]) for row in rows)

        return self.rig.work.reading(self.rig.soon(), read)


@pytest.fixture
def plans(rig) -> Plans:
    """A fleet of idle rows, with fresh statistics, and nothing to do."""
    rig.make_ready()
    row = rig.row()
    rows = [
        {**row, "id": uuid4(), "workspace_id": f"idle_{n}", "external_id": f"idle_{n}"}
        for n in range(IDLE)
    ]
    rig.work.writing(rig.soon(), lambda at: at.execute(sa.insert(t), rows).close())
    analyze = "ANALYZE nimble_tenancy"
    rig.work.writing(rig.soon(), lambda at: at.exec_driver_sql(analyze).close())
    return Plans(rig)


def scans_all(plan: str) -> bool:
    return any(
        line.strip().lstrip("-> ").startswith(("Seq Scan on nimble_tenancy", "SCAN nimble_tenancy"))
        and "USING INDEX" not in line
        for line in plan.splitlines()
    )


def sorts(plan: str) -> bool:
    """Whether the rows to look at are sorted; the few that were taken are ranked, which is fine."""
    after = plan.partition("awaited")[2]
    look = after.partition("SCAN awaited" if "SCAN awaited" in after else "ix_nimble_tenancy_look")[
        0
    ]
    return "Sort" in look or "USE TEMP B-TREE" in look


def test_a_claim_reads_the_rows_to_look_at_by_their_index(plans: Plans) -> None:
    plan = plans.of(lambda: plans.rig.work.claim(RULES, 10), on=plans.rig.work)
    assert "ix_nimble_tenancy_look" in plan
    assert not sorts(plan), plan
    assert not scans_all(plan), plan


def test_a_ready_finds_its_row_by_the_live_index(plans: Plans) -> None:
    plan = plans.of(lambda: plans.rig.ready({"changed": True}), on=plans.rig.intents)
    assert "uq_nimble_tenancy_live" in plan
    assert not scans_all(plan), plan


def test_a_removing_finds_its_row_by_the_live_index(plans: Plans) -> None:
    plan = plans.of(plans.rig.removing, on=plans.rig.intents)
    assert "uq_nimble_tenancy_live" in plan
    assert not scans_all(plan), plan


def test_a_ready_that_names_a_new_tenant_is_refused_by_the_live_index(plans: Plans) -> None:
    plans.rig.change(tenant_id="")

    def refused() -> None:
        with pytest.raises(RekeyNeeded):
            plans.rig.ready({"changed": True})

    plan = plans.of(refused, on=plans.rig.intents)
    assert "uq_nimble_tenancy_live" in plan


def test_a_claim_with_something_to_count_reads_no_more_rows(plans: Plans) -> None:
    plans.rig.ready(workspace=Workspace("new"))

    def claim() -> None:
        assert len(plans.rig.claim(max_concurrency=5, max_rate=5.0)) == 1

    plan = plans.of(claim, on=plans.rig.work)
    assert "ix_nimble_tenancy_leased" in plan
    assert not scans_all(plan), plan


def test_a_settlement_reads_its_rows_by_their_key(plans: Plans) -> None:
    plans.rig.ready(workspace=Workspace("new"))
    (claim,) = plans.rig.claim()

    def settle() -> None:
        assert plans.rig.settle(claim, Phase.READY, external_id="new", finished=True)

    plan = plans.of(settle, on=plans.rig.work)
    assert "nimble_tenancy_pkey" in plan or "sqlite_autoindex_nimble_tenancy" in plan
    assert not scans_all(plan), plan


def test_a_look_for_suspects_reads_leases_and_the_claim_of_one_its_row(plans: Plans) -> None:
    look = plans.of(lambda: plans.rig.work.attention("acme"), on=plans.rig.work)
    assert "ix_nimble_tenancy_leased" in look
    assert "ix_nimble_tenancy_suspect" in look
    assert not scans_all(look), look
    row = plans.rig.rows()[0]["id"]
    claim = plans.of(lambda: plans.rig.work.claim_only(RULES, row), on=plans.rig.work)
    assert not scans_all(claim), claim


def test_a_probe_reads_the_rows_that_are_due(plans: Plans) -> None:
    plan = plans.of(lambda: plans.rig.work.take_probe(RULES), on=plans.rig.work)
    assert "ix_nimble_tenancy_look" in plan
    assert not scans_all(plan), plan


def test_a_release_that_is_counted_reads_those_of_the_window_only(plans: Plans) -> None:
    plans.rig.removing()
    plan = plans.of(lambda: plans.rig.claim(grace=0.0), on=plans.rig.work)
    assert "ix_nimble_tenancy_ending" in plan or "ix_nimble_tenancy_gone" in plan
    assert not scans_all(plan), plan


def test_a_sweep_reads_a_part_of_the_table_where_it_lies(rig, plans) -> None:
    sweeps = SweepStore(rig.work, actor="me")
    since = rig.clock.instant
    plan = plans.of(lambda: sweeps.silent("acme", since, Stretch(1, 2)), on=rig.work)
    by_place = "PRIMARY KEY (rowid>? AND rowid<?)" if plans.sqlite else "Tid Range Scan"
    assert by_place in plan


@pytest.mark.postgres
def test_long_statements_are_planned_once_and_never_compiled(postgres_rig) -> None:
    shown = "SELECT current_setting('plan_cache_mode'), current_setting('jit')"
    for store in (postgres_rig.work, postgres_rig.intents):
        found = store.reading(
            postgres_rig.soon(), lambda at: tuple(at.exec_driver_sql(shown).one())
        )
        assert found == ("force_generic_plan", "off")

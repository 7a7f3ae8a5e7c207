"""Statements on the driver's own cursor mean what they mean to SQLAlchemy."""

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError

from nimble_lifecycle.errors import StoreUnavailable
from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.prepared import Prepared
from nimble_lifecycle.store.types import known
from tests.store.sent import statements_sent

OTHER = Workspace("other", "acme")


def prepared(rig, statement) -> Prepared:
    return Prepared(statement, rig.work.engine.dialect)


def test_rows_have_the_values_that_sqlalchemy_gives(rig) -> None:
    rig.ready({"region": "eu", "of": [1, None]})
    rig.settle(rig.claim_one(), Phase.READY, external_id="x1", finished=True, details={"a": "ä"})
    rig.ready(workspace=OTHER)
    rig.change(paused=True)
    its = sa.bindparam("its_workspace_id", type_=sa.Text())
    one = sa.select(*t.c).where(t.c.workspace_id == its)

    def both(at, values):
        return prepared(rig, one).row(at, values), at.execute(one, values).mappings().one()

    for row in rig.rows():
        values = {"its_workspace_id": row["workspace_id"], "not_asked_for": 1}
        found, expected = rig.work.reading(rig.soon(), lambda at, v=values: both(at, v))
        assert found == dict(expected) == row
        assert [type(value) for value in found.values()] == [type(v) for v in row.values()]


def test_values_are_sent_as_sqlalchemy_sends_them(rig) -> None:
    rig.ready()
    values = {
        "its_params": {"region": "eu"},
        "its_last_used_at": rig.after(90),
        "its_paused": True,
        "its_id": rig.row()["id"],
    }
    its = {c.name: sa.bindparam(f"its_{c.name}", type_=c.type) for c in t.c}
    change = sa.update(t).where(t.c.id == its["id"])
    change = change.values({name: its[name] for name in ("params", "last_used_at", "paused")})
    rig.work.writing(rig.soon(), lambda at: prepared(rig, change).row(at, values))
    row = rig.row()
    assert (row["params"], row["last_used_at"], row["paused"]) == (
        {"region": "eu"},
        rig.after(90),
        True,
    )


def test_what_is_written_into_a_statement_is_part_of_its_text_and_must_be_given(rig) -> None:
    dialect = rig.work.engine.dialect
    asked = sa.select(
        known("cap", sa.Integer()).label("cap"), known("on", sa.Boolean()).label("on")
    )
    for cap, on in ((-7, True), (None, False)):
        said = Prepared(asked, dialect, {"its_cap": cap, "its_on": on})
        with statements_sent(rig.work) as sent:
            found = rig.work.reading(rig.soon(), lambda at, said=said: said.row(at, {}))
        assert found == {"cap": cap, "on": on}
        assert "its_" not in sent[-1].text
    with pytest.raises(ValueError, match="its_on"):
        Prepared(asked, dialect, {"its_cap": 1})


def test_values_that_are_part_of_the_statement_are_sent_as_sqlalchemy_sends_them(rig) -> None:
    rig.ready()
    change = sa.update(t).values(params={"region": "eu"}, last_used_at=rig.after(90), paused=True)
    rig.work.writing(rig.soon(), lambda at: prepared(rig, change).row(at, {}))
    row = rig.row()
    assert (row["params"], row["last_used_at"], row["paused"]) == (
        {"region": "eu"},
        rig.after(90),
        True,
    )


def test_no_row_is_none(rig) -> None:
    nobody = prepared(rig, sa.select(t.c.id).where(t.c.workspace_id == "nobody"))
    assert rig.work.reading(rig.soon(), lambda at: nobody.row(at, {})) is None


def test_a_list_that_would_be_part_of_the_text_is_refused(rig) -> None:
    with pytest.raises(ValueError, match="write it out"):
        prepared(rig, sa.select(t.c.id).where(t.c.kind.in_(["a", "b"])))


def test_errors_are_sqlalchemys_and_tell_no_values(rig) -> None:
    rig.ready()
    again = prepared(rig, sa.insert(t).from_select([*t.c], sa.select(t)))
    with pytest.raises(IntegrityError) as caught:
        rig.work.writing(rig.soon(), lambda at: again.row(at, {}))
    assert "ws1" not in str(caught.value)
    assert len(rig.rows()) == 1


def test_a_lost_connection_takes_those_with_it_that_are_as_old(postgres_rig) -> None:
    rig = postgres_rig
    own = prepared(rig, sa.select(sa.func.pg_backend_pid().label("pid")))
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY(%(pids)s)"

    def two_at_once(at):
        return rig.work.reading(rig.soon(), lambda other: [own.row(at, {}), own.row(other, {})])

    pids = [row["pid"] for row in rig.work.reading(rig.soon(), two_at_once)]
    rig.intents.reading(rig.soon(), lambda at: at.exec_driver_sql(end, {"pids": pids}).close())
    with pytest.raises(StoreUnavailable) as caught:
        rig.work.reading(rig.soon(), lambda at: own.row(at, {}))
    assert isinstance(caught.value.__cause__, OperationalError)
    assert caught.value.__cause__.connection_invalidated
    for _ in range(3):
        row = rig.work.reading(rig.soon(), lambda at: own.row(at, {}))
        assert row["pid"] not in pids


def test_a_duplicate_is_one_statement_and_so_is_every_other_call(rig) -> None:
    def sent(work) -> int:
        with statements_sent(rig.intents) as statements:
            work()
        return len([each for each in statements if "nimble_tenancy" in each.text])

    rig.ready()
    assert sent(rig.ready) == 1
    assert sent(rig.touch) == 1
    assert sent(lambda: rig.ready({"n": 1})) == (2 if rig.intents.is_sqlite else 1)
    assert sent(rig.removing) == 1

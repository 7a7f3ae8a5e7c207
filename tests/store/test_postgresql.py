"""Statements as psycopg is sent them: looked through once, not at each call."""

import pytest

pytest.importorskip("psycopg")

from nimble_lifecycle.store.postgresql import numbered

pytestmark = pytest.mark.postgres


def test_a_name_has_one_number_wherever_it_stands() -> None:
    text, order = numbered("SELECT %(a)s::TEXT, %(b_1)s, %(a)s WHERE x LIKE '5%%'")
    assert (text, order) == (b"SELECT $1::TEXT, $2, $1 WHERE x LIKE '5%'", ("a", "b_1"))


def test_a_statement_that_has_its_numbers_stays_as_it_is() -> None:
    assert numbered("SELECT $1") == (b"SELECT $1", ())


def test_values_go_by_name_or_in_order_for_one_row_or_several(postgres_rig) -> None:
    def ask(at):
        at.exec_driver_sql("CREATE TEMPORARY TABLE seen (word text, number int)")
        insert = "INSERT INTO seen VALUES (%(word)s, %(number)s)"
        at.exec_driver_sql(insert, [{"number": n, "word": str(n)} for n in range(3)])
        by_name = at.exec_driver_sql(
            "SELECT count(*) FROM seen WHERE number < %(most)s OR word = %(most)s::text",
            {"most": 2},
        )
        in_order = at.exec_driver_sql("SELECT word FROM seen WHERE number = $1", (2,))
        found = by_name.scalar_one(), in_order.scalar_one()
        at.exec_driver_sql("DROP TABLE seen")
        return found

    assert postgres_rig.work.reading(postgres_rig.soon(), ask) == (3, "2")

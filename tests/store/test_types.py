"""Columns and expressions mean the same on both databases, and the same as in Python."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from nimble_lifecycle.store.types import (
    Instant,
    base32,
    base32_of,
    earliest,
    elapsed,
    fingerprint_of,
    later,
    latest,
)

NOON = datetime(2031, 2, 28, 12, 0, 0, 250_000, UTC)


def asked(rig, *expressions: sa.ColumnElement[object]) -> tuple[object, ...]:
    select = sa.select(*expressions)
    return tuple(rig.work.reading(rig.soon(), lambda at: at.execute(select).one()))


def at(instant: datetime | None) -> sa.ColumnElement[datetime]:
    return sa.bindparam(None, instant, type_=Instant())


def seconds(value: float | None) -> sa.ColumnElement[float]:
    return sa.bindparam(None, value, type_=sa.Float())


def test_instants_come_back_as_they_were(rig) -> None:
    rig.ready()
    elsewhere = timezone(timedelta(hours=5, minutes=30))
    for instant in (NOON, NOON.astimezone(elsewhere), datetime(1999, 12, 31, tzinfo=UTC)):
        rig.change(due_at=instant)
        found = rig.row()["due_at"]
        assert found == instant
        assert found.utcoffset() == timedelta(0)
    rig.change(due_at=None)
    assert rig.row()["due_at"] is None


def test_a_naive_datetime_is_refused(rig) -> None:
    rig.ready()
    with pytest.raises((ValueError, sa.exc.StatementError), match="naive datetime is no instant"):
        rig.change(due_at=NOON.replace(tzinfo=None))


@pytest.mark.parametrize("by", [0.0, 0.001, 1.5, -60.0, 86400.0, 1e-7, 3650 * 86400.0])
def test_later_is_addition(rig, by: float) -> None:
    (found,) = asked(rig, later(at(NOON), seconds(by)))
    assert abs(found - (NOON + timedelta(seconds=by))) <= timedelta(milliseconds=1)


def test_later_of_nothing_is_nothing(rig) -> None:
    nothing = later(at(NOON), seconds(None)), later(at(None), seconds(1.0))
    assert asked(rig, *nothing) == (None, None)


def test_latest_and_earliest_pick_one_of_two(rig) -> None:
    after = NOON + timedelta(milliseconds=1)
    pairs = (at(NOON), at(after)), (at(after), at(NOON))
    assert asked(rig, *(latest(*pair) for pair in pairs)) == (after, after)
    assert asked(rig, *(earliest(*pair) for pair in pairs)) == (NOON, NOON)


def test_elapsed_is_subtraction(rig) -> None:
    (found,) = asked(rig, elapsed(at(NOON), at(NOON + timedelta(hours=30, milliseconds=5))))
    assert found == pytest.approx(30 * 3600 + 0.005, abs=0.001)


def test_base32_is_the_same_everywhere_and_tells_uuids_apart(rig) -> None:
    numbers = [UUID(int=0), UUID(int=2**128 - 1), *(uuid4() for _ in range(20))]
    given = [base32(sa.bindparam(None, number, type_=sa.Uuid())) for number in numbers]
    assert asked(rig, *given) == tuple(base32_of(number) for number in numbers)
    assert len({base32_of(number) for number in numbers}) == len(numbers)


def test_the_databases_clock_is_now_and_in_utc(real_rig) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    (found,) = asked(real_rig, real_rig.work.clock.now())
    assert before <= found <= datetime.now(UTC) + timedelta(milliseconds=2)


def test_a_manual_clock_is_read_when_a_statement_runs(rig) -> None:
    select = sa.select(rig.clock.now())

    def read() -> object:
        return rig.work.reading(rig.soon(), lambda at: at.execute(select).scalar_one())

    first = read()
    rig.clock.advance(90)
    assert (first, read()) == (rig.after(-90), rig.clock.instant)


def test_a_fingerprint_depends_on_content_only() -> None:
    assert fingerprint_of({}) == ""
    assert fingerprint_of({"a": 1, "b": [2]}) == fingerprint_of({"b": [2], "a": 1})
    assert fingerprint_of({"a": 1}) != fingerprint_of({"a": "1"})

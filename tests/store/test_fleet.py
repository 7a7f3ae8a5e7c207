"""What is known of a vendor as a whole: pauses, a refused credential, coming back."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from nimble_lifecycle.protocol import Phase, Workspace
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.models import vendor
from tests.store.conftest import RULES
from tests.store.test_races import at_once


def set_vendor(rig, kind: str = "acme", **columns: object) -> None:
    """Write columns of a vendor's row, making it where there is none."""
    made = sa.insert(vendor).values(kind=kind, **columns)
    changed = sa.update(vendor).where(vendor.c.kind == kind).values(**columns)

    def write(at: sa.Connection) -> None:
        if at.execute(changed).rowcount == 0:
            at.execute(made)

    rig.work.writing(rig.soon(), write)


def test_an_operators_pause_of_the_kind_or_of_the_fleet_stops_claims(rig) -> None:
    rig.ready()
    for kind in ("acme", "*"):
        set_vendor(rig, kind=kind, paused=True)
        before = rig.row()
        assert rig.claim() == []
        assert rig.row() == before
        assert not rig.busy(), "waiting for a person"
        set_vendor(rig, kind=kind, paused=False)
    set_vendor(rig, kind="other", paused=True)
    assert rig.busy()
    assert len(rig.claim()) == 1


# -- a refused credential --------------------------------------------------------------------------

PROOF = frozenset({"provisioned", "released"})


def refused(rig, row: UUID) -> bool:
    return rig.work.refused("acme", row, PROOF)


def journalled(rig, outcome: str, *, name: str = "ws_witness", kind: str = "acme") -> None:
    """Let a row of its own end a step with this outcome."""
    rig.ready(workspace=Workspace(name), kind=kind)
    (claim,) = rig.claim(kind=kind)
    rig.settle(claim, Phase.UNRESOLVED, outcome=outcome, delay=10.0**6)


def rows_due(rig, number: int) -> list[UUID]:
    """Make rows that are due for a create and give their ids, in order."""
    for each in range(number):
        rig.ready(workspace=Workspace(f"ws_{each}"))
    return sorted(row["id"] for row in rig.rows())


def halt(rig, number: int = 3) -> list[UUID]:
    ids = rows_due(rig, number)
    assert not refused(rig, ids[0])
    assert refused(rig, ids[1])
    return ids


def probe(rig, **changed: object) -> UUID | None:
    return rig.work.take_probe(replace(RULES, **changed))


def test_one_row_that_is_refused_for_ever_is_refused_alone(rig) -> None:
    row = uuid4()
    assert not any(refused(rig, row) for _ in range(5))
    assert rig.vendor()["halted_at"] is None


def test_a_second_row_that_is_refused_halts_the_kind(rig) -> None:
    halt(rig)
    before = rig.rows()
    assert rig.vendor()["halted_at"] == rig.clock.instant
    assert rig.work.attention("acme").halted
    assert rig.claim() == []
    assert rig.rows() == before
    assert not rig.busy(), "waiting for a person"
    rig.ready(kind="other")
    assert len(rig.claim(kind="other")) == 1


@pytest.mark.parametrize(
    ("outcome", "kind", "acquits"),
    [
        ("provisioned", "acme", True),
        ("released", "acme", True),
        ("not applied", "acme", False),
        ("late: provisioned", "acme", False),
        ("provisioned", "other", False),
    ],
)
def test_a_success_between_two_refusals_acquits_the_credential(
    rig, outcome: str, kind: str, acquits: bool
) -> None:
    assert not refused(rig, uuid4())
    journalled(rig, outcome, kind=kind)
    second = uuid4()
    assert refused(rig, second) is not acquits
    assert refused(rig, second) is not acquits, "once more says nothing new"


def test_a_success_before_the_first_refusal_says_nothing_about_the_second(rig) -> None:
    journalled(rig, "provisioned")
    assert not refused(rig, uuid4())
    assert refused(rig, uuid4())


def test_of_two_rows_that_are_refused_at_once_one_is_the_second(rig) -> None:
    for _ in range(10):
        set_vendor(rig, halted_at=None, refused_id=None)
        answers = at_once(*[lambda row=uuid4(): refused(rig, row) for _ in range(2)])
        assert sorted(answers) == [False, True]


def test_a_halted_kind_is_probed_by_one_row_at_a_time(rig) -> None:
    ids = halt(rig)
    assert probe(rig) is None, "not yet"
    rig.clock.advance(1)
    assert probe(rig) == ids[0]
    assert probe(rig) is None
    rig.clock.advance(29)
    assert probe(rig) is None, "its lease lasts 30 s"
    rig.clock.advance(1)
    assert probe(rig) == ids[1], "whoever had the probe is gone"


def test_of_many_workers_one_gets_the_probe(rig) -> None:
    halt(rig)
    for _ in range(5):
        rig.clock.advance(60)
        assert sum(row is not None for row in at_once(*[lambda: probe(rig)] * 4)) == 1


def test_only_the_probe_may_be_called_and_by_its_name(rig) -> None:
    ids = halt(rig)
    rig.clock.advance(1)
    row = probe(rig)
    assert row == ids[0]
    assert rig.work.claim_only(RULES, row) is None
    assert rig.work.claim_only(RULES, row, probing=True) is not None
    assert rig.claim() == []


def test_probes_wait_twice_as_long_each_time_and_a_minute_at_most(rig) -> None:
    halt(rig)
    waits = []
    for _ in range(9):
        waited = 0
        while (row := probe(rig)) is None:
            rig.clock.advance(1)
            waited += 1
        waits.append(waited)
        rig.work.probed("acme", row, proven=False)
    assert waits == [1, 1, 2, 4, 8, 16, 32, 60, 60]


def test_canaries_take_turns_and_those_never_refused_come_first(rig) -> None:
    ids = halt(rig, 4)
    change = sa.update(t).where(t.c.id != ids[2]).values(reason="CredentialRefused")
    rig.work.writing(rig.soon(), lambda at: at.execute(change).close())

    def next_probe() -> UUID | None:
        rig.clock.advance(60)
        return probe(rig)

    assert next_probe() == ids[2]
    change = sa.update(t).values(reason="CredentialRefused")
    rig.work.writing(rig.soon(), lambda at: at.execute(change).close())
    assert [next_probe() for _ in range(5)] == [ids[3], ids[0], ids[1], ids[2], ids[3]]


def test_a_proven_credential_resumes_the_kind(rig) -> None:
    halt(rig)
    rig.clock.advance(1)
    rig.work.probed("acme", probe(rig), proven=True)
    assert rig.vendor()["halted_at"] is None
    assert not rig.work.attention("acme").halted
    assert len(rig.claim()) == 1
    assert not refused(rig, uuid4()), "what was before counts no more"


def test_a_worker_that_starts_probes_at_once(rig) -> None:
    ids = halt(rig)
    rig.clock.advance(1)
    rig.work.probed("acme", probe(rig), proven=False)
    assert probe(rig) is None
    rig.work.enter("acme")
    assert probe(rig) == ids[1]


def test_where_nothing_is_due_there_is_no_probe_until_something_is(rig) -> None:
    assert not refused(rig, uuid4())
    assert refused(rig, uuid4())
    rig.clock.advance(60)
    before = rig.rows(vendor)
    assert probe(rig) is None
    assert rig.rows(vendor) == before
    (row,) = rows_due(rig, 1)
    assert probe(rig) == row


def test_rows_that_need_no_call_or_have_no_room_are_no_probes(rig) -> None:
    rig.make_ready()
    rig.removing()
    assert not refused(rig, uuid4())
    assert refused(rig, uuid4())
    rig.clock.advance(60)
    assert probe(rig) is None, "its grace begins"
    rig.clock.advance(3600)
    assert probe(rig, grace=0.0, release_least=0) is None
    assert probe(rig, grace=0.0) is not None


def test_what_a_killed_worker_left_behind_can_be_the_probe(rig) -> None:
    (row,) = rows_due(rig, 1)
    rig.claim_one()
    assert not refused(rig, uuid4())
    assert refused(rig, uuid4())
    rig.clock.advance(31)
    assert rig.work.attention("acme").suspects == ()
    assert probe(rig) == row
    claim = rig.work.claim_only(RULES, row, probing=True)
    assert claim is not None
    assert claim.reclaims == 1


def test_a_paused_kind_is_not_probed(rig) -> None:
    halt(rig)
    rig.work.pause("acme", 100.0, "RateLimited")
    rig.clock.advance(99)
    assert probe(rig) is None
    rig.clock.advance(1)
    assert probe(rig) is not None


# -- coming back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("resumed", [True, False])
def test_after_a_pause_the_calls_in_flight_grow_step_by_step(rig, resumed: bool) -> None:
    rows_due(rig, 120)
    if resumed:
        set_vendor(rig, resumed_at=rig.clock.instant)
    else:
        rig.work.pause("acme", 0.0, "VendorUnavailable")
    in_flight = []
    for _ in range(10):
        rig.claim(limit=200, lease=600.0)
        in_flight.append(sum(row["lease_owner"] is not None for row in rig.rows()))
        rig.clock.advance(1)
    assert in_flight == [1 + second**2 for second in range(10)]
    rig.clock.advance(0.01)
    assert len(rig.claim(limit=200, lease=600.0)) == 120 - in_flight[-1]


def refuse_all(rig) -> None:
    assert not refused(rig, uuid4())
    assert refused(rig, uuid4())


def test_a_grace_begins_while_the_credential_is_refused_and_its_release_is_probed(rig) -> None:
    rig.make_ready()
    refuse_all(rig)
    rig.removing()
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(RULES.grace)
    rig.clock.advance(RULES.grace)
    assert rig.claim() == []
    assert probe(rig) == rig.row()["id"]


def test_what_ended_three_workers_is_quarantined_while_the_credential_is_refused(rig) -> None:
    rig.ready()
    for _ in range(3):
        rig.claim_one()
        rig.clock.advance(31)
    refuse_all(rig)
    assert rig.claim() == []
    assert (rig.row()["phase"], rig.row()["reason"]) == ("stalled", "Quarantined")

"""What status shows of a row: why it waits, and the one command that settles it."""

import json
import shlex
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import sqlalchemy as sa

from nimble_lifecycle.protocol import FLEET, Phase
from nimble_lifecycle.store import By, OperatorStore
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.models import vendor
from nimble_lifecycle.store.standing import notices_of, standing_of

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
SOON, BEFORE = NOW + timedelta(minutes=5), NOW - timedelta(minutes=5)
ID = UUID("6f2c1e50-0000-4000-8000-000000000001")

ROW: dict[str, object] = {
    **dict.fromkeys([column.name for column in t.c]),
    "id": ID,
    "workspace_id": "ws",
    "kind": "acme",
    "desired": "wanted",
    "phase": "ready",
    "external_id": "x1",
    "params_hash": "",
    "attempted_params_hash": "",
    "paused": False,
    "vendor_kind": "acme",
    "vendor_paused": None,
    "vendor_paused_until": None,
    "vendor_pause_reason": None,
    "vendor_halted_at": None,
    "vendor_capped_at": None,
    "vendor_breaker_opened_at": None,
    "fleet_paused": None,
    "now": NOW,
}
PENDING = {"phase": "pending", "external_id": None, "attempted_params_hash": None}
STALLED = {"phase": "stalled", "external_id": None}
ASKED = {"desired": "release", "release_seen_at": BEFORE}
STARTED = {"desired": "release", "release_started_at": BEFORE}
GRACE, GRACE_OVER = {**ASKED, "release_after": SOON}, {**ASKED, "release_after": NOW}

RETRY = f"nimble-reconcile retry {ID}"
RESUME = f"nimble-reconcile resume {ID}"
RESUME_KIND = "nimble-reconcile resume --kind acme"
RESUME_FLEET = "nimble-reconcile resume --fleet"
APPROVE = "nimble-reconcile approve --kind acme"
ASSUME = f"{RETRY} --assume-not-created"

SHOWN: dict[str, tuple[dict[str, object], str | None, str | None]] = {
    "ready": ({}, None, None),
    "pending": (PENDING, None, None),
    "backing off": ({**PENDING, "reason": "BackingOff", "due_at": SOON}, "BackingOff", None),
    # a person is needed
    "invalid": ({**STALLED, "reason": "InvalidParams"}, "InvalidParams", RETRY),
    "conflict": ({**STALLED, "reason": "NameConflict"}, "NameConflict", RETRY),
    "shared": ({**STALLED, "reason": "SharedResource"}, "SharedResource", RETRY),
    "quarantined": ({**STALLED, "reason": "Quarantined"}, "Quarantined", RETRY),
    "unknown": ({**STALLED, "reason": "CreateOutcomeUnknown"}, "CreateOutcomeUnknown", ASSUME),
    "unknown, asked": (
        {**STALLED, **ASKED, "reason": "CreateOutcomeUnknown"},
        "CreateOutcomeUnknown",
        ASSUME,
    ),
    "quarantined, asked": ({**STALLED, **ASKED, "reason": "Quarantined"}, "Quarantined", RETRY),
    "refused": ({"reason": "PlanUnknown"}, "PlanUnknown", RETRY),
    "release refused": ({**STARTED, "phase": "stalled", "reason": "Rejected"}, "Rejected", RETRY),
    "stalled and paused": ({**STALLED, "reason": "Rejected", "paused": True}, "Rejected", RETRY),
    # a worker goes on by itself
    "noted": (
        {"phase": "stalled", "reason": "CreateOutcomeUnknown", "due_at": NOW},
        "CreateOutcomeUnknown",
        None,
    ),
    "refused, tried again": ({"reason": "PlanUnknown", "lease_owner": "w"}, "PlanUnknown", None),
    "update fails": ({"reason": "BackingOff", "due_at": SOON}, "BackingOff", None),
    "invalid, asked": ({**STALLED, **GRACE, "reason": "InvalidParams"}, "InvalidParams", None),
    "refused, asked": ({**GRACE, "reason": "PlanUnknown"}, "PlanUnknown", None),
    # an operator's pauses
    "paused": ({"paused": True}, "Paused", RESUME),
    "paused create": ({**PENDING, "paused": True}, "Paused", RESUME),
    "paused before its grace is over": ({**GRACE, "paused": True}, "Paused", RESUME),
    "paused kind": ({**PENDING, "vendor_paused": True}, "Paused", RESUME_KIND),
    "paused fleet": ({**PENDING, "fleet_paused": True}, "Paused", RESUME_FLEET),
    "paused kind, at rest": ({"vendor_paused": True}, None, None),
    "paused fleet, at rest": ({"fleet_paused": True}, None, None),
    "pause lifted": ({**PENDING, "vendor_paused": False, "fleet_paused": False}, None, None),
    # the vendor as a whole
    "halted": ({**PENDING, "vendor_halted_at": BEFORE}, "CredentialRefused", None),
    "halted, at rest": ({"vendor_halted_at": BEFORE}, None, None),
    "halted in grace": ({**GRACE, "vendor_halted_at": BEFORE}, None, None),
    "halted after grace": ({**GRACE_OVER, "vendor_halted_at": BEFORE}, "CredentialRefused", None),
    "halted release": (
        {**STARTED, "phase": "releasing", "vendor_halted_at": BEFORE},
        "CredentialRefused",
        None,
    ),
    "limited": (
        {**PENDING, "vendor_paused_until": SOON, "vendor_pause_reason": "RateLimited"},
        "RateLimited",
        None,
    ),
    "limited before": (
        {**PENDING, "vendor_paused_until": NOW, "vendor_pause_reason": "RateLimited"},
        None,
        None,
    ),
    "capped": ({**PENDING, "vendor_capped_at": BEFORE}, "CapReached", None),
    "capped, backing off": (
        {**PENDING, "reason": "BackingOff", "due_at": SOON, "vendor_capped_at": BEFORE},
        "BackingOff",
        None,
    ),
    "capped, begun before": (
        {**PENDING, "create_started_at": BEFORE, "vendor_capped_at": BEFORE},
        None,
        None,
    ),
    "caps of others": ({"vendor_capped_at": BEFORE}, None, None),
    # releases
    "in use": ({**GRACE, "last_used_at": NOW}, "StillInUse", None),
    "used before": ({**GRACE, "last_used_at": BEFORE - timedelta(1)}, None, None),
    "breaker": (
        {**GRACE_OVER, "vendor_breaker_opened_at": BEFORE},
        "ReleaseBreakerOpen",
        APPROVE,
    ),
    "breaker, held by an operator": (
        {**GRACE_OVER, "desired": "wanted", "hold": "release", "vendor_breaker_opened_at": BEFORE},
        "ReleaseBreakerOpen",
        APPROVE,
    ),
    "breaker in grace": ({**GRACE, "vendor_breaker_opened_at": BEFORE}, None, None),
    "breaker over others": ({**PENDING, "vendor_breaker_opened_at": BEFORE}, None, None),
    # over
    "released": ({**STARTED, "phase": "released", "paused": True}, None, None),
    "kept": ({**STARTED, "phase": "kept", "reason": "Abandoned"}, "Abandoned", None),
    "retired": (
        {**STALLED, "reason": "Foreign", "retired_at": BEFORE, "paused": True},
        "Foreign",
        None,
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_a_row_shows_what_holds_it_back_and_what_settles_it(case: str) -> None:
    changes, reason, settle = SHOWN[case]
    standing = standing_of({**ROW, **changes})
    assert (standing.reason, standing.settle) == (reason, settle)


@pytest.mark.parametrize(
    ("changes", "blocked"),
    [
        (PENDING, "its create"),
        ({"phase": "unresolved", "external_id": None}, "finding out how its create ended"),
        ({**ASKED, "phase": "unresolved", "external_id": None}, "finding out how its create ended"),
        ({"phase": "provisioning", "operation_id": "op"}, "finding out how its create ended"),
        (
            {"phase": "provisioning", "operation_id": "op", "created_at": SOON},
            "finding out how its update ended",
        ),
        ({"attempted_params_hash": "old"}, "its update"),
        ({"due_at": SOON}, "its update"),
        (GRACE, "its release"),
        ({**STARTED, "phase": "releasing"}, "its release"),
        ({}, "its updates and its release"),
    ],
)
def test_a_pause_says_what_it_blocks(changes: dict[str, object], blocked: str) -> None:
    message = standing_of({**ROW, **changes, "paused": True}).message
    assert message == f"paused by an operator, which blocks {blocked}"


def test_an_unknown_create_shows_when_it_may_have_been_applied_and_what_to_look_for() -> None:
    times = {"create_started_at": BEFORE, "create_attempted_at": NOW, "create_ends_at": SOON}
    row = {**ROW, **STALLED, **times, "reason": "CreateOutcomeUnknown", "external_name": "o-abc"}
    assert standing_of(row).message == (
        "a create begun at 2030-01-01T11:55:00+00:00 or later may have been applied, until"
        " 2030-01-01T12:05:00+00:00: look at the vendor for o-abc"
    )
    told = standing_of({**row, "last_error": "ValueError: no plan"}).message
    assert str(told).endswith("look at the vendor for o-abc; its last error: ValueError: no plan")


def test_what_the_vendor_and_the_last_step_said_is_shown() -> None:
    stalled = {**ROW, **STALLED, "reason": "Rejected", "message": "PermanentError: no"}
    assert standing_of(stalled).message == "PermanentError: no"
    limited = {**ROW, **PENDING, "vendor_paused_until": SOON, "vendor_pause_reason": "RateLimited"}
    assert "until 2030-01-01T12:05:00+00:00" in str(standing_of(limited).message)
    halted = {**ROW, **PENDING, "vendor_halted_at": BEFORE}
    assert "since 2030-01-01T11:55:00+00:00" in str(standing_of(halted).message)
    used = {**ROW, **GRACE, "last_used_at": NOW}
    assert "until 2030-01-01T12:05:00+00:00" in str(standing_of(used).message)


def test_a_row_that_no_worker_ever_saw_says_so() -> None:
    unseen = {**ROW, "vendor_kind": None}
    assert "no worker for acme" in str(standing_of({**unseen, **PENDING}).message)
    assert standing_of(unseen).message is None
    assert standing_of({**ROW, **PENDING}).message is None


@pytest.mark.parametrize("kind", ["$(reboot)", "a b; c", "-x", "'", "\x1b[2J"])
def test_a_command_can_be_pasted_whatever_a_row_is_called(kind: str) -> None:
    forged = {**ROW, **PENDING, "workspace_id": "$(reboot)", "kind": kind, "vendor_paused": True}
    settle = standing_of(forged).settle or ""
    assert shlex.split(settle) == ["nimble-reconcile", "resume", "--kind", kind]
    assert "workspace" not in settle


def test_a_vendor_shows_what_holds_for_its_whole_kind() -> None:
    nothing = dict.fromkeys([column.name for column in vendor.c])
    row = {**nothing, "kind": "acme", "paused": False, "paused_until": SOON}
    assert list(notices_of(row)) == []
    every = ("halted_at", "breaker_opened_at", "sweep_breaker_opened_at")
    found = list(notices_of({**row, "paused": True, **dict.fromkeys(every, BEFORE)}))
    assert [each.settle for each in found] == [RESUME_KIND, None, APPROVE, APPROVE]
    assert "since 2030-01-01T11:55:00+00:00" in found[1].message
    (fleet,) = notices_of({**row, "kind": FLEET, "paused": True})
    assert (fleet.message, fleet.settle) == ("the fleet is paused by an operator", RESUME_FLEET)


# -- from the database -----------------------------------------------------------------------------


def test_status_joins_rows_with_what_holds_for_their_vendor(rig) -> None:
    rig.ready()
    rig.ready(kind="other")
    rig.work.pause("acme", 60.0, "RateLimited")
    shown = {row["kind"]: (row["reason"], row["settle"]) for row in rig.work.status()}
    assert shown == {"acme": ("RateLimited", None), "other": (None, None)}
    rig.clock.advance(61)
    assert [row["reason"] for row in rig.work.status(kind="acme")] == [None]
    fleet = sa.insert(vendor).values(kind=FLEET, paused=True)
    rig.work.writing(rig.soon(), lambda at: at.execute(fleet).close())
    shown = {row["kind"]: (row["reason"], row["settle"]) for row in rig.work.status()}
    assert shown == dict.fromkeys(("acme", "other"), ("Paused", RESUME_FLEET))
    assert [found.kind for found in rig.work.notices(kind="acme")] == [FLEET]


FORGED = {"postgresql": ['{"a": 1e5000}', '{"a": ' * 3000 + "1" + "}" * 3000]}


@pytest.mark.parametrize("at", [0, 1])
def test_status_can_be_told_as_json_whatever_the_servers_role_wrote(rig, at: int) -> None:
    rig.ready()
    dialect = rig.work.engine.dialect.name
    forged = FORGED.get(dialect, [b"\xff\x00", "{"])[at]
    name = "$1::jsonb" if dialect == "postgresql" else "?"
    statement = f"UPDATE nimble_tenancy SET params = {name}"
    rig.work.writing(rig.soon(), lambda at: at.exec_driver_sql(statement, (forged,)).close())
    (row,) = json.loads(json.dumps(rig.work.status()))
    assert isinstance(row["params"], str)


def test_status_has_the_columns_as_keys_and_what_settles_a_row(rig) -> None:
    rig.ready()
    (row,) = rig.work.status()
    assert list(row) == [*(column.name for column in t.c), "settle"]


def test_a_stalled_create_shows_its_window_to_the_end_of_its_lease(rig) -> None:
    rig.ready()
    claim = rig.claim_one(lease=90.0)
    rig.settle(claim, Phase.STALLED, reason="CreateOutcomeUnknown", message="no")
    (row,) = rig.work.status()
    assert f"until {rig.after(90).isoformat(timespec='seconds')}" in str(row["message"])
    assert f"look at the vendor for {claim.tenancy.external_name}" in str(row["message"])
    assert row["settle"] == f"nimble-reconcile retry {claim.tenancy.id} --assume-not-created"


def test_what_needs_a_person_is_listed_however_long_ago_it_began(rig) -> None:
    rig.make_ready({"v": 1})
    operator = OperatorStore(rig.url, clock=rig.clock)
    rig.clock.advance(8 * 86400)
    assert rig.work.status() == []
    assert len(rig.work.status(row=rig.row()["id"])) == 1
    operator.pause_row(rig.row()["id"], By("ada"))
    assert [row["reason"] for row in rig.work.status()] == ["Paused"]
    operator.resume_row(rig.row()["id"], By("ada"))
    assert rig.work.status() == []
    rig.ready({"v": 2})
    rig.settle(rig.claim_one(), Phase.READY, reason="PlanUnknown")
    rig.clock.advance(8 * 86400)
    assert [row["settle"] for row in rig.work.status()] == [f"nimble-reconcile retry {_id(rig)}"]
    operator.close()


def test_a_surplus_is_listed_until_it_is_released_and_for_a_week_after(rig) -> None:
    rig.make_ready()
    rig.removing()
    rig.settle(rig.claim_one(grace=0.0), Phase.RELEASING, delay=90 * 86400.0)
    rig.change(origin="surplus")
    rig.clock.advance(90 * 86400)
    assert [row["origin"] for row in rig.work.status()] == ["surplus"]
    rig.settle(rig.claim_one(), Phase.RELEASED, finished=True)
    rig.clock.advance(6 * 86400)
    assert [row["origin"] for row in rig.work.status()] == ["surplus"]
    rig.clock.advance(2 * 86400)
    assert rig.work.status() == []


def test_a_retired_row_is_listed_for_a_week(rig) -> None:
    rig.ready()
    rig.settle(rig.claim_one(), Phase.STALLED, reason="NameConflict", creates=0)
    rig.clock.advance(90 * 86400)
    rig.change(retired_at=rig.clock.instant)
    assert [row["settle"] for row in rig.work.status()] == [None]
    rig.clock.advance(8 * 86400)
    assert rig.work.status() == []


def _id(rig) -> object:
    return rig.row()["id"]

"""Whatever is in a row, a claim makes progress: what it leaves needs no second look now."""

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from nimble_lifecycle.protocol import Phase, Why

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

INSTANTS = st.none() | st.sampled_from([-9999, -40, -1, 0, 1, 40, 9999])
STORED = [phase.value for phase in Phase if phase is not Phase.RELEASE_PENDING]
TIMES = (
    "last_used_at",
    "create_started_at",
    "create_attempted_at",
    "created_at",
    "release_seen_at",
    "release_after",
    "release_started_at",
    "operation_deadline_at",
    "due_at",
    "lease_expires_at",
)
COLUMNS = st.fixed_dictionaries(
    {
        "desired": st.sampled_from(["wanted", "release"]),
        "hold": st.sampled_from([None, None, "release"]),
        "phase": st.sampled_from(STORED),
        "reason": st.none() | st.sampled_from([why.value for why in Why]),
        "attempted_params_hash": st.sampled_from([None, "", "other"]),
        "claimed_generation": st.sampled_from([0, 1]),
        "external_id": st.sampled_from([None, "x1"]),
        "operation_id": st.sampled_from([None, None, "op"]),
        "attempts": st.sampled_from([0, 2]),
        "creates": st.sampled_from([0, 1, 5]),
        **dict.fromkeys(TIMES, INSTANTS),
    }
)
RULES = st.fixed_dictionaries(
    {
        "repeatable": st.sampled_from([None, 3600.0]),
        "can_find": st.booleans(),
        "keeps": st.booleans(),
        "grace": st.sampled_from([0.0, 3600.0]),
    }
)


@SETTINGS
@given(columns=COLUMNS, rules=RULES)
def test_a_second_claim_at_the_same_instant_finds_nothing_and_changes_nothing(
    rig, columns, rules
) -> None:
    rig.empty()
    rig.ready()
    times = {name: None if columns[name] is None else rig.after(columns[name]) for name in TIMES}
    rig.change(**{**columns, **times})
    taken = rig.claim(**rules)
    after = rig.row()
    assert (after["lease_owner"] == "me") == (len(taken) == 1)
    assert rig.claim(**rules) == []
    assert rig.row() == after


@SETTINGS
@given(columns=COLUMNS, rules=RULES)
def test_no_claim_loses_a_row_that_is_asked_to_go_or_acts_on_one_without_proof(
    rig, columns, rules
) -> None:
    rig.empty()
    rig.ready()
    times = {name: None if columns[name] is None else rig.after(columns[name]) for name in TIMES}
    rig.change(**{**columns, **times})
    for claim in rig.claim(**rules):
        asked = columns["desired"] == "release" or columns["hold"] is not None
        started = columns["release_started_at"] is not None
        if claim.step == "create":
            assert not started
            assert claim.tenancy.external_id is None
        if claim.step == "update":
            assert not started
            assert not asked
            assert claim.tenancy.external_id is not None
        if claim.step == "release":
            assert started or (asked and claim.tenancy.external_id is not None)
        if claim.step == "poll":
            assert claim.tenancy.operation_id == columns["operation_id"]
            assert started or columns["phase"] in ("provisioning", "unresolved")
        else:
            assert claim.tenancy.operation_id is None
